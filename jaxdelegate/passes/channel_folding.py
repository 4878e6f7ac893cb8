"""Finds arithmetic that can be folded into the constants of convolutions and matrix products.

Exact except for rounding: constants are computed in float64 and rounded once, to float32.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from jaxdelegate.errors import TensorError
from jaxdelegate.model.merging import Constant, Merged
from jaxdelegate.model.records import Model, Operator, Subgraph, Tensor
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import Padding
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.passes.channel_affine import ARITHMETIC, PRODUCTS, affine, by_channel

Affine = tuple[np.ndarray, np.ndarray]  # scale and offset, float64 [channels]

_CLAMPS = (Act.NONE, Act.RELU, Act.RELU_N1_TO_1, Act.RELU6)  # products can fuse them
# TRANSPOSE_CONV's versions; source: tools/versioning/op_version.cc.
_WITH_BIAS, _WITH_ACTIVATION = 3, 4


def foldable(model: Model) -> list[Merged]:
    """Products, each merged with the MUL, DIV, ADD and SUB by constants directly around it.

    The product and all its tensors are float32; its filter and bias are dense constants. No other
    operator reads the results between merged operators, and they are not outputs. An operator after
    the product is merged only if the product has no fused activation; the product takes over the
    operator's. An operator before the product must not add an offset if the product pads. Constants
    are scalars or have a value for each channel, and are finite.
    """
    return [m for subgraph in model.subgraphs for m in _in_subgraph(model, subgraph)]


def _in_subgraph(model: Model, subgraph: Subgraph) -> Iterator[Merged]:
    graph = _Graph(model, subgraph)
    for operator in subgraph.operators:
        if graph.is_constant_product(operator):
            folding = _Folding(graph, operator)
            if folding.others:
                yield folding.merged()


def _activation(operator: Operator) -> Act:
    return Act(getattr(operator.options, "fused_activation_function", Act.NONE))


class _Graph:
    """The producers and readers of a subgraph's tensors, and the operators merged so far."""

    def __init__(self, model: Model, subgraph: Subgraph) -> None:
        self.index, self._tensors = subgraph.index, subgraph.tensors
        signatures = [s for s in model.signatures if s.subgraph == subgraph.index]
        named = {i for s in signatures for i in (*s.inputs.values(), *s.outputs.values())}
        counts = Counter(i for operator in subgraph.operators for i in operator.inputs)
        once = {i for i, count in counts.items() if count == 1}
        self._private = once - named - {*subgraph.inputs, *subgraph.outputs, -1}
        self._producers = {i: o for o in subgraph.operators for i in o.outputs}
        self._readers = {i: o for o in subgraph.operators for i in o.inputs}
        self._shared = {i for i, count in counts.items() if count > 1} | named | {*subgraph.outputs}
        self._merged: set[int] = set()

    def tensor(self, index: int) -> Tensor:
        return self._tensors[index]

    def values(self, index: int) -> np.ndarray | None:
        """The values of a dense float32 constant; None for other tensors."""
        tensor = None if index < 0 else self._tensors[index]
        is_dense = tensor is not None and tensor.sparsity is None and self._is_float(index)
        return tensor.data if tensor is not None and is_dense else None

    def is_shared(self, index: int) -> bool:
        """Whether several operators, or a signature, use a tensor."""
        return index in self._shared

    def is_constant_product(self, operator: Operator) -> bool:
        """Whether it is a float32 product with a finite constant filter, and bias if it has one."""
        if operator.custom or operator.name not in PRODUCTS or len(operator.outputs) != 1:
            return False
        product = PRODUCTS[operator.name]
        x, filter_, bias_ = (_input(operator, i) for i in (product.x, product.filter, product.bias))
        w, bias = self.values(filter_), self.values(bias_)
        if w is None or w.ndim != product.rank or not w.size or min(x, *operator.outputs) < 0:
            return False
        if bias_ >= 0 and (bias is None or bias.size != w.shape[product.units]):
            return False
        is_finite = all(c is None or np.isfinite(c).all() for c in (w, bias))
        return is_finite and self._is_float(x) and self._is_float(operator.outputs[0])

    def _is_float(self, index: int) -> bool:
        return self._tensors[index].type is TensorType.FLOAT32

    def reader(self, tensor: int) -> Operator | None:
        """The only operator that reads a tensor; None if it has other uses."""
        return self._readers[tensor] if tensor in self._private else None

    def producer(self, tensor: int) -> Operator | None:
        """The operator that computes a tensor with only one use; None if it has other uses."""
        return self._producers.get(tensor) if tensor in self._private else None

    def step(
        self, operator: Operator | None, channels: int, rank: int
    ) -> tuple[int, Affine] | None:
        """The variable input of arithmetic by a constant, and the scale and offset.

        None for operators that cannot be merged. `channels` is the size of the result's last
        dimension.
        """
        if operator is None or operator.custom or operator.name not in ARITHMETIC:
            return None
        is_binary = (len(operator.inputs), len(operator.outputs)) == (2, 1)
        if not is_binary or -1 in operator.inputs or operator.index in self._merged:
            return None
        for position in (1, 0):
            x, constant = operator.inputs[1 - position], self.values(operator.inputs[position])
            if constant is None or constant.ndim > rank or not self._is_elementwise(operator, x):
                continue
            c = by_channel(constant, channels)
            scale_and_offset = (
                None if c is None else affine(operator.name, c, is_first=position == 0)
            )
            return None if scale_and_offset is None else (x, scale_and_offset)
        return None

    def _is_elementwise(self, operator: Operator, x: int) -> bool:
        a, b = self._tensors[x], self._tensors[operator.outputs[0]]
        return a.stored is None and a.shape == b.shape and self._is_float(x) and b.type is a.type

    def merge(self, operator: Operator) -> None:
        self._merged.add(operator.index)


