"""Evaluations on the actors of a Ray cluster: the runner of imagenet_eval and coco_eval."""

import dataclasses
import functools
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdelegate import providers
from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.errors import InterpreterError, OptionError
from jaxdelegate.evaluation.files import DataError
from jaxdelegate.evaluation.model import ImageModel, open_image_model
from jaxdelegate.evaluation.pipeline import Batch, Outputs, Start, Times, Waits
from jaxdelegate.optional import optional_module
from jaxdelegate.ray.resources import Resources, assigned_resources

_BATCHES_PER_ACTOR = 2  # one is decoded while the other is computed
_BATCHES_AHEAD = 8  # per actor: how far batches may run ahead of the next one to be yielded
_MAX_DEATHS = 3  # how often an actor may die with the same batch
_MAX_RESTARTS = 20  # per actor: ends a run whose actors die before they begin a batch


class ImageActor:
    """Opens the model at the first call. Ray runs up to two calls at a time: one decodes."""

    def __init__(self, path: str, flags: Mapping[str, Any], **expected: int) -> None:
        """`expected`: as for `open_image_model`. The first call reports what is wrong."""
        self._path, self._flags, self._expected = path, flags, expected
        self._opening, self._running = threading.Lock(), threading.Lock()
        self._resources = assigned_resources() or Resources()

    def describe(self) -> ImageModel:
        return dataclasses.replace(self._model(), interpreter=None)

    def run(
        self,
        first: int,
        paths: Sequence[Path],
        crop_fraction: float | None,
        decode_threads: int | None,
    ) -> tuple[Batch, Times]:
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

        workers = decode_threads or max(1, int(self._resources.cpus))
        pipeline = model.batches(crop_fraction, workers, start)
        (batch,) = pipeline.run(paths)
        times, images = pipeline.times, len(pipeline.times.invoke)
        times.invoke = [seconds - waited / images for seconds in times.invoke]
        times.busy -= waited
        times.device_wait = waited
        return dataclasses.replace(batch, first=first), times

    def _model(self) -> ImageModel:
        with self._opening:
            return self._opened

    @functools.cached_property
    def _opened(self) -> ImageModel:
        values = providers.flag_values(**self._flags)
        if values.num_threads < 1 and self._resources.threads is not None:
            values = values.replaced(num_threads=self._resources.threads)
        if self._resources.gpus and not values.is_set("jax_platform"):
            values = values.replaced(jax_platform="gpu")
        delegates = [row.delegate for row in providers.create_delegates(values)]
        for delegate in delegates:
            if isinstance(delegate, JaxDelegate) and delegate.programs is not None:
                delegate.programs.compiles_once = True
        interpreter = providers.open_interpreter(values, self._path, delegates)
        return open_image_model(self._path, interpreter, **self._expected)


