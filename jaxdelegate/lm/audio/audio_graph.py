"""The signatures of a bundle's audio encoder and adapter.

Source: LiteRT-LM 0.18 (runtime/executor/audio_litert_compiled_model_executor.cc).
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import NoReturn

import numpy as np

from jaxdelegate.errors import ModelError
from jaxdelegate.function.records import Signature
from jaxdelegate.lm.contents.content_program import end_signature
from jaxdelegate.lm.program_spec import Array
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.text import printable

ENCODER, ADAPTER, END = "audio_encoder_hw", "audio_adapter", "end_of_audio"
INPUTS, MASK, FEATURES = "src_inputs", "mask", "features"
_MASKS = (MASK, "mask_out")  # of the encoder's outputs
_STATE = "prev_mask"


@dataclasses.dataclass(frozen=True)
class AudioGraph:
    """What a bundle's audio parts compute.

    Attributes:
        key: of the encoder's signature.
        adapter: of the adapter's.
        inputs: the shape of a sound's spectra: [1, frames, bins].
        mask: the shape of what is true for each frame of the sound.
        mask_out: the encoder's output that is true for each place.
        result: the adapter's output.
        embeddings: its shape: [1, places, size].
        end: the key of the signature whose output follows a sound; None: nothing does.
    """

    key: str
    adapter: str
    inputs: Shape
    mask: Shape
    mask_out: str
    result: str
    embeddings: Shape
    end: str | None

    @property
    def frames(self) -> int:
        """The most frames of a piece of a sound."""
        return self.inputs[-2]

    @property
    def frames_of_place(self) -> int:
        """How many frames become one place."""
        return self.frames // self.embeddings[-2]

    @property
    def size(self) -> int:
        """How many elements an embedding has."""
        return self.embeddings[-1]

    @property
    def encoder_keys(self) -> list[str]:
        """The encoder's signature."""
        return [self.key]

    @property
    def end_part(self) -> str:
        """The part of the signature `end`."""
        return END

    def keys(self, key: str, /) -> dict[str, str]:
        """See `ContentGraph`."""
        return {"": key, ADAPTER: self.adapter}

    def arguments(self, _key: str, /) -> list[Array]:
        """The number of frames, and their spectra."""
        return [((), np.dtype(np.int32)), (self.inputs[1:], np.dtype(np.float32))]

    def shape(self, _key: str, /) -> Shape:
        """See `ContentGraph`."""
        return self.embeddings[-2:]


def audio_graph(parts: Mapping[str, Mapping[str, Signature]], source: str, bins: int) -> AudioGraph:
    """Find the signatures of the audio parts.

    Args:
        parts: signatures, by part.
        source: the bundle, for messages.
        bins: of a spectrum.

    Raises:
        ModelError: a signature is missing, or takes or returns something else.
    """
    key, encoder = _only(parts, ENCODER, source)
    wanted = f"{INPUTS} [1, frames, {bins}], {MASK} [1, 1, frames]; {FEATURES}, {MASK}"
    if any(_STATE in name for name in encoder.inputs):
        _fail(source, ENCODER, f"an encoder of whole sounds ({wanted})", "one with states")
    inputs, mask = encoder.inputs.get(INPUTS), encoder.inputs.get(MASK)
    mask_out = next((name for name in _MASKS if name in encoder.outputs), None)
    if inputs is None or mask is None or mask_out is None or FEATURES not in encoder.outputs:
        _fail(source, ENCODER, wanted, str(encoder))
    is_known = len(encoder.inputs) == 2 and len(inputs.shape) == 3 and inputs.shape[0] == 1
    if not is_known or inputs.shape[2] != bins or math.prod(mask.shape) != inputs.shape[1]:
        _fail(source, ENCODER, wanted, str(encoder))
    adapter_key, adapter = _only(parts, ADAPTER, source)
    given = {FEATURES: encoder.outputs[FEATURES], MASK: encoder.outputs[mask_out]}
    takes = {name: info.shape for name, info in adapter.inputs.items()}
    if takes != {name: info.shape for name, info in given.items()} or len(adapter.outputs) != 1:
        _fail(source, ADAPTER, f"a signature that takes {given}", str(adapter))
    ((result, embeddings),) = adapter.outputs.items()
    places = math.prod(given[MASK].shape)
    if len(embeddings.shape) != 3 or embeddings.shape[:2] != (1, places):
        _fail(source, ADAPTER, f"an output [1, {places}, size]", str(adapter))
    if inputs.shape[1] % places:
        _fail(source, ENCODER, f"as many frames for each of {places} places", str(encoder))
    end = None
    if END in parts:
        end = end_signature(parts[END], embeddings.shape[-1], f"{source}!{END}")
    return AudioGraph(
        key=key,
        adapter=adapter_key,
        inputs=inputs.shape,
        mask=mask.shape,
        mask_out=mask_out,
        result=result,
        embeddings=embeddings.shape,
        end=end,
    )


def _only(
    parts: Mapping[str, Mapping[str, Signature]], part: str, source: str
) -> tuple[str, Signature]:
    if len(parts[part]) != 1:
        _fail(source, part, "one signature", ", ".join(parts[part]))
    return next(iter(parts[part].items()))


def _fail(source: str, part: str, wanted: str, got: str) -> NoReturn:
    raise ModelError(
        f"{printable(source)}!{part}: expected {wanted}, got {printable(got) or 'none'}"
    )
