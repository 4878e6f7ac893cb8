"""Analyzes a model without running it: a .tflite file -> `ModelAnalysis`."""

import contextlib
import dataclasses
import functools
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.analysis import advice
from jaxdelegate.analysis.planning import Graph, in_stock_interpreter, planned_graphs
from jaxdelegate.analysis.records import (
    ModelAnalysis,
    OperatorAnalysis,
    OtherMode,
    PartitionAnalysis,
    Sizes,
    SubgraphAnalysis,
    TensorAnalysis,
    json_value,
)
from jaxdelegate.costs import Cost, operator_cost, spec_bytes
from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.errors import ModelError, OptionError
from jaxdelegate.model.descriptions import ModelDescription, describe
from jaxdelegate.model.operator_tables import called_subgraphs
from jaxdelegate.model.records import Model, Tensor, read_model
from jaxdelegate.model.source import ModelSource
from jaxdelegate.op_lowering.options import CustomOptions
from jaxdelegate.op_lowering.records.costs import Work
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.options import DelegateOptions
from jaxdelegate.quant.params import Quantization
from jaxdelegate.simple_delegate import Node, SimpleDelegate
from jaxdelegate.text import plural
from jaxdelegate.version import __version__

_SHOWN = 5  # values of a constant
_FOLDED = Cost(0, 0, 0, note="known before the first invoke")
_REPLACED = Cost(0, 0, 0, note="part of a list update")


def analyze_model(
    source: ModelSource | Model,
    delegate: SimpleDelegate | DelegateOptions | Mapping[str, Any] | None = None,
    *,
    interpreter: str = "jaxdelegate",
    **options: Any,
) -> ModelAnalysis:
    """Read a model, plan it without compiling, and count its costs.

    `delegate` is the one to plan for, or JaxDelegate's options, which `**options` override. The
    partitions are those of our interpreter, or of ai_edge_litert's: "litert".

    Raises:
        ModelError: the file cannot be opened, is not a TFLite model, or is damaged.
        OptionError: an unknown or impossible option.
        InterpreterError: ai_edge_litert's interpreter does not open the model.
    """
    if isinstance(delegate, SimpleDelegate):
        if options:
            raise OptionError(
                f"got a delegate and options: set these on the delegate: {', '.join(options)}"
            )
        return analyze_with(source, delegate, interpreter)
    return analyze_with(source, JaxDelegate(delegate, **options), interpreter)


def analyze_with(
    source: ModelSource | Model,
    delegate: SimpleDelegate | None,
    interpreter: str = "jaxdelegate",
) -> ModelAnalysis:
    """`analyze_model` for an existing delegate; None: nothing is delegated."""
    if interpreter not in ("jaxdelegate", "litert"):
        raise OptionError(f"interpreter: expected 'jaxdelegate' or 'litert', got {interpreter!r}")
    model = source if isinstance(source, Model) else read_model(source)
    graphs, others = planned_graphs(model, delegate), None
    if interpreter == "litert":
        graphs = in_stock_interpreter(graphs, delegate)
    else:
        others = _other_mode(model, delegate)
    graphs = _with_costs(graphs, delegate)
    callers = _callers(model)
    subgraphs = tuple(_subgraph(g, tuple(callers.get(g.index, ())), others) for g in graphs)
    described, problem = _described(model)
    file_sizes = _sizes(model)
    return ModelAnalysis(
        source=model.source,
        description=model.description,
        version=__version__,
        delegate="none" if delegate is None else delegate.name,
        interpreter=interpreter,
        device="the CPU" if delegate is None else getattr(delegate, "device_name", delegate.name),
        options=_options(delegate),
        subgraphs=subgraphs,
        signatures=tuple(model.signatures),
        metadata={name: len(data) for name, data in model.metadata.items()},
        sizes=file_sizes,
        findings=advice.findings(model, graphs, subgraphs, file_sizes),
        described=described,
        described_problem=problem,
    )


def _described(model: Model) -> tuple[ModelDescription | None, str | None]:
    try:
        return describe(model), None
    except ModelError as error:
        return None, str(error)


def _options(delegate: SimpleDelegate | None) -> Mapping[str, Any]:
    options = getattr(delegate, "options", None)
    if options is None or not dataclasses.is_dataclass(options):
        return {}
    return {f.name: json_value(getattr(options, f.name)) for f in dataclasses.fields(options)}


def _other_mode(
    model: Model, delegate: SimpleDelegate | None
) -> tuple[str, Sequence[Graph]] | None:
    if not isinstance(delegate, JaxDelegate) or not _is_quantized(model):
        return None
    is_view = delegate.lowering_context.quant_mode == "float_view"
    mode = "integer" if is_view else "float_view"
    return mode, planned_graphs(model, JaxDelegate(delegate.options, quant_mode=mode))


