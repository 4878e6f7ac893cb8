import numpy as np

from jaxdelegate.op_lowering.options import (
    CustomOptions,
    ReshapeOptions,
    ShapeOptions,
    SqueezeOptions,
    TensorType,
)
from jaxdelegate.testing import Case, const, f32, of, value
from tests.support.dtypes import NO_KERNEL, OTHERS, name

EMPTY = "the stock interpreter cannot return an empty tensor"
STRINGS = value(np.array([[b"a", b""], [b"long", b"\xff"]], object))


def i32(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


X = f32(2, 3, 4)
RESHAPES = [
    Case("RESHAPE", f"to{list(to)}", [X, const(i32(*to))])
    for to in [(24,), (-1,), (4, 6), (2, -1, 2), (1, 2, 1, 3, 1, 4, 1, 1), (3, 1, 8)]
] + [
    Case("RESHAPE", "scalar", [f32(1, 1), const(i32())]),
    Case("RESHAPE", "options", [X], ReshapeOptions(new_shape=(6, -1))),
    Case("RESHAPE", "options-scalar", [f32(1)], ReshapeOptions(new_shape=(0,))),
    Case("RESHAPE", "options-none", [f32(1, 1)], ReshapeOptions()),
    Case("RESHAPE", "vector-wins", [X, const(i32(24))], ReshapeOptions(new_shape=(6, 4))),
    Case(
        "RESHAPE", "int64-is-ignored", [X, const([24], "int64")], ReshapeOptions(new_shape=(6, 4))
    ),
    Case("RESHAPE", "matrix-ignored", [X, const([[24]], "int32")], ReshapeOptions(new_shape=(24,))),
    Case("RESHAPE", "absent", [X, None], ReshapeOptions(new_shape=(24,)), litert="-1 aborts it"),
    Case("RESHAPE", "empty", [f32(0, 3), const(i32(3, -1))]),
    Case("RESHAPE", "empty-keeps-zero", [f32(0, 3), const(i32(0, -1))]),
    *(Case("RESHAPE", name(d), [of(d, 2, 3), const(i32(3, 2))]) for d in OTHERS),
]
SQUEEZES = [
    Case("SQUEEZE", f"{list(dims)}", [f32(1, 3, 1, 2, 1)], SqueezeOptions(squeeze_dims=dims))
    for dims in [(), (0,), (2, -1), (-5,), (0, 0, -5)]
] + [Case("SQUEEZE", name(d), [of(d, 1, 2)]) for d in OTHERS]
EXPANSIONS = [
    Case("EXPAND_DIMS", f"{axis}-{dtype}", [f32(2, 3), const(axis, dtype)])
    for axis, dtype in [(0, "int32"), (2, "int64"), (-1, "int32"), (-3, "int32"), ([1], "int32")]
] + [Case("EXPAND_DIMS", "scalar", [f32(), const(-1, "int32")])]
INT32, INT64 = ShapeOptions(out_type=TensorType.INT32), ShapeOptions(out_type=TensorType.INT64)
SHAPES = [
    Case("SHAPE", "int32", [X], INT32, [np.int32]),
    Case("SHAPE", "int64", [of(np.int8, 1, 2, 3, 4, 5, 6)], INT64, [np.int64]),
    Case("SHAPE", "empty", [f32(0, 3)], INT32, [np.int32]),
    Case("SHAPE", "scalar", [f32()], INT32, [np.int32], litert=EMPTY),
    Case("RANK", "three", [X], outputs=[np.int32]),
    Case("RANK", "scalar", [of(np.bool_)], outputs=[np.int32]),
]
BROADCASTS = [
    Case("BROADCAST_TO", f"{shape}-{to}", [f32(*shape), const(to, dtype)], version=2)
    for shape, to, dtype in [
        ((), (2, 3), "int32"),
        ((1,), (3,), "int64"),
        ((2, 1, 3), (4, 2, 5, 3), "int32"),
        ((2, 3), (2, 3), "int32"),
        ((1, 2, 1, 1, 2), (2, 2, 3, 1, 2), "int32"),
        ((1, 1, 2), (1, 2, 1, 2, 1, 2, 3, 2), "int64"),
    ]
] + [
    Case(
        "BROADCAST_TO",
        name(d),
        [of(d, 2, 1), const(i32(2, 3))],
        version=3,
        litert=NO_KERNEL if d is np.complex64 else None,
    )
    for d in OTHERS
]
BROADCASTS += [
    Case("BROADCAST_TO", "empty", [f32(1, 3), const(i32(0, 3))], version=2, litert=EMPTY)
]
ARGS = [
    Case("BROADCAST_ARGS", f"{a}-{b}-{dtype}", [value(a, dtype), value(b, dtype)])
    for a, b in [([2, 1, 3], [4, 3]), ([1], [5, 1, 7]), ([2, 3], [2, 3]), ([0], [1])]
    for dtype in ("int32", "int64")
]
FILLS = [
    Case("FILL", name(d), [const(i32(2, 3)), of(d)], outputs=[d])
    for d in [np.float32, *OTHERS]
    if d is not np.complex64
] + [
    Case("FILL", "int64-sizes", [const([2, 1], "int64"), value(7.0, "float32")], None, ["float32"]),
    Case("FILL", "scalar", [const(i32()), value(7, "int64")], outputs=["int64"]),
    Case("FILL", "empty", [const(i32(0, 2)), value(7, "int32")], outputs=["int32"], litert=EMPTY),
]
RANGES = [
    Case("RANGE", f"{start}-{limit}-{delta}-{d}", [const(v, d) for v in (start, limit, delta)])
    for d in ("int32", "int64", "float32")
    for start, limit, delta in [(0, 10, 1), (0, 10, 3), (10, 0, -4), (-3, 4, 7), (5, 4, -9)]
] + [
    Case("RANGE", f"{s}-{e}-{d}", [const(v, "float32") for v in (s, e, d)])
    for s, e, d in [(0, 1, 0.1), (1, 0, -0.3), (0.5, 700, 0.7), (-1.5, 1.5, 0.25)]
]
GRADIENT_ARGS = [
    Case(
        "BroadcastGradientArgs",
        f"{a}-{b}",
        [const(a, "int64"), const(b, "int64")],
        CustomOptions(),
        ["int64"] * 2,
        litert="LiteRT has no such operator",
    )
    for a, b in [([2, 4, 1, 3], [2, 1, 1, 3]), ([3], [2, 1]), ([1, 3], [1, 3]), ([], [2, 1])]
]
CASES = [
    *RESHAPES,
    *SQUEEZES,
    *EXPANSIONS,
    *SHAPES,
    *BROADCASTS,
    *ARGS,
    *FILLS,
    *RANGES,
    *GRADIENT_ARGS,
]
RUN_TIME = [  # known at run time only: the reference takes it, the lowering refuses it
    Case("RESHAPE", "run-time", [X, value(i32(-1, 6))]),
    Case("RESHAPE", "strings", [STRINGS, const(i32(4))]),
    Case("SQUEEZE", "strings", [value(np.array([[b"a"], [b"bc"]], object))]),
    Case("EXPAND_DIMS", "run-time", [X, value(-2, "int32")]),
    Case("EXPAND_DIMS", "strings", [STRINGS, const(0, "int32")], litert="it loses the strings"),
    Case("SHAPE", "strings", [STRINGS], INT32, [np.int32]),
    Case("BROADCAST_TO", "run-time", [f32(3), value(i32(2, 3))], version=2),
    Case("FILL", "run-time", [value(i32(2, 3)), f32()], outputs=["float32"]),
    Case("FILL", "strings", [const(i32(3)), const(np.array(b"ab", object))], outputs=[object]),
    Case("RANGE", "run-time", [value(v, "float32") for v in (0, 1, 0.1)]),
    Case("RANGE", "empty", [value(v, "int32") for v in (3, 3, 1)], litert=EMPTY),
]


IMPOSSIBLE = [
    Case("RESHAPE", "count", [X, const(i32(5, 5))]),
    Case("RESHAPE", "two-stretches", [X, const(i32(-1, -1))]),
    Case("RESHAPE", "indivisible", [X, const(i32(-1, 7))]),
    Case("SQUEEZE", "not-one", [X], SqueezeOptions(squeeze_dims=(0,))),
    Case("SQUEEZE", "axis", [f32(1)], SqueezeOptions(squeeze_dims=(1,))),
    Case("EXPAND_DIMS", "axis", [X, const(4, "int32")]),
    Case("BROADCAST_TO", "sizes", [X, const(i32(2, 3, 5))]),
    Case("BROADCAST_TO", "rank", [X, const(i32(3, 4))]),
    Case("FILL", "negative", [const(i32(-1)), f32()]),
    Case("RANGE", "direction", [const(v, "int32") for v in (0, 3, -1)]),
    Case("RANGE", "zero", [const(v, "int32") for v in (0, 3, 0)]),
]
