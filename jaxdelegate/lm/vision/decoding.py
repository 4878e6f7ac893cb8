"""Files of images to pixels. They are untrusted: sizes are checked before anything is decoded."""

import io
from typing import Any, NoReturn

import numpy as np

from jaxdelegate.errors import GenerationError
from jaxdelegate.lm.contents.message_contents import MOST_BYTES
from jaxdelegate.optional import optional_module
from jaxdelegate.text import printable

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM")  # those of LiteRT-LM that begin with a signature
MOST_PIXELS = 1 << 25
_MOST_REASON = 200  # characters of an error of the decoder


def pixels_of(data: bytes) -> np.ndarray:
    """The pixels of an image's file: uint8 [height, width, 3], red, green and blue.

    As in LiteRT-LM alpha and the orientation in EXIF are left out, and of an animation the first
    image counts.

    Raises:
        GenerationError: the file is too large or damaged, or of another format.
        OptionError: pillow is not installed.
    """
    with _opened(data) as image:
        try:
            return _rgb(image)
        except Exception as error:  # of a damaged file
            _fail_as_damaged(error)


def pixel_count(data: bytes) -> int:
    """How many pixels an image's file declares. Errors as `pixels_of`."""
    with _opened(data) as image:
        return int(image.width * image.height)


def _opened(data: bytes) -> Any:
    """An image of which only the size is read."""
    if len(data) > MOST_BYTES:
        _fail(f"expected at most {MOST_BYTES} bytes, got {len(data)}: send a smaller file")
    pillow = optional_module("PIL.Image", "lm")
    try:
        image = pillow.open(io.BytesIO(data), formats=FORMATS)
    except pillow.UnidentifiedImageError:
        _fail(f"expected a file of the format {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    except Exception as error:  # as above
        _fail_as_damaged(error)
    width, height = image.size
    if not 0 < width * height <= MOST_PIXELS:
        _fail(f"expected at most {MOST_PIXELS} pixels, got {width} x {height}: make it smaller")
    return image


def _rgb(opened: Any) -> np.ndarray:
    if opened.mode.startswith("I"):  # 16 bits, of which the upper ones count
        gray = (np.asarray(opened).astype(np.uint32) >> 8).astype(np.uint8)
        return np.repeat(gray[..., None], 3, axis=-1)
    if opened.mode in ("P", "PA"):  # a transparent color counts
        opened = opened.convert("RGBA")
    return np.asarray(opened.convert("RGB"))


def _fail_as_damaged(error: Exception) -> NoReturn:
    reason = printable(str(error))[:_MOST_REASON] or type(error).__name__
    raise GenerationError(f"the image is damaged: {reason}") from error


def _fail(problem: str) -> NoReturn:
    raise GenerationError(f"the image: {problem}")