def _is_quantized(model: Model) -> bool:
    return any(
        tensor.quantization is not None
        and tensor.quantization.scale.size > 0
        and np.dtype(tensor.dtype).kind in "iuV"
        for subgraph in model.subgraphs
        for tensor in subgraph.tensors
    )


def _with_costs(graphs: Sequence[Graph], delegate: SimpleDelegate | None) -> tuple[Graph, ...]:
    """Costs include those of called subgraphs, each of which is summed once."""

    def costs(graph: Graph) -> tuple[Cost, ...]:
        return tuple(
            _REPLACED if node.index in graph.replaced else _cost(node, called)
            for node in graph.nodes
        )

    @functools.cache
    def called(subgraph: int) -> Work | None:
        return _sum(costs(graphs[subgraph]))

    return tuple(
        dataclasses.replace(graph, costs=costs(graph), in_floats=_in_floats(graph, delegate))
        for graph in graphs
    )


def _cost(node: Node, called: Callable[[int], Work | None]) -> Cost:
    if node.is_constant:
        return _FOLDED
    operator = node.operator
    return operator_cost(operator.name, operator.options, node.inputs, node.outputs, called)


def _sum(costs: Sequence[Cost]) -> Work | None:
    known = [cost for cost in costs if cost.flops is not None]
    if costs and not known:
        return None
    note = "" if len(known) == len(costs) else "some operators of the subgraph are not counted"
    return Work(
        sum(cost.flops or 0 for cost in known), sum(cost.transcendentals for cost in known), note
    )


def _in_floats(graph: Graph, delegate: SimpleDelegate | None) -> frozenset[int]:
    if not isinstance(delegate, JaxDelegate) or graph.report is None:
        return frozenset()
    rows = {row.index for row in graph.report.delegated}
    nodes = (node for node in graph.nodes if node.index in rows)
    return frozenset(node.index for node in nodes if delegate.compiler.runs_in_floats(node))


def _callers(model: Model) -> dict[int, list[tuple[int, int]]]:
    callers: dict[int, list[tuple[int, int]]] = {}
    for subgraph in model.subgraphs:
        for operator in subgraph.operators:
            for _, callee in called_subgraphs(operator.options):
                callers.setdefault(callee, []).append((subgraph.index, operator.index))
    return callers


def _subgraph(
    graph: Graph,
    callers: tuple[tuple[int, int], ...],
    others: tuple[str, Sequence[Graph]] | None,
) -> SubgraphAnalysis:
    subgraph = graph.subgraph
    other = others and others[1][subgraph.index].report
    reasons = {row.index: row.reason for row in other.nodes} if other else {}
    count = plural(len(graph.nodes), "operation")
    summary = f"{count}; where they run is known only once the shapes are."
    return SubgraphAnalysis(
        index=subgraph.index,
        name=subgraph.name,
        inputs=subgraph.inputs,
        outputs=subgraph.outputs,
        tensors=tuple(_tensor(tensor, graph) for tensor in subgraph.tensors),
        operators=tuple(_operator(node, graph, reasons.get(node.index)) for node in graph.nodes),
        partitions=tuple(_partition(graph, number) for number in range(len(graph.partitions))),
        summary=summary if graph.report is None else graph.report.summary(),
        problem=graph.problem,
        called_by=callers,
        other_mode=OtherMode(others[0], len(other.delegated), other.n_partitions)
        if others and other
        else None,
    )


def _operator(node: Node, graph: Graph, other_reason: str | None) -> OperatorAnalysis:
    operator = graph.subgraph.operators[node.index]
    return OperatorAnalysis(
        index=operator.index,
        name=operator.name,
        version=operator.version,
        custom=operator.custom,
        inputs=operator.inputs,
        outputs=operator.outputs,
        options={
            f.name: json_value(getattr(operator.options, f.name))
            for f in dataclasses.fields(operator.options)
            if f.name != "data" or type(operator.options) is CustomOptions
        },
        subgraphs=tuple(called_subgraphs(operator.options)),
        cost=graph.costs[node.index],
        folded=node.is_constant,
        partition=graph.partition_of.get(node.index),
        in_floats=node.index in graph.in_floats,
        reason=graph.reasons.get(node.index, graph.problem),
        other_reason=other_reason,
    )


