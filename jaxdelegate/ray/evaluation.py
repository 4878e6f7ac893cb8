"""Evaluations over the actors of a Ray cluster: the runner of imagenet_eval and coco_eval."""

import dataclasses
import heapq
import math
import os
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from jaxdelegate.errors import InterpreterError, OptionError
from jaxdelegate.evaluation.errors import DataError
from jaxdelegate.evaluation.model import ImageModel
from jaxdelegate.evaluation.pipeline import Batch, Waits
from jaxdelegate.measuring.stats import Latency
from jaxdelegate.ray.errors import import_ray
from jaxdelegate.ray.image_actor import Done, ImageActor, Work

LOCAL = "local"  # an address: a Ray of one's own
_AT_ONCE = 2  # batches that an actor has: one is decoded while the other one is computed
_AHEAD = 8  # for each actor: how far batches may be ahead of the one that is awaited
_MOST_DEATHS = 3  # of actors while they had the same batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """Which cluster, and what of it.

    Attributes:
        address: as `ray.init` takes it; "local": a Ray of one's own, for this run.
        actors: how many; None: as many as there is room for.
        cpus: of each actor.
        gpus: of each actor; None: one if the cluster has any and the flags name no other platform.
    """

    address: str = LOCAL
    actors: int | None = None
    cpus: float = 1.0
    gpus: float | None = None

    def __post_init__(self) -> None:
        """Check ranges.

        Raises:
            OptionError: a number that cannot be.
        """
        for name, value in (("actors", self.actors), ("cpus", self.cpus)):
            if value is not None and not 0 < value < math.inf:
                raise OptionError(f"{name}: want a number above 0, got {value}")
        if self.gpus is not None and not 0 <= self.gpus <= 1:
            raise OptionError(f"gpus: an actor has one GPU or a part of it, got {self.gpus}")


class RayRunner:
    """Joins a cluster, and runs batches on its actors. A context: actors end with it.

    The actors read the model and the images by their paths: from a disk that all machines share.
    """

    def __init__(self, cluster: Cluster, flags: Mapping[str, Any] | None = None) -> None:
        """Join it.

        Args:
            cluster: which.
            flags: those of the delegates that were given, by name.

        Raises:
            OptionError: Ray is not installed, there is no cluster, or it lacks what is asked for.
        """
        self._ray = import_ray()
        self._cluster, self._flags = cluster, dict(flags or {})
        self._is_own = not self._ray.is_initialized()
        if self._is_own:
            self._join()
        try:
            self._resources, self._count = self._room()
        except OptionError:
            self.close()
            raise
        self._pool: _Pool | None = None

    def open(
        self, path: str | os.PathLike[str], *, batch_size: int, num_outputs: int
    ) -> ImageModel:
        """Start the actors; the model as the first one has opened it.

        Raises:
            DataError, ModelError, InterpreterError, OptionError: an actor cannot open it.
        """
        work = Work(os.path.abspath(path), self._flags, batch_size, num_outputs)
        made = self._ray.remote(ImageActor).options(
            **self._resources, max_concurrency=_AT_ONCE, max_restarts=0
        )
        self._end_actors()
        self._pool = _Pool(self._ray, lambda: made.remote(work), self._count)
        return self._pool.first_model()

    def batches(
        self, model: ImageModel, crop_fraction: float | None, decode_threads: int | None
    ) -> "RayBatches":
        """What runs the images of one evaluation.

        Raises:
            OptionError: no model was opened.
        """
        if self._pool is None:
            raise OptionError("open the model before its batches")
        return RayBatches(self._ray, self._pool, model.batch_size, (crop_fraction, decode_threads))

    def close(self) -> None:
        """End the actors, and Ray if it was started for this."""
        self._end_actors()
        if self._is_own:
            self._ray.shutdown()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def _end_actors(self) -> None:
        pool, self._pool = getattr(self, "_pool", None), None
        if pool is not None:
            pool.close()

    def _join(self) -> None:
        address = self._cluster.address
        more = {"include_dashboard": False} if address == LOCAL else {}
        try:
            self._ray.init(address=address, logging_level="warning", **more)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise OptionError(
                f"ray_address {address!r}: no cluster answers there: {error}; 'auto' is that of "
                "this machine, 'local' starts one for this run"
            ) from error

    def _room(self) -> tuple[dict[str, float], int]:
        """What an actor takes, and how many there are."""
        there = self._ray.cluster_resources()
        has = {name: there.get(name.upper(), 0.0) for name in ("cpu", "gpu")}
        gpus = self._gpus(has["gpu"])
        takes = {"cpu": self._cluster.cpus, "gpu": gpus}
        room = min(int(has[name] // n) for name, n in takes.items() if n)
        if room < 1:
            raise OptionError(
                f"an actor takes {takes['cpu']:g} CPUs and {gpus:g} GPUs; the cluster has "
                f"{has['cpu']:g} and {has['gpu']:g}"
            )
        asked = self._cluster.actors
        if asked is not None and asked > room:
            raise OptionError(f"actors: the cluster has room for {room}, got {asked}")
        return {"num_cpus": takes["cpu"], "num_gpus": gpus}, asked or room

    def _gpus(self, there: float) -> float:
        if self._cluster.gpus is not None:
            return self._cluster.gpus
        platform = self._flags.get("jax_platform") or ("gpu" if self._flags.get("use_gpu") else "")
        if platform == "gpu":
            return 1.0
        is_other = platform or "use_xnnpack" in self._flags or self._flags.get("use_jax") is False
        return 0.0 if is_other or not there else 1.0


class _Pool:
    """Actors, of which some may be starting; one that dies has another one in its place."""

    def __init__(self, ray: Any, make: Any, count: int) -> None:
        self._ray, self._make = ray, make
        self.starting: dict[Any, Any] = {}  # by the reference of its model
        self.ready: list[Any] = []
        self._model: ImageModel | None = None
        self._count = count
        for _ in range(count):
            self.start()

    def __len__(self) -> int:
        return self._count

    def start(self) -> None:
        actor = self._make()
        self.starting[actor.describe.remote()] = actor

    def first_model(self) -> ImageModel:
        deaths = 0
        while self._model is None:
            (reference,), _ = self._ray.wait([*self.starting], num_returns=1)
            try:
                self.admit(reference)
            except self._ray.exceptions.RayActorError as error:
                deaths += 1
                if deaths > _MOST_DEATHS * self._count:
                    raise InterpreterError(
                        f"actors end while they open the model: {error}"
                    ) from error
        return self._model

    def admit(self, reference: Any) -> None:
        """An actor that was starting has opened the model, or died.

        Raises:
            DataError: it has another model than the others.
            JaxDelegateError: it cannot open it.
            ray.exceptions.RayActorError: it died; another one was started.
        """
        actor = self.starting.pop(reference)
        try:
            model: ImageModel = result(self._ray, reference)
        except self._ray.exceptions.RayActorError:
            self.start()
            raise
        if self._model is None:
            self._model = model
        elif _facts(model) != _facts(self._model):
            raise DataError(
                "two actors have opened different models, or run them in different batches: "
                f"{_facts(self._model)} and {_facts(model)}; the model's path has to be the same "
                "file on all machines"
            )
        self.ready.append(actor)

    def drop(self, actor: Any) -> None:
        """An actor died: another one is started."""
        if actor in self.ready:
            self.ready.remove(actor)
            self.start()

    def close(self) -> None:
        for actor in [*self.ready, *self.starting.values()]:
            self._ray.kill(actor)


def _facts(model: ImageModel) -> tuple[Any, ...]:
    return model.digest, model.input_shape, model.dtype.name, model.output_shapes, model.notes


def result(ray: Any, reference: Any) -> Any:
    """What a reference stands for; errors of this package as they were raised.

    Raises:
        JaxDelegateError: the task's own.
        ray.exceptions.RayError: any other.
    """
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        raise (cause if isinstance(cause, Exception) else error) from error


class RayBatches:
    """Runs images on actors, and yields the batches in order.

    A batch whose actor dies is run by another one, so none is lost; each is yielded once, so none
    counts twice.
    """

    def __init__(self, ray: Any, pool: _Pool, size: int, how: tuple[float | None, int | None]):
        """Prepare; made by `RayRunner.batches`."""
        self._ray, self._pool, self._size, self._how = ray, pool, size, how
        self._decode_s: list[float] = []
        self._invoke_s: list[float] = []
        self._wall_s = self._decode_wait_s = self._device_wait_s = self._busy_s = 0.0

    def run(self, paths: Sequence[Path], first: int = 0) -> Generator[Batch]:
        """Yield the batches in order, from the one that `first`, a multiple of B, begins.

        Raises:
            InterpreterError: the model failed, or actors died again and again with one batch.
            DataError: actors have different models.
        """
        begun = time.perf_counter()
        absolute = [Path(os.path.abspath(path)) for path in paths]
        running = _Running(self._ray, self._pool, self._size, absolute, self._how)
        for found in running.in_order(first):
            self._note(found)
            self._wall_s = time.perf_counter() - begun
            yield found.batch

    def _note(self, found: Done) -> None:
        self._decode_s += found.times.decode
        self._invoke_s += found.times.invoke
        self._decode_wait_s += found.times.decode_wait
        self._device_wait_s += found.device_wait
        self._busy_s += found.times.busy

    @property
    def preprocessing(self) -> Latency:
        """Of reading, decoding and preparing an image, in its thread."""
        return Latency.of(self._decode_s)

    @property
    def inference(self) -> Latency:
        """Of the model, per image, on its actor: a batch's time is shared evenly by its images."""
        return Latency.of(self._invoke_s)

    @property
    def waits(self) -> Waits:
        """Shares of the time of all actors, each of which has up to two batches."""
        whole = (self._wall_s or 1.0) * len(self._pool)
        shares = (self._decode_wait_s / _AT_ONCE, self._device_wait_s / _AT_ONCE, self._busy_s)
        decode, device, busy = (float(np.clip(share / whole, 0, 1)) for share in shares)
        return Waits(self._wall_s, decode, device, busy)


