"""Models with control flow as JAX functions: weights of called subgraphs, and their gradients."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.lowering.callees import Callees
from jaxdelegate.lowering.partition import lower_partition
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.options import (
    AddOptions,
    BatchMatMulOptions,
    CallOptions,
    FullyConnectedOptions,
    IfOptions,
    MulOptions,
    StablehloCaseOptions,
    StableHLOCompositeOptions,
    StablehloReduceOptions,
    WhileOptions,
)
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.passes.propagation import subgraph_specs
from jaxdelegate.quant import affine
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import ModelBuilder, SubgraphBuilder, assert_close
from jaxdelegate.testing.running import random_inputs, run_once

N = 4
W = np.random.default_rng(1).normal(size=(N, N)).astype(np.float32) / 2
B = np.random.default_rng(2).normal(size=N).astype(np.float32)
X = np.random.default_rng(3).normal(size=(2, N)).astype(np.float32)
FORWARD = np.random.default_rng(4).normal(size=(2, N)).astype(np.float32)  # of the loss

Params = dict[str, Any]


def layer(x: Any, w: Any, b: Any) -> Any:
    return jnp.tanh(jnp.matmul(x, w.T, precision="highest") + jnp.broadcast_to(b, x.shape))


def layer_graph(g: SubgraphBuilder, x: int, name: str = "cell") -> int:
    """tanh(x W^T + b), with the weights `name`/w and `name`/b."""
    product, y = g.tensor((2, N)), g.tensor((2, N))
    w, b = g.constant(W, f"{name}/w"), g.constant(B, f"{name}/b")
    g.operator("FULLY_CONNECTED", [x, w, b], [product], FullyConnectedOptions())
    g.operator("TANH", [product], [y])
    return y


def layer_subgraph(builder: ModelBuilder, name: str = "cell") -> None:
    g = builder.subgraph(name)
    g.outputs(layer_graph(g, g.input((2, N)), name))


def loop(*, end: int | None = 3) -> bytes:
    """The layer, `end` times; None: the second input is the number of times."""
    builder = ModelBuilder()
    x = builder.input((2, N), name="x")
    last = builder.input((), np.int32, "end") if end is None else builder.constant(np.int32(end))
    i, n = builder.tensor((), np.int32, "i"), builder.tensor((), np.int32, "n")
    y = builder.tensor((2, N), name="y")
    zero = builder.constant(np.int32(0))
    builder.operator("WHILE", [zero, x, last], [i, y, n], WhileOptions(1, 2))
    builder.outputs(y)
    condition_subgraph(builder)
    counted(builder.subgraph("body"), layer_graph)
    return builder.build()


def condition_subgraph(builder: ModelBuilder) -> None:
    """i < n, of (i, x, n)."""
    g = builder.subgraph("condition")
    i, _, n = g.input((), np.int32), g.input((2, N)), g.input((), np.int32)
    goes_on = g.tensor((), np.bool_)
    g.operator("LESS", [i, n], [goes_on])
    g.outputs(goes_on)


def counted(g: SubgraphBuilder, body: Callable[[SubgraphBuilder, int], int]) -> None:
    """(i, x, n) -> (i + 1, body(x), n)."""
    i, x, n = g.input((), np.int32), g.input((2, N)), g.input((), np.int32)
    following = g.tensor((), np.int32)
    g.operator("ADD", [i, g.constant(np.int32(1))], [following], AddOptions())
    g.outputs(following, body(g, x), n)


def loss_of(apply: Any, *inputs: Any) -> Callable[[Params], jax.Array]:
    return lambda params: jnp.sum(apply(params, *inputs)[0] * FORWARD)


def assert_slopes(
    loss: Callable[[Params], jax.Array], params: Params, want: Callable[[Params], jax.Array]
) -> None:
    """The gradient is equal to that of a function written by hand, and to finite differences."""
    got = jax.grad(loss)(params)
    right = jax.grad(want)(params)
    assert set(got) == set(params)
    for name, slope in got.items():
        np.testing.assert_allclose(slope, right[name], rtol=2e-5, atol=2e-6, err_msg=name)
    direction = {k: np.cos(np.arange(p.size, dtype=np.float32)) for k, p in params.items()}
    direction = {k: d.reshape(params[k].shape) for k, d in direction.items()}
    h = np.float32(1e-2)
    above, below = (
        float(loss({k: p + s * direction[k] for k, p in params.items()})) for s in (h, -h)
    )
    slope = sum(float(np.vdot(got[k], direction[k])) for k in params)
    assert abs(slope) > 1e-3
    np.testing.assert_allclose((above - below) / (2 * h), slope, rtol=5e-3, atol=1e-3)


def function(content: bytes) -> tuple[Any, Params]:
    return jd.load(content).function()


# ---- loops


def test_a_loops_weights_are_parameters_with_gradients() -> None:
    apply, params = function(loop())
    assert set(params) == {"cell/w", "cell/b"}
    np.testing.assert_array_equal(params["cell/w"], W)
    (want,) = run_once(jd.Interpreter(model_content=loop()), [X])
    assert_close(apply(params, X), [want], accumulated=N)

    def by_hand(p: Params) -> jax.Array:
        y = X
        for _ in range(3):
            y = layer(y, p["cell/w"], p["cell/b"])
        return jnp.sum(y * FORWARD)

    assert_slopes(loss_of(apply, X), params, by_hand)


def test_transformations_of_a_loop() -> None:
    apply, params = function(loop())
    slopes = jax.jit(jax.vmap(lambda x: jax.grad(loss_of(apply, x))(params)["cell/w"]))
    np.testing.assert_allclose(
        slopes(np.stack([X, 2 * X]))[1],
        jax.grad(loss_of(apply, 2 * X))(params)["cell/w"],
        rtol=1e-5,
        atol=1e-6,
    )


def test_a_loop_that_never_runs_has_no_slope() -> None:
    apply, params = function(loop(end=0))
    np.testing.assert_array_equal(apply(params, X)[0], X)
    assert not np.any(jax.grad(loss_of(apply, X))(params)["cell/w"])


def test_a_loop_of_unknown_length_runs_and_has_forward_derivatives() -> None:
    apply, params = function(loop(end=None))
    known, same = function(loop(end=3))
    three = jnp.int32(3)
    np.testing.assert_array_equal(apply(params, X, three)[0], known(params, X)[0])
    (_, got) = jax.jvp(loss_of(apply, X, three), (params,), (params,))
    (_, want) = jax.jvp(loss_of(known, X), (same,), (same,))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    batched = jax.vmap(jax.jacfwd(lambda x: apply(params, x, three)[0].sum()))(X[None])
    assert batched.shape == (1, 2, N)


def test_a_gradient_through_a_loop_of_unknown_length_is_refused() -> None:
    apply, params = function(loop(end=None))
    with pytest.raises(
        jd.GradientError, match=r"WHILE \('i', 'y', 'n'\): the number of iterations depends on data"
    ):
        jax.grad(loss_of(apply, X, jnp.int32(3)))(params)
    with pytest.raises(ValueError, match=r"jax\.jvp and jax\.jacfwd work"):
        jax.jit(jax.grad(loss_of(apply, X, jnp.int32(3))))(params)


def test_loops_in_loops() -> None:
    """Twice: three times the layer. The inner loop's counter is a constant of the outer body."""
    builder = ModelBuilder()
    x, y = builder.input((2, N)), builder.tensor((2, N))
    i, n = builder.tensor((), np.int32), builder.tensor((), np.int32)
    zero, two = (builder.constant(np.int32(v)) for v in (0, 2))
    builder.operator("WHILE", [zero, x, two], [i, y, n], WhileOptions(1, 2))
    builder.outputs(y)
    condition_subgraph(builder)

    def inner(g: SubgraphBuilder, x: int) -> int:
        i, y, n = g.tensor((), np.int32), g.tensor((2, N)), g.tensor((), np.int32)
        start = [g.constant(np.int32(0)), x, g.constant(np.int32(3))]
        g.operator("WHILE", start, [i, y, n], WhileOptions(1, 3))
        return y

    counted(builder.subgraph("outer"), inner)
    counted(builder.subgraph("inner"), layer_graph)
    apply, params = function(builder.build())
    assert set(params) == {"cell/w", "cell/b"}

    def by_hand(p: Params) -> jax.Array:
        y = X
        for _ in range(6):
            y = layer(y, p["cell/w"], p["cell/b"])
        return jnp.sum(y * FORWARD)

    assert_slopes(loss_of(apply, X), params, by_hand)


