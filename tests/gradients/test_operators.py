"""Derivatives of every operator, forward and by reverse mode, on a CPU and elsewhere.

The cases are those of the operators' own tests. An operator that is none of `UNDERIVED`, `CALLING`
and `KERNELS_ONLY` needs one of them that has a derivative.
"""

import functools
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from jaxdelegate.errors import GradientError
from jaxdelegate.op_lowering.registry import FUSED, RULES
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.testing import Case, value
from tests.support.case_tables import cases_in, is_quantized
from tests.support.derivatives import Derived, Point, wrong

OPERATOR_TESTS = Path(__file__).parents[1] / "op_lowering"
PLATFORMS = pytest.mark.parametrize("platform", ["cpu", "tpu"])
# Finite differences of these are not accurate.
ILL_CONDITIONED = {
    "EMBEDDING_LOOKUP_SPARSE-MEAN-zero-weight-const",  # divides by a sum that cancels
    "TFLite_Detection_PostProcess-fast-large",  # some overlap of its many boxes changes in a step
    *(
        f"FlexCombinedNonMaxSuppression-{label}"  # the same
        for label in ("all", "boxes-of-classes", "none", "not-clipped", "padded", "shared-boxes")
    ),
    # A step moves a place from one pixel to the next, or out of the image.
    "FlexCropAndResize-bilinear-[3, 4]-uint8",
    *(
        f"FlexCropAndResize-{method}-{size}-float32"
        for method in ("bilinear", "nearest")
        for size in ("[1, 1]", "[5, 6]")
    ),
    "FlexImageProjectiveTransformV2-BILINEAR-REFLECT-float32-1",
    "FlexImageProjectiveTransformV3-BILINEAR-CONSTANT-float64-1",
    *(
        f"FlexImageProjectiveTransformV3-{interpolation}-{fill_mode}-float32-2"
        for interpolation in ("BILINEAR", "NEAREST")
        for fill_mode in ("CONSTANT", "NEAREST", "REFLECT", "WRAP")
    ),
}
# Their vectors of no singular value are not unique: GradientError.
NOT_UNIQUE = {"FlexSvd-full"}
# Positions of inputs that choose an algorithm by being zero or not: sigma.
FIXED = {"NON_MAX_SUPPRESSION_V5": (5,)}
GROUP = 16  # cases in one program

# By the reason: operators that have no derivative, or no useful one.
UNDERIVED = {
    "takes no floats": """LOGICAL_AND LOGICAL_OR LOGICAL_NOT BITWISE_XOR RIGHT_SHIFT REDUCE_ANY
        REDUCE_ALL STABLEHLO_AND STABLEHLO_OR STABLEHLO_SHIFT_LEFT STABLEHLO_IOTA BROADCAST_ARGS
        BroadcastGradientArgs RANDOM_UNIFORM RANDOM_STANDARD_NORMAL STABLEHLO_RNG_BIT_GENERATOR
        FlexInvertPermutation FlexBitwiseAnd FlexBitwiseOr FlexInvert FlexLeftShift
        FlexStatelessRandomGetKeyCounter FlexStatelessRandomNormal
        FlexStatelessRandomNormalV2 FlexStatelessRandomUniform FlexStatelessRandomUniformIntV2
        FlexStatelessRandomUniformV2""",
    "makes no floats": """EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL STABLEHLO_COMPARE
        ARG_MAX ARG_MIN SHAPE RANK WHERE BUCKETIZE LSH_PROJECTION MULTINOMIAL
        NON_MAX_SUPPRESSION_V4 FlexTensorListLength""",
    "is constant in between": """FLOOR CEIL ROUND SIGN FLOOR_DIV ZEROS_LIKE STABLEHLO_FLOOR
        BITCAST FlexZerosLike""",
    "takes constants only, and is folded": """RANGE UNIQUE FlexTensorListReserve
        FlexEmptyTensorList""",
    "rounds (test_quantized.py)": "QUANTIZE DEQUANTIZE FAKE_QUANT",
}
# Operators that apply other subgraphs, or have states outside: test_models.py.
CALLING = [
    "CALL",
    "IF",
    "WHILE",
    "STABLEHLO_CASE",
    "STABLEHLO_WHILE",
    "STABLEHLO_COMPOSITE",
    "STABLEHLO_CUSTOM_CALL",
    "STABLEHLO_REDUCE",
    "STABLEHLO_REDUCE_WINDOW",
    "STABLEHLO_SCATTER",
    "STABLEHLO_SORT",
    "ASSIGN_VARIABLE",
    "READ_VARIABLE",
    "fused_layer_norm",
]
# Rewrites create them only for kernels that `Model.function` does not use.
KERNELS_ONLY = [f"fused_{n}" for n in ("attention", "convolution", "decode_attention", "products")]


