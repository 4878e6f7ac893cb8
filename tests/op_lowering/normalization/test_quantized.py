from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import L2NormOptions, NoOptions, SoftmaxOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.testing import Arg, Case
from tests.support.case_groups import CaseGroup
from tests.support.quantized import any_integers, scaled

# By input and output dtype: how the kernels want the output quantized.
PROBABILITIES = {
    (np.int8, np.int8): scaled(1 / 256, -128),
    (np.uint8, np.uint8): scaled(1 / 256, 0),
    (np.int16, np.int16): scaled(1 / 32768, 0),
    (np.int8, np.int16): scaled(1 / 65536, -32768),
    (np.uint8, np.int16): scaled(1 / 65536, -32768),
}
LOGARITHMS = {np.int8: scaled(1 / 16, 127), np.uint8: scaled(1 / 16, 255)}
UNITS = {np.int8: scaled(1 / 128, 0), np.uint8: scaled(1 / 128, 128)}
SHAPES = [(3, 10), (7,), (2, 1), (2, 3, 4, 5), (1, 1, 2, 1, 2, 33), (0, 4)]
ABORTS = "LiteRT's reference kernel aborts the process"


def ends(dtype: Any) -> np.ndarray:
    """Rows whose differences are all 0, or as large as possible, or one step."""
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    return np.array([[low, low, low], [high, high, high], [low, high, low], [0, 1, 0]], dtype)


def softmax(
    label: str, x: Any, scale: float, result: Any, beta: float = 1.0, **details: Any
) -> Case:
    x = x if isinstance(x, Arg) else Arg(x, quantization=scaled(scale))
    kinds = x.value.dtype.type, result
    return Case(
        "SOFTMAX",
        f"{label}-{x.value.dtype}-{np.dtype(result)}-{scale:.3g}-{beta}",
        [x],
        SoftmaxOptions(beta=beta),
        outputs=[result],
        **{"output_quantization": [PROBABILITIES[kinds]], **details},
    )


def softmax_cases() -> list[Case]:
    cases = []
    for x, y in PROBABILITIES:
        scales = (1 / 32768, 1e-3, 0.01) if x == np.int16 else (1e-4, 0.02, 0.1, 1.0, 40.0)
        cases += [
            *(
                softmax(f"{s}", any_integers(x, *s), scales[2], y)
                for s in SHAPES
                if x == y != np.uint8
            ),
            *(softmax("scale", any_integers(x, 4, 20), s, y) for s in scales),
            *(softmax("beta", any_integers(x, 4, 20), scales[1], y, b) for b in (0.3, 3.0)),
            *(softmax("ends", ends(x), s, y) for s in scales[::2]),
            softmax("long", any_integers(x, 2, 500), scales[0], y),
            softmax(
                "flat", np.zeros((1, 3000), x), scales[1], y,
                litert=None if np.int16 in (x, y) else ABORTS,
            ),
        ]  # fmt: skip
    low = Arg(any_integers(np.int8, 2, 9), quantization=scaled(0.1, -128))
    high = Arg(any_integers(np.uint8, 2, 9), quantization=scaled(0.1, 255))
    return [*cases, softmax("zero", low, 0.1, np.int8), softmax("zero", high, 0.1, np.uint8)]


def log_softmax(label: str, x: np.ndarray, scale: float, **details: Any) -> Case:
    return Case(
        "LOG_SOFTMAX",
        f"{label}-{x.dtype}-{scale:.3g}",
        [Arg(x, quantization=scaled(scale, 3))],
        NoOptions(),
        **{"output_quantization": [LOGARITHMS[x.dtype.type]], **details},
    )


def log_softmax_cases() -> list[Case]:
    scales = (1e-4, 0.02, 0.1, 1.0, 10.0)
    return [
        case
        for dtype in LOGARITHMS
        for case in [
            *(
                log_softmax(f"{s}", any_integers(dtype, *s), 0.1)
                for s in SHAPES
                if dtype == np.int8
            ),
            *(log_softmax("scale", any_integers(dtype, 4, 20), s) for s in scales),
            *(log_softmax("ends", ends(dtype), s) for s in scales[::2]),
            log_softmax("flat", np.zeros((1, 3000), dtype), 0.1),
        ]
    ]


def l2(label: str, x: np.ndarray, zero_point: int, **details: Any) -> Case:
    return Case(
        "L2_NORMALIZATION",
        f"{label}-{x.dtype}-{zero_point}",
        [Arg(x, quantization=scaled(0.3, zero_point))],
        L2NormOptions(),
        **{"output_quantization": [UNITS[x.dtype.type]], **details},
    )


def l2_cases() -> list[Case]:
    cases = []
    for dtype in UNITS:
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        zeros = np.full((3, 4), 9, dtype)
        one = np.array([[9, 10, 9], [9, 9, 8]], dtype)
        cases += [
            *(l2(f"{s}", any_integers(dtype, *s), 4) for s in SHAPES if dtype == np.int8),
            *(l2("point", any_integers(dtype, 4, 20), point) for point in (low, 0, high)),
            *(l2("ends", ends(dtype), point) for point in (low, 0, high)),
            l2("zeros", zeros, 9),
            l2("one", one, 9),
            l2("huge", any_integers(dtype, 2, 20000), low),
        ]
    return cases