@pytest.mark.parametrize("raw_weights", [False, True])
def test_delegates_compile_the_loop_as_it_is(raw_weights: bool) -> None:
    """Only differentiation needs the loop's length, and only training its weights."""
    subgraphs = read_model(loop()).subgraphs
    main = subgraphs[0]
    partition = lower_partition(
        main.operators,
        dict(enumerate(subgraph_specs(main, None, subgraphs))),
        main.inputs,
        main.outputs,
        Callees(subgraphs, LoweringContext()).in_context(),
        raw_weights=raw_weights,
    )
    weights = {weight: partition.value(weight) for weight in partition.preparations}
    program = str(jax.make_jaxpr(lambda x: partition.call(weights, [x]))(X))
    assert ("scan[" in program, "while[" in program) == (raw_weights, not raw_weights)
    assert {weight.subgraph for weight in weights} == ({None, 2} if raw_weights else {None})


# ---- branches and calls


@pytest.mark.parametrize("name", ["IF", "STABLEHLO_CASE"])
def test_a_branchs_weights(name: str) -> None:
    """The layer, or another with weights of the same names."""
    builder = ModelBuilder()
    chosen = builder.input((), np.bool_ if name == "IF" else np.int32)
    x, y = builder.input((2, N)), builder.tensor((2, N))
    options = IfOptions(1, 2) if name == "IF" else StablehloCaseOptions((1, 2))
    builder.operator(name, [chosen, x], [y], options)
    builder.outputs(y)
    layer_subgraph(builder)
    layer_subgraph(builder)
    apply, params = function(builder.build())
    assert set(params) == {"cell/w", "cell/b", "cell/w#2.3", "cell/b#2.4"}
    for number in (0, 1):
        which = jnp.asarray(number == 0) if name == "IF" else jnp.int32(number)
        other = ("#2.3", "#2.4") if number else ("", "")

        def by_hand(p: Params, w: str = "cell/w" + other[0], b: str = "cell/b" + other[1]) -> Any:
            return jnp.sum(layer(X, p[w], p[b]) * FORWARD)

        assert_slopes(loss_of(apply, which, X), params, by_hand)


