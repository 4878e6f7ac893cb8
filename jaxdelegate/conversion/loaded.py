"""The operators of models that `jaxdelegate.load` read, written back unchanged."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.conversion.emitter import Emitter
from jaxdelegate.conversion.graph import Graph, Node, Value
from jaxdelegate.conversion.interpreting import Primitive
from jaxdelegate.errors import ModelError, TensorError
from jaxdelegate.function.functions import Functions
from jaxdelegate.function.saving.saving import changed
from jaxdelegate.function.weights import FileWeights
from jaxdelegate.function.written_calls import WrittenCall
from jaxdelegate.model.operator_tables import called_subgraphs
from jaxdelegate.model.records import Operator, Subgraph, Tensor
from jaxdelegate.op_lowering.options import CustomOptions, Options
from jaxdelegate.quant.params import Quantization

_SAVE = "write it with model.save(path, params) first, and load that file"
Shapes = Mapping[int, tuple[Any, ...]]


def _model(e: Emitter, *operands: Value, call: WrittenCall) -> list[Value]:
    count, ends = len(call.leaves), call.called.ends
    new = {
        name: v
        for name, v, own in zip(call.leaves, operands[:count], _own(call), strict=True)
        if not (v.is_constant and np.array_equal(v.data, own))
    }
    subgraphs = _stored(e, call, {n: v.data for n, v in new.items() if v.is_constant})
    writer = _Writer(e, subgraphs, _computed(e, call, new))
    subgraph = subgraphs[ends.subgraph]
    tensors = {
        i: _entering(e, v, subgraph.tensors[i])
        for i, v in zip(ends.inputs, operands[count:], strict=True)
    }
    shapes = {i: spec.shape for i, spec in enumerate(call.specs) if not spec.is_dynamic}
    known = writer.write(e.graph, subgraph, tensors, shapes)
    results = [known[i] for i in ends.outputs]
    return [_leaving(e, v) for v in results] if call.mode.io == "float" else results


def _own(call: WrittenCall) -> list[np.ndarray]:
    """The values in the file of the leaves that are operands."""
    leaves = call.weights.leaves(call.mode)
    return [np.asarray(leaves[name]) for name in call.leaves]


def _stored(e: Emitter, call: WrittenCall, new: Mapping[str, Any]) -> Sequence[Subgraph]:
    """The subgraphs with new weights and scales, as the file that `model.save` writes has them."""
    model = call.called.model
    if not new:
        return model.subgraphs
    try:
        functions = Functions(call.called.file, model.view)
        return changed(functions, new, model.view).graph.subgraphs
    except (TensorError, ModelError) as error:
        e.refuse("the file cannot hold its new weights", str(error))


def _computed(
    e: Emitter, call: WrittenCall, new: Mapping[str, Value]
) -> dict[tuple[int, int], Value]:
    """The tensors whose values depend on inputs of the function."""
    known = call.weights.parameters if isinstance(call.weights, FileWeights) else {}
    computed = {}
    for name, value in new.items():
        if value.is_constant:
            continue
        p = known.get(name)
        is_float = p is not None and p.quantization is None and p.stored_dtype == value.dtype
        if p is None or not p.tensors or not is_float:
            e.refuse(
                f"{name!r} depends on an input, and the file does not store it as float32",
                "close over its value, or give it by params=",
            )
        computed.update(dict.fromkeys(p.tensors, value))
    return computed


def _entering(e: Emitter, v: Value, tensor: Tensor) -> Value:
    """An input as the model's tensor, with its quantization."""
    q = tensor.quantization
    if q is None or v.quantization is q:
        return v
    if v.dtype != tensor.dtype:
        return _quantized(e, "QUANTIZE", v, tensor.dtype, q)
    if v.is_constant:
        return dataclasses.replace(v, quantization=q)
    if v.quantization is not None and not _are_equal(v.quantization, q):
        e.refuse(
            f"its input {tensor.name!r} has another quantization than the tensor that it gets",
            "convert it to float32, and call model.function(io='float')",
        )
    v.quantization = q
    return v