COMPILED_IN_PART = True
CASES = [*softmax_cases(), *log_softmax_cases(), *l2_cases()]


@pytest.mark.parametrize("kinds", PROBABILITIES)
def test_flat_softmax_has_the_right_probability(kinds: tuple[Any, Any]) -> None:
    for n in (2, 16, 256, 600):
        y = softmax("", np.zeros((1, n), kinds[0]), 1e-3, kinds[1]).run_reference()[0]
        quantization = PROBABILITIES[kinds]
        steps = y.astype(np.int64) - quantization.zero_point
        assert np.abs(steps * quantization.scale[0] - 1 / n).max() <= quantization.scale[0]


@pytest.mark.parametrize("kinds", [kinds for kinds in PROBABILITIES if kinds[0] != np.int16])
@pytest.mark.parametrize("beta", [1.0, 0.0])
def test_steps_of_nearly_nothing_make_flat_probabilities(kinds: Any, beta: float) -> None:
    case = softmax("tiny", ends(kinds[0]), 1e-9, kinds[1], beta)
    flat = softmax("flat", np.zeros_like(ends(kinds[0])), 0.1, kinds[1])
    case.check(case.run_reference(), flat.run_reference())
    case.check(case.run_lowered(RULES[case.name]), flat.run_reference())


def fuzzed(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    shape = (3, int(rng.integers(1, 80)))
    kinds = list(PROBABILITIES)
    if seed % 3 == 0:
        x, y = kinds[seed // 3 % len(kinds)]
        exponents = (-15, -5) if x == np.int16 else (-12, 1)
        beta = float(np.float32(rng.uniform(0.2, 3)))
        return softmax(
            f"{seed}", any_integers(x, *shape, seed=seed), 2.0 ** rng.uniform(*exponents), y, beta
        )
    dtype = (np.int8, np.uint8)[seed // 3 % 2]
    if seed % 3 == 1:
        x = any_integers(dtype, *shape, seed=seed)
        return log_softmax(f"{seed}", x, 2.0 ** rng.uniform(-12, 3))
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    point = int(rng.integers(low, high, endpoint=True))
    return l2(f"{seed}", any_integers(dtype, *shape, seed=seed), point)


@pytest.mark.litert
def test_fuzz() -> None:
    cases = [fuzzed(seed) for seed in range(150)]
    for case in cases:
        case.check(case.run_reference(), case.run_litert())
    group = CaseGroup(cases[:12])
    group.check(group.run_lowered(RULES), Case.run_litert)


BYTES = any_integers(np.int8, 2, 3)
OTHER = {"output_quantization": [scaled(0.5, 1)]}
REFUSED = [
    (softmax("", BYTES, 0.1, np.int8, **OTHER), "the zero point of 'out0' is 1", ValueError),
    (
        softmax("", BYTES, 0.1, np.int8, output_quantization=[scaled(1 / 128, -128)]),
        "the scale of 'out0' is 0.0078125",
        ValueError,
    ),
    (softmax("", BYTES, 0.1, np.int8, beta=-1.0), "above 1 is needed", ValueError),
    (
        Case(
            "SOFTMAX", "", [Arg(BYTES, quantization=scaled(0.1))], SoftmaxOptions(1.0),
            outputs=[np.uint8], output_quantization=[PROBABILITIES[np.uint8, np.uint8]],
        ),
        "quantized uint8, which this operator has no kernel for",
        TypeError,
    ),
    (
        softmax("", BYTES, 0.1, np.int8, output_quantization=[None]),
        "'out0' is int8 without a scale",
        TypeError,
    ),
    (log_softmax("", BYTES, 0.1, **OTHER), "the zero point of 'out0' is 1", ValueError),
    (l2("", BYTES, 0, **OTHER), "the zero point of 'out0' is 1", ValueError),
    (
        Case(
            "L2_NORMALIZATION", "", [Arg(np.int16([[1, 2]]), quantization=scaled(0.1))],
            output_quantization=[scaled(0.1)],
        ),
        "quantized int16, which",
        TypeError,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("case", "said", "error"), REFUSED)
def test_refuses(case: Case, said: str, error: type[Exception]) -> None:
    inputs, outputs = case.specs()
    reason = RULES[case.name].reason(Op(LoweringContext(), case.op_options, inputs, outputs))
    assert said in (reason or "")
    with pytest.raises(error):
        case.run_reference()


def test_int16_softmax_is_symmetric() -> None:
    x = Arg(np.int16([[1, 2]]), quantization=scaled(0.1, 3))
    case = softmax("", x, 0.1, np.int16)
    reason = RULES["SOFTMAX"].reason(case.op(LoweringContext()))
    assert "the zero point of 'in0' is 3" in (reason or "")


def test_beta_must_leave_int16_steps_finite() -> None:
    case = softmax("", np.int16([[1, 2]]), 0.1, np.int16, beta=float("inf"))
    reason = RULES["SOFTMAX"].reason(case.op(LoweringContext()))
    assert "not finite" in (reason or "")
