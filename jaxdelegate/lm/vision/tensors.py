"""What a vision encoder takes: pixels, or patches with their columns and rows.

Source: LiteRT-LM 0.18 (runtime/components/preprocessor/image_preprocessor_utils.cc,
stb_image_preprocessor.cc).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxdelegate.errors import GenerationError
from jaxdelegate.host_memory import aligned_zeros
from jaxdelegate.lm.vision.resizing import resized
from jaxdelegate.lm.vision.vision_graph import ImageForm, VisionGraph, VisionStep


class ImageTensors(NamedTuple):
    """One image as a step of the encoder takes it.

    Attributes:
        step: of the encoder.
        pixels: uint8 [height, width, 3], or patches [n, values]; the encoder takes them as floats,
            see `scaled`.
        positions: int32 [n, 2]: the column and row of each patch, -1 after the last one; None: all
            images have one size.
        places: how many the image has in a prompt.
    """

    step: VisionStep
    pixels: np.ndarray
    positions: np.ndarray | None
    places: int

    @property
    def key(self) -> str:
        """The encoder's signature that takes it."""
        return self.step.key

    @property
    def arrays(self) -> list[np.ndarray]:
        """What the embeddings depend on."""
        return [self.pixels, *([] if self.positions is None else [self.positions])]


def tensors_of(pixels: np.ndarray, graph: VisionGraph) -> ImageTensors:
    """Prepare an image. A GenerationError: it is too long and thin.

    `pixels`: uint8 [height, width, 3].
    """
    first = graph.steps[-1]
    if not graph.most_patches:
        has_patches = len(first.images.shape) == 3
        image = resized(pixels, *(graph.form.size if has_patches else first.images.shape[1:3]))
        image = _patches(image, first.patch) if has_patches else image
        return ImageTensors(first, image, None, first.count)
    height, width = _fitting(pixels.shape[:2], graph.most_patches, first.patch, first.pool)
    patches = _patches(resized(pixels, height, width), first.patch)
    step = graph.step_for(len(patches))
    rows, columns = np.divmod(np.arange(len(patches)), width // first.patch)
    empty = step.patches - len(patches)
    return ImageTensors(
        step,
        np.pad(patches, ((0, empty), (0, 0))),
        np.pad(np.stack([columns, rows], -1), ((0, empty), (0, 0)), constant_values=-1).astype(
            np.int32
        ),
        len(patches) // first.pool**2,
    )


def scaled(pixels: np.ndarray, form: ImageForm) -> np.ndarray:
    """Values as the encoder takes them: float32, of the same shape."""
    values = aligned_zeros(pixels.shape, np.dtype(np.float32))  # a CPU reads it where it is
    np.divide(pixels, np.float32(form.divisor), out=values, dtype=np.float32)
    if any(form.mean):
        _change(np.subtract, values, form.mean)
    if set(form.deviation) != {1}:
        _change(np.divide, values, form.deviation)
    return values


def _change(by: np.ufunc, values: np.ndarray, each: Sequence[float]) -> None:
    """Change values in place, by a number for each channel."""
    if len(set(each)) == 1:
        by(values, np.float32(each[0]), out=values)  # long rows take a third of the time
    else:
        rows = values.reshape(-1, 3)
        by(rows, np.asarray(each, np.float32), out=rows)


def _patches(image: np.ndarray, patch: int) -> np.ndarray:
    """[n, values]: the rows of patches from the top, each from the left."""
    height, width, channels = image.shape
    blocks = image.reshape(height // patch, patch, width // patch, patch, channels)
    return blocks.transpose(0, 2, 1, 3, 4).reshape(-1, patch * patch * channels)


def _fitting(size: tuple[int, ...], most: int, patch: int, pool: int) -> tuple[int, int]:
    """The height and width that keep an image's shape with at most `most` patches.

    Multiples of `pool` patches, rounded down; at least one of them.
    """
    height, width = size
    side, longest = pool * patch, most // pool**2 * pool * patch
    # LiteRT-LM computes these in float32.
    factor = np.sqrt(np.float32(most * patch * patch) / np.float32(height * width))
    rows, columns = (math.floor(factor * np.float32(n) / np.float32(side)) for n in size)
    if rows == columns == 0:
        raise GenerationError(f"the image: expected a larger one, got {width} x {height} pixels")
    if rows == 0:
        return side, min(width // height * side, longest)
    if columns == 0:
        return min(height // width * side, longest), side
    return rows * side, columns * side
