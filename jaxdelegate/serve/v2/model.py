"""A served .tflite file: its programs for all batch sizes, its queue and its sequences."""

import dataclasses
import os
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from jaxdelegate.errors import ModelError
from jaxdelegate.model.source import open_source
from jaxdelegate.passes.limits import Limits
from jaxdelegate.runtime.open_model import OpenModel
from jaxdelegate.serve.batching import Batcher
from jaxdelegate.serve.clients import Client, RequestError
from jaxdelegate.serve.metrics import ModelRecorder, RunTimes
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.v2 import sessions
from jaxdelegate.serve.v2.graph_runner import GraphRunner, RuntimeStates, delegates_for
from jaxdelegate.serve.v2.programs import Arrays, Shapes
from jaxdelegate.serve.v2.requests import InferRequest, Parameter, TensorMetadata
from jaxdelegate.serve.v2.signatures import served_graphs, state_use
from jaxdelegate.waiting import waiting

_Results = tuple[Sequence[Arrays], RunTimes]


@dataclasses.dataclass(frozen=True, slots=True)
class _Item:
    runner: GraphRunner
    inputs: Arrays
    rows: int
    shapes: Shapes
    step: sessions.Step
    client: Client


class ServedFile:
    """An open file, and the worker in which it is compiled and run."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str,
        settings: ServeSettings,
        recorder: ModelRecorder,
    ) -> None:
        """Read the file without starting a thread, so that the process may fork."""
        self.settings, self.recorder = settings, recorder
        delegates = delegates_for(settings)
        for delegate in delegates:
            recorder.count_programs = delegate.count_programs
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
        self.worker: Batcher[_Item, Arrays] = Batcher(
            name, settings, recorder, self._prepare, self._run
        )

    # ---- in the thread

    def _prepare(self) -> None:
        name, check_open = self.worker.name, self.worker.check_open
        with waiting(
            f"{name} is being compiled for each batch size, and not ready before;\n  "
            "serialization_dir (--jax_serialization_dir) keeps programs for the next start"
        ):
            for runner in self.runners:
                runner.compile(name, check_open)
        check_open()
        if self.is_stateful:
            self._sessions = sessions.Sessions(self._states(), self.settings)
        for runner in self.runners:
            runner.warm_up(name)

    def _run(self, items: Sequence[_Item]) -> _Results:
        """All items are for one graph and have the same shapes."""
        first, inputs = items[0], [item.inputs for item in items]
        rows = sum(item.rows for item in items)
        if self._sessions is None:
            return first.runner.prepare(first.shapes, rows).run(inputs)
        states = self._sessions.states(first.step, first.client)
        program = first.runner.prepare(first.shapes, rows)
        self._set_states(states)  # after preparing, which may reset states
        if first.step.id is None:
            program.host.set_states({})
            return program.run(inputs)
        results = program.run(inputs)
        self._sessions.keep(first.step, self._states(), first.client)
        self.recorder.set("session_count", len(self._sessions))
        return results

    def _states(self) -> RuntimeStates:
        return RuntimeStates(
            self._open.store.states(), tuple(runner.host.states() for runner in self.runners)
        )

    def _set_states(self, states: RuntimeStates) -> None:
        self._open.store.set_states(states.store)
        for runner, host_states in zip(self.runners, states.hosts, strict=True):
            runner.host.set_states(host_states)


class ServedModel:
    """A file, or one of its signatures, under the name that clients use."""

    version = "1"

    def __init__(self, file: ServedFile, runner: GraphRunner, name: str) -> None:
        self.name, self.worker, self.recorder = name, file.worker, file.recorder
        self.settings, self.is_stateful = file.settings, file.is_stateful
        self._runner = runner

    @property
    def inputs(self) -> tuple[TensorMetadata, ...]:
        """A batch dimension is -1."""
        return self._runner.inputs

    @property
    def outputs(self) -> tuple[TensorMetadata, ...]:
        """A batch dimension is -1."""
        return self._runner.outputs

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """In ascending order; empty: a run is one request, without a batch dimension."""
        return tuple(sorted(self._runner.costs.seconds)) if self._runner.is_batched else ()

    async def infer(self, request: InferRequest) -> Mapping[str, np.ndarray]:
        """All outputs by name, with as many items as the request; read-only."""
        runner = self._runner
        rows, shapes = runner.checked(request.inputs, self.name)
        if self.is_stateful:
            step = sessions.step_of(request.parameters)
        else:
            step = sessions.Step(None)
            sessions.check_stateless(request.parameters, self.name)
        is_alone = step.id is not None or not runner.is_batched
        key: Hashable = object() if is_alone else (id(runner), shapes)
        return await self.worker.submit(
            _Item(runner, request.inputs, rows, shapes, step, request.client),
            key=key,
            rows=rows,
            costs=runner.single_costs if is_alone else runner.costs,
            timeout_s=_timeout_s(request.parameters, self.settings.timeout_s),
        )


def _timeout_s(parameters: Mapping[str, Parameter], most: float) -> float:
    """Seconds that a request may take: its parameter `timeout`, at most the server's limit."""
    sent_us = parameters.get("timeout")
    if sent_us is None:
        return most
    if not isinstance(sent_us, int) or sent_us <= 0:
        raise RequestError(
            f"timeout: expected a positive integer, in microseconds, got {sent_us!r}"
        )
    return min(sent_us * 1e-6, most) if most else sent_us * 1e-6


def open_model(
    path: str | os.PathLike[str],
    name: str,
    settings: ServeSettings | None = None,
    recorder: ModelRecorder | None = None,
) -> list[ServedModel]:
    """Read a .tflite. Its worker compiles it.

    A file with at most one signature is served as NAME. With several, each is NAME:KEY, and NAME is
    also the default: 'serving_default', or the first if no signature has that key.
    """
    file = ServedFile(path, name, settings or ServeSettings(), recorder or ModelRecorder())
    first, *others = file.runners
    served = [ServedModel(file, first, name)]
    if others:
        served += [ServedModel(file, r, f"{name}:{r.graph.key}") for r in file.runners]
    return served
