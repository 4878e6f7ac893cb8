"""Runs one served graph in the model's thread: its batch sizes, their programs and costs."""

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.compile.compiler import Compiler
from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.errors import DeviceMemoryError, InterpreterError, JaxDelegateError
from jaxdelegate.options import DelegateOptions
from jaxdelegate.runtime.open_model import OpenModel
from jaxdelegate.runtime.subgraph import StoreStates, SubgraphRunner
from jaxdelegate.serve.clients import RequestError
from jaxdelegate.serve.decisions import Costs, compiled_sizes
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.v2.programs import Arrays, BatchProgram, Shapes
from jaxdelegate.serve.v2.signatures import ServedGraph, StateUse

_LOGGER = logging.getLogger("jaxdelegate")
_TIMED_S = 0.05  # for timed runs at warm-up, each batch size
_MOST_TIMED = 10
_PROGRAMS = 16  # shapes of a batch size whose programs stay in memory


@dataclasses.dataclass(frozen=True)
class RuntimeStates:
    """The arrays are never modified."""

    store: StoreStates
    hosts: tuple[Mapping[int, Any], ...]  # `SubgraphRunner.states`, by graph


class CountingDelegate(JaxDelegate):
    def make_compiler(self, options: DelegateOptions) -> Compiler:
        """Its compiler, which does not warn of batches of many sizes: they are served."""
        compiler = super().make_compiler(options)
        compiler.varying_shapes = None
        return compiler

    def count_programs(self) -> tuple[int, int]:
        loaded = 0 if self.programs is None else self.programs.statistics.loaded
        return self.compiler.compiled, loaded


def delegates_for(settings: ServeSettings) -> list[CountingDelegate]:
    """The delegate that runs a model; none: the numpy reference runs it.

    `rebatch` is on unless the user turns it off: it proves that a graph computes the items of a
    batch independently, and otherwise runs them one by one.
    """
    if not settings.use_delegate:
        return []
    defaults: dict[str, Any] = {}
    if settings.max_batch_size > 1:
        sizes = len(compiled_sizes(settings.max_batch_size))
        defaults = {"rebatch": True, "max_programs": _PROGRAMS * sizes}
    return [CountingDelegate({**defaults, **settings.delegate_options})]


