from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import ReducerOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import Arg, Case, const, value
from tests.support.case_groups import CaseGroup
from tests.support.quantized import any_integers, scaled

DTYPES = {
    "MEAN": [np.int8, np.uint8, np.int16],
    "SUM": [np.int8, np.uint8, np.int16],
    "REDUCE_PROD": [np.int8, np.int16],
}
UNWRITTEN = "LiteRT does not write the output"


def reducer(
    name: str,
    label: str,
    x: np.ndarray,
    axes: Any,
    source: Quantization,
    target: Quantization,
    *,
    keep_dims: bool = False,
    **details: Any,
) -> Case:
    return Case(
        name,
        f"{label}-{x.dtype}",
        [Arg(x, quantization=source), const(axes, "int32")],
        ReducerOptions(keep_dims=keep_dims),
        output_quantization=[target],
        **details,
    )


def points(dtype: Any) -> list[int]:
    return [0] if dtype == np.int16 else [int(np.iinfo(dtype).min), 3, int(np.iinfo(dtype).max)]


def axes_cases() -> list[Case]:
    axes = [[1], [-1], [0, 2], [2, -3, 0, 0], [0, 1, 2], np.zeros(0)]
    return [
        reducer(
            name,
            f"axes{np.asarray(a).tolist()}-{keep}",
            any_integers(dtype, 2, 3, 4),
            a,
            scaled(0.01, points(dtype)[-1]),
            scaled(0.02, points(dtype)[0]),
            keep_dims=keep,
        )
        for name, dtypes in DTYPES.items()
        for dtype in dtypes
        for a in axes
        for keep in (False, True)
    ]


def scale_cases() -> list[Case]:
    """Multipliers far below 1 and above it; zero points at both ends."""
    return [
        reducer(
            name,
            f"scale-{source:.3g}-{target:.3g}-{p}-{r}",
            any_integers(dtype, 4, 6),
            [1],
            scaled(source, p),
            scaled(target, r),
        )
        for name, dtypes in DTYPES.items()
        for dtype in dtypes
        for source, target in [(0.5, 0.5), (1e-3, 0.3), (0.3, 4e-3), (0.1, 1e-4)]
        for p, r in [(points(dtype)[0], points(dtype)[-1]), (points(dtype)[-1], points(dtype)[0])]
    ]


def shape_cases() -> list[Case]:
    scales = scaled(0.03, 0), scaled(0.05, 0)
    cases = []
    for name, dtypes in DTYPES.items():
        for d in dtypes:
            nothing = UNWRITTEN if name != "MEAN" else None
            cases += [
                reducer(name, "scalar", np.asarray(5, d), [0], *scales),
                reducer(name, "rank6", any_integers(d, 2, 1, 3, 1, 2, 2), [1, 3, 5], *scales),
                reducer(
                    name, "image", any_integers(d, 2, 5, 5, 3), [1, 2], *scales, keep_dims=True
                ),
                reducer(name, "long", any_integers(d, 3000, 2), [0], *scales),
                reducer(name, "empty", np.zeros((0, 3), d), [1], *scales),
            ]
            if name != "REDUCE_PROD":
                x = np.zeros((0, 3), d)
                cases.append(reducer(name, "nothing", x, [0], *scales, litert=nothing))
    return cases


def value_cases() -> list[Case]:
    """Halves on both sides of zero, and results beyond both ends."""
    halves = np.int8([[1, 2], [-1, -2], [3, -4], [127, 127], [-128, -128]])
    one, half = scaled(1.0), scaled(2.0)
    return [
        *(reducer(n, "halves", halves.astype(d), [1], one, one) for n in DTYPES for d in DTYPES[n]),
        *(reducer(n, "half", halves.astype(d), [1], one, half) for n in DTYPES for d in DTYPES[n]),
        *(reducer(n, "twice", halves.astype(d), [1], half, one) for n in DTYPES for d in DTYPES[n]),
    ]


COMPILED_IN_PART = True
CASES = [*axes_cases(), *scale_cases(), *shape_cases(), *value_cases()]


def run_litert(case: Case) -> list[np.ndarray]:
    """Run the reference kernels, except for SUM, which reads int8 and int16 as uint8."""
    first = case.inputs[0]
    assert first is not None
    return case.run_litert(optimized=case.name == "SUM" and first.value.dtype != np.uint8)


def fuzzed(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    name = list(DTYPES)[seed % 3]
    dtype = DTYPES[name][seed // 3 % len(DTYPES[name])]
    source, target = (rng.choice(points(dtype)) for _ in range(2))
    shape = [int(n) for n in rng.integers(1, 6, rng.integers(1, 6))]
    axes = rng.choice(len(shape), rng.integers(0, len(shape) + 1), replace=False)
    x_scale = 2.0 ** rng.uniform(-9, -4)
    return reducer(
        name,
        f"{seed}",
        any_integers(dtype, *shape, seed=seed),
        axes,
        scaled(x_scale, source),
        scaled(x_scale * 2.0 ** rng.uniform(-3, 3), target),
        keep_dims=bool(seed % 2),
    )


@pytest.mark.litert
def test_fuzz() -> None:
    cases = [fuzzed(seed) for seed in range(180)]
    for case in cases:
        case.check(case.run_reference(), run_litert(case))
    group = CaseGroup(cases[:18])
    group.check(group.run_lowered(RULES), run_litert)


@pytest.mark.parametrize("name", DTYPES)
def test_reference_takes_run_time_axes(name: str) -> None:
    known = reducer(name, "", any_integers(np.int8, 3, 4), [1], scaled(0.1, 3), scaled(0.2, 5))
    late = Case(
        name,
        "",
        [known.inputs[0], value([1], "int32")],
        known.options,
        output_quantization=known.output_quantization,
    )
    late.check(late.run_reference(), known.run_reference())


BYTES, ONE = any_integers(np.int8, 2, 3), scaled(1.0)
REFUSED = [
    (reducer("REDUCE_PROD", "", np.uint8([[1]]), [1], ONE, ONE), "quantized uint8", TypeError),
    (reducer("MEAN", "", BYTES, [1], ONE, ONE, outputs=[np.int16]), "'out0' int16", TypeError),
    (
        reducer("SUM", "", np.int16([[1]]), [1], scaled(1, 5), ONE),
        "the zero point of int16 'in0' is 5",
        ValueError,
    ),
    (
        reducer("REDUCE_PROD", "", np.int16([[1]]), [1], ONE, scaled(1, 5)),
        "the zero point of int16 'out0' is 5",
        ValueError,
    ),
]


@pytest.mark.parametrize(("case", "said", "error"), REFUSED)
def test_refuses(case: Case, said: str, error: type[Exception]) -> None:
    assert said in case.reason(RULES[case.name])
    with pytest.raises(error):
        case.run_reference()


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (reducer("REDUCE_PROD", "", BYTES[:, :0], [1], ONE, ONE), "no values to multiply"),
        (reducer("REDUCE_PROD", "", BYTES, [1], scaled(1e6), ONE), "than the kernel scales"),
        (reducer("MEAN", "", BYTES, [1], scaled(np.inf), ONE), "the scale of 'in0' is inf"),
    ],
)
def test_refuses_to_lower(case: Case, said: str) -> None:
    assert said in case.reason(RULES[case.name])
