import dataclasses
from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    ConcatenationOptions,
    CustomOptions,
    DepthToSpaceOptions,
    PackOptions,
    SpaceToDepthOptions,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.testing import Arg, Case, const, f32, of, value
from tests.support.dtypes import BF16, NO_KERNEL, OTHERS, name, unless
from tests.support.quantized import scaled

EMPTY = "the stock interpreter cannot return an empty tensor"
NO_OPERATOR = "LiteRT has no such operator"
STRINGS = value(np.array([[b"a", b"", b"cd"], [b"long", b"\xff", b"x"]], object))
X = f32(2, 3, 4)


TRANSPOSES = [
    Case("TRANSPOSE", f"{perm}", [f32(*range(2, 2 + len(perm))), const(perm, "int32")])
    for perm in [
        [1, 0],
        [0, 2, 1],
        [2, 0, 1],
        [0, 3, 1, 2],
        [-1, 0, -2],
        [3, 1, 4, 0, 2],
    ]
] + [
    Case(
        "TRANSPOSE",
        "rank8",
        [f32(1, 2, 1, 3, 1, 2, 2, 1), const([7, 5, 1, 0, 3, 2, 6, 4], "int32")],
    ),
    Case("TRANSPOSE", "empty", [f32(0, 3), const([1, 0], "int32")], litert=EMPTY),
    Case("TRANSPOSE", "scalar", [f32(), const([], "int32")], litert="the kernel writes nothing"),
    *(Case("TRANSPOSE", name(d), [of(d, 2, 3), const([1, 0], "int32")]) for d in OTHERS),
]


def concatenation(label: str, xs: list[Arg], axis: int, **details: Any) -> Case:
    return Case("CONCATENATION", label, xs, ConcatenationOptions(axis=axis), **details)


