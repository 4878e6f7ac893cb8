"""The least time of a model under the peaks of a device (jaxdelegate/benchmark/peaks.py).

A model's roofline is the sum over its fused operators of max(FLOPs by the measured peak, bytes by
the measured bandwidth) (Williams, Waterman and Patterson, 2009). Fusion is assumed to be ideal: an
operator with at most one operation per element joins the last operator that it waits for, and only
a group's inputs from outside and its outputs to other groups count as moved. FLOPs are counted as
jaxdelegate.costs does: whole windows, without Winograd's savings.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import AbsentError

from jaxdelegate.benchmark.peaks import DevicePeaks
from jaxdelegate.costs import operator_cost, spec_bytes
from jaxdelegate.errors import InterpreterError
from jaxdelegate.model.records import Operator, Subgraph, read_model
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.passes.propagation import gather, is_constant, subgraph_specs


@dataclasses.dataclass(frozen=True)
class Fused:
    """Operators that ideally run as one kernel.

    Attributes:
        operators: their indices.
        flops: arithmetic operations.
        bytes: inputs from outside, and outputs that others read.
        constants: the bytes of inputs that are constants.
    """

    operators: tuple[int, ...]
    flops: int
    bytes: int
    constants: int


def least_seconds(peaks: DevicePeaks, flops: float, moved: float) -> float:
    """The least time for this much arithmetic and traffic.

    The bandwidth is that of the fastest array that is at least as large as the traffic: a
    small tensor stays in a cache, a large one does not.
    """
    largest = max(peaks.bandwidths)
    fitting = [b for size, b in peaks.bandwidths.items() if size >= min(moved, largest)]
    return max(flops / peaks.flops, moved / max(fitting))


def peaks_record(peaks: DevicePeaks) -> dict[str, Any]:
    """Peaks in the form of bench/results/."""
    gigabytes = {f"{size >> 20}": b / 1e9 for size, b in peaks.bandwidths.items()}
    return {"gflops": peaks.flops / 1e9, "gbytes_by_mib": gigabytes}


def model_seconds(graph: Path, batch: int, peaks: DevicePeaks, short: np.dtype | None) -> float:
    """The roofline of a model whose inputs and outputs are on the device.

    Args:
        graph: a .tflite without control flow.
        batch: in place of a first dimension of 1.
        peaks: of the device.
        short: the dtype of float32 tensors inside; None: float32.

    Raises:
        AbsentError: the shapes do not allow the batch, or data decides on them.
    """
    model = read_model(graph)
    subgraph = model.subgraphs[0]
    try:
        specs = batched_specs(subgraph, batch, model.subgraphs)
    except InterpreterError as error:
        raise AbsentError(str(error)) from error
    return sum(least_seconds(peaks, f.flops, f.bytes) for f in fused(subgraph, specs, short))


def batched_specs(
    subgraph: Subgraph, batch: int, subgraphs: Sequence[Subgraph]
) -> list[TensorSpec]:
    """The specs of all tensors after replacing a first dimension of 1 of the inputs by `batch`."""
    declared = subgraph_specs(subgraph, None, subgraphs)
    inputs = [declared[i] for i in subgraph.inputs]
    grown = tuple(
        dataclasses.replace(s, shape=(batch, *s.shape[1:])) if s.shape[:1] == (1,) else s
        for s in inputs
    )
    return subgraph_specs(subgraph, grown, subgraphs)


def fused(
    subgraph: Subgraph,
    specs: Sequence[TensorSpec],
    short: np.dtype | None = None,
    subgraphs: Sequence[Subgraph] = (),
) -> list[Fused]:
    """The groups of a graph under ideal fusion, in execution order.

    Args:
        subgraph: the graph.
        specs: of its tensors.
        short: the dtype of float32 tensors inside; None: float32.
        subgraphs: of the model, for the cost of composites.

    Raises:
        AbsentError: an operator's cost is not known.
    """
    pending = [op for op in subgraph.operators if not is_constant(gather(specs, op.outputs))]
    flops = {op.index: _flops(op, specs, subgraphs) for op in pending}
    groups: list[list[Operator]] = []
    of_tensor: dict[int, int] = {}  # -> the group that computes it
    for operator in pending:
        feeder = _joined(operator, flops[operator.index], specs, of_tensor)
        if feeder is None:
            feeder = len(groups)
            groups.append([])
        groups[feeder].append(operator)
        of_tensor.update(dict.fromkeys(operator.outputs, feeder))
    width = functools.partial(_bytes, specs=specs, outside=_outside(subgraph), short=short)
    return [_cost(group, pending, subgraph, specs, width, flops) for group in groups]


def _joined(
    operator: Operator, flops: int, specs: Sequence[TensorSpec], of_tensor: Mapping[int, int]
) -> int | None:
    """The group that the operator joins, if it does at most one operation per element."""
    results = sum(math.prod(specs[i].shape) for i in operator.outputs)
    feeding = [of_tensor[i] for i in operator.inputs if i in of_tensor]
    return max(feeding) if feeding and flops <= results else None


def _cost(
    group: Sequence[Operator],
    pending: Sequence[Operator],
    subgraph: Subgraph,
    specs: Sequence[TensorSpec],
    width: Callable[[int], int],
    flops: Mapping[int, int],
) -> Fused:
    own = {op.index for op in group}
    made = {i for op in group for i in op.outputs}
    read = {i for op in group for i in op.inputs if i >= 0} - made
    elsewhere = {i for op in pending if op.index not in own for i in op.inputs}
    leaving = made & (elsewhere | {*subgraph.outputs})
    return Fused(
        operators=tuple(sorted(own)),
        flops=sum(flops[i] for i in own),
        bytes=sum(map(width, sorted(read | leaving))),
        constants=sum(width(i) for i in sorted(read) if specs[i].const is not None),
    )


def _flops(operator: Operator, specs: Sequence[TensorSpec], subgraphs: Sequence[Subgraph]) -> int:
    inputs, outputs = gather(specs, operator.inputs), gather(specs, operator.outputs)
    if subgraphs and operator.name == "STABLEHLO_COMPOSITE":
        inner = subgraphs[operator.options.decomposition_subgraph_index]  # type: ignore[attr-defined]
        own = subgraph_specs(inner, inputs, subgraphs)
        pending = [op for op in inner.operators if not is_constant(gather(own, op.outputs))]
        return sum(_flops(op, own, subgraphs) for op in pending)
    cost = operator_cost(operator.name, operator.options, inputs, outputs)
    if cost.flops is None:
        raise AbsentError(f"#{operator.index} {operator.name}: {cost.note}")
    return cost.flops


def _outside(subgraph: Subgraph) -> frozenset[int]:
    return frozenset((*subgraph.inputs, *subgraph.outputs))


def _bytes(
    tensor: int,
    *,
    specs: Sequence[TensorSpec],
    outside: Iterable[int],
    short: np.dtype | None,
) -> int:
    """A tensor's bytes on the device; float32 inside the model may be reduced."""
    spec = specs[tensor]
    if short is not None and spec.dtype == np.float32 and tensor not in outside:
        return math.prod(spec.shape) * np.dtype(short).itemsize
    return spec_bytes(spec) or 0
