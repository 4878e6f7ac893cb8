"""Arithmetic operations of operators; jaxdelegate/costs.py states the conventions."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from jaxdelegate.op_lowering.records.record import Options, Pool2D
from jaxdelegate.op_lowering.spec import Specs, TensorSpec


@dataclasses.dataclass(frozen=True)
class Work:
    """Arithmetic operations, None if not known; see `costs.Cost`."""

    flops: int | None
    transcendentals: int = 0
    note: str = ""


OptionsT_co = TypeVar("OptionsT_co", covariant=True)  # Options, or a protocol of some of them


@dataclasses.dataclass(frozen=True)
class Operation(Generic[OptionsT_co]):
    """One operator; `called` returns the work of one run of a subgraph, None if not known."""

    options: OptionsT_co
    inputs: Specs
    outputs: Specs
    called: Callable[[int], Work | None]


CostRule = Callable[[Operation[Any]], Work]

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


def elementwise(op: Operation[Options]) -> Work:
    return Work(n(op.outputs[0]))


def transcendental(op: Operation[Options]) -> Work:
    return Work(n(op.outputs[0]), n(op.outputs[0]))


def movement(*_: object) -> Work:
    return Work(0)


def add_n(op: Operation[Options]) -> Work:
    return Work(max(len(op.inputs) - 1, 0) * n(op.outputs[0]))


def per_input(op: Operation[Options]) -> Work:
    return Work(n(op.inputs[0]))


def host_work(*_: object) -> Work:
    return Work(0, note="work on strings or tables is not counted")


# ---- convolutions and products


def _convolution(window: slice, op: Operation[Options]) -> Work:
    """Each value of the result sums products over the axes `window` of the filter."""
    return Work(2 * n(op.outputs[0]) * math.prod(op.inputs[1].shape[window]))


def _transpose_convolution(x: int, window: slice, op: Operation[Options]) -> Work:
    """Each value of input `x` is multiplied along the axes `window` of the filter."""
    return Work(2 * n(op.inputs[x]) * math.prod(op.inputs[1].shape[window]))


def fully_connected(op: Operation[Options]) -> Work:
    """Weights [output channels, depth]; x in rows of `depth`."""
    depth = op.inputs[1].shape[-1]
    return Work(2 * (n(op.inputs[0]) // depth) * n(op.inputs[1]) if depth else 0)


def batch_matmul(op: Operation[_Matrices]) -> Work:
    return Work(2 * n(op.outputs[0]) * op.inputs[0].shape[-2 if op.options.adj_x else -1])


class _Transposed(Protocol):
    @property
    def transpose_a(self) -> bool: ...


def matmul(op: Operation[_Transposed]) -> Work:
    return Work(2 * n(op.outputs[0]) * op.inputs[0].shape[0 if op.options.transpose_a else 1])


def einsum(op: Operation[_Einsum]) -> Work:
    """A product and a sum for each combination of the labels' values."""
    terms, _ = op.options.labels([len(spec.shape) for spec in op.inputs])
    sizes: dict[str, int] = {}
    for term, spec in zip(terms, op.inputs, strict=True):
        for label, size in zip(term, spec.shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    return Work(2 * math.prod(sizes.values()))


def input_gradient(op: Operation[Options]) -> Work:
    """Inputs: sizes, filter [H, W, I, O], gradient [N, h, w, O], each value times H * W * I."""
    return Work(2 * n(op.inputs[2]) * math.prod(op.inputs[1].shape[:-1]))


def filter_gradient(op: Operation[Options]) -> Work:
    """Inputs: x, sizes, gradient [N, h, w, O]; the result is a filter [H, W, I, O]."""
    return Work(2 * n(op.inputs[2]) * math.prod(op.outputs[0].shape[:-1]))


def depthwise_gradient(op: Operation[Options]) -> Work:
    """Inputs as above; the filter is [H, W, C, M]. Each value of the gradient times H * W."""
    is_filter = len(op.inputs[1].shape) == 4  # otherwise it holds the filter's sizes
    window = (op.inputs[1] if is_filter else op.outputs[0]).shape[:2]
    return Work(2 * n(op.inputs[2]) * math.prod(window))


def linear(op: Operation[Options]) -> Work:
    """Elimination in each matrix [n, n], and its use for each value of the result."""
    size = op.inputs[0].shape[-1]
    return Work(2 * n(op.inputs[0]) * size // 3 + 2 * n(op.outputs[0]) * size)


# ---- windows, reductions, normalizations


def _pool(per_tap: int, op: Operation[Pool2D]) -> Work:
    return Work(per_tap * n(op.outputs[0]) * op.options.filter_height * op.options.filter_width)


def tensorflow_pool(op: Operation[_TensorFlowPool]) -> Work:
    return Work(n(op.outputs[0]) * math.prod(op.options.ksize))


def tensorflow_pool_gradient(op: Operation[_TensorFlowPool]) -> Work:
    """The last input is the gradient of the pool's result."""
    return Work(n(op.inputs[-1]) * math.prod(op.options.ksize))


def softmax(op: Operation[Options]) -> Work:
    return Work(_SOFTMAX_OPERATIONS * n(op.inputs[0]), n(op.inputs[0]))


def l2_normalization(op: Operation[Options]) -> Work:
    """Squares, sums and quotients; a root for each row."""
    rows = n(op.inputs[0]) // max(op.inputs[0].shape[-1], 1)
    return Work(3 * n(op.inputs[0]), rows)


def normalization(op: Operation[Options]) -> Work:
    """Mean, variance, and a product and a sum for each value."""
    return Work(_NORMALIZATION_OPERATIONS * n(op.inputs[0]), note="estimate")


def top_k(op: Operation[Options]) -> Work:
    return Work(n(op.inputs[0]), note="estimate: one comparison per element")


def bilinear(op: Operation[Options]) -> Work:
    return Work(_BILINEAR_OPERATIONS * n(op.outputs[0]))


# ---- signals, detection, lookup


def fourier(op: Operation[Options]) -> Work:
    real = max(
        op.inputs[0], op.outputs[0], key=lambda spec: 0 if spec.dtype.kind == "c" else n(spec)
    )
    points = math.prod(real.shape[-2:])
    return Work(
        round(2.5 * n(real) * math.log2(max(points, 1))), note="estimate: 2.5 n log2 n, real input"
    )


def detection(op: Operation[Options]) -> Work:
    boxes = n(op.inputs[0]) // max(op.inputs[0].shape[-1], 1)
    note = "boxes and scores; how often boxes are compared depends on data"
    return Work(12 * boxes + n(op.inputs[1]), 2 * boxes, note)


def suppression(op: Operation[Options]) -> Work:
    return Work(n(op.inputs[1]), note="one per score; how often boxes are compared depends on data")


def embedding_lookup_sparse(op: Operation[Options]) -> Work:
    """Inputs: ids [k], indices, dense shape, weights [k], table [rows, ...]."""
    return Work(2 * n(op.inputs[0]) * math.prod(op.inputs[4].shape[1:]))


def random(op: Operation[Options]) -> Work:
    return Work(n(op.outputs[0]), note="generator's rounds are not counted")


# ---- operators that call subgraphs

UNKNOWN = Work(None, note="the subgraph's cost is not known")


def times(count: int, body: Work | None) -> Work:
    if body is None or body.flops is None:
        return UNKNOWN
    return Work(count * body.flops, count * body.transcendentals)


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
