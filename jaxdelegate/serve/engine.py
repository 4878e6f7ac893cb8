"""A .tflite file that is served: programs for its batch sizes, its queue, its sequences."""

import dataclasses
import logging
import os
import threading
import weakref
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from jaxdelegate.errors import ModelError, StoppedError
from jaxdelegate.model.source import open_source
from jaxdelegate.passes.limits import Limits
from jaxdelegate.runtime.open_model import OpenModel
from jaxdelegate.serve import sessions
from jaxdelegate.serve.batching import Batcher
from jaxdelegate.serve.lanes import Lane, RuntimeStates, delegate_for
from jaxdelegate.serve.metrics import ModelRecorder
from jaxdelegate.serve.programs import Arrays, BatchResult
from jaxdelegate.serve.records import (
    InferRequest,
    Parameter,
    RequestError,
    Scheduling,
    TensorMetadata,
)
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.signatures import kept_states, served_graphs

_LOGGER = logging.getLogger("jaxdelegate")
_VERSION = "1"


@dataclasses.dataclass(frozen=True, slots=True)
class _Item:
    """A request in the queue."""

    lane: Lane
    inputs: Arrays
    rows: int
    shapes: tuple[tuple[int, ...], ...]
    step: sessions.Step
    client: str


class ServedFile:
    """An open file, its queue and the thread in which it is compiled and run."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str,
        settings: ServeSettings,
        recorder: ModelRecorder,
    ) -> None:
        """Read the file, and start no thread: the process may fork.

        Raises:
            ModelError: it cannot be read, or has nothing to run.
            OptionError: an impossible option of the delegate.
        """
        self.name, self.settings = name, settings
        self.recorder = recorder
        self._delegate = delegate_for(settings)
        delegates = [] if self._delegate is None else [self._delegate]
        limits = Limits.of(None, None)
        self._open = OpenModel.of(open_source(path), delegates, preserve=False, limits=limits)
        kept = kept_states(self._open.model)
        self.is_stateful = kept.any
        graphs = served_graphs(self._open.model)
        for graph in graphs:
            if not graph.outputs:
                raise ModelError(f"{path}: signature {graph.key!r} has no outputs to serve")
        self.lanes = [Lane(graph, self._open, settings, kept) for graph in graphs]
        self._sessions: sessions.Sessions[RuntimeStates] | None = None
        self._loaded = threading.Event()  # or failed
        self._is_ending = threading.Event()
        self.error: BaseException | None = None
        self.is_ready = False
        self.batcher: Batcher[_Item, Arrays] = Batcher(
            self._run,
            name=name,
            max_queue_delay_us=settings.max_queue_delay_us,
            max_queue_size=settings.max_queue_size,
            recorder=recorder,
            prepare=self._prepare,
        )

    def start(self) -> None:
        """Begin to compile it in the thread; its signatures may all ask for it."""
        if self not in _STARTED:
            _STARTED.add(self)
            self.batcher.start()

    def give_up(self) -> None:
        """Be served no more, in a process that was forked from the one with the thread."""
        self.is_ready = False
        self.error = StoppedError(
            f"{self.name} was started before this process ({os.getpid()}) was forked, and runs in "
            "the other one only; start the application after the fork"
        )
        _LOGGER.error("%s", self.error)
        self.batcher.give_up(self.error)
        self._loaded = threading.Event()  # the other process's thread may have held its lock
        self._loaded.set()

    def wait_until_ready(self, timeout_s: float | None = None) -> bool:
        """Wait until every program is compiled; False: that took longer.

        Raises:
            JaxDelegateError: what compiling ended in.
        """
        is_loaded = self._loaded.wait(timeout_s)
        if self.error is not None:
            raise self.error
        return is_loaded

    async def close(self) -> None:
        """Answer what waits and end the thread, after the program that it may be compiling now.

        A thread that the process's end would find inside of XLA makes it abort.
        """
        self._is_ending.set()
        await self.batcher.close()

    # ---- in the thread

    def _prepare(self) -> None:
        try:
            for lane in self.lanes:
                lane.compile(self.name, self._is_ending.is_set)
            if self._is_ending.is_set():
                self.error = StoppedError(f"{self.name} was closed before it was compiled")
                return
            if self.is_stateful:
                self._sessions = sessions.Sessions(
                    self._states(),
                    session_count=self.settings.session_count,
                    sessions_per_client=self.settings.sessions_per_client,
                    session_idle_s=self.settings.session_idle_s,
                    session_hold_s=self.settings.session_hold_s,
                )
            for lane in self.lanes:
                lane.warm_up(self.name)
            self._count_programs()
            self.is_ready = True
        except BaseException as error:
            self.error = error
            raise
        finally:
            self._loaded.set()

    def _run(self, items: Sequence[_Item]) -> BatchResult:
        """Run items of one lane whose shapes fit together.

        Raises:
            RequestError: the model refuses the shapes, or a sequence is unknown.
            InterpreterError: an operator or the device failed.
        """
        first = items[0]
        if self._sessions is None:
            return self._computed(first.lane, items)
        states = self._sessions.states(first.step, first.client)
        program = first.lane.prepare(first.shapes, sum(item.rows for item in items))
        self._set_states(states)  # after preparing, which may begin states anew
        if first.step.id is None:
            program.host.set_states({})
            return self._computed(first.lane, items)
        result = self._computed(first.lane, items)
        self._sessions.keep(first.step, self._states(), first.client)
        self.recorder.sessions(len(self._sessions))
        return result

    def _computed(self, lane: Lane, items: Sequence[_Item]) -> BatchResult:
        result = lane.run([i.inputs for i in items], items[0].shapes, sum(i.rows for i in items))
        if lane.has_new_programs:
            lane.has_new_programs = False
            self._count_programs()
        return result

    def _states(self) -> RuntimeStates:
        return RuntimeStates(
            self._open.store.states(), tuple(lane.host.states() for lane in self.lanes)
        )

    def _set_states(self, states: RuntimeStates) -> None:
        self._open.store.set_states(states.store)
        for lane, own in zip(self.lanes, states.hosts, strict=True):
            lane.host.set_states(own)

    def _count_programs(self) -> None:
        if self._delegate is not None:
            self.recorder.programs(*self._delegate.new_programs())


_STARTED: weakref.WeakSet[ServedFile] = weakref.WeakSet()


def _give_up_in_child() -> None:
    for file in list(_STARTED):
        file.give_up()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_give_up_in_child)


class ServedSignature:
    """One name under which a signature answers. A `ServedModel`."""

    def __init__(self, file: ServedFile, lane: Lane, name: str) -> None:
        """Belong to a file."""
        self.name, self.version, self.recorder = name, _VERSION, file.recorder
        self._file, self._lane = file, lane

    @property
    def inputs(self) -> tuple[TensorMetadata, ...]:
        """The inputs; their first dimension is -1 if it is the batch. Final once it is ready."""
        return self._lane.inputs

    @property
    def outputs(self) -> tuple[TensorMetadata, ...]:
        """The outputs, likewise."""
        return self._lane.outputs

    @property
    def scheduling(self) -> Scheduling:
        """How requests are run. Final once it is ready."""
        settings, lane = self._file.settings, self._lane
        return Scheduling(
            tuple(sorted(lane.costs.seconds)) if lane.is_batched else (),
            settings.max_queue_delay_us,
            settings.max_queue_size,
            settings.session_idle_s if self._file.is_stateful else None,
        )

    @property
    def is_ready(self) -> bool:
        """Whether every program is compiled and has run once."""
        return self._file.is_ready

    @property
    def error(self) -> BaseException | None:
        """Why it can never be ready; None: it can."""
        return self._file.error

    def start(self) -> None:
        """Begin to compile it, once for all signatures of a file; after the process's last fork."""
        self._file.start()

    def wait_until_ready(self, timeout_s: float | None = None) -> bool:
        """Wait until it is ready; False: that took longer.

        Raises:
            JaxDelegateError: the model cannot be compiled.
        """
        return self._file.wait_until_ready(timeout_s)

    async def close(self) -> None:
        """Answer what waits and end the thread, which all signatures of a file share."""
        await self._file.close()

    async def infer(self, request: InferRequest) -> Mapping[str, np.ndarray]:
        """All outputs by name, the first dimension the request's; read-only.

        Raises:
            RequestError: as ServedModel has it.
            InterpreterError: an operator or the device failed.
        """
        file, lane = self._file, self._lane
        if not file.is_ready:
            why = "is loading" if file.error is None else f"cannot be loaded: {file.error}"
            raise RequestError(f"{self.name} {why}", 503)
        rows, shapes = lane.checked(request.inputs, self.name)
        if file.is_stateful:
            step = sessions.step_of(request.parameters)
        else:
            step = sessions.Step(None)
            sessions.check_stateless(request.parameters, self.name)
        is_alone = step.id is not None or not lane.is_batched
        key: Hashable = object() if is_alone else (id(lane), shapes)
        return await file.batcher.submit(
            _Item(lane, request.inputs, rows, shapes, step, request.client),
            key=key,
            rows=rows,
            costs=lane.single_costs if is_alone else lane.costs,
            timeout_s=_timeout_s(request.parameters, file.settings.timeout_s),
        )


