"""Random numbers: RANDOM_UNIFORM, RANDOM_STANDARD_NORMAL, MULTINOMIAL, STABLEHLO_RNG_BIT_GENERATOR.

The generators are implemented here instead of with jax.random or `lax.rng_bit_generator`: a seeded
model must draw LiteRT's numbers (kernels/random_ops.cc, kernels/rng_util.cc) on every platform.

The first three keep a generator between invokes. Its state, the last input, is uint32 [6]: a
counter of 128 bits, its low word first, then a key of 64 bits.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common.signature import (
    ANY,
    CONSTANTS32,
    FLOAT32,
    UINT64,
    dtypes,
    typed_rule,
)
from jaxdelegate.op_lowering.dtypes import INDICES
from jaxdelegate.op_lowering.random.options import RandomOptions, StablehloRngBitGeneratorOptions
from jaxdelegate.op_lowering.records.enums import RngAlgorithm
from jaxdelegate.op_lowering.rule import Function, Op, table, variable_inputs
from jaxdelegate.op_lowering.spec import TensorSpec

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57  # Philox 4x32
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)  # Threefry 2x32
_PARITY = 0x1BD11BDA
_WORDS_PER_SAMPLE = 2 * 256  # how far MULTINOMIAL advances the counter for each sample


def words64(words: jax.Array) -> jax.Array:
    """uint32 [2 n], low words first -> uint64 [n]."""
    low, high = words.reshape(-1, 2).astype(np.uint64).T
    wide: jax.Array = low | high << jnp.uint64(32)
    return wide


def words32(words: jax.Array) -> jax.Array:
    """uint64 [n] -> uint32 [2 n], low words first."""
    return jnp.stack(_split(words), axis=1).reshape(-1)


def _split(words: jax.Array) -> tuple[jax.Array, jax.Array]:
    return words.astype(np.uint32), (words >> jnp.uint64(32)).astype(np.uint32)


def advance(counter: jax.Array, steps: np.ndarray) -> jax.Array:
    """A counter of 128 bits, uint64 [2], after each number of steps: uint64 [*steps.shape, 2]."""
    low = counter[0] + steps
    return jnp.stack([low, counter[1] + (low < steps).astype(np.uint64)], axis=-1)


def philox(key: jax.Array, counters: jax.Array) -> jax.Array:
    """Philox 4x32 with 10 rounds: key uint32 [2], counters uint64 [n, 2] -> uint32 [4 n]."""
    (c0, c1), (c2, c3) = _split(counters[:, 0]), _split(counters[:, 1])
    for i in range(10):
        first, third = _product(c0, _MULTIPLIERS[0]), _product(c2, _MULTIPLIERS[1])
        k0, k1 = (key[j] + jnp.uint32(i * step % 2**32) for j, step in enumerate(_KEY_STEPS))
        c0, c1, c2, c3 = third[1] ^ c1 ^ k0, third[0], first[1] ^ c3 ^ k1, first[0]
    return jnp.stack([c0, c1, c2, c3], axis=1).reshape(-1)


def _product(word: jax.Array, multiplier: int) -> tuple[jax.Array, jax.Array]:
    """The low and the high word of the product."""
    return _split(word.astype(np.uint64) * jnp.uint64(multiplier))


def draw(state: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """The next n words of a generator, four to a counter, and its state after them."""
    blocks = -(-n // 4)
    counters = advance(words64(state[:4]), np.arange(blocks, dtype=np.uint64))
    return philox(state[4:], counters)[:n], _skip(state, blocks)


def _skip(state: jax.Array, blocks: int) -> jax.Array:
    after = advance(words64(state[:4]), np.asarray(blocks, np.uint64))
    return jnp.concatenate([words32(after), state[4:]])


def unit(words: jax.Array) -> jax.Array:
    """Reals in [0, 1) from 23 bits of each word: exact, like the kernel's use of a mantissa."""
    reals: jax.Array = (words & jnp.uint32(0x7FFFFF)).astype(np.float32) * np.float32(2**-23)
    return reals


def _why_not_generator(op: Op[RandomOptions]) -> str | None:
    state = op.inputs[-1]
    if state is None or not state.is_variable:
        return "the generator's state is not among the inputs"
    wrong = state.shape != (6,) or state.dtype != np.uint32
    return f"the state is {state.dtype} {list(state.shape)}, not uint32 [6]" if wrong else None


