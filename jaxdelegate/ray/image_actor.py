"""The actor of an evaluation: decodes the images of a batch and runs the model on them."""

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdelegate import providers
from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.evaluation.model import ImageModel, open_image_model
from jaxdelegate.evaluation.pipeline import Batch, Outputs, Pipeline, Times
from jaxdelegate.ray.resources import Resources, assigned_resources


@dataclasses.dataclass(frozen=True)
class Work:
    """What all actors of an evaluation need."""

    path: str  # on a disk that all actors can read
    flags: Mapping[str, Any]  # of the delegates, those that were given
    batch_size: int  # images that an invocation should take
    num_outputs: int  # that the model must have


@dataclasses.dataclass(frozen=True)
class Done:
    batch: Batch
    times: Times


class ImageActor:
    """Opens the model at the first call. Ray runs up to two calls at a time: one decodes."""

    def __init__(self, work: Work) -> None:
        """The first call reports what is wrong with the work."""
        self._work = work
        self._opening, self._running = threading.Lock(), threading.Lock()
        self._opened: ImageModel | None = None
        self._resources = assigned_resources() or Resources()

    def describe(self) -> ImageModel:
        """The model without its interpreter."""
        return dataclasses.replace(self._model(), interpreter=None)

    def run(
        self,
        first: int,
        paths: Sequence[Path],
        crop_fraction: float | None,
        decode_threads: int | None,
    ) -> Done:
        """Run one batch: `paths` are at most the model's batch, `first` is the index of the first.

        `crop_fraction` is as in `ImageModel.preprocessing`. Threads of None are one for each of the
        actor's CPUs.
        """
        model, waited = self._model(), 0.0

        def start(images: np.ndarray) -> Callable[[], Outputs]:
            nonlocal waited
            begun = time.perf_counter()
            with self._running:
                waited = time.perf_counter() - begun
                return model.start(images)

        pipeline = Pipeline(
            model.preprocessing(crop_fraction),
            start,
            input_shape=model.input_shape,
            dtype=model.dtype,
            workers=decode_threads or max(1, int(self._resources.cpus)),
        )
        (batch,) = pipeline.run(paths)
        times, images = pipeline.times, len(pipeline.times.invoke)
        times.invoke = [seconds - waited / images for seconds in times.invoke]
        times.busy -= waited
        times.device_wait = waited
        return Done(dataclasses.replace(batch, first=first), times)

    def _model(self) -> ImageModel:
        with self._opening:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def _open(self) -> ImageModel:
        values = providers.flag_values(**self._work.flags)
        if values.num_threads < 1 and self._resources.threads is not None:
            values = values.replaced(num_threads=self._resources.threads)
        if self._resources.gpus and not values.is_set("jax_platform"):
            values = values.replaced(jax_platform="gpu")
        delegates = [row.delegate for row in providers.create_delegates(values)]
        for delegate in delegates:
            if isinstance(delegate, JaxDelegate) and delegate.programs is not None:
                delegate.programs.compiles_once = True
        interpreter = providers.open_interpreter(values, self._work.path, delegates)
        return open_image_model(
            self._work.path,
            interpreter,
            batch_size=self._work.batch_size,
            num_outputs=self._work.num_outputs,
        )
