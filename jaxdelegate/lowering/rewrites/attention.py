"""Fuses softmax(scale * q k^T + mask) v into one operator, if its rule accepts it."""

import dataclasses
import math
from collections.abc import Sequence

from jaxdelegate.lowering.rewrites import algebra
from jaxdelegate.lowering.rewrites.pattern_rewriter import PatternRewriter
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.options import AttentionOptions, BatchMatMulOptions, SoftmaxOptions


@dataclasses.dataclass(frozen=True)
class Logits:
    """A product of queries and keys, times `scale`, plus an optional mask.

    `cap`: cap * tanh(product * scale / cap) instead; 0: not.
    """

    product: Operator
    scale: float
    mask: tuple[int, ...]
    parts: frozenset[int]
    cap: float = 0.0


def fuse_attention(rewriter: PatternRewriter, operator: Operator) -> bool:
    """Fuse a SOFTMAX with the products before and after it."""
    o = operator.options
    if operator.name != "SOFTMAX" or not isinstance(o, SoftmaxOptions) or o.beta != 1:
        return False
    tensor, before = algebra.before_reshapes(rewriter, operator.inputs[0])
    mixed, logits = mixed_by(rewriter, operator), logits_of(rewriter, tensor)
    if mixed is None or logits is None or logits.cap:
        return False
    mix, after = mixed
    arrays = (*logits.product.inputs, mix.inputs[1])
    shape = rewriter.shape(operator.inputs[0])
    are_last = not is_adjoint(logits.product), is_adjoint(mix)
    if not _fits(rewriter, arrays, shape, are_last):
        return False
    options = AttentionOptions(shape, logits.scale, *are_last)
    parts = logits.parts | before | after | {operator.index}
    return rewriter.fuse("fused_attention", options, (*arrays, *logits.mask), mix, parts)


def mixed_by(
    rewriter: PatternRewriter, operator: Operator
) -> tuple[Operator, frozenset[int]] | None:
    """The product of a softmax and values, and the reshapes between them."""
    parts: set[int] = set()
    reader, tensor = operator, operator.outputs[0]
    while len(readers := rewriter.readers(tensor)) == 1:
        (reader,) = readers
        if reader.name not in algebra.RESHAPES:
            break
        parts.add(reader.index)
        tensor = reader.outputs[0]
    is_product = _is_product(reader) and reader.inputs[0] == tensor != reader.inputs[1]
    return (reader, frozenset(parts)) if is_product else None


def logits_of(rewriter: PatternRewriter, tensor: int) -> Logits | None:
    """A softmax's input; None if it is not a product that may be scaled, capped and masked."""
    for scores in dict.fromkeys((tensor, *algebra.operands(rewriter, tensor))):
        source, reshapes = algebra.before_reshapes(rewriter, scores)
        logits = _product(rewriter, source) or _capped(rewriter, source)
        if logits is None:
            continue
        expansion = algebra.expanded(rewriter, tensor, (scores,))
        masks = {m: value for m, value in expansion.terms.items() if m != (scores,)}
        are_plain = all(
            len(m) == 1 and m[0] >= 0 and algebra.is_close(value, 1) for m, value in masks.items()
        )
        factor = expansion.terms.get((scores,))
        if factor is not None and len(masks) <= 1 and are_plain:
            return dataclasses.replace(
                logits,
                scale=logits.scale * factor,
                cap=logits.cap * factor,
                mask=next(iter(masks), ()),
                parts=logits.parts | expansion.parts | reshapes,
            )
    return None


def _product(rewriter: PatternRewriter, tensor: int) -> Logits | None:
    product = rewriter.producer(tensor)
    if product is None or not _is_product(product):
        return None
    return Logits(product, 1.0, (), frozenset({product.index}))


def _capped(rewriter: PatternRewriter, tensor: int) -> Logits | None:
    """Tanh of a scaled product, as a product with a cap of 1."""
    tanh = rewriter.producer(tensor)
    if tanh is None or tanh.name != "TANH":
        return None
    logits = logits_of(rewriter, tanh.inputs[0])
    if logits is None or logits.mask or logits.cap:
        return None
    return dataclasses.replace(logits, cap=1.0, parts=logits.parts | {tanh.index})


def _is_product(operator: Operator) -> bool:
    o = operator.options
    return isinstance(o, BatchMatMulOptions) and not o.adj_x


def is_adjoint(operator: Operator) -> bool:
    return isinstance(operator.options, BatchMatMulOptions) and operator.options.adj_y


def _fits(
    rewriter: PatternRewriter,
    arrays: Sequence[int],
    logits: Sequence[int],
    are_last: tuple[bool, bool],
) -> bool:
    """Whether the shapes of q, k and v match the logits without broadcasting, and each other."""
    if len(logits) not in (3, 4):
        return False
    *batch, t, s = logits
    h = rewriter.shape(arrays[0])[-1]
    wanted = [(t, h), *((h, s) if is_last else (s, h) for is_last in are_last)]
    shapes = [rewriter.shape(i) for i in arrays]
    return len({rewriter.spec(i).dtype for i in arrays}) == 1 and all(
        shape[-2:] == matrix and math.prod(shape[:-2]) == math.prod(batch)
        for shape, matrix in zip(shapes, wanted, strict=True)
    )


REWRITES = {"fuse_attention": fuse_attention}
