"""A function of the arrays of one run -> a function of the arrays of all runs."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.passes.runs import ONCE, Runs

Call = Callable[[Sequence[Any]], tuple[Any, ...]]


def in_runs(call: Call, runs: Runs, ends: Sequence[tuple[int, Shape]], *, at_once: bool) -> Call:
    """A function that computes all runs at once, on arrays laid out as `Runs` describes.

    Args:
        call: computes one run.
        runs: their number, and the tensors that all of them read whole.
        ends: tensor and shape of each array of a run.
        at_once: vectorize over the runs; False: a loop, which keeps native kernels and the bits of
            a single run.
    """
    if runs == ONCE:
        return call
    is_shared = [index in runs.shared for index, _ in ends]

    def several(values: Sequence[Any]) -> tuple[Any, ...]:
        parts = tuple(
            x.reshape(runs.count, *shape)
            for x, (index, shape) in zip(values, ends, strict=True)
            if index not in runs.shared
        )

        def once(own: Sequence[Any]) -> tuple[Any, ...]:
            rest = iter(own)
            return call([x if s else next(rest) for x, s in zip(values, is_shared, strict=True)])

        results = _mapped(once, parts, runs.count, at_once=at_once)
        return tuple(y.reshape(runs.joined(y.shape[1:])) for y in results)

    return several


def _mapped(once: Call, parts: Sequence[Any], count: int, *, at_once: bool) -> tuple[Any, ...]:
    """Each run's results, stacked."""
    if at_once:
        results: tuple[Any, ...] = jax.vmap(once, axis_size=count)(parts)
    else:
        _, results = lax.scan(lambda _, own: ((), once(own)), (), parts, length=count)
    return results
