"""Draws images in numpy: noisy backgrounds, shapes with soft edges; and resizes them."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

Distance = Callable[[np.ndarray], np.ndarray]  # points [n, m, 2] (x, y) -> [n, m], < 0 inside


@dataclasses.dataclass(frozen=True)
class Outline:
    """A shape as a signed distance function, and its box; in fractions of the image's size."""

    distance: Distance
    left: float
    top: float
    right: float
    bottom: float


def background(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """A smooth pattern with noise, float32 [size, size, 3], and its mean color [3]; 0 to 255."""
    color = rng.uniform(20, 235, 3)
    patches = color + rng.normal(0, rng.uniform(2, 20), (5, 5, 3))
    smooth = resized(patches, size, size)
    noise = rng.normal(0, rng.uniform(2, 12), (size, size, 1))
    return smooth + noise.astype(np.float32), color.astype(np.float32)


def contrasting(rng: np.random.Generator, color: np.ndarray) -> np.ndarray:
    """A random color [3] that visibly differs from another one."""
    while True:
        other = rng.uniform(0, 255, 3).astype(np.float32)
        if np.linalg.norm(other - color) > 110:
            return other


def paint(image: np.ndarray, outline: Outline, color: np.ndarray) -> np.ndarray:
    """Fill an outline in place; returns bool [size, size], the pixels of the outline."""
    size = len(image)
    rows = slice(max(int(size * outline.top) - 1, 0), max(int(size * outline.bottom) + 2, 0))
    columns = slice(max(int(size * outline.left) - 1, 0), max(int(size * outline.right) + 2, 0))
    depth = -size * outline.distance(_pixels(size)[rows, columns])
    part = image[rows, columns]
    part += np.clip(depth + 0.5, 0, 1)[..., None] * (color - part)
    inside = np.zeros((size, size), bool)
    inside[rows, columns] = depth > 0
    return inside


def to_bytes(image: np.ndarray) -> np.ndarray:
    """Round to uint8, clipped to 0 to 255."""
    return np.asarray(np.clip(np.rint(image), 0, 255), np.uint8)


def disc(x: float, y: float, radius: float) -> Outline:
    def distance(points: np.ndarray) -> np.ndarray:
        return _away(points, x, y) - radius

    return Outline(distance, x - radius, y - radius, x + radius, y + radius)


def ring(x: float, y: float, radius: float, width: float) -> Outline:
    def distance(points: np.ndarray) -> np.ndarray:
        return np.abs(_away(points, x, y) - radius + width / 2) - width / 2

    return dataclasses.replace(disc(x, y, radius), distance=distance)


def line(start: np.ndarray, end: np.ndarray, width: float) -> Outline:
    """A line between two points [2] (x, y), with round ends."""

    def distance(points: np.ndarray) -> np.ndarray:
        return _to_segment(points, start, end) - width / 2

    left, top = (np.minimum(start, end) - width / 2).tolist()
    right, bottom = (np.maximum(start, end) + width / 2).tolist()
    return Outline(distance, left, top, right, bottom)


def polygon(corners: np.ndarray) -> Outline:
    """A filled polygon with corners [n, 2] (x, y)."""

    def distance(points: np.ndarray) -> np.ndarray:
        far = np.full(points.shape[:-1], np.inf, np.float32)
        inside = np.zeros(points.shape[:-1], bool)
        for a, b in zip(corners, np.roll(corners, -1, axis=0), strict=True):
            far = np.minimum(far, _to_segment(points, a, b))
            inside ^= _crosses(points, a, b)
        return np.where(inside, -far, far)

    (left, top), (right, bottom) = corners.min(axis=0).tolist(), corners.max(axis=0).tolist()
    return Outline(distance, left, top, right, bottom)


def resized(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resize [h, w, channels] to float32, as `tf.image.resize(antialias=True)` and Pillow do."""
    rows = _weights(image.shape[0], height)
    columns = _weights(image.shape[1], width)
    narrow = np.einsum("oi,iwc->owc", rows, image.astype(np.float32), optimize=True)
    return np.asarray(np.einsum("oi,hic->hoc", columns, narrow, optimize=True))


@functools.lru_cache(maxsize=64)
def _weights(before: int, after: int) -> np.ndarray:
    """[after, before]: the weight of each old pixel in each new one."""
    scale = before / after
    reach = max(scale, 1.0)
    centers = (np.arange(after) + 0.5) * scale
    away = np.abs(np.arange(before) + 0.5 - centers[:, None]) / reach
    triangle = np.maximum(1 - away, 0)
    return np.asarray(triangle / triangle.sum(axis=1, keepdims=True), np.float32)


@functools.lru_cache(maxsize=8)
def _pixels(size: int) -> np.ndarray:
    """[size, size, 2]: x and y of the pixel centers, in fractions."""
    y, x = (np.indices((size, size), np.float32) + 0.5) / size
    return np.stack([x, y], axis=-1)


def _away(points: np.ndarray, x: float, y: float) -> np.ndarray:
    return np.hypot(points[..., 0] - x, points[..., 1] - y)


def _to_segment(points: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    (x, y), along = (points - a.astype(np.float32)).transpose(2, 0, 1), (b - a).astype(np.float32)
    t = np.clip((x * along[0] + y * along[1]) / max(float(along @ along), 1e-12), 0, 1)
    return np.asarray(np.hypot(x - t * along[0], y - t * along[1]))


def _crosses(points: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    x, y = points[..., 0], points[..., 1]
    between = (a[1] > y) != (b[1] > y)
    rise = b[1] - a[1] if b[1] != a[1] else 1.0
    return np.asarray(between & (x < a[0] + (y - a[1]) * (b[0] - a[0]) / rise))
