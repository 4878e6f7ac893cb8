"""Fuses the attention of a decode step: norms, rotation, updates of caches, softmax, products.

Heads of queries, keys and values may have RMS norms, and those of queries and keys rotary position
embeddings in the form x cos + (-x2, x1) sin.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from jaxdelegate.lowering.rewrites.algebra import RESHAPES, is_close, is_plain, scalar
from jaxdelegate.lowering.rewrites.attention import is_adjoint, logits_of, mixed_by
from jaxdelegate.lowering.rewrites.cleanup import keeps_order
from jaxdelegate.lowering.rewrites.pattern_rewriter import PatternRewriter
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.options import (
    ConcatenationOptions,
    DecodeAttentionOptions,
    LayerNormOptions,
    SoftmaxOptions,
    StableHLOCompositeOptions,
    rms_norm_epsilon,
)

_ABSENT = -1


@dataclasses.dataclass(frozen=True)
class _Head:
    """Heads as they come from a product, and what is done to them."""

    source: int
    parts: frozenset[int]
    factor: float = 1.0
    epsilon: float = 0.0  # of a norm; 0: none
    scale: int = _ABSENT  # of the norm
    rotation: tuple[int, int] = (_ABSENT, _ABSENT)  # cosines and sines

    def then(self, other: "_Head") -> "_Head":
        """With the parts of what was done before."""
        return dataclasses.replace(other, parts=self.parts | other.parts, factor=self.factor)


@dataclasses.dataclass(frozen=True)
class _Cache:
    """A cache with an entry written at one place."""

    before: int
    after: int
    new: int
    place: int
    parts: frozenset[int]


def fuse_decode_attention(rewriter: PatternRewriter, operator: Operator) -> bool:
    """Fuse a SOFTMAX over a cache with what writes and reads the cache."""
    o = operator.options
    if operator.name != "SOFTMAX" or not isinstance(o, SoftmaxOptions) or o.beta != 1:
        return False
    mixed, logits = mixed_by(rewriter, operator), logits_of(rewriter, operator.inputs[0])
    if mixed is None or logits is None:
        return False
    mix, reshapes = mixed
    are_last = not is_adjoint(logits.product), is_adjoint(mix)
    pairs = zip((logits.product, mix), are_last, strict=True)
    keys, values = (_cache(rewriter, op.inputs[1], is_last) for op, is_last in pairs)
    if keys is None or values is None or keys.place != values.place:
        return False
    shape, mask = rewriter.shape(operator.inputs[0]), _mask(rewriter, logits.mask)
    if not _fits(rewriter, shape, logits.product, (keys, values), are_last, mask):
        return False
    q, k, v = _heads(rewriter, logits.product.inputs[0], keys.new, values.new)
    scale, epsilons = logits.scale * q.factor, (q.epsilon, k.epsilon, v.epsilon)
    options = DecodeAttentionOptions(shape, scale, logits.cap, *are_last, epsilons)
    caches = keys.before, values.before, keys.place, mask
    inputs = q.source, k.source, v.source, *caches, q.scale, k.scale, v.scale, *q.rotation
    whole = (logits, keys, values, q, k, v)
    parts = frozenset({operator.index}).union(reshapes, *(each.parts for each in whole))
    results = keys.after, values.after
    return rewriter.fuse("fused_decode_attention", options, inputs, mix, parts, results)


def _cache(rewriter: PatternRewriter, tensor: int, is_last: bool) -> _Cache | None:
    """None if it is not the update of one place in a cache of one matrix for each head."""
    update = rewriter.producer(tensor)
    if update is None or update.name != "DYNAMIC_UPDATE_SLICE":
        return None
    before, new, start = update.inputs[:3]
    shape, own = rewriter.shape(before), rewriter.shape(new)
    axis = len(shape) - (1 if is_last else 2)
    place = _entry(rewriter, start, axis)
    is_one = own == tuple(1 if i == axis else n for i, n in enumerate(shape))
    if place is None or not is_one or shape[axis] < 2:
        return None
    return _Cache(before, tensor, new, place, frozenset({update.index}))


def _entry(rewriter: PatternRewriter, vector: int, position: int) -> int | None:
    """The tensor with an element of a vector that is put together from scalars."""
    pack = rewriter.producer(vector)
    if pack is None or pack.name not in ("PACK", "CONCATENATION"):
        return None
    are_scalars = all(math.prod(rewriter.shape(i)) == 1 for i in pack.inputs)
    return pack.inputs[position] if are_scalars and len(pack.inputs) > position else None


def _mask(rewriter: PatternRewriter, mask: Sequence[int]) -> int:
    """The mask of one query, also where another one repeats it; _ABSENT without a mask."""
    if not mask:
        return _ABSENT
    repeat = rewriter.producer(mask[0])
    o = repeat.options if repeat is not None else None
    if repeat is None or not isinstance(o, ConcatenationOptions) or len({*repeat.inputs}) > 1:
        return mask[0]
    shape = rewriter.shape(repeat.inputs[0])
    return repeat.inputs[0] if is_plain(rewriter, repeat) and shape[o.axis] == 1 else mask[0]


def _fits(
    rewriter: PatternRewriter,
    logits: Sequence[int],
    product: Operator,
    caches: Sequence[_Cache],
    are_last: Sequence[bool],
    mask: int,
) -> bool:
    """Whether queries, caches and mask have the shapes of logits [..., queries, places]."""
    *heads, queries, length = logits
    q = rewriter.shape(product.inputs[0])
    shapes = [rewriter.shape(cache.before) for cache in caches]
    matrices = [(q[-1], length) if is_last else (length, q[-1]) for is_last in are_last]
    pairs = zip(shapes, matrices, strict=True)
    return (
        mask != _ABSENT
        and math.prod(rewriter.shape(mask)) == rewriter.shape(mask)[-1] == length
        and (*heads, queries) == q[:-1]
        and all(s[-2:] == m and math.prod(s[:-2]) == math.prod(heads) for s, m in pairs)
    )


def _heads(rewriter: PatternRewriter, q: int, k: int, v: int) -> tuple[_Head, _Head, _Head]:
    """What queries, keys and values are computed from; the first two are rotated alike."""
    queries, keys = _moved(rewriter, q, may_scale=True), _moved(rewriter, k)
    size = rewriter.shape(q)[-1]
    turned = _rotated(rewriter, queries.source, size), _rotated(rewriter, keys.source, size)
    rotation = turned[0].rotation if turned[0] is not None else None
    if turned[0] is not None and turned[1] is not None and turned[1].rotation == rotation:
        queries, keys = (
            _moved(rewriter, each.source, before.then(each))
            for each, before in zip(turned, (queries, keys), strict=True)
            if each is not None
        )
    values = _moved(rewriter, v)
    q_head, k_head, v_head = (_normalized(rewriter, h, size) for h in (queries, keys, values))
    return q_head, k_head, v_head


def _moved(
    rewriter: PatternRewriter, tensor: int, head: _Head | None = None, *, may_scale: bool = False
) -> _Head:
    """A tensor whose elements stay in order; `may_scale`: also times a constant."""
    head = head or _Head(tensor, frozenset())
    while (operator := rewriter.producer(head.source)) is not None:
        factor, source = 1.0, operator.inputs[0] if operator.inputs else _ABSENT
        if operator.name == "MUL" and may_scale and is_plain(rewriter, operator):
            variable = [i for i in operator.inputs if scalar(rewriter, i) is None]
            factors = [scalar(rewriter, i) for i in operator.inputs if i not in variable]
            if len(variable) != 1 or factors[0] is None:
                break
            (source,), factor = variable, factors[0]
        elif not _is_move(rewriter, operator):
            break
        head = dataclasses.replace(
            head,
            source=source,
            parts=head.parts | {operator.index},
            factor=head.factor * factor,
        )
    return head


def _is_move(rewriter: PatternRewriter, operator: Operator) -> bool:
    is_transposed = operator.name == "TRANSPOSE" and keeps_order(rewriter, operator)
    return operator.name in RESHAPES or is_transposed


def _rotated(rewriter: PatternRewriter, tensor: int, size: int) -> _Head | None:
    """What x cos + (-x2, x1) sin is computed from, where heads of x are (x1, x2); else None."""
    add = rewriter.producer(tensor)
    if add is None or add.name != "ADD" or not is_plain(rewriter, add):
        return None
    for straight, turned in (add.inputs, add.inputs[::-1]):
        for x, cos in _factors(rewriter, straight):
            for other, sin in _factors(rewriter, turned):
                parts = _turned(rewriter, other, x)
                is_head = rewriter.shape(x)[-1:] == (size,)
                are_vectors = all(_is_vector(rewriter, i, size) for i in (cos, sin))
                if parts is not None and is_head and are_vectors:
                    products = (rewriter.producer(i) for i in add.inputs)
                    parts = parts.union([add.index], (op.index for op in products if op))
                    return _Head(x, parts, rotation=(cos, sin))
    return None


def _factors(rewriter: PatternRewriter, tensor: int) -> Sequence[tuple[int, int]]:
    product = rewriter.producer(tensor)
    if product is None or product.name != "MUL" or not is_plain(rewriter, product):
        return ()
    a, b = product.inputs
    return (a, b), (b, a)


def _is_vector(rewriter: PatternRewriter, tensor: int, size: int) -> bool:
    shape = rewriter.shape(tensor)
    return bool(shape) and shape[-1] == math.prod(shape) == size


def _turned(rewriter: PatternRewriter, tensor: int, x: int) -> frozenset[int] | None:
    """The operators that compute (-x2, x1) from x; None if the tensor is not that."""
    both = rewriter.producer(tensor)
    o = both.options if both is not None else None
    if both is None or not isinstance(o, ConcatenationOptions) or not is_plain(rewriter, both):
        return None
    rank = len(rewriter.shape(x))
    if len(both.inputs) != 2 or o.axis % rank != rank - 1:
        return None
    half, rest = divmod(rewriter.shape(x)[-1], 2)
    negative = _negated(rewriter, both.inputs[0])
    if rest or negative is None:
        return None
    parts = {both.index, negative[1].index}
    for piece, begin in ((negative[0], half), (both.inputs[1], 0)):
        cut = rewriter.producer(piece)
        if cut is None or not _is_half(rewriter, cut, x, begin):
            return None
        parts.add(cut.index)
    return frozenset(parts)


def _negated(rewriter: PatternRewriter, tensor: int) -> tuple[int, Operator] | None:
    operator = rewriter.producer(tensor)
    if operator is None or not is_plain(rewriter, operator):
        return None
    if operator.name == "NEG":
        return operator.inputs[0], operator
    found = [x for x, by in _factors(rewriter, tensor) if is_close(scalar(rewriter, by) or 0, -1)]
    return (found[0], operator) if found else None


def _is_half(rewriter: PatternRewriter, cut: Operator, x: int, begin: int) -> bool:
    """Whether an operator takes half of the last dimension of x, from `begin` on."""
    if cut.name != "SLICE" or cut.inputs[0] != x:
        return False
    starts, shape = rewriter.const(cut.inputs[1]), rewriter.shape(x)
    wanted = [0] * (len(shape) - 1) + [begin]
    half = (*shape[:-1], shape[-1] // 2)
    return (
        starts is not None
        and [*np.ravel(starts)] == wanted
        and (rewriter.shape(cut.outputs[0]) == half)
    )


def _normalized(rewriter: PatternRewriter, head: _Head, size: int) -> _Head:
    """The head with the norm before it, if each head has its own."""
    operator = rewriter.producer(head.source)
    epsilon = None if operator is None else _rms_epsilon(rewriter, operator)
    if operator is None or not epsilon:
        return head
    x, scale = (*operator.inputs, _ABSENT)[:2]
    has_scale = scale == _ABSENT or _is_vector(rewriter, scale, size)
    if rewriter.shape(x)[-1] != size or not has_scale:
        return head
    parts = head.parts | {operator.index}
    normalized = dataclasses.replace(head, source=x, parts=parts, epsilon=epsilon, scale=scale)
    return _moved(rewriter, x, normalized)


def _rms_epsilon(rewriter: PatternRewriter, operator: Operator) -> float | None:
    """The number that an RMS norm over the last dimension adds; None: it is another operator."""
    o = operator.options
    if isinstance(o, StableHLOCompositeOptions):
        return rms_norm_epsilon(o)
    if not isinstance(o, LayerNormOptions) or o.is_centered or not is_plain(rewriter, operator):
        return None
    is_last = o.axes == (len(rewriter.shape(operator.inputs[0])) - 1,)
    has_offset = len(operator.inputs) > 2 and operator.inputs[2] != _ABSENT
    return o.epsilon if is_last and not has_offset else None


REWRITES = {"fuse_decode_attention": fuse_decode_attention}
