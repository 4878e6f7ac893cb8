"""Runs one subgraph in the order of its plan, by numpy kernels and delegated partitions.

The counterpart of TFLite's Subgraph (core/subgraph.cc). The interpreter's API stands on it.
"""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.errors import InterpreterError, JaxDelegateError, UnassignedError
from jaxdelegate.host_memory import (
    HeldViews,
    Regions,
    aligned_copy,
    aligned_zeros,
    fetch,
    is_view,
    on_host,
    request,
)
from jaxdelegate.model.records import Subgraph
from jaxdelegate.model.source import Source
from jaxdelegate.op_lowering.resources.reference import unassigned
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.options import EARLY_COPIES, is_on
from jaxdelegate.passes.explicit_state import state_zero
from jaxdelegate.passes.limits import Limits, Row, own_bytes
from jaxdelegate.passes.propagation import Subgraphs, reads_and_writes
from jaxdelegate.plan.planner import Delegation, EntryPoint, Plan, plan
from jaxdelegate.plan.steps import PlannedOperator, PlannedStep, last_reads
from jaxdelegate.reference.kernel import Services
from jaxdelegate.runtime import execution_plan
from jaxdelegate.runtime.execution_plan import OperatorStep, PartitionStep, Step
from jaxdelegate.runtime.stopping import Stop
from jaxdelegate.runtime.tensor_details import is_held_as_given, to_api_dtype
from jaxdelegate.simple_delegate import GraphKey, Node, SimpleDelegate

_LOGGER = logging.getLogger("jaxdelegate")
# What runs a kernel's shortcut: the call, where its inputs come from, and which they are; where its
# results go, and the position and the tensor of each. A tuple, because that is unpacked quickest.
_Call = Callable[[Iterable[Any]], Sequence[Any] | None]
_Shortcut = tuple[_Call, Callable[[int], Any], tuple[int, ...], Any, tuple[tuple[int, int], ...]]
_SMALL_BYTES = 1 << 16  # per operator, without a check of the sum


@dataclasses.dataclass(frozen=True)
class _TensorKinds:
    """Tensors of a subgraph by what its runner does with their values, without resources."""

    variables: tuple[int, ...]  # kept between runs; the values of resources are in the store
    results: frozenset[int]  # outputs and variables that are no inputs
    simple_inputs: frozenset[int]  # those that are held as users set them
    simple_outputs: frozenset[int]  # those that are held as users get them

    @classmethod
    def of(cls, entry: EntryPoint) -> "_TensorKinds":
        graph, resources = entry.subgraph, entry.explicit.resources
        states = (i for i, spec in enumerate(entry.declared) if spec.is_variable)
        variables = tuple(i for i in states if i not in resources)
        simple = {t.index for t in graph.tensors if is_held_as_given(t)}.difference(resources)
        return cls(
            variables,
            frozenset((*graph.outputs, *variables)).difference(graph.inputs),
            frozenset(simple.intersection(graph.inputs)),
            frozenset(simple.intersection(graph.outputs)),
        )


