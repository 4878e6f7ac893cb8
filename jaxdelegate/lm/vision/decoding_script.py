"""Decodes images in the process of child.py. It does not import the package: see there."""

import io
from pathlib import Path
from typing import Any

# The decoders in C. Those in Python, for lists of numbers and rare depths, take minutes.
_CODECS = ("bmp", "gif", "jpeg", "raw", "zip")
_MOST_SCANS = 64  # of a progressive JPEG, which has about ten; each may take as long as the image


def answer(question: dict[str, Any]) -> tuple[int, int]:
    """The height and width of the image in the file at `path`.

    If it `is_decoded`, its pixels replace the file's content: red, green and blue, row by row.
    """
    path = Path(question["path"])
    data = path.read_bytes()
    image = _opened(data, question["formats"], question["most_pixels"])
    if question["is_decoded"]:
        path.write_bytes(_decoded(image))
    return image.height, image.width


def _opened(data: bytes, formats: list[str], most_pixels: int) -> Any:
    """An image of which only the size is read."""
    from PIL import Image, UnidentifiedImageError  # noqa: PLC0415 (only the child runs it)

    Image.MAX_IMAGE_PIXELS = None  # which are counted below
    expected = f"the image: expected a file of the format {', '.join(formats[:-1])} or"
    try:
        image = Image.open(io.BytesIO(data), formats=formats)
    except UnidentifiedImageError:
        raise ValueError(f"{expected} {formats[-1]}") from None
    except Exception as error:
        raise _damaged(error) from None
    if not 0 < image.width * image.height <= most_pixels:
        got = f"{image.width} x {image.height}"
        raise ValueError(
            f"the image: expected at most {most_pixels} pixels, got {got}: make it smaller"
        )
    if any(tile.codec_name not in _CODECS for tile in image.tile):
        raise ValueError(f"{expected} {formats[-1]}, of binary values of 8 or 16 bits each")
    if data.count(b"\xff\xda") > _MOST_SCANS and image.format in ("JPEG", "MPO"):
        raise ValueError(f"the image: expected a JPEG of at most {_MOST_SCANS} scans")
    return image


def _decoded(image: Any) -> bytes:
    try:
        return _rgb(image)
    except Exception as error:  # of a damaged file
        raise _damaged(error) from None


def _rgb(image: Any) -> bytes:
    from PIL import Image  # noqa: PLC0415

    image.load()
    if image.mode.startswith("I"):  # 16 bits, of which the upper ones count
        big = image.mode == "I;16B"
        step = 2 if "16" in image.mode else 4
        upper = image.tobytes()[0 if big else 1 :: step]
        image = Image.frombytes("L", image.size, upper)
    if image.mode in ("P", "PA"):  # a transparent color counts
        image = image.convert("RGBA")
    pixels: bytes = image.convert("RGB").tobytes()
    return pixels


def _damaged(error: Exception) -> ValueError:
    return ValueError(f"the image is damaged: {error or type(error).__name__}")
