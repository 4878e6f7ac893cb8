"""Tiny models with the attention of known families, as litert-torch exports them."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from flatbuffers import flexbuffers

from jaxdelegate.op_lowering.options import (
    BatchMatMulOptions,
    CastOptions,
    ConcatenationOptions,
    PackOptions,
    ReducerOptions,
    SoftmaxOptions,
    StableHLOCompositeOptions,
)
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.builder import SubgraphBuilder
from tests.support.language_models import VOCABULARY, Net

EPSILON, MASKED = 1e-6, -10000.0  # the latter hides places before a window
Names = dict[str, int]


@dataclasses.dataclass(frozen=True)
class Family:
    """The attention of a family.

    Attributes:
        heads: of queries.
        groups: heads of keys and values.
        size: of a head.
        norms: queries and keys have RMS norms, as composites.
        rotates: queries and keys have rotary position embeddings.
        window: how many of the last tokens odd layers see, by a mask in the graph; 0: all.
        cap: of the logits; 0: none.
        layers: how many.
        vocabulary: how many tokens.
        width: of the residual stream.
    """

    heads: int = 4
    groups: int = 2
    size: int = 16
    norms: bool = False
    rotates: bool = True
    window: int = 0
    cap: float = 0.0
    layers: int = 2
    vocabulary: int = VOCABULARY
    width: int = 32


FAMILIES = {
    "llama": Family(heads=3, groups=1),
    "qwen3": Family(norms=True),
    "gemma3": Family(groups=1, norms=True, window=12),
    "gemma2": Family(cap=4.0, window=12),
    "without positions": Family(groups=4, rotates=False),
}


def decoder(family: Family, *, capacity: int = 64, prefill: Sequence[int] = (8,)) -> bytes:
    """A model with the signatures and inputs of `language_model`, and these layers.

    Caches are `kv_cache_k_N` [1, groups, capacity, size] and `kv_cache_v_N` [1, groups, size,
    capacity].
    """
    builder = ModelBuilder("decoder")
    lengths = {f"prefill_{n}": n for n in prefill} | {"decode": 1}
    graphs = [builder, *(builder.subgraph(key) for key in [*lengths][1:])]
    for number, ((key, n), graph) in enumerate(zip(lengths.items(), graphs, strict=True)):
        layers = _Layers(builder, graph, family, n, capacity)
        builder.signature(key, *layers.built(has_logits=n == 1), number)
    return builder.build()


class _Layers:
    def __init__(
        self, model: ModelBuilder, graph: SubgraphBuilder, family: Family, n: int, capacity: int
    ) -> None:
        self._model, self._net, self._family = model, Net(graph), family
        self._n, self._capacity = n, capacity
        self._random = np.random.default_rng(0)

    def _weights(self, rows: int, columns: int) -> np.ndarray:
        return self._random.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)

    def built(self, *, has_logits: bool) -> tuple[Names, Names]:
        net, n, f = self._net, self._n, self._family
        graph = net.graph
        inputs = {
            "tokens": graph.input((1, n), np.int32, "tokens"),
            "input_pos": graph.input((n,), np.int32, "input_pos"),
            "mask": graph.input((1, 1, n, self._capacity), np.float32, "mask"),
        }
        shapes = {"k": (1, f.groups, self._capacity, f.size)}
        shapes["v"] = (1, f.groups, f.size, self._capacity)
        for layer in range(f.layers):
            for name, shape in shapes.items():
                key = f"kv_cache_{name}_{layer}"
                inputs[key] = graph.input(shape, np.float32, key)
        table = self._random.normal(size=(f.vocabulary, f.width)).astype(np.float32)
        x = net("GATHER", [graph.constant(table), inputs["tokens"]], (1, n, f.width))
        turns, masks = self._turns(inputs["input_pos"]), self._masks(inputs)
        outputs: Names = {}
        for layer in range(f.layers):
            caches = [inputs[f"kv_cache_{name}_{layer}"] for name in "kv"]
            y, k, v = self._attention(x, caches, inputs["input_pos"], turns, masks[layer % 2])
            outputs |= {f"kv_cache_k_{layer}": k, f"kv_cache_v_{layer}": v}
            x = net(
                "ADD",
                [x, net.dense(y, self._weights(f.width, f.heads * f.size), (1, n, f.width))],
                (1, n, f.width),
            )
        if has_logits:
            last = self._weights(f.vocabulary, f.width)
            outputs["logits"] = net.dense(x, last, (1, n, f.vocabulary))
        graph.outputs(*outputs.values())
        return inputs, outputs

    def _turns(self, places: int) -> tuple[int, int]:
        """Cosines and sines [1, n, size]."""
        net, n, half = self._net, self._n, self._family.size // 2
        at = net("RESHAPE", [places, net.integers(1, n, 1)], (1, n, 1), dtype=np.int32)
        at = net("CAST", [at], (1, n, 1), CastOptions(TensorType.INT32, TensorType.FLOAT32))
        speeds = net.graph.constant(
            (100.0 ** -np.linspace(0, 1, half)).astype(np.float32)[None, None]
        )
        angles, whole = net("MUL", [at, speeds], (1, n, half)), (1, n, 2 * half)
        angles = net("CONCATENATION", [angles] * 2, whole, ConcatenationOptions(2))
        return net("COS", [angles], whole), net("SIN", [angles], whole)

    def _masks(self, inputs: Names) -> tuple[int, int]:
        """The masks [1, 1, n, capacity] of even and odd layers."""
        net, n, window = self._net, self._n, self._family.window
        shape = (1, n, self._capacity)
        if not window:
            return (inputs["mask"],) * 2
        at = net("RESHAPE", [inputs["input_pos"], net.integers(1, n, 1)], (1, n, 1), dtype=np.int32)
        first = net("SUB", [at, net.integers(window)], (1, n, 1), dtype=np.int32)
        places = net.graph.constant(np.arange(self._capacity, dtype=np.int32)[None, None])
        is_near = net("GREATER", [places, first], shape, dtype=np.bool_)
        ends = (net.graph.constant(np.float32(x)) for x in (0, MASKED))
        near = net("SELECT_V2", [is_near, *ends], shape)
        return inputs["mask"], net("ADD", [near, inputs["mask"]], (1, *shape))

    def _attention(
        self, x: int, caches: Sequence[int], places: int, turns: tuple[int, int], mask: int
    ) -> tuple[int, int, int]:
        net, n, f = self._net, self._n, self._family
        q = self._turned(self._headed(x, f.heads), f.heads, turns)
        k = self._turned(self._headed(x, f.groups), f.groups, turns)
        v = net.dense(x, self._weights(f.groups * f.size, f.width), (1, n, f.groups * f.size))
        keys, values = self._written(caches, k, self._columns(v), places)
        scale = net.graph.constant(np.float32(f.size**-0.5))
        q, rows = net("MUL", [q, scale], (1, f.heads, n, f.size)), f.heads // f.groups * n
        shape, logits = (1, f.groups, rows, f.size), (1, f.groups, rows, self._capacity)
        q = net("RESHAPE", [q, net.integers(*shape)], shape)
        y = net("BATCH_MATMUL", [q, keys], logits, BatchMatMulOptions(adj_y=True))
        if f.cap:
            y = net("MUL", [y, net.graph.constant(np.float32(1 / f.cap))], logits)
            y = net(
                "MUL", [net("TANH", [y], logits), net.graph.constant(np.float32(f.cap))], logits
            )
        if f.heads > f.groups:
            repeated = [mask] * (f.heads // f.groups)
            whole = (1, 1, rows, self._capacity)
            mask = net("CONCATENATION", repeated, whole, ConcatenationOptions(2))
        y = net("SOFTMAX", [net("ADD", [y, mask], logits)], logits, SoftmaxOptions(beta=1.0))
        y = net("BATCH_MATMUL", [y, values], shape, BatchMatMulOptions(adj_y=True))
        y = self._ordered(y, (1, f.heads, n, f.size), (0, 2, 1, 3))
        return (
            net("RESHAPE", [y, net.integers(1, n, f.heads * f.size)], (1, n, f.heads * f.size)),
            keys,
            values,
        )

    def _ordered(self, x: int, shape: Sequence[int], order: Sequence[int]) -> int:
        """`x` in a shape, transposed; of one token, reshaped at once."""
        net, new = self._net, tuple(shape[i] for i in order)
        if self._n == 1:
            return net("RESHAPE", [x, net.integers(*new)], new)
        x = net("RESHAPE", [x, net.integers(*shape)], shape)
        return net("TRANSPOSE", [x, net.integers(*order)], new)

    def _headed(self, x: int, heads: int) -> int:
        """Projected heads [1, heads, n, size], perhaps normalized."""
        net, n, f = self._net, self._n, self._family
        y = net.dense(x, self._weights(heads * f.size, f.width), (1, n, heads * f.size))
        y = self._ordered(y, (1, n, heads, f.size), (0, 2, 1, 3))
        if not f.norms:
            return y
        scale = net.graph.constant(self._random.uniform(0.5, 2, f.size).astype(np.float32))
        shape = (1, heads, n, f.size)
        number = self._model.n_subgraphs
        rms_norm(self._model.subgraph(f"norm_{number}"), shape)
        data = bytes(flexbuffers.Dumps({"epsilon": EPSILON}))
        o = StableHLOCompositeOptions("odml.rms_norm", number, data)
        return net("STABLEHLO_COMPOSITE", [y, scale], shape, o)

    def _turned(self, x: int, heads: int, turns: tuple[int, int]) -> int:
        if not self._family.rotates:
            return x
        net, n, half = self._net, self._n, self._family.size // 2
        shape, piece = (1, heads, n, 2 * half), (1, heads, n, half)
        one, two = (
            net("SLICE", [x, net.integers(0, 0, 0, begin), net.integers(*piece)], piece)
            for begin in (0, half)
        )
        two = net("MUL", [two, net.graph.constant(np.float32(-1))], piece)
        turned = net("CONCATENATION", [two, one], shape, ConcatenationOptions(3))
        pairs = zip((x, turned), turns, strict=True)
        return net("ADD", [net("MUL", pair, shape) for pair in pairs], shape)

    def _columns(self, v: int) -> int:
        """Values [1, groups, size, n]."""
        f = self._family
        return self._ordered(v, (1, self._n, f.groups, f.size), (0, 2, 3, 1))

    def _written(self, caches: Sequence[int], k: int, v: int, places: int) -> tuple[int, int]:
        net, f, zero = self._net, self._family, self._net.graph.constant(np.int32(0))
        start = net("SLICE", [places, net.integers(0), net.integers(1)], (1,), dtype=np.int32)
        start = net(
            "RESHAPE", [start, net.graph.constant(np.zeros(0, np.int32))], (), dtype=np.int32
        )
        shapes = (1, f.groups, self._capacity, f.size), (1, f.groups, f.size, self._capacity)
        found = []
        for cache, new, shape, axis in zip(caches, (k, v), shapes, (2, 3), strict=True):
            at = [start if i == axis else zero for i in range(4)]
            where = net("PACK", at, (4,), PackOptions(4, 0), dtype=np.int32)
            found.append(net("DYNAMIC_UPDATE_SLICE", [cache, new, where], shape))
        return found[0], found[1]


def rms_norm(graph: SubgraphBuilder, shape: Sequence[int]) -> None:
    """A subgraph of x and scale: x / sqrt(mean(x^2) + EPSILON) * scale, over the last axis."""
    net, mean = Net(graph), (*shape[:-1], 1)
    x, scale = graph.input(shape, np.float32), graph.input(shape[-1:], np.float32)
    y = net("MEAN", [net("MUL", [x, x], shape), net.integers(-1)], mean, ReducerOptions(True))
    y = net("ADD", [y, graph.constant(np.float32(EPSILON))], mean)
    y = net("MUL", [x, net("RSQRT", [y], mean)], shape)
    graph.outputs(net("MUL", [y, scale], shape))
