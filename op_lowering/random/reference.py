"""Random numbers, in numpy, bit for bit as LiteRT's.

Source: kernels/random_ops.cc with TensorFlow's philox_random.h and random_distributions_utils.h
(the operators that keep a generator), kernels/stablehlo_rng_bit_generator.cc and rng_util.cc (the
operator that gets its state). Philox and Threefry: Salmon et al., "Parallel random numbers: as easy
as 1, 2, 3", 2011.

The state of a generator that an operator keeps is uint32 [6]: a counter of 128 bits, its low word
first, then a key of 64 bits. LiteRT sets it when tensors are allocated; every invoke advances it.
"""

import math
import os

import numpy as np

from jaxdelegate.op_lowering.random.options import RandomOptions, StablehloRngBitGeneratorOptions
from jaxdelegate.op_lowering.records.enums import RngAlgorithm
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.reference.kernel import Array, Folds, Infer, Kernel, undeclared_shapes

_WORD = 0xFFFFFFFF
_RESERVED = 2 * 256  # counters that MULTINOMIAL sets aside for each sample, as TensorFlow does


def philox_state(o: RandomOptions) -> tuple[Array]:
    """The generator before the first invoke; from the system's entropy if both seeds are zero."""
    # TfLiteRandomParams holds C ints: the low 32 of the file's 64 bits, with their sign extended.
    seed, seed2 = (np.int64(seed % 2**32).astype(np.int32) for seed in (o.seed, o.seed2))
    if seed == seed2 == 0:
        seed, seed2 = np.frombuffer(os.urandom(16), np.int64)
    return (np.array([0, seed2, seed], "<i8").view(np.uint32),)


def random_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    """The first input holds the shape; None where it is not constant."""
    sizes = inputs[0].const
    return (None if sizes is None else _sizes(sizes),)


def _sizes(sizes: Array) -> Shape:
    if sizes.ndim != 1 or (sizes < 0).any():
        raise ValueError(f"a random tensor's shape must be a vector of sizes, got {sizes.tolist()}")
    return tuple(int(n) for n in sizes)


def random_uniform(
    _o: Options, _inputs: Specs, outputs: Specs, sizes: Array, state: Array
) -> tuple[Array, Array]:
    """Reals in [0, 1), 23 bits of one word each."""
    _check_float("RANDOM_UNIFORM", outputs[0])
    shape = _sizes(sizes)
    words, state = words_of(state, math.prod(shape))
    return unit(words).reshape(shape), state


def random_standard_normal(
    _o: Options, _inputs: Specs, outputs: Specs, sizes: Array, state: Array
) -> tuple[Array, Array]:
    _check_float("RANDOM_STANDARD_NORMAL", outputs[0])
    shape = _sizes(sizes)
    n = math.prod(shape)
    words, state = words_of(state, n + n % 2)
    return normal_pairs(words)[:n].reshape(shape), state


def normal_pairs(words: Array) -> Array:
    """BoxMullerFloat turns two words into two reals, of mean 0 and variance 1."""
    first, second = unit(words[0::2]), unit(words[1::2])
    radius = np.sqrt(np.float32(-2) * np.log(np.maximum(first, np.float32(1e-7))))
    angle = (2 * np.pi * second.astype(np.float64)).astype(np.float32)
    return np.stack([np.sin(angle) * radius, np.cos(angle) * radius], axis=1).reshape(-1)


def multinomial_shape(_o: Options, inputs: Specs) -> tuple[Shape | None, ...]:
    """[batch, samples]; None where the samples are not constant."""
    logits, samples = inputs[:2]
    return (None if samples.const is None else (logits.shape[0], int(samples.const)),)


