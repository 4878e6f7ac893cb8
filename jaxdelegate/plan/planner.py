"""A subgraph and its input shapes -> a plan: specs, and for each operator who runs it.

A plan is a value: the interpreter, functions, tools and servers plan alike, without a runner.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.errors import InterpreterError
from jaxdelegate.model.records import Operator, Subgraph
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.passes.batch_slices import BatchSlices
from jaxdelegate.passes.explicit_state import with_explicit_states
from jaxdelegate.passes.limits import Limits
from jaxdelegate.passes.propagation import Subgraphs, declared_specs, gather, propagate
from jaxdelegate.passes.tensor_lists import with_list_updates
from jaxdelegate.plan import batches
from jaxdelegate.plan.fitting import remedy
from jaxdelegate.plan.gain import REFERENCE
from jaxdelegate.plan.node_subsets import Subset, independent_subsets
from jaxdelegate.plan.partitioner import Offer, delegated_subsets
from jaxdelegate.plan.steps import PlannedOperator, PlannedPartition, PlannedStep, partition_params
from jaxdelegate.simple_delegate import GraphKey, Node, SimpleDelegate

Shapes = Mapping[int, Shape]  # the inputs' shapes by tensor
GraphSpecs = Sequence[TensorSpec]  # one for each tensor


@dataclasses.dataclass(frozen=True)
class Plan:
    """A subgraph for certain input shapes."""

    specs: GraphSpecs  # those of all tensors, by index
    steps: tuple[PlannedStep, ...]  # in the order of execution
    slices: BatchSlices | None = None  # those on which its partition runs; None: the whole batch
    why_rebatched: str | None = None  # why the graph does not take the batch at once; None: it does


class EntryPoint:
    """A subgraph of a model that is planned for any input shapes.

    Attributes:
        subgraph: with its states as variable tensors.
        explicit: what these states are.
        subgraphs: the model's, for operators that call them.
        limits: what tensors may take.
        declared: specs as the file has them. A free dimension is 1 there.
    """

    def __init__(self, subgraph: Subgraph, subgraphs: Subgraphs, limits: Limits) -> None:
        self.explicit = with_explicit_states(subgraph)
        self.subgraph = self.explicit.subgraph
        self.subgraphs, self.limits = subgraphs, limits
        self.declared = declared_specs(self.subgraph)

    @property
    def declared_shapes(self) -> dict[int, Shape]:
        return {i: self.declared[i].shape for i in self.subgraph.inputs}

    def specs(self, shapes: Shapes) -> list[TensorSpec]:
        """The specs of all tensors for some input shapes, constants folded."""
        specs = list(self.declared)
        for index, shape in shapes.items():
            specs[index] = dataclasses.replace(specs[index], shape=shape)
        try:
            self.limits.check_sizes((i, specs[i]) for i in self.subgraph.inputs)
            propagated = propagate(self.subgraph.operators, specs, self.subgraphs, self.limits)
            self.limits.check_sizes(enumerate(propagated))  # some kernels do not check
        except InterpreterError as error:
            raise InterpreterError(f"{error}{self.resized(shapes)}") from error
        return propagated

    def resized(self, shapes: Shapes) -> str:
        """What an error should add about inputs of other shapes than declared, or of free ones."""
        text = ""
        for i in self.subgraph.inputs:
            spec, shape, declared = self.declared[i], shapes[i], self.signature(i)
            if shape == spec.shape and -1 in declared[1:]:
                text += f"; input {i} {spec.name!r} is {list(declared)} in the model, whose free "
                text += "dimensions count as 1: resize it (in tools by --input_layer_shape)"
            if shape != spec.shape:
                text += f"; input {i} {spec.name!r} has the shape {list(shape)}, the model "
                text += f"declares {list(declared)}"
                text += remedy(spec.dtype, shape, spec.dtype, declared)
        return text

    def signature(self, index: int) -> Shape:
        """A tensor's shape in the file; -1: any size."""
        return self.subgraph.tensors[index].shape_signature or self.declared[index].shape

    def nodes(self, specs: GraphSpecs, *, as_in_file: bool = False) -> tuple[Node, ...]:
        """The operators as delegates see them.

        `as_in_file`: without the rewriting of tensor lists that lets loops be compiled.
        """
        graph = self.subgraph if as_in_file else with_list_updates(self.subgraph, specs)
        return tuple(self._node(operator, specs) for operator in graph.operators)

    def _node(self, operator: Operator, specs: GraphSpecs) -> Node:
        return Node(
            operator=operator,
            inputs=gather(specs, operator.inputs),
            outputs=gather(specs, operator.outputs),
            intermediates=gather(specs, operator.intermediates),
            subgraphs=self.subgraphs,
        )