def _timeout_s(parameters: Mapping[str, Parameter], most: float) -> float:
    """Seconds that a request may take: its parameter `timeout`, but not more than the server's."""
    given = parameters.get("timeout")
    if given is None:
        return most
    if isinstance(given, bool) or not isinstance(given, int) or given <= 0:
        raise RequestError(f"timeout: want a positive integer, in microseconds, got {given!r}")
    return min(given * 1e-6, most) if most else given * 1e-6


def open_model(
    path: str | os.PathLike[str],
    name: str,
    settings: ServeSettings | None = None,
    recorder: ModelRecorder | None = None,
) -> list[ServedSignature]:
    """Read a .tflite; `start` begins to compile it, and requests are taken when `is_ready`.

    A file with one signature, or none, is served as NAME. With several each is NAME:KEY, and NAME
    is the first of them, 'serving_default' if there is one.

    Args:
        path: of the file.
        name: what it is served as.
        settings: None: the defaults.
        recorder: of metrics, `Metrics.recorder(name, "1")`; None: one of its own.

    Raises:
        ModelError: the file cannot be read.
        OptionError: an impossible option.
    """
    file = ServedFile(path, name, settings or ServeSettings(), recorder or ModelRecorder())
    served = [ServedSignature(file, file.lanes[0], name)]
    if len(file.lanes) > 1:
        served += [ServedSignature(file, lane, f"{name}:{lane.graph.key}") for lane in file.lanes]
    return served
