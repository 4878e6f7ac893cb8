"""Which signatures of a text encoder compute embeddings, and what their inputs mean.

Source: LiteRT-LM's runtime/executor/embedding_litert_compiled_model_executor.cc and
model_signature_utils.cc: signatures "encoder...", each for another number of tokens. They take
embeddings of tokens, which the models of other parts look up, and a mask of the tokens.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from jaxdelegate.errors import ModelError, OptionError
from jaxdelegate.function.records import Signature, TensorInfo
from jaxdelegate.lm.graph import Embedder
from jaxdelegate.lm.program_spec import Array
from jaxdelegate.lm.signatures import embedder_of
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.text import printable

_KEY, _MASK = "encoder", "input_mask"
_INT, _FLOAT = np.dtype(np.int32), np.dtype(np.float32)
# A part of an input's name, and the part of the bundle that computes the input from tokens.
_EMBEDDERS = {"per_layer": "per_layer_embedder", "embeddings": "embedder"}


@dataclasses.dataclass(frozen=True)
class Lookup:
    """An input that a model of another part computes from each token.

    Attributes:
        name: of the input.
        part: of the bundle.
        shape: of the input, for all tokens.
    """

    name: str
    part: str
    shape: Shape


@dataclasses.dataclass(frozen=True)
class Encoder:
    """A signature that computes an embedding.

    Attributes:
        key: of the signature.
        length: the most tokens that it takes; embeddings of the token 0 follow shorter texts.
        lookups: what embedders compute.
        masks: inputs that are 1 for each token, then 0, by name.
        result: the name of its first output.
        size: the number of elements of the embedding.
    """

    key: str
    length: int
    lookups: tuple[Lookup, ...]
    masks: Mapping[str, TensorInfo]
    result: str
    size: int


@dataclasses.dataclass(frozen=True)
class EncoderGraph:
    """The signatures of a text encoder.

    Attributes:
        encoders: the shortest first.
        embedders: what computes their inputs, by part.
        soft_size: elements of the embedding of a soft token; 0: texts have no soft tokens.
    """

    encoders: tuple[Encoder, ...]
    embedders: Mapping[str, Embedder]
    soft_size: int = 0

    @property
    def length(self) -> int:
        """The most tokens of a text."""
        return self.encoders[-1].length

    def encoder(self, length: int) -> Encoder:
        """The shortest one for a number of tokens."""
        return next(encoder for encoder in self.encoders if encoder.length >= length)

    def of_key(self, key: str) -> Encoder:
        """The encoder of a signature."""
        return next(encoder for encoder in self.encoders if encoder.key == key)

    def keys(self, encoder: str) -> dict[str, str]:
        """The signatures that an encoder needs, by part: its own, as "", and those of embedders."""
        return {"": encoder} | {e.part: e.key for e in self.embedders.values()}


@dataclasses.dataclass(frozen=True)
class EncoderSpec:
    """What one program does.

    Attributes:
        key: of the signature that it runs.
        rows: the number of texts.
    """

    key: str
    rows: int


def arguments(graph: EncoderGraph, spec: EncoderSpec) -> list[Array]:
    """Tokens [rows, length], zeros after those of a text, and how many each text has.

    The embeddings of soft tokens follow, [rows, length, size], if texts may have some.
    """
    shape = (spec.rows, graph.of_key(spec.key).length)
    soft = [((*shape, graph.soft_size), _FLOAT)] if graph.soft_size else []
    return [(shape, _INT), ((spec.rows,), _INT), *soft]


def results(graph: EncoderGraph, spec: EncoderSpec) -> list[Array]:
    """The embeddings [rows, size]."""
    return [((spec.rows, graph.of_key(spec.key).size), _FLOAT)]


def encoder_graph(
    signatures: Mapping[str, Signature],
    source: str,
    others: Mapping[str, Mapping[str, Signature]],
) -> EncoderGraph:
    """Find the signatures.

    Args:
        signatures: of the text encoder.
        source: for messages.
        others: the signatures of the bundle's other models, by part.

    Raises:
        ModelError: there is no encoder, or it has an input that the engine cannot provide.
    """
    try:
        return _graph(signatures, others)
    except ModelError as error:
        raise ModelError(f"{printable(source)}: {printable(str(error))}") from error


def _graph(
    signatures: Mapping[str, Signature], others: Mapping[str, Mapping[str, Signature]]
) -> EncoderGraph:
    found = [_encoder(key, s) for key, s in signatures.items() if key.startswith(_KEY)]
    if not found:
        there = ", ".join(signatures) or "none"
        raise ModelError(f"expected a signature '{_KEY}...', got {there}")
    parts = dict.fromkeys(lookup.part for encoder in found for lookup in encoder.lookups)
    embedders = {part: _embedder(part, others) for part in parts}
    for encoder in found:
        _check_shapes(encoder, embedders, others)
    return EncoderGraph(tuple(sorted(found, key=lambda e: e.length)), embedders)


def _check_shapes(
    encoder: Encoder,
    embedders: Mapping[str, Embedder],
    others: Mapping[str, Mapping[str, Signature]],
) -> None:
    for lookup in encoder.lookups:
        embedder = embedders[lookup.part]
        row = others[embedder.part][embedder.key].outputs[embedder.result].shape
        if math.prod(row) * encoder.length != math.prod(lookup.shape):
            raise ModelError(
                f"signature {encoder.key!r}: expected the input {lookup.name!r} to have "
                f"{encoder.length} times {list(row)} of {lookup.part!r}, got {list(lookup.shape)}"
            )


def _encoder(key: str, signature: Signature) -> Encoder:
    masks = {name: info for name, info in signature.inputs.items() if _MASK in name}
    lookups = []
    for name, info in signature.inputs.items():
        if name in masks:
            continue
        part = next((part for word, part in _EMBEDDERS.items() if word in name), None)
        if part is None:
            raise ModelError(f"signature {key!r} has an input that is not supported: {name}")
        lookups.append(Lookup(name, part, info.shape))
    lengths = [x.shape[-2] for x in lookups if x.part == "embedder" and len(x.shape) > 1]
    if not lengths or not signature.outputs:
        raise ModelError(
            f"signature {key!r}: expected an input 'embeddings' [1, tokens, size] and an output, "
            f"got {signature}"
        )
    result, output = next(iter(signature.outputs.items()))
    return Encoder(key, lengths[0], tuple(lookups), masks, result, math.prod(output.shape))


def _embedder(part: str, others: Mapping[str, Mapping[str, Signature]]) -> Embedder:
    found = embedder_of(part, others)
    if found is None:
        raise ModelError(
            f"expected a model {part!r} in the bundle, with a signature of one token, got "
            f"{', '.join(others) or 'no other models'}"
        )
    return found


def with_soft_tokens(graph: EncoderGraph, size: int, source: str) -> EncoderGraph:
    """The graph, for texts with soft tokens whose embeddings have `size` elements; 0: without.

    A ModelError: an encoder takes embeddings of another size. `source`: for messages.
    """
    sizes = {x.shape[-1] for e in graph.encoders for x in e.lookups if x.part == "embedder"}
    if size and sizes != {size}:
        raise ModelError(
            f"{printable(source)}: expected embeddings of {size} elements, as the encoders of "
            f"images and sounds return, got {sorted(sizes)}"
        )
    return dataclasses.replace(graph, soft_size=size)


def selected(
    encoders: Sequence[Encoder], min_input_length: int | None, max_input_length: int | None
) -> tuple[Encoder, ...]:
    """The encoders for texts of these lengths: up to the first one that holds the longest.

    Args:
        encoders: the shortest first.
        min_input_length: shorter ones are left out; None: none are.
        max_input_length: of the texts; None: any.

    Raises:
        OptionError: no encoder is long enough, or the lengths contradict each other.
    """
    longest = encoders[-1].length
    least, most = min_input_length or 0, max_input_length or longest
    if not least <= most <= longest:
        raise OptionError(
            f"min_input_length, max_input_length: expected at most {longest} tokens, in this "
            f"order, got {least} and {most}"
        )
    end = next(n for n, encoder in enumerate(encoders) if encoder.length >= most) + 1
    return tuple(encoder for encoder in encoders[:end] if encoder.length >= least)