def _input(operator: Operator, position: int) -> int:
    return operator.inputs[position] if position < len(operator.inputs) else -1


def _along(values: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """A vector as an array of this rank, along one axis."""
    return values.reshape([-1 if i == axis else 1 for i in range(rank)])


class _Folding:
    """One product, and the operators around it that are merged into it."""

    def __init__(self, graph: _Graph, operator: Operator) -> None:
        self._graph, self._operator = graph, operator
        self._product = product = PRODUCTS[operator.name]
        w, bias = (_input(operator, i) for i in (product.filter, product.bias))
        values = graph.values(w)
        assert values is not None
        self._w, self._bias = values, None if bias < 0 else graph.values(bias)
        self._x, self._y = operator.inputs[product.x], operator.outputs[0]
        self._activation = _activation(operator)
        self._units = values.shape[product.units]
        self._after: Affine = np.ones(self._units), np.zeros(self._units)
        self._reads = self._channels_read()
        channels = 0 if self._reads is None else int(self._reads.max()) + 1
        self._before: Affine = np.ones(channels), np.zeros(channels)
        self.others: list[Operator] = []
        with np.errstate(all="ignore"):  # `_check_finite` checks the results
            while self._merge_next() or self._merge_previous():
                pass

    # ---- which operators

    def _merge_next(self) -> bool:
        """Merge the operator after the product, a (a' x + b') + b; return whether it could be."""
        reader, rank = self._graph.reader(self._y), len(self._graph.tensor(self._y).shape)
        if getattr(self._operator.options, "keep_num_dims", None) is False:
            rank = 2  # FULLY_CONNECTED computes a matrix, whatever the file declares
        step = self._graph.step(reader, self._units, rank)
        if self._activation is not Act.NONE or reader is None or step is None:
            return False
        if _activation(reader) not in _CLAMPS:
            return False
        (inner, bias), (scale, offset) = self._after, step[1]
        self._after = scale * inner, scale * bias + offset
        self._y, self._activation = reader.outputs[0], _activation(reader)
        self._merge(reader)
        return True

    def _merge_previous(self) -> bool:
        """Merge the operator before the product, a' (a x + b) + b'; return whether it could be."""
        producer = None if self._reads is None else self._graph.producer(self._x)
        rank = len(self._graph.tensor(self._x).shape)
        step = self._graph.step(producer, self._before[0].size, rank)
        if producer is None or step is None or _activation(producer) is not Act.NONE:
            return False
        x, (scale, offset) = step
        # A variable may have another value by the time the product reads it.
        if self._graph.tensor(x).is_variable or (offset.any() and self._pads()):
            return False
        (outer, bias) = self._before
        self._x, self._before = x, (outer * scale, outer * offset + bias)
        self._merge(producer)
        return True

    def _merge(self, operator: Operator) -> None:
        self._graph.merge(operator)
        self.others.append(operator)

    def _pads(self) -> bool:
        """Whether the product pads its input with zeros, or sums fewer terms at the edges."""
        name, product = self._operator.name, self._product
        channels = {product.units, product.depth}
        window = [n for axis, n in enumerate(self._w.shape) if axis not in channels]
        if name == "FULLY_CONNECTED":
            return False
        is_valid = getattr(self._operator.options, "padding", None) is Padding.VALID
        return name == "TRANSPOSE_CONV" or not (is_valid or set(window) <= {1})

    def _channels_read(self) -> np.ndarray | None:
        """The input channel that each weight multiplies, broadcastable to the filter.

        None if it is unknown.
        """
        w, product = self._w, self._product
        depth = 1 if product.depth is None else w.shape[product.depth]
        shape = self._graph.tensor(self._x).shape
        channels = shape[-1] if shape and self._operator.name != "FULLY_CONNECTED" else depth
        groups = channels // depth
        if not groups or channels % depth or self._units % groups:
            return None
        first = np.arange(self._units) // (self._units // groups) * depth
        read = _along(first, product.units, w.ndim)
        if product.depth is not None:
            read = read + _along(np.arange(depth), product.depth, w.ndim)
        return read

    # ---- new constants

    def merged(self) -> Merged:
        product, operator = self._product, self._operator
        w, bias = self._constants()
        inputs: list[int | Constant] = [*operator.inputs]
        inputs += [-1] * (product.bias + 1 - len(inputs))
        name = self._graph.tensor(operator.inputs[product.filter]).name
        inputs[product.x] = self._x
        if not np.array_equal(w, self._w):
            inputs[product.filter] = self._constant(product.filter, name, w)
        if self._bias is not None or bias.any():
            inputs[product.bias] = self._constant(product.bias, f"{name}_bias", bias)
        elif len(operator.inputs) <= product.bias:
            del inputs[product.bias :]
        return Merged(
            subgraph=self._graph.index,
            operator=operator,
            others=tuple(self.others),
            inputs=tuple(inputs),
            output=self._y,
            activation=self._activation,
            version=self._version(has_bias=len(inputs) > product.bias),
        )

    def _constants(self) -> tuple[np.ndarray, np.ndarray]:
        """The new filter and bias, float32."""
        units = self._product.units
        w = self._w.astype(np.float64)
        bias = np.zeros(self._units) if self._bias is None else self._bias.reshape(-1)
        (scale, offset), (x_scale, x_offset) = self._after, self._before
        with np.errstate(all="ignore"):
            if self._reads is not None:
                others = tuple(axis for axis in range(w.ndim) if axis != units)
                bias = bias + (w * x_offset[self._reads]).sum(others)
                w = w * x_scale[self._reads]
            new_w = (w * _along(scale, units, w.ndim)).astype(np.float32)
            new_bias = (bias * scale + offset).astype(np.float32)
        self._check_finite(new_w, new_bias)
        return new_w, new_bias

    def _check_finite(self, w: np.ndarray, bias: np.ndarray) -> None:
        wrong = sum(int((~np.isfinite(array)).sum()) for array in (w, bias))
        if wrong:
            indices = {i for o in self.others for i in o.inputs}
            names = [
                self._graph.tensor(i).name for i in indices if self._graph.values(i) is not None
            ]
            filter_name = self._graph.tensor(self._operator.inputs[self._product.filter]).name
            raise TensorError(
                f"folding {', '.join(o.scope for o in self.others)} into {self._operator.scope}: "
                f"{wrong} values of its filter {filter_name!r} and its bias would not be finite in "
                f"float32; look for zeros and large values in {', '.join(map(repr, sorted(names)))}"
            )

    def _constant(self, position: int, name: str, values: np.ndarray) -> Constant:
        """A constant that replaces the old one, unless that has other uses."""
        old = _input(self._operator, position)
        if old < 0:
            return Constant(name, values, None)
        if self._graph.is_shared(old):
            return Constant(f"{self._graph.tensor(old).name}_folded", values, None)
        return Constant(self._graph.tensor(old).name, values, old)

    def _version(self, *, has_bias: bool) -> int:
        needed = 1
        if self._operator.name == "TRANSPOSE_CONV":
            needed = _WITH_BIAS if has_bias else 1
            needed = needed if self._activation is Act.NONE else _WITH_ACTIVATION
        return max(needed, self._operator.version)