def test_a_branch_that_is_a_constant() -> None:
    builder = ModelBuilder()
    chosen = builder.input((), np.bool_)
    x, y = builder.input((2, N)), builder.tensor((2, N))
    builder.operator("IF", [chosen, x], [y], IfOptions(1, 2))
    builder.outputs(y)
    layer_subgraph(builder)
    g = builder.subgraph("default")
    g.input((2, N))
    g.outputs(g.constant(X, "default"))
    apply, params = function(builder.build())
    changed = {**params, "default": 2 * params["default"]}
    np.testing.assert_array_equal(apply(changed, np.False_, X)[0], 2 * X)
    slope = jax.grad(loss_of(apply, np.False_, X))(params)
    np.testing.assert_array_equal(slope["default"], FORWARD)


def calls(*callees: int) -> bytes:
    """One CALL after the other; subgraph 1 is the layer, 2 calls 1."""
    builder = ModelBuilder()
    x = builder.input((2, N))
    for callee in callees:
        y = builder.tensor((2, N))
        builder.operator("CALL", [x], [y], CallOptions(callee))
        x = y
    builder.outputs(x)
    layer_subgraph(builder)
    g = builder.subgraph("outer")
    x, y = g.input((2, N)), g.tensor((2, N))
    g.operator("CALL", [x], [y], CallOptions(1))
    g.outputs(layer_graph(g, y, "second"))
    return builder.build()


