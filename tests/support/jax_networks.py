"""Example networks of flax and equinox, with random weights; `from_jax` writes them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Network:
    """`function(params, *inputs)`, as `from_jax(function, *inputs, params=params)` takes it."""

    function: Callable[..., Any]
    params: Any
    inputs: tuple[Any, ...]


class InvertedBottleneck(nn.Module):
    filters: int
    stride: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        width = 3 * x.shape[-1]
        y = nn.relu6(_norm(nn.Conv(width, (1, 1), use_bias=False)(x)))
        strides = (self.stride, self.stride)
        depth = nn.Conv(width, (3, 3), strides, feature_group_count=width, use_bias=False)
        y = nn.hard_swish(_norm(depth(y)))
        y = _norm(nn.Conv(self.filters, (1, 1), use_bias=False)(y))
        return x + y if x.shape == y.shape else y


class MobileNet(nn.Module):
    """Like MobileNet v3."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.hard_swish(nn.Conv(8, (3, 3), (2, 2))(x))
        for filters, stride in ((8, 1), (16, 2), (16, 1), (24, 2), (24, 1)):
            x = InvertedBottleneck(filters, stride)(x)
        gate = nn.sigmoid(nn.Dense(24)(nn.relu(nn.Dense(8)(x.mean((1, 2), keepdims=True)))))
        return nn.softmax(nn.Dense(10)((x * gate).mean((1, 2))))


class ResidualBlock(nn.Module):
    filters: int
    stride: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        strides = (self.stride, self.stride)
        y = nn.relu(_norm(nn.Conv(self.filters, (3, 3), strides, use_bias=False)(x)))
        y = _norm(nn.Conv(self.filters, (3, 3), use_bias=False)(y))
        if x.shape != y.shape:
            x = _norm(nn.Conv(self.filters, (1, 1), strides, use_bias=False)(x))
        return nn.relu(x + y)


class ResNet18(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.relu(_norm(nn.Conv(self.width, (7, 7), (2, 2), use_bias=False)(x)))
        x = nn.max_pool(x, (3, 3), (2, 2), padding="SAME")  # type: ignore[no-untyped-call]
        for stage in range(4):
            for block in range(2):
                x = ResidualBlock(self.width << stage, 2 if stage and not block else 1)(x)
        return nn.Dense(10)(x.mean((1, 2)))


class Encoder(nn.Module):
    """One encoder layer on tokens."""

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(20, 16)(tokens)
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(y, y)
        return x + nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.LayerNorm()(x))))


class Decoder(nn.Module):
    """A language model; with `decode`, of one token, its keys and values in a cache."""

    width: int
    layers: int = 2

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        embed = nn.Embed(50, self.width)
        x = embed(tokens)
        for _ in range(self.layers):
            y = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(num_heads=4, decode=True)(y)
            y = nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x)))
            x = x + nn.Dense(self.width)(y)
        return embed.attend(nn.LayerNorm()(x))


class EquinoxCNN(eqx.Module):
    layers: list[Any]

    def __init__(self, width: int, key: Any) -> None:
        a, b, c = jax.random.split(key, 3)
        self.layers = [
            eqx.nn.Conv2d(3, width, 3, padding=1, key=a),
            jax.nn.relu,
            eqx.nn.MaxPool2d(2, 2),
            eqx.nn.Conv2d(width, 2 * width, 3, padding=1, key=b),
            jax.nn.relu,
            eqx.nn.AvgPool2d(2, 2),
            jnp.ravel,
            eqx.nn.Linear(2 * width * 64, 10, key=c),
            jax.nn.log_softmax,
        ]

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class Recurrent(eqx.Module):
    """The last state of a cell, by `lax.scan`, and a head."""

    cell: Any
    head: eqx.nn.Linear

    def __call__(self, xs: Any) -> Any:
        zeros = jnp.zeros(self.cell.hidden_size)
        start = (zeros, zeros) if isinstance(self.cell, eqx.nn.LSTMCell) else zeros
        state, _ = jax.lax.scan(lambda state, x: (self.cell(x, state), None), start, xs)
        return self.head(jax.tree.leaves(state)[0])


def _norm(x: Any) -> Any:
    return nn.BatchNorm(use_running_average=True)(x)


def uniform(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)


def variables(module: nn.Module, *inputs: Any) -> Any:
    return _random(jax.eval_shape(module.init, jax.random.key(0), *inputs), outputs=-1)


def _random(shapes: Any, *, outputs: int) -> Any:
    """Random parameters and statistics, which keep the size of activations; integers are 0.

    `outputs` is the dimension of a weight whose elements belong to different outputs.
    """
    rng = np.random.default_rng(0)

    def leaf(x: Any) -> Any:
        if x.dtype != np.float32:
            return np.zeros(x.shape, x.dtype)
        if x.ndim < 2:
            return rng.uniform(0.5, 1.5, x.shape).astype(np.float32)
        terms = np.prod(x.shape) / x.shape[outputs]
        return rng.normal(0, np.sqrt(2 / terms), x.shape).astype(np.float32)

    return jax.tree.map(leaf, shapes)


def of_flax(module: nn.Module, *inputs: Any) -> Network:
    return Network(module.apply, variables(module, *inputs), inputs)


def of_equinox(make: Callable[[Any], Any], *inputs: Any) -> Network:
    """The module that `make` creates with a random key."""
    shapes = eqx.filter_eval_shape(make, jax.random.key(0))
    params, static = eqx.partition(shapes, lambda x: isinstance(x, jax.ShapeDtypeStruct))
    return Network(lambda p, *x: eqx.combine(p, static)(*x), _random(params, outputs=0), inputs)


def mlp() -> Network:
    return of_equinox(lambda key: eqx.nn.MLP(64, 10, 128, 3, key=key), uniform(64))


def mobile_network(size: int = 32) -> Network:
    return of_flax(MobileNet(), uniform(1, size, size, 3))


def resnet18(size: int = 32, width: int = 8) -> Network:
    return of_flax(ResNet18(width), uniform(1, size, size, 3))


def encoder() -> Network:
    return of_flax(Encoder(), np.arange(6, dtype=np.int32)[None])


def decode_step(length: int = 16, width: int = 16) -> Network:
    """One token with the cache of the earlier ones: `(cache, token) -> (logits, cache)`."""
    module = Decoder(width)
    tree = variables(module, np.zeros((1, length), np.int32))
    cache = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), tree["cache"])

    def step(params: Any, cache: Any, token: Any) -> Any:
        logits, new = module.apply({"params": params, "cache": cache}, token, mutable=["cache"])
        return logits, new["cache"]

    return Network(step, tree["params"], (cache, np.array([[7]], np.int32)))


def equinox_cnn(width: int = 8) -> Network:
    return of_equinox(functools.partial(EquinoxCNN, width), uniform(3, 32, 32))


def lstm(steps: int = 20, width: int = 16) -> Network:
    return _recurrent(eqx.nn.LSTMCell, steps, width)


def gru(steps: int = 20, width: int = 16) -> Network:
    return _recurrent(eqx.nn.GRUCell, steps, width)


def _recurrent(cell: Any, steps: int, width: int) -> Network:
    def make(key: Any) -> Recurrent:
        return Recurrent(cell(8, width, key=key), eqx.nn.Linear(width, 4, key=key))

    return of_equinox(make, uniform(steps, 8))
