"""One served graph in the thread that runs it: its batch sizes, their programs and their costs."""

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.errors import DeviceMemoryError, InterpreterError, JaxDelegateError
from jaxdelegate.runtime.open_model import OpenModel
from jaxdelegate.runtime.subgraph import Host, StoreStates
from jaxdelegate.serve.decisions import Costs, compiled_sizes
from jaxdelegate.serve.programs import Arrays, BatchProgram, BatchResult, Shapes
from jaxdelegate.serve.records import RequestError, TensorMetadata
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.signatures import KeptStates, ServedGraph

_LOGGER = logging.getLogger("jaxdelegate")
_TIMED_S = 0.05  # of timed runs at warm-up, for each batch size
_MOST_TIMED = 10
_PROGRAMS = 16  # shapes of a batch size whose programs stay in memory


@dataclasses.dataclass(frozen=True)
class RuntimeStates:
    """What an open file keeps from one run to the next; its arrays never change."""

    store: StoreStates
    hosts: tuple[Mapping[int, Any], ...]  # `Host.states`, by lane


class ServedDelegate(JaxDelegate):
    """A JaxDelegate that counts what it compiles."""

    _reported = _loaded = 0

    def new_programs(self) -> tuple[int, int]:
        """How many were compiled, and how many read from the cache, since the last call."""
        count = self.compiler.compiled
        loaded = 0 if self.programs is None else self.programs.statistics.loaded
        new = count - self._reported, loaded - self._loaded
        self._reported, self._loaded = count, loaded
        return new


def delegate_for(settings: ServeSettings) -> ServedDelegate | None:
    """What runs a model; None: the numpy reference.

    `rebatch` is on unless the user says otherwise: it proves that a graph computes each item of a
    batch by itself, and otherwise runs them one by one.

    Raises:
        OptionError: an impossible option.
    """
    if not settings.use_delegate:
        return None
    own: dict[str, Any] = {}
    if settings.max_batch_size > 1:
        sizes = len(compiled_sizes(settings.max_batch_size))
        own = {"rebatch": True, "max_programs": _PROGRAMS * sizes}
    return ServedDelegate({**own, **settings.delegate_options})


class Lane:
    """One served graph. `compile`, `warm_up` and `run` are for one thread."""

    def __init__(
        self, graph: ServedGraph, opened: OpenModel, settings: ServeSettings, kept: KeptStates
    ) -> None:
        """Compile nothing yet.

        Args:
            graph: what is served.
            opened: the file.
            settings: the user's.
            kept: the states of the model.
        """
        self.graph, self._open, self._settings = graph, opened, settings
        self._why_single = _why_single(graph, opened, settings, kept)
        self._set_costs({1: 1.0})
        self._programs: dict[int, BatchProgram] = {}
        self.has_new_programs = False
        self._set_batched(self._why_single is None)

    def _set_costs(self, seconds: Mapping[int, float]) -> None:
        """Seconds of a run, by batch size."""
        self.costs = Costs(seconds)
        self.single_costs = Costs({1: seconds[1]})  # of requests that run alone: a sequence's

    def _set_batched(self, value: bool) -> None:
        self.is_batched = value
        self.inputs: tuple[TensorMetadata, ...] = self.graph.metadata(
            self.graph.inputs, is_batched=value
        )
        self.outputs: tuple[TensorMetadata, ...] = self.graph.metadata(
            self.graph.outputs, is_batched=value
        )

    @property
    def host(self) -> Host:
        """That of single requests, whose states are the lane's."""
        return self._programs[1].host

    # ---- requests

    def checked(self, inputs: Arrays, name: str) -> tuple[int, Shapes]:
        """A request's items, and its inputs' shapes without them.

        Without batches a request is one item, and the shapes are whole.

        Raises:
            RequestError: 400: inputs that are not the graph's.
        """
        if len(inputs) != len(self.inputs):
            expected = ", ".join(repr(t.name) for t in self.inputs) or "none"
            given = ", ".join(map(repr, inputs)) or "none"
            raise RequestError(f"{name}: want the inputs {expected}, got {given}")
        rows, shapes = 0, []
        for position, tensor in enumerate(self.inputs):
            array = inputs.get(tensor.name)
            if array is None:
                raise RequestError(f"{name}: the input {tensor.name!r} is missing")
            _check(tensor, array, name)
            if self.graph.takes_batches:
                rows = self._rows(tensor, array, None if position == 0 else rows, name)
            shapes.append(array.shape[1:] if self.is_batched else array.shape)
        return (rows if self.is_batched else 1), tuple(shapes)

    def _rows(
        self, tensor: TensorMetadata, array: np.ndarray, others: int | None, name: str
    ) -> int:
        rows = len(array)
        if rows == 0 or (others is not None and rows != others):
            wanted = "at least one item" if rows == 0 else f"{others} items as the first input has"
            raise RequestError(f"{name}: input {tensor.name!r}: want {wanted}, got {rows}")
        most = self.costs.max_rows if self.is_batched else self._settings.max_batch_size
        if rows > most and (self.is_batched or most == 1):
            raise RequestError(
                f"{name}: the request has {rows} items, but the largest batch is {most}: "
                f"send at most {most} in a request"
            )
        return rows

    # ---- in the thread

    def compile(self, name: str, is_ending: Callable[[], bool]) -> None:
        """Plan and compile the graph for every batch size that it can run in.

        Args:
            name: of the model, for messages.
            is_ending: whether nobody wants the model any more: no other program is begun then.

        Raises:
            JaxDelegateError: it cannot be compiled for single items.
        """
        if is_ending():
            return
        single = self._programs[1] = self._program(1 if self.is_batched else None)
        single.prepare(single.declared())
        if self.is_batched and self._settings.max_batch_size > 1:
            self._why_single = self._compile_batches(name, is_ending)
            if self._why_single is not None:
                self._run_singly()
        if self._why_single is not None and self._settings.max_batch_size > 1:
            _LOGGER.info("%s is served with max_batch_size=1: %s", name, self._why_single)
        self._set_costs(dict.fromkeys(self._programs, 1.0))

    def _run_singly(self) -> None:
        self._set_batched(False)
        single = self._program(None)
        single.prepare(single.declared())
        self._programs = {1: single}

    def _compile_batches(self, name: str, is_ending: Callable[[], bool]) -> str | None:
        """Compile for batches; why there are none, or None."""
        for size in compiled_sizes(self._settings.max_batch_size)[1:]:
            if is_ending():
                break
            program = self._program(size)
            try:
                program.prepare(program.declared())
            except DeviceMemoryError as error:
                _LOGGER.warning("%s: no batches of %d and more: %s", name, size, error)
                break
            except JaxDelegateError as error:
                return f"it cannot run as a batch of {size}: {error}"
            why = _why_not_following(self.graph, self._programs[1], program)
            if why is not None:
                return why
            self._programs[size] = program
        return None

    def _program(self, size: int | None) -> BatchProgram:
        opened = self._open
        host = Host(
            opened.model.subgraphs[self.graph.subgraph],
            opened.delegates,
            model=opened.store,  # all sizes share its weights on the device
            may_rebatch=True,
        )
        return BatchProgram(host, self.graph, size)

    def warm_up(self, name: str) -> None:
        """Run each batch size on zeros, and time it."""
        try:
            self._set_costs(_timed(self._programs))
        except InterpreterError as error:  # some graphs refuse zeros
            _LOGGER.warning("%s: zeros cannot be run, so that nothing is timed: %s", name, error)
            return
        each = ", ".join(f"{size}: {1e3 * s:.3g} ms" for size, s in self.costs.seconds.items())
        _LOGGER.info("%s: time of a run by its batch size: %s", name, each)

    def prepare(self, shapes: Shapes, rows: int) -> BatchProgram:
        """The program for so many items of these shapes, compiled if they are new.

        Raises:
            RequestError: 400: the graph refuses the shapes.
        """
        program = self._programs[self.costs.padded(rows)]
        whole = shapes if program.size is None else tuple((program.size, *s) for s in shapes)
        if program.is_prepared(whole):
            return program
        self.has_new_programs = True
        try:
            program.prepare(whole)
        except DeviceMemoryError:
            raise
        except JaxDelegateError as error:
            raise RequestError(f"the model refuses these shapes: {error}") from error
        return program

    def run(self, requests: Sequence[Arrays], shapes: Shapes, rows: int) -> BatchResult:
        """Run requests together.

        Args:
            requests: all inputs of each by name.
            shapes: of the inputs, as `checked` answers them; the same for all.
            rows: the items of all requests.

        Raises:
            RequestError: 400: the graph refuses the shapes.
            InterpreterError: an operator or the device failed.
        """
        return self.prepare(shapes, rows).run(requests)


