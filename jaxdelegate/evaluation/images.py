"""Preprocessing of images as in TFLite's evaluation tools: decode, crop, resize, normalize.

Semantics: tools/evaluation/stages/image_preprocessing_stage.cc. Unlike there, the content of a file
(JPEG or PNG) decides how it is decoded, not its name.
"""

import dataclasses
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from jaxdelegate.evaluation.files import DataError
from jaxdelegate.optional import optional_module

INPUT_TYPES = tuple(np.dtype(t) for t in (np.float32, np.uint8, np.int8))
IMAGENET_CROP = 0.875  # share of each side; the smaller result is the side of the square

_RAW = ".rgb8"  # height x width x 3 bytes, already cropped and resized
_FORMATS = ("JPEG", "PNG")
_FLOAT_MEAN, _FLOAT_SCALE = np.float32(127.5), np.float32(1 / 127.5)

# What Pillow raises for damaged files, besides its DecompressionBomb classes.
_DAMAGE = (OSError, ValueError, SyntaxError, EOFError, struct.error, zlib.error, IndexError)


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """Converts an image file to one model input [height, width, 3] of `dtype`.

    float32 inputs are (x - 127.5) / 127.5, int8 inputs x - 128, uint8 inputs x, truncated to
    integers.
    """

    height: int
    width: int
    dtype: np.dtype
    crop_fraction: float | None = None  # None: the whole image, without its aspect ratio

    def __call__(self, path: Path) -> np.ndarray:
        """Read and prepare one image; DataError: it is damaged, or a raw image of another size."""
        if path.suffix.lower() == _RAW:
            return self._normalized(self._raw(path).astype(np.float32))
        image = decode(path)
        if self.crop_fraction is not None:
            image = central_square(image, self.crop_fraction)
        return self._normalized(resize_bilinear(image, self.height, self.width))

    def _raw(self, path: Path) -> np.ndarray:
        try:
            data = np.frombuffer(path.read_bytes(), np.uint8)
        except OSError as error:
            raise DataError(str(error)) from error
        shape = (self.height, self.width, 3)
        if data.size != math.prod(shape):
            raise DataError(f"a raw image has {math.prod(shape)} bytes, got {data.size}")
        return data.reshape(shape)

    def _normalized(self, x: np.ndarray) -> np.ndarray:
        if self.dtype == np.float32:
            return (x - _FLOAT_MEAN) * _FLOAT_SCALE
        return (x - np.float32(128 if self.dtype == np.int8 else 0)).astype(self.dtype)


def decode(path: Path) -> np.ndarray:
    """Decode a JPEG or PNG file to uint8 RGB [H, W, 3].

    Gray is repeated, transparency is dropped, 16-bit gray is reduced to its upper byte. As in
    TFLite, orientation tags are ignored.
    """
    pillow = optional_module("PIL.Image", "eval")
    bombs = (pillow.DecompressionBombError, pillow.DecompressionBombWarning)
    try:
        with pillow.open(path, formats=_FORMATS) as image:
            image.load()
            return _rgb(image)
    except (*_DAMAGE, *bombs) as error:
        text = " ".join(str(error).split()).replace(f" {str(path)!r}", "")
        raise DataError(text or type(error).__name__) from error


def _rgb(image: Any) -> np.ndarray:
    if image.mode == "CMYK":
        return _from_cmyk(np.asarray(image), is_adobe="adobe" in image.info)
    if image.mode.startswith("I"):
        gray = (np.asarray(image) >> 8).astype(np.uint8)
        return np.repeat(gray[:, :, None], 3, axis=2)
    if "transparency" in image.info:
        image = image.convert("RGBA")
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _from_cmyk(inks: np.ndarray, *, is_adobe: bool) -> np.ndarray:
    """RGB from ink [H, W, 4] as Pillow returns it: Pillow treats every file as inverted (Adobe)."""
    light = (255 - inks if is_adobe else inks).astype(np.uint32)
    return (light[:, :, :3] * light[:, :, 3:] // 255).astype(np.uint8)


def central_square(image: np.ndarray, fraction: float) -> np.ndarray:
    """The central square whose side is `fraction` of the image's smaller side, at least 1 pixel."""
    height, width = image.shape[:2]
    sides = (_rounded(float(np.float32(fraction) * np.float32(n))) for n in (height, width))
    side = max(min(sides), 1)
    top, left = _rounded((height - side) / 2), _rounded((width - side) / 2)
    return image[top : top + side, left : left + side]


def _rounded(x: float) -> int:
    return math.floor(x + 0.5)  # halves away from zero, for x >= 0


def resize_bilinear(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize [H, W, 3] to float32 [height, width, 3]: no align_corners, no half_pixel_centers."""
    top, bottom, v = _neighbors(image.shape[0], height)
    left, right, u = _neighbors(image.shape[1], width)
    upper, lower = image.take(top, axis=0), image.take(bottom, axis=0)
    v, u = v[:, None, None], u[None, :, None]
    not_v, not_u = np.float32(1) - v, np.float32(1) - u
    y = upper.take(left, axis=1) * not_v * not_u
    y += lower.take(left, axis=1) * v * not_u
    y += upper.take(right, axis=1) * not_v * u
    y += lower.take(right, axis=1) * v * u
    return y


def _neighbors(n_in: int, n_out: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    at = np.arange(n_out, dtype=np.float32) * np.float32(n_in / n_out)
    low = np.floor(at)
    high = np.minimum(np.ceil(at), np.float32(n_in - 1))
    return low.astype(np.intp), high.astype(np.intp), at - low
