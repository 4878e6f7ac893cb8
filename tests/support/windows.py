"""A tiny model with a layer that sees only the last tokens, as litert-torch exports Gemma's."""

from collections.abc import Sequence

import numpy as np
from litert_lm_builder.runtime.proto import executor_metadata_pb2

from jaxdelegate.op_lowering.options import (
    BatchMatMulOptions,
    CastOptions,
    ConcatenationOptions,
    PackOptions,
    ReducerOptions,
    SoftmaxOptions,
    SqueezeOptions,
)
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.builder import SubgraphBuilder
from tests.support.bundles import TYPES, Part
from tests.support.language_models import VOCABULARY, Net

HIDDEN = 16
Names = dict[str, int]


def windowed_model(
    *, capacity: int = 64, ring: int = 16, prefill: Sequence[int] = (8,), verify: int = 0
) -> bytes:
    """A model of two layers of attention, with the signatures of `language_model`.

    The second one has caches of `ring` entries, `kv_cache_k_1` [1, 1, ring, HIDDEN] and
    `kv_cache_v_1` [1, 1, HIDDEN, ring], and float32 `local_mask`: in decode [1, 1, 1, ring], after
    the token's entry is written; in prefill_N [1, 1, N, ring + N], of the caches before, then of
    the N tokens, whose entries are written where positions are above 0 or the first ones. `verify`:
    so does a signature of this name for this number of tokens.
    """
    builder = ModelBuilder("windows")
    lengths = {f"prefill_{n}": n for n in prefill} | {"decode": 1}
    lengths |= {"verify": verify} if verify else {}
    for number, (key, n) in enumerate(lengths.items()):
        graph = builder if number == 0 else builder.subgraph(f"graph_{number}")
        ends = _Windowed(graph, n, capacity, ring).built(has_logits=not key.startswith("prefill"))
        builder.signature(key, *ends, number)
    return builder.build()


