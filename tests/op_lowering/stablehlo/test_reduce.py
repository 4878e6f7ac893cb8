"""STABLEHLO_REDUCE and STABLEHLO_REDUCE_WINDOW, in models with a body."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import StablehloReduceOptions, StablehloReduceWindowOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import Function, LoweringContext, Op, SubgraphAccess
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
    NO_KERNEL,
    OR,
    ORDERED,
    SUB,
    Body,
    BodyCase,
    always,
    branching,
    delegated,
    larger_and_where,
    odds,
    pairwise,
    why_left,
)
from tests.support.case_groups import in_part


def reduce(
    label: str, dims: tuple[int, ...], body: Body, *operands: Arg, starts: Sequence[Any] = (0,)
) -> BodyCase:
    x = [a.value for a in operands]
    inits = [value(s, a.dtype) for s, a in zip(starts, x, strict=True)]
    results = [np.asarray(np.max(a, axis=dims, initial=a.dtype.type(0))) for a in x]
    n = int(np.prod([x[0].shape[d] for d in dims]))
    options = StablehloReduceOptions(dims, 1)
    return BodyCase(
        "STABLEHLO_REDUCE",
        f"{x[0].dtype}-{x[0].shape}-{dims}-{label}",
        options,
        [*operands, *inits],
        body,
        [r.astype(a.dtype) for r, a in zip(results, x, strict=True)],
        accumulated=max(n, 1),
        litert=NO_KERNEL,
    )


DISTINCT = value(np.random.default_rng(0).permutation(24).reshape(4, 6).astype(np.float32))


def reductions() -> list[BodyCase]:
    return [
        *(reduce("add", (1,), ADD, of(d, 3, 5, high=3), starts=[1]) for d in DTYPES),
        *(reduce("max", (0,), MAX, of(d, 3, 5, high=3), starts=[1]) for d in ORDERED),
        *(
            reduce("min", (0, 1), MIN, of(d, 3, 5, high=3), starts=[1])
            for d in (np.float32, np.int8)
        ),
        *(
            reduce("mul", (0, 2), MUL, f32(*s), starts=[2])
            for s in ((2, 3, 2), (1, 1, 1), (0, 3, 2))
        ),
        *(reduce("or", (0,), OR, of(d, 3, 5, high=9)) for d in (np.int32, np.uint8, bool)),
        *(
            reduce("and", (1,), AND, of(d, 3, 5, high=9), starts=[1])
            for d in (np.int32, np.uint8, bool)
        ),
        *(reduce("mul", (1,), MUL, of(d, 3, 5), starts=[1]) for d in (bool, np.complex64)),
        *(reduce("add", dims, ADD, f32(2, 3, 1, 4, 2)) for dims in ((), (4, 0), (0, 1, 2, 3, 4))),
        reduce("add", (), ADD, f32(), starts=[3]),
        reduce("ADD", (0,), pairwise("ADD"), f32(7, 2), starts=[1]),
        reduce("MAXIMUM", (0,), pairwise("MAXIMUM"), f32(7, 2), starts=[1]),
        reduce("odds", (1,), odds, of(np.float32, 3, 7, low=0, high=1)),
        reduce("odds", (0, 1), odds, of(np.float16, 2, 3, low=0, high=1)),
        reduce("branching", (0,), branching, f32(4, 3), starts=[-9]),
        reduce(
            "two",
            (0,),
            pairwise("STABLEHLO_ADD", "STABLEHLO_MAXIMUM"),
            f32(4, 3),
            of(np.int32, 4, 3),
            starts=[0, 0],
        ),
        reduce(
            "argmax",
            (1,),
            larger_and_where,
            DISTINCT,
            value(np.arange(24, dtype=np.int32).reshape(4, 6)),
            starts=[-1, 0],
        ),
    ]


def window(
    label: str,
    x: Arg,
    sizes: tuple[int, ...],
    body: Body = ADD,
    start: Any = 0,
    litert: str | None = None,
    **o: Any,
) -> BodyCase:
    options = StablehloReduceWindowOptions(sizes, body_subgraph_index=1, **o)
    y = np.zeros((1,) * x.value.ndim, x.value.dtype)
    return BodyCase(
        "STABLEHLO_REDUCE_WINDOW",
        f"{x.value.dtype}-{label}",
        options,
        [x, value(start, x.value.dtype)],
        body,
        [y],
        accumulated=int(np.prod(sizes)),
        litert=litert,
    )


STOCK_WINDOW = [
    np.dtype(t) for t in (np.float32, np.float64, np.int8, np.int16, np.int32, np.int64, np.uint8)
]
GEOMETRY: dict[str, Any] = {
    "strides": {"window_strides": (2, 1), "padding": (1, 0, 1, 1)},
    "dilations": {"base_dilations": (2, 1), "window_dilations": (1, 2), "padding": (0, 1, 0, 0)},
    "crops": {"base_dilations": (2, 3), "padding": (-1, 2, 3, -2), "window_strides": (2, 2)},
}


def windows() -> list[BodyCase]:
    x = f32(5, 6)
    return [
        *(
            window(
                "add",
                of(d, 4, 5, high=3),
                (2, 2),
                start=1,
                litert=None if d in STOCK_WINDOW else NO_DTYPE,
            )
            for d in DTYPES
        ),
        *(
            window(f"{label}-{name}", x, (2, 3), body, start, **o)
            for label, o in GEOMETRY.items()
            for name, body, start in (
                ("add", ADD, 0),
                ("mul", MUL, 2),
                ("max", MAX, -1),
                ("min", MIN, 1),
            )
        ),
        *(
            window(f"large-{name}", of(np.int32, 12, 12), (9, 8), body, start, padding=(3, 2, 1, 0))
            for name, body, start in (("add", ADD, 1), ("max", MAX, -9), ("min", MIN, 0))
        ),
        window("large-odds", of(np.float32, 12, 12, low=0, high=0.1), (9, 8), odds, litert=NO_BODY),
        window("odds", x, (2, 2), odds, litert=NO_BODY),
        window("subtract", x, (2, 3), SUB, 1, litert=NO_BODY, padding=(1, 1, 1, 1)),
        window("branching", x, (2, 2), branching, litert=NO_BODY),
        window("and", of(bool, 5, 6), (2, 2), AND, True),
        window("or", of(bool, 5, 6), (2, 2), OR, False, NO_KERNEL),
        window("ADD", x, (2, 2), pairwise("ADD")),
        window("rank4", f32(2, 3, 3, 2), (1, 2, 2, 1), MAX, -9, window_strides=(1, 1, 2, 1)),
        window("rank1", f32(9), (3,), padding=(2, 0)),
        window("empty", f32(2, 3), (3, 1), litert="LiteRT refuses empty tensors"),
    ]


CASES = [*reductions(), *windows()]


@pytest.mark.parametrize("case", in_part(CASES), ids=str)
def test_lowering_matches_the_reference(case: BodyCase) -> None:
    assert_close(case.run(delegated), case.run(jd.Interpreter), accumulated=case.accumulated)


@pytest.mark.litert
@pytest.mark.parametrize("case", [c for c in CASES if c.litert is None], ids=str)
def test_reference_matches_litert(case: BodyCase) -> None:
    from ai_edge_litert.interpreter import Interpreter

    assert_close(case.run(jd.Interpreter), case.run(Interpreter), accumulated=case.accumulated)


# ---- independent expectations

COUNT = value(np.arange(6, dtype=np.int64).reshape(1, 6))


@pytest.mark.parametrize("run", [jd.Interpreter, delegated])
def test_reduce_example_of_the_specification(run: Any) -> None:
    (got,) = reduce("", (1,), ADD, COUNT).run(run)
    assert_close([got], [np.int64([15])])


@pytest.mark.parametrize("run", [jd.Interpreter, delegated])
def test_reduce_window_example_of_the_specification(run: Any) -> None:
    x = value(np.int64([[1, 2], [3, 4], [5, 6]]))
    case = window(
        "",
        x,
        (2, 1),
        window_strides=(4, 1),
        base_dilations=(2, 1),
        window_dilations=(3, 1),
        padding=(2, 1, 0, 0),
    )
    assert_close(case.run(run), [np.int64([[0, 0], [3, 4]])])


@pytest.mark.parametrize("run", [jd.Interpreter, delegated])
@pytest.mark.parametrize(
    ("name", "function", "start"),
    [
        ("ADD", np.sum, 0),
        ("MULTIPLY", np.prod, 1),
        ("MAXIMUM", np.max, -np.inf),
        ("MINIMUM", np.min, np.inf),
    ],
)
def test_single_operators_reduce_as_numpy_does(
    run: Any, name: str, function: Any, start: float
) -> None:
    x = f32(3, 4, 5)
    case = reduce("", (0, 2), pairwise(f"STABLEHLO_{name}"), x, starts=[start])
    assert_close(case.run(run), [function(x.value, axis=(0, 2))], accumulated=15)


@pytest.mark.parametrize("run", [jd.Interpreter, delegated])
def test_each_result_includes_its_start_once(run: Any) -> None:
    x = f32(4, 3)
    (got,) = reduce("", (0,), ADD, x, starts=[10]).run(run)
    assert_close([got], [10 + x.value.sum(0)], accumulated=4)
    (got,) = window("", x, (2, 1), ADD, 10, padding=(1, 0, 0, 0)).run(run)
    above = np.concatenate([np.full((1, 3), 10, np.float32), x.value[:-1]])
    assert_close([got], [10 + above + x.value], accumulated=4)


def test_half_precision_is_summed_in_single() -> None:
    (got,) = reduce("", (0,), ADD, value(np.ones(5000, np.float16))).run(delegated)
    assert_close([got], [np.float16(5000)])


@pytest.mark.parametrize("run", [jd.Interpreter, delegated])
def test_argmax_by_two_operands(run: Any) -> None:
    positions = np.broadcast_to(np.arange(6, dtype=np.int32), (4, 6)).copy()
    case = reduce("", (1,), larger_and_where, DISTINCT, value(positions), starts=[-1, 0])
    largest, where = case.run(run)
    assert_close(
        [largest, where], [DISTINCT.value.max(1), DISTINCT.value.argmax(1).astype(np.int32)]
    )


def test_a_body_that_chooses_by_a_value_sees_scalars() -> None:
    (got,) = reduce("", (0,), branching, DISTINCT, starts=[-1]).run(jd.Interpreter)
    assert_close([got], [DISTINCT.value.max(0)])


# ---- refusals

X = f32(3, 4)


def adding(*_which: object, **_how: object) -> Function:
    return lambda x, y: (x + y,)


CONTEXT = LoweringContext(subgraphs=SubgraphAccess(adding, lambda *_: None))
UNREACHABLE = LoweringContext()


def specs_of(*inputs: Arg) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(f"in{i}", a.value.shape, a.value.dtype) for i, a in enumerate(inputs))


def why_reduce(*inputs: Arg, outputs: int = 1, context: Any = CONTEXT) -> str:
    specs = specs_of(*inputs)
    results = (TensorSpec("out", (), specs[0].dtype),) * outputs
    op = Op(context, StablehloReduceOptions((0,), 1), specs, results)
    return RULES["STABLEHLO_REDUCE"].reason(op) or ""


ZERO = value(0, np.float32)
REFUSED = {
    "must hold one value": why_reduce(X, X),
    "'in1' is int32 and 'out' float32": why_reduce(X, value(0, np.int32)),
    "no access to the subgraph of its body": why_reduce(X, ZERO, context=UNREACHABLE),
    "does not take float32, float32, float32, float32": why_reduce(X, X, ZERO, ZERO, outputs=2),
}


@pytest.mark.parametrize("said", REFUSED)
def test_refuses(said: str) -> None:
    assert said in REFUSED[said]


@pytest.mark.parametrize(
    ("said", "dims"), [("[2] do not fit rank 2", (2,)), ("[0, 0] do not fit", (0, 0))]
)
def test_impossible_reductions(said: str, dims: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        KERNELS["STABLEHLO_REDUCE"].shapes(StablehloReduceOptions(dims, 1), specs_of(X, ZERO))


@pytest.mark.parametrize(
    ("said", "attributes"),
    [
        ("is not for rank 2", {"window_dimensions": (2,)}),
        ("is not for rank 2", {"padding": (1, 2, 3, 4, 5)}),
        ("must be positive", {"base_dilations": (0, 1)}),
        ("leaves (-1, 4)", {"padding": (-4, 0, 0, 0)}),
    ],
)
def test_impossible_windows(said: str, attributes: dict[str, Any]) -> None:
    options = StablehloReduceWindowOptions(**{"window_dimensions": (2, 2), **attributes})
    with pytest.raises(ValueError, match=re.escape(said)):
        KERNELS["STABLEHLO_REDUCE_WINDOW"].shapes(options, specs_of(X, ZERO))


def test_refuses_bodies_that_do_not_fit() -> None:
    case = reduce("", (1,), ADD, X)
    assert "not scalars of float32" in why_left(dataclasses.replace(case, body=always(np.int32(1))))
    unknown = dataclasses.replace(case, body=pairwise("STABLEHLO_CUSTOM_CALL"))
    assert "its body: subgraph 1, node 0 (STABLEHLO_CUSTOM_CALL)" in why_left(unknown)
    beyond = LoweringContext(subgraphs=SubgraphAccess(adding, lambda i, _: [][i]))
    assert "its body, subgraph 1, does not take" in why_reduce(X, ZERO, context=beyond)
