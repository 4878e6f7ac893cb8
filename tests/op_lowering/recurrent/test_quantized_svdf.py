"""SVDF in integers."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import SVDFOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.testing import Case
from tests.support.case_groups import CaseGroup, in_groups
from tests.support.quantized import integers, scaled
from tests.support.stateful import litert_twice, state, twice, under_way

BATCH, INPUT = 3, 5


def svdf(
    label: str,
    rank: int,
    output_channels: int,
    memory: int,
    *,
    seed: int = 0,
    n_batch: int = BATCH,
    n_input: int = INPUT,
    bias: bool = True,
    x: tuple[float, int] = (0.01, -12),
    feature: float = 0.008,
    time: float = 4e-5,
    kept: float = 2e-4,
    y: tuple[float, int] = (0.012, -128),
) -> Case:
    rng, n_filters = np.random.default_rng(seed), rank * output_channels
    inputs = [
        integers(rng, np.int8, (n_batch, n_input), *x, is_const=False),
        integers(rng, np.int8, (n_filters, n_input), feature),
        integers(rng, np.int16, (n_filters, memory), time, extent=20000),
        integers(rng, np.int32, [output_channels], kept * time, extent=1 << 24) if bias else None,
        state(np.int16, (n_batch, memory * n_filters), kept),
    ]
    return Case(
        "SVDF",
        label,
        inputs,
        SVDFOptions(rank, Act.RELU),
        [np.int8],
        version=3,
        output_quantization=[scaled(*y)],
    )


CASES = [
    svdf("rank-1", 1, 4, 10),
    svdf("rank-3", 3, 5, 7, n_input=17),
    svdf("no-bias-memory-of-one", 2, 3, 1, bias=False),
    svdf("large-factors", 2, 3, 4, x=(0.3, -128), kept=1e-5, y=(1e-4, 127)),
    svdf("small-factors", 2, 3, 4, x=(1e-4, 127), kept=0.1, y=(5.0, 0)),
]


def drawn(seed: int) -> Case:
    """A case of random shapes, scales and zero points."""
    rng = np.random.default_rng(seed)

    def scale(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    def point() -> int:
        return int(rng.choice([-128, 127, 0, rng.integers(-128, 128)]))

    rank, output_channels, memory, n_input = (int(rng.integers(1, high)) for high in (4, 9, 12, 9))
    return svdf(
        f"{seed}",
        rank,
        output_channels,
        memory,
        seed=seed,
        n_input=n_input,
        x=(scale(1e-3, 0.1), point()),
        feature=scale(1e-3, 0.1),
        time=scale(1e-6, 1e-3),
        kept=scale(1e-6, 1e-2),
        y=(scale(1e-4, 1), point()),
    )


@pytest.mark.parametrize("group", in_groups([*CASES, *map(drawn, range(100, 103))]), ids=str)
def test_lowering_matches_the_reference(group: CaseGroup) -> None:
    CaseGroup([under_way(case) for case in group.cases]).check_lowerings(RULES)


@pytest.mark.litert
@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_matches_litert(case: Case) -> None:
    want = litert_twice(case)
    case.check(twice(case, Case.run_reference)[: len(want)], want)


@pytest.mark.litert
def test_reference_equals_litert_on_random_cases() -> None:
    for seed in range(20):
        test_reference_matches_litert(drawn(seed))


STATE: Any = CASES[0].inputs[4]
WRONG_STATE = CASES[0].with_inputs({4: dataclasses.replace(STATE, value=STATE.value.astype("i1"))})
STOPPED = {("'in4' is int8: the integer kernel takes int16", TypeError): WRONG_STATE}
REFUSED = {
    "RELU only": dataclasses.replace(CASES[0], options=SVDFOptions(1, Act.NONE)),
    "must be finite": svdf("", 1, 2, 3, x=(1e30, 0), feature=1e30),
    "'in4' is int8, not int16": WRONG_STATE,
}
