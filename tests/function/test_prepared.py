"""`function(weights="prepared")`: for inference, with a delegate's weights and kernels."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.errors import GradientError, OptionError, TensorError
from jaxdelegate.op_lowering.options import FullyConnectedOptions
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import run_once
from tests.support.decoders import VOCABULARY, WIDTH, quantized_decoder
from tests.support.quantized import scaled

IDS = np.int32([7, 0, 399])
MODEL = quantized_decoder(len(IDS))


def delegated(model: bytes, *arrays: np.ndarray, **options: Any) -> list[np.ndarray]:
    delegate = jd.JaxDelegate(platform="cpu", require_full_delegation=True, **options)
    interpreter = jd.Interpreter(model_content=model, experimental_delegates=[delegate])
    return run_once(interpreter, arrays)


@pytest.mark.parametrize("mode", ["auto", "integer", "float_view"])
def test_equals_the_delegate(mode: Any) -> None:
    apply, params = jd.load(MODEL, quant_mode=mode).function(weights="prepared", platform="cpu")
    (got,) = jax.jit(apply)(params, IDS)
    (want,) = delegated(MODEL, IDS, quant_mode=mode)
    if mode == "float_view":  # a delegate sets options of XLA
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(got, want)


def test_params_are_as_small_as_the_file() -> None:
    model = jd.load(MODEL)
    _, prepared = model.function(weights="prepared")
    table = VOCABULARY * WIDTH  # its readers share it
    size = sum(leaf.nbytes for leaf in prepared.values())
    assert table < size < len(MODEL) + 40_000  # with sums of rows
    assert size < sum(leaf.nbytes for leaf in model.params.values()) / 4


def test_a_loop_of_steps_is_one_program() -> None:
    """Sampling on the device: the weights are arguments of the program."""
    apply, params = jd.load(quantized_decoder(1)).function(weights="prepared")

    def generate(params: Any, first: jax.Array) -> jax.Array:
        def step(token: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            (logits,) = apply(params, token)
            return jnp.argmax(logits, -1).astype(np.int32), token

        return jax.lax.scan(step, first, None, 5)[1]

    tokens = jax.jit(generate)(params, np.int32([3])).ravel().tolist()
    want = [3]
    for _ in range(4):
        (logits,) = delegated(quantized_decoder(1), np.int32(want[-1:]))
        want.append(int(logits.argmax()))
    assert tokens == want


def test_a_batch_is_more_rows() -> None:
    apply, params = jd.load(quantized_decoder(1)).function(weights="prepared", platform="cpu")
    batch = jax.vmap(lambda ids: apply(params, ids)[0])
    np.testing.assert_array_equal(batch(IDS[:, None])[:, 0], delegated(MODEL, IDS)[0])
    text = str(jax.make_jaxpr(batch)(IDS[:, None]))
    assert text.count("ffi_call[") == 4
    assert "scan[" not in text


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_a_platform_that_is_absent_is_exported(platform: str) -> None:
    """With weights as small as in the file, which are on the CPU."""
    apply, params = jd.load(MODEL).function(weights="prepared", platform=platform)
    assert {d.platform for leaf in params.values() for d in leaf.devices()} == {"cpu"}
    assert np.dtype(np.float32) not in {leaf.dtype for leaf in params.values() if leaf.size > 4096}
    exported = jax.export.export(jax.jit(apply), platforms=[platform])(params, IDS)
    again = jax.export.deserialize(exported.serialize())
    assert again.platforms == (platform,)
    assert "custom_call" not in again.mlir_module()


def test_other_shapes() -> None:
    """Weights in layouts that depend on shapes are constants of the program."""
    apply, params = jd.load(MODEL).function(weights="prepared", platform="cpu")
    more = np.int32([1, 2, 3, 4, 5])
    want = delegated(quantized_decoder(5), more)[0]
    np.testing.assert_array_equal(jax.jit(apply)(params, more)[0], want)


def two_signatures() -> bytes:
    model = ModelBuilder()
    w = np.random.default_rng(0).integers(-127, 127, (300, 300)).astype(np.int8)
    for rows, name in ((1, "decode"), (4, "prefill")):
        part = model if rows == 1 else model.subgraph(name)
        x, weights = (
            part.input((rows, 300)),
            part.constant(w, quantization=scaled(np.full(300, 0.01))),
        )
        y = part.tensor((rows, 300))
        part.operator("FULLY_CONNECTED", [x, weights, None], [y], FullyConnectedOptions())
        part.outputs(y)
        model.signature(name, {"x": x}, {"y": y}, rows > 1)
    return model.build()


def test_signatures_share_their_weights() -> None:
    model = jd.load(two_signatures())
    first, second = (model.function(s, weights="prepared")[1] for s in ("decode", "prefill"))
    assert {id(leaf) for leaf in first.values()} == {id(leaf) for leaf in second.values()}


def test_donated_weights_are_created_again() -> None:
    model = jd.load(MODEL)
    apply, params = model.function(weights="prepared")
    for leaf in params.values():
        leaf.delete()
    with pytest.raises(TensorError, match=r"apply: params.*donated"):
        apply(params, IDS)
    again = model.function(weights="prepared")[1]
    assert apply(again, IDS)[0].shape == (3, VOCABULARY)
    assert delegated(MODEL, IDS)  # no program used them


def test_arrays_of_other_shapes_or_dtypes() -> None:
    """The kernels would read beyond their ends."""
    apply, params = jd.load(MODEL).function(weights="prepared")
    name, leaf = next(item for item in params.items() if item[1].ndim == 2)
    for wrong in (leaf[:1], leaf.astype(np.int32)):
        with pytest.raises(TensorError, match=r"expected .* \[\d+, \d+\], got"):
            apply({**params, name: wrong}, IDS)
    with pytest.raises(TensorError, match=r"params has no .*weights='prepared'"):
        apply({}, IDS)


def test_a_model_without_operators() -> None:
    builder = ModelBuilder()
    x = builder.input((2,))
    builder.outputs(x, builder.constant(np.float32([3, 4])))
    apply, params = jd.load(builder.build()).function(weights="prepared")
    got = jax.jit(apply)(params, np.float32([1, 2]))
    np.testing.assert_array_equal(got, [[1, 2], [3, 4]])


def test_it_has_no_gradients() -> None:
    apply, params = jd.load(two_signatures()).function("decode", weights="prepared")
    x = np.ones((1, 300), np.float32)
    for argument in (0, 1):
        gradient = jax.grad(lambda p, x: apply(p, x)[0].sum(), argument, allow_int=True)
        with pytest.raises(GradientError, match="weights='prepared' is for inference"):
            gradient(params, x)


def test_what_it_does_not_combine_with() -> None:
    model = jd.load(MODEL)
    with pytest.raises(OptionError, match="expected ranges='kept'"):
        model.function(weights="prepared", ranges="learned")
    with pytest.raises(OptionError, match=r"model\.save\(path\), then load"):
        model.with_params(model.params).function(weights="prepared")
    _, params = model.function(weights="prepared")
    with pytest.raises(TensorError, match="params"):
        model.with_params(params)


def test_an_integer_network_with_floats_outside() -> None:
    builder = ModelBuilder()
    x = builder.input((2, 300), np.int8, quantization=scaled(0.05, 3))
    w = np.random.default_rng(0).integers(-127, 127, (300, 300)).astype(np.int8)
    weights = builder.constant(w, quantization=scaled(0.01))
    y = builder.tensor((2, 300), np.int8, quantization=scaled(0.5, -9))
    builder.operator("FULLY_CONNECTED", [x, weights, None], [y], FullyConnectedOptions())
    builder.outputs(y)
    reals = np.random.default_rng(1).normal(size=(2, 300)).astype(np.float32)
    apply, params = jd.load(builder.build()).function(io="float", weights="prepared")
    (got,) = jax.jit(apply)(params, reals)
    q = np.clip(np.round(reals / np.float32(0.05)) + 3, -128, 127).astype(np.int8)
    want = (delegated(builder.build(), q)[0].astype(np.float32) + 9) * np.float32(0.5)
    np.testing.assert_allclose(got, want, atol=0.5)
    assert np.mean(np.abs(got - want) > 1e-6) < 0.01
