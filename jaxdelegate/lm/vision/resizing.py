"""Resizes images as LiteRT-LM does: by cubic splines in linear light.

Source: LiteRT-LM 0.18 (runtime/components/preprocessor/stb_image_preprocessor.cc), which calls
stb_image_resize2 with Catmull-Rom splines, sRGB, and edges that go on.
"""

import functools
import math
from typing import Any

import numpy as np

from jaxdelegate.optional import optional_module

_LEAST, _MOST = np.float32(2**-13), np.nextafter(np.float32(1), np.float32(0))


def resized(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """An image of another size: uint8 [height, width, channels].

    Each value is that of stb_image_resize2, up to the rounding of sums: then it is the next one.
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    pillow = optional_module("PIL.Image", "lm")
    channels = [_resized(pillow, pixels[..., n], height, width) for n in range(pixels.shape[2])]
    return np.stack(channels, axis=-1)


def _resized(pillow: Any, channel: np.ndarray, height: int, width: int) -> np.ndarray:
    """Pillow cuts splines off at an edge, so the edges are repeated beyond those."""
    (before_y, before_x), light = _margins(channel.shape, (height, width)), _light()[channel]
    padded = np.pad(light, ((before_y, before_y), (before_x, before_x)), mode="edge")
    rows, columns = channel.shape
    box = before_x, before_y, before_x + columns, before_y + rows
    # Catmull-Rom splines are what pillow calls bicubic.
    found = pillow.fromarray(padded).resize((width, height), pillow.Resampling.BICUBIC, box=box)
    return _values(np.asarray(found))


def _margins(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, int]:
    """How many pixels a spline reaches beyond an edge."""
    y, x = (math.ceil(2 * max(a / b, 1)) + 1 for a, b in zip(old, new, strict=True))
    return y, x


@functools.cache
def _light() -> np.ndarray:
    """The light of each value of sRGB: float32 [256]."""
    return _linear(np.arange(256)).astype(np.float32)


def _values(light: np.ndarray) -> np.ndarray:
    """The values of sRGB as the library rounds them: uint8, by a line in each eighth of an octave.

    Between 2**-13 and 1, by the first eight bits after those that name the eighth.
    """
    bits = np.clip(light, _LEAST, _MOST).astype(np.float32).view(np.uint32)
    eighth, place = (bits - _LEAST.view(np.uint32)) >> 20, bits >> 12 & 255
    begin, slope = _lines()
    found: np.ndarray = (begin[eighth] * 512 + slope[eighth] * place) >> 16
    return found.astype(np.uint8)


@functools.cache
def _lines() -> tuple[np.ndarray, np.ndarray]:
    """Begins and slopes of lines through the curve of sRGB, by least squares: in 1/128, 1/65536."""
    first, last = (int(value.view(np.uint32)) for value in (_LEAST, _MOST))
    starts = np.arange(first, last, 1 << 12, dtype=np.uint32)
    light = starts.view(np.float32).astype(np.float64)
    light += np.diff(light, append=1) / 2
    curve = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    places = np.stack([np.ones(256), np.arange(256)], axis=-1)
    (begin, slope), *_ = np.linalg.lstsq(places, (255 * curve + 0.5).reshape(-1, 256).T)
    return np.round(begin * 128).astype(np.uint32), np.round(slope * 65536).astype(np.uint32)


def _linear(values: np.ndarray) -> np.ndarray:
    shares = values / 255
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
