"""Sounds in requests, and what a request may have of them."""

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Any

from jaxdelegate.errors import GenerationError
from jaxdelegate.lm.audio.decoding import MOST_SECONDS, seconds_of
from jaxdelegate.lm.contents.encoded_content import EncodedContent
from jaxdelegate.serve.clients import shown
from jaxdelegate.serve.json_objects import Buffer
from jaxdelegate.serve.openai.fields import OBJECT, STRING, ApiError, one_of
from jaxdelegate.serve.openai.images import naming

_MOST_SOUNDS = 32
_FORMAT = one_of("wav", "mp3", "flac")
_IN_JSON = re.compile(rb'"data"\s*:\s*"[\w+/=]*"')


def size_of_sounds(body: Buffer) -> int:
    """Bytes of the sounds in a body, which are no objects of JSON."""
    if not has_sounds(body):
        return 0
    return sum(found.end() - found.start() for found in _IN_JSON.finditer(body))


def has_sounds(body: Buffer) -> bool:
    """Whether a body may have sounds, which take long to decode even if they are short."""
    return b"input_audio" in bytes(body)


def sound_part(part: Any, where: str) -> dict[str, Any]:
    """A part `input_audio` of a chat's message or an item.

    It has the sound's file, and where it is in the request.
    """
    place = f"{where}.input_audio"
    sound = OBJECT.checked(OBJECT.checked(part, where).get("input_audio"), place)
    _FORMAT.checked(sound.get("format"), f"{place}.format")
    data = STRING.checked(sound.get("data"), f"{place}.data")
    try:
        file = base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise ApiError(f"expected a file in base64: {error}", param=f"{place}.data") from None
    return {"type": "audio", "data": file, "where": f"{place}.data"}


def read_sounds(model: Any, parts: Sequence[dict[str, Any]], owner: Any) -> list[EncodedContent]:
    """The sounds of a request, not encoded yet. An ApiError names the one that is wrong.

    `model`: whose engine takes them; `parts`: that `sound_part` returned.
    """
    if not parts:
        return []
    encoder = model.engine.sounds
    if encoder is None:
        raise ApiError(f"{shown(model.name)} takes no sounds", param=parts[0]["where"])
    if len(parts) > _MOST_SOUNDS:
        expected = f"expected at most {_MOST_SOUNDS} sounds in a request, got {len(parts)}"
        raise ApiError(expected, param=parts[_MOST_SOUNDS]["where"])
    found, seconds = list[EncodedContent](), 0.0
    for part in parts:
        with naming(part):
            _check_seconds(seconds := seconds + seconds_of(part["data"]))
            found.append(encoder.read(part["data"], owner))
    return found


def _check_seconds(seconds: float) -> None:
    if seconds > MOST_SECONDS:
        expected = f"expected at most {MOST_SECONDS} seconds of sounds in a request"
        raise GenerationError(f"{expected}, got {seconds:.1f}: send fewer")
