"""STABLEHLO_SCATTER, in models with a body."""

import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import StablehloScatterOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op, SubgraphAccess
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.testing import Arg, assert_close, f32, of, value
from tests.support.bodies import (
    ADD,
    AND,
    DTYPES,
    MAX,
    MIN,
    MUL,
    NO_BODY,
    NO_DTYPE,
    OR,
    SUB,
    Body,
    BodyCase,
    always,
    argument,
    branching,
    delegated,
    larger_and_where,
    odds,
    pairwise,
    why_left,
)
from tests.support.case_groups import in_part


def scatter(
    label: str,
    x: Arg,
    indices: Any,
    updates: Arg,
    body: Body = ADD,
    litert: str | None = None,
    more: Sequence[tuple[Arg, Arg]] = (),
    **o: Any,
) -> BodyCase:
    indices = indices if isinstance(indices, Arg) else value(indices, np.int32)
    options = StablehloScatterOptions(**{**WINDOWS, **o}, update_computation_subgraph_index=1)
    operands, changes = [x, *(a for a, _ in more)], [updates, *(b for _, b in more)]
    return BodyCase(
        "STABLEHLO_SCATTER",
        f"{x.value.dtype}-{label}",
        options,
        [*operands, indices, *changes],
        body,
        [a.value for a in operands],
        accumulated=16,
        litert=litert,
    )


WINDOWS: dict[str, Any] = {
    "update_window_dims": (2, 3),
    "inserted_window_dims": (0,),
    "scatter_dims_to_operand_dims": (1, 0),
    "index_vector_dim": 2,
}
ROWS: dict[str, Any] = {
    "update_window_dims": (1,),
    "inserted_window_dims": (0,),
    "scatter_dims_to_operand_dims": (0,),
    "index_vector_dim": 1,
}
POINTS: dict[str, Any] = {
    "update_window_dims": (),
    "inserted_window_dims": (0, 1),
    "scatter_dims_to_operand_dims": (1, 0),
    "index_vector_dim": 0,
}
FREE: dict[str, Any] = {
    "update_window_dims": (0, 2),
    "inserted_window_dims": (),
    "scatter_dims_to_operand_dims": (1,),
    "index_vector_dim": 1,
}
NO_SCATTER = [np.dtype(t) for t in (np.complex64, ml_dtypes.bfloat16)]


def scatters() -> list[BodyCase]:
    x, updates = f32(3, 4, 2), f32(2, 3, 2, 2, seed=1)
    indices = of(np.int32, 2, 3, 2, low=-1, high=3)
    places = of(np.int32, 6, low=-1, high=5)
    rows = {
        "subtract": SUB,
        "odds": odds,
        "keep": argument(0),
        "branching": branching,
        "ADD": pairwise("ADD"),
    }
    return [
        *(
            scatter(
                "add",
                of(d, 3, 4, 2),
                indices,
                of(d, 2, 3, 2, 2, seed=1),
                litert=NO_DTYPE if d in NO_SCATTER else None,
            )
            for d in DTYPES
        ),
        *(
            scatter(name, x, indices, updates, body)
            for name, body in (("mul", MUL), ("max", MAX), ("min", MIN), ("set", argument(1)))
        ),
        *(scatter(n, f32(5, 4), places, f32(6, 4), b, NO_BODY, **ROWS) for n, b in rows.items()),
        *(
            scatter(name, of(bool, 5, 4), places, of(bool, 6, 4, seed=1), body, NO_BODY, **ROWS)
            for name, body in (("or", OR), ("and", AND))
        ),
        scatter("or", of(np.int32, 5, 4), places, of(np.int32, 6, 4), OR, NO_BODY, **ROWS),
        scatter("column", f32(5, 4), places.value.reshape(6, 1), f32(6, 4), **ROWS),
        scatter("points", f32(3, 4), of(np.int64, 2, 5, high=3), f32(5), **POINTS),
        scatter(
            "points-odds", f32(3, 4), of(np.int32, 2, 5, high=3), f32(5), odds, NO_BODY, **POINTS
        ),
        scatter("free", f32(4, 5), [[-1], [0], [2], [4], [9]], f32(3, 5, 2), **FREE),
        scatter(
            "free-odds", f32(4, 5), [[-1], [0], [2], [4], [9]], f32(3, 5, 2), odds, NO_BODY, **FREE
        ),
        scatter("free-set", f32(4, 5), [[-2], [4], [2**31 - 1]], f32(4, 3, 2), argument(1), **FREE),
    ]


