"""Arithmetic operations of operators; jaxdelegate/measuring/costs.py states the conventions."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from jaxdelegate.op_lowering.records.enums import LSTMKernelType
from jaxdelegate.op_lowering.records.protocols import Pool2D
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.spec import Specs, TensorSpec


@dataclasses.dataclass(frozen=True)
class Work:
    """Arithmetic operations, None if not known; see `costs.Cost`."""

    flops: int | None
    transcendentals: int = 0
    note: str = ""


Called = Callable[[int], Work | None]
CostRule = Callable[[Any, Specs, Specs, Called], Work]

_CELL_OPERATIONS = 9  # an LSTM has five activations, three products, one sum
_CELL_ACTIVATIONS = 5
_SOFTMAX_OPERATIONS = 5  # maximum, difference, exponential, sum, quotient
_NORMALIZATION_OPERATIONS = 6
_BILINEAR_OPERATIONS = 7  # four products and three sums


def n(spec: TensorSpec) -> int:
    return math.prod(spec.shape)


# ---- what is read of options


class _Matrices(Protocol):
    @property
    def adj_x(self) -> bool: ...


class _TensorFlowPool(Protocol):
    @property
    def ksize(self) -> tuple[int, ...]: ...


class _Einsum(Protocol):
    def labels(self, ranks: Sequence[int]) -> tuple[list[str], str]: ...


# ---- one operation per element, or none


def elementwise(_o: Options, _inputs: Specs, outputs: Specs, _called: Called) -> Work:
    return Work(n(outputs[0]))


def transcendental(_o: Options, _inputs: Specs, outputs: Specs, _called: Called) -> Work:
    return Work(n(outputs[0]), n(outputs[0]))


def movement(*_: object) -> Work:
    return Work(0)


def add_n(_o: Options, inputs: Specs, outputs: Specs, _called: Called) -> Work:
    return Work(max(len(inputs) - 1, 0) * n(outputs[0]))


def per_input(_o: Options, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    return Work(n(inputs[0]))


def host_work(*_: object) -> Work:
    return Work(0, note="work on strings or tables is not counted")


# ---- convolutions and products


def _convolution(
    window: slice, _o: Options, inputs: Specs, outputs: Specs, _called: Called
) -> Work:
    """Each value of the result sums products over the axes `window` of the filter."""
    return Work(2 * n(outputs[0]) * math.prod(inputs[1].shape[window]))


def _transpose_convolution(
    x: int, window: slice, _o: Options, inputs: Specs, _outputs: Specs, _called: Called
) -> Work:
    """Each value of input `x` is multiplied along the axes `window` of the filter."""
    return Work(2 * n(inputs[x]) * math.prod(inputs[1].shape[window]))


def fully_connected(_o: Options, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    """Weights [output channels, depth]; x in rows of `depth`."""
    depth = inputs[1].shape[-1]
    return Work(2 * (n(inputs[0]) // depth) * n(inputs[1]) if depth else 0)


def batch_matmul(o: _Matrices, inputs: Specs, outputs: Specs, _called: Called) -> Work:
    return Work(2 * n(outputs[0]) * inputs[0].shape[-2 if o.adj_x else -1])


class _Transposed(Protocol):
    @property
    def transpose_a(self) -> bool: ...


def matmul(o: _Transposed, inputs: Specs, outputs: Specs, _called: Called) -> Work:
    return Work(2 * n(outputs[0]) * inputs[0].shape[0 if o.transpose_a else 1])


def einsum(o: _Einsum, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    """A product and a sum for each combination of the labels' values."""
    terms, _ = o.labels([len(spec.shape) for spec in inputs])
    sizes: dict[str, int] = {}
    for term, spec in zip(terms, inputs, strict=True):
        for label, size in zip(term, spec.shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    return Work(2 * math.prod(sizes.values()))


def input_gradient(_o: Options, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    """Inputs: sizes, filter [H, W, I, O], gradient [N, h, w, O], each value times H * W * I."""
    return Work(2 * n(inputs[2]) * math.prod(inputs[1].shape[:-1]))


def filter_gradient(_o: Options, inputs: Specs, outputs: Specs, _called: Called) -> Work:
    """Inputs: x, sizes, gradient [N, h, w, O]; the result is a filter [H, W, I, O]."""
    return Work(2 * n(inputs[2]) * math.prod(outputs[0].shape[:-1]))


def depthwise_gradient(_o: Options, inputs: Specs, outputs: Specs, _called: Called) -> Work:
    """Inputs as above; the filter is [H, W, C, M]. Each value of the gradient times H * W."""
    is_filter = len(inputs[1].shape) == 4  # otherwise it holds the filter's sizes
    window = (inputs[1] if is_filter else outputs[0]).shape[:2]
    return Work(2 * n(inputs[2]) * math.prod(window))


def linear(_o: Options, inputs: Specs, outputs: Specs, _called: Called) -> Work:
    """Elimination in each matrix [n, n], and its use for each value of the result."""
    size = inputs[0].shape[-1]
    return Work(2 * n(inputs[0]) * size // 3 + 2 * n(outputs[0]) * size)


# ---- windows, reductions, normalizations


def _pool(per_tap: int, o: Pool2D, _inputs: Specs, outputs: Specs, _called: Called) -> Work:
    return Work(per_tap * n(outputs[0]) * o.filter_height * o.filter_width)


def tensorflow_pool(o: _TensorFlowPool, _inputs: Specs, outputs: Specs, _called: Called) -> Work:
    return Work(n(outputs[0]) * math.prod(o.ksize))


def tensorflow_pool_gradient(
    o: _TensorFlowPool, inputs: Specs, _outputs: Specs, _called: Called
) -> Work:
    """The last input is the gradient of the pool's result."""
    return Work(n(inputs[-1]) * math.prod(o.ksize))


def softmax(_o: Options, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    return Work(_SOFTMAX_OPERATIONS * n(inputs[0]), n(inputs[0]))


def l2_normalization(_o: Options, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    """Squares, sums and quotients; a root for each row."""
    rows = n(inputs[0]) // max(inputs[0].shape[-1], 1)
    return Work(3 * n(inputs[0]), rows)


def normalization(_o: Options, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    """Mean, variance, and a product and a sum for each value."""
    return Work(_NORMALIZATION_OPERATIONS * n(inputs[0]), note="estimate")


def top_k(_o: Options, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    return Work(n(inputs[0]), note="estimate: one comparison per element")


def bilinear(_o: Options, _inputs: Specs, outputs: Specs, _called: Called) -> Work:
    return Work(_BILINEAR_OPERATIONS * n(outputs[0]))


# ---- signals, detection, lookup


def fourier(_o: Options, inputs: Specs, outputs: Specs, _called: Called) -> Work:
    real = max(inputs[0], outputs[0], key=lambda spec: 0 if spec.dtype.kind == "c" else n(spec))
    points = math.prod(real.shape[-2:])
    return Work(
        round(2.5 * n(real) * math.log2(max(points, 1))), note="estimate: 2.5 n log2 n, real input"
    )


def detection(_o: Options, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    boxes = n(inputs[0]) // max(inputs[0].shape[-1], 1)
    note = "boxes and scores; how often boxes are compared depends on data"
    return Work(12 * boxes + n(inputs[1]), 2 * boxes, note)


def suppression(_o: Options, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    return Work(n(inputs[1]), note="one per score; how often boxes are compared depends on data")


def embedding_lookup_sparse(_o: Options, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    """Inputs: ids [k], indices, dense shape, weights [k], table [rows, ...]."""
    return Work(2 * n(inputs[0]) * math.prod(inputs[4].shape[1:]))


def random(_o: Options, _inputs: Specs, outputs: Specs, _called: Called) -> Work:
    return Work(n(outputs[0]), note="generator's rounds are not counted")


# ---- recurrent


def _recurrent(
    cell: int,
    activations: int,
    is_sequence: bool,
    o: Options,
    inputs: Specs,
    outputs: Specs,
    _called: Called,
) -> Work:
    """Every weight matrix once per row and time step, and the cells' arithmetic."""
    x = inputs[0]
    rows = x.shape[0] * (x.shape[1] if is_sequence else 1)  # batch and time, in either order
    weights = _weights(o, inputs)
    products = sum(n(w) for w in weights if len(w.shape) == 2)
    vectors = sum(n(w) for w in weights if len(w.shape) == 1)
    units = sum(spec.shape[-1] for spec in outputs[: 1 if getattr(o, "merge_outputs", True) else 2])
    note = "per run: all time steps" if is_sequence else ""
    return Work(rows * (2 * products + vectors + cell * units), rows * activations * units, note)


def _weights(o: Options, inputs: Specs) -> list[TensorSpec]:
    """Weights and biases: what is neither data nor a state."""
    if getattr(o, "kernel_type", None) is LSTMKernelType.BASIC:  # data, output, weights, bias, cell
        return list(inputs[2:4])
    return [spec for spec in inputs[1:] if spec is not None and not spec.is_variable]


def svdf(_o: Options, inputs: Specs, _outputs: Specs, _called: Called) -> Work:
    """Weights over features [filters, depth] and over time [filters, memory]."""
    batch = inputs[0].shape[0]
    return Work(2 * batch * (n(inputs[1]) + n(inputs[2])))


# ---- operators that call subgraphs


def times(count: int, body: Work | None) -> Work:
    if body is None or body.flops is None:
        return Work(None, note="the subgraph's cost is not known")
    return Work(count * body.flops, count * body.transcendentals)


def total(works: Iterable[Work | None], note: str) -> Work:
    known = [w for w in works if w is not None and w.flops is not None]
    flops = sum(w.flops or 0 for w in known)
    return Work(flops, sum(w.transcendentals for w in known), note) if known else Work(None)


def _calling(field: str, o: Options, _inputs: Specs, _outputs: Specs, called: Called) -> Work:
    return called(getattr(o, field)) or Work(None, note="the subgraph's cost is not known")


def _branches(fields: tuple[str, ...], o: Options, _i: Specs, _o: Specs, called: Called) -> Work:
    indices = [getattr(o, field) for field in fields]
    if fields == ("branch_subgraph_indices",):
        indices = list(indices[0])
    works = [w for w in map(called, indices) if w is not None and w.flops is not None]
    if not works:
        return Work(None, note="the subgraphs' cost is not known")
    dearest = max(works, key=lambda work: work.flops or 0)
    return dataclasses.replace(dearest, note="the dearest branch")


def once(*_: object) -> Work:
    return Work(0, note="runs at the first invoke only")


def unknown(*_: object) -> Work:
    return Work(None, note="no cost is known for this operator")


convolution = functools.partial(_convolution, slice(1, None))  # filter [O, H, W, I], I is a group's
depthwise = functools.partial(_convolution, slice(1, 3))  # filter [1, H, W, C*M]
convolution_3d = functools.partial(_convolution, slice(4))  # filter [D, H, W, I, O]
# Inputs: output shape, filter [O, H, W, I] or [D, H, W, O, I], x; MediaPipe's: x, filter, bias.
transpose_convolution = functools.partial(_transpose_convolution, 2, slice(3))
transpose_convolution_3d = functools.partial(_transpose_convolution, 2, slice(4))
transpose_convolution_bias = functools.partial(_transpose_convolution, 0, slice(3))
pool, l2_pool = functools.partial(_pool, 1), functools.partial(_pool, 2)
rnn_step, rnn = (
    functools.partial(_recurrent, 1, 1, False),
    functools.partial(_recurrent, 1, 1, True),
)
lstm_step = functools.partial(_recurrent, _CELL_OPERATIONS, _CELL_ACTIVATIONS, False)
lstm = functools.partial(_recurrent, _CELL_OPERATIONS, _CELL_ACTIVATIONS, True)
call = functools.partial(_calling, "subgraph")
composite = functools.partial(_calling, "decomposition_subgraph_index")
if_ = functools.partial(_branches, ("then_subgraph_index", "else_subgraph_index"))
case = functools.partial(_branches, ("branch_subgraph_indices",))
