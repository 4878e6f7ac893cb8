"""The state of an interpreter: as text, as saved outputs, as TFLite's runtime info."""

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate import protos
from jaxdelegate.benchmark.session import Session
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.runtime.execution_plan import OperatorStep, PartitionStep, Step
from jaxdelegate.text import plural, printable, wrapped


def state_text(
    session: Session, *, name_length: int = 25, type_length: int = 15, alloc_length: int = 18
) -> str:
    """Tensors and nodes of an allocated session, in the layout of TFLite's debug tools."""
    interpreter, index = session.interpreter, session.subgraph
    details = _tensors(session)
    nodes = _nodes(session)
    lines = [f"-----------Subgraph-{index} has {len(details)} tensors and {len(nodes)} nodes------"]
    lines += [_named("Inputs", session.inputs), _named("Outputs", session.outputs), ""]
    widths = (3, name_length, type_length, alloc_length, 18, 0)
    header = ("ID", "Name", "Type", "AllocType", "Size (Bytes/MB)", "Shape")
    lines.append("Tensor " + _columns(header, widths))
    for detail in details:
        allocation = _allocation_type(interpreter, index, detail)
        size = _size(detail)
        kind = f"kTfLite{np.dtype(detail['dtype']).name.capitalize()}"
        shown = f"{size} / {size / 2**20:.2f}"
        shape = str([int(n) for n in detail["shape"]])
        row = (str(detail["index"]), printable(detail["name"]), kind, allocation, shown, shape)
        lines.append("Tensor " + _columns(row, widths))
    return "\n".join([*lines, "", *nodes])


def _columns(values: tuple[str, ...], widths: tuple[int, ...]) -> str:
    cut = (value[:width] if width else value for value, width in zip(values, widths, strict=True))
    return " ".join(f"{v:<{w}}" for v, w in zip(cut, widths, strict=True)).rstrip()


def _named(title: str, details: Sequence[Mapping[str, Any]]) -> str:
    indices = ",".join(str(d["index"]) for d in details)
    size = sum(map(_size, details))
    return f"{len(details)} {title}: [{indices}] -> {size}B ({size / 2**20:.2f}MB)"


def _size(detail: Mapping[str, Any]) -> int:
    shape = [int(n) for n in detail["shape"]]
    return math.prod(shape) * int(np.dtype(detail["dtype"]).itemsize)


def _tensors(session: Session) -> Sequence[Mapping[str, Any]]:
    interpreter = session.interpreter
    if isinstance(interpreter, Interpreter):
        return interpreter.get_tensor_details(session.subgraph)
    try:
        return list(interpreter.get_tensor_details(session.subgraph))
    except ValueError:  # it does not describe tensors inside delegate nodes
        return [*session.inputs, *session.outputs]


def _allocation_type(interpreter: Any, subgraph: int, detail: Mapping[str, Any]) -> str:
    """TFLite's allocation type; jaxdelegate's tensors are arrays, not parts of an arena."""
    if not isinstance(interpreter, Interpreter):
        return ""
    host = interpreter._runner(subgraph)
    tensor = host.subgraph.tensors[detail["index"]]
    if tensor.stored is not None:
        return "kTfLiteMmapRo"
    if tensor.is_variable:
        return "kTfLiteArenaRwPersistent"
    return "kTfLiteDynamic"


def _nodes(session: Session) -> list[str]:
    interpreter = session.interpreter
    if not isinstance(interpreter, Interpreter):
        return [
            f"Node {op['index']:3d} Operator {printable(op['op_name'])}"
            for op in interpreter._get_ops_details()
        ]
    return [_node(number, step) for number, step in enumerate(steps_of(session))]


def steps_of(session: Session) -> tuple[Step, ...]:
    """The plan of jaxdelegate's interpreter; empty for the stock one."""
    if not isinstance(session.interpreter, Interpreter):
        return ()
    return tuple(session.interpreter._runner(session.subgraph)._steps)


