"""The model as a pure JAX function."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import (
    CallOnceOptions,
    FullyConnectedOptions,
    LSTMOptions,
    RandomOptions,
    VarHandleOptions,
)
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import ModelBuilder, assert_close
from jaxdelegate.testing.running import run_once
from sample_tasks.tasks import TASKS

W = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
B = np.array([0.5, -1, 2], np.float32)


def dense() -> bytes:
    """y = x W^T + b, with a signature; z = relu(y)."""
    builder = ModelBuilder()
    x = builder.input((2, 4), np.float32, "x")
    w, b = builder.constant(W, "w"), builder.constant(B, "b")
    y, z = builder.tensor((2, 3), name="y"), builder.tensor((2, 3), name="z")
    builder.operator("FULLY_CONNECTED", [x, w, b], [y], FullyConnectedOptions())
    builder.operator("RELU", [y], [z])
    builder.outputs(y, z)
    builder.signature("serve", {"features": x}, {"scores": z})
    return builder.build()


@pytest.fixture
def x(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(2, 4)).astype(np.float32)


def test_positional_inputs_give_a_tuple(x: np.ndarray) -> None:
    y, z = jd.load(dense())(x)
    assert isinstance(y, jax.Array)
    assert_close([y, z], [x @ W.T + B, np.maximum(x @ W.T + B, 0)], accumulated=4)


def test_named_inputs_give_a_dictionary(x: np.ndarray) -> None:
    model = jd.load(dense())
    assert_close([model(features=x)["scores"]], [np.maximum(x @ W.T + B, 0)], accumulated=4)
    assert set(model(x=x)) == {"y", "z"}


def test_inputs_and_outputs_are_those_of_the_main_subgraph() -> None:
    model = jd.load(dense())
    (x,), (_, z) = model.inputs.values(), model.outputs.values()
    assert (x.name, x.shape, x.dtype, x.quantization) == ("x", (2, 4), np.float32, None)
    assert (list(model.inputs), list(model.outputs)) == (["x"], ["y", "z"])
    assert str(z) == str(next(iter(model.signatures["serve"].outputs.values())))


def test_signatures_say_what_goes_in_and_out() -> None:
    signature = jd.load(dense()).signatures["serve"]
    assert list(signature.inputs) == ["features"]
    info = signature.inputs["features"]
    assert (info.name, info.shape, info.dtype, info.quantization) == ("x", (2, 4), np.float32, None)
    assert signature.outputs["scores"].name == "z"


def test_params_are_the_weights_in_the_files_layout() -> None:
    _, params = jd.load(dense()).function()
    assert set(params) == {"w", "b"}
    np.testing.assert_array_equal(params["w"], W)


@pytest.mark.parametrize("x64", [False, True])
def test_transformations(x: np.ndarray, x64: bool) -> None:
    with jax.enable_x64(x64):
        apply, params = jd.load(dense()).function()
        want = x @ W.T + B
        assert_close([jax.jit(apply)(params, x)[0]], [want], accumulated=4)
        batched = jax.vmap(apply, (None, 0))(params, np.stack([x, 2 * x]))
        assert_close([batched[0][1]], [2 * x @ W.T + B], accumulated=4)
        gradient = jax.grad(lambda p: apply(p, x)[0].sum())(params)
        assert_close(
            [gradient["b"], gradient["w"]],
            [np.full(3, 2, np.float32), np.tile(x.sum(0), (3, 1))],
            accumulated=4,
        )
        doubled = {**params, "w": 2 * params["w"]}
        assert_close([apply(doubled, x)[0]], [2 * x @ W.T + B], accumulated=4)


def test_a_model_inside_of_transformations(x: np.ndarray) -> None:
    model, want = jd.load(dense()), x @ W.T + B
    assert_close([jax.jit(lambda a: model(a)[0])(x)], [want], accumulated=4)
    assert_close([jax.vmap(lambda a: model(a)[0])(np.stack([x, x]))[1]], [want], accumulated=4)
    gradient = jax.grad(lambda a: model(a)[0].sum())(jnp.asarray(x))
    assert_close([gradient], [np.tile(W.sum(0), (len(x), 1))], accumulated=4)


def test_a_model_runs_where_its_inputs_lie(x: np.ndarray) -> None:
    device = jax.devices()[-1]
    (y, *_) = jd.load(dense())(jax.device_put(x, device))
    assert y.devices() == {device}


def test_an_output_that_is_an_input() -> None:
    builder = ModelBuilder()
    x = builder.input((2,))
    builder.outputs(x)
    (y,) = jd.load(builder.build())(np.float32([1, 2]))
    assert isinstance(y, jax.Array)
    assert y.tolist() == [1, 2]


@pytest.mark.parametrize("has_operator", [False, True])
def test_an_output_that_is_a_constant(has_operator: bool) -> None:
    builder = ModelBuilder()
    x, k = builder.input((3,), np.float32, "x"), builder.constant(B, "k")
    y = builder.tensor((3,), name="y")
    if has_operator:
        builder.operator("RELU", [x], [y])
    builder.outputs(k, *([y] if has_operator else []))
    model = jd.load(builder.build())
    given = np.float32([-1, 0, 1])
    apply, params = model.function()
    for found in (model(given), apply(params, given)):
        np.testing.assert_array_equal(found[0], B)
        assert not has_operator or found[1].tolist() == [0, 0, 1]


def test_other_batch_sizes(x: np.ndarray) -> None:
    model = jd.load(dense())
    assert model(np.concatenate([x, x, x]))[0].shape == (6, 3)


def test_a_signature_as_a_function(x: np.ndarray) -> None:
    apply, params = jd.load(dense()).function("serve")
    assert_close(apply(params, x), [np.maximum(x @ W.T + B, 0)], accumulated=4)
    with pytest.raises(
        ValueError, match=r"signature 'sever' is not in the model; it has \['serve'\]"
    ):
        jd.load(dense()).function("sever")


def test_wrong_inputs_are_refused(x: np.ndarray) -> None:
    model = jd.load(dense())
    with pytest.raises(jd.TensorError, match=r"the model has 1 input \('x'\), got 2"):
        model(x, x)
    with pytest.raises(
        jd.TensorError, match=r"input 0 'x' wants float32 \[2, 4\], got float64 \[2, 4\]"
    ):
        model(x.astype(np.float64))
    with pytest.raises(
        jd.TensorError, match=r"inputs \['picture'\] fit no signature; the model has \['features'\]"
    ):
        model(picture=x)
    with pytest.raises(jd.TensorError, match="not with both"):
        model(x, features=x)


def test_an_operator_that_xla_cannot_run() -> None:
    builder = ModelBuilder()
    x, y = builder.input((2,)), builder.tensor((2,))
    builder.operator("NoSuchOperator", [x], [y])
    builder.outputs(y)
    with pytest.raises(
        jd.DelegationError, match="#0 NoSuchOperator: custom operator without an XLA lowering"
    ):
        jd.load(builder.build())(np.zeros(2, np.float32))


@pytest.mark.parametrize("x64", [False, True])
def test_64_bit_inputs(x64: bool) -> None:
    builder = ModelBuilder()
    x, y = builder.input((2,), np.int64), builder.tensor((2,), np.int64)
    builder.operator("ADD", [x, x], [y])
    builder.outputs(y)
    with jax.enable_x64(x64):
        (got,) = jd.load(builder.build())(np.array([2**40, 1]))
        assert np.asarray(got).tolist() == [2**41, 2]
        if not x64:
            (got,) = jd.load(builder.build())(jnp.array([3, 4]))
            assert np.asarray(got).tolist() == [6, 8]


def test_the_users_configuration_is_left_alone(x: np.ndarray) -> None:
    before = {
        name: getattr(jax.config, name)
        for name in ("jax_enable_x64", "jax_numpy_dtype_promotion", "jax_default_matmul_precision")
    }
    jd.load(dense())(x)
    assert before == {name: getattr(jax.config, name) for name in before}


def lstm(n_cell: int = 3, n_input: int = 2) -> bytes:
    """One full LSTM step with state in variable tensors."""
    rng = np.random.default_rng(5)
    builder = ModelBuilder()
    x = builder.input((1, n_input), np.float32, "x")
    weights = [
        builder.constant(rng.normal(size=(n_cell, n)).astype(np.float32))
        for n in [n_input] * 4 + [n_cell] * 4
    ]
    biases = [builder.constant(rng.normal(size=n_cell).astype(np.float32)) for _ in range(4)]
    h = builder.tensor((1, n_cell), name="h", is_variable=True)
    c = builder.tensor((1, n_cell), name="c", is_variable=True)
    y = builder.tensor((1, n_cell), name="y")
    from jaxdelegate.op_lowering.options import ActivationFunctionType

    options = LSTMOptions(fused_activation_function=ActivationFunctionType.TANH)
    inputs = [x, *weights, None, None, None, *biases, None, None, h, c]
    builder.operator("LSTM", inputs, [y], options)
    builder.outputs(y)
    return builder.build()


@pytest.mark.parametrize("delegated", [False, True])
def test_state_lives_between_invokes_and_is_reset(delegated: bool) -> None:
    delegates = [jd.JaxDelegate(require_full_delegation=True)] if delegated else None
    interpreter = jd.Interpreter(model_content=lstm(), experimental_delegates=delegates)
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, np.array([[1, -1]], np.float32))
    out = interpreter.get_output_details()[0]["index"]
    seen = []
    for _ in range(3):
        interpreter.invoke()
        seen.append(interpreter.get_tensor(out))
    assert np.abs(seen[0] - seen[1]).max() > 1e-3
    interpreter.reset_all_variables()
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(out), seen[0])

    model = jd.load(lstm())
    apply, params = model.function()
    state = model.initial_state()
    assert set(state) == {"h", "c"}
    for want in seen:
        (y,), state = apply(params, np.array([[1, -1]], np.float32), state=state)
        assert_close([y], [want], accumulated=6)
    assert_close(model(np.array([[1, -1]], np.float32)), [seen[0]], accumulated=6)


def test_gradients_by_state() -> None:
    model, x = jd.load(lstm()), np.array([[1, -1]], np.float32)
    apply, params = model.function()
    state = {name: 0.1 + leaf for name, leaf in model.initial_state().items()}

    def total(state: Any) -> jax.Array:
        (y,), state = apply(params, x, state=state)
        (z,), _ = apply(params, x, state=state)
        return y.sum() + 2 * z.sum()

    slopes = jax.grad(total)(state)
    for name, slope in slopes.items():
        for i in range(slope.size):
            step = np.zeros(slope.shape, np.float32)
            step.flat[i] = 1e-2
            ends = [float(total({**state, name: state[name] + h * step})) for h in (1, -1)]
            assert abs((ends[0] - ends[1]) / 2e-2 - slope.reshape(-1)[i]) < 1e-3
        assert np.abs(slope).max() > 1e-2


def test_a_model_shows_its_name_inputs_and_outputs(tmp_path: Path) -> None:
    path = tmp_path / "dense.tflite"
    path.write_bytes(dense())
    shown = "'serve': features float32 [2, 4] -> scores float32 [2, 3]"
    assert repr(jd.load(path)) == f"<jaxdelegate.Model 'dense.tflite': {shown}>"
    assert repr(jd.load(counter())).endswith(": x float32 [2] -> y float32 [2]>")
    interpreter = jd.Interpreter(path, experimental_delegates=[jd.JaxDelegate(platform="cpu")])
    assert repr(interpreter) == (
        "<jaxdelegate.Interpreter of 'dense.tflite' with JaxDelegate(platform='cpu')>"
    )
    assert repr(interpreter.get_signature_runner()).startswith(
        "<SignatureRunner 'serve': features -> "
    )


def test_named_inputs_may_be_a_dictionary() -> None:
    x = np.ones((2, 4), np.float32)
    (got,) = jd.load(dense())({"features": x}).values()
    (want,) = jd.load(dense())(features=x).values()
    np.testing.assert_array_equal(got, want)


def test_lists_take_the_inputs_dtype() -> None:
    model = jd.load(dense())
    x = [[1, 2, 3, 4.5], [0, 0, 0, 1]]
    assert_close(model(x), model(np.array(x, np.float32)))
    assert_close(model([[1] * 4] * 2), model(np.ones((2, 4), np.float32)))
    with pytest.raises(jd.TensorError, match=r"input 0 'x' wants float32 \[2, 4\], got float64"):
        model(np.array(x))  # an array says what it is


def test_a_missing_parameter_or_state_is_named(x: np.ndarray) -> None:
    apply, params = jd.load(dense()).function()
    with pytest.raises(jd.TensorError, match=r"params has no 'w', and lacks 1 of 2 names; model.f"):
        apply({"b": params["b"]}, x)
    with pytest.raises(
        jd.TensorError, match=r"params to be a dictionary by tensor name, as model\.function\(\)"
    ):
        apply(x)
    apply, params = jd.load(lstm()).function()
    with pytest.raises(jd.TensorError, match="state has no 'h', and lacks 1 of 2 names"):
        apply(params, np.ones((1, 2), np.float32), state={"c": np.zeros((1, 3), np.float32)})


def test_apply_is_one_compiled_program_wherever_it_is_called(x: np.ndarray) -> None:
    apply, params = jd.load(dense()).function()
    jaxpr = jax.make_jaxpr(apply)(params, x)
    assert [equation.primitive.name for equation in jaxpr.eqns] == ["jit"]


# ---- states that are no variable tensors


def random_numbers() -> bytes:
    builder = ModelBuilder()
    shape = builder.constant(np.array([5], np.int32))
    x, noise, y = builder.input((5,)), builder.tensor((5,)), builder.tensor((5,))
    builder.operator("RANDOM_UNIFORM", [shape], [noise], RandomOptions(seed=3, seed2=7))
    builder.operator("ADD", [x, noise], [y])
    builder.outputs(y)
    return builder.build()


def counter() -> bytes:
    """y = variable = variable + x; CALL_ONCE initializes the variable to [10, 20]."""
    builder = ModelBuilder()
    x = builder.input((2,), np.float32, "x")
    body = builder.subgraph("initialize")
    handle = body.tensor((1,), np.dtype("V4"))
    body.operator("VAR_HANDLE", [], [handle], VarHandleOptions(shared_name="v"))
    body.operator("ASSIGN_VARIABLE", [handle, body.constant(np.array([10, 20], np.float32))], [])
    body.outputs()
    handle, value = builder.tensor((1,), np.dtype("V4")), builder.tensor((2,), name="value")
    y = builder.tensor((2,), name="y")
    builder.operator("CALL_ONCE", [], [], CallOnceOptions(init_subgraph_index=1))
    builder.operator("VAR_HANDLE", [], [handle], VarHandleOptions(shared_name="v"))
    builder.operator("READ_VARIABLE", [handle], [value])
    builder.operator("ADD", [value, x], [y])
    builder.operator("ASSIGN_VARIABLE", [handle, y], [])
    builder.outputs(y)
    return builder.build()


@pytest.mark.parametrize("make", [random_numbers, counter])
def test_states_go_on_as_in_the_interpreter(make: Callable[[], bytes]) -> None:
    interpreter, model = jd.Interpreter(model_content=make()), jd.load(make())
    interpreter.allocate_tensors()
    (given,), (out,) = interpreter.get_input_details(), interpreter.get_output_details()
    apply, params = model.function()
    state, x = model.initial_state(), np.ones(given["shape"], np.float32)
    seen = []
    for _ in range(3):
        interpreter.set_tensor(given["index"], x)
        interpreter.invoke()
        (y,), state = apply(params, x, state=state)
        assert_close([y], [interpreter.get_tensor(out["index"])])
        seen.append(np.asarray(y))
    assert not np.array_equal(seen[0], seen[1])
    for _ in range(2):
        np.testing.assert_array_equal(model(x)[0], seen[0])  # from the initial state
    np.testing.assert_array_equal(apply(params, x)[0], seen[0])


def test_states_under_scan() -> None:
    model = jd.load(counter())
    apply, params = model.function()

    def step(state: Any, x: jax.Array) -> Any:
        (y,), state = apply(params, x, state=state)
        return state, y

    _, y = jax.lax.scan(step, model.initial_state(), jnp.ones((4, 2)))
    np.testing.assert_array_equal(y, [[10 + i, 20 + i] for i in range(1, 5)])


# ---- gradients of quantized models


def test_rounding_is_trained_through_straight() -> None:
    """A network with int8 activations everywhere: rounding has the slope of what it rounds."""
    task = TASKS["classification"]
    apply, params = jd.load(task.network(quantized=True)).function(platform="cpu")
    pictures = [task.example(seed) for seed in range(8)]
    images = np.concatenate([task.inputs(picture.image) for picture in pictures])
    wrong = np.array([2] * 8)  # a network that is right has nothing to learn

    @jax.jit
    def step(params: Any) -> Any:
        def loss(p: Any) -> jax.Array:
            return -jnp.log(apply(p, images)[0][np.arange(8), wrong] + 1e-6).mean()

        value, slopes = jax.value_and_grad(loss)(params)
        return value, slopes, jax.tree.map(lambda p, g: p - 0.01 * g, params, slopes)

    first, slopes, params = step(params)
    assert np.mean([bool(np.any(np.asarray(g) != 0)) for g in slopes.values()]) >= 0.9
    for _ in range(20):
        last, _, params = step(params)
    assert last < 0.9 * first


def test_what_leaves_the_grid_has_no_slope() -> None:
    builder = ModelBuilder()
    q = Quantization(np.array([0.5], np.float32), np.array([0], np.int64))
    x, y = builder.input((4,), np.float32), builder.tensor((4,), np.int8, quantization=q)
    z = builder.tensor((4,))
    builder.operator("QUANTIZE", [x], [y])
    builder.operator("DEQUANTIZE", [y], [z])
    builder.outputs(z)
    apply, params = jd.load(builder.build()).function()
    x = np.array([-100, -3.3, 0.1, 100], np.float32)
    (values,), pull = jax.vjp(lambda x: apply(params, x), x)
    np.testing.assert_array_equal(values, [-64, -3.5, 0, 63.5])
    np.testing.assert_array_equal(pull((np.full(4, 2, np.float32),))[0], [0, 2, 2, 0])


# ---- options


@pytest.mark.parametrize(
    "options",
    [{}, {"quant_mode": "integer"}],
    ids=str,
)
def test_options_mean_what_they_mean_to_a_delegate(options: dict[str, Any]) -> None:
    task = TASKS["classification"]
    x, content = task.inputs(task.picture(5)), task.network(quantized=True)
    delegate = jd.JaxDelegate(options, require_full_delegation=True)
    interpreter = jd.Interpreter(model_content=content, experimental_delegates=[delegate])
    (want, *_) = run_once(interpreter, [x])
    model = jd.load(content, options)
    np.testing.assert_array_equal(model(x)[0], want)
    apply, params = model.function()
    assert_close([apply(params, x)[0]], [want], accumulated=1000)


def test_integer_mode_as_a_function_has_the_reference_kernels_bits() -> None:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    task = TASKS["classification"]
    x, content = task.inputs(task.picture(5)), task.network(quantized=True)
    reference = Interpreter(
        model_content=content, experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    apply, params = jd.load(content, quant_mode="integer").function()
    np.testing.assert_array_equal(apply(params, x)[0], run_once(reference, [x])[0])


def test_options_that_do_not_apply_are_refused() -> None:
    with pytest.raises(jd.OptionError, match="load: min_gain is an option for delegates in inter"):
        jd.load(dense(), min_gain=0)
    with pytest.raises(jd.OptionError, match="unknown option 'dtype'; did you mean: compute_dtype"):
        jd.load(dense(), dtype="float16")
    with pytest.raises(jd.OptionError, match="platform: 'tpu' is not there"):
        jd.load(dense(), platform="tpu").function()


def test_reduced_precision_is_that_of_the_delegate(x: np.ndarray) -> None:
    """float32 on a CPU; `apply` is lowered with the options' policy."""
    model = jd.load(dense(), compute_dtype="auto")
    assert_close(model(x), jd.load(dense())(x), accumulated=4)
    assert model.options.compute_dtype == "auto"


def test_64_bit_values_pass_through_a_model_without_operators() -> None:
    builder = ModelBuilder()
    builder.outputs(builder.input((1,), np.int64, "x"))
    (y,) = jd.load(builder.build())(np.array([2**40]))
    np.testing.assert_array_equal(np.asarray(y), [2**40])
