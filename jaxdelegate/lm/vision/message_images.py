"""The images in messages, and the prompts of a conversation that has some."""

import base64
import binascii
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxdelegate.errors import GenerationError
from jaxdelegate.lm.text_processor import TextProcessor
from jaxdelegate.lm.vision.decoding import MOST_BYTES
from jaxdelegate.lm.vision.encoded_image import EncodedImage
from jaxdelegate.lm.vision.image_encoder import ImageEncoder
from jaxdelegate.text import printable

Message = Mapping[str, Any]  # that `stated` returned


class MessageImages:
    """Reads the images of messages, and writes prompts with them."""

    def __init__(
        self, encoder: ImageEncoder | None, text: TextProcessor, most: int | None = None
    ) -> None:
        """Read nothing yet.

        Args:
            encoder: None: messages have no images.
            text: of the bundle.
            most: images of a message; None: any number.
        """
        self._encoder, self._text, self._most = encoder, text, most

    @property
    def are_allowed(self) -> bool:
        """Whether messages may have images."""
        return self._encoder is not None

    def read(self, messages: Iterable[Message]) -> list[EncodedImage]:
        """The images of messages, in order.

        Raises:
            GenerationError: one is missing or damaged, or a message has too many.
        """
        found = list[EncodedImage]()
        for message in messages:
            parts = [part for part in message["content"] if part["type"] == "image"]
            if self._most is not None and len(parts) > self._most:
                raise GenerationError(
                    f"expected at most {self._most} images in a message (max_num_images), got "
                    f"{len(parts)}"
                )
            found += self._read(parts)
        return found

    def _read(self, parts: Sequence[Mapping[str, Any]]) -> Iterator[EncodedImage]:
        for number, part in enumerate(parts, 1):
            assert self._encoder is not None
            try:
                yield self._encoder.image(_data(part))
            except GenerationError as error:
                raise GenerationError(f"image {number} of the message: {error}") from error

    def ids(self, text: str, images: Sequence[EncodedImage]) -> list[int]:
        """The tokens of a rendered text with these images, which are encoded then.

        Raises:
            GenerationError: the text has not as many placeholders as there are images.
        """
        if self._encoder is None:
            return self._text.tokenize(text)
        return self._encoder.prompt_ids(text, images, self._text.tokenize)

    def encode(self, images: Iterable[EncodedImage]) -> None:
        """Compute the embeddings of those that have none yet."""
        if self._encoder is not None:
            self._encoder.encode(images)


def without_files(message: Message) -> dict[str, Any]:
    """A message as templates see it: they know that there are images, not which."""
    parts = [{"type": "image"} if p["type"] == "image" else p for p in message["content"]]
    return {**message, "content": parts}


def _data(part: Mapping[str, Any]) -> bytes:
    """The file of an image in a message."""
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