def _are_equal(a: Quantization, b: Quantization) -> bool:
    same = np.array_equal(a.scale, b.scale)
    return same and bool(np.array_equal(a.zero_point, b.zero_point))


def _leaving(e: Emitter, v: Value) -> Value:
    is_float = v.quantization is None or v.dtype.kind == "f"
    return v if is_float else _quantized(e, "DEQUANTIZE", v, np.dtype(np.float32), None)


def _quantized(e: Emitter, op: str, v: Value, dtype: np.dtype, q: Quantization | None) -> Value:
    (result,) = e.node(op, [v], [(v.shape, dtype)], keeps=True)
    result.quantization = q
    return result


class _Writer:
    """Copies operators into graphs."""

    def __init__(
        self,
        e: Emitter,
        subgraphs: Sequence[Subgraph],
        computed: Mapping[tuple[int, int], Value],
    ) -> None:
        self._e, self._subgraphs, self._computed = e, subgraphs, computed

    def write(
        self, graph: Graph, subgraph: Subgraph, known: dict[int, Value], shapes: Shapes
    ) -> dict[int, Value]:
        """All tensors of a subgraph, whose inputs are known."""
        for t in subgraph.tensors:
            if t.stored is not None:
                known[t.index] = self._constant(subgraph, t)
            elif t.is_variable:
                known[t.index] = _value(t)
        for op in subgraph.operators:
            if all(i in known for i in op.inputs if i >= 0):
                self._operator(graph, subgraph, op, known, shapes)
        return known

    def _constant(self, subgraph: Subgraph, t: Tensor) -> Value:
        return self._computed.get((subgraph.index, t.index)) or _value(t, t.shape, t.data)

    def _operator(
        self,
        graph: Graph,
        subgraph: Subgraph,
        op: Operator,
        known: dict[int, Value],
        shapes: Shapes,
    ) -> None:
        tensors = subgraph.tensors
        outputs = [_value(tensors[i], shapes.get(i)) for i in op.outputs]
        node = Node(
            op.name,
            [None if i < 0 else known[i] for i in op.inputs],
            outputs,
            _options(op),
            graphs=self._called(op),
            version=op.version,
            intermediates=[_value(tensors[i]) for i in op.intermediates],
            keeps=True,
        )
        for i, v in zip(op.outputs, outputs, strict=True):
            v.node = node
            known.setdefault(i, v)
        graph.nodes.append(node)

    def _called(self, op: Operator) -> dict[str, Graph]:
        graphs = {}
        for option, index in called_subgraphs(op.options):
            if isinstance(getattr(op.options, option), tuple):
                self._e.refuse(f"{op.name} calls any number of subgraphs", _SAVE)
            graphs[option] = self._subgraph(self._subgraphs[index])
        return graphs

    def _subgraph(self, subgraph: Subgraph) -> Graph:
        graph = Graph(subgraph.name)
        inputs = {i: _value(subgraph.tensors[i]) for i in subgraph.inputs}
        graph.inputs = list(inputs.values())
        known = self.write(graph, subgraph, inputs, {})
        graph.outputs = [known[i] for i in subgraph.outputs]
        return graph


def _value(t: Tensor, shape: tuple[Any, ...] | None = None, data: Any = None) -> Value:
    """A tensor with a shape, or with that of the file and its free dimensions."""
    if shape is None:
        free = t.shape_signature or t.shape
        shape = tuple(n if s >= 0 else "free" for n, s in zip(t.shape, free, strict=True))
    q = t.quantization
    if q is not None and q.blockwise is not None:  # the scales become tensors of the new file
        blocks = dataclasses.replace(q.blockwise, scales=-1, zero_points=-1)
        q = dataclasses.replace(q, blockwise=blocks)
    return Value(
        shape, t.dtype, t.name, data, quantization=q, sparsity=t.sparsity, is_variable=t.is_variable
    )


def _options(op: Operator) -> Options:
    return CustomOptions(op.custom_options) if op.custom else op.options


PRIMITIVES = (
    Primitive("tflite_model", "its own", _model, "models without states, with the weights loaded"),
)
