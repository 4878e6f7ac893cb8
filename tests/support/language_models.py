"""A tiny language model with random weights, and bundles of it, which LiteRT-LM runs too."""

import functools
import json
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from litert_lm_builder.runtime.proto import llm_metadata_pb2

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import (
    BatchMatMulOptions,
    FullyConnectedOptions,
    Options,
    PackOptions,
    ReducerOptions,
    SoftmaxOptions,
    SqueezeOptions,
)
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.builder import SubgraphBuilder
from tests.support.bundles import TYPES, Part, compressed, litertlm, model_part

SPECIAL = ("<pad>", "<bos>", "<eos>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 256 + len(SPECIAL)
_BEFORE = 0.05  # the share of the activations before a drafted token
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@functools.cache
def language_model(
    *,
    vocabulary: int = VOCABULARY,
    hidden: int = 16,
    capacity: int = 128,
    prefill: Sequence[int] = (8,),
    seed: int = 0,
    is_rigid: bool = False,
    has_embedders: bool = False,
    is_recurrent: bool = False,
    verify: int = 0,
    is_gemma4: bool = False,
    lora_ranks: Sequence[int] = (),
    lora: int = 0,
) -> bytes:
    """A model of one attention layer, with the signatures and names of litert-torch's exports.

    Signatures prefill_N and decode: int32 `tokens` [1, N] and `input_pos` [N], float32 `mask`
    [1, 1, N, capacity], added to scores, and the caches `kv_cache_k_0` [1, 1, capacity, hidden] and
    `kv_cache_v_0` [1, 1, hidden, capacity], also outputs. decode has N = 1, and returns `logits`
    [1, 1, vocabulary]. `is_rigid`: it can be computed with caches of this capacity only.
    `has_embedders`: instead of `tokens` it takes float32 `embeddings` [1, N, hidden] and
    `per_layer_embeddings` [1, N, 1, hidden], of `embedders`. `is_recurrent`: it has a state
    `kv_cache_c_0` [1, hidden] besides, a sum over all tokens but `<pad>`, which changes the logits.
    `verify`: a signature of this name processes this number of tokens and returns the logits of all
    of them; it and decode return `activations` [1, N, hidden], too, for `drafter`. `is_gemma4`: it
    has bool masks, int8 caches, and int32 `param_tensor` [1, 1, 1, 7], whose first number is the
    place of the new entries. `lora_ranks`: for each there are signatures prefill_N_lora_rR and
    decode_lora_rR besides, which take the factors of queries and values, too, as litert-torch's
    exports do. `lora`: all signatures take factors of this rank, by LiteRT-LM's other names.
    """
    builder = ModelBuilder("language model")
    layer = _Layer(
        vocabulary,
        hidden,
        capacity,
        seed,
        is_rigid=is_rigid,
        has_embedders=has_embedders,
        is_recurrent=is_recurrent,
        has_activations=verify > 0,
        is_gemma4=is_gemma4,
    )
    lengths = {f"prefill_{n}": n for n in prefill} | {"decode": 1}
    lengths |= {"verify": verify} if verify else {}
    steps = [(key, n, lora, INLINE) for key, n in lengths.items()]
    for rank in lora_ranks:
        steps += [(f"{key}_lora_r{rank}", n, rank, EXPORTED) for key, n in lengths.items()]
    for number, (key, length, rank, names) in enumerate(steps):
        graph = builder if number == 0 else builder.subgraph(f"graph_{number}")
        layer.factors = factor_shapes(names, rank, hidden) if rank else {}
        inputs, outputs = layer.built(graph, length, has_logits=not key.startswith("prefill"))
        builder.signature(key, inputs, outputs, number)
    return builder.build()


EXPORTED = ("lora_atten_q_{}_prime_weight_0", "lora_atten_v_{}_prime_weight_0"), ("a", "b")
INLINE = ("query_w_prime_{}_0", "value_w_prime_{}_0"), ("left", "right")
Names = tuple[tuple[str, str], tuple[str, str]]


def factor_shapes(names: Names, rank: int, hidden: int = 16) -> dict[str, tuple[int, int]]:
    """The factors of an adapter by name: of queries, then of values, a product each."""
    shapes = (hidden, rank), (rank, hidden)
    return {
        product.format(side): shape
        for product in names[0]
        for side, shape in zip(names[1], shapes, strict=True)
    }


def adapter_factors(names: Names, rank: int, seed: int) -> dict[str, np.ndarray]:
    """An adapter of random factors, which changes answers."""
    rng = np.random.default_rng(seed)
    shapes = factor_shapes(names, rank)
    return {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def adapter_file(factors: Mapping[str, np.ndarray], rank: int = 0) -> bytes:
    """A file as litert-torch writes it. `rank`: in its metadata, in place of a buffer's index."""
    builder = ModelBuilder("lora_params")
    for name, factor in factors.items():
        builder.constant(factor, name)

    def edit(model: schema.ModelT) -> None:
        entry = schema.MetadataT()
        entry.name, entry.buffer = "lora_rank", rank
        model.metadata = [entry]

    # LiteRT-LM finds data by its offset in the file.
    return builder.build(outside=True, edit=edit if rank else None)


@functools.cache
def drafter(
    *,
    vocabulary: int = VOCABULARY,
    hidden: int = 16,
    capacity: int = 128,
    seed: int = 0,
    is_gemma4: bool = False,
) -> bytes:
    """A drafter for the model of the same arguments with embedders and `verify`.

    Its signature takes float32 `activations` [1, 1, 2 * hidden]: a token's embedding, then the
    activations of the place before; int32 `input_pos` [1]: that place, its `mask`, and the model's
    caches. It returns `logits` [1, 1, vocabulary] and `projected_activations` [1, 1, hidden], which
    stand for the next activations. It is right where attention to the token itself does not matter.
    """
    builder = ModelBuilder("drafter")
    layer = _Layer(vocabulary, hidden, capacity, seed, has_embedders=True, is_gemma4=is_gemma4)
    builder.signature("mtp_drafter", *layer.drafting(builder), 0)
    return builder.build()


def weights_of_logits() -> np.ndarray:
    """float32 [vocabulary, hidden]: the last constant of `language_model()`."""
    return _Layer(VOCABULARY, 16, 128, 0)._last


class _Layer:
    def __init__(
        self,
        vocabulary: int,
        hidden: int,
        capacity: int,
        seed: int,
        *,
        is_rigid: bool = False,
        has_embedders: bool = False,
        is_recurrent: bool = False,
        has_activations: bool = False,
        is_gemma4: bool = False,
    ) -> None:
        self._is_rigid, self._has_embedders = is_rigid, has_embedders
        self._is_recurrent, self._is_gemma4 = is_recurrent, is_gemma4
        self._has_activations = has_activations
        self.factors: Mapping[str, tuple[int, int]] = {}  # of an adapter, which it takes
        self._vocabulary, self._hidden, self._capacity = vocabulary, hidden, capacity
        rng = np.random.default_rng(seed)
        self._embedding, self._positions = (
            rng.normal(size=(rows, hidden)).astype(np.float32) for rows in (vocabulary, capacity)
        )
        square, scale = (hidden, hidden), 1 / np.sqrt(hidden)
        self._q, self._k, self._v = (
            rng.normal(0, scale, square).astype(np.float32) for _ in range(3)
        )
        self._last = rng.normal(size=(vocabulary, hidden)).astype(np.float32)
        self._memory = rng.normal(0, 0.3, (vocabulary, hidden)).astype(np.float32)
        self._memory[0] = 0  # <pad>

    def built(
        self, graph: SubgraphBuilder, length: int, *, has_logits: bool
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Add the layer to a subgraph; returns the names of its inputs and outputs."""
        n, width = length, self._hidden
        inputs = {**self._what(graph, n), **self._where(graph, n)}
        net = Net(graph)
        if self._has_embedders:
            own, more = inputs["embeddings"], inputs["per_layer_embeddings"]
            more = net("RESHAPE", [more, net.integers(1, n, width)], (1, n, width))
            x = net("ADD", [own, more], (1, n, width))
        else:
            tokens = inputs["tokens"]
            x = net("GATHER", [graph.constant(self._embedding), tokens], (1, n, width))
        places = net("GATHER", [graph.constant(self._positions), inputs["input_pos"]], (n, width))
        x = net("ADD", [x, places], (1, n, width))
        queries, keys, values = (
            net.dense(x, w, (1, n, width)) for w in (self._q, self._k, self._v)
        )
        if self.factors:
            factors = {k: graph.input(s, np.float32, k) for k, s in self.factors.items()}
            inputs |= factors
            of_queries, of_values = [*factors.values()][:2], [*factors.values()][2:]
            queries = net("ADD", [queries, net.product(x, of_queries, n, width)], (1, n, width))
            values = net("ADD", [values, net.product(x, of_values, n, width)], (1, n, width))
        k, v = self._caches(net, inputs, keys, values, n)
        y = self._attention(net, queries, k, v, inputs["mask"], n)
        outputs = {"kv_cache_k_0": k, "kv_cache_v_0": v}
        if self._is_recurrent:
            inputs["kv_cache_c_0"] = graph.input((1, width), np.float32, "kv_cache_c_0")
            outputs["kv_cache_c_0"] = self._remembered(net, inputs, n)
        if has_logits:
            y = net("ADD", [x, y], (1, n, width))
            if self._is_recurrent:
                y = net("ADD", [y, outputs["kv_cache_c_0"]], (1, n, width))
            if self._has_activations:
                outputs["activations"] = y
            outputs["logits"] = net.dense(y, self._last, (1, n, self._vocabulary))
        graph.outputs(*outputs.values())
        return inputs, outputs

    def drafting(self, graph: SubgraphBuilder) -> tuple[dict[str, int], dict[str, int]]:
        """The drafter of this layer; returns the names of its inputs and outputs."""
        width, net = self._hidden, Net(graph)
        shape = (1, 1, width)
        both = graph.input((1, 1, 2 * width), np.float32, "activations")
        inputs = {"activations": both, **self._where(graph, 1)}
        token, before = (
            net("SLICE", [both, net.integers(0, 0, i * width), net.integers(*shape)], shape)
            for i in range(2)
        )
        token = net("ADD", [token, graph.constant(np.full(shape, 0.5, np.float32))], shape)
        next_places = graph.constant(np.roll(self._positions, -1, 0))
        place = net("GATHER", [next_places, inputs["input_pos"]], (1, width))
        x = net("ADD", [token, place], shape)
        queries = net.dense(x, self._q, shape)
        caches = inputs["kv_cache_k_0"], inputs["kv_cache_v_0"]
        y = net("ADD", [x, self._attention(net, queries, *caches, inputs["mask"], 1)], shape)
        before = net("MUL", [before, graph.constant(np.full(shape, _BEFORE, np.float32))], shape)
        y = net("ADD", [y, before], shape)
        logits = net.dense(y, self._last, (1, 1, self._vocabulary))
        outputs = {"logits": logits, "projected_activations": y}
        graph.outputs(*outputs.values())
        return inputs, outputs

    def _where(self, graph: SubgraphBuilder, n: int) -> dict[str, int]:
        """The inputs besides tokens."""
        width, capacity = self._hidden, self._capacity
        inputs = {
            "input_pos": graph.input((n,), np.int32, "input_pos"),
            "mask": graph.input((1, 1, n, capacity), self._types[0], "mask"),
        }
        for name, shape in (("k", (capacity, width)), ("v", (width, capacity))):
            key = f"kv_cache_{name}_0"
            inputs[key] = graph.input((1, 1, *shape), self._types[1], key, **self._scaled)
        if self._is_gemma4:
            inputs["param_tensor"] = graph.input((1, 1, 1, 7), np.int32, "param_tensor")
        return inputs

    @property
    def _types(self) -> tuple[Any, Any]:
        """The types of masks and of caches."""
        return (np.bool_, np.int8) if self._is_gemma4 else (np.float32, np.float32)

    @property
    def _scaled(self) -> dict[str, Any]:
        """How caches are quantized."""
        quantization = Quantization(np.array([1 / 32], np.float32), np.zeros(1, np.int64))
        return {"quantization": quantization} if self._is_gemma4 else {}

    def _what(self, graph: SubgraphBuilder, n: int) -> dict[str, int]:
        if not self._has_embedders:
            return {"tokens": graph.input((1, n), np.int32, "tokens")}
        names = {
            "embeddings": (1, n, self._hidden),
            "per_layer_embeddings": (1, n, 1, self._hidden),
        }
        return {name: graph.input(shape, np.float32, name) for name, shape in names.items()}

    def _caches(
        self, net: "Net", inputs: dict[str, int], keys: int, values: int, n: int
    ) -> tuple[int, int]:
        """Both caches with the new entries from the first position on."""
        width, capacity = self._hidden, self._capacity
        places = inputs["param_tensor" if self._is_gemma4 else "input_pos"]
        ones = (1,) * (4 if self._is_gemma4 else 1)
        first = [net.integers(*(0 for _ in ones)), net.integers(*ones)]
        start = net("SLICE", [places, *first], ones, dtype=np.int32)
        axes = SqueezeOptions(tuple(range(len(ones))))
        start = net("SQUEEZE", [start], (), axes, dtype=np.int32)
        zero = net.graph.constant(np.int32(0))
        columns = net("TRANSPOSE", [values, net.integers(0, 2, 1)], (1, width, n))
        caches = []
        for name, new, shape, new_shape, axis in (
            ("kv_cache_k_0", keys, (1, 1, capacity, width), (1, 1, n, width), 2),
            ("kv_cache_v_0", columns, (1, 1, width, capacity), (1, 1, width, n), 3),
        ):
            at = [start if i == axis else zero for i in range(4)]
            where = net("PACK", at, (4,), PackOptions(4, 0), dtype=np.int32)
            entries = net("RESHAPE", [new, net.integers(*new_shape)], new_shape)
            if self._is_gemma4:
                entries = net("QUANTIZE", [entries], new_shape, dtype=np.int8, **self._scaled)
            operands, details = [inputs[name], entries, where], {"dtype": self._types[1]}
            details |= self._scaled
            caches.append(net("DYNAMIC_UPDATE_SLICE", operands, shape, **details))
        return caches[0], caches[1]

    def _remembered(self, net: "Net", inputs: dict[str, int], n: int) -> int:
        """The recurrent state with these tokens."""
        width, memory = self._hidden, net.graph.constant(self._memory)
        x = net("GATHER", [memory, inputs["tokens"]], (1, n, width))
        x = net("SUM", [x, net.integers(1)], (1, width), ReducerOptions())
        return net("ADD", [inputs["kv_cache_c_0"], x], (1, width))

    def _attention(
        self, net: "Net", queries: int, keys: int, values: int, mask: int, n: int
    ) -> int:
        width, scores = self._hidden, (1, 1, n, self._capacity)
        if self._is_gemma4:
            shapes = (1, 1, self._capacity, width), (1, 1, width, self._capacity)
            pairs = zip((keys, values), shapes, strict=True)
            keys, values = (net("DEQUANTIZE", [cache], shape) for cache, shape in pairs)
        q = net("RESHAPE", [queries, net.integers(1, 1, n, width)], (1, 1, n, width))
        y = net("BATCH_MATMUL", [q, keys], scores, BatchMatMulOptions(adj_y=True))
        if self._is_gemma4:
            masked = net.graph.constant(np.full((1, 1, 1, 1), -1e9, np.float32))
            y = net("SELECT_V2", [mask, y, masked], scores)
        else:
            y = net("ADD", [y, mask], scores)
        if self._is_rigid:
            y = net("RESHAPE", [y, net.integers(*scores)], scores)
        y = net("SOFTMAX", [y], scores, SoftmaxOptions(beta=1.0))
        y = net("BATCH_MATMUL", [y, values], (1, 1, n, width), BatchMatMulOptions(adj_y=True))
        return net("RESHAPE", [y, net.integers(1, n, width)], (1, n, width))


class Net:
    """Adds operators to a subgraph; each returns the index of its result."""

    def __init__(self, graph: SubgraphBuilder) -> None:
        self.graph = graph

    def __call__(
        self,
        operator: str,
        inputs: Sequence[int | None],
        shape: Sequence[int],
        options: Options | None = None,
        dtype: Any = np.float32,
        **details: Any,
    ) -> int:
        y = self.graph.tensor(shape, dtype, **details)
        self.graph.operator(operator, inputs, [y], options)
        return y

    def dense(self, x: int, weights: np.ndarray, shape: Sequence[int]) -> int:
        options = FullyConnectedOptions(keep_num_dims=True)
        return self("FULLY_CONNECTED", [x, self.graph.constant(weights), None], shape, options)

    def product(self, x: int, factors: Sequence[int], n: int, width: int) -> int:
        """x @ left @ right, of an adapter."""
        rank = self.graph._t.tensors[factors[0]].shape[1]
        y = self("BATCH_MATMUL", [x, factors[0]], (1, n, rank), BatchMatMulOptions())
        return self("BATCH_MATMUL", [y, factors[1]], (1, n, width), BatchMatMulOptions())

    def integers(self, *values: int) -> int:
        return self.graph.constant(np.array(values, np.int32))


def embedders(*, vocabulary: int = VOCABULARY, hidden: int = 16, seed: int = 0) -> list[bytes]:
    """The models of the parts embedder and per_layer_embedder.

    The sum of their results is what the model of the same arguments reads from its own table: the
    first one returns a half less in each element, the second one the halves.
    """
    table = np.random.default_rng(seed).normal(size=(vocabulary, hidden)).astype(np.float32)
    half = np.full_like(table, 0.5)
    found = []
    for key, values, shape in (
        ("decode_embedder", table - half, (1, 1, hidden)),
        ("decode_per_layer_embedder", half, (1, 1, 1, hidden)),
    ):
        builder = ModelBuilder(key)
        net, token = Net(builder), builder.input((1, 1), np.int32, "token_ids")
        y = net("GATHER", [builder.constant(values), token], (1, 1, hidden))
        if len(shape) == 4:
            y = net("RESHAPE", [y, net.integers(*shape)], shape)
        builder.outputs(y)
        builder.signature(key, {"token_ids": token}, {"embeddings": y}, 0)
        found.append(builder.build())
    return found


@functools.cache
def byte_tokenizer() -> bytes:
    """The JSON of a tokenizer whose tokens are `SPECIAL` and the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]  # of GPT-2's bytes
    others = [i for i in range(256) if i not in printable]
    letters = {i: chr(i) for i in printable} | {i: chr(256 + n) for n, i in enumerate(others)}
    first = len(SPECIAL)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": i, "content": t, "special": True, **flags} for i, t in enumerate(SPECIAL)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": {**byte_level, "use_regex": False},
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "vocab": {t: i for i, t in enumerate(SPECIAL)}
                | {letters[i]: first + i for i in range(256)},
                "merges": [],
            },
        }
    ).encode()


