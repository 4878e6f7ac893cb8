"""Folds and orders that the lowering recognizes in a body."""

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.lowering.callees import Callees
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.options import StablehloReduceOptions
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.op_lowering.stablehlo.body import FOLDS, Body, Fold
from tests.support import bodies
from tests.support.bodies import BodyCase, argument, comparing, odds, pairwise

F32, F16, BF16 = (np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16))
I32, BOOL = np.dtype(np.int32), np.dtype(bool)
WIDE = {F16: F32, BF16: F32}


def traced(body: bodies.Body, *dtypes: np.dtype, comparator: bool = False) -> Body:
    results = [np.zeros((), d) for d in dtypes]
    case = BodyCase("STABLEHLO_REDUCE", "", StablehloReduceOptions((), 1), [], body, results)
    subgraphs = read_model(case.model()).subgraphs
    context = Callees(subgraphs, LoweringContext()).in_context()
    arguments = [d for d in dtypes for _ in range(2)] if comparator else [*dtypes, *dtypes]
    return Body.of(context, 1, arguments)


def fold(body: bodies.Body, *dtypes: np.dtype, position: int = 0) -> Fold | None:
    dtype = dtypes[position]
    return traced(body, *dtypes).fold(position, WIDE.get(dtype, dtype))


@pytest.mark.parametrize("dtype", [F32, F16, BF16, I32, np.dtype(np.complex64)])
@pytest.mark.parametrize(
    ("name", "known"), [("ADD", "add"), ("MULTIPLY", "mul"), ("MAXIMUM", "max"), ("MINIMUM", "min")]
)
def test_single_operators_are_folds(name: str, known: str, dtype: np.dtype) -> None:
    assert fold(pairwise(f"STABLEHLO_{name}"), dtype) is FOLDS[known]


@pytest.mark.parametrize(
    ("name", "known"), [("OR", "max"), ("AND", "min"), ("ADD", "max"), ("MULTIPLY", "min")]
)
def test_booleans_fold_by_their_extremes(name: str, known: str) -> None:
    assert fold(pairwise(f"STABLEHLO_{name}"), BOOL) is FOLDS[known]


def test_bits_fold() -> None:
    assert fold(pairwise("STABLEHLO_OR"), I32) is FOLDS["or"]
    assert fold(pairwise("STABLEHLO_AND"), I32) is FOLDS["and"]


def test_each_result_folds_separately() -> None:
    body = pairwise("STABLEHLO_ADD", "STABLEHLO_MAXIMUM")
    assert fold(body, F32, I32, position=0) is FOLDS["add"]
    assert fold(body, F32, I32, position=1) is FOLDS["max"]


@pytest.mark.parametrize(
    "body", [pairwise("STABLEHLO_SUBTRACT"), odds, argument(1), bodies.always(np.float32(1))]
)
def test_other_bodies_are_not_folds(body: bodies.Body) -> None:
    assert fold(body, F32) is None


def test_identities() -> None:
    for known, dtype, want in (
        ("add", F32, 0),
        ("mul", I32, 1),
        ("max", F32, -np.inf),
        ("max", I32, -(2**31)),
        ("max", BOOL, False),
        ("min", I32, 2**31 - 1),
        ("min", BOOL, True),
        ("and", np.dtype(np.uint8), 255),
        ("or", I32, 0),
    ):
        assert FOLDS[known].start(dtype) == np.asarray(want, dtype)


@pytest.mark.parametrize(
    ("body", "ascending", "operand"),
    [
        (comparing(bodies.LT), True, 0),
        (comparing(bodies.GE), False, 0),
        (comparing(bodies.LT, swapped=True), False, 0),
        (comparing(bodies.GT, swapped=True), True, 0),
        (comparing(bodies.LT, compare_type=bodies.TOTAL), True, None),
        (bodies.canonical, True, None),
        (bodies.by_magnitude, True, None),
        (bodies.builtin_less, True, 0),
    ],
)
def test_orders_by_one_key(body: bodies.Body, ascending: bool, operand: int | None) -> None:
    order = traced(body, F32, comparator=True).order()
    assert order is not None
    assert (order.ascending, order.operand) == (ascending, operand)


def test_the_key_may_be_another_operand() -> None:
    order = traced(comparing(bodies.LT, 1), F32, I32, comparator=True).order()
    assert order is not None
    assert order.operand == 1


@pytest.mark.parametrize(
    ("body", "dtypes"),
    [
        (bodies.lexicographic, [F32, I32]),
        (comparing(bodies.EQ), [F32]),
        (bodies.always(np.True_), [F32]),
    ],
)
def test_other_comparators_have_no_key(body: bodies.Body, dtypes: list[np.dtype]) -> None:
    assert traced(body, *dtypes, comparator=True).order() is None
