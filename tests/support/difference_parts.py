"""Helpers of explanations: an operator's operands, and which elements depend on which."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np

from jaxdelegate.quant.affine import dequantize
from tests.support.differential import Arrays, Disagreement, mismatch, reference
from tests.support.graph_records import Graph, GraphTensor, Node
from tests.support.stock_worker import PLAIN, RefusedError

_LARGE = 1e37  # from here on, a scale of 127 steps or a sum overflows


class Stock(Protocol):
    """LiteRT: a `StockWorker`."""

    def run(self, content: bytes, inputs: Sequence[np.ndarray], kernels: str = ..., /) -> Arrays:
        """The outputs of each invoke."""
        ...


def operator_of(found: Disagreement) -> tuple[Node, list[GraphTensor]]:
    """The operator and its operands, without absent ones."""
    node = found.part.nodes[0]
    return node, [found.part.tensors[i] for i in node.inputs if i is not None]


def outputs_of(found: Disagreement) -> list[GraphTensor]:
    """The operator's output tensors."""
    return [found.part.tensors[i] for i in found.part.nodes[0].outputs]


def by_plain_kernels(part: Graph, stock: Stock) -> Arrays:
    """The outputs of LiteRT's plain kernels."""
    return stock.run(part.model(), part.feeds, PLAIN)