def _why_single(
    graph: ServedGraph, opened: OpenModel, settings: ServeSettings, kept: KeptStates
) -> str | None:
    """Why a graph cannot take batches, as far as the file tells; None: it may."""
    if settings.max_batch_size == 1:
        return "max_batch_size is 1"
    if kept.shared:
        return "the model keeps states that the items of a batch would share"
    if not graph.takes_batches:
        return "an input has no first dimension that is 1 or open"
    if not any(delegate.rebatches for delegate in opened.delegates):
        return "only JaxDelegate with rebatch proves that a graph keeps items apart"
    return None


def _why_not_following(graph: ServedGraph, single: BatchProgram, batch: BatchProgram) -> str | None:
    """Why outputs cannot be cut into items; None: they can."""
    pairs = zip(graph.outputs, single.output_shapes(), batch.output_shapes(), strict=True)
    for name, one, many in pairs:
        if one is None or many is None:
            return f"the shape of the output {name!r} depends on data"
        if one[:1] != (1,) or many != (batch.size, *one[1:]):
            return (
                f"the output {name!r} does not follow the batch: its shape is {list(one)} for one "
                f"item, {list(many)} for {batch.size}"
            )
    return None


def _timed(programs: Mapping[int, BatchProgram]) -> dict[int, float]:
    """Seconds of a run on zeros by batch size: the fastest of a few, the first left out.

    The sizes run in turn, so that what else the machine does meanwhile slows all of them.
    """
    zeros = {size: program.zeros() for size, program in programs.items()}
    for size, program in programs.items():
        program.run([zeros[size]])
    seconds = dict.fromkeys(programs, math.inf)
    end = time.perf_counter() + _TIMED_S * len(programs)
    for _ in range(_MOST_TIMED):
        for size, program in programs.items():
            begin = time.perf_counter()
            program.run([zeros[size]])
            seconds[size] = min(seconds[size], time.perf_counter() - begin)
        if time.perf_counter() > end:
            break
    return seconds


def _check(tensor: TensorMetadata, array: np.ndarray, name: str) -> None:
    """Refuse another dtype or shape than an input has."""
    where = f"{name}: input {tensor.name!r}"
    if array.dtype != tensor.dtype:
        raise RequestError(f"{where}: want {tensor.dtype}, got {array.dtype}")
    is_fitting = len(array.shape) == len(tensor.shape) and all(
        wanted in (-1, given) for wanted, given in zip(tensor.shape, array.shape, strict=True)
    )
    if not is_fitting:
        raise RequestError(
            f"{where}: want the shape {list(tensor.shape)} (-1: any size), got {list(array.shape)}"
        )