def language_bundle(
    template: str | None = CHATML,
    *,
    model: bytes | None = None,
    others: Mapping[str, bytes] = types.MappingProxyType({}),
    edit: Callable[[Any], object] | None = None,
    sections: Sequence[Part] = (),
) -> bytes:
    """A `.litertlm` file of a tiny language model, the start token "<bos>", the stop token "<eos>".

    Args:
        template: the chat template; None: the bundle has none.
        model: None: `language_model()`.
        others: further models, by model_type.
        edit: changes the message LlmMetadata before it is written.
        sections: further ones.
    """
    m = llm_metadata_pb2.LlmMetadata()
    if template is not None:
        m.jinja_prompt_template = template
    m.start_token.token_str = "<bos>"
    m.stop_tokens.add().token_str = "<eos>"
    m.llm_model_type.generic_model.SetInParent()
    if edit is not None:
        edit(m)
    return litertlm(
        [
            (TYPES.LlmMetadataProto, {}, bytes(m.SerializeToString())),
            (TYPES.HF_Tokenizer_Zlib, {}, compressed(byte_tokenizer())),
            model_part("tf_lite_prefill_decode", language_model() if model is None else model),
            *(model_part(name, content) for name, content in others.items()),
            *sections,
        ]
    )


def drafter_bundle(*, verify: int = 4, edit: Callable[[Any], object] | None = None) -> bytes:
    """A bundle with the parts and inputs of gemma-4's, which LiteRT-LM runs, too."""
    own, more = embedders()
    return language_bundle(
        model=language_model(has_embedders=True, verify=verify, is_gemma4=True),
        others={
            "tf_lite_embedder": own,
            "tf_lite_per_layer_embedder": more,
            "tf_lite_mtp_drafter": drafter(is_gemma4=True),
        },
        edit=edit,
    )


