"""The images and sounds in messages."""

import base64
import binascii
import collections
import os
from collections.abc import Iterable, Mapping
from typing import Any

from jaxdelegate.errors import GenerationError
from jaxdelegate.lm.contents.encoded_content import EncodedContent
from jaxdelegate.lm.contents.prompt_contents import PromptContents
from jaxdelegate.lm.messages import KINDS
from jaxdelegate.text import printable

Message = Mapping[str, Any]  # that `stated` returned
MOST_BYTES = 32 << 20  # of a file


def read_contents(
    messages: Iterable[Message], contents: PromptContents, most_images: int | None = None
) -> list[EncodedContent]:
    """The images and sounds of messages, in order, not encoded yet.

    Args:
        messages: without kinds that there is no encoder for.
        contents: the encoders.
        most_images: of a message; None: any number.

    Raises:
        GenerationError: one is missing or damaged, or a message has too many.
    """
    return [content for message in messages for content in _read(message, contents, most_images)]


def _read(
    message: Message, contents: PromptContents, most_images: int | None
) -> Iterable[EncodedContent]:
    parts = [part for part in message["content"] if part["type"] in KINDS]
    counts = collections.Counter(part["type"] for part in parts)
    if most_images is not None and counts["image"] > most_images:
        raise GenerationError(
            f"expected at most {most_images} images in a message (max_num_images), got "
            f"{counts['image']}"
        )
    numbers = collections.Counter[str]()
    for part in parts:
        encoder = contents.encoders[part["type"]]
        numbers[part["type"]] += 1
        try:
            yield encoder.read(file_in(part))
        except GenerationError as error:
            which = f"{encoder.rules.noun} {numbers[part['type']]}"
            raise GenerationError(f"{which} of the message: {error}") from error


def without_files(message: Message) -> dict[str, Any]:
    """A message as templates see it: they know that there are images and sounds, not which."""
    parts = [{"type": p["type"]} if p["type"] in KINDS else p for p in message["content"]]
    return {**message, "content": parts}


def file_in(part: Mapping[str, Any]) -> bytes:
    """The file of an image or a sound in a message. A GenerationError: it has no file."""
    path, blob = part.get("path"), part.get("blob")
    if isinstance(blob, str):
        try:
            return base64.b64decode(blob, validate=True)
        except binascii.Error as error:
            raise GenerationError(f"expected a blob in base64: {error}") from error
    if not isinstance(path, str):
        raise GenerationError("expected a path, or a blob in base64, got neither")
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > MOST_BYTES:
                raise GenerationError(f"{printable(path)}: expected at most {MOST_BYTES} bytes")
            return file.read(MOST_BYTES)
    except OSError as error:
        raise GenerationError(f"{printable(path)}: {error.strerror}") from error
