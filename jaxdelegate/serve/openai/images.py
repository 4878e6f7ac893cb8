"""Images in requests: data URLs, URLs, and what a request may have of them."""

import base64
import binascii
import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from jaxdelegate.errors import GenerationError, OptionError
from jaxdelegate.lm.contents.encoded_content import EncodedContent
from jaxdelegate.lm.contents.message_contents import MOST_BYTES
from jaxdelegate.lm.vision.decoding import MOST_PIXELS, pixel_count
from jaxdelegate.serve.clients import shown
from jaxdelegate.serve.json_objects import Buffer
from jaxdelegate.serve.openai.fields import OBJECT, STRING, ApiError, one_of
from jaxdelegate.serve.openai.image_urls import is_url, loaded

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
    found = {"url": url} if is_url(url) else {"data": _data(url, place)}
    return {"type": "image", "where": place, **found}


def _data(url: str, where: str) -> bytes:
    found = _URL.match(url)
    if found is None:
        raise ApiError(_refusal(url), param=where)
    try:
        return base64.b64decode(url[found.end() :], validate=True)
    except binascii.Error as error:
        raise ApiError(f"{_EXPECTED} got a damaged one: {error}", param=where) from None


def _refusal(url: str) -> str:
    return f"{_EXPECTED} got {shown(url)}: the server loads no such files (allowed_media_domains)"


def read_images(
    model: Any, parts: Sequence[dict[str, Any]], owner: Any, hosts: Collection[str]
) -> list[EncodedContent]:
    """The images of `image_part`'s parts, not encoded yet. An ApiError names a wrong one.

    `owner`: see `ContentEncoder.read`; `hosts`: of which they are loaded by URL.
    """
    if not parts:
        return []
    encoder, first = model.engine.images, parts[0]["where"]
    if encoder is None:
        raise ApiError(f"{shown(model.name)} takes no images", param=first)
    if len(parts) > _MOST_IMAGES:
        expected = f"expected at most {_MOST_IMAGES} images in a request, got {len(parts)}"
        raise ApiError(expected, param=parts[_MOST_IMAGES]["where"])
    found, pixels = list[EncodedContent](), 0
    for part in parts:
        with naming(part):
            data = _file(part, hosts)
            _check_pixels(pixels := pixels + pixel_count(data))
            found.append(encoder.read(data, owner))
    return found


@contextlib.contextmanager
def naming(part: Mapping[str, Any]) -> Iterator[None]:
    """An error of a part becomes an ApiError that names it."""
    try:
        yield
    except (GenerationError, OptionError) as error:
        raise ApiError(str(error), param=part["where"]) from None


def _check_pixels(count: int) -> None:
    if count > MOST_PIXELS:
        expected = f"expected at most {MOST_PIXELS} pixels in a request, got {count}"
        raise GenerationError(f"{expected}: make the images smaller")


def _file(part: dict[str, Any], hosts: Collection[str]) -> bytes:
    if "data" in part:
        data: bytes = part["data"]
        return data
    if not hosts:
        raise GenerationError(_refusal(part["url"]))
    return loaded(part["url"], hosts, MOST_BYTES)
