"""Slopes of piecewise operators at kinks, as most of JAX, TensorFlow and PyTorch have them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import (
    AddOptions,
    Conv2DOptions,
    FullyConnectedOptions,
    GeluOptions,
    LeakyReluOptions,
    Options,
    Pool2DOptions,
    RNNOptions,
)
from jaxdelegate.op_lowering.records.enums import ActivationFunctionType as Act
from jaxdelegate.op_lowering.records.enums import Padding
from jaxdelegate.testing import ModelBuilder

Array = np.ndarray
Function = Callable[[Any], jax.Array]
DTYPES = [np.float32, ml_dtypes.bfloat16]
X = np.float32(
    [-100, -7, -3, np.nextafter(-3, 0), -2, -1, -0.5, -0.0, 0, 1e-30, 0.5, 1, 2, 3, 6, 7, 100]
)


def between(low: float, high: float) -> Function:
    """max and min, with the slope of `lax.clamp`."""
    return lambda x: jax.lax.clamp(jnp.asarray(low, x.dtype), x, jnp.asarray(high, x.dtype))


CLAMPS: dict[Act, Function] = {
    Act.RELU: jax.nn.relu,
    Act.RELU6: jax.nn.relu6,
    Act.RELU_N1_TO_1: between(-1, 1),
}
UNARY: dict[str, tuple[Options | None, Function]] = {
    **{act.name: (None, f) for act, f in CLAMPS.items()},
    "RELU_0_TO_1": (None, between(0, 1)),
    "HARD_SWISH": (None, jax.nn.hard_swish),
    "ELU": (None, jax.nn.elu),
    "FlexSelu": (None, jax.nn.selu),
    "GELU": (GeluOptions(approximate=True), jax.nn.gelu),
    "ABS": (None, lambda x: x * jnp.sign(x)),  # TensorFlow, PyTorch; jnp.abs has the slope 1
    # TensorFlow, PyTorch; jax.nn.leaky_relu has the slope 1
    "LEAKY_RELU": (LeakyReluOptions(alpha=0.25), lambda x: jnp.where(x > 0, x, x * 0.25)),
}


def model_of(name: str, inputs: list[Array], y: Array, options: Options | None = None) -> bytes:
    """A model of one operator: one input, and constants."""
    b = ModelBuilder()
    x = b.input(inputs[0].shape, inputs[0].dtype, name="x")
    rest = [b.constant(a) for a in inputs[1:]]
    result = b.tensor(y.shape, y.dtype)
    b.operator(name, [x, *rest], [result], options)
    b.outputs(result)
    return b.build()


def applied(name: str, inputs: list[Array], y: Array, options: Options | None = None) -> Function:
    apply, params = jd.load(model_of(name, inputs, y, options)).function()
    return lambda x: apply(params, x)[0]


def slopes(f: Function, x: Any) -> Array:
    """In reverse mode; forward mode, `jit` and `vmap` of single values give the same."""
    x = jnp.asarray(x)
    reverse = jax.grad(lambda x: f(x).astype(np.float32).sum())(x)
    forward = jax.jvp(f, (x,), (jnp.ones_like(x),))[1]
    compiled = jax.jit(jax.grad(lambda x: f(x).astype(np.float32).sum()))(x)
    batched = jax.vmap(lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),))[1])(x[None])[0]
    found, *others = (np.asarray(a, np.float32) for a in (reverse, forward, compiled, batched))
    for other in others:
        np.testing.assert_allclose(
            other, found, rtol=1e-3, atol=1e-5 if x.dtype == np.float32 else 0.01
        )
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_slopes_of_activations(name: str, dtype: type) -> None:
    options, known = UNARY[name]
    x = X.astype(dtype)
    got, want = slopes(applied(name, [x], x, options), x), slopes(known, x)
    rounding = 1e-5 if dtype == np.float32 else 0.02
    np.testing.assert_allclose(got, want, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("dtype", DTYPES)
def test_slopes_of_prelu(dtype: type) -> None:
    """PyTorch's: alpha at zero."""
    x = X.astype(dtype)
    got = slopes(applied("PRELU", [x, np.full(len(X), 0.25, dtype)], x), x)
    np.testing.assert_array_equal(got, np.where(X > 0, 1, 0.25))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("act", CLAMPS)
