"""How to draw operators that move or create values. Sources: schema.fbs and kernels/*.cc."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.options import (
    ConcatenationOptions,
    DepthToSpaceOptions,
    MirrorPadMode,
    MirrorPadOptions,
    Options,
    PackOptions,
    ReshapeOptions,
    ShapeOptions,
    SpaceToDepthOptions,
    SplitOptions,
    SplitVOptions,
    SqueezeOptions,
    StridedSliceOptions,
    TensorType,
    UnpackOptions,
)
from tests.support.graph_drawing import Drawing
from tests.support.random_operators.elementwise import QUANTIZED, Draw

MOVED = ("float32", "int8", "int32", "int64", "qint8", "quint8", "qint16")
_MORE = (*MOVED, "bool", "int16", "uint8")


def _reshape(d: Drawing) -> None:
    x = d.operand(_MORE)
    size = int(np.prod(d.shape_of(x)))
    to = _factors(d, size)
    asked = list(to)
    if to and size and d.chance(0.3):
        asked[d.between(0, len(to) - 1)] = -1
    if d.chance(0.8):
        d.same("RESHAPE", [x, d.const(asked, np.int32)], to, ReshapeOptions(tuple(asked)))
    elif to:
        d.same("RESHAPE", [x], to, ReshapeOptions(tuple(asked)))


def _factors(d: Drawing, size: int) -> tuple[int, ...]:
    if size == 0:
        return (0, d.between(1, 3))
    dims: list[int] = []
    for p in (2, 3, 5, 7, 13):
        while size % p == 0:
            size //= p
            dims.append(p)
    dims.append(size)
    while len(dims) > 1 and d.chance(0.7):
        i = d.between(0, len(dims) - 2)
        dims[i : i + 2] = [dims[i] * dims[i + 1]]
    while len(dims) > 5:
        dims[:2] = [dims[0] * dims[1]]
    return tuple(d.rng.permutation(dims).tolist())


def _squeeze(d: Drawing) -> None:
    x = d.operand(_MORE, 1)
    shape = d.shape_of(x)
    ones = [i for i, n in enumerate(shape) if n == 1]
    dims = tuple(i - len(shape) * d.chance(0.3) for i in ones if d.chance(0.6))
    gone = {i % len(shape) for i in dims} if dims else set(ones)
    to = [n for i, n in enumerate(shape) if i not in gone]
    d.same("SQUEEZE", [x], to, SqueezeOptions(dims))


def _expand_dims(d: Drawing) -> None:
    x = d.operand(_MORE, 0, 5)
    shape = list(d.shape_of(x))
    axis = d.between(-len(shape) - 1, len(shape))
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, 1)
    d.same("EXPAND_DIMS", [x, d.const(axis, d.one_of((np.int32, np.int64)))], shape)


def _shape(d: Drawing) -> None:
    x = d.operand(_MORE)
    kind, out = d.one_of((("int32", TensorType.INT32), ("int64", TensorType.INT64)))
    d.result("SHAPE", [x], [len(d.shape_of(x))], kind, ShapeOptions(out))


def _rank(d: Drawing) -> None:
    d.result("RANK", [d.operand(_MORE)], (), "int32")


def _broadcast_to(name: str) -> Draw:
    def draw(d: Drawing) -> None:
        x = d.operand(_MORE, 0, 5)
        to = [n if n != 1 else d.between(1, 4) for n in d.shape_of(x)]
        to = [d.between(1, 3) for _ in range(d.between(0, 2))] + to
        d.same(name, [x, d.const(to, np.int32)], to, version=2)

    return draw


def _broadcast_args(d: Drawing) -> None:
    a, dtype = d.shape(1, 4), d.one_of((np.int32, np.int64))
    b = d.broadcast(a)
    d.result(
        "BROADCAST_ARGS",
        [d.const(a, dtype), d.const(b, dtype)],
        [max(len(a), len(b))],
        np.dtype(dtype).name,
    )


def _fill(d: Drawing) -> None:
    shape = d.shape(0, 4)
    kind = d.one_of(("float32", "int32", "int64", "bool", "int8", "qint8"))
    d.same("FILL", [d.const(shape, np.int32), d.new(kind, ())], shape, of=1)


def _range(d: Drawing) -> None:
    dtype = d.one_of((np.int32, np.int64, np.float32))
    start, n = d.between(-5, 5), d.between(1, 20)
    delta = d.one_of((1, 2, -1, -3, 7))
    if dtype is np.float32:
        delta = float(np.float32(d.one_of((0.1, 0.25, -1.5, 3.0))))
        limit = start + delta * (n - 0.5)
    else:
        limit = start + delta * n
    ends = [d.const(v, dtype) for v in (start, limit, delta)]
    d.result("RANGE", ends, [n], np.dtype(dtype).name)


def _transpose(name: str) -> Draw:
    def draw(d: Drawing) -> None:
        x = d.operand(_MORE, 1)
        order = d.rng.permutation(len(d.shape_of(x)))
        to = [d.shape_of(x)[i] for i in order]
        d.same(name, [x, d.const(order, np.int32)], to)

    return draw


def _concatenation(d: Drawing) -> None:
    x = d.operand(_MORE, 1)
    shape, operands = d.shape_of(x), [x]
    axis = d.axis(len(shape))
    total = shape[axis]
    for _ in range(d.between(0, 3)):
        other = list(shape)
        other[axis] = d.between(1, 4) if d.chance(0.6) else shape[axis]
        operands.append(d.like(d.kind(x), tuple(other), q=d.q_of(x)))
        total += other[axis]
    to = list(shape)
    to[axis] = total
    d.same("CONCATENATION", operands, to, ConcatenationOptions(axis))


def _pack(d: Drawing) -> None:
    x = d.operand(_MORE, 0, 4)
    shape = d.shape_of(x)
    operands = [x, *(d.like(d.kind(x), shape, q=d.q_of(x)) for _ in range(d.between(0, 3)))]
    axis = d.between(-len(shape) - 1, len(shape))
    to = list(shape)
    to.insert(axis if axis >= 0 else axis + len(shape) + 1, len(operands))
    d.same("PACK", operands, to, PackOptions(len(operands), axis))


def _several(
    d: Drawing,
    name: str,
    inputs: Sequence[int],
    shapes: Sequence[Sequence[int]],
    options: Options,
    of: int = 0,
) -> None:
    """An operator with several outputs, of the dtype and scale of input `of`."""
    t = d.tensors[inputs[of]]
    d.node(name, inputs, [d.add(s, t.dtype, t.quantization) for s in shapes], options)


def _unpack(d: Drawing) -> None:
    x = d.operand(
        ("float32", "int8", "int16", "int32", "uint8", "bool", *QUANTIZED),
        1,
        5,
        lambda s: any(0 < n <= 8 for n in s),
    )
    shape = d.shape_of(x)
    at = d.one_of([i for i, n in enumerate(shape) if 0 < n <= 8])
    rest = shape[:at] + shape[at + 1 :]
    axis = at - len(shape) if d.chance(0.3) else at
    _several(d, "UNPACK", [x], [rest] * shape[at], UnpackOptions(shape[at], axis))


def _split(d: Drawing) -> None:
    x = d.operand(_MORE, 1)
    shape = list(d.shape_of(x))
    axis = d.axis(len(shape))
    counts = [n for n in (1, 2, 3, 4) if shape[axis] % n == 0]
    n = d.one_of(counts)
    shape[axis] //= n
    _several(d, "SPLIT", [d.const(axis, np.int32), x], [shape] * n, SplitOptions(n), of=1)


def _split_v(d: Drawing) -> None:
    x = d.operand(_MORE, 1)
    shape = list(d.shape_of(x))
    axis = d.axis(len(shape))
    cuts = sorted(d.between(0, shape[axis]) for _ in range(d.between(0, 2)))
    if not d.mood.empty:
        cuts = sorted({c for c in cuts if 0 < c < shape[axis]})
    sizes = np.diff([0, *cuts, shape[axis]]).tolist()
    asked = list(sizes)
    if d.chance(0.3):
        asked[d.between(0, len(sizes) - 1)] = -1
    shapes = [[*shape[: axis % len(shape)], n, *shape[axis % len(shape) + 1 :]] for n in sizes]
    operands = [x, d.const(asked, np.int32), d.const(axis, np.int32)]
    _several(d, "SPLIT_V", operands, shapes, SplitVOptions(len(sizes)))


def _tile(d: Drawing) -> None:
    x = d.operand(_MORE, 1, 5, lambda s: bool(np.prod(s) < 1500))
    times = [d.one_of((1, 1, 2, 3)) for _ in d.shape_of(x)]
    to = np.multiply(d.shape_of(x), times).tolist()
    d.same("TILE", [x, d.const(times, d.one_of((np.int32, np.int64)))], to)


def _reverse(d: Drawing) -> None:
    x = d.operand(_MORE, 1)
    rank = len(d.shape_of(x))
    start = d.between(0, rank - 1)
    axes = list(range(start, d.between(start, rank - 1) + 1))
    d.same("REVERSE_V2", [x, d.const(axes, np.int32)], d.shape_of(x))


def _space_to_batch(d: Drawing) -> None:
    x = d.operand(MOVED, 3, 4)
    shape = d.shape_of(x)
    blocks = [d.between(1, 3) for _ in shape[1:-1]]
    before = [d.between(0, 2) for _ in blocks]
    after = [-(n + p) % b for n, p, b in zip(shape[1:-1], before, blocks, strict=True)]
    sizes = [
        (n + p + q) // b for n, p, q, b in zip(shape[1:-1], before, after, blocks, strict=True)
    ]
    to = [shape[0] * int(np.prod(blocks)), *sizes, shape[-1]]
    pads = np.array(list(zip(before, after, strict=True)), np.int32)
    d.same("SPACE_TO_BATCH_ND", [x, d.const(blocks, np.int32), d.const(pads)], to)


def _batch_to_space(d: Drawing) -> None:
    n_spatial = d.between(1, 2)
    blocks = [d.between(1, 2) for _ in range(n_spatial)]
    rest = [d.between(1, 5) for _ in range(n_spatial)]
    batch = d.between(1, 2)
    x = d.new(d.one_of(MOVED), (batch * int(np.prod(blocks)), *rest, d.between(1, 4)))
    crops = [
        [d.between(0, (n * b - 1) // 2) for _ in range(2)]
        for n, b in zip(rest, blocks, strict=True)
    ]
    sizes = [n * b - sum(c) for n, b, c in zip(rest, blocks, crops, strict=True)]
    to = [batch, *sizes, d.shape_of(x)[-1]]
    d.same("BATCH_TO_SPACE_ND", [x, d.const(blocks, np.int32), d.const(crops, np.int32)], to)


def _space_to_depth(d: Drawing) -> None:
    block = d.between(1, 3)
    b, h, w, c = (d.between(1, 4) for _ in range(4))
    x = d.like(
        d.one_of(("float32", "int32", "int64", "qint8", "quint8")), (b, h * block, w * block, c)
    )
    to = (b, h, w, c * block * block)
    d.same("SPACE_TO_DEPTH", [x], to, SpaceToDepthOptions(block))


def _depth_to_space(d: Drawing) -> None:
    block = d.between(1, 3)
    b, h, w, c = (d.between(1, 4) for _ in range(4))
    kind = d.one_of(("float32", "int32", "int64", "qint8", "quint8"))
    x = d.like(kind, (b, h, w, c * block * block))
    d.same("DEPTH_TO_SPACE", [x], (b, h * block, w * block, c), DepthToSpaceOptions(block))


def _pad(name: str) -> Draw:
    def draw(d: Drawing) -> None:
        x = d.operand((*MOVED, "bool") if name == "PAD" else MOVED, 1, 5)
        pads = np.array([[d.between(0, 2), d.between(0, 3)] for _ in d.shape_of(x)], np.int32)
        to = (np.array(d.shape_of(x)) + pads.sum(1)).tolist()
        operands = [x, d.const(pads, d.one_of((np.int32, np.int64)))]
        if name == "PADV2":
            t = d.tensors[x]
            operands.append(d.const(d.values((), t.dtype), q=t.quantization))
        d.same(name, operands, to, version=2)

    return draw


def _mirror_pad(d: Drawing) -> None:
    x = d.operand(("float32", "int32", "int64", "qint8", "quint8"), 1, 5)
    mode = d.one_of(tuple(MirrorPadMode))
    inside = 1 if mode == MirrorPadMode.REFLECT else 0
    most = [max(0, min(3, n - inside)) for n in d.shape_of(x)]
    pads = np.array([[d.between(0, m), d.between(0, m)] for m in most], np.int32)
    to = (np.array(d.shape_of(x)) + pads.sum(1)).tolist()
    d.same("MIRROR_PAD", [x, d.const(pads)], to, MirrorPadOptions(mode))


def _slice(d: Drawing) -> None:
    x = d.operand(_MORE, 1)
    begin = [d.between(0, max(n - 1, 0)) for n in d.shape_of(x)]
    size = [
        d.between(0 if d.mood.empty else 1, n - b) if n else 0
        for n, b in zip(d.shape_of(x), begin, strict=True)
    ]
    ends = [
        n == b + s and d.chance(0.5) for n, b, s in zip(d.shape_of(x), begin, size, strict=True)
    ]
    asked = [-1 if e else s for e, s in zip(ends, size, strict=True)]
    dtype = d.one_of((np.int32, np.int64))
    d.same("SLICE", [x, d.given(begin, dtype, 0.8), d.const(asked, dtype)], size, version=2)


def _strided_slice(d: Drawing) -> None:
    x = d.operand(_MORE, 1, 5, all)
    shape = d.shape_of(x)
    places: list[tuple[int, int, int]] = []
    to: list[int] = []
    masks: dict[str, Any] = {
        "begin_mask": 0,
        "end_mask": 0,
        "new_axis_mask": 0,
        "shrink_axis_mask": 0,
    }
    for n in shape:
        if d.chance(0.1) and len(places) < 4 and len(shape) < 4:
            masks["new_axis_mask"] |= 1 << len(places)
            places.append((0, 1, 1))
            to.append(1)
        bit = 1 << len(places)
        if d.chance(0.15):
            at = d.between(-n, n - 1)
            masks["shrink_axis_mask"] |= bit
            places.append((at, at + 1, 1))
            continue
        step = d.one_of((1, 1, 2, 3, -1, -2))
        begin, end = d.between(-n - 1, n), d.between(-n - 1, n + 1)
        for mask in ("begin_mask", "end_mask"):
            masks[mask] |= bit * d.chance(0.4)
        first = None if masks["begin_mask"] & bit else begin
        last = None if masks["end_mask"] & bit else end
        count = len(range(n)[first:last:step])
        if count == 0 and not d.mood.empty:
            masks["begin_mask"] |= bit
            masks["end_mask"] |= bit
            count = len(range(n)[::step])
        places.append((begin, end, step))
        to.append(count)
    ends = [d.const(v, np.int32) for v in zip(*places, strict=True)]
    d.same("STRIDED_SLICE", [x, *ends], to, StridedSliceOptions(**masks), version=4)


def _dynamic_update_slice(d: Drawing) -> None:
    x = d.operand(("float32", "int32", "int64", "int8", "bool", "qint8"), 1, 5, all)
    shape = d.shape_of(x)
    part = tuple(d.between(1, n) for n in shape)
    update = d.like(d.kind(x), part, q=d.q_of(x))
    start = [d.between(-1, n) for n in shape]  # clamped into the operand
    operands = [x, update, d.given(start, np.int32)]
    d.same("DYNAMIC_UPDATE_SLICE", operands, shape)


OPERATORS: dict[str, Draw] = {
    "RESHAPE": _reshape,
    "SQUEEZE": _squeeze,
    "EXPAND_DIMS": _expand_dims,
    "SHAPE": _shape,
    "RANK": _rank,
    "BROADCAST_TO": _broadcast_to("BROADCAST_TO"),
    "BROADCAST_ARGS": _broadcast_args,
    "FILL": _fill,
    "RANGE": _range,
    "TRANSPOSE": _transpose("TRANSPOSE"),
    "CONCATENATION": _concatenation,
    "PACK": _pack,
    "UNPACK": _unpack,
    "SPLIT": _split,
    "SPLIT_V": _split_v,
    "TILE": _tile,
    "REVERSE_V2": _reverse,
    "SPACE_TO_BATCH_ND": _space_to_batch,
    "BATCH_TO_SPACE_ND": _batch_to_space,
    "SPACE_TO_DEPTH": _space_to_depth,
    "DEPTH_TO_SPACE": _depth_to_space,
    "PAD": _pad("PAD"),
    "PADV2": _pad("PADV2"),
    "MIRROR_PAD": _mirror_pad,
    "SLICE": _slice,
    "STRIDED_SLICE": _strided_slice,
    "DYNAMIC_UPDATE_SLICE": _dynamic_update_slice,
}