@dataclasses.dataclass(frozen=True)
class Delegation:
    """Who may take operators, and on what terms."""

    delegates: Sequence[SimpleDelegate] = ()  # applied in order
    # The graph's.
    graph_key: GraphKey = dataclasses.field(default_factory=lambda: GraphKey(None, None))
    # Where delegates keep what belongs to the open model.
    shared: MutableMapping[Any, Any] = dataclasses.field(default_factory=dict)
    # Why an operator must stay on the host, whatever delegates say; None: it need not.
    why_not: Callable[[Node], str | None] = lambda _: None
    preserve_all_tensors: bool = False  # every tensor must stay readable
    may_rebatch: bool = False  # whether a batch may become single runs, for delegates that rebatch
    # Whether XLA runs the whole graph, without a delegate: see `plan.whole`.
    is_function: bool = False

    @property
    def rebatches(self) -> bool:
        """Whether a delegate wants batches as single runs."""
        return self.may_rebatch and any(delegate.rebatches for delegate in self.delegates)

    @property
    def pads_batch(self) -> bool:
        """Whether a delegate wants batches as larger ones."""
        return self.may_rebatch and any(delegate.pads_batch for delegate in self.delegates)


def plan(entry: EntryPoint, shapes: Shapes, delegation: Delegation) -> Plan:
    """The plan of a subgraph for some input shapes.

    Raises:
        InterpreterError: an operator refuses its inputs, or inputs have different batches.
        DelegationError: a delegate that requires every operator cannot take all of them.
    """
    return _Planner(entry, delegation).plan(shapes)


