"""Evaluations on the actors of a Ray cluster: the runner of imagenet_eval and coco_eval."""

import dataclasses
import heapq
import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from jaxdelegate.errors import InterpreterError, OptionError
from jaxdelegate.evaluation.errors import DataError
from jaxdelegate.evaluation.model import ImageModel
from jaxdelegate.evaluation.pipeline import Batch, Times, Waits
from jaxdelegate.optional import optional_module
from jaxdelegate.ray.image_actor import Done, ImageActor, Work

LOCAL = "local"  # the address that starts a Ray for this run only
_BATCHES_PER_ACTOR = 2  # one is decoded while the other is computed
_BATCHES_AHEAD = 8  # per actor: how far batches may run ahead of the next one to be yielded
_MAX_DEATHS = 3  # of actors with the same batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """Which cluster to use, and how much of it."""

    address: str = LOCAL  # as `ray.init` takes it; "local" starts a Ray for this run
    actors: int | None = None  # None: as many as fit
    cpus: float = 1.0  # of each actor
    # Of each actor; None: one if the cluster has any and no flag names another platform
    gpus: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("actors", self.actors), ("cpus", self.cpus)):
            if value is not None and not 0 < value < math.inf:
                raise OptionError(f"{name}: must be greater than 0, got {value}")
        if self.gpus is not None and not 0 <= self.gpus <= 1:
            raise OptionError(f"gpus: an actor uses at most one GPU, got {self.gpus}")


