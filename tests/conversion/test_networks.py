"""Networks of flax and equinox: the delegate of mobile CPUs takes nearly all of their operators."""

import collections
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from flax import nnx

import jaxdelegate
from jaxdelegate.model.open_models import open_model

pytestmark = pytest.mark.litert
SHARE = 0.95


@pytest.fixture(autouse=True)
def _promotions() -> Any:
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


class Block(nn.Module):
    """An inverted bottleneck."""

    filters: int
    stride: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        width = 3 * x.shape[-1]
        y = nn.relu6(self._norm(nn.Conv(width, (1, 1), use_bias=False)(x)))
        strides = (self.stride, self.stride)
        depth = nn.Conv(width, (3, 3), strides, feature_group_count=width, use_bias=False)
        y = nn.hard_swish(self._norm(depth(y)))
        y = self._norm(nn.Conv(self.filters, (1, 1), use_bias=False)(y))
        return x + y if x.shape == y.shape else y

    def _norm(self, x: Any) -> Any:
        return nn.BatchNorm(use_running_average=True)(x)


class MobileNet(nn.Module):
    """Like MobileNet v3."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.hard_swish(nn.Conv(8, (3, 3), (2, 2))(x))
        for filters, stride in ((8, 1), (16, 2), (16, 1), (24, 2), (24, 1)):
            x = Block(filters, stride)(x)
        gate = nn.sigmoid(nn.Dense(24)(nn.relu(nn.Dense(8)(x.mean((1, 2), keepdims=True)))))
        return nn.softmax(nn.Dense(10)((x * gate).mean((1, 2))))


class Transformer(nn.Module):
    """One encoder layer on tokens."""

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(20, 16)(tokens)
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(y, y)
        return x + nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.LayerNorm()(x))))


def operators(content: bytes) -> collections.Counter[str]:
    return collections.Counter(op.name for op in open_model(content).subgraphs[0].operators)


def stock(content: bytes) -> StockInterpreter:
    interpreter = StockInterpreter(model_content=content)
    interpreter.allocate_tensors()
    return interpreter


def least_share(content: bytes) -> float:
    """The part of the operators that XNNPACK takes, at least.

    What is inside of its partitions has no memory; each partition also has an operator whose result
    leaves it.
    """
    interpreter, main = stock(content), open_model(content).subgraphs[0]
    names = {t["name"]: t["index"] for t in interpreter.get_tensor_details()}
    inside = 0
    for op in main.operators:
        try:
            interpreter.get_tensor(names[main.tensors[op.outputs[0]].name])
        except ValueError:
            inside += 1
    details = interpreter._get_ops_details()
    return (inside + sum(d["op_name"] == "DELEGATE" for d in details)) / len(main.operators)


def variables(module: nn.Module, x: Any) -> Any:
    tree = jax.jit(module.init)(jax.random.key(0), x)
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda a: a + np.float32(0.1) * np.abs(rng.standard_normal(a.shape)), tree)


def compare(content: bytes, function: Any, *inputs: Any) -> None:
    details = stock(content).get_signature_list()["serving_default"]["inputs"]
    runner = StockInterpreter(model_content=content).get_signature_runner()
    (got,) = runner(**dict(zip(details, inputs, strict=True))).values()
    want = jax.jit(lambda *a: function(*a))(*inputs)  # noqa: PLW0108  # equinox's have no hash
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


IMAGE = np.random.default_rng(0).uniform(-1, 1, (1, 32, 32, 3)).astype(np.float32)


def test_mobile_network() -> None:
    net = MobileNet()
    params = variables(net, IMAGE)
    content = jaxdelegate.from_jax(net.apply, IMAGE, params=params)
    compare(content, lambda x: net.apply(params, x), IMAGE)
    counts = operators(content)
    assert counts["CONV_2D"] + counts["DEPTHWISE_CONV_2D"] == 16
    assert sum(counts.values()) == 33
    assert least_share(content) > SHARE
    names = {t.name for t in open_model(content).subgraphs[0].tensors if t.data is not None}
    assert "params/Block_0/Conv_1/kernel" in names


def test_a_network_in_pytorch_order() -> None:
    def apply(x: Any) -> Any:
        x = jnp.transpose(net.apply(params, jnp.transpose(x, (0, 2, 3, 1)))[..., None], (0, 2, 1))
        return x[..., 0] if x.ndim == 3 else x

    net = MobileNet()
    params = variables(net, IMAGE)
    x = np.ascontiguousarray(np.transpose(IMAGE, (0, 3, 1, 2)))
    content = jaxdelegate.from_jax(apply, x)
    compare(content, apply, x)
    assert operators(content)["TRANSPOSE"] == 1


def test_transformer() -> None:
    net, tokens = Transformer(), np.arange(6, dtype=np.int32)[None]
    params = variables(net, tokens)
    content = jaxdelegate.from_jax(net.apply, tokens, params=params)
    compare(content, lambda t: net.apply(params, t), tokens)
    counts = operators(content)
    assert (counts["BATCH_MATMUL"], counts["SOFTMAX"], counts["GELU"]) == (2, 1, 1)
    assert counts["FULLY_CONNECTED"] == 6


def test_module_of_nnx() -> None:
    class Model(nnx.Module):
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.conv = nnx.Conv(3, 4, (3, 3), rngs=rngs)
            self.dense = nnx.Linear(4, 2, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.dense(nnx.relu(self.conv(x)).mean((1, 2)))

    model = Model()
    content = jaxdelegate.from_jax(lambda x: model(x) * 1.0, IMAGE)
    compare(content, model, IMAGE)
    assert list(operators(content)) == ["CONV_2D", "MEAN", "FULLY_CONNECTED"]
    names = {t.name for t in open_model(content).subgraphs[0].tensors if t.data is not None}
    assert {"model/conv/kernel", "model/dense/kernel"} <= names


def test_module_of_equinox() -> None:
    mlp = eqx.nn.MLP(4, 2, 8, 2, key=jax.random.key(0))
    x = np.arange(4, dtype=np.float32)
    content = jaxdelegate.from_jax(mlp, x)
    compare(content, mlp, x)
    assert operators(content)["FULLY_CONNECTED"] == 3
    names = {t.name for t in open_model(content).subgraphs[0].tensors if t.data is not None}
    assert {"layers/0/weight", "layers/2/bias"} <= names


def test_convolutions_of_equinox() -> None:
    keys = jax.random.split(jax.random.key(0), 2)
    first = eqx.nn.Conv2d(3, 8, 3, padding=1, key=keys[0])
    second = eqx.nn.Conv2d(8, 4, 3, stride=2, padding=1, key=keys[1])

    def apply(x: Any) -> Any:
        return jax.nn.relu(second(jax.nn.relu(first(x)))).mean((1, 2))

    x = np.random.default_rng(0).standard_normal((3, 16, 16)).astype(np.float32)
    content = jaxdelegate.from_jax(apply, x)
    compare(content, apply, x)
    assert operators(content)["CONV_2D"] == 2
    assert operators(content)["TRANSPOSE"] == 1


def test_cells_of_flax() -> None:
    net = nn.RNN(nn.OptimizedLSTMCell(4))
    x = np.random.default_rng(0).standard_normal((2, 20, 3)).astype(np.float32)
    params = variables(net, x)
    content = jaxdelegate.from_jax(net.apply, x, params=params)
    compare(content, lambda a: net.apply(params, a), x)
    assert operators(content)["WHILE"] == 1
