"""Images in requests: data URLs, and what a request may have of them."""

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jaxdelegate.errors import GenerationError, OptionError
from jaxdelegate.lm.contents.encoded_content import EncodedContent
from jaxdelegate.lm.vision.decoding import MOST_PIXELS, pixel_count
from jaxdelegate.serve.clients import shown
from jaxdelegate.serve.json_objects import Buffer
from jaxdelegate.serve.openai.fields import OBJECT, STRING, ApiError, one_of

T = TypeVar("T")

_MOST_IMAGES = 32
_DETAIL = one_of("auto", "low", "high", "original")
_URL = re.compile(r"data:[-\w.+/;=]*;base64,", re.ASCII)
_IN_JSON = re.compile(rb'"data:image/[-\w.+;=]*;base64,[\w+/=]*"')
_EXPECTED = "expected a data URL, data:image/png;base64,..."


def size_without_images(body: Buffer) -> int:
    """Bytes of a body besides the images in it, which are no objects of JSON."""
    return len(body) - sum(found.end() - found.start() for found in _IN_JSON.finditer(body))


def has_images(body: Buffer) -> bool:
    """Whether a body may have images, which take long to decode even if they are short."""
    return b"data:" in bytes(body)


def image_part(part: Any, where: str) -> dict[str, Any]:
    """A part `image_url` of a chat's message, or `input_image` of an item.

    It has the image's file, and where it is in the request.
    """
    place, holder = f"{where}.image_url", OBJECT.checked(part, where)
    if isinstance(inner := holder.get("image_url"), dict):
        place, holder = f"{place}.url", {**inner, "image_url": inner.get("url")}
    if holder.get("detail") is not None:
        _DETAIL.checked(holder["detail"], f"{where}.detail")
    data = _data(STRING.checked(holder.get("image_url"), place), place)
    return {"type": "image", "data": data, "where": place}


def _data(url: str, where: str) -> bytes:
    found = _URL.match(url)
    if found is None:
        raise ApiError(f"{_EXPECTED} got {shown(url)}: the server loads no files", param=where)
    try:
        return base64.b64decode(url[found.end() :], validate=True)
    except binascii.Error as error:
        raise ApiError(f"{_EXPECTED} got a damaged one: {error}", param=where) from None


def read_images(model: Any, parts: Sequence[dict[str, Any]], owner: Any) -> list[EncodedContent]:
    """The images of a request, not encoded yet. An ApiError names the one that is wrong.

    `model`: whose engine takes them; `parts`: that `image_part` returned.
    """
    if not parts:
        return []
    encoder, first = model.engine.images, parts[0]["where"]
    if encoder is None:
        raise ApiError(f"{shown(model.name)} reads text only", param=first)
    if len(parts) > _MOST_IMAGES:
        expected = f"expected at most {_MOST_IMAGES} images in a request, got {len(parts)}"
        raise ApiError(expected, param=parts[_MOST_IMAGES]["where"])
    found, pixels = list[EncodedContent](), 0
    for part in parts:
        pixels += _of_part(part, pixel_count)
        if pixels > MOST_PIXELS:
            expected = f"expected at most {MOST_PIXELS} pixels in a request, got {pixels}"
            raise ApiError(f"{expected}: make the images smaller", param=part["where"])
        found.append(_of_part(part, lambda data: encoder.read(data, owner)))
    return found


def _of_part(part: dict[str, Any], read: Callable[[bytes], T]) -> T:
    try:
        return read(part["data"])
    except (GenerationError, OptionError) as error:
        raise ApiError(str(error), param=part["where"]) from None