ACTIVATED = [
    Case(
        "CONCATENATION",
        act.name,
        [f32(2, 3, low=-9, high=9), f32(2, 1, low=-9, high=9)],
        ConcatenationOptions(axis=1, fused_activation_function=act),
        litert="only TFLite's GPU delegate fuses an activation",
    )
    for act in (
        ActivationFunctionType.RELU,
        ActivationFunctionType.RELU6,
        ActivationFunctionType.RELU_N1_TO_1,
        ActivationFunctionType.TANH,
    )
]
CONCATENATIONS = [
    concatenation("first", [f32(1, 3), f32(2, 3, seed=1)], 0),
    concatenation("last", [f32(2, 3, 1), f32(2, 3, 4), f32(2, 3, 2)], -1),
    concatenation("one", [f32(2, 3)], 1),
    concatenation("middle", [f32(2, 1, 3, 2, 1, 2), f32(2, 2, 3, 2, 1, 2)], -5),
    concatenation("empties", [f32(2, 0), f32(2, 3), f32(2, 0)], 1),
    concatenation("fixed-and-moving", [const(f32(2, 2)), f32(2, 1)], 1),
    concatenation("scalars", [const(3.0, "float32"), const(4.0, "float32")], 0),
    *(
        concatenation(
            name(d),
            [of(d, 2, 3), of(d, 2, 1, seed=1)],
            1,
            litert=NO_KERNEL if d in (np.float64, np.complex64, np.uint16, np.uint64) else None,
        )
        for d in OTHERS
    ),
    *ACTIVATED,
]
PACKED = (np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64)
PACKS = [
    Case("PACK", f"axis{axis}", [f32(2, 3), f32(2, 3, seed=1)], PackOptions(2, axis))
    for axis in (0, 1, 2, -1, -3)
] + [
    Case("PACK", "scalars", [f32(seed=i) for i in range(3)], PackOptions(3)),
    Case("PACK", "one", [f32(2, 1, 2, 1, 2)], PackOptions(1, -2)),
    *(
        Case(
            "PACK", name(d), [of(d, 2), of(d, 2, seed=1)], PackOptions(2), litert=unless(d, *PACKED)
        )
        for d in OTHERS
    ),
]
TILES = [
    Case("TILE", f"{times}-{dtype}", [f32(*shape), const(times, dtype)])
    for shape, times, dtype in [
        ((3,), [2], "int32"),
        ((2, 3), [1, 3], "int64"),
        ((2, 1, 3, 1, 2, 1), [1, 2, 2, 3, 1, 2], "int32"),
        ((), [], "int32"),
    ]
] + [
    Case("TILE", "none", [f32(2, 3), const([0, 2], "int32")], litert=EMPTY),
    *(Case("TILE", name(d), [of(d, 2, 2), const([2, 1], "int32")]) for d in OTHERS),
]
REVERSED = (np.float16, BF16, np.bool_, np.int8, np.uint8, np.int16, np.int32, np.int64)
REVERSES = [
    Case("REVERSE_V2", f"{axes}", [f32(2, 3, 2, 2), const(axes, "int32")])
    for axes in [[0], [-1], [1, 2], [3, 2], [0, 1, 2, 3]]
] + [
    Case("REVERSE_V2", "apart", [X, const([0, 2], "int32")], litert="it wants contiguous axes"),
    Case("REVERSE_V2", "no-axes", [X, const([], "int32")], litert="it reads next to its axes"),
    *(
        Case("REVERSE_V2", name(d), [of(d, 2, 3), const([1], "int32")], litert=unless(d, *REVERSED))
        for d in OTHERS
    ),
]
ROLLS = [
    Case(
        "Roll",
        f"{shift}-{axis}-{kind}",
        [X, make(shift, "int64"), make(axis, "int32")],
        CustomOptions(),
        litert=NO_OPERATOR,
    )
    for shift, axis in [(1, 0), (-2, -1), ([1, -5], [0, 2]), ([1, 1, 7], [1, 2, 1])]
    for kind, make in (("fixed", const), ("moving", value))
]
BLOCKS = [  # spatial and batch shape, block, paddings or crops
    ((1, 4, 2), [2], [[0, 0]]),
    ((2, 3, 1), [4], [[2, 3]]),
    ((1, 4, 4, 2), [2, 2], [[0, 0], [0, 0]]),
    ((2, 2, 5, 1), [2, 3], [[1, 1], [0, 1]]),
    ((1, 1, 6, 3), [1, 3], [[0, 0], [2, 1]]),
]
TO_BATCH = [
    Case(
        "SPACE_TO_BATCH_ND",
        f"{list(shape)}-{block}-{paddings}",
        [f32(*shape), const(block, "int32"), const(paddings, "int32")],
    )
    for shape, block, paddings in BLOCKS
] + [
    Case(
        "SPACE_TO_BATCH_ND",
        "three-sides",
        [f32(1, 2, 2, 4, 3), const([2, 1, 2], "int32"), const([[0, 0], [1, 0], [0, 2]], "int32")],
        litert="LiteRT knows two spatial dimensions at most",
    ),
    *(
        Case(
            "SPACE_TO_BATCH_ND",
            name(d),
            [of(d, 1, 2, 4, 1), const([2, 2], "int32"), const([[0, 0], [1, 1]], "int32")],
        )
        for d in OTHERS
    ),
]
FROM_BATCH = [
    Case(
        "BATCH_TO_SPACE_ND",
        f"{list(shape)}-{block}-{crops}",
        [f32(*shape), const(block, "int32"), const(crops, "int32")],
    )
    for shape, block, crops in [
        ((4, 3, 2), [2], [[0, 0]]),
        ((4, 2, 1), [4], [[1, 3]]),
        ((4, 2, 2, 2), [2, 2], [[0, 0], [0, 0]]),
        ((12, 2, 3, 1), [2, 3], [[1, 0], [2, 4]]),
    ]
] + [
    Case(
        "BATCH_TO_SPACE_ND",
        "three-sides",
        [f32(4, 2, 2, 1, 3), const([2, 1, 2], "int32"), const([[0, 1], [1, 0], [0, 0]], "int32")],
        litert="LiteRT knows two spatial dimensions at most",
    ),
    *(
        Case(
            "BATCH_TO_SPACE_ND",
            name(d),
            [of(d, 4, 2, 2, 1), const([2, 2], "int32"), const([[0, 1], [1, 0]], "int32")],
        )
        for d in OTHERS
    ),
]
DEPTHS = (np.int8, np.uint8, np.int32, np.int64)
DEPTH = [
    Case("SPACE_TO_DEPTH", f"{shape}-{b}", [f32(*shape)], SpaceToDepthOptions(b))
    for shape, b in [((1, 4, 2, 3), 2), ((2, 3, 6, 1), 3), ((1, 2, 2, 5), 1)]
] + [
    Case("DEPTH_TO_SPACE", f"{shape}-{b}", [f32(*shape)], DepthToSpaceOptions(b))
    for shape, b in [((1, 2, 3, 8), 2), ((2, 1, 2, 9), 3), ((1, 2, 2, 5), 1)]
]
DEPTH += [
    case
    for d in OTHERS
    for case in (
        Case(
            "SPACE_TO_DEPTH",
            name(d),
            [of(d, 1, 2, 2, 2)],
            SpaceToDepthOptions(2),
            litert=unless(d, *DEPTHS),
        ),
        Case(
            "DEPTH_TO_SPACE",
            name(d),
            [of(d, 1, 1, 2, 8)],
            DepthToSpaceOptions(2),
            litert=unless(d, *DEPTHS),
        ),
    )
]
CASES = [
    *TRANSPOSES,
    *CONCATENATIONS,
    *PACKS,
    *TILES,
    *REVERSES,
    *ROLLS,
    *TO_BATCH,
    *FROM_BATCH,
    *DEPTH,
]
SIDES = [[0, 0], [0, 0]]
RUN_TIME = [  # what only the run decides: the reference must know it, the lowering refuses
    Case("TRANSPOSE", "run-time", [X, value([2, 0, 1], "int32")]),
    Case("TILE", "run-time", [X, value([2, 1, 1], "int32")]),
    Case("TILE", "strings", [STRINGS, const([2, 1], "int32")]),
    Case("REVERSE_V2", "run-time", [X, value([1], "int32")]),
    Case(
        "SPACE_TO_BATCH_ND",
        "run-time",
        [f32(1, 2, 2, 1), value([2, 2], "int32"), value(SIDES, "int32")],
    ),
    Case(
        "BATCH_TO_SPACE_ND",
        "run-time",
        [f32(4, 1, 1, 1), value([2, 2], "int32"), value(SIDES, "int32")],
    ),
    concatenation("strings", [STRINGS, STRINGS], 0, litert=NO_KERNEL),
    Case("PACK", "strings", [STRINGS, STRINGS], PackOptions(2), litert=NO_KERNEL),
]


