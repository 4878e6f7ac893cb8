"""A function of the arrays of one slice of a batch -> a function of those of the whole batch."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.passes.batch_slices import WHOLE_BATCH, BatchSlices

Call = Callable[[Sequence[Any]], tuple[Any, ...]]


def over_slices(
    call: Call, slices: BatchSlices, ends: Sequence[tuple[int, Shape]], *, at_once: bool
) -> Call:
    """A function that computes all slices, on arrays laid out as `BatchSlices` describes.

    Args:
        call: computes one slice.
        slices: their number, and the tensors that are not sliced.
        ends: tensor and shape of each array of a slice.
        at_once: vectorize over the slices; False: a loop, which keeps native kernels and is bit for
            bit equal to computing each slice alone.
    """
    if slices == WHOLE_BATCH:
        return call
    is_shared = [index in slices.shared for index, _ in ends]

    def whole(values: Sequence[Any]) -> tuple[Any, ...]:
        parts = tuple(
            x.reshape(slices.count, *shape)
            for x, (index, shape) in zip(values, ends, strict=True)
            if index not in slices.shared
        )

        def once(own: Sequence[Any]) -> tuple[Any, ...]:
            rest = iter(own)
            return call([x if s else next(rest) for x, s in zip(values, is_shared, strict=True)])

        results = _mapped(once, parts, slices.count, at_once=at_once)
        return tuple(y.reshape(slices.joined(y.shape[1:])) for y in results)

    return whole


def _mapped(once: Call, parts: Sequence[Any], count: int, *, at_once: bool) -> tuple[Any, ...]:
    """The results of each slice, stacked."""
    if at_once:
        results: tuple[Any, ...] = jax.vmap(once, axis_size=count)(parts)
    else:
        _, results = lax.scan(lambda _, own: ((), once(own)), (), parts, length=count)
    return results
