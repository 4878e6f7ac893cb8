import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.op_lowering.options import GeluOptions, LeakyReluOptions, Options
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.testing import Arg, Case, const, f32, of, value
from tests.support.quantized import scaled

FUNCTIONS: dict[str, tuple[str, Options | None]] = {
    "relu": ("RELU", None),
    "relu6": ("RELU6", None),
    "relu_n1_to_1": ("RELU_N1_TO_1", None),
    "relu_0_to_1": ("RELU_0_TO_1", None),
    "logistic": ("LOGISTIC", None),
    "tanh": ("TANH", None),
    "elu": ("ELU", None),
    "hard_swish": ("HARD_SWISH", None),
    "gelu": ("GELU", GeluOptions()),
    "gelu_approximate": ("GELU", GeluOptions(approximate=True)),
    "leaky_relu": ("LEAKY_RELU", LeakyReluOptions(alpha=0.2)),
    "leaky_relu_steep": ("LEAKY_RELU", LeakyReluOptions(alpha=-1.5)),
}
INPUTS = {
    "wide": f32(2, 3, 4, 5, low=-12, high=12),
    "edges": value(
        [np.nan, np.inf, -np.inf, -0.0, 1e-30, -1e-30, 88, -88, 100, -100, 16.7, -9.1], np.float32
    ),
    "large": value([1e30, -1e30, 3e38, -3e38], np.float32),
    "scalar": value(-0.7, np.float32),
    "empty": f32(0, 3),
    "rank_8": f32(1, 2, 1, 2, 1, 2, 1, 3),
}
HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
HALF_IN_LITERT = {
    ("LOGISTIC", "float16"),
    ("LOGISTIC", "bfloat16"),
    ("TANH", "float16"),
    ("TANH", "bfloat16"),
    ("GELU", "float16"),
}
ONLY_OPTIMIZED = {"ELU"}  # BUILTIN_REF lacks it


def _half_case(label: str, dtype: str, name: str, options: Options | None) -> Case:
    """Small numbers, since LiteRT computes all of GELU in half precision."""
    reason = None if (name, dtype) in HALF_IN_LITERT else "LiteRT has no such kernel"
    x = of(HALVES[dtype], 3, 17, low=-4, high=4)
    return Case(name, f"{label}-{dtype}", [x], options, litert=reason)


def _prelu(label: str, x: Arg, alpha: Arg) -> Case:
    return Case("PRELU", label, [x, alpha])


CASES = [
    *(
        Case(name, f"{label}-{shape}", [x], options)
        for label, (name, options) in FUNCTIONS.items()
        for shape, x in INPUTS.items()
    ),
    *(
        _half_case(label, dtype, name, options)
        for label, (name, options) in FUNCTIONS.items()
        for dtype in HALVES
    ),
    _prelu("channels", f32(2, 3, 3, 4), const(f32(1, 1, 4))),
    _prelu("elements", f32(2, 3, 3, 4), const(f32(3, 3, 4, seed=1))),
    _prelu("same", f32(5), f32(5, seed=1)),
    _prelu("scalar", f32(2, 2), const(0.3, np.float32)),
    _prelu("rank_6", f32(1, 2, 1, 2, 2, 3), f32(1, 2, 1, 1, 2, 1, seed=1)),
    _prelu("edges", INPUTS["edges"], const(0.25, np.float32)),
    _prelu("empty", f32(0, 4), const(f32(4))),
]


def run_litert(case: Case) -> list[np.ndarray]:
    return case.run_litert(optimized=case.name in ONLY_OPTIMIZED)


SCALE = scaled(0.1)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (Case("RELU", "", [value([1], np.int32)]), "'in0' is int32, not one of"),
        (
            Case("RELU", "", [f32(1)], version=4),
            "version 4 is newer than the newest supported version, 3",
        ),
        (
            Case("TANH", "", [Arg(np.zeros(2, np.int8), quantization=SCALE)]),
            "'out0' is int8 without a scale",
        ),
        (
            Case("PRELU", "", [f32(2), value([1, 1], np.float16)]),
            "'in0' is float32 and 'in1' float16",
        ),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_refusals(case: Case, said: str) -> None:
    context = LoweringContext(op_version=case.version)
    reason = RULES[case.name].reason(case.op(context))
    assert reason is not None
    assert reason.startswith(said)


def test_alpha_may_not_be_larger_than_the_input() -> None:
    (small, _), outputs = _prelu("", f32(1, 3), f32(1, 3)).specs()
    (large, _), _ = _prelu("", f32(2, 3), f32(2, 3)).specs()
    reason = RULES["PRELU"].reason(
        Op(LoweringContext(), _prelu("", f32(1), f32(1)).op_options, (small, large), outputs)
    )
    assert reason == "alpha [2, 3] is larger than the input [1, 3]"
    with pytest.raises(ValueError, match="alpha"):
        _prelu("", f32(1, 3), f32(2, 3)).specs()


def test_the_reference_refuses_quantized_tensors_that_no_kernel_takes() -> None:
    with pytest.raises(TypeError, match="quantized uint8"):
        Case("ELU", "", [Arg(np.zeros(2, np.uint8), quantization=SCALE)]).run_reference()
