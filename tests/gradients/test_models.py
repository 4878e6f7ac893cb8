"""Derivatives of operators that apply other subgraphs, keep state, or come from rewrites."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import (
    CallOptions,
    GeluOptions,
    IfOptions,
    MulOptions,
    Options,
    Padding,
    Pool2DOptions,
    ReducerOptions,
    StablehloCaseOptions,
    StablehloReduceOptions,
    StablehloScatterOptions,
    StablehloSortOptions,
    WhileOptions,
)
from jaxdelegate.testing import Arg, Case, ModelBuilder, const, f32, value
from tests.support.bodies import LT, BodyCase, comparing, pairwise

X = np.float32([1.5, -2.0, 4.0])
DISTINCT = value(np.random.default_rng(0).permutation(12).reshape(3, 4).astype(np.float32) - 5.3)
STEP = 2e-2  # no two values of DISTINCT meet


def check(content: bytes, *inputs: Any, by: int = 0) -> None:
    """Forward and reverse mode, for one input and all parameters, against finite differences."""
    apply, params = jd.load(content).function()
    random = np.random.default_rng(0)
    floats = {name: p for name, p in params.items() if p.dtype == np.float32}
    at = floats, np.asarray(inputs[by])
    direction = jax.tree.map(lambda x: random.uniform(-1, 1, x.shape).astype(np.float32), at)

    def call(point: Any) -> list[Any]:
        given = [point[1] if i == by else x for i, x in enumerate(inputs)]
        results = apply({**params, **point[0]}, *given)
        return [y for y in results if y.dtype == np.float32]

    def moved(step: float) -> list[np.ndarray]:
        point = jax.tree.map(lambda x, d: np.float32(x + step * d), at, direction)
        return [np.asarray(y, np.float64) for y in call(point)]

    _, forward = jax.jvp(call, (at,), (direction,))
    pairs = zip(*(moved(s * STEP) for s in (1, -1, 2, -2)), strict=True)
    wants = [((a - b) * 8 - (c - d)) / (12 * STEP) for a, b, c, d in pairs]
    for got, want in zip(forward, wants, strict=True):
        assert np.any(want)
        np.testing.assert_allclose(got, want, atol=2e-4 * np.abs(want).max(), rtol=2e-4)
    slopes = jax.vjp(call, at)[1](forward)[0]
    again = jax.tree.map(lambda g, d: np.vdot(np.float64(g), d), slopes, direction)
    total = sum(jax.tree.leaves(again))
    np.testing.assert_allclose(total, sum(np.vdot(d, d) for d in map(np.float64, forward)), 1e-4)


def scaled(builder: ModelBuilder, factor: float) -> None:
    graph = builder.subgraph(f"times_{factor}")
    x, y = graph.input((3,)), graph.tensor((3,))
    factors = graph.constant(np.full(3, factor, np.float32))
    graph.operator("MUL", [x, factors], [y], MulOptions())
    graph.outputs(y)


def calling(name: str, options: Options, dtype: Any = None, count: int = 1) -> bytes:
    builder = ModelBuilder()
    which = [] if dtype is None else [builder.input((), dtype)]
    x, y = builder.input((3,)), builder.tensor((3,))
    builder.operator(name, [*which, x], [y], options)
    builder.outputs(y)
    for n in range(count):
        scaled(builder, n + 2)
    return builder.build()


@pytest.mark.parametrize(
    ("content", "inputs"),
    [
        (calling("CALL", CallOptions(1)), [X]),
        (calling("IF", IfOptions(1, 2), np.bool_, 2), [np.bool_(True), X]),
        (calling("STABLEHLO_CASE", StablehloCaseOptions((1, 2)), np.int32, 2), [np.int32(1), X]),
    ],
    ids=["CALL", "IF", "STABLEHLO_CASE"],
)
def test_called_subgraphs(content: bytes, inputs: Sequence[Any]) -> None:
    check(content, *inputs, by=len(inputs) - 1)


def test_a_loop_is_derived_forward_only() -> None:
    """The number of iterations is known only at run time: JAX raises an error."""
    builder = ModelBuilder()
    i, x = builder.input((), np.int32), builder.input((3,))
    last, y = builder.tensor((), np.int32), builder.tensor((3,))
    builder.operator("WHILE", [i, x], [last, y], WhileOptions(1, 2))
    builder.outputs(y)
    graph = builder.subgraph("condition")
    i, _x, goes_on = graph.input((), np.int32), graph.input((3,)), graph.tensor((), np.bool_)
    graph.operator("LESS", [i, graph.constant(np.int32(3))], [goes_on])
    graph.outputs(goes_on)
    graph = builder.subgraph("body")
    i, x = graph.input((), np.int32), graph.input((3,))
    following, squared = graph.tensor((), np.int32), graph.tensor((3,))
    graph.operator("ADD", [i, graph.constant(np.int32(1))], [following])
    graph.operator("MUL", [x, x], [squared], MulOptions())
    graph.outputs(following, squared)
    apply, params = jd.load(builder.build()).function()
    slope = jax.jvp(lambda x: apply(params, np.int32(1), x)[0], (X,), (np.ones_like(X),))[1]
    np.testing.assert_allclose(slope, 4 * X**3)
    with pytest.raises(jd.GradientError, match="the number of iterations depends on data"):
        jax.grad(lambda x: apply(params, np.int32(1), x)[0].sum())(X)


def reduced(body: str) -> BodyCase:
    inputs = [
        DISTINCT,
        value(0, np.float32) if body != "STABLEHLO_MULTIPLY" else value(1, np.float32),
    ]
    result = np.zeros(3, np.float32)
    return BodyCase(
        "STABLEHLO_REDUCE", body, StablehloReduceOptions((1,), 1), inputs, pairwise(body), [result]
    )


def scattered(body: str) -> BodyCase:
    options = StablehloScatterOptions(
        update_window_dims=(1,),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,),
        index_vector_dim=1,
        update_computation_subgraph_index=1,
    )
    inputs: list[Arg] = [DISTINCT, value([[1], [0]], np.int32), f32(2, 4)]
    return BodyCase("STABLEHLO_SCATTER", body, options, inputs, pairwise(body), [DISTINCT.value])


def ordered() -> BodyCase:
    options = StablehloSortOptions(-1, is_stable=True, comparator_subgraph_index=1)
    return BodyCase("STABLEHLO_SORT", "lt", options, [DISTINCT], comparing(LT), [DISTINCT.value])


BODIES = [
    *map(reduced, ["STABLEHLO_ADD", "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM"]),
    *map(scattered, ["STABLEHLO_ADD"]),
    ordered(),
]


@pytest.mark.parametrize("case", BODIES, ids=str)
def test_bodies(case: BodyCase) -> None:
    check(case.model(), *(a.value for a in case.inputs))


def test_a_fused_normalization() -> None:
    builder = ModelBuilder()
    x, axes = builder.input((3, 4)), builder.constant(np.int32([-1]))

    def add(name: str, *inputs: int, shape: tuple[int, ...] = (3, 4), options: Any = None) -> int:
        y = builder.tensor(shape)
        builder.operator(name, list(inputs), [y], options)
        return y

    keep = ReducerOptions(keep_dims=True)
    mean = add("MEAN", x, axes, shape=(3, 1), options=keep)
    square = add("SQUARED_DIFFERENCE", x, mean)
    variance = add("MEAN", square, axes, shape=(3, 1), options=keep)
    guarded = add("ADD", variance, builder.constant(np.float32(1e-3)), shape=(3, 1))
    y = add("MUL", add("SUB", x, mean), add("RSQRT", guarded, shape=(3, 1)))
    builder.outputs(add("MUL", y, builder.constant(np.float32([1, 2, -3, 4]))))
    check(builder.build(), DISTINCT.value)


# ---- edges, where a derivative is easily NaN


def slope(name: str, x: Any, options: Options | None = None, **rest: Any) -> np.ndarray:
    case = Case(name, "edge", [value(x, np.float32), *rest.get("more", ())], options)
    apply, params = jd.load(case.model()).function()
    return np.asarray(jax.grad(lambda x: apply(params, x)[0].sum())(case.feeds()[0]))


def test_zeros_have_a_normalization() -> None:
    np.testing.assert_allclose(slope("L2_NORMALIZATION", np.zeros((1, 3))), 1e6)
    pool = Pool2DOptions(Padding.VALID, 1, 1, 2, 2)
    np.testing.assert_array_equal(slope("L2_POOL_2D", np.zeros((1, 2, 2, 1)), pool), 0)


def test_a_unit_of_huge_numbers_is_flat_or_straight() -> None:
    huge = slope("GELU", [-1e30, -1e3, 1e3, 1e30], GeluOptions(approximate=True))
    np.testing.assert_array_equal(huge, [0, 0, 1, 1])


def test_products_of_segments_with_zeros() -> None:
    more = [const([0, 0, 0, 1, 1, 2], np.int32), const(3, np.int32)]
    found = slope("UNSORTED_SEGMENT_PROD", [2, 0, 3, 0, 0, 5], more=more)
    np.testing.assert_array_equal(found, [0, 6, 0, 0, 0, 1])
