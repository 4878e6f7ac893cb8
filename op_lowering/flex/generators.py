"""Random numbers of a key and a counter, TensorFlow's bit for bit (stateless_random_ops*.cc)."""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common.movement import integers
from jaxdelegate.op_lowering.common.signature import (
    CONSTANTS,
    CONSTANTS32,
    INDEX,
    REALS,
    UINT64,
    Dtypes,
    Input,
    dtypes,
)
from jaxdelegate.op_lowering.flex.signature import rule
from jaxdelegate.op_lowering.random.rule import (
    draw,
    normal_pairs,
    philox,
    unit,
    unit64,
    words32,
    words64,
)
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.rule import Function, Op, OpRule, first_reason, table
from jaxdelegate.op_lowering.spec import TensorSpec

_Op = Op[FlexOptions]
_PHILOX = ((1,), (3,))  # rng_alg.h; 3 leaves the choice to the device
_SEEDS, _STATE = [INDEX], [UINT64, UINT64, CONSTANTS32]  # key, counter, algorithm
_SCRAMBLE = np.array([0x3EC8F720, 0x02461E29], np.uint32)  # the key that mixes seeds


def _words(key: jax.Array, counter: jax.Array, n: int) -> jax.Array:
    """uint32 [n] of a key uint64 [1] and a counter uint64 [2]."""
    state = jnp.concatenate([jnp.asarray(counter), jnp.asarray(key)])
    return draw(words32(state), n)[0]


# ---- StatelessRandomGetKeyCounter: two seeds


def _why_not_seeds(seeds: TensorSpec) -> str | None:
    return None if seeds.shape == (2,) else f"{seeds.name!r} {list(seeds.shape)} is not two seeds"


def _mixed(seeds: jax.Array) -> tuple[jax.Array, jax.Array]:
    seeds = jnp.asarray(seeds).astype(np.int64).astype(np.uint64)
    mixed = words64(philox(jnp.asarray(_SCRAMBLE), seeds[None]))
    return mixed[:1], jnp.stack([jnp.zeros_like(mixed[1]), mixed[1]])


def _lower_mixed(_op: _Op) -> Function:
    return _mixed


# ---- numbers: shape, key, counter, algorithm, or shape, two seeds; then the limits of integers


_Draw = Callable[[int], jax.Array]  # a number of words


def _uniform(words: _Draw, n: int, dtype: np.dtype) -> jax.Array:
    return unit(words(n)) if dtype == np.float32 else unit64(words(2 * n))


def _normal(words: _Draw, n: int, _dtype: np.dtype) -> jax.Array:
    return normal_pairs(words(n + n % 2))[:n]


_Numbers = Callable[[_Draw, int, np.dtype], jax.Array]


def _why_not_state(op: _Op) -> str | None:
    key, counter, algorithm = op.inputs[1:4]
    fits = key.shape == (1,) and counter.shape == (2,)
    return first_reason(
        None if fits else f"the key {list(key.shape)} and the counter {list(counter.shape)}",
        None if integers(algorithm)[:1] in _PHILOX else "the generator is not Philox",
    )


def _rule(
    name: str, state: Sequence[Input], numbers: _Numbers, results: Dtypes
) -> OpRule[FlexOptions]:
    is_seeded = state is _SEEDS

    def why_not(op: _Op) -> str | None:
        return _why_not_seeds(op.inputs[1]) if is_seeded else _why_not_state(op)

    def lower(op: _Op) -> Function:
        shape, dtype = op.outputs[0].shape, op.outputs[0].dtype

        def random(_sizes: jax.Array, *state: jax.Array) -> tuple[jax.Array]:
            key, counter = _mixed(state[0]) if is_seeded else state[:2]
            drawn = numbers(lambda n: _words(key, counter, n), math.prod(shape), dtype)
            return (drawn.reshape(shape),)

        return random

    return rule(name, [CONSTANTS, *state], lower, why_not, results=[results])


def _why_not_integers(op: _Op) -> str | None:
    low, high = op.inputs[4:6]
    fits = low.shape == high.shape == () and low.dtype == high.dtype
    limits = f"the limits are {low.dtype} {list(low.shape)}, {list(high.shape)}"
    return _why_not_state(op) or (None if fits else limits)


def _lower_integers(op: _Op) -> Function:
    """Limits of no integer are an error of TensorFlow's; here the result is the lower one."""
    shape, dtype = op.outputs[0].shape, op.outputs[0].dtype
    unsigned, n = np.dtype(f"u{dtype.itemsize}"), math.prod(shape)

    def random(_sizes: jax.Array, *rest: jax.Array) -> tuple[jax.Array]:
        key, counter, _algorithm, *limits = rest
        words = _words(key, counter, n * unsigned.itemsize // 4)
        wide = words if unsigned.itemsize == 4 else words64(words)
        low, high = (jnp.asarray(limit).astype(unsigned) for limit in limits[:2])
        drawn = wide % jnp.maximum(high - low, jnp.ones_like(low))
        return ((low + drawn).astype(dtype).reshape(shape),)

    return random


RULES = table(
    rule("StatelessRandomGetKeyCounter", _SEEDS, _lower_mixed, results=[np.uint64, np.uint64]),
    _rule("StatelessRandomNormal", _SEEDS, _normal, dtypes(np.float32)),
    _rule("StatelessRandomNormalV2", _STATE, _normal, dtypes(np.float32)),
    _rule("StatelessRandomUniform", _SEEDS, _uniform, REALS),
    _rule("StatelessRandomUniformV2", _STATE, _uniform, REALS),
    rule(
        "StatelessRandomUniformIntV2",
        [CONSTANTS, *_STATE, INDEX, INDEX],
        _lower_integers,
        _why_not_integers,
        results=[4],
    ),
)
