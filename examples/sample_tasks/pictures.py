"""Generates pictures of shapes and stick figures from seeds, with the truth about them."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from sample_tasks import canvas
from sample_tasks.annotations import Annotation, Box, KeyPoint, Label

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
MASKED = ("background", "circle", "square", "triangle", "star")
JOINTS = (
    "head",
    *("left shoulder", "right shoulder", "left elbow", "right elbow", "left wrist", "right wrist"),
    *("left hip", "right hip", "left knee", "right knee", "left ankle", "right ankle"),
)
BONES = (
    ("left shoulder", "right shoulder"),
    ("left hip", "right hip"),
    *(
        (f"{side} {near}", f"{side} {far}")
        for side in ("left", "right")
        for near, far in (
            ("shoulder", "elbow"),
            ("elbow", "wrist"),
            ("shoulder", "hip"),
            ("hip", "knee"),
            ("knee", "ankle"),
        )
    ),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Picture:
    """An image, uint8 [size, size, 3], and the truth about it."""

    image: np.ndarray
    truth: Annotation


def one_shape(seed: int, size: int = 256) -> Picture:
    """One shape of random size and place; the truth is its label."""
    rng = np.random.default_rng([1, seed])
    image, color = canvas.background(rng, size)
    name = str(rng.choice(SHAPES))
    radius = rng.uniform(0.16, 0.42)
    x, y = rng.uniform(min(radius, 0.5), max(1 - radius, 0.5), 2)
    canvas.paint(image, _outline(rng, name, x, y, radius), canvas.contrasting(rng, color))
    return Picture(canvas.to_bytes(image), Annotation(labels=(Label(name, 1.0),)))


def several_shapes(seed: int, size: int = 256) -> Picture:
    """One to five shapes that do not touch; the truth is their boxes."""
    rng = np.random.default_rng([2, seed])
    image, color = canvas.background(rng, size)
    boxes = []
    for x, y, radius in _places(rng, int(rng.integers(1, 6))):
        name = str(rng.choice(SHAPES))
        o = _outline(rng, name, x, y, radius)
        canvas.paint(image, o, canvas.contrasting(rng, color))
        boxes.append(Box(Label(name, 1.0), o.left, o.top, o.right, o.bottom))
    return Picture(canvas.to_bytes(image), Annotation(boxes=tuple(boxes)))


def masked_shapes(seed: int, size: int = 256) -> Picture:
    """One to four shapes that do not touch; the truth is the class of each pixel."""
    rng = np.random.default_rng([3, seed])
    image, color = canvas.background(rng, size)
    mask = np.zeros((size, size), np.int32)
    for x, y, radius in _places(rng, int(rng.integers(1, 5))):
        label = int(rng.integers(1, len(MASKED)))
        outline = _outline(rng, MASKED[label], x, y, radius)
        mask[canvas.paint(image, outline, canvas.contrasting(rng, color))] = label
    return Picture(canvas.to_bytes(image), Annotation(mask=mask, mask_names=MASKED))


def stick_figure(seed: int, size: int = 256) -> Picture:
    """A figure that faces the viewer, its left side on the right; the truth is its joints."""
    rng = np.random.default_rng([4, seed])
    image, color = canvas.background(rng, size)
    joints = _fitted(rng, _posed(rng))
    scale = joints["scale"][0]
    paint = canvas.contrasting(rng, color)
    neck = (joints["left shoulder"] + joints["right shoulder"]) / 2
    hips = (joints["left hip"] + joints["right hip"]) / 2
    width = scale * rng.uniform(0.05, 0.09)
    lines = [(joints[a], joints[b]) for a, b in BONES if not _is_side(a, b)]
    for start, end in [*lines, (neck, hips), (neck, joints["head"])]:
        canvas.paint(image, canvas.line(start, end, width), paint)
    x, y = joints["head"].tolist()
    canvas.paint(image, canvas.disc(x, y, scale * rng.uniform(0.09, 0.13)), paint)
    points = tuple(KeyPoint(n, float(joints[n][0]), float(joints[n][1]), 1.0) for n in JOINTS)
    return Picture(canvas.to_bytes(image), Annotation(key_points=points, bones=BONES))


def _is_side(near: str, far: str) -> bool:
    """Whether a bone is a side of the trunk, which is drawn as one central line."""
    return near.endswith("shoulder") and far.endswith("hip")


def _places(rng: np.random.Generator, count: int) -> list[tuple[float, float, float]]:
    """Centers and radii of circles that do not touch; fewer than `count` if there is no room."""
    places: list[tuple[float, float, float]] = []
    for _ in range(40):
        radius = float(rng.uniform(0.1, 0.21))
        x, y = rng.uniform(radius, 1 - radius, 2).tolist()
        if len(places) < count and all(np.hypot(x - a, y - b) > radius + r for a, b, r in places):
            places.append((x, y, radius))
    return places


def _outline(
    rng: np.random.Generator, name: str, x: float, y: float, radius: float
) -> canvas.Outline:
    if name == "circle":
        return canvas.disc(x, y, radius)
    if name == "ring":
        return canvas.ring(x, y, radius, radius * rng.uniform(0.25, 0.45))
    angle = rng.uniform(-np.pi, np.pi)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return canvas.polygon(radius * _corners(name) @ turn + (x, y))


def _corners(name: str) -> np.ndarray:
    """[n, 2]: the corners of a shape in a circle of radius 1."""
    if name == "cross":
        a, b = 0.25, 0.95
        quarter = np.array([[a, b], [a, a], [b, a]])
        turns = [np.array([[c, -s], [s, c]]) for c, s in ((1, 0), (0, -1), (-1, 0), (0, 1))]
        return np.concatenate([quarter @ turn.T for turn in turns])
    n = {"triangle": 3, "square": 4, "star": 10}[name]
    angles = np.arange(n) * 2 * np.pi / n
    radii = np.where(np.arange(n) % 2, 0.4, 1.0) if name == "star" else np.ones(n)
    return np.asarray(radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1))


def _posed(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Joints around the origin, in units of the figure's height, with y downwards."""
    joints = {"head": np.array([rng.normal(0, 0.01), -0.42])}
    for name, sign in (("left", 1.0), ("right", -1.0)):
        shoulder = np.array([sign * 0.11, -0.28])
        hip = np.array([sign * 0.07, 0.02])
        raised, bent = rng.uniform(0.1, 2.6), rng.uniform(-0.4, 1.4)
        spread, knee = rng.uniform(0.0, 0.6), rng.uniform(-0.5, 0.3)
        joints |= _limb(name, sign, ("shoulder", "elbow", "wrist"), shoulder, 0.16, (raised, bent))
        joints |= _limb(name, sign, ("hip", "knee", "ankle"), hip, 0.23, (spread, knee))
    return joints


def _limb(
    side: str,
    sign: float,
    names: Sequence[str],
    start: np.ndarray,
    length: float,
    angles: tuple[float, float],
) -> dict[str, np.ndarray]:
    first, bend = angles
    middle = start + length * np.array([sign * np.sin(first), np.cos(first)])
    end = middle + length * np.array([sign * np.sin(first + bend), np.cos(first + bend)])
    return {f"{side} {n}": p for n, p in zip(names, (start, middle, end), strict=True)}


def _fitted(rng: np.random.Generator, joints: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The joints, slightly rotated and moved into the image, and `scale`, the figure's height."""
    angle = rng.uniform(-0.25, 0.25)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    points = np.stack(list(joints.values())) @ turn.T
    low, high = points.min(axis=0) - 0.13, points.max(axis=0) + 0.13
    scale = rng.uniform(0.7, 1.0) / float((high - low).max())
    free = 1 - scale * (high - low)
    moved = scale * (points - low) + rng.uniform(0, 1, 2) * free
    return {**dict(zip(joints, moved, strict=True)), "scale": np.full(2, scale)}
