"""Weights as float16 and int8, and free dimensions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from ai_edge_litert.interpreter import OpResolverType
from jax import export

import jaxdelegate
from jaxdelegate.errors import ConversionError, OptionError
from jaxdelegate.model.open_models import open_model
from tests.conversion import functions as f

KERNELS = (OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES, OpResolverType.AUTO)
DENSE = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
KERNEL = np.random.default_rng(1).standard_normal((3, 3, 4, 64)).astype(np.float32)
DEPTH = np.random.default_rng(2).standard_normal((5, 5, 1, 64)).astype(np.float32)


@pytest.fixture(autouse=True)
def _promotions() -> Any:
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def network(x: Any) -> Any:
    x = jax.nn.relu(f.conv(x, KERNEL, strides=(2, 2)))
    return f.conv(x, DEPTH, feature_group_count=64).mean((1, 2)) @ DENSE


def run(content: bytes, kernels: OpResolverType, **inputs: np.ndarray) -> np.ndarray:
    stock = StockInterpreter(model_content=content, experimental_op_resolver_type=kernels)
    return next(iter(stock.get_signature_runner()(**inputs).values()))


def types(content: bytes) -> set[str]:
    tensors = open_model(content).subgraphs[0].tensors
    return {t.dtype.name for t in tensors if t.data is not None and t.data.ndim > 1}


@pytest.mark.litert
@pytest.mark.parametrize("weights", ["float16", "int8"])
@pytest.mark.parametrize("kernels", KERNELS)
def test_smaller_weights(weights: Any, kernels: OpResolverType) -> None:
    content = jaxdelegate.from_jax(network, f.IMAGE, weights=weights)
    whole = jaxdelegate.from_jax(network, f.IMAGE)
    assert types(whole) == {"float32"}
    assert types(content) == {weights}
    assert len(content) < len(whole) * (0.6 if weights == "float16" else 0.4)
    want = np.asarray(network(f.IMAGE))
    error = np.abs(run(content, kernels, x=f.IMAGE) - want).max() / np.abs(want).max()
    assert error < (2e-3 if weights == "float16" else 3e-2)


def test_int8_weights_round_to_the_nearest_step() -> None:
    content = jaxdelegate.from_jax(lambda x: x @ DENSE, f.normal(1, 64), weights="int8")
    (t,) = [t for t in open_model(content).subgraphs[0].tensors if t.dtype == np.int8]
    assert t.quantization is not None
    real = t.data * t.quantization.scale[:, None]
    assert np.all(np.abs(real - DENSE.T) <= t.quantization.scale[:, None] * 0.5001)


def test_weights_that_float16_does_not_hold() -> None:
    with pytest.raises(ConversionError, match="more than float16 has"):
        jaxdelegate.from_jax(lambda x: x * np.array([1e6, 1.0]), f.normal(2), weights="float16")


def test_other_weights() -> None:
    with pytest.raises(OptionError, match="weights: expected 'float32' or 'float16' or 'int8'"):
        jaxdelegate.from_jax(lambda x: x, f.normal(2), weights="int4")  # type: ignore[arg-type]


BATCHES: dict[str, tuple[Any, str]] = {
    "mlp": (f.mlp, "b, 8"),
    "cnn": (f.cnn, "b, 8, 8, 4"),
    "nchw": (f.nchw, "b, 4, 8, 8"),
    "norm": (f.norm, "b, 5, 8"),
    "attention": (lambda x: f.attention(x, np.tril(np.ones((6, 6), bool))), "b, 6, 8"),
    "transposed_conv": (f.transposed_conv, "b, 8, 8, 4"),
    "flatten": (lambda x: x.reshape(x.shape[0], -1) @ f.W, "b, 2, 4"),
    "padded": (lambda x: jnp.concatenate([x, jnp.zeros((x.shape[0], 2))], 1), "b, 3"),
}


@pytest.mark.litert
@pytest.mark.parametrize("name", BATCHES)
def test_free_batch(name: str) -> None:
    function, dimensions = BATCHES[name]
    shape = export.symbolic_shape(dimensions)
    content = jaxdelegate.from_jax(function, jax.ShapeDtypeStruct(shape, np.float32), names=["x"])
    assert open_model(content).subgraphs[0].tensors[0].shape_signature == (-1, *shape[1:])
    for batch in (1, 3):
        x = np.random.default_rng(0).standard_normal((batch, *shape[1:])).astype(np.float32)
        got = run(content, OpResolverType.AUTO, x=x)
        np.testing.assert_allclose(got, function(x), rtol=1e-5, atol=1e-5)


def test_a_dimension_that_no_input_has() -> None:
    shape = export.symbolic_shape("b, 2")
    with pytest.raises(ConversionError, match=r"symbolic dimension 2\*b is not one of an input"):
        jaxdelegate.from_jax(
            lambda x: jnp.broadcast_to(x.reshape(-1), (3, 2 * x.shape[0])),
            jax.ShapeDtypeStruct(shape, np.float32),
        )