@dataclasses.dataclass(frozen=True)
class _Planner:
    entry: EntryPoint
    delegation: Delegation

    def plan(self, shapes: Shapes) -> Plan:
        delegation, batch = self.delegation, None
        if delegation.rebatches or delegation.pads_batch:
            batch = batches.asked_batch(self._declared, shapes)
        if batch is not None and delegation.pads_batch:
            padded = self._padded(shapes, batch)
            if padded is not None:
                return padded
        if batch is not None and delegation.rebatches:
            why = self._why_not_at_once(shapes, batch)
            if why is not None:
                return self._single_runs(batch, why)
        try:
            specs = self.entry.specs(shapes)
        except InterpreterError as error:
            raise InterpreterError(f"{error}{self._rebatch_remedy(shapes)}") from error
        return Plan(specs, self._steps(specs, shapes))

    @property
    def _declared(self) -> dict[int, TensorSpec]:
        return {i: self.entry.declared[i] for i in self.entry.subgraph.inputs}

    def _why_not_at_once(self, shapes: Shapes, batch: batches.AskedBatch) -> str | None:
        """Why the resized graph may compute something else than single runs do."""
        try:
            whole = self.entry.specs(shapes)
        except InterpreterError as error:
            return str(error.__cause__ or error)
        single = self.entry.specs(batch.shapes)
        return batches.why_not_at_once(self.entry.subgraph, batch, whole, single)

    def _rebatch_remedy(self, shapes: Shapes) -> str:
        """What an error should add if the inputs have a batch, and the file fixes 1."""
        if not self.delegation.may_rebatch or self.delegation.rebatches:
            return ""
        return batches.remedy(self._declared, shapes)

    def _padded(self, shapes: Shapes, batch: batches.AskedBatch) -> Plan | None:
        """One partition for a larger batch; None: the batch needs none, or becomes single runs."""
        size = batches.padded_size(batch.size)
        if batch.size in (0, size):
            return None
        larger = dataclasses.replace(batch, size=size)
        wanted = {i: (size, *s[1:]) if i in batch.inputs else s for i, s in shapes.items()}
        why = self._why_not_at_once(shapes, batch) or self._why_not_at_once(wanted, larger)
        if why is not None and self.delegation.rebatches:
            return None
        if why is not None:
            raise batches.padding_refused(batch.size, size, why)
        steps = self._steps(self.entry.specs(wanted), wanted)
        batches.check_is_padded(steps)
        (step,) = (s for s in steps if isinstance(s, PlannedPartition))
        params = dataclasses.replace(step.params, padded_to=tuple(sorted(wanted.items())))
        return Plan(self.entry.specs(shapes), (PlannedPartition(params, step.delegate),))

    def _single_runs(self, batch: batches.AskedBatch, why: str) -> Plan:
        """One partition of the graph as it is for one item, which runs once for each."""
        entry, subgraph, slices = self.entry, self.entry.subgraph, batch.slices
        hidden = {*entry.explicit.initial, *entry.explicit.resources}
        batches.check_state([entry.declared[i].name for i in sorted(hidden)], why)
        batches.check_inputs(subgraph, batch)
        specs = entry.specs(batch.shapes)
        steps = self._steps(specs, batch.shapes, slices)
        batches.check_is_one_partition(steps, self.delegation.delegates, subgraph.index, why)
        partitions = (step for step in steps if isinstance(step, PlannedPartition))
        results = [i for step in partitions for i in step.params.outputs]
        variables = (i for i, spec in enumerate(specs) if spec.is_variable)
        of_all = slices.specs(
            dict(enumerate(specs)), sorted({*batch.inputs, *variables, *subgraph.outputs, *results})
        )
        entry.limits.check_sizes(of_all.items())
        return Plan([of_all.get(i, spec) for i, spec in enumerate(specs)], steps, slices, why)

    def _steps(
        self, specs: GraphSpecs, shapes: Shapes, slices: BatchSlices | None = None
    ) -> tuple[PlannedStep, ...]:
        is_compiled = bool(self.delegation.delegates) or self.delegation.is_function
        nodes = self.entry.nodes(specs, as_in_file=not is_compiled)
        steps: tuple[PlannedStep, ...] = tuple(map(PlannedOperator, nodes))
        for delegate in self.delegation.delegates:
            left = {i: s.node for i, s in enumerate(steps) if isinstance(s, PlannedOperator)}
            graph = _Unallocated(specs, tuple(left.values()), shapes, self.delegation)
            subsets = delegated_subsets(delegate, self._offer(graph, steps, left))
            steps = self._replaced(steps, subsets, delegate, specs, slices)
        return steps

    def _offer(
        self, graph: "_Unallocated", steps: Sequence[PlannedStep], left: Mapping[int, Node]
    ) -> Offer:
        reasons = {i: self.delegation.why_not(node) for i, node in left.items()}
        return Offer(
            graph,
            [step.row for step in steps],
            group=lambda chosen: independent_subsets(steps, chosen),
            speed=REFERENCE,
            refused={i: reason for i, reason in reasons.items() if reason is not None},
            subgraph=self.entry.subgraph.index,
        )

    def _replaced(
        self,
        steps: Sequence[PlannedStep],
        subsets: Iterable[Subset],
        delegate: SimpleDelegate,
        specs: GraphSpecs,
        slices: BatchSlices | None,
    ) -> tuple[PlannedStep, ...]:
        """The steps with a partition for each subset that a delegate takes (simple_delegate.cc)."""
        readers = Counter(i for step in steps for i in step.reads)
        readers.update(self.entry.subgraph.outputs)

        def replaced(subset: Subset) -> Sequence[PlannedStep]:
            inside = [steps[i] for i in subset.items]
            if not subset.is_delegated:
                return inside
            own = Counter(i for step in inside for i in step.reads)
            read = {i for step in inside for i in step.writes if readers[i] > own[i]}
            wanted = None if self.delegation.preserve_all_tensors else read
            taken = tuple(step.node for step in inside if isinstance(step, PlannedOperator))
            return [PlannedPartition(partition_params(taken, wanted, specs, slices), delegate)]

        return tuple(step for subset in subsets for step in replaced(subset))


class _Unallocated:
    """A graph while a delegate chooses: a DelegateContext without values."""

    def __init__(
        self, specs: GraphSpecs, nodes: Sequence[Node], shapes: Shapes, delegation: Delegation
    ) -> None:
        self._specs, self._nodes, self._shapes = specs, nodes, tuple(sorted(shapes.items()))
        self.graph_key, self.shared = delegation.graph_key, delegation.shared
        self.preserve_all_tensors = delegation.preserve_all_tensors

    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def shapes(self) -> Hashable:
        return self._shapes

    def spec(self, index: int) -> TensorSpec:
        return self._specs[index]

    def value(self, index: int) -> Any:  # noqa: ARG002 (the protocol's)
        return None

    def array(self, index: int) -> np.ndarray:
        raise LookupError(f"tensor {index} {self._specs[index].name!r} holds no data")

    def assign(self, index: int, value: Any) -> None:  # noqa: ARG002 (the protocol's)
        raise LookupError(f"tensor {index} {self._specs[index].name!r}: nothing is allocated yet")
