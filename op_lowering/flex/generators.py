"""Random numbers of a key and a counter, TensorFlow's bit for bit (stateless_random_ops*.cc)."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common.movement import integers
from jaxdelegate.op_lowering.dtypes import INDICES
from jaxdelegate.op_lowering.random.rule import (
    advance,
    normal_pairs,
    philox,
    unit,
    unit64,
    words32,
    words64,
)
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.rule import (
    Function,
    Op,
    OpRule,
    first_reason,
    table,
    why_not_const,
    why_not_dtype,
    why_not_result,
)
from jaxdelegate.op_lowering.spec import Shape, TensorSpec

_Op = Op[FlexOptions]
_PHILOX = (1, 3)  # rng_alg.h; 3 leaves the choice to the device
_SCRAMBLE = np.array([0x3EC8F720, 0x02461E29], np.uint32)  # the key that mixes seeds


def _words(key: jax.Array, counter: jax.Array, n: int) -> jax.Array:
    """uint32 [n] of a key uint64 [1] and a counter uint64 [2], four words to a count."""
    counters = advance(jnp.asarray(counter), np.arange(-(-n // 4), dtype=np.uint64))
    return philox(words32(jnp.asarray(key)), counters)[:n]


# ---- StatelessRandomGetKeyCounter: two seeds


def _why_not_seeds(seeds: TensorSpec) -> str | None:
    two = None if seeds.shape == (2,) else f"{seeds.name!r} {list(seeds.shape)} is not two seeds"
    return why_not_dtype(seeds, INDICES) or two


def _why_not_mixed(op: _Op) -> str | None:
    key, counter = op.outputs[:2]
    return _why_not_seeds(op.inputs[0]) or first_reason(
        why_not_result(key, np.uint64), why_not_result(counter, np.uint64)
    )


def _mixed(seeds: jax.Array) -> tuple[jax.Array, jax.Array]:
    seeds = jnp.asarray(seeds).astype(np.int64).astype(np.uint64)
    mixed = words64(philox(jnp.asarray(_SCRAMBLE), seeds[None]))
    return mixed[:1], jnp.stack([jnp.zeros_like(mixed[1]), mixed[1]])


def _lower_mixed(_op: _Op) -> Function:
    return _mixed


# ---- numbers: shape, key, counter, algorithm, then the limits of integers


def _uniform(draw: Callable[[int], jax.Array], n: int, dtype: np.dtype) -> jax.Array:
    return unit(draw(n)) if dtype == np.float32 else unit64(draw(2 * n))


def _normal(draw: Callable[[int], jax.Array], n: int, _dtype: np.dtype) -> jax.Array:
    return normal_pairs(draw(n + n % 2))[:n]


_Numbers = Callable[[Callable[[int], jax.Array], int, np.dtype], jax.Array]


def _why_not_numbers(op: _Op, dtypes: tuple[type, ...], state: int) -> str | None:
    sizes, y = op.inputs[0], op.outputs[0]
    return first_reason(
        why_not_const(sizes) or why_not_dtype(sizes, INDICES),
        why_not_dtype(y, *dtypes),
        _why_not_state(*op.inputs[1:4]) if state == 3 else _why_not_seeds(op.inputs[1]),
    )


def _why_not_state(key: TensorSpec, counter: TensorSpec, algorithm: TensorSpec) -> str | None:
    words = [spec for spec in (key, counter) if spec.dtype != np.uint64]
    fits = not words and key.shape == (1,) and counter.shape == (2,)
    return first_reason(
        None if fits else f"the key {list(key.shape)} and the counter {list(counter.shape)}",
        why_not_const(algorithm) or why_not_dtype(algorithm, np.int32),
    ) or (None if integers(algorithm)[0] in _PHILOX else "the generator is not Philox")


def _rule(name: str, numbers: _Numbers, *dtypes: type, state: int = 3) -> OpRule[FlexOptions]:
    """`state`: a key, a counter and the algorithm, or 1: the seeds."""

    def why_not(op: _Op) -> str | None:
        return _why_not_numbers(op, dtypes, state)

    def lower(op: _Op) -> Function:
        shape, dtype = op.outputs[0].shape, op.outputs[0].dtype

        def random(_sizes: jax.Array, *given: jax.Array) -> tuple[jax.Array]:
            key, counter = given[:2] if state == 3 else _mixed(given[0])
            drawn = numbers(lambda n: _words(key, counter, n), math.prod(shape), dtype)
            return (drawn.reshape(shape),)

        return random

    return OpRule(f"{FLEX}{name}", FlexOptions, 1, why_not, lower, arity=1 + state)


def _why_not_integers(op: _Op) -> str | None:
    low, high = op.inputs[4:6]
    fits = low.shape == high.shape == () and low.dtype == high.dtype == op.outputs[0].dtype
    return _why_not_numbers(op, (np.int32, np.int64), 3) or (
        None if fits else f"the limits are {low.dtype} {list(low.shape)}, {list(high.shape)}"
    )


def _lower_integers(op: _Op) -> Function:
    """Limits of no integer are an error of TensorFlow's; here the result is the lower one."""
    shape: Shape = op.outputs[0].shape
    dtype = op.outputs[0].dtype
    unsigned, n = np.dtype(f"u{dtype.itemsize}"), math.prod(shape)

    def random(
        _sizes: jax.Array,
        key: jax.Array,
        counter: jax.Array,
        _algorithm: jax.Array,
        low: jax.Array,
        high: jax.Array,
    ) -> tuple[jax.Array]:
        words = _words(key, counter, n * unsigned.itemsize // 4)
        wide = words if unsigned.itemsize == 4 else words64(words)
        low, high = (jnp.asarray(limit).astype(unsigned) for limit in (low, high))
        drawn = wide % jnp.maximum(high - low, jnp.ones_like(low))
        return ((low + drawn).astype(dtype).reshape(shape),)

    return random


RULES = table(
    OpRule(
        f"{FLEX}StatelessRandomGetKeyCounter",
        FlexOptions,
        1,
        _why_not_mixed,
        _lower_mixed,
        results=2,
    ),
    _rule("StatelessRandomNormal", _normal, np.float32, state=1),
    _rule("StatelessRandomNormalV2", _normal, np.float32),
    _rule("StatelessRandomUniform", _uniform, np.float32, np.float64, state=1),
    _rule("StatelessRandomUniformV2", _uniform, np.float32, np.float64),
    OpRule(
        f"{FLEX}StatelessRandomUniformIntV2",
        FlexOptions,
        1,
        _why_not_integers,
        _lower_integers,
        arity=6,
    ),
)
