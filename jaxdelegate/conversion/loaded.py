"""The operators of models that `jaxdelegate.load` read, written back unchanged."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.conversion.emitter import Emitter
from jaxdelegate.conversion.graph import Graph, Node, Value
from jaxdelegate.conversion.table import Primitive
from jaxdelegate.function.written_calls import WrittenCall
from jaxdelegate.model.operator_tables import called_subgraphs
from jaxdelegate.model.records import Operator, Subgraph, Tensor
from jaxdelegate.op_lowering.options import CustomOptions, Options
from jaxdelegate.quant.params import Quantization

_SAVE = "write it with model.save(path, params) first, and load that file"
Shapes = Mapping[int, tuple[Any, ...]]


def _model(e: Emitter, *operands: Value, call: WrittenCall) -> list[Value]:
    count = len(call.leaves)
    changed = _changed_tensors(e, call, operands[:count])
    writer = _Writer(e, call, changed)
    subgraph = call.model.subgraphs[call.ends.subgraph]
    tensors = {
        i: _entering(e, v, subgraph.tensors[i])
        for i, v in zip(call.ends.inputs, operands[count:], strict=True)
    }
    shapes = {i: spec.shape for i, spec in enumerate(call.specs) if not spec.is_dynamic}
    known = writer.write(e.graph, subgraph, tensors, shapes)
    results = [known[i] for i in call.ends.outputs]
    return [_leaving(e, v) for v in results] if call.io == "float" else results


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


def _changed_tensors(
    e: Emitter, call: WrittenCall, leaves: Sequence[Value]
) -> dict[tuple[int, int], Value]:
    """The new values of tensors whose leaves are not the file's."""
    changed = {}
    for name, value in zip(call.leaves, leaves, strict=True):
        parameter = call.weights.parameters[name]
        if value.is_constant and np.array_equal(value.data, np.asarray(call.weights.params[name])):
            continue
        if parameter.quantization is not None or parameter.stored_dtype != value.dtype:
            e.refuse(f"the file stores its weight {name!r} in another type than float32", _SAVE)
        if value.shape != parameter.shape:
            e.refuse(
                f"its weight {name!r} has the shape {list(value.shape)}, the file's has "
                f"{list(parameter.shape)}",
                "change its values only",
            )
        if not parameter.tensors:
            e.refuse(f"its weight {name!r} follows from others", _SAVE)
        changed.update(dict.fromkeys(parameter.tensors, dataclasses.replace(value, name=name)))
    return changed


class _Writer:
    """Copies operators into graphs."""

    def __init__(
        self, e: Emitter, call: WrittenCall, changed: Mapping[tuple[int, int], Value]
    ) -> None:
        self._e, self._subgraphs, self._changed = e, call.model.subgraphs, changed

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
        new = self._changed.get((subgraph.index, t.index))
        if new is not None:
            return dataclasses.replace(new, name=t.name)
        return _value(t, t.shape, t.data)

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
