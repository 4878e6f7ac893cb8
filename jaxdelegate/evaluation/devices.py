"""A model on several devices, which take whole batches in turn.

Every image is computed by the same program as on one device, so results are bitwise identical
however many devices there are. (A mesh would divide each batch, and the smaller parts would need
other programs.)
"""

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from jaxdelegate.evaluation.errors import DataError
from jaxdelegate.evaluation.files import StrPath
from jaxdelegate.evaluation.model import ImageModel, open_image_model, stock_errors
from jaxdelegate.evaluation.pipeline import Outputs, Start
from jaxdelegate.interpreter import Interpreter


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOnDevices(ImageModel):
    """An allocated interpreter on each device; the other attributes are those of the first."""

    starts: Iterator[Start]  # the devices in turn, again and again

    def start(self, images: np.ndarray) -> Callable[[], Outputs]:
        """Start to run [B, H, W, 3], which must not change until the outputs are available."""
        return next(self.starts)(images)


def _start(model: ImageModel, thread: ThreadPoolExecutor) -> Start:
    """`ImageModel.start`; in the thread, which has one device, if it would block the caller."""
    if model.in_flight > 1:
        return model.start
    return lambda images: thread.submit(model.invoke, images).result


def open_on_devices(
    path: StrPath, interpreter: Any, *, batch_size: int, num_outputs: int
) -> ImageModel:
    """Call `open_image_model` for one interpreter, or for several, each on another device.

    The first one determines how the model runs batches; the others follow it concurrently.
    """
    more = {"batch_size": batch_size, "num_outputs": num_outputs}
    if not isinstance(interpreter, Sequence):
        return open_image_model(path, interpreter, **more)
    if not interpreter:
        raise DataError(f"{os.fspath(path)}: expected at least one interpreter, got an empty list")
    first = open_image_model(path, interpreter[0], **more)
    threads = [ThreadPoolExecutor(1, f"device {i}") for i in range(len(interpreter))]
    others = [
        thread.submit(_like, first, other)
        for thread, other in zip(threads[1:], interpreter[1:], strict=True)
    ]
    models = [first, *(other.result() for other in others)]
    return ModelOnDevices(
        **{f.name: getattr(first, f.name) for f in dataclasses.fields(first)}
        | {"in_flight": sum(model.in_flight for model in models), "devices": len(models)},
        starts=itertools.cycle(map(_start, models, threads)),
    )


def _like(first: ImageModel, interpreter: Any) -> ImageModel:
    with stock_errors():
        if isinstance(first.interpreter, Interpreter) and first.interpreter._why_rebatched():
            interpreter._set_rebatch(True)
        interpreter.resize_tensor_input(first.input_index, list(first.input_shape))
        interpreter.allocate_tensors()
    return dataclasses.replace(first, interpreter=interpreter)