def underived() -> list[str]:
    return [name for names in UNDERIVED.values() for name in names.split()]


def cases(name: str) -> list[Case]:
    """The cases of an operator's own tests without quantized tensors."""
    return [case for case in cases_in(OPERATOR_TESTS).get(name, ()) if not is_quantized(case)]


def points(name: str, platform: str) -> Iterable[Point]:
    """Where the cases of one operator can be differentiated."""
    context = LoweringContext(platform)
    for case in cases(name):
        if str(case) in ILL_CONDITIONED or str(case) in NOT_UNIQUE or is_softened(case):
            continue
        point = Point.of(separated(case), RULES[name], context, FIXED.get(name, ()))
        if point is not None and point.has_derivative:
            yield point


@functools.cache
def first(name: str, platform: str) -> tuple[Derived, ...]:
    return tuple(map(Derived.of, itertools.islice(points(name, platform), 1)))


def some() -> list[str]:
    """Every eighth operator of each module of rules, its first one included."""

    def module(name: str) -> str:
        return RULES[name].lower.__module__

    names = sorted({*RULES} - {*underived(), *CALLING})
    groups = itertools.groupby(sorted(names, key=module), module)
    return [name for _, group in groups for name in [*group][::8]]


def is_softened(case: Case) -> bool:
    """Whether sigma is not zero: it must be constant, because rules read its value."""
    sigma = case.inputs[5].value if case.name == "NON_MAX_SUPPRESSION_V5" else 0  # type: ignore[union-attr]
    return bool(sigma != 0)


def separated(case: Case) -> Case:
    """Inputs at which a finite difference in float32 does not cross a kink."""
    if case.name == "AudioSpectrogram":  # loud, that no bin is near zero
        return case.with_inputs({0: value(case.inputs[0].value * np.float32(30))})  # type: ignore[union-attr]
    if case.name == "TransformTensorBilinear":  # no pixel is on another
        inside = np.float32([[0.42, -0.1, 0, 1.5], [0.1, 0.21, 0, 1.2], [0, 0, 1, 0], [0, 0, 0, 1]])
        return case.with_inputs({1: value(inside[None])})
    if case.name != "TFLite_Detection_PostProcess":
        return case
    scores = case.inputs[1].value  # type: ignore[union-attr]
    order = np.random.default_rng(0).permutation(scores.size).reshape(scores.shape)
    return case.with_inputs({1: value(order * np.float32(0.1), np.float32)})


def in_groups(found: Sequence[Derived]) -> Iterable[Sequence[Derived]]:
    return (found[i : i + GROUP] for i in range(0, len(found), GROUP))


def test_every_operator_is_in_one_table() -> None:
    tables = [*underived(), *CALLING, *KERNELS_ONLY]
    assert len(set(tables)) == len(tables)
    hosted = {name for name, rule in RULES.items() if rule.host_reason is not None}
    assert set(tables) <= {*RULES, *FUSED} - hosted
    assert set(KERNELS_ONLY) <= set(FUSED)
    rest = {*RULES, *FUSED} - hosted - set(tables)
    lacking = [name for name in rest if not any(points(name, "cpu"))]
    assert not lacking, f"no case has a derivative: add one, or say why in UNDERIVED: {lacking}"


@pytest.mark.parametrize("name", underived())
def test_operators_without_a_derivative_have_none(name: str) -> None:
    """Or zeros."""
    found = first(name, "cpu")
    assert name == "FAKE_QUANT" or not any(np.any(s) for case in found for s in case.slopes)


@pytest.mark.parametrize("name", sorted(NOT_UNIQUE))
def test_a_derivative_that_is_not_unique_is_refused(name: str) -> None:
    (case,) = (c for c in cases(name.partition("-")[0]) if str(c) == name)
    point = Point.of(case, RULES[case.name], LoweringContext("cpu"))
    assert point is not None
    with pytest.raises(GradientError, match=r"FlexSvd: .* not unique"):
        Derived.of(point)


@PLATFORMS
@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_derivatives(platform: str, part: int) -> None:
    """One case of some operators."""
    names = some()[part::2]
    found = [case for name in names for case in first(name, platform)]
    if platform != "cpu":  # of the others, only those that differ
        on_cpu = {d.text for name in names for d in first(name, "cpu")}
        found = [case for case in found if case.text not in on_cpu]
        assert found
    faults = [fault for group in in_groups(found) for fault in wrong(group)]
    assert not faults, "\n".join(faults)


@pytest.mark.exhaustive
@PLATFORMS
@pytest.mark.parametrize("name", sorted({*RULES} - {*underived(), *CALLING}))
def test_derivatives_of_all_cases(name: str, platform: str) -> None:
    found = [*map(Derived.of, points(name, platform))]
    faults = [fault for group in in_groups(found) for fault in wrong(group)]
    assert not faults, "\n".join(faults)