class _Windowed:
    def __init__(self, graph: SubgraphBuilder, n: int, capacity: int, ring: int) -> None:
        self._net, self._n, self._capacity, self._ring = Net(graph), n, capacity, ring
        self._rng = np.random.default_rng(1)

    def _weights(self, *shape: int) -> np.ndarray:
        scale = 1 if len(set(shape)) > 1 else 1 / np.sqrt(HIDDEN)
        return self._rng.normal(0, scale, shape).astype(np.float32)

    def built(self, *, has_logits: bool) -> tuple[Names, Names]:
        net, n, graph = self._net, self._n, self._net.graph
        width = self._ring + (n if n > 1 else 0)
        inputs = {
            "tokens": graph.input((1, n), np.int32, "tokens"),
            "input_pos": graph.input((n,), np.int32, "input_pos"),
            "mask": graph.input((1, 1, n, self._capacity), np.float32, "mask"),
            "local_mask": graph.input((1, 1, n, width), np.float32, "local_mask"),
        }
        for layer, entries in enumerate((self._capacity, self._ring)):
            for name, shape in (("k", (1, 1, entries, HIDDEN)), ("v", (1, 1, HIDDEN, entries))):
                key = f"kv_cache_{name}_{layer}"
                inputs[key] = graph.input(shape, np.float32, key)
        table = graph.constant(self._weights(VOCABULARY, HIDDEN))
        x = net("GATHER", [table, inputs["tokens"]], (1, n, HIDDEN))
        places = graph.constant(self._weights(self._capacity, HIDDEN))
        place = net("GATHER", [places, inputs["input_pos"]], (n, HIDDEN))
        x = net("ADD", [x, place], (1, n, HIDDEN))
        outputs: Names = {}
        for layer, mask in enumerate(("mask", "local_mask")):
            q, k, v = (net.dense(x, self._weights(HIDDEN, HIDDEN), (1, n, HIDDEN)) for _ in "qkv")
            caches = inputs[f"kv_cache_k_{layer}"], inputs[f"kv_cache_v_{layer}"]
            new = self._entries(k, v)
            if layer == 1 and n > 1:
                written = self._routed(inputs["input_pos"], *caches, *new)
                seen = self._joined(*caches, *new)
            else:
                written = seen = self._written(inputs["input_pos"], *caches, *new, layer)
            outputs |= {f"kv_cache_k_{layer}": written[0], f"kv_cache_v_{layer}": written[1]}
            y = self._attention(q, *seen, inputs[mask], width if layer else self._capacity)
            x = net("ADD", [x, y], (1, n, HIDDEN))
        if has_logits:
            last = self._weights(VOCABULARY, HIDDEN)
            outputs |= {"logits": net.dense(x, last, (1, n, VOCABULARY)), "activations": x}
        graph.outputs(*outputs.values())
        return inputs, outputs

    def _entries(self, k: int, v: int) -> tuple[int, int]:
        net, n = self._net, self._n
        columns = net("TRANSPOSE", [v, net.integers(0, 2, 1)], (1, HIDDEN, n))
        shapes = (1, 1, n, HIDDEN), (1, 1, HIDDEN, n)
        pairs = zip((k, columns), shapes, strict=True)
        k, v = (net("RESHAPE", [x, net.integers(*shape)], shape) for x, shape in pairs)
        return k, v

    def _written(
        self, places: int, k: int, v: int, new_k: int, new_v: int, layer: int
    ) -> tuple[int, int]:
        """Caches with new entries from the first place on; of the second layer, its remainder."""
        net, entries = self._net, (self._capacity, self._ring)[layer]
        start = net("SLICE", [places, net.integers(0), net.integers(1)], (1,), dtype=np.int32)
        if layer == 1:
            start = net("FLOOR_MOD", [start, net.integers(self._ring)], (1,), dtype=np.int32)
        start = net("SQUEEZE", [start], (), SqueezeOptions((0,)), dtype=np.int32)
        zero, found = net.graph.constant(np.int32(0)), []
        for cache, new, shape in (
            (k, new_k, (1, 1, entries, HIDDEN)),
            (v, new_v, (1, 1, HIDDEN, entries)),
        ):
            at = [start if size == entries else zero for size in shape]
            where = net("PACK", at, (4,), PackOptions(4, 0), dtype=np.int32)
            found.append(net("DYNAMIC_UPDATE_SLICE", [cache, new, where], shape))
        return found[0], found[1]

    def _joined(self, k: int, v: int, new_k: int, new_v: int) -> tuple[int, int]:
        net, width = self._net, self._ring + self._n
        shapes = (1, 1, width, HIDDEN), (1, 1, HIDDEN, width)
        keys = net("CONCATENATION", [k, new_k], shapes[0], ConcatenationOptions(2))
        return keys, net("CONCATENATION", [v, new_v], shapes[1], ConcatenationOptions(3))

    def _routed(self, places: int, k: int, v: int, new_k: int, new_v: int) -> tuple[int, int]:
        """Caches with the entries of tokens: those whose place is above 0, and the first one."""
        net, n, ring = self._net, self._n, self._ring
        rest = net("FLOOR_MOD", [places, net.integers(ring)], (n,), dtype=np.int32)
        rest = net("RESHAPE", [rest, net.integers(n, 1)], (n, 1), dtype=np.int32)
        numbers = net.graph.constant(np.arange(ring, dtype=np.int32)[None])
        is_here = net("EQUAL", [rest, numbers], (n, ring), dtype=np.bool_)
        before = net.integers(-1, *[0] * (n - 1))
        is_token = net("GREATER", [places, before], (n,), dtype=np.bool_)
        is_token = net("RESHAPE", [is_token, net.integers(n, 1)], (n, 1), dtype=np.bool_)
        routes = net("LOGICAL_AND", [is_here, is_token], (n, ring), dtype=np.bool_)
        cast = CastOptions(TensorType.BOOL, TensorType.FLOAT32)
        routes = net("CAST", [routes], (n, ring), cast)
        routes = net("RESHAPE", [routes, net.integers(1, 1, n, ring)], (1, 1, n, ring))
        kept = net("SUM", [routes, net.integers(2)], (1, 1, ring), ReducerOptions())
        ones = net.graph.constant(np.ones((1, 1, ring), np.float32))
        kept = net("SUB", [ones, kept], (1, 1, ring))
        found = []
        for cache, new, shape, adj in (
            (k, new_k, (1, 1, ring, HIDDEN), True),
            (v, new_v, (1, 1, HIDDEN, ring), False),
        ):
            pair = [routes, new] if adj else [new, routes]
            moved = net("BATCH_MATMUL", pair, shape, BatchMatMulOptions(adj_x=adj))
            sizes = (1, 1, ring, 1) if adj else (1, 1, 1, ring)
            share = net("RESHAPE", [kept, net.integers(*sizes)], sizes)
            old = net("MUL", [cache, share], shape)
            found.append(net("ADD", [old, moved], shape))
        return found[0], found[1]

    def _attention(self, q: int, k: int, v: int, mask: int, width: int) -> int:
        net, n = self._net, self._n
        q = net("RESHAPE", [q, net.integers(1, 1, n, HIDDEN)], (1, 1, n, HIDDEN))
        scores = (1, 1, n, width)
        y = net("BATCH_MATMUL", [q, k], scores, BatchMatMulOptions(adj_y=True))
        y = net("SOFTMAX", [net("ADD", [y, mask], scores)], scores, SoftmaxOptions(beta=1.0))
        y = net("BATCH_MATMUL", [y, v], (1, 1, n, HIDDEN), BatchMatMulOptions(adj_y=True))
        return net("RESHAPE", [y, net.integers(1, n, HIDDEN)], (1, n, HIDDEN))


def executor_metadata(*, capacity: int = 64, ring: int = 16, window: int = 8) -> Part:
    """The section that declares the caches and masks of `windowed_model`."""
    m = executor_metadata_pb2.ExecutorMetadata()
    llm, buffers = m.llm_executor_metadata, executor_metadata_pb2.StateBuffer
    for layer, (kind, entries) in enumerate((("GLOBAL", capacity), ("LOCAL", ring))):
        for name, word, axis in (("k", "KEY", 2), ("v", "VALUE", 3)):
            key = f"kv_cache_{name}_{layer}"
            llm.state_buffers.add(
                prefill_input_name=key,
                prefill_output_name=key,
                decode_input_name=key,
                decode_output_name=key,
                type=getattr(buffers, f"TYPE_{kind}_{word}_CACHE"),
                sequence_axis=axis,
                maximum_sequence_length=entries,
            )
    causal = executor_metadata_pb2.ATTENTION_MASK_TYPE_CAUSAL
    llm.attention_mask_settings.attention_mask_type = causal
    llm.attention_mask_settings.local_attention_mask_type = causal
    llm.attention_mask_settings.sliding_window_size = window
    return TYPES.ExecutorMetadataProto, {}, bytes(m.SerializeToString())