def scatters_by_row() -> list[BodyCase]:
    """Bounds of index types, nothing to scatter, and several operands at once."""
    places = of(np.int32, 6, low=-1, high=5)
    return [
        scatter(
            "uint8", f32(300, 2), value([[255], [7]], np.uint8), f32(2, 2), ADD, NO_DTYPE, **ROWS
        ),
        scatter(
            "far", f32(5, 2), value([[2**64 - 1], [1]], np.uint64), f32(2, 2), ADD, NO_DTYPE, **ROWS
        ),
        scatter(
            "nothing",
            f32(5, 2),
            np.zeros((0, 1)),
            f32(0, 2),
            ADD,
            "LiteRT refuses empty tensors",
            **ROWS,
        ),
        scatter(
            "two",
            f32(5, 4),
            places,
            f32(6, 4),
            body=pairwise("STABLEHLO_ADD", "STABLEHLO_MAXIMUM"),
            litert=NO_BODY,
            more=[(of(np.int32, 5, 4), of(np.int32, 6, 4))],
            **ROWS,
        ),
        scatter(
            "argmax",
            f32(5, 4),
            places,
            f32(6, 4),
            body=larger_and_where,
            litert=NO_BODY,
            more=[(of(np.int32, 5, 4), of(np.int32, 6, 4))],
            **ROWS,
        ),
    ]


CASES = [*scatters(), *scatters_by_row()]


@pytest.mark.parametrize("case", in_part(CASES), ids=str)
def test_lowering_matches_the_reference(case: BodyCase) -> None:
    assert_close(case.run(delegated), case.run(jd.Interpreter), accumulated=case.accumulated)


@pytest.mark.litert
@pytest.mark.parametrize("case", [c for c in CASES if c.litert is None], ids=str)
def test_reference_matches_litert(case: BodyCase) -> None:
    from ai_edge_litert.interpreter import Interpreter

    assert_close(case.run(jd.Interpreter), case.run(Interpreter), accumulated=case.accumulated)


# ---- independent expectations

RUNS = pytest.mark.parametrize("run", [jd.Interpreter, delegated])


@RUNS
def test_example_of_the_specification(run: Any) -> None:
    x = np.arange(1, 25, dtype=np.int64).reshape(3, 4, 2)
    indices = [[[0, 2], [1, 0], [2, 1]], [[0, 1], [1, 0], [0, 9]]]
    case = scatter(
        "",
        value(x),
        value(indices, np.int64),
        value(np.ones((2, 3, 2, 2), np.int64)),
        scatter_dims_to_operand_dims=(1, 0),
    )
    want = [
        [[1, 2], [5, 6], [7, 8], [7, 8]],
        [[10, 11], [12, 13], [14, 15], [16, 17]],
        [[18, 19], [20, 21], [21, 22], [23, 24]],
    ]
    assert_close(case.run(run), [np.int64(want)])


@RUNS
def test_single_updates_match_numpy(run: Any) -> None:
    x, places, updates = f32(5, 3), value([4, 1, 4, 0], np.int32), f32(4, 3, seed=1)
    for body, function in (
        (ADD, np.add),
        (MUL, np.multiply),
        (MAX, np.maximum),
        (SUB, np.subtract),
    ):
        want = x.value.copy()
        function.at(want, places.value, updates.value)
        assert_close(scatter("", x, places, updates, body, **ROWS).run(run), [want], accumulated=4)


