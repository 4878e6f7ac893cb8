"""Options and records of operators that call subgraphs."""

import dataclasses

from jaxdelegate.op_lowering.records import c_struct as c
from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.custom import FlexbufferOptions
from jaxdelegate.op_lowering.records.enums import CustomOptionsFormat
from jaxdelegate.op_lowering.records.operator import OperatorRecord, table
from jaxdelegate.op_lowering.records.record import Options, Record


class CallOptions(Record):
    subgraph: int = 0


class IfOptions(Record):
    then_subgraph_index: int = 0
    else_subgraph_index: int = 0


class WhileOptions(Record):
    cond_subgraph_index: int = 0
    body_subgraph_index: int = 0


class CallOnceOptions(Record):
    init_subgraph_index: int = 0


class StablehloWhileOptions(Record):
    cond_subgraph_index: int = 0
    body_subgraph_index: int = 0


class StableHLOCompositeOptions(Record):
    name: str = ""
    decomposition_subgraph_index: int = 0
    composite_attributes: bytes = b""
    composite_attributes_format: CustomOptionsFormat = CustomOptionsFormat.FLEXBUFFERS
    version: int = 0


@dataclasses.dataclass(frozen=True)
class RmsNormAttributes(FlexbufferOptions):
    """Attributes of `odml.rms_norm`: x / sqrt(mean(x^2) + epsilon) * scale, over the last axis."""

    epsilon: float = 0.0


def rms_norm_epsilon(o: StableHLOCompositeOptions) -> float | None:
    """The epsilon of a composite `odml.rms_norm`; None: it is another one, or has none."""
    if o.name != "odml.rms_norm":
        return None
    try:
        return RmsNormAttributes.from_bytes(o.composite_attributes).epsilon or None
    except ValueError:
        return None


class StablehloCaseOptions(Record):
    branch_subgraph_indices: tuple[int, ...] = ()


def _call(op: costs.Operation[CallOptions]) -> costs.Work:
    return op.called(op.options.subgraph) or costs.UNKNOWN


def _composite(op: costs.Operation[StableHLOCompositeOptions]) -> costs.Work:
    return op.called(op.options.decomposition_subgraph_index) or costs.UNKNOWN


def _once(_op: costs.Operation[CallOnceOptions]) -> costs.Work:
    return costs.Work(0, note="runs at the first invoke only")


def _loop(op: costs.Operation[WhileOptions | StablehloWhileOptions]) -> costs.Work:
    works = _known(op, op.options.cond_subgraph_index, op.options.body_subgraph_index)
    if not works:
        return costs.Work(None)
    note = "per iteration; how many there are depends on data"
    flops = sum(work.flops or 0 for work in works)
    return costs.Work(flops, sum(work.transcendentals for work in works), note)


def _if(op: costs.Operation[IfOptions]) -> costs.Work:
    return _dearest(_known(op, op.options.then_subgraph_index, op.options.else_subgraph_index))


def _case(op: costs.Operation[StablehloCaseOptions]) -> costs.Work:
    return _dearest(_known(op, *op.options.branch_subgraph_indices))


def _known(op: costs.Operation[Options], *subgraphs: int) -> list[costs.Work]:
    works = map(op.called, subgraphs)
    return [work for work in works if work is not None and work.flops is not None]


def _dearest(branches: list[costs.Work]) -> costs.Work:
    if not branches:
        return costs.Work(None, note="the subgraphs' cost is not known")
    dearest = max(branches, key=lambda work: work.flops or 0)
    return dataclasses.replace(dearest, note="the dearest branch")


RECORDS = table(
    OperatorRecord("CALL", CallOptions, cost=_call, struct=c.HIDDEN),
    OperatorRecord("CALL_ONCE", CallOnceOptions, cost=_once),
    OperatorRecord("IF", IfOptions, cost=_if),
    OperatorRecord(
        "STABLEHLO_CASE",
        StablehloCaseOptions,
        cost=_case,
        struct={"branch_subgraph_indices": c.counted(c.INT32, 20)},
    ),
    OperatorRecord(
        "STABLEHLO_COMPOSITE",
        StableHLOCompositeOptions,
        cost=_composite,
        struct=c.members(
            StableHLOCompositeOptions,
            *("name", "decomposition_subgraph_index", "version", "composite_attributes"),
        ),
    ),
    OperatorRecord("STABLEHLO_WHILE", StablehloWhileOptions, cost=_loop, struct=c.HIDDEN),
    OperatorRecord("WHILE", WhileOptions, cost=_loop),
)
