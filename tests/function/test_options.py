"""Effects of the options of `load`, and equal results of a delegate with the same options."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import FullyConnectedOptions
from jaxdelegate.testing import ModelBuilder, assert_close
from jaxdelegate.testing.running import run_once
from tests.function.graphs import classifier, integers
from tests.function.test_function import lstm
from tests.support.quantized import scaled


def delegated(content: bytes, x: np.ndarray, options: dict[str, Any]) -> list[np.ndarray]:
    """The outputs of an interpreter with a delegate that has these options."""
    delegates = [jd.JaxDelegate(options, require_full_delegation=True)]
    return run_once(jd.Interpreter(model_content=content, experimental_delegates=delegates), [x])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"quant_mode": "integer"},
        {"quant_mode": "float_view"},
        {"compute_dtype": "float32"},
        {"compute_dtype": "bfloat16"},
        {"rewrites": "none"},
        {"native_kernels": False},
        {"is_precision_loss_allowed": True},
    ],
    ids=str,
)
def test_a_delegate_with_these_options_answers_the_same(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    for content, shape in ((classifier(), (1, 3, 3, 2)), (integers(), (1, 4))):
        model = jd.load(content, options)
        apply, params = model.function()
        x = (20 * rng.normal(size=shape)).astype(apply.inputs()[0].dtype)
        want = delegated(content, x, options)
        np.testing.assert_array_equal(model(x)[0], want[0])  # the same program
        assert_close(apply(params, x), want, accumulated=36)


def int16_sums() -> bytes:
    """int16: y = x W^T, [64, 256] -> [64, 32]; float32 rounds some of the sums to another step."""
    builder, rng = ModelBuilder(), np.random.default_rng(1)
    x = builder.input((64, 256), np.int16, "x", quantization=scaled(1 / 32768))
    w = builder.constant(rng.integers(-127, 128, (32, 256), np.int8), quantization=scaled(1 / 127))
    y = builder.tensor((64, 32), np.int16, quantization=scaled(1 / 1024))
    builder.operator("FULLY_CONNECTED", [x, w, None], [y], FullyConnectedOptions(), version=7)
    builder.outputs(y)
    return builder.build()


def test_auto_is_the_float_view_in_load_and_integers_in_a_delegate_on_a_cpu() -> None:
    content = int16_sums()
    x = np.random.default_rng(0).integers(-32768, 32768, (64, 256), np.int16)
    (floats,) = delegated(content, x, {"quant_mode": "float_view"})
    (integer,) = run_once(jd.Interpreter(model_content=content), [x])
    assert np.any(floats != integer)
    for options in ({}, {"quant_mode": "auto"}, {"quant_mode": "float_view"}):
        np.testing.assert_array_equal(jd.load(content, options)(x)[0], floats)
    np.testing.assert_array_equal(jd.load(content, quant_mode="integer")(x)[0], integer)
    for options in ({}, {"quant_mode": "auto"}, {"quant_mode": "integer"}):
        np.testing.assert_array_equal(delegated(content, x, options)[0], integer)


def test_bfloat16_is_computed_wherever_the_device_has_it() -> None:
    model = jd.load(classifier(), compute_dtype="bfloat16")
    for platform in ("cuda", "tpu"):
        text = model.export(platform)[platform].mlir_module()
        (line,) = (row for row in text.splitlines() if "stablehlo.convolution" in row)
        operands = line.rpartition(" : ")[2].partition("->")[0]
        assert operands.count("bf16") == 2
    assert "bf16" not in model.export("cpu")["cpu"].mlir_module()  # where it would gain nothing
    assert {leaf.dtype for leaf in model.params.values()} == {jnp.dtype(jnp.float32)}


def test_integers_in_and_out_as_floats() -> None:
    model = jd.load(integers())
    x = np.array([[10, -20, 30, 40]], np.int8)
    real = (x.astype(np.float32) + 3) * np.float32(0.05)
    apply, params = model.function(io="float")
    (want,) = model(x)
    (y,) = apply(params, real)
    assert_close([y], [(np.asarray(want, np.float32) - 5) * np.float32(0.1)])
    slope = jax.grad(lambda x: apply(params, x)[0].sum())(jnp.asarray(real))
    assert_close([slope], [np.asarray(params["w"]).sum(0, keepdims=True)], accumulated=3)
    exact, stored = jd.load(integers(), quant_mode="integer").function(io="float")
    assert_close(exact(stored, real), [y])
    with pytest.raises(jd.OptionError, match="io: expected 'file' or 'float', got 'real'"):
        model.function(io="real")  # type: ignore[arg-type]
    with pytest.raises(jd.TensorError, match=r"input 0 'x' wants float32 \[1, 4\], got int8"):
        apply(params, x)


def test_inputs_by_name_or_as_a_mapping() -> None:
    model, x = jd.load(classifier(signature=True)), np.ones((1, 3, 3, 2), np.float32)
    apply, params = model.function("classify")
    (want,) = apply(params, x)
    for answer in (apply(params, picture=x), apply(params, {"picture": x})):
        assert list(answer) == ["logits"]
        np.testing.assert_array_equal(answer["logits"], want)
    main, _ = model.function()
    np.testing.assert_array_equal(main(params, image=x)["scores"], want)
    state_apply, weights = jd.load(lstm()).function()
    state = jd.load(lstm()).initial_state()
    answer, new = state_apply(weights, {"x": np.ones((1, 2), np.float32)}, state=state)
    assert list(answer) == ["y"]
    assert set(new) == set(state)
    with pytest.raises(jd.TensorError, match=r"named \['image'\], the model's \['picture'\]"):
        apply(params, image=x)
    with pytest.raises(jd.TensorError, match="not with both"):
        apply(params, x, picture=x)
    with pytest.raises(jd.TensorError, match="draws no random numbers: leave `key` out"):
        apply(params, x, key=jax.random.key(0))
