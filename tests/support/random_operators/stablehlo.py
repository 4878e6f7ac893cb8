"""How to draw StableHLO operators with shapes, windows and bodies. Source: the StableHLO spec."""

import numpy as np

from jaxdelegate.op_lowering.options import (
    ReduceWindowFunction,
    ReduceWindowOptions,
    RngAlgorithm,
    StablehloBroadcastInDimOptions,
    StablehloCompareOptions,
    StablehloComparisonDirection,
    StablehloComparisonType,
    StablehloConcatenateOptions,
    StablehloConvolutionOptions,
    StablehloDotGeneralOptions,
    StablehloDynamicSliceOptions,
    StablehloGatherOptions,
    StablehloIotaOptions,
    StablehloPadOptions,
    StablehloReduceOptions,
    StablehloReduceWindowOptions,
    StablehloRngBitGeneratorOptions,
    StablehloScatterOptions,
    StablehloSliceOptions,
    StablehloSortOptions,
    StablehloTransposeOptions,
)
from tests.support.graph_drawing import Drawing
from tests.support.graph_records import Graph
from tests.support.random_operators.elementwise import Draw, F

_NUMBERS = ("float32", "int32")
_LESS = StablehloComparisonDirection.STABLEHLO_COMPARISON_DIRECTION_LT
_OF_INTEGERS = StablehloComparisonType.STABLEHLO_COMPARISON_TYPE_SIGNED
_OF_FLOATS = StablehloComparisonType.STABLEHLO_COMPARISON_TYPE_FLOAT


def _type(dtype: np.dtype) -> StablehloComparisonType:
    return _OF_FLOATS if dtype.kind == "f" else _OF_INTEGERS


def _body(d: Drawing, name: str, dtype: np.dtype) -> Graph:
    """Two scalars to one."""
    body = Drawing(d.rng)
    a, b = body.fed(np.zeros((), dtype)), body.fed(np.zeros((), dtype))
    y = body.same(name, [a, b], ())
    return body.graph([y])


def _comparator(d: Drawing, dtype: np.dtype) -> Graph:
    body = Drawing(d.rng)
    a, b = body.fed(np.zeros((), dtype)), body.fed(np.zeros((), dtype))
    options = StablehloCompareOptions(_LESS, _type(dtype))
    return body.graph([body.result("STABLEHLO_COMPARE", [a, b], (), "bool", options)])


_BODIES = ("STABLEHLO_ADD", "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM")
_START = {"STABLEHLO_ADD": 0, "STABLEHLO_MULTIPLY": 1}


def _start(d: Drawing, name: str, dtype: np.dtype) -> int:
    return d.const(_START.get(name, 2), dtype)


def _compare(d: Drawing) -> None:
    a = d.operand(_NUMBERS)
    b = d.like(d.kind(a), d.shape_of(a))
    direction = d.one_of(tuple(StablehloComparisonDirection))
    options = StablehloCompareOptions(direction, _type(d.tensors[a].dtype))
    d.result("STABLEHLO_COMPARE", [a, b], d.shape_of(a), "bool", options)


def _select(d: Drawing) -> None:
    a = d.operand(_NUMBERS)
    shape = d.shape_of(a)
    condition = d.like("bool", d.one_of((shape, ())))
    d.same("STABLEHLO_SELECT", [condition, a, d.like(d.kind(a), shape)], shape, of=1)


def _reshape(d: Drawing) -> None:
    x = d.operand(_NUMBERS)
    d.same("STABLEHLO_RESHAPE", [x], (1, *d.shape_of(x)[::-1]))


def _broadcast(d: Drawing) -> None:
    x = d.operand(_NUMBERS, 0, 4)
    shape = [d.between(1, 3) if n == 1 else n for n in d.shape_of(x)]
    rank = len(shape) + d.between(0, 2)
    places = sorted(d.rng.permutation(rank)[: len(shape)].tolist())
    to = [d.between(1, 3) for _ in range(rank)]
    for at, n in zip(places, shape, strict=True):
        to[at] = n
    options = StablehloBroadcastInDimOptions(tuple(places))
    d.same("STABLEHLO_BROADCAST_IN_DIM", [x], to, options)


