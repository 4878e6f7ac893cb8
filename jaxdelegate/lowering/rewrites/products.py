"""Fuses products of the same tensor, with the normalization before and what follows them.

A decode step has three in front of its attention, and two of which one gates the other.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

from jaxdelegate.lowering.rewrites.algebra import is_plain
from jaxdelegate.lowering.rewrites.pattern_rewriter import PatternRewriter
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    FullyConnectedOptions,
    FusedProductsOptions,
    Gate,
    GeluOptions,
    LayerNormOptions,
    StableHLOCompositeOptions,
    rms_norm_epsilon,
)
from jaxdelegate.op_lowering.precision import FLOAT32

_ABSENT, _NAME = -1, "fused_products"


@dataclasses.dataclass(frozen=True)
class _Input:
    """What products read, or what its normalization reads."""

    x: int
    scale: int = _ABSENT
    epsilon: float = 0.0
    parts: tuple[Operator, ...] = ()


def gate_products(rewriter: PatternRewriter, operator: Operator) -> bool:
    """Fuse a product, its activation and the product that it multiplies."""
    if operator.name != "MUL" or not is_plain(rewriter, operator):
        return False
    pairs = operator.inputs, operator.inputs[::-1]
    return any(_gate(rewriter, operator, *pair) for pair in pairs)


def _gate(rewriter: PatternRewriter, root: Operator, activated: int, other: int) -> bool:
    gate, source, parts = _activation(rewriter, activated)
    first, second = rewriter.producer(source), rewriter.private_producer(other)
    if gate is Gate.NONE or first is None or second is None or first.index == second.index:
        return False
    products = (first, second)
    if not all(_is_product(rewriter, p, first.inputs[0]) for p in products):
        return False
    read = _input(rewriter, first.inputs[0], products)
    options = FusedProductsOptions(read.epsilon, gate)
    inner = [*parts, *products, *read.parts]
    inputs = _inputs(read, products)
    return rewriter.fuse(_NAME, options, inputs, root, {op.index for op in inner})


def _activation(rewriter: PatternRewriter, tensor: int) -> tuple[Gate, int, tuple[Operator, ...]]:
    """What computes a tensor of another one, which of them, and the operators."""
    operator = rewriter.private_producer(tensor)
    if operator is None or not is_plain(rewriter, operator):
        return Gate.NONE, tensor, ()
    o = operator.options
    if operator.name == "GELU" and isinstance(o, GeluOptions) and o.approximate:
        return Gate.GELU, operator.inputs[0], (operator,)
    if operator.name == "LOGISTIC":
        return Gate.LOGISTIC, operator.inputs[0], (operator,)
    for x, share in (operator.inputs, operator.inputs[::-1]) if operator.name == "MUL" else ():
        logistic = rewriter.private_producer(share)
        if logistic is not None and logistic.name == "LOGISTIC" and logistic.inputs == (x,):
            return Gate.SWISH, x, (operator, logistic)
    return Gate.NONE, tensor, ()


def merge_products(rewriter: PatternRewriter, operator: Operator) -> bool:
    """Fuse the products of a tensor, and its normalization if only they read it."""
    if operator.name != "FULLY_CONNECTED":
        return False
    x = operator.inputs[0]
    products = [p for p in rewriter.readers(x) if _is_product(rewriter, p, x)]
    if not products or products[0].index != operator.index:
        return False
    read = _input(rewriter, x, products)
    if len(products) == 1 and not read.parts:
        return False
    merged = dataclasses.replace(
        operator,
        name=_NAME,
        version=1,
        inputs=_inputs(read, products),
        outputs=tuple(p.outputs[0] for p in products),
        options=FusedProductsOptions(read.epsilon),
    )
    return rewriter.merge(merged, [*read.parts, *products], stays=True)


def add_residual(rewriter: PatternRewriter, operator: Operator) -> bool:
    """Fuse a product and the tensor that is added to it."""
    if operator.name != "ADD" or not is_plain(rewriter, operator):
        return False
    pairs = operator.inputs, operator.inputs[::-1]
    return any(_add(rewriter, operator, *pair) for pair in pairs)


def _add(rewriter: PatternRewriter, root: Operator, y: int, residual: int) -> bool:
    product = rewriter.private_producer(y)
    shapes = [rewriter.shape(i) for i in (residual, y, root.outputs[0])]
    is_alike = len({(math.prod(shape), shape[-1:]) for shape in shapes}) == 1
    if product is None or not is_alike or rewriter.spec(residual).dtype != FLOAT32:
        return False
    if not _is_product(rewriter, product, product.inputs[0]):
        return False
    read = _input(rewriter, product.inputs[0], [product])
    inputs = _inputs(read, [product], residual)
    parts = {op.index for op in (product, *read.parts)}
    return rewriter.fuse(_NAME, FusedProductsOptions(read.epsilon), inputs, root, parts)


def _is_product(rewriter: PatternRewriter, operator: Operator, x: int) -> bool:
    """Whether an operator multiplies `x` by a constant filter, without an activation."""
    o = operator.options
    is_named = operator.name == "FULLY_CONNECTED" and operator.inputs[0] == x
    if not is_named or not isinstance(o, FullyConnectedOptions):
        return False
    w, *bias = operator.inputs[1:]
    shape = rewriter.shape(w)
    return (
        o.fused_activation_function is ActivationFunctionType.NONE
        and is_plain(rewriter, operator)
        and all(rewriter.const(i) is not None for i in (w, *bias) if i != _ABSENT)
        and len(shape) == 2
        and rewriter.shape(x)[-1:] == shape[1:]
    )


def _inputs(read: _Input, products: Iterable[Operator], residual: int = _ABSENT) -> tuple[int, ...]:
    pairs = ((*p.inputs[1:], _ABSENT)[:2] for p in products)
    return (read.x, read.scale, residual, *(i for pair in pairs for i in pair))


def _input(rewriter: PatternRewriter, x: int, products: Sequence[Operator]) -> _Input:
    """The input of the products' kernel: before a normalization that only they read."""
    norm, inside = rewriter.producer(x), {p.index for p in products}
    is_private = not rewriter.is_kept(x) and all(r.index in inside for r in rewriter.readers(x))
    if norm is None or not is_private or len(norm.inputs) < 2:
        return _Input(x)
    epsilon, (source, scale, *offset) = _epsilon(norm, len(rewriter.shape(x))), norm.inputs
    shape = () if scale == _ABSENT else rewriter.shape(scale)
    fits = math.prod(shape) == rewriter.shape(x)[-1] and shape[-1:] == rewriter.shape(x)[-1:]
    if epsilon is None or not fits or any(i != _ABSENT for i in offset):
        return _Input(x)
    if rewriter.shape(source) != rewriter.shape(x) or rewriter.spec(scale).dtype != FLOAT32:
        return _Input(x)
    return _Input(source, scale, epsilon, (norm,))


def _epsilon(norm: Operator, rank: int) -> float | None:
    """What root-mean-square normalization over the last axis adds; None: it is something else."""
    o = norm.options
    if norm.name == "STABLEHLO_COMPOSITE" and isinstance(o, StableHLOCompositeOptions):
        return rms_norm_epsilon(o)
    if not isinstance(o, LayerNormOptions) or o.axes != (rank - 1,) or o.is_centered:
        return None
    is_plain = o.fused_activation_function is ActivationFunctionType.NONE
    return o.epsilon if is_plain else None


REWRITES = {
    "gate_products": gate_products,
    "add_residual": add_residual,
    "merge_products": merge_products,
}
