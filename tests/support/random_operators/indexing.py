"""How to draw operators that pick values, and reductions. Sources: schema.fbs, kernels/*.cc."""

import numpy as np

from jaxdelegate.op_lowering.options import (
    ArgMaxOptions,
    ArgMinOptions,
    BucketizeOptions,
    CombinerType,
    CumsumOptions,
    EmbeddingLookupSparseOptions,
    GatherOptions,
    LSHProjectionOptions,
    LSHProjectionType,
    OneHotOptions,
    ReducerOptions,
    ReverseSequenceOptions,
    TensorType,
    UniqueOptions,
)
from jaxdelegate.op_lowering.spec import Shape
from tests.support.graph_drawing import Drawing
from tests.support.random_operators.elementwise import ANY, Draw

_INDICES = (np.int32, np.int64)


def _full(shape: Shape) -> bool:
    return all(shape)


def _places(d: Drawing, high: int, shape: Shape, dtype: object = np.int32) -> int:
    """Indices below `high`, a graph input or a constant."""
    return d.given(d.rng.integers(0, high, shape), dtype, 0.4)


def _gather(d: Drawing) -> None:
    x = d.operand(ANY, 1, 5, _full)
    shape = d.shape_of(x)
    batch = d.between(0, min(2, len(shape) - 1)) if d.chance(0.3) else 0
    axis = d.between(batch, len(shape) - 1)
    more = d.shape(0, 2) if not batch else (d.between(1, 4),)
    at = _places(d, shape[axis], (*shape[:batch], *more), d.one_of((*_INDICES, np.int16)))
    to = (*shape[:axis], *more, *shape[axis + 1 :])
    axis = axis - len(shape) if d.chance(0.3) else axis
    d.same("GATHER", [x, at], to, GatherOptions(axis, batch))


def _gather_nd(d: Drawing) -> None:
    x = d.operand(ANY, 1, 5, _full)
    shape = d.shape_of(x)
    depth, outer = d.between(1, len(shape)), d.shape(0, 2)
    at = d.rng.integers(0, shape[:depth], (*outer, depth))
    operands = [x, d.given(at, d.one_of(_INDICES), 0.4)]
    d.same("GATHER_ND", operands, (*outer, *shape[depth:]))


def _scatter_nd(d: Drawing) -> None:
    shape = tuple(d.between(1, 6) for _ in range(d.between(1, 4)))
    depth, n = d.between(1, len(shape)), d.between(1, 5)
    at = d.rng.integers(0, shape[:depth], (n, depth))
    kind = d.one_of(("float32", "int32", "int64", "int8", "bool"))
    updates = d.like(kind, (n, *shape[depth:]))
    operands = [d.given(at, np.int32), updates, d.const(shape, np.int32)]
    d.result("SCATTER_ND", operands, shape, kind, accumulated=n)


def _sparse_to_dense(d: Drawing) -> None:
    shape = tuple(d.between(1, 6) for _ in range(d.between(1, 4)))
    n = d.between(1, 6)
    dtype = d.one_of(_INDICES)
    kind = d.one_of(("float32", "int32", "int64", "int8"))
    flat = np.sort(d.rng.permutation(int(np.prod(shape)))[:n])
    at = np.stack(np.unravel_index(flat, shape), 1)
    values = d.new(kind, (len(flat),) if d.chance(0.7) else ())
    operands = [d.given(at, dtype), d.const(shape, dtype), values, d.new(kind, (), constant=0.8)]
    d.result("SPARSE_TO_DENSE", operands, shape, kind)


def _embedding_lookup(d: Drawing) -> None:
    x = d.operand(("float32", "qint8", "int32"), 2, 4, _full)
    shape = d.shape_of(x)
    n = d.between(1, 5)
    d.same("EMBEDDING_LOOKUP", [_places(d, shape[0], (n,)), x], (n, *shape[1:]), of=1)


def _one_hot(d: Drawing) -> None:
    shape, depth = d.shape(1, 4), d.between(1, 6)
    kind = d.one_of(("float32", "int32", "int64", "bool", "int8"))
    at = d.given(d.rng.integers(-1, depth + 1, shape), d.one_of(_INDICES), 0.3)
    axis = d.between(-1, len(shape))
    to = list(shape)
    to.insert(axis if axis >= 0 else len(shape), depth)
    on, off = (d.new(kind, (), constant=0.7) for _ in range(2))
    d.result("ONE_HOT", [at, d.const(depth, np.int32), on, off], to, kind, OneHotOptions(axis))


def _reverse_sequence(d: Drawing) -> None:
    x = d.operand(("float32", "int32", "int64", "uint8", "int16"), 2, 5, _full)
    shape = d.shape_of(x)
    batch, along = d.rng.permutation(len(shape))[:2].tolist()
    lengths = d.given(d.rng.integers(1, shape[along] + 1, shape[batch]), d.one_of(_INDICES))
    d.same("REVERSE_SEQUENCE", [x, lengths], shape, ReverseSequenceOptions(along, batch))


