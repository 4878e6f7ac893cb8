"""What a network found in an image, in a form that does not depend on the network."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Label:
    name: str
    score: float  # 0 to 1


@dataclasses.dataclass(frozen=True)
class Box:
    """An object and its position, in fractions of the image's width and height."""

    label: Label
    left: float
    top: float
    right: float
    bottom: float


@dataclasses.dataclass(frozen=True)
class KeyPoint:
    """A joint and its position, in fractions of the image's width and height."""

    name: str
    x: float
    y: float
    score: float


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """What a network found in one image; each task fills some fields."""

    labels: tuple[Label, ...] = ()  # classes of the whole image, best first
    boxes: tuple[Box, ...] = ()  # objects, best first
    key_points: tuple[KeyPoint, ...] = ()
    bones: tuple[tuple[str, str], ...] = ()  # pairs of names of joints that a line connects
    # Integers [height, width], the class of each pixel, 0 for the background. Its size may differ
    # from the image's.
    mask: np.ndarray | None = None
    mask_names: tuple[str, ...] = ()  # names of the mask's classes; the first is the background's
