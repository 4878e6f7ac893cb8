"""Top-k accuracy of image classifiers, as in TFLite's imagenet_image_classification task.

Semantics: tools/evaluation/stages/{image_classification,topk_accuracy_eval}_stage.cc.
"""

import dataclasses
import hashlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdelegate.errors import OptionError, check_least
from jaxdelegate.evaluation.files import (
    DataError,
    LabeledImage,
    StrPath,
    imagenet_images,
    read_lines,
    without_denylisted,
)
from jaxdelegate.evaluation.images import IMAGENET_CROP
from jaxdelegate.evaluation.model import ImageModel
from jaxdelegate.evaluation.pipeline import Outputs
from jaxdelegate.evaluation.results import Row, finite
from jaxdelegate.evaluation.run import (
    EvaluationResult,
    RunSettings,
    Task,
    open_to_run,
    run_images,
)
from jaxdelegate.text import printable

DEFAULT_RANKS = 10
_OUTPUT_TYPES = (np.float32, np.uint8, np.int8)
_COLUMNS = {
    "image": "string",
    "label": "string",
    "rank": "int32",
    "indices": "int32[]",
    "labels": "string[]",
    "scores": "float[]",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImagenetResult(EvaluationResult):
    """Accuracies over the images that could be used; `run` has a row for every image.

    A row has image, label (the true one), rank (1 if the best guess was right, null beyond the
    largest k), the best guesses (indices, labels and scores, which are raw outputs) and error.
    """

    top_k: tuple[float, ...]  # k from 1

    def to_proto(self) -> Any:
        metrics, target = self.run.metrics("image_classification_metrics")
        target.topk_accuracy_metrics.topk_accuracies.extend(self.top_k)
        return metrics

    def __str__(self) -> str:
        lines = (f"Top-{k} Accuracy: {share:g}" for k, share in enumerate(self.top_k, 1))
        return "\n".join([str(self.run), *lines])


def evaluate_imagenet(
    model: StrPath,
    images: StrPath,
    model_labels: StrPath,
    *,
    ground_truth_labels: StrPath | None = None,
    synset_labels: StrPath | None = None,
    denylist: StrPath | None = None,
    num_images: int = 0,
    num_ranks: int | None = None,
    settings: RunSettings | None = None,
    interpreter: Any = None,
) -> ImagenetResult:
    """Classify a validation set and count how often the true label is among the best k.

    The arguments are the flags of `jaxdelegate imagenet_eval`, `interpreter` is as in
    `evaluate_coco`; the model has an input [1, H, W, 3] and an output [1, labels].
    """
    settings = settings or RunSettings()
    chosen = _chosen_images(images, ground_truth_labels, synset_labels, denylist, num_images)
    labels = read_lines(model_labels, "model output labels")
    ranks = _checked_ranks(num_ranks, labels)
    opened = open_to_run(model, interpreter, settings, num_images=len(chosen), num_outputs=1)
    _check_output(os.fspath(model), opened, labels, os.fspath(model_labels))
    run = run_images(_task(chosen, labels, ranks), opened, images, settings)
    return ImagenetResult(
        top_k=top_k_accuracies([row["rank"] for row in run.good], ranks),
        run=run,
        notes=(*run.notes, *_label_notes(chosen, labels)),
    )


def _chosen_images(
    images: StrPath,
    ground_truth_labels: StrPath | None,
    synset_labels: StrPath | None,
    denylist: StrPath | None,
    num_images: int,
) -> list[LabeledImage]:
    check_least(0, num_images=num_images)
    labeled = imagenet_images(images, ground_truth_labels, synset_labels)
    labeled = without_denylisted(labeled, denylist)
    if not labeled:
        raise DataError(f"denylist {os.fspath(denylist or '')!r}: it names every image")
    return labeled[:num_images] if num_images else labeled


def _checked_ranks(num_ranks: int | None, labels: Sequence[str]) -> int:
    if num_ranks is None:
        return min(DEFAULT_RANKS, len(labels))
    if not 1 <= num_ranks <= len(labels):
        raise OptionError(
            f"num_ranks: must be 1 to {len(labels)}, the number of labels, got {num_ranks}"
        )
    return num_ranks


def _check_output(source: str, model: ImageModel, labels: Sequence[str], labels_path: str) -> None:
    shape = list(model.output_shapes[0][1:])
    (dtype,) = model.output_dtypes
    if len(shape) != 1 or dtype not in _OUTPUT_TYPES:
        raise DataError(
            f"{printable(source)}: expected an output [1, labels] of float32, uint8 or int8, got "
            f"{dtype} {[1, *shape]}"
        )
    if shape[0] != len(labels):
        raise DataError(
            f"model output labels {labels_path!r}: expected one line for each of the model's "
            f"{shape[0]} outputs, got {len(labels)}"
        )


def _label_notes(images: Sequence[LabeledImage], labels: Sequence[str]) -> tuple[str, ...]:
    known = set(labels)
    unknown = [image.label for image in images if image.label not in known]
    if not unknown:
        return ()
    return (
        f"the labels of {len(unknown)} of {len(images)} images are not among the model's and "
        f"count as wrong; the first: {unknown[0]!r}",
    )


def _task(images: Sequence[LabeledImage], labels: Sequence[str], ranks: int) -> Task:
    def row(i: int, outputs: Outputs) -> Row:
        best = top_k_indices(outputs[0], ranks)
        guesses, truth = [labels[k] for k in best], images[i].label
        return {
            "rank": guesses.index(truth) + 1 if truth in guesses else None,
            "indices": best.tolist(),
            "labels": guesses,
            "scores": [finite(float(x)) for x in outputs[0][best]],
        }

    options = {
        "num_ranks": ranks,
        "model_labels": _digest("\n".join(labels)),
        "ground_truth": _digest("\n".join(image.label for image in images)),
    }
    known: list[Row] = [{"image": image.name, "label": image.label} for image in images]
    return Task("imagenet_eval", known, IMAGENET_CROP, options, _COLUMNS, row)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def top_k_indices(scores: np.ndarray, k: int) -> np.ndarray:
    """Indices of the k largest scores [n], best first; the lower index first among equal ones."""
    return np.argsort(-scores.astype(np.float32), kind="stable")[:k]


def top_k_accuracies(ranks: Sequence[int | None], k: int) -> tuple[float, ...]:
    """For each number from 1 to k the fraction of ranks up to it; None is not found."""
    counts = np.zeros(k, np.int64)
    for rank in ranks:
        if rank is not None:
            counts[rank - 1 :] += 1
    return tuple((counts / max(len(ranks), 1)).tolist())