def _matrix_diag(d: Drawing) -> None:
    x = d.operand(("float32", "int32", "int64", "bool", "int8"), 1, 4)
    shape = d.shape_of(x)
    if np.prod(shape) * shape[-1] < 20000:
        d.same("MATRIX_DIAG", [x], (*shape, shape[-1]))


def _matrix_set_diag(d: Drawing) -> None:
    x = d.operand(("float32", "int32", "int64", "int8"), 2, 5)
    shape = d.shape_of(x)
    diagonal = d.like(d.kind(x), (*shape[:-2], min(shape[-2:])))
    d.same("MATRIX_SET_DIAG", [x, diagonal], shape)


def _where(d: Drawing) -> None:
    x = d.operand(("bool", "float32", "int32", "int8"), 1, 4)
    d.node("WHERE", [x], [d.add((1, len(d.shape_of(x))), np.int64)], live=False)


def _unique(d: Drawing) -> None:
    x = d.operand(("float32", "int32", "int64", "int8"), 1, 1)
    out = d.one_of((TensorType.INT32, TensorType.INT64))
    index = d.add(d.shape_of(x), np.int32 if out == TensorType.INT32 else np.int64)
    values = d.add((1,), d.tensors[x].dtype)
    d.node("UNIQUE", [x], [values, index], UniqueOptions(out), live=False)


def _top_k(d: Drawing) -> None:
    x = d.operand(("float32", "int32", "int64", "int8", "uint8", "int16"), 1, 4, _full)
    shape, t = d.shape_of(x), d.tensors[x]
    k = d.between(1, min(shape[-1], 6))
    to = (*shape[:-1], k)
    outputs = [d.add(to, t.dtype, t.quantization), d.add(to, np.int32)]
    d.node("TOPK_V2", [x, d.const(k, np.int32)], outputs)


def _bucketize(d: Drawing) -> None:
    x = d.operand(("float32", "int32", "int64", "float64"))
    bounds = sorted(float(np.float32(v)) for v in d.rng.uniform(-4, 6, d.between(1, 6)))
    d.result("BUCKETIZE", [x], d.shape_of(x), "int32", BucketizeOptions(tuple(bounds)))


def _embedding_lookup_sparse(d: Drawing) -> None:
    rows, columns, n = d.between(1, 4), d.between(1, 4), d.between(1, 6)
    flat = np.sort(d.rng.integers(0, rows * columns, n))
    table = d.like("float32", (d.between(1, 6), d.between(1, 7)))
    operands = [
        _places(d, d.shape_of(table)[0], (n,)),
        d.const(np.stack(np.unravel_index(flat, (rows, columns)), 1), np.int32),
        d.const((rows, columns), np.int32),
        d.fed(d.rng.uniform(0.5, 2, n), np.float32),
        table,
    ]
    to = (rows, d.shape_of(table)[1])
    options = EmbeddingLookupSparseOptions(d.one_of(tuple(CombinerType)))
    d.result("EMBEDDING_LOOKUP_SPARSE", operands, to, "float32", options, accumulated=n)


def _hashtable_lookup(d: Drawing) -> None:
    n, m = d.between(1, 6), d.between(1, 6)
    keys = np.sort(d.rng.permutation(20)[:n])
    x = d.like("float32", (n, *d.shape(0, 2)))
    shape = (m, *d.shape_of(x)[1:])
    outputs = [d.add(shape, np.float32), d.add((m,), np.uint8)]
    d.node(
        "HASHTABLE_LOOKUP",
        [d.fed(d.rng.integers(0, 20, m), np.int32), d.const(keys, np.int32), x],
        outputs,
    )


def _lsh_projection(d: Drawing) -> None:
    n_hash, n_bits = d.between(1, 4), d.between(1, 5)
    x = d.operand(("int32", "int64", "float32", "int8"), 1, 3, _full)
    kind = d.one_of((LSHProjectionType.SPARSE, LSHProjectionType.DENSE))
    to = (n_hash,) if kind == LSHProjectionType.SPARSE else (n_hash * n_bits,)
    hashes = d.const(d.rng.uniform(-1, 1, (n_hash, n_bits)), np.float32)
    d.result("LSH_PROJECTION", [hashes, x], to, "int32", LSHProjectionOptions(kind))


# ---- reductions

_REDUCED: dict[str, tuple[str, ...]] = {
    "MEAN": ("float32", "int32", "int64", "qint8", "quint8", "qint16"),
    "SUM": ("float32", "int32", "int64", "qint8", "quint8", "qint16"),
    "REDUCE_PROD": ("float32", "int8", "uint8", "int16", "int32", "int64", "qint8", "qint16"),
    "REDUCE_MAX": ("float32", "int8", "uint8", "int16", "int32", "int64", "qint8", "qint16"),
    "REDUCE_MIN": ("float32", "int8", "uint8", "int16", "int32", "int64", "qint8", "qint16"),
    "REDUCE_ANY": ("bool",),
    "REDUCE_ALL": ("bool",),
}