def test_a_concatenation_of_int8_does_not_requantize() -> None:
    x, z = (Arg(np.int8([[1, 2]]), quantization=scaled(s, 3)) for s in (0.5, 0.25))
    case = concatenation("requantizing", [x, z], 0)
    inputs, (y,) = case.specs()
    y = dataclasses.replace(y, quantization=x.quantization)
    reason = RULES[case.name].reason(Op(LoweringContext(), case.op_options, inputs, (y,)))
    assert reason is not None
    assert "quantized differently" in reason
    with pytest.raises(TypeError, match="no kernel for quantized int8"):
        KERNELS[case.name](case.op_options, inputs, (y,), *case.arrays())


REFUSED = {
    "no activation fuses": Case(
        "CONCATENATION",
        "activated",
        [of(np.int32, 2), of(np.int32, 2)],
        ConcatenationOptions(fused_activation_function=ActivationFunctionType.RELU),
    ),
    "has no kernel in LiteRT": Case(
        "CONCATENATION",
        "sign",
        [f32(2), f32(2)],
        ConcatenationOptions(fused_activation_function=ActivationFunctionType.SIGN_BIT),
    ),
    "shapes differ": Case("PACK", "shapes", [f32(2), f32(3)], PackOptions(2)),
    "axis 3 is outside": Case("REVERSE_V2", "axis", [X, const([3], "int32")]),
    "an input is missing": Case("PACK", "hole", [f32(2), None], PackOptions(2)),
}


IMPOSSIBLE = [
    Case("TRANSPOSE", "twice", [X, const([0, 0, 1], "int32")]),
    Case("TRANSPOSE", "axis", [X, const([0, 1, 3], "int32")]),
    concatenation("sides", [f32(2, 3), f32(3, 3)], 1),
    concatenation("axis", [f32(2, 3), f32(2, 3)], 2),
    Case("TILE", "negative", [f32(2), const([-1], "int32")]),
    Case("SPACE_TO_BATCH_ND", "odd", [f32(1, 3, 2), const([2], "int32"), const([[0, 0]], "int32")]),
    Case("BATCH_TO_SPACE_ND", "odd", [f32(3, 3, 2), const([2], "int32"), const([[0, 0]], "int32")]),
    Case("SPACE_TO_DEPTH", "odd", [f32(1, 3, 2, 1)], SpaceToDepthOptions(2)),
    Case("DEPTH_TO_SPACE", "odd", [f32(1, 3, 2, 6)], DepthToSpaceOptions(2)),
]