def _iota(d: Drawing) -> None:
    shape = d.shape(1, 3)
    options = StablehloIotaOptions(d.between(0, len(shape) - 1))
    d.result("STABLEHLO_IOTA", [], shape, d.one_of(_NUMBERS), options)


def _transpose(d: Drawing) -> None:
    x = d.operand(_NUMBERS, 1, 5)
    order = tuple(d.rng.permutation(len(d.shape_of(x))).tolist())
    to = [d.shape_of(x)[i] for i in order]
    d.same("STABLEHLO_TRANSPOSE", [x], to, StablehloTransposeOptions(order))


def _concatenate(d: Drawing) -> None:
    x = d.operand(_NUMBERS, 1, 4)
    shape = d.shape_of(x)
    axis = d.between(0, len(shape) - 1)
    n = d.between(1, 3)
    operands = [x, *(d.like(d.kind(x), shape) for _ in range(n - 1))]
    to = list(shape)
    to[axis] *= n
    d.same("STABLEHLO_CONCATENATE", operands, to, StablehloConcatenateOptions(axis))


def _slice(d: Drawing) -> None:
    x = d.operand(_NUMBERS, 1, 4, all)
    shape = d.shape_of(x)
    starts = tuple(d.between(0, n - 1) for n in shape)
    limits = tuple(d.between(s + 1, n) for s, n in zip(starts, shape, strict=True))
    strides = tuple(d.between(1, 3) for _ in shape)
    to = [-(-(e - s) // k) for s, e, k in zip(starts, limits, strides, strict=True)]
    d.same("STABLEHLO_SLICE", [x], to, StablehloSliceOptions(starts, limits, strides))


def _dynamic_slice(d: Drawing) -> None:
    x = d.operand(_NUMBERS, 1, 4, all)
    shape = d.shape_of(x)
    sizes = tuple(d.between(1, n) for n in shape)
    starts = [d.fed(d.between(-1, n), np.int32) for n in shape]
    options = StablehloDynamicSliceOptions(sizes)
    d.same("STABLEHLO_DYNAMIC_SLICE", [x, *starts], sizes, options)


def _dynamic_update_slice(d: Drawing) -> None:
    x = d.operand(_NUMBERS, 1, 4, all)
    shape = d.shape_of(x)
    update = d.like(d.kind(x), tuple(d.between(1, n) for n in shape))
    starts = [d.fed(d.between(-1, n), np.int32) for n in shape]
    d.same("STABLEHLO_DYNAMIC_UPDATE_SLICE", [x, update, *starts], shape)


def _pad(d: Drawing) -> None:
    x = d.operand(_NUMBERS, 1, 4, all)
    shape = d.shape_of(x)
    low = tuple(d.between(0, 2) for _ in shape)
    high = tuple(d.between(0, 2) for _ in shape)
    inside = tuple(d.between(0, 2) for _ in shape)
    to = [n + (n - 1) * i + a + b for n, i, a, b in zip(shape, inside, low, high, strict=True)]
    operands = [x, d.const(1, d.tensors[x].dtype)]
    d.same("STABLEHLO_PAD", operands, to, StablehloPadOptions(low, high, inside))


def _dilate(d: Drawing) -> None:
    x = d.operand(_NUMBERS, 1, 4, all)
    by = [d.between(1, 3) for _ in d.shape_of(x)]
    to = [(n - 1) * k + 1 for n, k in zip(d.shape_of(x), by, strict=True)]
    operands = [x, d.const(by, np.int32), d.const(2, d.tensors[x].dtype)]
    d.same("DILATE", operands, to)


def _gather(d: Drawing) -> None:
    """Rows."""
    x = d.operand(_NUMBERS, 2, 3, all)
    n, *row = d.shape_of(x)
    at = d.rng.integers(-1, n + 1, (d.between(1, 4), 1))
    options = StablehloGatherOptions(tuple(range(1, len(row) + 1)), (0,), (0,), 1, (1, *row))
    d.same("STABLEHLO_GATHER", [x, d.fed(at, np.int32)], (len(at), *row), options)


def _scatter(d: Drawing) -> None:
    """Rows; those out of bounds are ignored."""
    x = d.operand(_NUMBERS, 2, 3, all)
    n, *row = d.shape_of(x)
    at = d.rng.integers(-1, n + 1, (d.between(1, 4), 1))
    updates = d.like(d.kind(x), (len(at), *row))
    windows = tuple(range(1, len(row) + 1))
    body = _body(d, d.one_of(_BODIES), d.tensors[x].dtype)
    output = d.add(d.shape_of(x), d.tensors[x].dtype)
    d.node(
        "STABLEHLO_SCATTER",
        [x, d.fed(at, np.int32), updates],
        [output],
        bodies=(body,),
        calling=lambda at: StablehloScatterOptions(
            update_window_dims=windows,
            inserted_window_dims=(0,),
            scatter_dims_to_operand_dims=(0,),
            index_vector_dim=1,
            update_computation_subgraph_index=at[0],
        ),
        accumulated=5,
    )


def _reduce(d: Drawing) -> None:
    x = d.operand(_NUMBERS, 1, 4, all)
    shape, dtype = d.shape_of(x), d.tensors[x].dtype
    dims = tuple(i for i in range(len(shape)) if d.chance(0.5)) or (0,)
    name = d.one_of(_BODIES)
    output = d.add([n for i, n in enumerate(shape) if i not in dims], dtype)
    d.node(
        "STABLEHLO_REDUCE",
        [x, _start(d, name, dtype)],
        [output],
        bodies=(_body(d, name, dtype),),
        calling=lambda at: StablehloReduceOptions(dims, at[0]),
        accumulated=int(np.prod([shape[i] for i in dims])),
    )


def _reduce_window(d: Drawing) -> None:
    x = d.operand(_NUMBERS, 1, 4, all)
    shape, dtype = d.shape_of(x), d.tensors[x].dtype
    window = tuple(d.between(1, min(3, n)) for n in shape)
    strides = tuple(d.between(1, 2) for _ in shape)
    pads = tuple(d.between(0, w - 1) for w in window for _ in range(2))
    ones = (1,) * len(shape)
    to = [
        (n + pads[2 * i] + pads[2 * i + 1] - window[i]) // strides[i] + 1
        for i, n in enumerate(shape)
    ]
    name = d.one_of(_BODIES)
    output = d.add(to, dtype)
    d.node(
        "STABLEHLO_REDUCE_WINDOW",
        [x, _start(d, name, dtype)],
        [output],
        bodies=(_body(d, name, dtype),),
        calling=lambda at: StablehloReduceWindowOptions(window, strides, ones, ones, pads, at[0]),
        accumulated=int(np.prod(window)),
    )


def _builtin_reduce_window(d: Drawing) -> None:
    x = d.operand(("float32", "int32", "int64", "int8"), 1, 4, all)
    shape, dtype = d.shape_of(x), d.tensors[x].dtype
    window = [d.between(1, min(3, n)) for n in shape]
    strides = [d.between(1, 2) for _ in shape]
    to = [(n - w) // s + 1 for n, w, s in zip(shape, window, strides, strict=True)]
    function = d.one_of([ReduceWindowFunction[n] for n in ("ADD", "MUL", "MINIMUM", "MAXIMUM")])
    operands = [
        x,
        d.const(1, dtype),
        *(d.const(v, np.int64) for v in (window, strides, [1] * len(shape))),
    ]
    d.same(
        "REDUCE_WINDOW",
        operands,
        to,
        ReduceWindowOptions(function),
        accumulated=int(np.prod(window)),
    )


def _sort(d: Drawing) -> None:
    x = d.operand(_NUMBERS, 1, 3, all)
    shape, dtype = d.shape_of(x), d.tensors[x].dtype
    axis = d.between(0, len(shape) - 1)
    output = d.add(shape, dtype)
    d.node(
        "STABLEHLO_SORT",
        [x],
        [output],
        bodies=(_comparator(d, dtype),),
        calling=lambda at: StablehloSortOptions(
            axis, is_stable=True, comparator_subgraph_index=at[0]
        ),
    )


def _dot_general(d: Drawing) -> None:
    x = d.operand(F, 2, 4, all)
    *batch, rows, depth = d.shape_of(x)
    n = d.between(1, 5)
    y = d.like("float32", (*batch, depth, n))
    b = tuple(range(len(batch)))
    options = StablehloDotGeneralOptions(b, b, (len(batch) + 1,), (len(batch),))
    to = (*batch, rows, n)
    d.result("STABLEHLO_DOT_GENERAL", [x, y], to, "float32", options, accumulated=depth)


def _convolution(d: Drawing) -> None:
    x = d.operand(F, 4, 4, lambda s: all(s) and bool(np.prod(s) < 3000))
    b, h, w, c = d.shape_of(x)
    k = [d.between(1, min(3, v)) for v in (h, w)]
    n = d.between(1, 4)
    filters = d.const(d.rng.normal(0, 0.6, (*k, c, n)), np.float32)
    options = StablehloConvolutionOptions(
        window_strides=(1, 1),
        padding=(0,) * 4,
        lhs_dilation=(1, 1),
        rhs_dilation=(1, 1),
        window_reversal=(False, False),
        input_batch_dimension=0,
        input_feature_dimension=3,
        input_spatial_dimensions=(1, 2),
        kernel_input_feature_dimension=2,
        kernel_output_feature_dimension=3,
        kernel_spatial_dimensions=(0, 1),
        output_batch_dimension=0,
        output_feature_dimension=3,
        output_spatial_dimensions=(1, 2),
        feature_group_count=1,
        batch_group_count=1,
    )
    to = (b, h - k[0] + 1, w - k[1] + 1, n)
    products = int(np.prod(k)) * c
    operands = [x, filters]
    d.result("STABLEHLO_CONVOLUTION", operands, to, "float32", options, accumulated=products)


def _rng_bits(d: Drawing) -> None:
    shape = d.shape(1, 3)
    state = d.fed(d.rng.integers(0, 2**63, 2).astype(np.uint64))
    algorithm = d.one_of((RngAlgorithm.THREEFRY, RngAlgorithm.PHILOX))
    kind = d.one_of((np.int32, np.int64, np.uint32, np.uint64))
    outputs = [d.add((2,), np.uint64), d.add(shape, kind)]
    options = StablehloRngBitGeneratorOptions(algorithm)
    d.node("STABLEHLO_RNG_BIT_GENERATOR", [state], outputs, options, live=False)


OPERATORS: dict[str, Draw] = {
    "STABLEHLO_COMPARE": _compare,
    "STABLEHLO_SELECT": _select,
    "STABLEHLO_RESHAPE": _reshape,
    "STABLEHLO_BROADCAST_IN_DIM": _broadcast,
    "STABLEHLO_IOTA": _iota,
    "STABLEHLO_TRANSPOSE": _transpose,
    "STABLEHLO_CONCATENATE": _concatenate,
    "STABLEHLO_SLICE": _slice,
    "STABLEHLO_DYNAMIC_SLICE": _dynamic_slice,
    "STABLEHLO_DYNAMIC_UPDATE_SLICE": _dynamic_update_slice,
    "STABLEHLO_PAD": _pad,
    "DILATE": _dilate,
    "STABLEHLO_GATHER": _gather,
    "STABLEHLO_SCATTER": _scatter,
    "STABLEHLO_REDUCE": _reduce,
    "STABLEHLO_REDUCE_WINDOW": _reduce_window,
    "REDUCE_WINDOW": _builtin_reduce_window,
    "STABLEHLO_SORT": _sort,
    "STABLEHLO_DOT_GENERAL": _dot_general,
    "STABLEHLO_CONVOLUTION": _convolution,
    "STABLEHLO_RNG_BIT_GENERATOR": _rng_bits,
}