@RUNS
def test_elements_outside_are_dropped_individually(run: Any) -> None:
    x, updates = value(np.zeros((1, 5), np.float32)), value(np.float32([[[1, 2, 3]]] * 4))
    case = scatter(
        "",
        x,
        value([[-2], [-3], [3], [5]], np.int32),
        updates,
        update_window_dims=(1, 2),
        inserted_window_dims=(),
        scatter_dims_to_operand_dims=(1,),
        index_vector_dim=1,
    )
    assert_close(case.run(run), [np.float32([[3, 0, 0, 1, 2]])])


@RUNS
def test_the_last_of_several_updates_stays(run: Any) -> None:
    x, updates = f32(3, 2), f32(4, 2, seed=1)
    case = scatter("", x, value([1, 2, 1, 1], np.int32), updates, argument(1), **ROWS)
    want = x.value.copy()
    want[2], want[1] = updates.value[1], updates.value[3]
    assert_close(case.run(run), [want])


def test_half_precision_is_summed_in_single() -> None:
    updates, places = value(np.ones((5000, 1), np.float16)), value(np.zeros(5000, np.int32))
    (got,) = scatter("", value(np.zeros((1, 1), np.float16)), places, updates, **ROWS).run(
        delegated
    )
    assert_close([got], [np.float16([[5000]])])


# ---- refusals

CONTEXT = LoweringContext(
    subgraphs=SubgraphAccess(lambda *_, **_how: lambda x, y: (x + y,), lambda *_: None)
)


def specs_of(*inputs: Arg) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(f"in{i}", a.value.shape, a.value.dtype) for i, a in enumerate(inputs))


def why(*inputs: Arg) -> str:
    specs = specs_of(*inputs)
    op = Op(CONTEXT, StablehloScatterOptions(**ROWS), specs, specs[:1])
    return RULES["STABLEHLO_SCATTER"].reason(op) or ""


X, PLACES, UPDATES = f32(5, 4), of(np.int32, 6, 1), f32(6, 4)
REFUSED = {
    "'in0' is float32 and 'in2' int32": why(X, PLACES, of(np.int32, 6, 4)),
    "indices 'in1' are float32": why(X, f32(6, 1), UPDATES),
    "updates of [1, 5] do not fit": why(X, PLACES, f32(6, 5)),
}


@pytest.mark.parametrize("said", REFUSED)
def test_refuses(said: str) -> None:
    assert said in REFUSED[said]


@pytest.mark.parametrize(
    ("said", "attributes"),
    [
        ("1 indices for (0, 1)", {"scatter_dims_to_operand_dims": (0, 1)}),
        ("index_vector_dim 3 is outside", {"index_vector_dim": 3}),
        (
            "scatter_dims_to_operand_dims [2] do not fit",
            {"scatter_dims_to_operand_dims": (2,)},
        ),
        ("inserted_window_dims [2] do not fit", {"inserted_window_dims": (2,)}),
        ("update_window_dims [1, 0] do not fit", {"update_window_dims": (1, 0)}),
        ("windows (1,) in (5, 4)", {"inserted_window_dims": ()}),
    ],
)
def test_impossible_windows(said: str, attributes: dict[str, Any]) -> None:
    options = StablehloScatterOptions(**{**ROWS, **attributes})
    with pytest.raises(ValueError, match=re.escape(said)):
        KERNELS["STABLEHLO_SCATTER"].shapes(options, specs_of(X, PLACES, UPDATES))


@pytest.mark.parametrize(
    ("said", "inputs"),
    [
        ("4 inputs: operands", (X, PLACES, UPDATES, X)),
        ("updates (7, 4) for indices (6, 1)", (X, PLACES, f32(7, 4))),
    ],
)
def test_impossible_inputs(said: str, inputs: tuple[Arg, ...]) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        KERNELS["STABLEHLO_SCATTER"].shapes(StablehloScatterOptions(**ROWS), specs_of(*inputs))


def test_refuses_a_body_of_another_dtype() -> None:
    case = scatter("", X, PLACES, UPDATES, always(np.int32(1)), **ROWS)
    assert "not scalars of float32" in why_left(case)
