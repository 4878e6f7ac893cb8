"""Counts the iterations of a loop, if the model alone determines them.

The condition, and the part of the body that computes the condition's inputs, run with the reference
kernels until the condition is false. These values must be integers or booleans, which are equal in
every implementation.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from jaxdelegate.errors import InterpreterError
from jaxdelegate.model.records import Operator, Subgraph
from jaxdelegate.op_lowering.rule import StaticLoop
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.passes.propagation import KERNEL_ERRORS, gather, is_constant, subgraph_specs
from jaxdelegate.reference.kernel import Folds, Kernel
from jaxdelegate.reference.registry import KERNELS

_MAX_TRIPS = 10_000
_MAX_CALLS = 200_000  # calls of kernels take a few seconds
_MAX_ELEMENTS = 1024  # in a counter

_Values = Mapping[int, np.ndarray]  # by position among the loop's values


def static_loop(condition: Subgraph, body: Subgraph, inputs: Specs) -> StaticLoop | None:
    """The number of a loop's iterations and its invariants; None if data determine the number.

    The condition maps the loop's values to whether it continues, the body to the next values;
    `inputs` are the initial values.
    """
    lengths = {len(s) for s in (condition.inputs, body.inputs, body.outputs, inputs)}
    if len(lengths) != 1 or len(condition.outputs) != 1:
        return None
    test = _Slice.of(condition, condition.outputs)
    counters = test.reads
    while True:
        step = _Slice.of(body, [body.outputs[p] for p in counters])
        more = tuple(sorted({*counters, *step.reads}))
        if more == counters:
            break
        counters = more
    trips = _counted(test.runner(inputs), step.runner(inputs), _initial(inputs, counters))
    kept = tuple(p for p, i in enumerate(body.inputs) if body.outputs[p] == i)
    return None if trips is None else StaticLoop(trips, kept)


def _initial(inputs: Specs, positions: Sequence[int]) -> dict[int, np.ndarray] | None:
    """The initial values of the counters; None if they are not known."""
    values = {p: inputs[p].const for p in positions if _may_count(inputs[p])}
    known = {p: value for p, value in values.items() if value is not None}
    return known if len(known) == len(positions) else None


def _counted(test: "_Runner | None", step: "_Runner | None", values: _Values | None) -> int | None:
    if test is None or step is None or values is None:
        return None
    kernels = len(test.operators) + len(step.operators)
    max_trips = min(_MAX_TRIPS, _MAX_CALLS // max(1, kernels))
    try:
        for trips in range(max_trips + 1):
            (more,) = test(values)
            if not more.reshape(-1)[0]:
                return trips
            values = dict(zip(values, step(values), strict=True))
    except KERNEL_ERRORS:  # raised again when the loop runs
        return None
    return None


@dataclasses.dataclass(frozen=True)
class _Slice:
    """The operators that compute some tensors of a subgraph, and the inputs that they read."""

    subgraph: Subgraph
    results: tuple[int, ...]
    operators: tuple[Operator, ...]
    reads: tuple[int, ...]  # positions

    @classmethod
    def of(cls, subgraph: Subgraph, results: Iterable[int]) -> "_Slice":
        results = tuple(results)
        wanted, kept = set(results), []
        for operator in reversed(subgraph.operators):
            if not wanted.isdisjoint(operator.outputs):
                wanted.update(operator.inputs)
                kept.append(operator)
        reads = tuple(p for p, i in enumerate(subgraph.inputs) if i in wanted)
        return cls(subgraph, results, tuple(reversed(kept)), reads)

    def runner(self, inputs: Specs) -> "_Runner | None":
        """A function that runs it on values of the loop; None if they depend on data."""
        unknown = tuple(dataclasses.replace(spec, const=None) for spec in inputs)
        subgraph = dataclasses.replace(self.subgraph, operators=self.operators)
        try:
            specs = subgraph_specs(subgraph, unknown, ())
        except InterpreterError:
            return None
        steps = [o for o in self.operators if not is_constant(gather(specs, o.outputs))]
        touched = {i for o in steps for i in (*o.inputs, *o.outputs) if i >= 0}
        if not all(_may_count(specs[i]) for i in touched.union(self.results)):
            return None
        rows = []
        for operator in steps:
            kernel = KERNELS.get(operator.name)
            if kernel is None or not _is_plain(kernel):
                return None
            rows.append((operator, kernel))
        known = {i: spec.const for i, spec in enumerate(specs) if spec.const is not None}
        return _Runner(specs, known, self.subgraph.inputs, self.results, rows)


def _is_plain(kernel: Kernel) -> bool:
    is_alone = not (kernel.calls or kernel.takes_handle or kernel.takes_intermediates)
    return is_alone and kernel.folds is not Folds.NEVER


def _may_count(spec: TensorSpec) -> bool:
    """Whether a tensor is small, with values that are equal in every implementation."""
    is_whole = spec.dtype.kind in "iub" and not spec.is_quantized and not spec.is_variable
    is_small = not spec.is_dynamic and int(np.prod(spec.shape)) <= _MAX_ELEMENTS
    return is_whole and is_small


@dataclasses.dataclass(frozen=True)
class _Runner:
    specs: Sequence[TensorSpec]
    constants: Mapping[int, np.ndarray]
    inputs: tuple[int, ...]
    results: tuple[int, ...]
    operators: Sequence[tuple[Operator, Kernel]]

    def __call__(self, values: _Values) -> list[np.ndarray]:
        """The results for the loop's values, by position."""
        known = dict(self.constants)
        known.update((self.inputs[p], value) for p, value in values.items())
        for operator, kernel in self.operators:
            inputs = gather(self.specs, operator.inputs)
            outputs = gather(self.specs, operator.outputs)
            arrays = (None if i < 0 else known[i] for i in operator.inputs)
            with np.errstate(all="ignore"):
                results = kernel(operator.options, inputs, outputs, *arrays)  # type: ignore[arg-type]
            known.update(zip(operator.outputs, results, strict=False))
        return [known[i] for i in self.results]
