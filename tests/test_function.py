"""The model as a pure JAX function."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import FullyConnectedOptions, LSTMOptions
from jaxdelegate.testing import ModelBuilder, assert_close

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
    with pytest.raises(jd.TensorError, match=r"the model has 1 inputs \('x'\), got 2"):
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


def test_a_model_shows_its_name_inputs_and_outputs(tmp_path: Path) -> None:
    path = tmp_path / "dense.tflite"
    path.write_bytes(dense())
    assert repr(jd.load(path)).startswith("<jaxdelegate.Model 'dense.tflite': x float32 [2, 4] -> ")
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
