"""Training data of each task: generated pictures or sounds, and targets as arrays."""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from network_training.architectures import ANCHOR, CELLS, SCALES, anchors
from sample_tasks import sounds
from sample_tasks.annotations import Annotation
from sample_tasks.pictures import (
    JOINTS,
    SHAPES,
    Picture,
    masked_shapes,
    one_shape,
    several_shapes,
    stick_figure,
)
from sample_tasks.tasks import TASKS

FIRST_SEED = 1_000_000  # other code uses smaller seeds
_SIZES = (64, 96, 128, 256)  # pixels, before pictures are resized
_HEATMAP = 16  # height and width
_SPREAD = 0.7  # a joint's in its heatmap, in cells
_SECONDS = 4.0  # a sound's length

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Samples:
    """Arrays whose first dimension is the sample: `x`, and the targets of a loss."""

    arrays: Batch

    def batches(self, size: int, steps: int, seed: int) -> Iterator[Batch]:
        """Random batches; images with their colors exchanged and inverted at random."""
        rng = np.random.default_rng([seed, 1])
        for _ in range(steps):
            chosen = rng.integers(0, len(self.arrays["x"]), size)
            batch = {name: array[chosen] for name, array in self.arrays.items()}
            yield {**batch, "x": _recolored(rng, batch["x"])}


def _recolored(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    if x.dtype != np.uint8:
        return x
    orders = np.argsort(rng.uniform(size=(len(x), 1, 1, 3)), axis=-1)
    signs = rng.choice(np.float32([-1, 1]), (len(x), 1, 1, 1))
    return signs * (np.take_along_axis(x, orders, axis=-1).astype(np.float32) / 127.5 - 1)


def of_pictures(
    task: str,
    make: Callable[..., Picture],
    target: Callable[[Annotation], Batch],
    count: int,
    seed: int,
) -> Samples:
    """Pictures in the size of a task's network, uint8, and targets from the truth about each."""
    images, targets = [], []
    for i in range(count):
        picture = make(FIRST_SEED * (1 + seed) + i, _SIZES[i % len(_SIZES)])
        values = TASKS[task].inputs(picture.image)[0]
        images.append(np.rint(127.5 * (values + 1)).astype(np.uint8))
        targets.append(target(picture.truth))
    arrays = {name: np.stack([t[name] for t in targets]) for name in targets[0]}
    return Samples({"x": np.stack(images), **arrays})


def classification(count: int, seed: int) -> Samples:
    """`label`: the shape's number."""
    return of_pictures("classification", one_shape, _label, count, seed)


def detection(count: int, seed: int) -> Samples:
    """`encodings` [cells, 4], `scores` [cells, 1 + classes], and the weights of both."""
    return of_pictures("detection", several_shapes, _cells, count, seed)


def segmentation(count: int, seed: int) -> Samples:
    """`mask` [64, 64]: the class of each pixel."""
    return of_pictures("segmentation", masked_shapes, _mask, count, seed)


def pose(count: int, seed: int) -> Samples:
    """`heatmaps` [16, 16, joints], each of which sums to 1."""
    return of_pictures("pose", stick_figure, _heatmaps, count, seed)


def keywords(count: int, seed: int) -> Samples:
    """`x`: features [frames, bands]; `label` and `weight`: [frames]."""
    made = [sounds.sound(FIRST_SEED * (1 + seed) + i, _SECONDS) for i in range(count)]
    x = np.stack([sounds.features(s.samples) for s in made])
    labels, weights = zip(*(_frames(s, x.shape[1]) for s in made), strict=True)
    return Samples({"x": x, "label": np.stack(labels), "weight": np.stack(weights)})


def _label(truth: Annotation) -> Batch:
    return {"label": np.int32(SHAPES.index(truth.labels[0].name))}


def _cells(truth: Annotation) -> Batch:
    """A cell near a shape's center finds the shape; cells a little farther may or may not."""
    grid = anchors()
    encodings = np.zeros((len(grid), 4), np.float32)
    scores = np.zeros((len(grid), 1 + len(SHAPES)), np.float32)
    is_shape, counts = np.zeros(len(grid), np.float32), np.ones(len(grid), np.float32)
    for box in truth.boxes:
        y, x = (box.top + box.bottom) / 2, (box.left + box.right) / 2
        height, width = box.bottom - box.top, box.right - box.left
        away = CELLS * np.abs(grid[:, :2] - (y, x)).max(axis=1)
        near = away < 0.75
        counts[(away < 1.5) & (is_shape == 0)] = 0
        counts[near] = is_shape[near] = 1
        encodings[near, 0] = SCALES["y_scale"] * (y - grid[near, 0]) / ANCHOR
        encodings[near, 1] = SCALES["x_scale"] * (x - grid[near, 1]) / ANCHOR
        encodings[near, 2] = SCALES["h_scale"] * np.log(height / ANCHOR)
        encodings[near, 3] = SCALES["w_scale"] * np.log(width / ANCHOR)
        scores[near] = np.eye(1 + len(SHAPES))[1 + SHAPES.index(box.label.name)]
    return {"encodings": encodings, "scores": scores, "is_shape": is_shape, "counts": counts}


def _mask(truth: Annotation) -> Batch:
    if truth.mask is None:
        raise ValueError("the picture has no mask")
    size = TASKS["segmentation"].size
    middles = ((np.arange(size) + 0.5) * len(truth.mask) / size).astype(int)
    return {"mask": truth.mask[middles][:, middles]}


def _heatmaps(truth: Annotation) -> Batch:
    y, x = np.indices((_HEATMAP, _HEATMAP)) + 0.5
    maps = np.zeros((_HEATMAP, _HEATMAP, len(JOINTS)), np.float32)
    for i, point in enumerate(truth.key_points):
        away = (x - _HEATMAP * point.x) ** 2 + (y - _HEATMAP * point.y) ** 2
        maps[..., i] = np.exp(-away / (2 * _SPREAD**2))
    return {"heatmaps": maps / maps.sum(axis=(0, 1))}


def _frames(sound: sounds.Sound, count: int) -> tuple[np.ndarray, np.ndarray]:
    """A word counts from within its last tone until shortly after its end."""
    ends = (np.arange(count) + 1) * sounds.FRAME / sounds.RATE
    labels, weights = np.zeros(count, np.int32), np.ones(count, np.float32)
    for word in sound.spoken:
        known = word.start + 0.85 * (word.end - word.start)
        labels[(ends > known) & (ends < word.end + 0.1)] = sounds.LABELS.index(word.name)
        weights[(ends > known - 0.08) & (ends < known + 0.02)] = 0
        weights[(ends > word.end + 0.08) & (ends < word.end + 0.16)] = 0
    return labels, weights
