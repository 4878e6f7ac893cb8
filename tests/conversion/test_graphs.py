"""The file is what a person would have written: its operators, names, signatures and constants."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdelegate
from jaxdelegate.errors import ConversionError, OptionError
from jaxdelegate.model.open_models import open_model
from tests.conversion import functions as f

X = f.normal(2, 8)
RULES: dict[str, tuple[Any, tuple[Any, ...], list[str]]] = {
    "mlp": (f.mlp, (X,), ["FULLY_CONNECTED", "FULLY_CONNECTED", "SOFTMAX"]),
    "nchw": (
        f.nchw,
        (f.normal(1, 4, 8, 8),),
        ["TRANSPOSE", "CONV_2D", "CONV_2D", "ADD", "MEAN"],
    ),
    "batch_norm": (f.batch_norm, (f.IMAGE,), ["CONV_2D"]),
    "depthwise": (f.depthwise, (f.IMAGE,), ["DEPTHWISE_CONV_2D", "CONV_2D"]),
    "gelu": (jax.nn.gelu, (X,), ["GELU"]),
    "exact_gelu": (lambda x: jax.nn.gelu(x, approximate=False), (X,), ["GELU"]),
    "own_gelu": (
        lambda x: x * (0.5 + 0.5 * lax.erf(x * np.float32(0.5**0.5))),
        (X,),
        ["GELU"],
    ),
    "hard_swish": (jax.nn.hard_swish, (X,), ["HARD_SWISH"]),
    "own_hard_swish": (lambda x: x * (jnp.clip(x, -3, 3) + 3) / 6, (X,), ["HARD_SWISH"]),
    "leaky_relu": (lambda x: jax.nn.leaky_relu(x, 0.2), (X,), ["LEAKY_RELU"]),
    "elu": (jax.nn.elu, (X,), ["ELU"]),
    "relu6": (lambda x: jnp.minimum(jnp.maximum(x, 0), 6), (X,), ["RELU6"]),
    "not_relu6": (lambda x: jnp.clip(x, 0, 6.1), (X,), ["RELU", "MINIMUM"]),
    "large_clip": (lambda x: jnp.clip(x, 0, 1e5), (X,), ["RELU", "MINIMUM"]),
    "small_sum": (
        lambda x: jnp.log(jax.nn.relu(x) + 1e-12),
        (X,),
        ["RELU", "ADD", "LOG"],
    ),
    "nearly_mean": (lambda x: x.sum(1) / (8 + 1e-4), (X,), ["SUM", "DIV"]),
    "log_softmax": (jax.nn.log_softmax, (X,), ["LOG_SOFTMAX"]),
    "softmax_of_columns": (
        lambda x: jax.nn.softmax(x.T).T,
        (X,),
        ["TRANSPOSE", "SOFTMAX", "TRANSPOSE"],
    ),
    "mean": (lambda x: x.mean(1), (X,), ["MEAN"]),
    "bias_of_heads": (
        lambda x: ((x @ f.W).reshape(2, 4, 4) + f.B.reshape(4, 4)) / 2,
        (X,),
        ["FULLY_CONNECTED", "RESHAPE"],
    ),
    "layer_norm": (
        lambda x: (x - x.mean(-1)[:, None]) * lax.rsqrt(jnp.square(x).mean(-1) + 1e-5)[:, None],
        (X,),
        ["MEAN", "SUB", "SQUARE", "MEAN", "ADD", "RSQRT", "MUL"],
    ),
    "index": (
        lambda x, i: jnp.take(x, i, axis=0),
        (X, np.int32([1, -2])),
        [
            *("LESS", "ADD", "SELECT_V2"),
            *("MAXIMUM", "MINIMUM", "GATHER"),
            *("EQUAL", "RESHAPE", "SELECT_V2"),
        ],
    ),
    "unused": (lambda x: (jnp.sin(x), x + 1)[1], (X,), ["ADD"]),
    "equal": (lambda x: jnp.sin(x) * jnp.sin(x), (X,), ["SIN", "MUL"]),
    "transposes": (lambda x: (x.T + x.T).T, (X,), ["ADD"]),
    "cache": (
        lambda c, x, i: lax.dynamic_update_slice(c, x, (0, jnp.clip(i, 0, 4), 0)),
        (f.normal(1, 5, 8), f.normal(1, 1, 8), np.int32(2)),
        ["MAXIMUM", "MINIMUM", "PACK", "DYNAMIC_UPDATE_SLICE"],
    ),
}


@pytest.fixture(autouse=True)
def _promotions() -> Any:
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def operators(content: bytes) -> list[str]:
    return [op.name for op in open_model(content).subgraphs[0].operators]


@pytest.mark.parametrize("name", RULES)
def test_operators(name: str) -> None:
    function, examples, expected = RULES[name]
    assert operators(jaxdelegate.from_jax(function, *examples)) == expected


def test_names() -> None:
    def classify(image: Any, more: Any) -> Any:
        with jax.named_scope("head"):
            return {"logits": image @ f.W + more["bias"][0], "count": jnp.sum(image)}

    content = jaxdelegate.from_jax(classify, X, {"bias": [f.B]})
    (signature,) = open_model(content).signatures
    assert signature.key == "serving_default"
    assert list(signature.inputs) == ["image", "more/bias/0"]
    assert sorted(signature.outputs) == ["count", "logits"]
    names = {t.name for t in open_model(content).subgraphs[0].tensors}
    assert {"image", "head/classify/fully_connected"} <= names


def test_weights_have_the_names_of_their_places() -> None:
    params = {"dense": {"kernel": jnp.asarray(f.W), "bias": jnp.asarray(f.B)}}

    def closed_over(x: Any) -> Any:
        return x @ params["dense"]["kernel"] + params["dense"]["bias"]

    def given(p: Any, x: Any) -> Any:
        return x @ p["dense"]["kernel"] + p["dense"]["bias"]

    for content, prefix in (
        (jaxdelegate.from_jax(closed_over, X), "params/"),
        (jaxdelegate.from_jax(given, X, params=params), ""),
    ):
        (main,) = open_model(content).subgraphs
        names = {t.name for t in main.tensors if t.data is not None}
        assert names == {f"{prefix}dense/kernel", f"{prefix}dense/bias"}
        assert [main.tensors[i].name for i in main.inputs] == ["x"]


def test_signatures_share_constants() -> None:
    def up(p: Any, x: Any) -> Any:
        return x @ p["w"]

    def twice(p: Any, x: Any) -> Any:
        return jax.nn.relu(x @ p["w"])

    signatures = {"up": (up, X), "twice": (twice, X)}
    content = jaxdelegate.from_jax(signatures=signatures, params={"w": f.W})
    model = open_model(content)
    assert [s.key for s in model.signatures] == ["up", "twice"]
    first, second = (next(t for t in s.tensors if t.name.startswith("w")) for s in model.subgraphs)
    assert first.buffer == second.buffer
    apply, leaves = jaxdelegate.load(content).function("twice")
    np.testing.assert_allclose(apply(leaves, X)[0], np.maximum(X @ f.W, 0), rtol=1e-5)


def test_names_of_arguments_can_be_given() -> None:
    content = jaxdelegate.from_jax(lambda a, b: a + b, X, X, names=["left", "right"])
    assert list(open_model(content).signatures[0].inputs) == ["left", "right"]
    with pytest.raises(OptionError, match="names: expected one for each of the 2 examples"):
        jaxdelegate.from_jax(lambda a, b: a + b, X, X, names=["left"])


def test_shapes_without_arrays() -> None:
    content = jaxdelegate.from_jax(f.mlp, jax.ShapeDtypeStruct((3, 8), np.float32))
    assert open_model(content).subgraphs[0].tensors[0].shape == (3, 8)


def test_save_jax(tmp_path: Path) -> None:
    path = tmp_path / "mlp.tflite"
    jaxdelegate.save_jax(path, f.mlp, X)
    assert path.read_bytes() == jaxdelegate.from_jax(f.mlp, X)


def test_half_precision_becomes_float32(caplog: pytest.LogCaptureFixture) -> None:
    x = jax.ShapeDtypeStruct((2, 3), jnp.bfloat16)
    content = jaxdelegate.from_jax(lambda a: a * 2, x)
    assert "the input 'a' is float32 in the file" in caplog.text
    assert {t.dtype for t in open_model(content).subgraphs[0].tensors} == {np.dtype(np.float32)}


def test_repeated_values_are_stored_once() -> None:
    content = jaxdelegate.from_jax(lambda x: (x, jnp.zeros((1000, 1000))), X)
    assert len(content) < 10_000


def test_a_file_that_cannot_be_written_is_not_started(tmp_path: Path) -> None:
    path = tmp_path / "cholesky.tflite"
    with pytest.raises(ConversionError):
        jaxdelegate.save_jax(path, jnp.linalg.cholesky, np.eye(3, dtype=np.float32))
    assert not path.exists()


def test_wrong_arguments() -> None:
    with pytest.raises(OptionError, match="a function with examples, or signatures"):
        jaxdelegate.from_jax()
    with pytest.raises(OptionError, match="signatures: expected"):
        jaxdelegate.from_jax(signatures={})


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.where(jnp.abs(x - 3.3333) < 1e-4, 7.0, jnp.maximum(x, 0)),
        lambda x: jax.nn.relu(x) + 1e6 * jax.nn.relu(1e-6 - jnp.abs(x - 3.3333)),
        lambda x: jnp.where(x > 3.3332, jnp.where(x < 3.3334, 7.0, x), jnp.maximum(x, 0)),
    ],
)
def test_a_narrow_exception_keeps_a_function_from_being_an_activation(function: Any) -> None:
    x = np.array([3.3333, 2.0, -1.0], np.float32)
    (found,) = jaxdelegate.load(jaxdelegate.from_jax(function, x))(x)
    np.testing.assert_allclose(found, function(x), atol=1e-6)
