"""A tiny text encoder with random weights, and bundles of it, which LiteRT-LM runs too."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from litert_lm_builder.runtime.proto import embedding_metadata_pb2

from jaxdelegate.op_lowering.options import BatchMatMulOptions, ReducerOptions, SoftmaxOptions
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.builder import SubgraphBuilder
from tests.support.audio_models import audio_adapter, audio_encoder, end_of_audio
from tests.support.bundles import TYPES, Part, compressed, litertlm, model_part
from tests.support.language_models import Net, byte_tokenizer, embedders
from tests.support.vision_models import PATCH, POOL, adapter, end_of_vision, patch_encoder

_MASKED = -1e4


@functools.cache
def text_encoder(
    lengths: Sequence[int] = (8, 16),
    *,
    hidden: int = 16,
    size: int = 12,
    has_mask: bool = True,
    has_per_layer: bool = True,
) -> bytes:
    """A model of one attention layer, with the signatures and names of LiteRT-LM's text encoders.

    Signatures encoder_N: float32 `embeddings` [1, N, hidden], `per_layer_embeddings`
    [1, N, 1, hidden], added to them, and `input_mask` [1, N], 1 for each token; `output`
    [1, size]. The order of tokens matters. `has_mask`, `has_per_layer`: whether it has the inputs.
    """
    builder = ModelBuilder("text encoder")
    layer = _Layer(max(lengths), hidden, size)
    for number, length in enumerate(lengths):
        graph = builder if number == 0 else builder.subgraph(f"graph_{number}")
        inputs, output = layer.built(graph, length, has_mask, has_per_layer)
        builder.signature(f"encoder_{length}", inputs, {"output": output}, number)
    return builder.build()


def gemma(m: Any) -> None:
    """Declare images and sounds, as embedding_gemma_v2 does."""
    own = m.embedding_model_type.embedding_gemma_v2
    own.start_of_image_token.token_ids.ids.append(5)
    own.start_of_audio_token.token_str = "<|im_start|>"
    own.end_of_audio_token.token_str = "<|im_end|>"
    own.patch_width = own.patch_height = PATCH
    own.max_num_patches = 12 * POOL**2
    own.pooling_kernel_size = POOL


def multimodal_bundle(
    *, as_litert_lm_needs: bool = False, edit: Callable[[Any], object] = gemma
) -> bytes:
    """A bundle whose encoder, of up to 32 tokens, takes images, sounds and texts."""
    own, per_layer = embedders()
    others = {
        "tf_lite_embedder": own,
        "tf_lite_per_layer_embedder": per_layer,
        "tf_lite_vision_encoder": patch_encoder(),
        "tf_lite_vision_adapter": adapter(),
        "tf_lite_end_of_vision": end_of_vision(),
        "tf_lite_audio_encoder_hw": audio_encoder(),
        "tf_lite_audio_adapter": audio_adapter(),
    }
    # LiteRT-LM 0.18.1 refuses images and sounds with an embedder by layer; without an end of sounds
    # it adds the rest of a sound to the next one.
    if as_litert_lm_needs:
        others["tf_lite_end_of_audio"] = end_of_audio()
        del others["tf_lite_per_layer_embedder"]
    model = text_encoder((8, 32), has_per_layer=not as_litert_lm_needs)
    return embedding_bundle(model=model, others=others, edit=edit)


class _Layer:
    def __init__(self, longest: int, hidden: int, size: int) -> None:
        rng = np.random.default_rng(1)
        self._hidden, self._size = hidden, size
        self._positions = rng.normal(size=(longest, hidden)).astype(np.float32)
        self._q, self._k, self._v = rng.normal(size=(3, hidden, hidden)).astype(np.float32) / 4
        self._last = rng.normal(size=(size, hidden)).astype(np.float32) / 4

    def built(
        self, graph: SubgraphBuilder, n: int, has_mask: bool, has_per_layer: bool
    ) -> tuple[dict[str, int], int]:
        """The inputs by name, and the output."""
        net, shape = Net(graph), (1, n, self._hidden)
        inputs = {"embeddings": graph.input(shape, np.float32, "embeddings")}
        x = inputs["embeddings"]
        if has_per_layer:
            name = "per_layer_embeddings"
            inputs[name] = graph.input((1, n, 1, self._hidden), np.float32, name)
            x = net("ADD", [x, net("RESHAPE", [inputs[name], net.integers(*shape)], shape)], shape)
        if has_mask:
            inputs["input_mask"] = graph.input((1, n), np.float32, "input_mask")
        x = net("ADD", [x, graph.constant(self._positions[None, :n])], shape)
        x = net("ADD", [x, self._attention(net, x, inputs.get("input_mask"), n)], shape)
        if has_mask:
            column = net("RESHAPE", [inputs["input_mask"], net.integers(1, n, 1)], (1, n, 1))
            x = net("MUL", [x, column], shape)
        x = net("SUM", [x, net.integers(1)], (1, self._hidden), ReducerOptions())
        output = net.dense(x, self._last, (1, self._size))
        graph.outputs(output)
        return inputs, output

    def _attention(self, net: Net, x: int, mask: int | None, n: int) -> int:
        shape, scores = (1, n, self._hidden), (1, n, n)
        queries, keys, values = (net.dense(x, w, shape) for w in (self._q, self._k, self._v))
        y = net("BATCH_MATMUL", [queries, keys], scores, BatchMatMulOptions(adj_y=True))
        if mask is not None:
            row = net("RESHAPE", [mask, net.integers(1, 1, n)], (1, 1, n))
            row = net("SUB", [net.graph.constant(np.float32(1)), row], (1, 1, n))
            row = net("MUL", [row, net.graph.constant(np.float32(_MASKED))], (1, 1, n))
            y = net("ADD", [y, row], scores)
        y = net("SOFTMAX", [y], scores, SoftmaxOptions(beta=1.0))
        return net("BATCH_MATMUL", [y, values], shape, BatchMatMulOptions())


def embedding_bundle(
    *,
    model: bytes | None = None,
    others: Mapping[str, bytes] | None = None,
    edit: Callable[[Any], object] | None = None,
) -> bytes:
    """A `.litertlm` file of a tiny text encoder, with the start token "<bos>" and the end token 2.

    Args:
        model: None: `text_encoder()`.
        others: further models, by model_type; None: `embedders()`.
        edit: changes the message EmbeddingMetadata before it is written.
    """
    if others is None:
        names = ("tf_lite_embedder", "tf_lite_per_layer_embedder")
        others = dict(zip(names, embedders(), strict=True))
    m = embedding_metadata_pb2.EmbeddingMetadata()
    m.bos_token.token_str = "<bos>"
    m.eos_token.token_ids.ids.append(2)
    m.embedding_model_type.generic_model.SetInParent()
    if edit is not None:
        edit(m)
    sections: list[Part] = [
        (TYPES.EmbeddingMetadataProto, {}, bytes(m.SerializeToString())),
        (TYPES.HF_Tokenizer_Zlib, {}, compressed(byte_tokenizer())),
        model_part("tf_lite_text_encoder", text_encoder() if model is None else model),
    ]
    return litertlm(sections + [model_part(name, content) for name, content in others.items()])
