"""Draws results on images. Needs Pillow."""

import itertools

import numpy as np

from jaxdelegate.optional import install
from sample_tasks.annotations import Annotation

try:
    from PIL import Image, ImageDraw, ImageFont
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"drawings need Pillow, which is not installed: {install('examples')}"
    ) from error

_Color = tuple[int, int, int]
# Distinguishable for most readers with a color vision deficiency too (Okabe and Ito 2008).
_COLORS: tuple[_Color, ...] = (
    (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66),
    (0, 114, 178), (213, 94, 0), (204, 121, 167),
)  # fmt: skip
_OPACITY = 0.55  # a mask's
_MIN_SCORE = 0.3  # less certain joints are not drawn
_MAX_LABELS = 3


def draw(image: np.ndarray, annotation: Annotation) -> np.ndarray:
    """A copy of an image, uint8 [height, width, 3], with labels, boxes, the mask and joints."""
    picture = Image.fromarray(_masked(image, annotation))
    pen = _Pen(picture)
    boxes, labels = annotation.boxes, annotation.labels[:_MAX_LABELS]
    for box, color in zip(boxes, _colors([b.label.name for b in boxes]), strict=True):
        corners = (box.left, box.top, box.right, box.bottom)
        pen.box(corners, f"{box.label.name} {box.label.score:.0%}", color)
    pen.figure(annotation)
    pen.strip([(f"{label.name} {label.score:.0%}", None) for label in labels])
    if annotation.mask is not None:
        classes = [int(i) for i in np.unique(annotation.mask) if i]
        pen.strip([(_name(annotation.mask_names, i), _color(i)) for i in classes])
    return np.asarray(picture)


def _color(number: int) -> _Color:
    return _COLORS[(number - 1) % len(_COLORS)]


def _colors(names: list[str]) -> list[_Color]:
    known = sorted(set(names))
    return [_color(1 + known.index(name)) for name in names]


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else f"class {number}"


def _masked(image: np.ndarray, annotation: Annotation) -> np.ndarray:
    if annotation.mask is None:
        return image
    height, width = image.shape[:2]
    rows = np.arange(height) * annotation.mask.shape[0] // height
    columns = np.arange(width) * annotation.mask.shape[1] // width
    mask = annotation.mask[rows][:, columns]
    palette = np.array(_COLORS, np.float32)[(mask - 1) % len(_COLORS)]
    mixed = (1 - _OPACITY) * image + _OPACITY * palette
    return np.where(mask[..., None] > 0, np.rint(mixed), image).astype(np.uint8)


class _Pen:
    """Sizes are relative to the image."""

    def __init__(self, picture: Image.Image) -> None:
        self._width, self._height = picture.size
        side = min(picture.size)
        self._draw = ImageDraw.Draw(picture)
        self._font = ImageFont.load_default(max(11, side // 20))
        self._line = max(2, side // 128)

    def box(self, corners: tuple[float, float, float, float], text: str, color: _Color) -> None:
        """A frame with its text above it, or inside if there is no room."""
        left, right = (min(max(x, 0), 1) * (self._width - 1) for x in corners[::2])
        top, bottom = (min(max(y, 0), 1) * (self._height - 1) for y in corners[1::2])
        if right <= left or bottom <= top:
            return
        self._draw.rectangle((left, top, right, bottom), outline=color, width=self._line)
        width, height = self._extent(text)
        x = min(left, self._width - width)
        self._text(max(x, 0), top - height if top >= height else top, text, color)

    def figure(self, annotation: Annotation) -> None:
        places = {
            p.name: (p.x * self._width, p.y * self._height)
            for p in annotation.key_points
            if p.score >= _MIN_SCORE
        }
        bones = [(places[a], places[b]) for a, b in annotation.bones if a in places and b in places]
        for color, width in (((0, 0, 0), 2 * self._line + 2), (_COLORS[0], 2 * self._line)):
            for start, end in bones:
                self._draw.line((start, end), fill=color, width=width)
        radius = 2 * self._line
        for (x, y), color in zip(places.values(), itertools.cycle(_COLORS[1:3])):
            corners = (x - radius, y - radius, x + radius, y + radius)
            self._draw.ellipse(corners, fill=color, outline=(0, 0, 0))

    def strip(self, lines: list[tuple[str, _Color | None]]) -> None:
        y = float(self._height)
        for text, color in reversed(lines):
            y -= self._extent(text)[1]
            self._text(0, y, text, color or (0, 0, 0))

    def _extent(self, text: str) -> tuple[float, float]:
        left, _, right, _ = self._draw.textbbox((0, 0), text, self._font)
        return right - left + 6, self._draw.textbbox((0, 0), "Ag", self._font)[3] + 5

    def _text(self, x: float, y: float, text: str, color: _Color) -> None:
        width, height = self._extent(text)
        self._draw.rectangle((x, y, x + width, y + height), fill=color)
        is_light = sum(w * c for w, c in zip((0.3, 0.6, 0.1), color, strict=True)) > 110
        ink = (0, 0, 0) if is_light else (255, 255, 255)
        self._draw.text((x + 3, y + 1), text, ink, self._font)