def test_slopes_of_fused_activations(act: Act, dtype: type) -> None:
    x = X.astype(dtype)
    add = AddOptions(fused_activation_function=act)
    got = slopes(applied("ADD", [x, np.zeros(len(X), dtype)], x, add), x)
    np.testing.assert_array_equal(got, slopes(CLAMPS[act], x))


@pytest.mark.parametrize("act", CLAMPS)
@pytest.mark.parametrize("mode", ["float_view", "auto"])
def test_slopes_of_products_with_fused_activations(act: Act, mode: Any) -> None:
    x, zeros = X.reshape(-1, 1), np.zeros(1, np.float32)
    weights = np.ones((1, 1), np.float32)
    dense = FullyConnectedOptions(fused_activation_function=act)
    model = jd.load(model_of("FULLY_CONNECTED", [x, weights, zeros], x, dense), quant_mode=mode)
    apply, params = model.function()
    want = slopes(CLAMPS[act], x)
    np.testing.assert_array_equal(slopes(lambda x: apply(params, x)[0], x), want)
    image, kernel = X.reshape(1, -1, 1, 1), np.ones((1, 1, 1, 1), np.float32)
    conv = Conv2DOptions(Padding.SAME, 1, 1, act)
    got = slopes(applied("CONV_2D", [image, kernel, zeros], image, conv), image)
    np.testing.assert_array_equal(got.reshape(-1, 1), want)


def test_the_bias_of_a_convolution_of_black_pixels() -> None:
    """Most sums are exactly zero: a quarter of the pixels would train the bias by half."""
    rng = np.random.default_rng(0)
    x = np.zeros((1, 8, 8, 1), np.float32)
    x[0, [1, 2, 5, 6], [1, 5, 3, 6], 0] = 1
    kernel = rng.standard_normal((4, 3, 3, 1)).astype(np.float32)
    conv = Conv2DOptions(Padding.SAME, 1, 1, Act.RELU)
    b = ModelBuilder()
    images = b.input(x.shape, name="x")
    operands = [b.constant(kernel, name="kernel"), b.constant(np.zeros(4, np.float32), name="bias")]
    y = b.tensor((1, 8, 8, 4))
    b.operator("CONV_2D", [images, *operands], [y], conv)
    b.outputs(y)
    apply, params = jd.load(b.build()).function()
    got = jax.grad(lambda p: apply(p, x)[0].sum())(params)

    def known(bias: jax.Array) -> jax.Array:
        dims = ("NHWC", "OHWI", "NHWC")
        sums = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=dims)
        return jax.nn.relu(sums + bias.reshape(1, 1, 1, 4)).sum()

    np.testing.assert_array_equal(got["bias"], jax.grad(known)(jnp.zeros(4)))


def test_second_derivatives() -> None:
    x = X.reshape(1, -1)
    for name in ("RELU", "RELU6", "HARD_SWISH", "ELU"):
        f, known = applied(name, [x], x), UNARY[name][1]
        got, want = (slopes(jax.grad(lambda x, g=g: g(x).sum()), x) for g in (f, known))
        np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=name)


def test_an_exported_function_has_these_slopes() -> None:
    f = applied("RELU6", [X], X)
    exported = jax.export.export(jax.jit(f))(jnp.asarray(X))
    loaded = jax.export.deserialize(exported.serialize(vjp_order=1))
    got = jax.grad(lambda x: loaded.call(x).sum())(jnp.asarray(X))
    np.testing.assert_array_equal(got, slopes(jax.nn.relu6, X))


@pytest.mark.parametrize("name", ["MAXIMUM", "MINIMUM"])
def test_equal_operands_of_a_maximum_share_the_slope(name: str) -> None:
    """JAX and PyTorch halve it; TensorFlow gives it to the first."""
    zeros = np.zeros(len(X), np.float32)
    got = slopes(applied(name, [X, zeros], X), X)
    known = getattr(jnp, name.lower())
    np.testing.assert_array_equal(got, slopes(lambda x: known(x, zeros), X))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mask_of_the_lowest_number_keeps_the_slope(dtype: type) -> None:
    """ADD clamps to finite numbers, which other frameworks do not."""
    x = np.asarray([-1, 0, 1]).astype(dtype)
    mask = np.full(3, ml_dtypes.finfo(dtype).min, dtype)
    np.testing.assert_array_equal(slopes(applied("ADD", [x, mask], x, AddOptions()), x), 1)


