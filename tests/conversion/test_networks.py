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
from tests.support import jax_networks
from tests.support.jax_networks import Network, uniform
from tests.support.xnnpack_share import least_share

pytestmark = pytest.mark.litert
SHARE = 0.95


@pytest.fixture(autouse=True)
def _promotions() -> Any:
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def operators(content: bytes) -> collections.Counter[str]:
    return collections.Counter(op.name for op in open_model(content).subgraphs[0].operators)


def compare(content: bytes, function: Any, *inputs: Any) -> None:
    """In stock LiteRT: within 1e-5 of the largest value of an output."""
    runner = StockInterpreter(model_content=content).get_signature_runner()
    (signature,) = open_model(content).signatures
    leaves = map(np.asarray, jax.tree.leaves(inputs))
    got = runner(**dict(zip(signature.inputs, leaves, strict=True)))
    want = jax.tree.leaves(jax.jit(lambda *a: function(*a))(*inputs))  # noqa: PLW0108  # equinox's have no hash
    for name, value in zip(signature.outputs, want, strict=True):
        assert got[name].dtype == value.dtype
        atol = 1e-5 * np.abs(value).max()
        np.testing.assert_allclose(got[name], value, rtol=0, atol=atol, err_msg=name)


def written(net: Network) -> bytes:
    """The file of a network, compared."""
    content = jaxdelegate.from_jax(net.function, *net.inputs, params=net.params)
    compare(content, lambda *inputs: net.function(net.params, *inputs), *net.inputs)
    return content


IMAGE = uniform(1, 32, 32, 3)


def test_mobile_network() -> None:
    content = written(jax_networks.mobile_network())
    counts = operators(content)
    assert counts["CONV_2D"] + counts["DEPTHWISE_CONV_2D"] == 16
    assert sum(counts.values()) == 33
    assert least_share(content) > SHARE
    names = {t.name for t in open_model(content).subgraphs[0].tensors if t.data is not None}
    assert "params/InvertedBottleneck_0/Conv_1/kernel" in names


def test_a_network_in_pytorch_order() -> None:
    def apply(x: Any) -> Any:
        y = net.function(net.params, jnp.transpose(x, (0, 2, 3, 1)))
        return jnp.transpose(y[..., None], (0, 2, 1))

    net = jax_networks.mobile_network()
    x = np.ascontiguousarray(np.transpose(IMAGE, (0, 3, 1, 2)))
    content = jaxdelegate.from_jax(apply, x)
    compare(content, apply, x)
    assert operators(content)["TRANSPOSE"] == 1


def test_residual_network() -> None:
    content = written(jax_networks.resnet18())
    counts = operators(content)
    # Batch norms and activations are in the convolutions.
    assert counts.keys() == {"CONV_2D", "MAX_POOL_2D", "ADD", "SUM", "FULLY_CONNECTED"}
    assert (counts["CONV_2D"], counts["ADD"]) == (20, 8)
    assert least_share(content) > SHARE


def test_transformer() -> None:
    counts = operators(written(jax_networks.encoder()))
    assert (counts["BATCH_MATMUL"], counts["SOFTMAX"], counts["GELU"]) == (2, 1, 1)
    assert counts["FULLY_CONNECTED"] == 6
    assert sum(counts.values()) == 51


def test_step_of_a_decoder() -> None:
    net = jax_networks.decode_step()
    content = written(net)
    counts = operators(content)
    assert counts["DYNAMIC_UPDATE_SLICE"] == 4  # keys and values of two layers, and no copy of them
    assert counts["SELECT_V2"] - counts["DYNAMIC_UPDATE_SLICE"] == 2
    assert (counts["SOFTMAX"], counts["GELU"], counts["FULLY_CONNECTED"]) == (2, 2, 13)
    main = open_model(content).subgraphs[0]
    updates = [op for op in main.operators if op.name == "DYNAMIC_UPDATE_SLICE"]
    assert {op.inputs[0] for op in updates} < set(main.inputs)
    assert {op.outputs[0] for op in updates} < set(main.outputs)


def test_tokens_of_a_decoder_by_steps() -> None:
    """The cache goes from each step into the next."""
    net = jax_networks.decode_step()
    content = jaxdelegate.from_jax(net.function, *net.inputs, params=net.params)
    (signature,) = open_model(content).signatures
    runner = StockInterpreter(model_content=content).get_signature_runner()
    step = jax.jit(net.function)
    cache, _ = net.inputs
    leaves: list[Any] = jax.tree.leaves(cache)
    for token in ([[3]], [[1]], [[4]]):
        given = dict(zip(signature.inputs, [*leaves, np.int32(token)], strict=True))
        results = runner(**given)
        logits, *leaves = (results[name] for name in signature.outputs)
        want, cache = step(net.params, cache, np.int32(token))
        np.testing.assert_allclose(logits, want, rtol=0, atol=1e-5 * np.abs(want).max())


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


def test_layers_of_equinox() -> None:
    content = written(jax_networks.mlp())
    assert list(operators(content)) == ["RESHAPE", "FULLY_CONNECTED"]
    assert operators(content)["FULLY_CONNECTED"] == 4
    assert least_share(content) > SHARE
    mlp = eqx.nn.MLP(4, 2, 8, 2, key=jax.random.key(0))
    closed = open_model(jaxdelegate.from_jax(mlp, np.ones(4, np.float32))).subgraphs[0]
    names = {t.name for t in closed.tensors if t.data is not None}
    assert {"layers/0/weight", "layers/2/bias"} <= names


def test_convolutions_of_equinox() -> None:
    """Transposes to channels last and back cancel, also where pools have no batch."""
    content = written(jax_networks.equinox_cnn())
    counts = operators(content)
    names = [op.name for op in open_model(content).subgraphs[0].operators]
    network = names[names.index("CONV_2D") : names.index("AVERAGE_POOL_2D") + 1]
    assert network == ["CONV_2D", "MAX_POOL_2D", "CONV_2D", "AVERAGE_POOL_2D"]
    assert counts["TRANSPOSE"] == 2  # of the input, and before the dense layer
    assert sum(counts.values()) == 12


@pytest.mark.parametrize("network", [jax_networks.lstm, jax_networks.gru])
def test_cells_of_equinox(network: Any) -> None:
    content = written(network())
    assert operators(content) == {"WHILE": 1, "RESHAPE": 2, "FULLY_CONNECTED": 1}
    (_, _, body) = open_model(content).subgraphs
    assert [op.name for op in body.operators].count("FULLY_CONNECTED") == 2


def test_cells_of_flax() -> None:
    net = nn.RNN(nn.OptimizedLSTMCell(4))
    content = written(jax_networks.of_flax(net, uniform(2, 20, 3)))
    assert operators(content)["WHILE"] == 1
