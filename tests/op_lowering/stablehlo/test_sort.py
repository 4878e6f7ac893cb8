"""STABLEHLO_SORT, in models with a comparator."""

from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import StablehloSortOptions
from jaxdelegate.testing import Arg, assert_close, f32, of, value
from tests.support.bodies import (
    GE,
    GT,
    LE,
    LT,
    NO_KERNEL,
    ORDERED,
    TOTAL,
    Body,
    BodyCase,
    always,
    builtin_less,
    by_magnitude,
    canonical,
    comparing,
    delegated,
    lexicographic,
    why_left,
)
from tests.support.case_groups import in_part


def sort(label: str, body: Body, *operands: Arg, axis: int = -1) -> BodyCase:
    x = operands[0].value
    return BodyCase(
        "STABLEHLO_SORT",
        f"{[str(a.value.dtype) for a in operands]}-{x.shape}-{axis}-{label}",
        StablehloSortOptions(axis, is_stable=True, comparator_subgraph_index=1),
        operands,
        body,
        [a.value for a in operands],
        litert=NO_KERNEL,
    )


TIES = value(np.array([[2, 1, 2, 0, 1, 2, 0, 1]] * 2, np.float32))
PLACES = value(np.arange(16, dtype=np.int32).reshape(2, 8))
ODD = value(np.float32([[1, np.nan, -0.0, 0.0, np.inf, -np.inf, -np.nan, 0.0, -0.0]]))


def sorts() -> list[BodyCase]:
    return [
        *(sort("lt", comparing(LT), of(d, 3, 7)) for d in ORDERED),
        *(sort("gt", comparing(GT), of(d, 3, 7), axis=0) for d in ORDERED),
        *(
            sort(f"{d.name[-2:]}-{swapped}", comparing(d, swapped=swapped), TIES, PLACES)
            for d in (LT, GT)
            for swapped in (False, True)
        ),
        *(sort(d.name[-2:], comparing(d), f32(3, 7)) for d in (LE, GE)),
        sort("by the second", comparing(GT, 1), PLACES, TIES),
        sort("by the third", comparing(LT, 2), f32(2, 8), PLACES, TIES),
        sort("LESS", builtin_less, f32(3, 7)),
        *(sort("total", comparing(d, compare_type=TOTAL), ODD) for d in (LT, GT)),
        sort("canonical", canonical, ODD),
        sort("magnitude", by_magnitude, f32(3, 7)),
        sort("magnitude", by_magnitude, of(np.int32, 7, low=-3, high=3)),
        sort("lexicographic", lexicographic, TIES, PLACES),
        sort("lexicographic", lexicographic, TIES, TIES, axis=0),
        sort("complex", comparing(LT), of(np.complex64, 3, 5)),
        sort("one", comparing(LT), f32(1)),
        sort("empty", comparing(LT), f32(2, 0)),
        sort("rank5", comparing(LT), f32(2, 1, 3, 2, 2), axis=-3),
    ]


SORTS = sorts()


@pytest.mark.parametrize("case", in_part(SORTS), ids=str)
def test_lowering_matches_the_reference(case: BodyCase) -> None:
    assert_close(case.run(delegated), case.run(jd.Interpreter), accumulated=case.accumulated)


# ---- independent expectations

RUNS = pytest.mark.parametrize("run", [jd.Interpreter, delegated])


@RUNS
def test_example_of_the_specification(run: Any) -> None:
    x, y = value(np.int64([[1, 2, 3], [3, 2, 1]])), value(np.int64([[3, 2, 1], [1, 2, 3]]))
    case = sort("", comparing(GT), x, y, axis=0)
    assert_close(
        case.run(run), [np.int64([[3, 2, 3], [1, 2, 1]]), np.int64([[1, 2, 1], [3, 2, 3]])]
    )


@RUNS
def test_equal_keys_keep_their_order_in_both_directions(run: Any) -> None:
    for direction, sign in ((LT, 1), (GT, -1)):
        order = np.argsort(sign * TIES.value, axis=1, kind="stable").astype(np.int32)
        wanted = (
            np.take_along_axis(TIES.value, order, 1),
            np.take_along_axis(PLACES.value, order, 1),
        )
        assert_close(sort("", comparing(direction), TIES, PLACES).run(run), wanted)


@RUNS
def test_total_order_separates_zeros_and_keeps_nan_at_the_ends(run: Any) -> None:
    (got,) = sort("", comparing(LT, compare_type=TOTAL), ODD).run(run)
    assert np.array_equal(np.signbit(got), [[True] * 4 + [False] * 5])
    assert np.array_equal(np.isnan(got), [[True] + [False] * 7 + [True]])


@RUNS
def test_two_keys(run: Any) -> None:
    case = sort("", lexicographic, TIES, PLACES)
    order = np.lexsort((-PLACES.value[0], TIES.value[0]))
    first, second = case.run(run)
    assert_close([first[0], second[0]], [TIES.value[0, order], PLACES.value[0, order]])


@RUNS
def test_large_sorts(run: Any) -> None:
    x = f32(20_000 if run is delegated else 200)
    assert_close(sort("", comparing(GT), x).run(run), [np.sort(x.value)[::-1]])


# ---- refusals


def test_refuses_to_compare_too_many_pairs() -> None:
    x = value(np.zeros((2, 5000), np.int32))
    assert "orders by no single key, and there are 50000000 pairs" in why_left(
        sort("", lexicographic, x, x)
    )
    assert why_left(sort("", comparing(LT), x, x)) == ""


def test_refuses_a_body_that_is_not_a_comparator() -> None:
    assert "not scalars of bool" in why_left(sort("", always(np.int32(1)), f32(3)))
