"""Files of images to pixels. They are untrusted: a child process decodes them, within limits."""

import numpy as np

from jaxdelegate.errors import GenerationError
from jaxdelegate.lm.contents.file_decoder import FileDecoder
from jaxdelegate.lm.contents.message_contents import MOST_BYTES
from jaxdelegate.optional import optional_module

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM")  # those of LiteRT-LM that begin with a signature
MOST_PIXELS = 1 << 25
# An image of the most pixels takes a second.
_DECODER = FileDecoder("vision/decoding_script.py", "image", 3, "make it smaller")


def pixels_of(data: bytes) -> np.ndarray:
    """The pixels of an image's file: uint8 [height, width, 3], red, green and blue.

    As in LiteRT-LM alpha and the orientation in EXIF are left out, and of an animation the first
    image counts.

    Raises:
        GenerationError: the file is too large or damaged, of another format, or takes too long.
        OptionError: pillow is not installed.
    """
    (height, width), pixels = _answer(data, is_decoded=True)
    return pixels.reshape(height, width, 3)


def pixel_count(data: bytes) -> int:
    """How many pixels an image's file declares. Errors as `pixels_of`."""
    (height, width), _ = _answer(data, is_decoded=False)
    return height * width


def _answer(data: bytes, *, is_decoded: bool) -> tuple[tuple[int, int], np.ndarray]:
    """The height and width, and the values if it `is_decoded`."""
    if len(data) > MOST_BYTES:
        expected = f"expected at most {MOST_BYTES} bytes, got {len(data)}"
        raise GenerationError(f"the image: {expected}: send a smaller file")
    optional_module("PIL.Image", "lm")
    question = {"formats": FORMATS, "most_pixels": MOST_PIXELS, "is_decoded": is_decoded}
    return _DECODER.answer(data, question)