class SubgraphRunner:
    """One subgraph with its current shapes, its plan and its tensors' values. A DelegateContext."""

    def __init__(
        self,
        subgraph: Subgraph,
        delegates: Sequence[SimpleDelegate] = (),
        *,
        preserve_all_tensors: bool = False,
        model: "ModelStore | None" = None,
        may_rebatch: bool = False,
    ) -> None:
        """Plan the subgraph with the shapes that the file declares.

        A graph whose declared shapes do not fit is planned at `allocate`, after the user's resizes.
        Delegates are applied in order. `model` is what its subgraphs share; None: there is only
        this one. `may_rebatch`: a batch may become single runs, as delegates that rebatch want it;
        only for graphs that are called from outside of the model.
        """
        model = ModelStore((subgraph,)) if model is None else model
        self._store = model
        self._entry = EntryPoint(subgraph, model.subgraphs, model.limits)
        self.subgraph = subgraph = self._entry.subgraph
        self.preserve_all_tensors = preserve_all_tensors
        self.graph_key = GraphKey(model.key, subgraph.index, model.name)
        self.shared: MutableMapping[Any, Any] = model.shared.setdefault(subgraph.index, {})
        self._delegation = Delegation(
            delegates=tuple(delegates),
            graph_key=self.graph_key,
            shared=self.shared,
            why_not=model.stop.why_not_delegated,
            preserve_all_tensors=preserve_all_tensors,
            may_rebatch=may_rebatch,
        )
        self.is_allocated = False
        # Around each step of an invoke; profilers put themselves here.
        self.watch: Callable[[Step], contextlib.AbstractContextManager[Any]] = (
            contextlib.nullcontext
        )
        self._resources = self._entry.explicit.resources
        self._initial = self._entry.explicit.initial
        self._kinds = _TensorKinds.of(self._entry)
        self._own: Iterable[int] = self._kinds.results  # those that may be views of inputs
        self._plan = Plan(self._entry.declared, ())
        self._shapes = self._entry.declared_shapes
        self._planned: Hashable = None
        self._steps: list[Step] = []
        self._values: dict[int, Any] = {}
        self._pinned: dict[int, np.ndarray] = {}
        self._copies_early = False  # results come to the host before `invoke` returns
        self._is_running = False  # a program may still read input buffers
        self._shortcut: _Shortcut | None = None
        self.views = HeldViews()  # they show pinned buffers
        self._released: dict[int, list[int]] = {}
        if delegates:
            try:
                self.plan()
            except InterpreterError as error:
                _LOGGER.debug("planning waits for allocate_tensors: %s", error)

    @property
    def steps(self) -> Sequence[Step]:
        return self._steps

    @property
    def services(self) -> Services:
        return self._store

    # ---- shapes and plan

    def resize(self, index: int, shape: Shape) -> None:
        """Give an input another shape; takes effect at `allocate`."""
        if self._shapes.get(index) != shape:
            self._shapes[index] = shape
            self.is_allocated, self._shortcut = False, None

    def has_shape(self, index: int, shape: Shape) -> bool:
        """Whether an input has this shape, now or from the next `allocate` on."""
        return self._shapes.get(index) == shape

    def shapes(self) -> Hashable:
        return tuple(sorted(self._shapes.items()))

    @property
    def why_rebatched(self) -> str | None:
        """Why the graph does not take the batch at once; None: it does."""
        return self._plan.why_rebatched

    def spec(self, index: int) -> TensorSpec:
        return self._plan.specs[index]

    def nodes(self) -> Sequence[Node]:
        """The operators that no delegate has taken yet."""
        return [step.node for step in self._steps if isinstance(step, OperatorStep)]

    def allocate(self) -> None:
        """Plan for the current shapes and prepare every partition.

        Raises:
            InterpreterError: an operator refuses the shapes.
            LoweringError: a partition cannot be compiled.
            ModelError: a mapped file was changed in place.
        """
        self._store.check_unchanged()
        self._shortcut = None
        is_resized = self._planned != self._wanted()
        if is_resized:
            self.plan()
        self._check_memory()
        if self._prepare():
            self._check_memory()
        self._own = self._views_of_inputs()
        is_elsewhere = any(not step.delegate.is_in_host_memory for step in self._partitions)
        self._copies_early = is_elsewhere and is_on(EARLY_COPIES)
        self._released = self._last_reads()
        self._hold_tensors(is_resized=is_resized or not self._values)
        self.is_allocated = True

    def plan(self) -> None:
        """Plan for the current input shapes, and create the kernels of partitions."""
        self._planned = self._shortcut = None
        self._plan = planned = plan(self._entry, self._shapes, self._delegation)
        self._steps = [self._runnable(step) for step in planned.steps]
        self._planned = self._wanted()

    @property
    def _permanent(self) -> Iterable[int]:
        """The tensors that no step releases, besides constants."""
        return (
            *self.subgraph.inputs,
            *self.subgraph.outputs,
            *self._kinds.variables,
            *self._resources,
        )

    def _wanted(self) -> Hashable:
        return self.shapes(), self._delegation.rebatches

    def _runnable(self, step: PlannedStep) -> Step:
        if isinstance(step, PlannedOperator):
            return OperatorStep(step.node)
        kernel = step.delegate.create_kernel()
        kernel.init(self, step.params)
        return PartitionStep(step.params, step.delegate, kernel)

    def _check_memory(self) -> None:
        """Refuse a plan that would take too much of the host's memory, before it is allocated."""
        constants = [i for i, spec in enumerate(self._plan.specs) if spec.const is not None]
        stay = (*self._permanent, *constants)
        plan = [row for step in self._steps for row in _rows(step)]
        keeps_all = self.preserve_all_tensors
        try:
            self._store.limits.check_graph(plan, self._plan.specs, stay, keeps_all=keeps_all)
        except InterpreterError as error:
            raise InterpreterError(f"{error}{self._entry.resized(self._shapes)}") from error

    def check_room(self, specs: Iterable[tuple[int, TensorSpec]]) -> None:
        """Refuse tensors whose shapes only data told."""
        new = list(specs)
        self._store.limits.check_sizes(new)
        if sum(own_bytes(spec) for _, spec in new) < _SMALL_BYTES:
            return
        held = [
            (i, dataclasses.replace(self._plan.specs[i], shape=tuple(v.shape), is_dynamic=False))
            for i, v in self._values.items()
            if isinstance(v, np.ndarray)
        ]
        self._store.limits.check_sum((*held, *new), "the tensors held at once")

    def _prepare(self) -> bool:
        """Prepare every step; whether operators of a partition come to the host after all."""
        steps: list[Step] = []
        for step in self._steps:
            if isinstance(step, OperatorStep):
                step.check()
            if not isinstance(step, PartitionStep):
                steps.append(step)
                continue
            try:
                step.kernel.prepare(self, step.params)
                steps.append(step)
            except JaxDelegateError as error:
                params, options = step.params, step.delegate.options
                is_other_batch = params.slices is not None or params.padded_to is not None
                if is_other_batch or not options.fallback_on_error:
                    raise
                step.delegate.on_fallback(self.subgraph.index, step.params.nodes, error)
                steps += [OperatorStep(node) for node in step.params.nodes]
        is_changed = len(steps) != len(self._steps)
        self._steps = steps
        return is_changed

    # ---- tensors

    def _hold_tensors(self, *, is_resized: bool) -> None:
        """Allocate inputs and variables, set constants; drop the values of earlier shapes."""
        kept = {i: self._values.get(i) for i in (*self.subgraph.inputs, *self._kinds.variables)}
        if is_resized:  # random operators start over, because LiteRT prepares them again
            kept.update(dict.fromkeys(self._initial))
        self._values = {}
        for index, old in kept.items():
            fits = old is not None and tuple(old.shape) == self._plan.specs[index].shape
            self._values[index] = old if fits else self._first_value(index)
        self._pinned = {
            i: b for i, b in self._pinned.items() if b.shape == self._plan.specs[i].shape
        }
        for index, spec in enumerate(self._plan.specs):
            if spec.const is not None:
                self._values[index] = spec.const

    def reset_variables(self) -> None:
        """Set the file's variable tensors to zero, but not random counters."""
        for index in self._kinds.variables:
            if index not in self._initial:
                self._values[index] = self._first_value(index)

    def states(self) -> dict[int, Any]:
        """The values of its variables by tensor, without resources of the model: see `set_states`.

        Later runs do not change the arrays, which are read-only.
        """
        states = {}
        for index in self._kinds.variables:
            value = self._values.get(index)
            if value is None:
                continue
            if index in self._pinned:
                value = value.copy()
            if isinstance(value, np.ndarray):
                value.flags.writeable = False  # else `write` would reuse the buffer
            states[index] = value
        return states

    def set_states(self, states: Mapping[int, Any]) -> None:
        """Set variables to what `states` returned; others get their first values.

        So does a variable whose shape has changed, as in `allocate`.
        """
        for index in self._kinds.variables:
            value = states.get(index)
            fits = value is not None and tuple(value.shape) == self._plan.specs[index].shape
            self._values[index] = value if fits else self._first_value(index)

    def _first_value(self, index: int) -> np.ndarray:
        if index in self._initial:
            return self._initial[index]()
        spec = self._plan.specs[index]
        try:
            value = self._input_buffer(index, spec)
            value = aligned_zeros(spec.shape, spec.dtype) if value is None else value
        except MemoryError as error:
            raise InterpreterError(f"tensor {index} {spec.name!r}: {error}") from error
        if spec.is_variable:
            value[...] = state_zero(spec)
        return value

    def _input_buffer(self, index: int, spec: TensorSpec) -> np.ndarray | None:
        """A buffer for an input, of the first partition that reads it; None: it has none."""
        if index not in self.subgraph.inputs or spec.is_variable:
            return None
        readers = [s for s in self._partitions if index in s.params.inputs]
        return readers[0].kernel.input_buffer(spec.shape, spec.dtype) if readers else None

    @property
    def _partitions(self) -> list[PartitionStep]:
        return [step for step in self._steps if isinstance(step, PartitionStep)]

    def value(self, index: int) -> Any:
        """A tensor's value where it is; None if it was not computed yet, or was released.

        Raises:
            UnassignedError: the graph reads this resource variable, but nothing has assigned it.
        """
        if index not in self._resources:
            return self._values.get(index)
        value = self._store.resources.get(self._resources[index])
        if value is None and index in self._entry.explicit.read_first:
            raise UnassignedError(unassigned(self._resources[index]))
        return value

    def array(self, index: int) -> np.ndarray:
        """A tensor's value in host memory; waits for it.

        Raises:
            LookupError: nothing has computed it, or it was released after its last use.
            InterpreterError: the device failed to compute it; names the nodes.
        """
        try:
            return on_host(self._held(index))
        except RuntimeError as error:
            raise execution_plan.failed_run(error, self._steps, self._values) from error

    def _held(self, index: int) -> Any:
        value = self.value(index)
        if value is None:
            raise LookupError(f"tensor {index} {self._plan.specs[index].name!r} holds no data")
        return value

    def assign(self, index: int, value: Any) -> None:
        """Set a tensor; a device array stays on its device until the host needs it."""
        if index in self._resources:
            self._store.resources[self._resources[index]] = value
        else:
            self._values[index] = value

    def write(self, index: int, array: Any) -> None:
        """Set an input or a variable: to a copy of a host array, or to a device array itself.

        Raises:
            LookupError: the tensor holds no data yet.
        """
        old, pinned = self._held(index), self._pinned.get(index)
        is_own = isinstance(old, np.ndarray) and old.flags.writeable and not self._is_running
        if pinned is not None:
            np.copyto(pinned, array)
            self._values[index] = pinned
        elif not isinstance(array, np.ndarray):
            self.assign(index, array)
        elif is_own:
            np.copyto(old, array)
        else:
            self.assign(index, aligned_copy(array))

    # What callers of small models do at every invoke, as far as it is simple.

    def copied_in(self, index: int, array: Any) -> bool:
        """Copy an array of numpy into an input's own buffer; False: it is not that simple."""
        if (
            type(array) is not np.ndarray
            or index not in self._kinds.simple_inputs
            or self._is_running
        ):
            return False
        buffer = self._values.get(index)
        if type(buffer) is not np.ndarray or index in self._pinned or not buffer.flags.writeable:
            return False
        if buffer.dtype != array.dtype or buffer.shape != array.shape:
            return False
        np.copyto(buffer, array)
        return True

    def copied_out(self, index: int) -> np.ndarray | None:
        """A copy of an output that is an array of numpy; None: it is not that simple."""
        value = self._values.get(index) if index in self._kinds.simple_outputs else None
        return value.copy() if type(value) is np.ndarray else None

    def view(self, index: int) -> np.ndarray:
        """A live numpy view of a tensor, in a buffer that keeps its address from now on.

        That of a constant is read-only, because programs are compiled with its value.

        Raises:
            LookupError: the tensor holds no data.
        """
        if self.spec(index).const is not None and index not in self.subgraph.inputs:
            constant = self.array(index).view()
            constant.flags.writeable = False
            return self.views.of(constant)
        if index not in self._pinned:
            self._shortcut = None
            self._pinned[index] = self._values[index] = aligned_copy(self.array(index))
            self._released = self._last_reads()
        return self.views.of(self._pinned[index])

    # ---- run

    def try_fast_path(self) -> bool:
        """Run the plan by a partition's shortcut, if it has one at the moment."""
        shortcut = self._shortcut
        if shortcut is None or self.watch is not contextlib.nullcontext:
            return False
        call, get, inputs, values, targets = shortcut
        try:
            results = call(map(get, inputs))
        except JaxDelegateError:
            raise
        except RuntimeError as error:
            last = self._steps[-1]
            raise (last.failed(error) if isinstance(last, PartitionStep) else error) from error
        if results is None:
            return False
        for position, index in targets:
            values[index] = results[position]
        return True

    def _found_shortcut(self) -> _Shortcut | None:
        """The shortcut of a plan that is one partition, after initializations that have run."""
        if self._pinned or self.preserve_all_tensors or not self._store.is_plain:
            return None
        if not self._steps:
            return (lambda _: ()), self._values.get, (), self._values, ()
        *first, last = self._steps
        once = [step.runs_once if isinstance(step, OperatorStep) else None for step in first]
        if not isinstance(last, PartitionStep) or None in once:
            return None
        shortcut, keys, resources = last.kernel.shortcut(), {*once}, self._store.resources
        if shortcut is None:
            return None
        inputs, outputs, call = shortcut
        values: Any = _Places(self) if self._resources else self._values
        # States that were taken before an initialization lack its key.
        checked = (lambda v: call(v) if keys <= resources.keys() else None) if keys else call
        return checked, values.get, inputs, values, tuple(enumerate(outputs))

    def invoke(self, wait: bool | None = None) -> None:
        """Run the plan.

        Args:
            wait: return when results are available and device errors have been raised; None: do so
                unless all inputs are device arrays. With live views it always waits.

        Raises:
            InterpreterError: an operator or a partition failed; names its nodes.
            StoppedError: it was cancelled, or its time is over.
            ModelError: a mapped file was changed in place.
        """
        self._store.check_unchanged()
        self._is_running, check = True, self._store.stop.check
        check()  # a loop's subgraphs may have no operators
        for position, step in enumerate(self._steps):
            check()
            with self.watch(step):
                step.run(self)
            for index in self._released.get(position, ()):
                self._values.pop(index, None)
        self._own_results()
        if self._pinned or execution_plan.must_wait(
            wait, map(self._values.get, self.subgraph.inputs)
        ):
            self._await()
        for index, buffer in self._pinned.items():
            value = self._values.get(index)
            if value is not None and value is not buffer:
                np.copyto(buffer, value)
                self._values[index] = buffer
        self._store.check_unchanged()  # else the results may be of a changed file
        self._shortcut = self._shortcut or self._found_shortcut()

    def _await(self) -> None:
        try:
            if self._copies_early:
                fetch(map(self._values.get, self.subgraph.outputs))
            for index in self._awaited():
                wait = getattr(self._values.get(index), "block_until_ready", None)
                if wait is not None:
                    wait()
        except RuntimeError as error:
            raise execution_plan.failed_run(error, self._steps, self._values) from error
        self._is_running = False

    def call(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Run on these inputs, of any shapes; returns the outputs in host memory."""
        for index, array in zip(self.subgraph.inputs, arrays, strict=True):
            self.resize(index, array.shape)
        if not self.is_allocated:
            self.allocate()
        for index, array in zip(self.subgraph.inputs, arrays, strict=True):
            self.assign(index, array)
        self.invoke(wait=True)
        return tuple(self.array(index) for index in self.subgraph.outputs)

    def results(self) -> Callable[[], tuple[np.ndarray, ...]]:
        """A function that waits for the outputs of the last `invoke`, and returns copies in order.

        They are copied to the host while the next run starts; later runs do not change them. It
        raises an InterpreterError, which names the nodes, if the device failed.
        """
        tensors = self.subgraph.tensors
        values = {i: self.value(i) for i in self.subgraph.outputs}
        request(values.values())

        def wait() -> tuple[np.ndarray, ...]:
            try:
                return tuple(to_api_dtype(tensors[i], on_host(v)) for i, v in values.items())
            except RuntimeError as error:
                raise execution_plan.failed_run(error, self._steps, values) from error

        return wait

    def _views_of_inputs(self) -> Iterable[int]:
        """The results that a step may make views of inputs."""
        of_programs: set[int] = set()
        of_others: set[int] = set()
        for step in self._steps:
            is_program = isinstance(step, PartitionStep) and step.kernel.returns_own_memory
            written = of_programs if is_program else of_others
            written.update(step.writes, step.variables)
        return self._kinds.results.difference(of_programs - of_others)

    def _own_results(self) -> None:
        """Copy results that are views of an input: the next `set_tensor` overwrites that."""
        views = [i for i in self._own if is_view(self._values.get(i))]
        if not views:
            return
        buffers = Regions(v for i in self.subgraph.inputs if (v := self._values.get(i)) is not None)
        for index in views:
            if buffers.overlap(self._values[index]):
                self._values[index] = self._values[index].copy()

    def _awaited(self) -> Iterable[int]:
        """The tensors that `invoke` waits for."""
        if self.preserve_all_tensors:
            return tuple(self._values)
        return (*self.subgraph.outputs, *self._kinds.variables)

    def _last_reads(self) -> dict[int, list[int]]:
        """The tensors that no later step reads, by step; none if all must stay readable."""
        if self.preserve_all_tensors:
            return {}
        stay = {*self._permanent, *self._pinned}
        stay.update(i for i, spec in enumerate(self._plan.specs) if spec.const is not None)
        return last_reads(self._steps, stay)


def _rows(step: Step) -> list[Row]:
    """What a step reads and writes of the host's memory; a partition in it, by its operators."""
    if isinstance(step, PartitionStep) and step.is_in_host_memory:
        return reads_and_writes(node.operator for node in step.params.nodes)
    return [(step.reads, step.writes)]


class _Places:
    """The values of a runner's tensors and of its resources, like the dictionary of the former."""

    def __init__(self, runner: SubgraphRunner) -> None:
        self.get, self._assign = runner.value, runner.assign

    def __setitem__(self, index: int, value: Any) -> None:
        self._assign(index, value)


class _Unnamed:
    """Stands for subgraphs that are not those of an open model."""


def _nothing() -> None:
    """The content cannot change."""


@dataclasses.dataclass(frozen=True)
class StoreStates:
    """The states of a ModelStore after a run; the arrays are never modified."""

    resources: Mapping[Any, Any]
    callees: Mapping[int, Mapping[int, Any]]  # by called subgraph: `SubgraphRunner.states`


class ModelStore:
    """What the subgraphs of an interpreter share: each other, resources, states of delegates."""

    def __init__(
        self,
        subgraphs: Sequence[Subgraph],
        delegates: Sequence[SimpleDelegate] = (),
        name: str = "",
        limits: Limits | None = None,
        timeout: float | None = None,
        origin: Source | None = None,
        key: object = None,
    ) -> None:
        """Start without resources; called subgraphs get the same delegates.

        Args:
            subgraphs: all of the model.
            delegates: those of all hosts.
            name: the file's.
            limits: how much memory may be taken.
            timeout: seconds that an invoke may take; None: any.
            origin: the files that constants are views of; None: they cannot change.
            key: the open Model, if these are its subgraphs: all that run it share its programs.
        """
        self.check_unchanged = _nothing
        if origin is not None and origin.is_mapped:
            self.check_unchanged = origin.check_unchanged
        self.name, self.limits, self.stop = name, limits or Limits(), Stop(timeout)
        self.key = key or _Unnamed()
        sparse = [
            (t.index, t.spec()) for s in subgraphs for t in s.tensors if t.sparsity is not None
        ]
        self.limits.check_sizes(sparse)
        self.limits.check_sum(sparse, "sparse constants")
        self.subgraphs = Subgraphs(subgraphs)
        self.resources: MutableMapping[Any, Any] = {}
        self.paths: MutableMapping[Any, bytes] = {}  # by subgraph and tensor
        self.shared: dict[int, dict[Any, Any]] = {}
        self._delegates = delegates
        self._callees: dict[int, SubgraphRunner] = {}

    def __call__(self, subgraph: int, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Run a subgraph on numpy arrays, by a runner that keeps its plan."""
        if subgraph not in self._callees:
            self._callees[subgraph] = SubgraphRunner(
                self.subgraphs[subgraph], self._delegates, model=self
            )
        return self._callees[subgraph].call(arrays)

    @property
    def is_plain(self) -> bool:
        """Whether nothing has to be checked around an invoke: no timeout, no mapped file."""
        return self.stop.timeout is None and self.check_unchanged is _nothing

    def states(self) -> "StoreStates":
        """The values of resources, and of variables in called subgraphs."""
        callees = {index: host.states() for index, host in self._callees.items()}
        return StoreStates(dict(self.resources), callees)

    def set_states(self, states: "StoreStates") -> None:
        """Restore what `states` returned; subgraphs called since then get their first values."""
        self.resources.clear()
        self.resources.update(states.resources)
        for index, host in self._callees.items():
            host.set_states(states.callees.get(index, {}))

    def reset_variables(self) -> None:
        for host in self._callees.values():
            host.reset_variables()