class RayRunner:
    """Joins a cluster and runs batches on its actors, until it is closed.

    The actors read the model and the images by their paths, from a disk that all machines share.
    Ray restarts an actor that dies, and runs its batches again.
    """

    def __init__(
        self,
        flags: Mapping[str, Any],
        *,
        address: str,
        actors: int | None = None,
        cpus: float = 1.0,
        gpus: float | None = None,
    ) -> None:
        """Join Ray at an `address` that `ray.init` takes; "local" starts a Ray for this run.

        `flags` are those of delegates that the user set. `actors` of None: as many as fit; `gpus`
        of None: 1 for each actor if the cluster has any and no flag names another platform.
        """
        for name, value in {"actors": actors, "cpus": cpus}.items():
            if value is not None and not 0 < value < math.inf:
                raise OptionError(f"{name}: must be greater than 0, got {value}")
        if gpus is not None and not 0 <= gpus <= 1:
            raise OptionError(f"gpus: an actor uses at most one GPU, got {gpus}")
        self._ray, self._flags = optional_module("ray", "ray"), dict(flags)
        self._owns_ray = not self._ray.is_initialized()
        if self._owns_ray:
            self._join(address)
        try:
            self._resources, self._count = self._room(actors, cpus, gpus)
        except OptionError:
            self.close()
            raise

    def open(
        self, path: str | os.PathLike[str], *, batch_size: int, num_outputs: int
    ) -> ImageModel:
        """Start the actors; returns the model of the first one, without its interpreter."""
        actor_class = self._ray.remote(ImageActor).options(
            **self._resources,
            max_concurrency=_BATCHES_PER_ACTOR,
            max_restarts=_MAX_RESTARTS,
            max_task_retries=_MAX_DEATHS - 1,
        )
        expected = {"batch_size": batch_size, "num_outputs": num_outputs}
        arguments = os.path.abspath(path), self._flags
        actors = [actor_class.remote(*arguments, **expected) for _ in range(self._count)]
        source = RayBatches(self._ray, actors)
        return RayModel(**vars(source.model), source=source)

    def close(self) -> None:
        """Stop Ray if it was started for this run; it stops actors that nothing refers to."""
        if self._owns_ray:
            self._ray.shutdown()

    def _join(self, address: str) -> None:
        more = {"include_dashboard": False} if address == "local" else {}
        try:
            self._ray.init(address=address, logging_level="warning", **more)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise OptionError(
                f"ray_address {address!r}: cannot connect: {error}; 'auto' is the cluster of this "
                "machine, 'local' starts one for this run"
            ) from error

    def _room(
        self, actors: int | None, cpus: float, gpus: float | None
    ) -> tuple[dict[str, float], int]:
        available = self._ray.cluster_resources()
        has_cpus, has_gpus = (available.get(name, 0.0) for name in ("CPU", "GPU"))
        gpus = self._gpus(has_gpus) if gpus is None else gpus
        room = int(min(has_cpus // cpus, has_gpus // gpus if gpus else math.inf))
        if room < 1:
            raise OptionError(
                f"an actor takes {cpus:g} CPUs and {gpus:g} GPUs; the cluster has {has_cpus:g} and "
                f"{has_gpus:g}"
            )
        if actors is not None and actors > room:
            raise OptionError(f"actors: the cluster has room for {room}, got {actors}")
        return {"num_cpus": cpus, "num_gpus": gpus}, actors or room

    def _gpus(self, available: float) -> float:
        flags = self._flags
        platform = flags.get("jax_platform") or ("gpu" if flags.get("use_gpu") else "")
        is_other = platform or "use_xnnpack" in flags or flags.get("use_jax") is False
        return 1.0 if platform == "gpu" or (available and not is_other) else 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RayModel(ImageModel):
    source: "RayBatches"

    def batches(
        self,
        crop_fraction: float | None,
        decode_threads: int | None,
        start: Start | None = None,  # noqa: ARG002 (the actors start batches)
    ) -> "RayBatches":
        self.source.arguments = crop_fraction, decode_threads
        return self.source


class RayBatches:
    """Runs batches on actors as these become free, and yields the results in order."""

    def __init__(self, ray: Any, actors: Sequence[Any]) -> None:
        self._ray, self.actors = ray, actors
        # The actor and the first image of its batch; None: it opens the model.
        self._tasks: dict[Any, tuple[Any, int | None]] = {
            actor.describe.remote(): (actor, None) for actor in actors
        }
        self._free: deque[Any] = deque()  # each actor once for each batch that it can accept
        self._models: list[ImageModel] = []
        self._done: dict[int, Any] = {}
        self.arguments: tuple[Any, ...] = ()  # the last ones of `ImageActor.run`
        self.times = Times()

    @property
    def model(self) -> ImageModel:
        while not self._models:
            self._wait()
        return self._models[0]

    def run(self, paths: Sequence[Path], first: int = 0) -> Generator[Batch]:
        """Yield the batches in order, starting with image `first`, a multiple of the batch size."""
        begun, size = time.perf_counter(), self.model.batch_size
        waiting = deque(range(first, len(paths), size))
        for start in [*waiting]:
            ahead = start + _BATCHES_AHEAD * len(self.actors) * size
            while start not in self._done:
                while self._free and waiting and waiting[0] <= ahead:
                    self._submit(waiting.popleft(), paths, size)
                self._wait()
            name = f"with the batch that begins with {paths[start]}"
            batch, times = self._result(self._done.pop(start), name)
            self.times.add(times)
            self.times.wall = time.perf_counter() - begun
            yield batch

    @property
    def waits(self) -> Waits:
        """Shares of the time of all actors, each of which has up to two batches."""
        times = self.times
        whole = (times.wall or 1.0) * len(self.actors)
        waits = (times.decode_wait / _BATCHES_PER_ACTOR, times.device_wait / _BATCHES_PER_ACTOR)
        decode, device, busy = (float(np.clip(t / whole, 0, 1)) for t in (*waits, times.busy))
        return Waits(times.wall, decode, device, busy)

    def _submit(self, first: int, paths: Sequence[Path], size: int) -> None:
        actor = self._free.popleft()
        absolute = [Path(os.path.abspath(path)) for path in paths[first : first + size]]
        self._tasks[actor.run.remote(first, absolute, *self.arguments)] = actor, first

    def _wait(self) -> None:
        (task,), _ = self._ray.wait([*self._tasks], num_returns=1)
        actor, first = self._tasks.pop(task)
        if first is not None:
            self._done[first] = task
            self._free.append(actor)
            return
        self._models.append(self._result(task, "while it opened the model"))
        self._free.extend([actor] * _BATCHES_PER_ACTOR)
        known, other = _facts(self._models[0]), _facts(self._models[-1])
        if known != other:
            raise DataError(
                "two actors have opened different models, or run them in different batches: "
                f"{known} and {other}; the model's path has to be the same file on all machines"
            )

    def _result(self, task: Any, when: str) -> Any:
        try:
            return self._ray.get(task)
        except self._ray.exceptions.RayActorError as error:
            raise InterpreterError(f"an actor died repeatedly {when}: {error}") from error
        except self._ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None


def _facts(model: ImageModel) -> tuple[Any, ...]:
    return model.digest, model.input_shape, model.dtype.name, model.output_shapes, model.notes
