"""What a network found in an image, in words that do not depend on the network."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Label:
    """A class and its score, 0 to 1."""

    name: str
    score: float


@dataclasses.dataclass(frozen=True)
class Box:
    """An object and where it is, in fractions of the image's width and height."""

    label: Label
    left: float
    top: float
    right: float
    bottom: float


@dataclasses.dataclass(frozen=True)
class KeyPoint:
    """A joint and where it is, in fractions of the image's width and height."""

    name: str
    x: float
    y: float
    score: float


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """All that a network found in one image; a task fills the fields that it has.

    Attributes:
        labels: classes of the whole image, the best one first.
        boxes: objects, the best one first.
        key_points: joints.
        bones: names of the joints that a line connects.
        mask: integers [height, width], the class of each pixel, 0 for the background. Its size may
            be other than the image's.
        mask_names: names of the mask's classes; the first one is the background's.
    """

    labels: tuple[Label, ...] = ()
    boxes: tuple[Box, ...] = ()
    key_points: tuple[KeyPoint, ...] = ()
    bones: tuple[tuple[str, str], ...] = ()
    mask: np.ndarray | None = None
    mask_names: tuple[str, ...] = ()