def masked(want: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The expected values, with undefined elements masked."""
    return np.ma.masked_array(want, np.broadcast_to(mask, want.shape))


def floats(part: Graph) -> list[np.ndarray]:
    return [t.value for t in part.tensors if t.value is not None and t.dtype.kind == "f"]


def any_float(part: Graph, test: Callable[[np.ndarray], np.ndarray]) -> bool:
    """Whether any float operand has such an element."""
    return any(bool(np.any(test(v))) for v in floats(part))


def with_floats(part: Graph, change: Callable[[np.ndarray], np.ndarray]) -> Graph:
    """The part with other values of all float operands."""
    tensors = [
        dataclasses.replace(t, value=np.asarray(change(t.value), t.dtype))
        if t.value is not None and t.dtype.kind == "f"
        else t
        for t in part.tensors
    ]
    return dataclasses.replace(part, tensors=tuple(tensors))


def called_body(part: Graph) -> Graph | None:
    """The subgraph that its only operator calls, fed with the operands; None if it calls none."""
    node, operands = part.nodes[0], [part.tensors[t] for t in part.nodes[0].inputs if t is not None]
    if len(part.nodes) != 1 or not node.bodies:
        return None
    chosen = 0
    if node.name in {"IF", "STABLEHLO_CASE"}:
        selector, *operands = operands
        if selector.value is None:
            return None
        number, last = int(selector.value.item()), len(node.bodies) - 1
        chosen = 1 - number if node.name == "IF" else number if 0 <= number <= last else last
    elif node.name not in {"CALL", "STABLEHLO_COMPOSITE"}:
        return None
    body = node.bodies[chosen]
    tensors = list(body.tensors)
    for at, operand in zip(body.inputs, operands, strict=True):
        tensors[at] = dataclasses.replace(tensors[at], value=operand.value)
    return dataclasses.replace(body, tensors=tuple(tensors))


def with_real_weights(part: Graph) -> Graph | None:
    """The part with floats for quantized weights of float operators; None without any."""
    weights = {
        t
        for node in part.nodes
        for t in node.inputs
        if t is not None
        and node.inputs[0] is not None
        and part.tensors[node.inputs[0]].dtype == np.float32
        and part.tensors[t].quantization is not None
        and part.tensors[t].value is not None
    }
    return dataclasses.replace(part, tensors=_reals(part, weights)) if weights else None


def in_floats(part: Graph) -> Graph | None:
    """The part with floats in place of all quantized tensors; None without any."""
    quantized = {i for i, t in enumerate(part.tensors) if t.quantization is not None}
    return dataclasses.replace(part, tensors=_reals(part, quantized)) if quantized else None


def _reals(part: Graph, chosen: Collection[int]) -> tuple[GraphTensor, ...]:
    return tuple(_real(t) if i in chosen else t for i, t in enumerate(part.tensors))


def _real(t: GraphTensor) -> GraphTensor:
    q = t.quantization
    value = t.value if t.value is None or q is None else dequantize(t.value, q)
    return dataclasses.replace(t, dtype=np.dtype(np.float32), value=value, quantization=None)


def is_extreme(v: np.ndarray) -> np.ndarray:
    """NaN, infinite or huge."""
    with np.errstate(invalid="ignore"):
        return np.asarray(~(np.abs(v) < _LARGE))


def is_large(v: np.ndarray) -> np.ndarray:
    """Huge, and finite."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.isfinite(v) & (np.abs(v) > _LARGE))


def is_far_from_one(v: np.ndarray) -> np.ndarray:
    """So large or small that products of few of them leave float32's range."""
    with np.errstate(invalid="ignore"):
        size = np.abs(v)
        return np.asarray((size > 1e18) | ((size < 1e-18) & (v != 0)))


def _replaced(v: np.ndarray, cause: Callable[[np.ndarray], np.ndarray], value: float) -> np.ndarray:
    return np.where(cause(v), value, v)


def changed_by(part: Graph, cause: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
    """Which elements of the results depend on the operands' elements that `cause` selects."""
    first = reference(part.model(), part.feeds)
    changed = [np.zeros(y.shape, bool) for y in first]
    for value in (0.0, 1.0, -1.0, np.inf, -np.inf, np.nan):
        other = with_floats(part, functools.partial(_replaced, cause=cause, value=value))
        try:
            results = reference(other.model(), other.feeds)
        except RefusedError:  # a divisor of zero
            continue
        pairs = zip(changed, first, results, strict=True)
        changed = [c | ~((y == z) | (np.isnan(y) & np.isnan(z))) for c, y, z in pairs]
    return changed


def rows_with(node: Node, extreme: np.ndarray, to: tuple[int, ...]) -> np.ndarray:
    """Which results belong to a row of activations with an extreme element; broadcasts to `to`."""
    if node.name == "BATCH_MATMUL":
        if getattr(node.options, "adj_x", False):
            extreme = extreme.swapaxes(-1, -2)
        return np.asarray(extreme.any(-1, keepdims=True))
    if getattr(node.options, "time_major", False):
        return np.asarray(np.asarray(extreme.any((0, 2)))[None, :, None])
    rows = int(np.prod(to[:-1])) if node.name == "FULLY_CONNECTED" else to[0]
    is_one = extreme.reshape(rows, -1).any(1)
    ones = (1,) * (len(to) - 1)
    return np.asarray(
        is_one.reshape((*to[:-1], 1) if node.name == "FULLY_CONNECTED" else (-1, *ones))
    )


def unmerged(part: Graph) -> Graph:
    """A bidirectional operator with an output for each direction, half as wide."""
    (node,), (y,) = part.nodes, part.nodes[0].outputs
    half = part.tensors[y]
    half = dataclasses.replace(half, shape=(*half.shape[:-1], half.shape[-1] // 2))
    tensors = [half if i == y else t for i, t in enumerate(part.tensors)]
    outputs = (y, len(tensors))
    options = dataclasses.replace(node.options, merge_outputs=False)  # type: ignore[type-var]
    node = dataclasses.replace(node, outputs=outputs, options=options)
    return Graph((*tensors, half), (node,), part.inputs, outputs)


def scale_of(t: GraphTensor) -> float:
    return 0.0 if t.quantization is None else float(t.quantization.scale[0])


def reals_of(t: GraphTensor) -> np.ndarray | None:
    """The reals that quantized values represent; None for other tensors."""
    if t.value is None or t.quantization is None:
        return None
    steps = t.value.astype(np.float64) - float(t.quantization.zero_point[0])
    return np.asarray(steps * scale_of(t))


def agrees(found: Disagreement, right: Arrays) -> bool:
    """Whether the engine's outputs are right wherever they are not masked."""
    got = found.got or []
    if not right or len(got) % len(right):
        return False
    pairs = list(zip(got, right * (len(got) // len(right)), strict=True))
    if any(g.shape != r.shape for g, r in pairs):
        return False
    masks = [np.ma.getmaskarray(r) for _, r in pairs]
    got, want = (
        [np.where(m, y.dtype.type(0), np.ma.getdata(y)) for m, y in zip(masks, ys, strict=True)]
        for ys in zip(*pairs, strict=True)
    )
    return mismatch(found.part, got, want, found.rule) is None