def test_two_calls_share_their_weights() -> None:
    apply, params = function(calls(1, 1))
    assert set(params) == {"cell/w", "cell/b"}

    def by_hand(p: Params) -> jax.Array:
        y = layer(X, p["cell/w"], p["cell/b"])
        return jnp.sum(layer(y, p["cell/w"], p["cell/b"]) * FORWARD)

    assert_slopes(loss_of(apply, X), params, by_hand)


def test_calls_in_calls() -> None:
    apply, params = function(calls(2, 1))
    assert set(params) == {"cell/w", "cell/b", "second/w", "second/b"}

    def by_hand(p: Params) -> jax.Array:
        y = layer(X, p["cell/w"], p["cell/b"])
        y = layer(y, p["second/w"], p["second/b"])
        return jnp.sum(layer(y, p["cell/w"], p["cell/b"]) * FORWARD)

    assert_slopes(loss_of(apply, X), params, by_hand)


@pytest.mark.parametrize("name", ["CALL", "STABLEHLO_COMPOSITE"])
def test_a_weight_that_is_an_argument(name: str) -> None:
    """The callee negates the weight: with the value known it would fold, away from its caller."""
    builder = ModelBuilder()
    x, w = builder.input((2, N)), builder.constant(W, "w")
    first, y = builder.tensor((2, N)), builder.tensor((2, N))
    options = CallOptions(1) if name == "CALL" else StableHLOCompositeOptions("c", 1)
    builder.operator(name, [x, w], [first], options)
    builder.operator(name, [first, builder.constant(2 * W, "v")], [y], options)
    builder.outputs(y)
    g = builder.subgraph("callee")
    x, w = g.input((2, N)), g.input((N, N))
    negative, y = g.tensor((N, N)), g.tensor((2, N))
    g.operator("NEG", [w], [negative])
    g.operator("BATCH_MATMUL", [x, negative], [y], BatchMatMulOptions())
    g.outputs(y)
    apply, params = function(builder.build())
    assert set(params) == {"w", "v"}

    def by_hand(p: Params) -> jax.Array:
        return jnp.sum(jnp.linalg.multi_dot([X, p["w"], p["v"]]) * FORWARD)

    assert_slopes(loss_of(apply, X), params, by_hand)


def test_what_follows_from_one_calls_shapes_is_no_weight() -> None:
    """The callee adds ones of its argument's shape: two calls, two shapes, one tensor."""
    builder = ModelBuilder()
    outputs = []
    for shape in ((2, N), (3, N)):
        x, y = builder.input(shape), builder.tensor(shape)
        builder.operator("CALL", [x], [y], CallOptions(1))
        outputs.append(y)
    builder.outputs(*outputs)
    g = builder.subgraph("callee")
    x = g.input((2, N))
    shape, ones, total, y = (
        g.tensor((2,), np.int32), *(g.tensor((2, N)) for _ in range(3))
    )  # fmt: skip
    g.operator("SHAPE", [x], [shape])
    g.operator("FILL", [shape, g.constant(np.float32(1))], [ones])
    g.operator("ADD", [x, ones], [total], AddOptions())
    g.operator("MUL", [total, g.constant(np.float32(3), "three")], [y], MulOptions())
    g.outputs(y)
    apply, params = function(builder.build())
    assert set(params) == {"three"}
    other = np.ones((3, N), np.float32)
    assert_close(apply(params, X, other), [(X + 1) * 3, (other + 1) * 3])
    assert_close(apply({"three": jnp.float32(2)}, X, other), [(X + 1) * 2, (other + 1) * 2])


def test_a_reductions_body_keeps_its_constants() -> None:
    """x, y -> max(x, y - c): XLA's reductions take no body that reads anything else."""
    builder = ModelBuilder()
    x, start, y = builder.input((3,)), builder.input(()), builder.tensor(())
    builder.operator("STABLEHLO_REDUCE", [x, start], [y], StablehloReduceOptions((0,), 1))
    builder.outputs(y)
    g = builder.subgraph("body")
    a, b, less, total = g.input(()), g.input(()), g.tensor(()), g.tensor(())
    g.operator("STABLEHLO_MINIMUM", [b, g.constant(np.float32(3), "c")], [less])
    g.operator("STABLEHLO_MAXIMUM", [a, less], [total])
    g.outputs(total)
    apply, params = function(builder.build())
    inputs = np.array([1, 2, 4], np.float32), np.zeros((), np.float32)
    assert params == {}
    assert apply(params, *inputs)[0] == 3


