"""STABLEHLO_SORT: several operands at once, along one dimension, by any comparator.

Semantics: the StableHLO specification.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.movement import why_not_present
from jaxdelegate.op_lowering.common.pointwise import BOOL, why_not_one_dtype
from jaxdelegate.op_lowering.common.signature import ANY, typed_rule
from jaxdelegate.op_lowering.rule import Function, Op, first_reason, table, why_not_dtype
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.op_lowering.stablehlo.body import Body, Order, why_not_body
from jaxdelegate.op_lowering.stablehlo.elementwise import ELEMENTS
from jaxdelegate.op_lowering.stablehlo.options import StablehloSortOptions

_MOST_PAIRS = 1 << 24  # comparators without a single key compare every pair


def _arguments(specs: Specs) -> list[np.dtype]:
    """The comparator's arguments: both sides of the first operand, of the second..."""
    return [spec.dtype for spec in specs for _ in range(2)]


def _why_not_sort(op: Op[StablehloSortOptions]) -> str | None:
    reason = why_not_present(*op.inputs) or first_reason(
        *(why_not_dtype(spec, ELEMENTS) for spec in op.inputs),
        *(why_not_one_dtype(x, y) for x, y in zip(op.inputs, op.outputs, strict=True)),
    )
    if reason is not None:
        return reason
    index, arguments = op.options.comparator_subgraph_index, _arguments(op.inputs)
    reason = why_not_body(op.context, index, arguments, [BOOL])
    if reason is not None or Body.of(op.context, index, arguments).order() is not None:
        return reason
    shape = op.inputs[0].shape
    pairs = math.prod(shape) * shape[op.options.dimension]
    if pairs <= _MOST_PAIRS:
        return None
    return f"its comparator, subgraph {index}, orders by no single key, and there are {pairs} pairs"


def _lower_sort(op: Op[StablehloSortOptions]) -> Function:
    body = Body.of(op.context, op.options.comparator_subgraph_index, _arguments(op.inputs))
    order, axis = body.order(), op.options.dimension % len(op.inputs[0].shape)

    def sort(*operands: jax.Array) -> tuple[jax.Array, ...]:
        arrays = [jnp.asarray(x) for x in operands]
        if arrays[0].size == 0:
            return tuple(arrays)
        if order is not None:
            return _by_key(order, arrays, axis, is_stable=op.options.is_stable)
        return _by_rank(body, arrays, axis)

    return sort


def _by_key(
    order: Order, arrays: list[jax.Array], axis: int, *, is_stable: bool
) -> tuple[jax.Array, ...]:
    """Descending is ascending reversed; reversing the input as well keeps equals in order."""
    operands = arrays if order.ascending else [lax.rev(x, [axis]) for x in arrays]
    key = order.operand
    keys = operands[key] if key is not None else order.keys(operands)
    rest = [x for i, x in enumerate(operands) if i != key]
    results = list(lax.sort([keys, *rest], dimension=axis, is_stable=is_stable, num_keys=1))
    if key is None:
        results = results[1:]
    else:
        results.insert(key, results.pop(0))
    return tuple(y if order.ascending else lax.rev(y, [axis]) for y in results)


def _by_rank(body: Body, arrays: list[jax.Array], axis: int) -> tuple[jax.Array, ...]:
    """An element's rank is the number of elements that precede it; equals keep their order."""
    rows = [jnp.moveaxis(x, axis, -1) for x in arrays]  # [..., n]
    n = rows[0].shape[-1]
    square = (*rows[0].shape, n)
    sides = [
        jnp.broadcast_to(side, square) for x in rows for side in (x[..., None], x[..., None, :])
    ]
    (less,) = body.elements(*sides)  # [..., i, j]: i is less than j
    more = jnp.swapaxes(less, -1, -2)
    earlier = jnp.broadcast_to(jnp.asarray(np.triu(np.ones((n, n), bool), 1)), square)
    before = jnp.where(less == more, earlier, less)
    ranks = jnp.sum(before.astype(np.int32), axis=-2)
    places = jnp.argsort(ranks, axis=-1, stable=True)
    results = (jnp.take_along_axis(x, places, axis=-1) for x in rows)
    return tuple(jnp.moveaxis(y, -1, axis) for y in results)


RULES = table(typed_rule("STABLEHLO_SORT", [ANY], _lower_sort, _why_not_sort))
