"""Files of images to pixels. They are untrusted: a child process decodes them, within limits."""

import tempfile

import numpy as np

from jaxdelegate.errors import GenerationError
from jaxdelegate.lm.child import Child, EndedError, RefusedError
from jaxdelegate.lm.contents.message_contents import MOST_BYTES
from jaxdelegate.optional import optional_module
from jaxdelegate.text import printable, shortened

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM")  # those of LiteRT-LM that begin with a signature
MOST_PIXELS = 1 << 25
_MOST_REASON = 200  # characters of an error of the decoder
_SECONDS = 3  # of the processor; an image of the most pixels takes one
CHILD = Child(
    "vision/decoding_script.py",
    seconds=30,
    stack_bytes=1 << 23,
    memory_bytes=1 << 30,
    cpu_seconds=_SECONDS,
)


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
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        try:
            size = CHILD.answer({"path": file.name, **question})
        except RefusedError as error:
            raise GenerationError(shortened(printable(str(error)), _MOST_REASON)) from error
        except EndedError as error:
            raise GenerationError(f"the image: {_why(error)}: make it smaller") from error
        return size, np.fromfile(file.name, np.uint8)


def _why(error: EndedError) -> str:
    if error.is_late:
        return f"decoding it takes longer than {_SECONDS} s"
    return f"decoding it ends the process that does it ({error})"