# ---- what a model answers


def most_likely(
    model: bytes,
    ids: Sequence[int],
    count: int,
    seen: Callable[[int], Mapping[str, Iterable[int]]] = lambda n: {"mask": range(n + 1)},
    key: str = "decode",
    factors: Mapping[str, np.ndarray] = types.MappingProxyType({}),
) -> list[int]:
    """The most likely tokens by numpy kernels, a token at a time.

    Args:
        model: the file.
        ids: the tokens so far.
        count: how many more.
        seen: by mask, the places that a token at a position sees.
        key: of the signature.
        factors: of an adapter.
    """
    run = jd.Interpreter(model_content=model).get_signature_runner(key)
    state = {n: np.zeros(d["shape"], d["dtype"]) for n, d in run.get_input_details().items()}
    state |= factors
    tokens = list(ids)
    for position in range(len(ids) + count - 1):
        state["tokens"][:], state["input_pos"][:] = tokens[position], position
        for name, places in seen(position).items():
            state[name][:] = -0.7 * np.finfo(np.float32).max
            state[name][..., list(places)] = 0
        results = run(**state)
        state = {name: results.get(name, value) for name, value in state.items()}
        if position == len(tokens) - 1:
            tokens.append(int(results["logits"].argmax()))
    return tokens[len(ids) :]


def until_stop(tokens: list[int]) -> list[int]:
    stop = SPECIAL.index("<eos>")
    return tokens[: tokens.index(stop)] if stop in tokens else tokens
