"""Gradients of resized and of mirrored images."""

from typing import Any

import numpy as np

from jaxdelegate.testing import Case, const, f32, value
from tests.op_lowering.flex.test_math import case, numbers

F32 = np.dtype(np.float32)
PLACES: dict[str, dict[str, Any]] = {
    "plain": {},
    "corners": {"align_corners": True},
    "half": {"half_pixel_centers": True},
}


def resized(kind: str, label: str, dy: tuple[int, ...], x: tuple[int, ...]) -> Case:
    """The gradient of images `x` that were resized to the size of `dy`."""
    image = numbers(*x[1:3]) if kind == "NearestNeighbor" else f32(*x, seed=1)
    return case(
        f"Resize{kind}Grad",
        f"{label}-{list(x)}-{list(dy)}",
        [f32(*dy), image],
        [F32],
        attributes=PLACES[label],
        accumulated=64,
    )


def mirrored(mode: str, shape: tuple[int, ...], *pads: tuple[int, int], **changed: Any) -> Case:
    widths = const(np.array(pads, np.int32))
    attributes = {"mode": mode, "Tpaddings": np.dtype(np.int32)}
    label = f"{mode}-{list(shape)}-{pads}"
    inputs = [f32(*shape), changed.get("widths", widths)]
    return case("MirrorPadGrad", label, inputs, [F32], attributes=attributes, accumulated=8)


CASES = [
    *(
        resized(kind, label, *shapes)
        for kind in ("Bicubic", "Bilinear", "NearestNeighbor")
        for label in PLACES
        for shapes in (
            ((2, 7, 9, 2), (2, 3, 5, 2)),
            ((1, 2, 3, 2), (1, 5, 4, 2)),
            ((1, 1, 4, 1), (1, 3, 1, 1)),
        )
    ),
    mirrored("REFLECT", (6, 4), (2, 1), (1, 1)),
    mirrored("SYMMETRIC", (6, 5), (2, 2), (0, 2)),
    mirrored("SYMMETRIC", (2, 3, 4), (0, 0), (0, 1), (2, 0)),
]
RUN_TIME = [mirrored("REFLECT", (3,), widths=value(np.int32([[1, 1]])))]
IMPOSSIBLE = [
    resized("Bilinear", "plain", (2, 4, 4, 2), (1, 4, 4, 2)),
    resized("Bicubic", "plain", (2, 4, 4), (2, 4, 4, 2)),
    resized("NearestNeighbor", "plain", (2, 4, 4), (2, 4, 4, 2)),
    mirrored("REFLECT", (4,), (2, 0)),
    mirrored("SYMMETRIC", (4,), (3, 3)),
    mirrored("SYMMETRIC", (4,), (-1, 0)),
    mirrored("EDGE", (4,), (1, 0)),
]
STOPPED = {"no pixels": resized("Bilinear", "plain", (1, 0, 2, 1), (1, 2, 2, 1))}
