"""The state of an interpreter: as text, as saved outputs, as TFLite's runtime info."""

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate import protos
from jaxdelegate.benchmark.session import Session
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.runtime.execution_plan import OperatorStep, PartitionStep
from jaxdelegate.text import plural, printable, wrapped


def runtime_info(session: Session, model: str) -> bytes:
    """The bytes of a tflite.profiling.ModelRuntimeDetails (profiling/proto): graph and partitions.

    Operators in a partition have `delegated_to_node_id`; partitions are nodes after all operators,
    as in TFLite.
    """
    messages = importlib.import_module("ai_edge_litert.model_runtime_info_pb2")
    info = messages.ModelRuntimeDetails(model_name=model, subgraphs=[_graph(session)])
    content: bytes = info.SerializeToString()
    return content


def _graph(session: Session) -> Any:
    messages = importlib.import_module("ai_edge_litert.model_runtime_info_pb2")
    graph = messages.RuntimeSubgraph(
        subgraph_id=session.subgraph, subgraph_type=messages.RuntimeSubgraph.TFLITE_SUBGRAPH
    )
    for detail in _tensors(session):
        graph.edges.add(
            id=int(detail["index"]),
            name=detail["name"],
            data_type=_data_type(messages.Edge, detail["dtype"]),
            shape=[int(n) for n in detail["shape"]],
            size=_size(detail),
            allocation_type=_allocation_type(session, int(detail["index"])),
        )
    interpreter = session.interpreter
    if isinstance(interpreter, Interpreter):
        _add_plan(graph, interpreter._runner(session.subgraph))
    else:
        for op in interpreter._get_ops_details():
            _add_node(graph, op["index"], op["op_name"], op["inputs"], op["outputs"])
    return graph


def _tensors(session: Session) -> Sequence[Mapping[str, Any]]:
    try:
        return list(session.interpreter.get_tensor_details(session.subgraph))
    except ValueError:  # the stock one does not describe tensors inside delegate nodes
        return [*session.inputs, *session.outputs]


def _data_type(edge: Any, dtype: Any) -> int:
    name = np.dtype(dtype).name.upper().replace("OBJECT", "STRING").replace("BYTES", "STRING")
    return int(edge.DataType.Value(name)) if name in edge.DataType.keys() else 0  # noqa: SIM118


def _size(detail: Mapping[str, Any]) -> int:
    shape = [int(n) for n in detail["shape"]]
    return math.prod(shape) * int(np.dtype(detail["dtype"]).itemsize)


def _allocation_type(session: Session, index: int) -> str:
    """TFLite's allocation type; jaxdelegate's tensors are arrays, not parts of an arena."""
    if not isinstance(session.interpreter, Interpreter):
        return ""
    tensor = session.interpreter._runner(session.subgraph).subgraph.tensors[index]
    if tensor.stored is not None:
        return "kTfLiteMmapRo"
    return "kTfLiteArenaRwPersistent" if tensor.is_variable else "kTfLiteDynamic"


def _add_node(
    graph: Any, index: int, name: str, inputs: Sequence[int], outputs: Sequence[int]
) -> Any:
    ends = [[int(i) for i in indices] for indices in (inputs, outputs)]
    return graph.nodes.add(id=int(index), name=name, type=name, inputs=ends[0], outputs=ends[1])


def _add_plan(graph: Any, host: Any) -> None:
    nodes: dict[int, Any] = {}
    for op in host.subgraph.operators:
        nodes[op.index] = _add_node(graph, op.index, op.name, op.inputs, op.outputs)
        nodes[op.index].intermediates.extend(op.intermediates)
    for step in host._steps:
        if isinstance(step, PartitionStep):
            number, taken = len(graph.nodes), [n.index for n in step.params.nodes]
            name = step.delegate.name
            node = _add_node(graph, number, name, step.params.inputs, step.params.outputs)
            node.delegate_node_details.delegate_name = name
            node.delegate_node_details.tflite_node_ids_replaced.extend(taken)
            for index in taken:
                nodes[index].delegated_to_node_id = number
            graph.execution_plan.append(number)
        elif isinstance(step, OperatorStep):
            graph.execution_plan.append(step.node.index)


def state_text(session: Session, widths: Sequence[int] = (25, 15, 18)) -> str:
    """Tensors and nodes of an allocated session, in the layout of TFLite's debug tools."""
    graph = _graph(session)
    nodes = _node_lines(graph)
    lines = [
        f"-----------Subgraph-{session.subgraph} has {len(graph.edges)} tensors and "
        f"{len(nodes)} nodes------",
        _named("Inputs", session.inputs),
        _named("Outputs", session.outputs),
        "",
    ]
    header = ("ID", "Name", "Type", "AllocType", "Size (Bytes/MB)", "Shape")
    rows = (
        (
            str(edge.id),
            printable(edge.name),
            f"kTfLite{edge.DataType.Name(edge.data_type).capitalize()}",
            edge.allocation_type,
            f"{edge.size} / {edge.size / 2**20:.2f}",
            str(list(edge.shape)),
        )
        for edge in graph.edges
    )
    lines += [f"Tensor {_columns(row, (3, *widths, 18, 0))}" for row in (header, *rows)]
    return "\n".join([*lines, "", *nodes])


def _named(title: str, details: Sequence[Mapping[str, Any]]) -> str:
    indices = ",".join(str(d["index"]) for d in details)
    size = sum(map(_size, details))
    return f"{len(details)} {title}: [{indices}] -> {size}B ({size / 2**20:.2f}MB)"


def _columns(values: tuple[str, ...], widths: tuple[int, ...]) -> str:
    cut = (value[:width] if width else value for value, width in zip(values, widths, strict=True))
    return " ".join(f"{v:<{w}}" for v, w in zip(cut, widths, strict=True)).rstrip()


def _node_lines(graph: Any) -> list[str]:
    """The nodes in the order of the plan; the stock interpreter's plan is not known."""
    if not graph.execution_plan:
        return [f"Node {node.id:3d} Operator {printable(node.name)}" for node in graph.nodes]
    by_id = {node.id: node for node in graph.nodes}
    return [
        wrapped(f"Node {number:3d} {_node_text(by_id[index])}")
        for number, index in enumerate(graph.execution_plan)
    ]


def _node_text(node: Any) -> str:
    if node.HasField("delegate_node_details"):
        indices = node.delegate_node_details.tflite_node_ids_replaced
        return (
            f"Delegate {node.name} [{plural(len(indices), 'node')}: {', '.join(map(str, indices))}]"
        )
    return (
        f"Operator {printable(node.name)} (node {node.id}) inputs {list(node.inputs)} "
        f"outputs {list(node.outputs)}"
    )


def outputs_bytes(session: Session) -> bytes:
    arrays = [session.output(int(d["index"])) for d in session.outputs]
    return b"".join(
        b"".join(map(bytes, a.ravel())) if a.dtype.hasobject else a.tobytes() for a in arrays
    )


def outputs_example(session: Session) -> bytes:
    example = protos.message("tensorflow.Example")
    for detail in session.outputs:
        values = session.output(int(detail["index"])).ravel()
        entry = example.features.feature.add(key=detail["name"])
        if values.dtype.kind in "iub":
            entry.value.int64_list.value.extend(map(int, values))
        elif values.dtype.kind in "OSU":
            entry.value.bytes_list.value.extend(map(bytes, values))
        else:
            entry.value.float_list.value.extend(map(float, values))
    content: bytes = example.SerializeToString()
    return content