def _node(number: int, step: Step) -> str:
    if isinstance(step, PartitionStep):
        indices = [node.index for node in step.params.nodes]
        return wrapped(
            f"Node {number:3d} Delegate {step.delegate.name} [{plural(len(indices), 'node')}: "
            f"{', '.join(map(str, indices))}]"
        )
    if isinstance(step, OperatorStep):
        operator = step.node.operator
        return wrapped(
            f"Node {number:3d} Operator {printable(step.node.name)} (node {operator.index}) "
            f"inputs {list(operator.inputs)} outputs {list(operator.outputs)}"
        )
    return f"Node {number:3d}"


def outputs_bytes(session: Session) -> bytes:
    """The outputs' elements, concatenated, as `--output_filepath` stores them."""
    arrays = [session.output(int(d["index"])) for d in session.outputs]
    return b"".join(
        b"".join(map(bytes, a.ravel())) if a.dtype.hasobject else a.tobytes() for a in arrays
    )


def outputs_example(session: Session) -> bytes:
    """The outputs as a serialized tf.train.Example: floats, integers and strings by tensor name."""
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


def runtime_info(session: Session, model: str) -> bytes:
    """The bytes of a tflite.profiling.ModelRuntimeDetails (profiling/proto): graph and partitions.

    Operators in a partition have `delegated_to_node_id`; partitions are nodes after all operators,
    as in TFLite.
    """
    messages = importlib.import_module("ai_edge_litert.model_runtime_info_pb2")
    info = messages.ModelRuntimeDetails(model_name=model)
    graph = info.subgraphs.add(
        subgraph_id=session.subgraph, subgraph_type=messages.RuntimeSubgraph.TFLITE_SUBGRAPH
    )
    for detail in _tensors(session):
        graph.edges.add(
            id=int(detail["index"]),
            name=detail["name"],
            data_type=_data_type(messages.Edge, detail["dtype"]),
            shape=[int(n) for n in detail["shape"]],
            size=_size(detail),
            allocation_type=_allocation_type(session.interpreter, session.subgraph, detail),
        )
    if isinstance(session.interpreter, Interpreter):
        _add_plan(graph, session)
    else:
        _add_stock_nodes(graph, session.interpreter)
    content: bytes = info.SerializeToString()
    return content


def _data_type(edge: Any, dtype: Any) -> int:
    name = np.dtype(dtype).name.upper().replace("OBJECT", "STRING").replace("BYTES", "STRING")
    return int(edge.DataType.Value(name)) if name in edge.DataType.keys() else 0  # noqa: SIM118


def _add_plan(graph: Any, session: Session) -> None:
    host = session.interpreter._runner(session.subgraph)
    nodes: dict[int, Any] = {}
    for operator in host.subgraph.operators:
        nodes[operator.index] = graph.nodes.add(
            id=operator.index,
            name=operator.name,
            type=operator.name,
            inputs=operator.inputs,
            outputs=operator.outputs,
            intermediates=operator.intermediates,
        )
    number = len(host.subgraph.operators)
    for step in steps_of(session):
        if isinstance(step, PartitionStep):
            node = graph.nodes.add(id=number, name=step.delegate.name, type=step.delegate.name)
            node.inputs.extend(step.params.inputs)
            node.outputs.extend(step.params.outputs)
            taken = [n.index for n in step.params.nodes]
            node.delegate_node_details.delegate_name = step.delegate.name
            node.delegate_node_details.tflite_node_ids_replaced.extend(taken)
            for index in taken:
                nodes[index].delegated_to_node_id = number
            graph.execution_plan.append(number)
            number += 1
        elif isinstance(step, OperatorStep):
            graph.execution_plan.append(step.node.index)


def _add_stock_nodes(graph: Any, interpreter: Any) -> None:
    for op in interpreter._get_ops_details():
        graph.nodes.add(
            id=int(op["index"]),
            name=op["op_name"],
            type=op["op_name"],
            inputs=[int(i) for i in op["inputs"]],
            outputs=[int(i) for i in op["outputs"]],
        )
