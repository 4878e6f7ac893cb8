"""Accuracy of the written files on pictures and sounds that are not in the training data."""

from collections.abc import Callable, Iterator

import numpy as np

import jaxdelegate
from jaxdelegate.interpreter import Interpreter
from network_training import accuracy as fit
from sample_tasks import sounds
from sample_tasks.annotations import Annotation
from sample_tasks.tasks import TASKS

_SEEDS = range(10_000, 10_200)
_SOUNDS = range(10_000, 10_060)
Pair = tuple[Annotation, Annotation]  # a network's, and the truth


def accuracy(task: str, content: bytes) -> str:
    """One line about a task's network, float or int8 (which is computed in integers)."""
    delegate = jaxdelegate.JaxDelegate(quant_mode="integer")
    interpreter = Interpreter(model_content=content, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    if task == "keywords":
        return _keywords(interpreter)
    measures: dict[str, Callable[[list[Pair]], str]] = {
        "classification": _classification,
        "detection": _detection,
        "segmentation": _segmentation,
        "pose": _pose,
    }
    return measures[task](list(_pairs(task, interpreter)))


def _pairs(task: str, interpreter: Interpreter) -> Iterator[Pair]:
    for seed in _SEEDS:
        picture = TASKS[task].example(seed)
        outputs = _outputs(interpreter, TASKS[task].inputs(picture.image))
        yield TASKS[task].decode(outputs), picture.truth


def _outputs(interpreter: Interpreter, x: np.ndarray) -> list[np.ndarray]:
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


def _classification(pairs: list[Pair]) -> str:
    return f"{np.mean([fit.is_right(*pair) for pair in pairs]):.1%} right"


def _detection(pairs: list[Pair]) -> str:
    return _counts(sum((fit.boxes(*pair) for pair in pairs), fit.Counts()))


def _segmentation(pairs: list[Pair]) -> str:
    pixels = np.sum([fit.confusion(*pair) for pair in pairs], axis=0)
    return f"mean IoU {fit.mean_iou(pixels):.3f}"


def _pose(pairs: list[Pair]) -> str:
    return f"mean error of joints {np.mean([fit.joint_error(*pair) for pair in pairs]):.2%}"


def _keywords(interpreter: Interpreter) -> str:
    counts = fit.Counts()
    for seed in _SOUNDS:
        sound = sounds.sound(seed)
        interpreter.reset_all_variables()
        frames = sounds.features(sound.samples)
        scores = [_outputs(interpreter, frame[None])[0][0] for frame in frames]
        counts += fit.words(sounds.heard(np.stack(scores)), sound.spoken)
    return _counts(counts)


def _counts(counts: fit.Counts) -> str:
    return f"{counts.recall:.1%} found, {counts.false_rate:.1%} false"