def _partition(graph: Graph, number: int) -> PartitionAnalysis:
    params, replaced = graph.partitions[number], graph.replaced.items()
    inside = {node.index for node in params.nodes}
    counts = [graph.costs[node.index].flops for node in params.nodes]
    known = [count for count in counts if count is not None]
    return PartitionAnalysis(
        number=number,
        operators=tuple(sorted({*inside, *(i for i, by in replaced if by in inside)})),
        inputs=params.inputs,
        outputs=params.outputs,
        bytes_in=graph.bytes_of(params.inputs),
        bytes_out=graph.bytes_of(params.outputs),
        flops=sum(known) if len(known) == len(counts) else None,
    )


def _tensor(tensor: Tensor, graph: Graph) -> TensorAnalysis:
    spec = graph.specs[tensor.index]
    return TensorAnalysis(
        index=tensor.index,
        name=tensor.name,
        type=tensor.type.name,
        shape=spec.shape,
        declared_shape=tensor.shape,
        shape_signature=tensor.shape_signature,
        kind=graph.kind(tensor),
        is_dynamic=spec.is_dynamic,
        buffer=tensor.buffer,
        stored_bytes=0 if tensor.stored is None else int(tensor.stored.nbytes),
        nbytes=spec_bytes(spec),
        data=_data(tensor, spec),
        quantization=None if tensor.quantization is None else _quantization(tensor.quantization),
    )


def _data(tensor: Tensor, spec: TensorSpec) -> str | None:
    """A constant's first values, as Analyzer prints them: [1, 2, 3, 4, 5, ...]."""
    if tensor.stored is None or not tensor.stored.size:
        return None
    values = tensor.constant if spec.sparsity is None else spec.const
    if values is None or not values.size:
        return None
    first = [_value(v) for v in values.reshape(-1)[:_SHOWN]]
    return f"[{', '.join(first + ['...'] * (math.prod(values.shape) > _SHOWN))}]"


def _value(value: Any) -> str:
    if isinstance(value, bytes):
        return repr(value)[1:]
    return f"{float(value):.6g}" if np.asarray(value).dtype.kind in "fV" else str(value)


def _quantization(q: Quantization) -> str | None:
    if q.blockwise is not None:
        return f"blockwise, scales T#{q.blockwise.scales}, {q.blockwise.block_size} per block"
    if q.custom is not None:
        return f"custom, {len(q.custom)} bytes"
    if not q.scale.size:
        return None
    if q.is_per_channel:
        low, high = float(q.scale.min()), float(q.scale.max())
        return f"scale {low:.6g} to {high:.6g} along dimension {q.quantized_dimension}"
    points = int(q.zero_point.reshape(-1)[0]) if q.zero_point.size else 0
    return f"scale {float(q.scale.reshape(-1)[0]):.6g}, zero point {points}"


# ---- where the bytes of a file are, as the official schema's accessors read its buffers


def _sizes(model: Model) -> Sizes:
    stored = list(_buffers(model))
    used = _used_buffers(model)
    external = [
        t.stored.nbytes
        for s in model.subgraphs
        for t in s.tensors
        if t.stored is not None and t.buffer == 0
    ]
    return Sizes(
        file=model.nbytes,
        buffers=sum(data.size for _, data in stored),
        zero_buffers=sum(data.size for _, data in stored if data.size and not data.any()),
        unused_buffers=sum(data.size for index, data in stored if index not in used),
        metadata=sum(len(data) for data in model.metadata.values()),
        external=sum(external),
        subgraphs=tuple(
            sum({t.buffer: t.stored.nbytes for t in s.tensors if t.stored is not None}.values())
            for s in model.subgraphs
        ),
    )


def _used_buffers(model: Model) -> frozenset[int]:
    table = schema.Model.GetRootAs(model.content)
    used = {t.buffer for subgraph in model.subgraphs for t in subgraph.tensors}
    used |= {table.Metadata(i).Buffer() for i in range(table.MetadataLength())}
    used |= {table.MetadataBuffer(i) for i in range(table.MetadataBufferLength())}
    return frozenset(used)


def _buffers(model: Model) -> Iterator[tuple[int, np.ndarray]]:
    """The bytes of every buffer, uint8 [n], by its index, also of those after the flatbuffer."""
    table = schema.Model.GetRootAs(model.content)
    content = np.frombuffer(model.content, np.uint8)
    for index in range(table.BuffersLength()):
        # A buffer that nothing refers to may be damaged.
        with contextlib.suppress(struct.error, ValueError, TypeError):
            buffer = table.Buffers(index)
            data = buffer.DataAsNumpy()
            if not isinstance(data, np.ndarray):
                data = content[buffer.Offset() : buffer.Offset() + buffer.Size()]
            yield index, data