def multinomial(
    _o: Options, inputs: Specs, outputs: Specs, logits: Array, samples: Array, state: Array
) -> tuple[Array, Array]:
    """Classes drawn by logits [batch, classes]: the first whose cumulative weight exceeds a real.

    Logits that are not finite have no weight; a row of them gives the number of classes.
    """
    n = int(samples)
    if logits.ndim != 2 or logits.shape[1] < 1 or samples.ndim or n < 0:
        raise ValueError(f"MULTINOMIAL: logits {logits.shape}, {samples.tolist()} samples")
    _check_float("MULTINOMIAL", inputs[0])
    words, _ = words_of(state, 2 * len(logits) * n)
    reals = unit_double(words[0::2], words[1::2]).reshape(len(logits), n)
    y = np.zeros((len(logits), n), outputs[0].dtype)
    for i, row in enumerate(logits):
        weights = _cumulative_weights(row)
        y[i] = np.searchsorted(weights, reals[i] * weights[-1], side="right")
    return y, _skip(state, len(logits) * (-(-n // 4) * 4) * _RESERVED)


def _cumulative_weights(row: Array) -> Array:
    finite = np.isfinite(row)
    largest = row.max(initial=np.finfo(np.float32).min, where=finite)
    exponents = np.where(finite, row, -np.inf).astype(np.float64) - np.float64(largest)
    return np.cumsum(np.exp(exponents))


def _check_float(operator: str, spec: TensorSpec) -> None:
    if spec.dtype != np.float32:
        raise TypeError(f"{operator}: {spec.name!r} must be float32, got {spec.dtype}")


def words_of(state: Array, n: int) -> tuple[Array, Array]:
    """The next n words of a Philox generator, four to a counter, and its state after them."""
    blocks = -(-n // 4)
    low, high = state[:4].astype("<u4").view("<u8")
    lows = low + np.arange(blocks, dtype=np.uint64)
    highs = high + (lows < low).astype(np.uint64)
    words = philox(state[4:], lows, highs)
    return words[:n], _skip(state, blocks)


def _skip(state: Array, blocks: int) -> Array:
    counter = (int.from_bytes(state[:4].astype("<u4").tobytes(), "little") + blocks) % 2**128
    return np.concatenate([np.frombuffer(counter.to_bytes(16, "little"), "<u4"), state[4:]])


def philox(key: Array, low: Array, high: Array) -> Array:
    """Philox 4x32-10 of counters (low, high), uint64 [n] each -> uint32 [4 n]."""
    c0, c1, c2, c3 = low & _WORD, low >> 32, high & _WORD, high >> 32
    k0, k1 = (int(word) for word in key)
    for _ in range(10):
        first, third = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = third >> 32 ^ c1 ^ k0, third & _WORD
        c2, c3 = first >> 32 ^ c3 ^ k1, first & _WORD
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return np.stack([c0, c1, c2, c3], axis=1).reshape(-1).astype(np.uint32)


def unit(words: Array) -> Array:
    """Uint32ToFloat: the mantissa of a float32 in [1, 2), less one."""
    return (words & 0x7FFFFF | 0x3F800000).view(np.float32) - np.float32(1)


def unit_double(high: Array, low: Array) -> Array:
    """Uint64ToDouble: 20 bits of one word above another, as the mantissa of a float64."""
    mantissa = (high & 0xFFFFF).astype(np.uint64) << 32 | low
    reals: Array = (mantissa | 0x3FF << 52).view(np.float64)
    return reals - 1


def bit_generator_shapes(
    _infer: Infer, _o: Options, inputs: Specs, outputs: Specs
) -> tuple[Shape | None, ...]:
    return inputs[0].shape, outputs[1].shape


def stablehlo_rng_bit_generator(
    o: StablehloRngBitGeneratorOptions, _inputs: Specs, outputs: Specs, state: Array
) -> tuple[Array, Array]:
    """The next state, and integers of 32 or 64 random bits.

    The state is uint64: the key, the low 64 bits of the counter (the only ones that advance) and
    the high ones. Without those Philox uses the key in their place; Threefry never has them.
    """
    sizes = (2,) if o.algorithm is RngAlgorithm.THREEFRY else (2, 3)
    if state.ndim != 1 or len(state) not in sizes:
        raise ValueError(f"{o.algorithm.name}: the state must be uint64 {sizes}, got {state.shape}")
    bits = outputs[1]
    n = math.prod(bits.shape) * (bits.dtype.itemsize // 4)
    if o.algorithm is RngAlgorithm.THREEFRY:
        words, blocks = _threefry_words(state, n)
    else:
        words, blocks = _philox_words(state, n)
    after = state.copy()
    after[1:2] += np.uint64(blocks)
    return after, words[:n].view(bits.dtype).reshape(bits.shape)


def _philox_words(state: Array, n: int) -> tuple[Array, int]:
    blocks = -(-n // 4)
    low = state[1] + np.arange(blocks, dtype=np.uint64)
    high = np.full(blocks, state[2 if len(state) == 3 else 0])
    return philox(state[:1].astype("<u8").view("<u4"), low, high), blocks


def _threefry_words(state: Array, n: int) -> tuple[Array, int]:
    """Threefry 2x32-20: additions of words wrap."""
    blocks = -(-n // 2)
    counters = state[1] + np.arange(blocks, dtype=np.uint64)
    x, y = counters.astype(np.uint32), (counters >> 32).astype(np.uint32)
    first, second = (np.array(word) for word in state[:1].astype("<u8").view("<u4"))
    keys = first, second, first ^ second ^ np.uint32(0x1BD11BDA)
    x, y = x + keys[0], y + keys[1]
    for i in range(5):
        for bits in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            x = x + y
            y = (y << bits | y >> (32 - bits)) ^ x
        x, y = x + keys[(i + 1) % 3], y + keys[(i + 2) % 3] + np.uint32(i + 1)
    return np.stack([x, y], axis=1).reshape(-1), blocks


KERNELS = {
    "RANDOM_UNIFORM": Kernel(random_uniform, random_shape, Folds.NEVER, philox_state),
    "RANDOM_STANDARD_NORMAL": Kernel(
        random_standard_normal, random_shape, Folds.NEVER, philox_state
    ),
    "MULTINOMIAL": Kernel(multinomial, multinomial_shape, Folds.NEVER, philox_state),
    "STABLEHLO_RNG_BIT_GENERATOR": Kernel(
        stablehlo_rng_bit_generator, undeclared_shapes, inferred_shapes=bit_generator_shapes
    ),
}
