"""Images and sounds in requests: data URLs, URLs, base64, and what a request may have of them."""

import base64
import binascii
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from jaxdelegate.errors import GenerationError, OptionError
from jaxdelegate.lm.audio.decoding import MOST_SECONDS, seconds_of
from jaxdelegate.lm.contents.encoded_content import EncodedContent
from jaxdelegate.lm.contents.message_contents import MOST_BYTES
from jaxdelegate.lm.vision.decoding import MOST_PIXELS, pixel_count
from jaxdelegate.serve.clients import shown
from jaxdelegate.serve.json_objects import Buffer
from jaxdelegate.serve.openai.fields import OBJECT, STRING, ApiError, one_of
from jaxdelegate.serve.openai.image_urls import is_url, loaded

_MOST_FILES = 32  # of one kind in a request
_DETAIL = one_of("auto", "low", "high", "original")
_FORMAT = one_of("wav", "mp3", "flac")
_URL = re.compile(r"data:[-\w.+/;=]*;base64,", re.ASCII)
_EXPECTED = "expected a data URL, data:image/png;base64,..."
# What is in a body besides objects of JSON.
_IMAGES_IN_JSON = re.compile(rb'"data:image/[-\w.+;=]*;base64,[\w+/=]*"')
_SOUNDS_IN_JSON = re.compile(rb'"data"\s*:\s*"[\w+/=]*"')


class _Kind(NamedTuple):
    nouns: str  # also the engine's encoder
    most: int  # in a request
    unit: str
    digits: str  # how a size is shown
    size: Callable[[bytes], Any]
    remedy: str

    def check(self, size: float) -> None:
        if size > self.most:
            expected = f"expected at most {self.most} {self.unit} in a request"
            raise GenerationError(f"{expected}, got {size:{self.digits}}: {self.remedy}")


_KINDS = {
    "image": _Kind("images", MOST_PIXELS, "pixels", "d", pixel_count, "make the images smaller"),
    "audio": _Kind("sounds", MOST_SECONDS, "seconds of sounds", ".1f", seconds_of, "send fewer"),
}


def size_without_files(body: Buffer) -> int:
    """Bytes of a body besides the images and sounds in it, which are no objects of JSON."""
    patterns = (_IMAGES_IN_JSON, _SOUNDS_IN_JSON) if has_sounds(body) else (_IMAGES_IN_JSON,)
    found = (match for pattern in patterns for match in pattern.finditer(body))
    return len(body) - sum(match.end() - match.start() for match in found)


def has_files(body: Buffer) -> bool:
    """Whether a body may have files, which take long to decode even if they are short."""
    return b"data:" in bytes(body) or has_sounds(body)


def has_sounds(body: Buffer) -> bool:
    return b"input_audio" in bytes(body)


def has_urls(body: Buffer) -> bool:
    """Whether a body may have URLs, which take long to load."""
    return b"image_url" in bytes(body) and b"http" in bytes(body)


def image_part(part: Any, where: str) -> dict[str, Any]:
    """A part `image_url` of a chat's message, or `input_image` of an item.

    It has the image's file or URL, and where it is in the request.
    """
    place, holder = f"{where}.image_url", OBJECT.checked(part, where)
    if isinstance(inner := holder.get("image_url"), dict):
        place, holder = f"{place}.url", {**inner, "image_url": inner.get("url")}
    if holder.get("detail") is not None:
        _DETAIL.checked(holder["detail"], f"{where}.detail")
    url = STRING.checked(holder.get("image_url"), place)
    if is_url(url):
        return {"type": "image", "where": place, "url": url}
    found = _URL.match(url)
    if found is None:
        raise ApiError(_refusal(url), param=place)
    data = _decoded(url[found.end() :], f"{_EXPECTED} got a damaged one", place)
    return {"type": "image", "where": place, "data": data}


def sound_part(part: Any, where: str) -> dict[str, Any]:
    """A part `input_audio` of a chat's message or an item, as `image_part`."""
    place = f"{where}.input_audio"
    sound = OBJECT.checked(OBJECT.checked(part, where).get("input_audio"), place)
    _FORMAT.checked(sound.get("format"), f"{place}.format")
    data = STRING.checked(sound.get("data"), f"{place}.data")
    file = _decoded(data, "expected a file in base64", f"{place}.data")
    return {"type": "audio", "where": f"{place}.data", "data": file}


def _decoded(text: str, problem: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ApiError(f"{problem}: {error}", param=where) from None


def _refusal(url: str) -> str:
    return f"{_EXPECTED} got {shown(url)}: the server loads no such files (allowed_media_domains)"


def read_files(
    model: Any, parts: Sequence[dict[str, Any]], owner: Any, hosts: Collection[str]
) -> list[EncodedContent]:
    """The images, then the sounds of these parts, not encoded yet. An ApiError names a wrong one.

    `owner`: see `ContentEncoder.read`; `hosts`: of which images are loaded by URL.
    """
    return [
        content
        for name, kind in _KINDS.items()
        for content in _read(model, kind, [p for p in parts if p["type"] == name], owner, hosts)
    ]


def _read(
    model: Any, kind: _Kind, parts: Sequence[dict[str, Any]], owner: Any, hosts: Collection[str]
) -> list[EncodedContent]:
    if not parts:
        return []
    encoder = getattr(model.engine, kind.nouns)
    if encoder is None:
        raise ApiError(f"{shown(model.name)} takes no {kind.nouns}", param=parts[0]["where"])
    if len(parts) > _MOST_FILES:
        expected = f"expected at most {_MOST_FILES} {kind.nouns} in a request, got {len(parts)}"
        raise ApiError(expected, param=parts[_MOST_FILES]["where"])
    found, size = list[EncodedContent](), 0
    for part in parts:
        try:
            data = part["data"] if "data" in part else _loaded(part["url"], hosts)
            kind.check(size := size + kind.size(data))
            found.append(encoder.read(data, owner))
        except (GenerationError, OptionError) as error:
            raise ApiError(str(error), param=part["where"]) from None
    return found


def _loaded(url: str, hosts: Collection[str]) -> bytes:
    if not hosts:
        raise GenerationError(_refusal(url))
    return loaded(url, hosts, MOST_BYTES)