def _lower_uniform(op: Op[RandomOptions]) -> Function:
    shape = op.outputs[0].shape

    def random_uniform(_shape: jax.Array, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        words, state = draw(state, math.prod(shape))
        return unit(words).reshape(shape), state

    return random_uniform


def normal_pairs(words: jax.Array) -> jax.Array:
    """Box-Muller's transform of pairs of words, uint32 [2 n] -> float32 [2 n]."""
    first, second = unit(words).reshape(-1, 2).T
    radius = jnp.sqrt(np.float32(-2) * jnp.log(jnp.maximum(first, np.float32(1e-7))))
    # The kernel multiplies by pi in float64, which decides the last bits of the angle.
    angle = (second.astype(np.float64) * (2 * np.pi)).astype(np.float32)
    return jnp.stack([jnp.sin(angle) * radius, jnp.cos(angle) * radius], axis=1).reshape(-1)


def _lower_normal(op: Op[RandomOptions]) -> Function:
    shape = op.outputs[0].shape
    n = math.prod(shape)

    def random_standard_normal(_shape: jax.Array, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        words, state = draw(state, n + n % 2)
        return normal_pairs(words)[:n].reshape(shape), state

    return random_standard_normal


def _why_not_multinomial(op: Op[RandomOptions]) -> str | None:
    return _why_not_generator(op) or _why_not_classes(*op.inputs[:2])


def _why_not_classes(logits: TensorSpec, samples: TensorSpec) -> str | None:
    if len(logits.shape) != 2 or samples.shape:
        return f"expected logits [batch, classes] and a count, got {logits.shape}, {samples.shape}"
    if logits.shape[1] == 0 or int(np.asarray(samples.const)) < 0:
        return f"cannot draw {samples.const} samples from {logits.shape[1]} classes"
    return None


def _cumulative_weights(logits: jax.Array) -> jax.Array:
    """float32 [batch, classes] -> float64; a logit that is not finite weighs nothing."""
    finite = jnp.isfinite(logits)
    known = jnp.where(finite, logits, np.finfo(np.float32).min)
    exponents = logits.astype(np.float64) - known.max(1, keepdims=True).astype(np.float64)
    return jnp.cumsum(jnp.where(finite, jnp.exp(exponents), np.float64(0)), axis=1)


def _lower_multinomial(op: Op[RandomOptions]) -> Function:
    shape, dtype = op.outputs[0].shape, op.outputs[0].dtype
    n = math.prod(shape)
    skipped = shape[0] * (-(-shape[1] // 4) * 4) * _WORDS_PER_SAMPLE

    def multinomial(
        logits: jax.Array, _samples: jax.Array, state: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        reals = unit64(draw(state, 2 * n)[0]).reshape(shape)
        weights = _cumulative_weights(logits)
        reached = reals * weights[:, -1:]
        y = jax.vmap(lambda w, r: jnp.searchsorted(w, r, side="right"))(weights, reached)
        return y.astype(dtype), _skip(state, skipped)

    return multinomial


def unit64(words: jax.Array) -> jax.Array:
    """Reals in [0, 1), from 52 bits of two words, the high ones first: [2 n] -> float64 [n]."""
    high, low = words.reshape(-1, 2).astype(np.uint64).T
    mantissa = (high & jnp.uint64(0xFFFFF)) << jnp.uint64(32) | low
    reals: jax.Array = mantissa.astype(np.float64) * np.float64(2**-52)
    return reals


def _why_not_bits(op: Op[StablehloRngBitGeneratorOptions]) -> str | None:
    state, algorithm = op.inputs[0], op.options.algorithm
    fits = state.shape == (2,) or (state.shape == (3,) and algorithm is not RngAlgorithm.THREEFRY)
    return None if fits else f"{algorithm.name} has no state of {list(state.shape)}"


def _lower_bits(op: Op[StablehloRngBitGeneratorOptions]) -> Function:
    """The state holds a key, the counter's low half, which alone advances, and its high half."""
    shape, dtype = op.outputs[1].shape, op.outputs[1].dtype
    width = 2 if op.options.algorithm is RngAlgorithm.THREEFRY else 4
    blocks = -(-math.prod(shape) * (dtype.itemsize // 4) // width)
    steps = np.arange(blocks, dtype=np.uint64)
    high = 2 if op.inputs[0].shape == (3,) else 0  # Philox takes the key in its place

    def stablehlo_rng_bit_generator(state: jax.Array) -> tuple[jax.Array, jax.Array]:
        key, counters = words32(state[:1]), state[1] + steps
        if width == 2:
            words = _threefry(key, counters)
        else:
            both = jnp.stack([counters, jnp.broadcast_to(state[high], counters.shape)], axis=1)
            words = philox(key, both)
        words = words if dtype.itemsize == 4 else words64(words)
        integers = words[: math.prod(shape)].astype(dtype).reshape(shape)
        return state.at[1].add(jnp.uint64(blocks)), integers

    return stablehlo_rng_bit_generator


def _threefry(key: jax.Array, counters: jax.Array) -> jax.Array:
    """Threefry 2x32 with 20 rounds: key uint32 [2], counters uint64 [n] -> uint32 [2 n]."""
    x, y = _split(counters)
    keys = key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY)
    x, y = x + keys[0], y + keys[1]
    for i in range(1, 6):
        for rotation in _ROTATIONS[(i - 1) % 2]:
            x = x + y
            y = (y << jnp.uint32(rotation) | y >> jnp.uint32(32 - rotation)) ^ x
        x, y = x + keys[i % 3], y + keys[(i + 1) % 3] + jnp.uint32(i)
    return jnp.stack([x, y], axis=1).reshape(-1)


_KEPT = {"states": variable_inputs}  # between invokes
_RANDOM = [CONSTANTS32, ANY]
RULES = table(
    typed_rule(
        "MULTINOMIAL",
        [FLOAT32, CONSTANTS32, ANY],
        _lower_multinomial,
        _why_not_multinomial,
        results=[INDICES],
        **_KEPT,
    ),
    typed_rule(
        "RANDOM_STANDARD_NORMAL",
        _RANDOM,
        _lower_normal,
        _why_not_generator,
        results=[np.float32],
        **_KEPT,
    ),
    typed_rule(
        "RANDOM_UNIFORM", _RANDOM, _lower_uniform, _why_not_generator, results=[np.float32], **_KEPT
    ),
    typed_rule(
        "STABLEHLO_RNG_BIT_GENERATOR",
        [UINT64],
        _lower_bits,
        _why_not_bits,
        results=[np.uint64, dtypes(np.int32, np.uint32, np.int64, np.uint64)],
    ),
)
