"""A served .tflite file: its programs for all batch sizes, its queue and its sequences."""

import dataclasses
import os
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from jaxdelegate.errors import ModelError, StoppedError
from jaxdelegate.model.source import open_source
from jaxdelegate.passes.limits import Limits
from jaxdelegate.runtime.open_model import OpenModel
from jaxdelegate.serve.batching import Batcher
from jaxdelegate.serve.metrics import ModelRecorder
from jaxdelegate.serve.records import (
    Client,
    InferRequest,
    Parameter,
    RequestError,
    Scheduling,
    TensorMetadata,
)
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.started import Started
from jaxdelegate.serve.v2 import sessions
from jaxdelegate.serve.v2.graph_runner import GraphRunner, RuntimeStates, delegate_for
from jaxdelegate.serve.v2.programs import Arrays, BatchResult
from jaxdelegate.serve.v2.signatures import served_graphs, state_use
from jaxdelegate.waiting import waiting

_VERSION = "1"


@dataclasses.dataclass(frozen=True, slots=True)
class _Item:
    runner: GraphRunner
    inputs: Arrays
    rows: int
    shapes: tuple[tuple[int, ...], ...]
    step: sessions.Step
    client: Client


class ServedFile(Started):
    """An open file, its queue and the thread in which it is compiled and run."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str,
        settings: ServeSettings,
        recorder: ModelRecorder,
    ) -> None:
        """Read the file without starting a thread, so that the process may fork."""
        super().__init__(name)
        self.settings = settings
        self.recorder = recorder
        self._delegate = delegate_for(settings)
        delegates = [] if self._delegate is None else [self._delegate]
        limits = Limits.of(None, None)
        self._open = OpenModel.of(open_source(path), delegates, preserve=False, limits=limits)
        states = state_use(self._open.model)
        self.is_stateful = states.is_stateful
        graphs = served_graphs(self._open.model, limits)
        for graph in graphs:
            if not graph.outputs:
                raise ModelError(f"{path}: signature {graph.key!r} has no outputs to serve")
        self.runners = [GraphRunner(graph, self._open, settings, states) for graph in graphs]
        self._sessions: sessions.Sessions[RuntimeStates] | None = None
        self.batcher: Batcher[_Item, Arrays] = Batcher(
            self._run,
            name=name,
            max_queue_delay_us=settings.max_queue_delay_us,
            max_queue_size=settings.max_queue_size,
            recorder=recorder,
            prepare=self._prepare,
        )

    async def close(self) -> None:
        """Respond to queued requests and end the thread, after the program it may be compiling.

        The process would abort if it ended while a thread is inside XLA.
        """
        self._is_ending.set()
        await self.batcher.close()

    # ---- in the thread

    def _prepare(self) -> None:
        with self._preparing():
            with waiting(
                f"{self.name} is being compiled for each batch size, and not ready before;\n  "
                "serialization_dir (--jax_serialization_dir) keeps programs for the next start"
            ):
                for runner in self.runners:
                    runner.compile(self.name, self._is_ending.is_set)
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
            for runner in self.runners:
                runner.warm_up(self.name)
            self._count_programs()

    def _run(self, items: Sequence[_Item]) -> BatchResult:
        """All items are for one graph and have the same shapes."""
        first = items[0]
        if self._sessions is None:
            return self._computed(first.runner, items)
        states = self._sessions.states(first.step, first.client)
        program = first.runner.prepare(first.shapes, sum(item.rows for item in items))
        self._set_states(states)  # after preparing, which may reset states
        if first.step.id is None:
            program.host.set_states({})
            return self._computed(first.runner, items)
        result = self._computed(first.runner, items)
        self._sessions.keep(first.step, self._states(), first.client)
        self.recorder.sessions(len(self._sessions))
        return result

    def _computed(self, runner: GraphRunner, items: Sequence[_Item]) -> BatchResult:
        result = runner.run([i.inputs for i in items], items[0].shapes, sum(i.rows for i in items))
        if runner.has_new_programs:
            runner.has_new_programs = False
            self._count_programs()
        return result

    def _states(self) -> RuntimeStates:
        return RuntimeStates(
            self._open.store.states(), tuple(runner.host.states() for runner in self.runners)
        )

    def _set_states(self, states: RuntimeStates) -> None:
        self._open.store.set_states(states.store)
        for runner, own in zip(self.runners, states.hosts, strict=True):
            runner.host.set_states(own)

    def _count_programs(self) -> None:
        if self._delegate is not None:
            self.recorder.programs(*self._delegate.new_programs())


class ServedSignature:
    """A `ServedModel`: a signature under the name that clients use."""

    memory = ""

    def __init__(self, file: ServedFile, runner: GraphRunner, name: str) -> None:
        self.name, self.version, self.recorder = name, _VERSION, file.recorder
        self._file, self._runner = file, runner

    @property
    def inputs(self) -> tuple[TensorMetadata, ...]:
        """A batch dimension is -1. Final once it is ready."""
        return self._runner.inputs

    @property
    def outputs(self) -> tuple[TensorMetadata, ...]:
        """A batch dimension is -1. Final once it is ready."""
        return self._runner.outputs

    @property
    def scheduling(self) -> Scheduling:
        """How requests are scheduled. Final once it is ready."""
        settings, runner = self._file.settings, self._runner
        return Scheduling(
            tuple(sorted(runner.costs.seconds)) if runner.is_batched else (),
            settings.max_queue_delay_us,
            settings.max_queue_size,
            settings.session_idle_s if self._file.is_stateful else None,
        )

    @property
    def is_ready(self) -> bool:
        return self._file.is_ready

    @property
    def error(self) -> BaseException | None:
        """Why it will never be ready; None: it can be."""
        return self._file.error

    def start(self) -> None:
        """Start compiling, once for all signatures of a file. Call it after the last fork."""
        self._file.start()

    def wait_until_ready(self, timeout_s: float | None = None) -> bool:
        return self._file.wait_until_ready(timeout_s)

    async def close(self) -> None:
        """Respond to queued requests and end the thread, which a file's signatures share."""
        await self._file.close()

    async def infer(self, request: InferRequest) -> Mapping[str, np.ndarray]:
        """All outputs by name, with as many items as the request; read-only."""
        file, runner = self._file, self._runner
        if not file.is_ready:
            why = "is loading" if file.error is None else f"cannot be loaded: {file.error}"
            raise RequestError(f"{self.name} {why}", 503)
        rows, shapes = runner.checked(request.inputs, self.name)
        if file.is_stateful:
            step = sessions.step_of(request.parameters)
        else:
            step = sessions.Step(None)
            sessions.check_stateless(request.parameters, self.name)
        is_alone = step.id is not None or not runner.is_batched
        key: Hashable = object() if is_alone else (id(runner), shapes)
        return await file.batcher.submit(
            _Item(runner, request.inputs, rows, shapes, step, request.client),
            key=key,
            rows=rows,
            costs=runner.single_costs if is_alone else runner.costs,
            timeout_s=_timeout_s(request.parameters, file.settings.timeout_s),
        )


def _timeout_s(parameters: Mapping[str, Parameter], most: float) -> float:
    """Seconds that a request may take: its parameter `timeout`, at most the server's limit."""
    given = parameters.get("timeout")
    if given is None:
        return most
    if isinstance(given, bool) or not isinstance(given, int) or given <= 0:
        raise RequestError(f"timeout: expected a positive integer, in microseconds, got {given!r}")
    return min(given * 1e-6, most) if most else given * 1e-6


def open_model(
    path: str | os.PathLike[str],
    name: str,
    settings: ServeSettings | None = None,
    recorder: ModelRecorder | None = None,
) -> list[ServedSignature]:
    """Read a .tflite. `start` compiles it; it accepts requests when `is_ready`.

    A file with at most one signature is served as NAME. With several, each is NAME:KEY, and NAME is
    also the default: 'serving_default', or the first if no signature has that key.
    """
    file = ServedFile(path, name, settings or ServeSettings(), recorder or ModelRecorder())
    first, *others = file.runners
    served = [ServedSignature(file, first, name)]
    if others:
        served += [ServedSignature(file, r, f"{name}:{r.graph.key}") for r in file.runners]
    return served