class _Running:
    """One pass over images: what is to be done, what actors have, and what is done."""

    def __init__(
        self,
        ray: Any,
        pool: _Pool,
        size: int,
        paths: Sequence[Path],
        how: tuple[float | None, int | None],
    ) -> None:
        self._ray, self._pool, self._size, self._paths, self._how = ray, pool, size, paths, how
        self._todo: list[int] = []  # a heap: first images of batches
        self._given: dict[Any, tuple[Any, int]] = {}  # by reference: the actor, the batch
        self._done: dict[int, Done | Exception] = {}
        self._deaths: Counter[int] = Counter()

    def in_order(self, first: int) -> Generator[Done]:
        self._todo = list(range(first, len(self._paths), self._size))  # sorted, so it is a heap
        for start in range(first, len(self._paths), self._size):
            while start not in self._done:
                self._give(start)
                self._take()
            found = self._done.pop(start)
            if isinstance(found, Exception):
                raise found
            self._give(start + self._size)
            yield found

    def _give(self, awaited: int) -> None:
        """Keep the actors busy, but do not run far ahead of the batch that is awaited."""
        last = awaited + _AHEAD * len(self._pool) * self._size
        load = Counter(actor for actor, _ in self._given.values())
        for actor in _least_first(self._pool.ready, load):
            if not self._todo or self._todo[0] > last:
                return
            start = heapq.heappop(self._todo)
            chosen = self._paths[start : start + self._size]
            self._given[actor.run.remote(start, chosen, *self._how)] = actor, start

    def _take(self) -> None:
        """Wait for an actor: for a batch of it, or until it has started."""
        references = [*self._given, *self._pool.starting]
        (reference,), _ = self._ray.wait(references, num_returns=1)
        died = self._ray.exceptions.RayActorError
        if reference not in self._given:
            try:
                self._pool.admit(reference)
            except died as error:
                self._count_death(-1, error)
            return
        actor, start = self._given.pop(reference)
        try:
            self._done[start] = result(self._ray, reference)
        except died as error:
            self._pool.drop(actor)
            self._count_death(start, error)
            heapq.heappush(self._todo, start)
        except Exception as error:  # raised in its turn, after the batches before it
            self._done[start] = error

    def _count_death(self, start: int, error: Exception) -> None:
        self._deaths[start] += 1
        if self._deaths[start] < _MOST_DEATHS + (len(self._pool) if start < 0 else 0):
            return
        what = (
            "before they could run anything"
            if start < 0
            else f"with the batch that begins with {self._paths[start]}"
        )
        raise InterpreterError(f"{self._deaths[start]} actors ended {what}: {error}") from error


def _least_first(actors: Sequence[Any], load: Counter) -> Generator[Any]:
    """Actors for one batch each, those with the fewest first, until all have enough."""
    for count in range(_AT_ONCE):
        yield from (actor for actor in actors if load[actor] <= count)