class GraphRunner:
    """Compiles and runs one served graph. Only one thread calls `compile`, `warm_up` and `run`."""

    def __init__(
        self, graph: ServedGraph, opened: OpenModel, settings: ServeSettings, states: StateUse
    ) -> None:
        """Decide about batches, without compiling."""
        self.graph, self._open, self._settings = graph, opened, settings
        self._why_single = _why_single(graph, opened, settings, states)
        self._set_costs({1: 1.0})
        self._programs: dict[int, BatchProgram] = {}
        self._set_batched(self._why_single is None)

    def _set_costs(self, seconds: Mapping[int, float]) -> None:
        self.costs = Costs(seconds)
        self.single_costs = Costs({1: seconds[1]})  # for requests that run alone

    def _set_batched(self, value: bool) -> None:
        self.is_batched = value
        self.inputs = self.graph.metadata(self.graph.inputs, is_batched=value)
        self.outputs = self.graph.metadata(self.graph.outputs, is_batched=value)

    @property
    def host(self) -> SubgraphRunner:
        """The host of single requests, which has the graph's states."""
        return self._programs[1].host

    # ---- requests

    def checked(self, inputs: Arrays, name: str) -> tuple[int, Shapes]:
        """The number of items in a request, and the shape of one item of each input.

        Without batching a request is one item, and the shapes are the inputs'. A RequestError of
        status 400 if inputs have other numbers of items.
        """
        arrays = [inputs[tensor.name] for tensor in self.inputs]
        rows = self._rows(arrays, name) if self.graph.takes_batches else 1
        if self.is_batched:
            return rows, tuple(array.shape[1:] for array in arrays)
        is_limited = self._settings.max_batch_size == 1
        return rows if is_limited else 1, tuple(array.shape for array in arrays)

    def _rows(self, arrays: Sequence[np.ndarray], name: str) -> int:
        rows = len(arrays[0])
        for tensor, count in zip(self.inputs, map(len, arrays), strict=True):
            if count == 0 or count != rows:
                wanted = f"{rows} items like the first input" if count else "at least one item"
                where = f"{name}: input {tensor.name!r}"
                raise RequestError(f"{where}: expected {wanted}, got {count}")
        return rows

    # ---- in the thread

    def compile(self, name: str, check_open: Callable[[], None]) -> None:
        """Plan and compile the graph for every batch size that it can run in.

        `check_open` raises when the server is ending: no further program is compiled. Raises if the
        graph cannot be compiled for single items.
        """
        check_open()
        single = self._programs[1] = self._program(1 if self.is_batched else None)
        single.prepare(single.declared())
        if self.is_batched and self._settings.max_batch_size > 1:
            self._why_single = self._compile_batches(name, check_open)
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

    def _compile_batches(self, name: str, check_open: Callable[[], None]) -> str | None:
        """Compile for batches; returns why the graph cannot run in batches, or None."""
        for size in compiled_sizes(self._settings.max_batch_size)[1:]:
            check_open()
            program = self._program(size)
            try:
                program.prepare(program.declared())
            except DeviceMemoryError as error:
                _LOGGER.warning("%s: no batches of %d and more: %s", name, size, error)
                break
            except JaxDelegateError as error:
                return f"it cannot run as a batch of {size}: {error}"
            why = _why_not_splittable(self.graph, self._programs[1], program)
            if why is not None:
                return why
            self._programs[size] = program
        return None

    def _program(self, size: int | None) -> BatchProgram:
        opened = self._open
        host = SubgraphRunner(
            opened.model.subgraphs[self.graph.subgraph],
            opened.delegates,
            model=opened.store,  # all sizes share its weights on the device
            may_rebatch=True,
        )
        return BatchProgram(host, self.graph, size)

    def warm_up(self, name: str) -> None:
        try:
            self._set_costs(_timed(self._programs))
        except InterpreterError as error:  # some graphs refuse zeros
            _LOGGER.warning("%s: runs are not timed, because zeros are refused: %s", name, error)
            return
        each = ", ".join(f"{size}: {1e3 * s:.3g} ms" for size, s in self.costs.seconds.items())
        _LOGGER.info("%s: time of a run by batch size: %s", name, each)

    def prepare(self, shapes: Shapes, rows: int) -> BatchProgram:
        """The program for this many items of these shapes, compiled if necessary.

        A RequestError of status 400 if the graph refuses the shapes.
        """
        program = self._programs[self.costs.padded(rows)]
        whole = shapes if program.size is None else tuple((program.size, *s) for s in shapes)
        try:
            program.prepare(whole)
        except DeviceMemoryError:
            raise
        except JaxDelegateError as error:
            raise RequestError(f"the model refuses these shapes: {error}") from error
        return program


def _why_single(
    graph: ServedGraph, opened: OpenModel, settings: ServeSettings, states: StateUse
) -> str | None:
    """Why a graph cannot run in batches, as far as the file shows; None: it may."""
    if settings.max_batch_size == 1:
        return "max_batch_size is 1"
    if states.are_shared:
        return "the model keeps states that the items of a batch would share"
    if not graph.takes_batches:
        return "the first dimension of an input is neither 1 nor open"
    if not any(delegate.rebatches for delegate in opened.delegates):
        return "only JaxDelegate with rebatch proves that a graph keeps items independent"
    return None


def _why_not_splittable(
    graph: ServedGraph, single: BatchProgram, batch: BatchProgram
) -> str | None:
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
    """Seconds of a run on zeros by batch size: the fastest of a few, without the first.

    The sizes alternate, so that other load on the machine slows all of them.
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
