"""Decodes images in threads, ahead of a device that may have several batches in flight.

Batch k always holds images k * B to (k + 1) * B - 1, with zeros for damaged ones: the batch of an
image does not depend on where a run was resumed.
"""

import dataclasses
import functools
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np

from jaxdelegate.evaluation.files import DataError
from jaxdelegate.measuring.stats import Latency

Decode = Callable[[Path], np.ndarray]  # one image, prepared; raises DataError
Outputs = tuple[np.ndarray, ...]
Start = Callable[[np.ndarray], Callable[[], Outputs]]  # [B, ...]; the result waits for outputs

_BATCHES_AHEAD = 2
_IMAGES_AHEAD_PER_WORKER = 4


@dataclasses.dataclass(frozen=True)
class Batch:
    """The results of one batch; the outputs of skipped images are None."""

    first: int  # index of its first image
    errors: tuple[str | None, ...]  # why an image was skipped
    outputs: tuple[Outputs | None, ...]  # per image, per output


@dataclasses.dataclass(frozen=True)
class Waits:
    """Where the wall time went: decoders and the device work at the same time."""

    wall_s: float
    decode_wait: float  # fraction of the wall time in which the device waited for decoded images
    device_wait: float  # fraction of the decoders' time in which they waited for the device
    device_busy: float  # fraction of the wall time in which the model was started or waited for

    def __str__(self) -> str:
        return (
            f"decode wait {self.decode_wait:.1%}, device wait {self.device_wait:.1%}, "
            f"device busy {self.device_busy:.1%} of {self.wall_s:.3g} s"
        )


@dataclasses.dataclass
class Times:
    decode: list[float] = dataclasses.field(default_factory=list)  # per image
    invoke: list[float] = dataclasses.field(default_factory=list)  # per image
    decode_wait: float = 0.0  # time in which the device waited for decoded images
    device_wait: float = 0.0  # time in which decoded images waited for the device
    busy: float = 0.0  # time in which the model was started or waited for
    wall: float = 0.0

    def add(self, other: "Times") -> None:
        """Add the times of another source, except its wall time."""
        self.decode += other.decode
        self.invoke += other.invoke
        self.decode_wait += other.decode_wait
        self.device_wait += other.device_wait
        self.busy += other.busy

    @property
    def preprocessing(self) -> Latency:
        """Reading, decoding and preparing an image, in its thread."""
        return Latency.of(self.decode)

    @property
    def inference(self) -> Latency:
        """The model, per image: the images of a batch share its time evenly.

        With two batches in flight it is the time to start a batch and to wait for it.
        """
        return Latency.of(self.invoke)


class BatchSource(Protocol):
    def run(self, paths: Sequence[Path], first: int = 0) -> Generator[Batch]:
        """Yield the batches in order, starting with image `first`, a multiple of B."""
        ...

    @property
    def times(self) -> Times: ...

    @property
    def waits(self) -> Waits: ...


@dataclasses.dataclass(frozen=True)
class _Decoded:
    error: str | None
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class _Pending:
    first: int
    images: np.ndarray  # [B, height, width, 3], filled by the futures
    futures: list[Future[_Decoded]]

    @property
    def is_decoded(self) -> bool:
        return all(future.done() for future in self.futures)


class Pipeline:
    def __init__(
        self,
        decode: Decode,
        start: Start,
        *,
        input_shape: Sequence[int],
        dtype: np.dtype,
        workers: int,
        in_flight: int = 1,
    ) -> None:
        """Prepare; `decode` will be called in `workers` threads, `start` by the caller of `run`."""
        self._decode, self._start = decode, start
        self._in_flight = in_flight
        self._shape, self._dtype = tuple(input_shape), dtype
        self._workers = workers
        self.times = Times()
        self._begin_time = 0.0
        self._no_images_left = math.inf  # when the last ones were submitted
        self._decoding = 0.0  # seconds of all decoders until then

    def run(self, paths: Sequence[Path], first: int = 0) -> Generator[Batch]:
        size = self._shape[0]
        starts = deque(range(first, len(paths), size))
        ahead = max(
            _BATCHES_AHEAD, self._in_flight, -(-_IMAGES_AHEAD_PER_WORKER * self._workers // size)
        )
        pending: deque[_Pending] = deque()
        started: deque[Callable[[], Batch]] = deque()
        self._begin_time = time.perf_counter()
        with ThreadPoolExecutor(self._workers, "decode") as pool:
            try:
                while starts or pending or started:
                    while starts and len(pending) + len(started) <= ahead:
                        pending.append(self._submit(pool, paths, starts.popleft()))
                    if not starts:
                        self._no_images_left = min(self._no_images_left, time.perf_counter())
                    may_start = len(started) < self._in_flight and bool(pending)
                    if may_start and (not started or pending[0].is_decoded):
                        started.append(self._begin_or_defer_error(pending.popleft()))
                        continue
                    batch = started.popleft()()
                    self.times.wall = time.perf_counter() - self._begin_time
                    yield batch
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _submit(self, pool: ThreadPoolExecutor, paths: Sequence[Path], start: int) -> _Pending:
        images = np.zeros(self._shape, self._dtype)
        chosen = paths[start : start + self._shape[0]]
        futures = [pool.submit(self._decode_into, images[i], p) for i, p in enumerate(chosen)]
        return _Pending(start, images, futures)

    def _decode_into(self, target: np.ndarray, path: Path) -> _Decoded:
        start, error = time.perf_counter(), None
        try:
            target[...] = self._decode(path)
        except DataError as damage:
            error = str(damage)
        return _Decoded(error, start, time.perf_counter())

    def _begin_or_defer_error(self, batch: _Pending) -> Callable[[], Batch]:
        """Start a batch; its errors are raised after the batches before it were yielded."""
        try:
            return self._begin(batch)
        except Exception as error:
            return functools.partial(_raise, error)

    def _begin(self, batch: _Pending) -> Callable[[], Batch]:
        begin = time.perf_counter()
        decoded = [future.result() for future in batch.futures]
        self.times.decode_wait += time.perf_counter() - begin
        last = self._no_images_left
        self._decoding += sum(max(0.0, min(d.end, last) - d.start) for d in decoded)
        errors = tuple(d.error for d in decoded)
        good = [i for i, error in enumerate(errors) if error is None]
        self.times.decode += [decoded[i].end - decoded[i].start for i in good]
        begin = time.perf_counter()
        results = self._start(batch.images) if good else tuple
        seconds = time.perf_counter() - begin

        def finish() -> Batch:
            begin = time.perf_counter()
            arrays = results()
            waited = seconds + time.perf_counter() - begin
            if good:
                self.times.busy += waited
                self.times.invoke += [waited / len(good)] * len(good)
            outputs: list[Outputs | None] = [None] * len(errors)
            for i in good:
                outputs[i] = tuple(y[i] for y in arrays)
            return Batch(batch.first, errors, tuple(outputs))

        return finish

    @property
    def waits(self) -> Waits:
        wall = self.times.wall or 1.0
        with_images = min(self._no_images_left - self._begin_time, wall)
        idle = with_images * self._workers - self._decoding
        return Waits(
            self.times.wall,
            self.times.decode_wait / wall,
            max(0.0, idle) / (wall * self._workers),
            self.times.busy / wall,
        )


def _raise(error: Exception) -> Batch:
    raise error
