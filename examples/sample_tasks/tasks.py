"""The tasks on images: small trained networks, with pre- and postprocessing."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from sample_tasks import pictures
from sample_tasks.annotations import Annotation, KeyPoint, Label, detected
from sample_tasks.canvas import resized
from sample_tasks.pictures import Picture

NETWORKS = Path(__file__).with_name("networks")  # the .tflite files

_MASK_SCALE = 4  # the mask's size relative to that of the network's scores
_REACH = 2  # cells around the peak of a heatmap that determine the joint's position


@dataclasses.dataclass(frozen=True)
class Task:
    name: str  # the key in `TASKS`
    size: int  # height and width of the network's input
    names: tuple[str, ...]  # the classes or joints, in the order of the network's outputs
    # From a seed to a generated picture, 256 x 256, with the truth about it.
    example: Callable[[int], Picture]
    # From the network's float outputs to what they mean.
    decode: Callable[[Sequence[np.ndarray]], Annotation]

    def network(self, quantized: bool = False) -> bytes:
        """The .tflite file; the int8 one has float32 inputs and outputs, too."""
        return packaged(f"{self.name}_int8" if quantized else self.name)

    def picture(self, seed: int) -> np.ndarray:
        """A generated image, uint8 [256, 256, 3]."""
        return self.example(seed).image

    def inputs(self, image: np.ndarray) -> np.ndarray:
        """The network's input, float32 [1, size, size, 3] from -1 to 1, from uint8 [h, w, 3]."""
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise ValueError(
                f"an image is uint8 [height, width, 3], got {image.dtype} {list(image.shape)}; "
                "with Pillow: np.asarray(picture.convert('RGB'))"
            )
        return (resized(image, self.size, self.size) / 127.5 - 1)[None]


def packaged(name: str) -> bytes:
    """The content of a file in `NETWORKS` by its name, such as `classification_int8`."""
    return (NETWORKS / f"{name}.tflite").read_bytes()


def _classified(outputs: Sequence[np.ndarray]) -> Annotation:
    """From `probabilities` [1, classes], the first output; `features` is the embedding."""
    scores = outputs[0][0]
    best = np.argsort(-scores)
    return Annotation(labels=tuple(Label(pictures.SHAPES[i], float(scores[i])) for i in best))


def _detected(outputs: Sequence[np.ndarray]) -> Annotation:
    return detected(outputs, (0, 1, 2, 3), pictures.SHAPES.__getitem__)


def _segmented(outputs: Sequence[np.ndarray]) -> Annotation:
    """From scores [1, height, width, classes], enlarged before the argmax for smooth edges."""
    scores = outputs[0][0]
    height, width = (_MASK_SCALE * n for n in scores.shape[:2])
    mask = resized(scores, height, width).argmax(axis=-1)
    return Annotation(mask=mask, mask_names=pictures.MASKED)


def _posed(outputs: Sequence[np.ndarray]) -> Annotation:
    """From heatmaps [1, height, width, joints]; their softmax over the cells is a probability."""
    heatmaps = outputs[0][0].transpose(2, 0, 1)
    points = (
        _joint(name, heatmap) for name, heatmap in zip(pictures.JOINTS, heatmaps, strict=True)
    )
    return Annotation(key_points=tuple(points), bones=pictures.BONES)


def _joint(name: str, heatmap: np.ndarray) -> KeyPoint:
    """The mean of the cells around the peak; the score is their total probability."""
    cells = np.exp(heatmap - heatmap.max())
    cells /= cells.sum()
    row, column = np.unravel_index(cells.argmax(), cells.shape)
    y, x = np.indices(cells.shape)
    near = (np.abs(y - row) <= _REACH) & (np.abs(x - column) <= _REACH)
    mass = float(cells[near].sum())
    height, width = cells.shape
    return KeyPoint(
        name,
        float(((x + 0.5) * cells)[near].sum() / mass / width),
        float(((y + 0.5) * cells)[near].sum() / mass / height),
        mass,
    )


_ALL = (
    Task("classification", 64, pictures.SHAPES, pictures.one_shape, _classified),
    Task("detection", 64, pictures.SHAPES, pictures.several_shapes, _detected),
    Task("segmentation", 64, pictures.MASKED, pictures.masked_shapes, _segmented),
    Task("pose", 64, pictures.JOINTS, pictures.stick_figure, _posed),
)
TASKS: dict[str, Task] = {task.name: task for task in _ALL}
