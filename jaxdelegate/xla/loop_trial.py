"""Runs a loop in a CUDA graph and checks what it computes, in a process of its own: it may crash.

    python -m jaxdelegate.xla.loop_trial [platform]

The exit status is 0 if all runs are right. Imports jax.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.xla.aot import compiled_with
from jaxdelegate.xla.options import compiler_options

# XLA runs a program without its graph first, records the graph then, and later updates it for other
# buffers (openxla/xla#33073).
_LIMITS = (5, 3, 8, 0, 8)
_ROWS, _WIDTH = 8, 64


def decoded(cache: Any, token: Any, weights: Any, limit: Any) -> tuple[Any, ...]:
    """A decode loop in small: it updates rows of a cache in place, and ends at a limit.

    float32 [8, 64], int32 [64], float32 [64, 64], int32 []; returns cache, token and steps. All
    values are small integers, so that sums are exact.
    """

    def step(state: Any) -> Any:
        cache, token, i = state
        product = (token.astype(jnp.float32) @ weights).astype(jnp.int32)
        token = lax.cond(i % 2 == 0, lambda x: x % 7, lambda x: x % 5 + i, product)
        row = token.astype(jnp.float32)[None] + cache.sum(0, keepdims=True) % 3
        return lax.dynamic_update_slice(cache, row, (i, 0)), token, i + 1

    return lax.while_loop(lambda state: state[2] < limit, step, (cache, token, np.int32(0)))


def expected(cache: Any, token: Any, weights: Any, limit: int) -> Any:
    """The cache and the token that `decoded` returns, in numpy."""
    cache = cache.copy()
    for i in range(limit):
        product = (token.astype(np.float32) @ weights).astype(np.int32)
        token = product % 7 if i % 2 == 0 else product % 5 + np.int32(i)
        cache[i] = token.astype(np.float32) + cache.sum(0) % 3
    return cache, token


def wrong_runs(device: jax.Device) -> list[int]:
    """The numbers of the runs, from 0, whose results are wrong."""
    weights = (np.arange(_WIDTH * _WIDTH) % 3).astype(np.float32).reshape(_WIDTH, _WIDTH)
    options = compiler_options("gpu", exact=True, in_place=True, has_loop_graphs=True)
    want: Any = (np.zeros((_ROWS, _WIDTH), np.float32), (np.arange(_WIDTH) % 4).astype(np.int32))
    wrong, held = [], []  # what is held makes XLA take other buffers
    with jax.default_device(device):
        lowered = jax.jit(decoded, donate_argnums=0).lower(*want, weights, np.int32(0))
        program, found = compiled_with(options, lowered), tuple(map(jnp.asarray, want))
        for run, limit in enumerate(_LIMITS):
            want = expected(want[0], want[1], weights, limit)
            *found, steps = program(*found, weights, np.int32(limit))
            held += found[1:]
            same = map(np.array_equal, (*found, steps), (*want, limit))
            wrong += [] if all(same) else [run]
    return wrong


def main(arguments: list[str]) -> None:
    platform = arguments[0] if arguments else "gpu"
    if wrong := wrong_runs(jax.devices(platform)[0]):
        sys.exit(f"loops in CUDA graphs: runs {wrong} are wrong")


if __name__ == "__main__":
    main(sys.argv[1:])