def test_quantized_weights_of_a_body_are_the_floats_they_stand_for() -> None:
    q = Quantization(np.array([0.02], np.float32), np.array([3], np.int64))
    integers = np.arange(-8, 8, dtype=np.int8).reshape(N, N)
    builder = ModelBuilder()
    x, y = builder.input((2, N)), builder.tensor((2, N))
    builder.operator("CALL", [x], [y], CallOptions(1))
    builder.outputs(y)
    g = builder.subgraph("callee")
    x, y = g.input((2, N)), g.tensor((2, N))
    w = g.constant(integers, "w", quantization=q)
    g.operator("FULLY_CONNECTED", [x, w, None], [y], FullyConnectedOptions())
    g.outputs(y)
    apply, params = function(builder.build())
    want = affine.dequantize(integers, q)
    np.testing.assert_array_equal(params["w"], want)
    assert_close(apply(params, X), [X @ want.T], accumulated=N)


def test_reduced_precision_in_a_body() -> None:
    apply, params = jd.load(loop(), compute_dtype="float16").function()
    known, same = function(loop())
    np.testing.assert_allclose(apply(params, X)[0], known(same, X)[0], atol=1e-2)


# ---- real models

MODELS = Path(__file__).parents[2].parent / "shared" / "models"
CALLING = (
    "zoo/gru_while.tflite",
    "zoo/if_while.tflite",
    "litert/multi_subgraphs_while.bin",
    "litert/simple_group_norm_op.tflite",
    "litert/l2_norm_composite.tflite",
    "litert/odml_sdpa_composite_mha.tflite.bin",
)


def real(name: str) -> tuple[Any, list[np.ndarray]]:
    if not (MODELS / name).exists():
        pytest.skip("needs the real models next to the project")
    details = jd.Interpreter(MODELS / name).get_input_details()
    return jd.load(MODELS / name), random_inputs(details)


def _read_floats(subgraphs: Sequence[Any]) -> set[tuple[int, int]]:
    """The float constants that an operator of some subgraph reads: subgraph and tensor."""
    return {
        (g.index, t.index)
        for g in subgraphs
        for o in g.operators
        for t in (g.tensors[i] for i in o.inputs if i >= 0)
        if t.data is not None and t.dtype == np.float32
    }


@pytest.mark.parametrize("name", CALLING)
def test_real_models(name: str) -> None:
    model, inputs = real(name)
    apply, params = model.function()
    assert_close(apply(params, *inputs), model(*inputs), accumulated=100)
    known = {place for name in params for place in model.parameters[name].tensors}
    assert _read_floats(model.graph.subgraphs) <= known


@pytest.mark.slow
def test_a_keras_layers_weights_have_gradients() -> None:
    """GRU layers of 32 steps, whose kernels are constants of two loops' bodies."""
    model, inputs = real("zoo/gru_while.tflite")
    apply, params = model.function()
    floats = {k: p for k, p in params.items() if p.dtype == np.float32}

    @jax.jit
    def loss(p: Params) -> jax.Array:
        (y,) = apply({**params, **p}, *inputs)
        return jnp.sum(y * np.arange(1, 8, dtype=np.float32)[None])

    slopes = jax.jit(jax.grad(loss))(floats)
    rng, h = np.random.default_rng(5), np.float32(1e-2)
    kernels = [k for k in floats if "gru_cell" in k]
    assert len(kernels) == 9  # both loops read the same 1 of "1 - z"
    for name in kernels:
        step = rng.normal(size=floats[name].shape).astype(np.float32)
        above, below = (float(loss({**floats, name: floats[name] + s * step})) for s in (h, -h))
        want = float(np.vdot(slopes[name], step))
        np.testing.assert_allclose(
            (above - below) / (2 * h), want, rtol=2e-2, atol=2e-3, err_msg=name
        )
        assert np.any(np.asarray(slopes[name]) != 0)