def _reduce(name: str) -> Draw:
    def draw(d: Drawing) -> None:
        x = d.operand(_REDUCED[name], 1)
        shape, keep = d.shape_of(x), d.chance(0.5)
        axes = [i for i in range(len(shape)) if d.chance(0.5)] or [d.between(0, len(shape) - 1)]
        to = [1 if i in axes else n for i, n in enumerate(shape) if keep or i not in axes]
        asked = [i - len(shape) if d.chance(0.3) else i for i in axes]
        operands = [x, d.const(asked, np.int32)]
        count = max(1, int(np.prod([shape[i] for i in axes])))
        alike = name in {"REDUCE_MAX", "REDUCE_MIN"}
        d.result(
            name,
            operands,
            to,
            d.kind(x),
            ReducerOptions(keep),
            q=d.q_of(x) if alike else None,
            accumulated=count,
            version=1 if name in {"REDUCE_ANY", "REDUCE_ALL"} else 2,
        )

    return draw


def _arg(name: str) -> Draw:
    def draw(d: Drawing) -> None:
        kinds = ("float32", "int8", "uint8", "int32", "qint8", "quint8", "bool")
        x = d.operand(kinds, 1, 5, _full)
        shape = list(d.shape_of(x))
        axis = d.axis(len(shape))
        kind, out = d.one_of((("int32", TensorType.INT32), ("int64", TensorType.INT64)))
        options = (ArgMaxOptions if name == "ARG_MAX" else ArgMinOptions)(out)
        operands = [x, d.const(axis, np.int32)]
        del shape[axis]
        d.result(name, operands, shape, kind, options)

    return draw


def _cumsum(d: Drawing) -> None:
    x = d.operand(("float32", "int32", "int64"), 1)
    shape = d.shape_of(x)
    axis = d.axis(len(shape))
    options = CumsumOptions(d.chance(0.5), d.chance(0.5))
    operands = [x, d.const(axis, np.int32)]
    d.result("CUMSUM", operands, shape, d.kind(x), options, accumulated=max(1, shape[axis]))


def _segment_sum(d: Drawing) -> None:
    x = d.operand(("float32", "int32"), 1, 4, _full)
    shape = d.shape_of(x)
    ids = np.cumsum(d.rng.integers(0, 2, shape[0]))
    ids = ids - ids[0]
    to = (int(ids[-1]) + 1, *shape[1:])
    d.result("SEGMENT_SUM", [x, d.const(ids, np.int32)], to, d.kind(x), accumulated=shape[0])


def _unsorted_segment(name: str) -> Draw:
    def draw(d: Drawing) -> None:
        x = d.operand(("float32", "int32"), 1, 4, _full)
        shape, n = d.shape_of(x), d.between(1, 5)
        depth = d.between(1, len(shape))
        ids = d.given(d.rng.integers(-1, n, shape[:depth]), np.int32)
        operands = [x, ids, d.const(n, np.int32)]
        count = int(np.prod(shape[:depth]))
        d.result(name, operands, (n, *shape[depth:]), d.kind(x), accumulated=count)

    return draw


OPERATORS: dict[str, Draw] = {
    "GATHER": _gather,
    "GATHER_ND": _gather_nd,
    "SCATTER_ND": _scatter_nd,
    "SPARSE_TO_DENSE": _sparse_to_dense,
    "EMBEDDING_LOOKUP": _embedding_lookup,
    "ONE_HOT": _one_hot,
    "REVERSE_SEQUENCE": _reverse_sequence,
    "MATRIX_DIAG": _matrix_diag,
    "MATRIX_SET_DIAG": _matrix_set_diag,
    "WHERE": _where,
    "UNIQUE": _unique,
    "TOPK_V2": _top_k,
    "BUCKETIZE": _bucketize,
    "EMBEDDING_LOOKUP_SPARSE": _embedding_lookup_sparse,
    "HASHTABLE_LOOKUP": _hashtable_lookup,
    "LSH_PROJECTION": _lsh_projection,
    **{name: _reduce(name) for name in _REDUCED},
    "ARG_MAX": _arg("ARG_MAX"),
    "ARG_MIN": _arg("ARG_MIN"),
    "CUMSUM": _cumsum,
    "SEGMENT_SUM": _segment_sum,
    **{
        f"UNSORTED_SEGMENT_{n}": _unsorted_segment(f"UNSORTED_SEGMENT_{n}")
        for n in ("SUM", "PROD", "MAX", "MIN")
    },
}