class RayRunner:
    """Joins a cluster and runs batches on its actors. Leaving the context stops the actors.

    The actors read the model and the images by their paths, from a disk that all machines share.
    """

    def __init__(self, cluster: Cluster, flags: Mapping[str, Any] | None = None) -> None:
        """`flags` are those of the delegates that were given, by name."""
        self._ray = optional_module("ray", "ray")
        self._cluster, self._flags = cluster, dict(flags or {})
        self._actors: _Actors | None = None
        self._owns_ray = not self._ray.is_initialized()
        if self._owns_ray:
            self._join()
        try:
            self._resources, self._count = self._room()
        except OptionError:
            self.close()
            raise

    def open(
        self, path: str | os.PathLike[str], *, batch_size: int, num_outputs: int
    ) -> ImageModel:
        """Start the actors; returns the model of the first one, without its interpreter."""
        work = Work(os.path.abspath(path), self._flags, batch_size, num_outputs)
        actor_class = self._ray.remote(ImageActor).options(
            **self._resources, max_concurrency=_BATCHES_PER_ACTOR, max_restarts=0
        )
        self._stop_actors()
        self._actors = _Actors(self._ray, lambda: actor_class.remote(work), self._count)
        return self._actors.open()

    def batches(
        self, model: ImageModel, crop_fraction: float | None, decode_threads: int | None
    ) -> "RayBatches":
        if self._actors is None:
            raise OptionError("open the model before its batches")
        return RayBatches(self._actors, model.batch_size, crop_fraction, decode_threads)

    def close(self) -> None:
        """Stop the actors, and Ray if it was started for this run."""
        self._stop_actors()
        if self._owns_ray:
            self._ray.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _stop_actors(self) -> None:
        actors, self._actors = self._actors, None
        if actors is not None:
            actors.stop()

    def _join(self) -> None:
        address = self._cluster.address
        more = {"include_dashboard": False} if address == LOCAL else {}
        try:
            self._ray.init(address=address, logging_level="warning", **more)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise OptionError(
                f"ray_address {address!r}: cannot connect: {error}; 'auto' is the cluster of this "
                "machine, 'local' starts one for this run"
            ) from error

    def _room(self) -> tuple[dict[str, float], int]:
        """The resources of an actor, and the number of actors."""
        available = self._ray.cluster_resources()
        has = {name: available.get(name.upper(), 0.0) for name in ("cpu", "gpu")}
        takes = {"cpu": self._cluster.cpus, "gpu": self._gpus(has["gpu"])}
        room = min(int(has[name] // n) for name, n in takes.items() if n)
        if room < 1:
            raise OptionError(
                f"an actor takes {takes['cpu']:g} CPUs and {takes['gpu']:g} GPUs; the cluster has "
                f"{has['cpu']:g} and {has['gpu']:g}"
            )
        count = self._cluster.actors or room
        if count > room:
            raise OptionError(f"actors: the cluster has room for {room}, got {count}")
        return {"num_cpus": takes["cpu"], "num_gpus": takes["gpu"]}, count

    def _gpus(self, available: float) -> float:
        if self._cluster.gpus is not None:
            return self._cluster.gpus
        platform = self._flags.get("jax_platform") or ("gpu" if self._flags.get("use_gpu") else "")
        if platform == "gpu":
            return 1.0
        is_other = platform or "use_xnnpack" in self._flags or self._flags.get("use_jax") is False
        return 0.0 if is_other or not available else 1.0


class _Actors:
    """Actors that open one model and run its batches. One that dies is replaced.

    A batch whose actor dies is run by another, so none is lost; each is yielded once, so none
    counts twice.
    """

    def __init__(self, ray: Any, create: Callable[[], Any], count: int) -> None:
        self._ray, self._create, self.count = ray, create, count
        self._alive: list[Any] = []
        self._free: deque[Any] = deque()  # each actor once per batch that it can accept
        # Reference -> its actor and the first image of its batch; None while it opens the model.
        self._tasks: dict[Any, tuple[Any, int | None]] = {}
        self._deaths: Counter[int | None] = Counter()
        self._model: ImageModel | None = None
        self._batches: Mapping[int, Sequence[Path]] = {}
        self._waiting: list[int] = []  # a heap
        self._done: dict[int, Done | Exception] = {}
        for _ in range(count):
            self._start()

    def open(self) -> ImageModel:
        while self._model is None:
            self._take()
        return self._model

    def in_order(self, batches: Mapping[int, Sequence[Path]], *arguments: Any) -> Generator[Done]:
        """Run batches, by the number of their first image, and yield the results in order."""
        self._batches, self._waiting = batches, sorted(batches)
        ahead = _BATCHES_AHEAD * self.count * self.open().batch_size
        for start in sorted(batches):
            while start not in self._done:
                self._give(last=start + ahead, arguments=arguments)
                self._take()
            found = self._done.pop(start)
            if isinstance(found, Exception):
                raise found
            yield found

    def stop(self) -> None:
        for actor in self._alive:
            self._ray.kill(actor)

    def _start(self) -> None:
        actor = self._create()
        self._alive.append(actor)
        self._tasks[actor.describe.remote()] = actor, None

    def _give(self, last: int, arguments: Sequence[Any]) -> None:
        while self._free and self._waiting and self._waiting[0] <= last:
            actor, batch = self._free.popleft(), heapq.heappop(self._waiting)
            task = actor.run.remote(batch, self._batches[batch], *arguments)
            self._tasks[task] = actor, batch

    def _take(self) -> None:
        """Wait for one task. Its batch is then done, or waits again because its actor died."""
        (task,), _ = self._ray.wait([*self._tasks], num_returns=1)
        actor, batch = self._tasks.pop(task)
        try:
            found = self._ray.get(task)
        except self._ray.exceptions.RayActorError as error:
            self._replace(actor, batch, error)
            return
        except self._ray.exceptions.RayTaskError as error:
            found = error.cause if isinstance(error.cause, Exception) else error
        if batch is None:
            self._admit(actor, found)
        else:
            self._done[batch] = found
            if actor in self._alive:
                self._free.append(actor)

    def _admit(self, actor: Any, model: ImageModel | Exception) -> None:
        if isinstance(model, Exception):
            raise model
        self._model = self._model or model
        if _facts(model) != _facts(self._model):
            raise DataError(
                "two actors have opened different models, or run them in different batches: "
                f"{_facts(self._model)} and {_facts(model)}; the model's path has to be the same "
                "file on all machines"
            )
        self._free.appendleft(actor)  # before actors that have a batch already
        self._free.extend([actor] * (_BATCHES_PER_ACTOR - 1))

    def _replace(self, actor: Any, batch: int | None, error: Exception) -> None:
        self._deaths[batch] += 1
        most, when = _MAX_DEATHS + self.count, "while they opened the model"
        if batch is not None:
            heapq.heappush(self._waiting, batch)
            most, when = _MAX_DEATHS, f"with the batch that begins with {self._batches[batch][0]}"
        if self._deaths[batch] >= most:
            raise InterpreterError(f"{self._deaths[batch]} actors died {when}: {error}") from error
        if actor in self._alive:
            self._alive.remove(actor)
            self._free = deque(other for other in self._free if other != actor)
            self._start()


def _facts(model: ImageModel) -> tuple[Any, ...]:
    return model.digest, model.input_shape, model.dtype.name, model.output_shapes, model.notes


class RayBatches:
    """The batches of one evaluation, run on actors; created by `RayRunner.batches`."""

    def __init__(
        self,
        actors: _Actors,
        batch_size: int,
        crop_fraction: float | None,
        decode_threads: int | None,
    ) -> None:
        """Nothing runs yet."""
        self._actors, self._size = actors, batch_size
        self._arguments = (crop_fraction, decode_threads)
        self.times = Times()

    def run(self, paths: Sequence[Path], first: int = 0) -> Generator[Batch]:
        """Yield the batches in order, starting with image `first`, a multiple of the batch size."""
        begun = time.perf_counter()
        absolute = [Path(os.path.abspath(path)) for path in paths]
        starts = range(first, len(paths), self._size)
        batches = {start: absolute[start : start + self._size] for start in starts}
        for found in self._actors.in_order(batches, *self._arguments):
            self.times.add(found.times)
            self.times.wall = time.perf_counter() - begun
            yield found.batch

    @property
    def waits(self) -> Waits:
        """Shares of the time of all actors, each of which has up to two batches."""
        times = self.times
        whole = (times.wall or 1.0) * self._actors.count
        waits = (times.decode_wait / _BATCHES_PER_ACTOR, times.device_wait / _BATCHES_PER_ACTOR)
        decode, device, busy = (float(np.clip(t / whole, 0, 1)) for t in (*waits, times.busy))
        return Waits(times.wall, decode, device, busy)
