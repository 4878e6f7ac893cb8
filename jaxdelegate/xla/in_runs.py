"""A function of one run's arrays -> the function of all runs' arrays, in one program."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.passes.runs import ONCE, Runs

Call = Callable[[Sequence[Any]], tuple[Any, ...]]


def in_runs(call: Call, runs: Runs, ends: Sequence[tuple[int, Shape]], *, at_once: bool) -> Call:
    """The same for the arrays of all runs together, as `Runs` lays them out.

    Args:
        call: a run.
        runs: how many, and which tensors all read whole.
        ends: tensor and shape of each array that a run takes.
        at_once: vectorize over the runs; False: one after the other, in a loop, which keeps native
            kernels and the bits of a run by itself.
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
