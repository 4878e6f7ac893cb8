"""Batches that run as something else: as single runs, or as larger ones.

Single runs (`rebatch`) are for graphs with a fixed batch of 1. Larger batches (`pad_batch`) let
every size up to the next power of two share a program, only for graphs that provably compute each
item of a batch alone: see `passes/by_image`.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from jaxdelegate.errors import DelegationError, InterpreterError
from jaxdelegate.model.records import Subgraph
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.passes.batch_slices import BatchSlices
from jaxdelegate.passes.by_image import why_not_by_image
from jaxdelegate.plan.steps import PlannedPartition, PlannedStep
from jaxdelegate.simple_delegate import SimpleDelegate
from jaxdelegate.text import plural

_INSTEAD = "jaxdelegate.load(model).batched(n) computes batches of such a model"
_REMEDY = (
    "; to run a batch on a model that fixes 1, use JaxDelegate(rebatch=True) in "
    "jaxdelegate.Interpreter, or jaxdelegate.load(model).batched(n)"
)


_WITHOUT_PADDING = (
    "without pad_batch each batch size is compiled; rebatch=True computes single runs"
)


@dataclasses.dataclass(frozen=True)
class AskedBatch:
    """A batch that the shapes of the inputs request."""

    size: int  # how many items
    inputs: tuple[int, ...]  # those that hold them
    shared: tuple[int, ...]  # the other inputs
    shapes: Mapping[int, Shape]  # those of all inputs in a run of one item

    @property
    def slices(self) -> BatchSlices:
        return BatchSlices(self.size, frozenset(self.shared), are_single=True)


def asked_batch(
    declared: Mapping[int, TensorSpec], shapes: Mapping[int, Shape]
) -> AskedBatch | None:
    """The batch that input shapes ask for; None: none, every input has a batch of 1.

    Inputs that the file declares as [1, ...] hold items.
    """
    holding = tuple(i for i, spec in declared.items() if spec.shape[:1] == (1,))
    sizes = {shapes[i][:1] for i in holding}
    if sizes <= {(1,)} or sizes == {()}:
        return None
    if len(sizes) > 1:
        each = ", ".join(f"{i} {declared[i].name!r} {list(shapes[i])}" for i in holding)
        raise InterpreterError(
            "rebatch: every input that the model declares as [1, ...] has to be resized to the "
            f"same batch, got: {each}"
        )
    ((size,),) = sizes
    single = {i: (1, *shapes[i][1:]) if i in holding else shapes[i] for i in declared}
    shared = tuple(i for i in declared if i not in holding)
    return AskedBatch(size, holding, shared, single)


def why_not_at_once(
    subgraph: Subgraph, batch: AskedBatch, whole: Sequence[TensorSpec], single: Sequence[TensorSpec]
) -> str | None:
    """Why the graph with a batch's shapes may compute something else than its single runs do.

    `whole` and `single` are the specs of all tensors with the shapes of the batch, and of one run.
    """
    if not batch.size:
        return "the batch is empty"
    reason = why_not_by_image(
        subgraph.operators,
        dict(enumerate(whole)),
        batch.inputs,
        subgraph.outputs,
        single=dict(enumerate(single)),
    )
    if reason is not None:
        return reason
    wanted = {i: batch.slices.shape(i, single[i].shape) for i in subgraph.outputs}
    other = next((i for i, shape in wanted.items() if whole[i].shape != shape), None)
    return None if other is None else f"output {other} would be {list(whole[other].shape)}"


def check_state(states: Sequence[str], why: str) -> None:
    """Refuse state that no tensor of the file holds: it is not each item's own."""
    if states:
        more = f" and {len(states) - 1} more" if len(states) > 1 else ""
        raise InterpreterError(
            f"rebatch: {states[0]!r}{more}: state that single runs would share "
            f"(random counters, resource variables), and the graph cannot take the batch at once: "
            f"{why}; {_INSTEAD}"
        )


def check_inputs(subgraph: Subgraph, batch: AskedBatch) -> None:
    """Refuse an output that is an input which all items share."""
    both = [i for i in batch.shared if i in subgraph.outputs]
    if both:
        raise InterpreterError(
            f"rebatch: tensor {both[0]} {subgraph.tensors[both[0]].name!r} is an input that all "
            f"items share, and an output, which each has for itself; {_INSTEAD}"
        )


def check_is_one_partition(
    steps: Sequence[PlannedStep], delegates: Sequence[SimpleDelegate], subgraph: int, why: str
) -> None:
    """Refuse a plan in which a delegate that rebatches has not taken the whole graph."""
    taken = [
        step for step in steps if isinstance(step, PlannedPartition) and step.delegate.rebatches
    ]
    if len(steps) == len(taken) <= 1:
        return
    report = next(d for d in delegates if d.rebatches).report(subgraph)
    count = f"{len(report.left)} of {plural(len(report.nodes), 'operator')}"
    left = f"operators that stay outside, {count}:\n{report.reasons()}"
    parts = f"it makes {plural(report.n_partitions, 'partition')}"
    raise DelegationError(
        f"rebatch: the graph cannot take the batch at once: {why}. To run it as single runs, "
        f"{report.delegate} has to take the whole graph as one partition, but "
        f"{left if report.left else parts}"
    )


def remedy(declared: Mapping[int, TensorSpec], shapes: Mapping[int, Shape]) -> str:
    """What an error should add if the user gave a batch to a graph with a fixed batch of 1."""
    single = [i for i, spec in declared.items() if spec.shape[:1] == (1,)]
    is_batch = any(
        len(shapes[i]) == len(declared[i].shape) and shapes[i][:1] != (1,) for i in single
    )
    return _REMEDY if is_batch else ""


def padded_size(size: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << (size - 1).bit_length()


def padding_refused(size: int, padded: int, why: str) -> InterpreterError:
    """The error of a batch that cannot be computed in a larger one."""
    return InterpreterError(
        f"pad_batch: a batch of {size} may have other results in a batch of {padded}: {why}; "
        f"{_WITHOUT_PADDING}"
    )


def check_is_padded(steps: Sequence[PlannedStep]) -> None:
    """Refuse a plan in which no delegate that pads batches has taken the whole graph."""
    if [isinstance(s, PlannedPartition) and s.delegate.pads_batch for s in steps] != [True]:
        raise DelegationError(
            "pad_batch: a delegate has to take the whole graph as one partition, but operators "
            f"stay outside; see its report. {_WITHOUT_PADDING[0].upper()}{_WITHOUT_PADDING[1:]}"
        )