@pytest.mark.parametrize(
    ("size", "stride", "padding"),
    [
        (2, 2, Padding.SAME),
        (3, 3, Padding.VALID),
        (3, 2, Padding.SAME),
        (2, 1, Padding.VALID),
        (6, 6, Padding.VALID),
    ],
)
@pytest.mark.parametrize("values", ["equal", "few", "diagonal"])
def test_the_first_of_equal_values_has_the_slope_of_a_pool(
    size: int, stride: int, padding: Padding, values: str
) -> None:
    x = {
        "equal": np.zeros((1, 6, 6, 2), np.float32),
        "few": np.random.default_rng(0).integers(0, 3, (1, 6, 6, 2)).astype(np.float32),
        "diagonal": np.broadcast_to(np.eye(6, dtype=np.float32)[::-1, :, None], (1, 6, 6, 2)),
    }[values]
    window = (1, size, size, 1), (1, stride, stride, 1), padding.name
    y = np.asarray(jax.lax.reduce_window(x, -np.inf, jax.lax.max, *window))
    options = Pool2DOptions(padding, stride, stride, size, size)
    pool = applied("MAX_POOL_2D", [x], y, options)

    own = np.arange(1, y.size + 1, dtype=np.float32).reshape(y.shape)  # each window's slope

    def weighted(f: Function) -> Array:
        return np.asarray(jax.grad(lambda x: (f(x) * own).sum())(x))

    known = weighted(lambda x: jax.lax.reduce_window(x, -np.inf, jax.lax.max, *window))
    np.testing.assert_array_equal(weighted(pool), known)


def test_slopes_of_clamps_of_tensors() -> None:
    """STABLEHLO_CLAMP has JAX's, in which it was written."""
    ends = np.zeros(len(X), np.float32), np.full(len(X), 6, np.float32)
    b = ModelBuilder()
    x, y = b.input(X.shape, name="x"), b.tensor(X.shape)
    b.operator("STABLEHLO_CLAMP", [b.constant(ends[0]), x, b.constant(ends[1])], [y])
    b.outputs(y)
    apply, params = jd.load(b.build()).function()
    got = slopes(lambda x: apply(params, x)[0], X)
    np.testing.assert_array_equal(got, slopes(lambda x: jax.lax.clamp(ends[0], x, ends[1]), X))


def test_a_clamp_to_bounds_in_the_wrong_order_is_the_upper_one() -> None:
    b = ModelBuilder()
    inputs = [b.input((3,), name=name) for name in ("low", "x", "high")]
    y = b.tensor((3,))
    b.operator("STABLEHLO_CLAMP", inputs, [y])
    b.outputs(y)
    apply, params = jd.load(b.build()).function()
    low, high, x = np.full(3, 3, np.float32), np.full(3, 1, np.float32), np.float32([0, 2, 4])
    found = jax.grad(lambda *given: apply(params, *given)[0].sum(), (0, 1, 2))(low, x, high)
    np.testing.assert_array_equal(found, [[0, 0, 0], [0, 0, 0], [1, 1, 1]])


@pytest.mark.parametrize("act", CLAMPS)
def test_slopes_of_activations_of_cells(act: Act) -> None:
    n = len(X)
    inputs = [X[:, None], np.ones((1, 1), np.float32), np.zeros((1, 1), np.float32)]
    b = ModelBuilder()
    x, (w, recurrent) = b.input((n, 1), name="x"), map(b.constant, inputs[1:])
    bias, hidden = b.constant(np.zeros(1, np.float32)), b.tensor((n, 1), is_variable=True)
    y = b.tensor((n, 1))
    options = RNNOptions(fused_activation_function=act)
    b.operator("RNN", [x, w, recurrent, bias, hidden], [y], options)
    b.outputs(y)
    apply, params = jd.load(b.build()).function()
    got = jax.grad(lambda x: apply(params, x)[0].sum())(inputs[0])
    np.testing.assert_array_equal(got[:, 0], slopes(CLAMPS[act], X))


def test_clips_of_a_cell_keep_the_slope_at_their_bounds() -> None:
    """Those of tf.clip_by_value and torch.clamp are 1 there, too."""
    from jaxdelegate.op_lowering.recurrent.lstm_cell import _clipped

    x = jnp.asarray([-2, -1, 0, 1, 2], np.float32)
    np.testing.assert_array_equal(slopes(lambda x: _clipped(x, 1), x), [0, 1, 1, 1, 0])
