"""Random keys that are inputs: the generator threefry2x32, by additions and bits of uint32."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.conversion.emitter import BOOL, Emitter
from jaxdelegate.conversion.graph import Key, Shape, Value
from jaxdelegate.conversion.interpreting import Primitive, by, write

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = 0x1BD11BDA
_U32 = np.dtype(np.uint32)
_DTYPES = {8: np.uint8, 16: np.uint16, 32: np.uint32}


def _threefry(key: Key, counts: Any) -> Key:
    """The hash of 64-bit counts whose high halves are 0, for a key or one for each count."""
    first, second = (jnp.broadcast_to(v, counts.shape) for v in (key.re, key.im))
    keys = (first, second, first ^ second ^ np.uint32(_PARITY))
    a, b = first, counts + second
    for i in range(5):
        for bits in _ROTATIONS[i % 2]:
            a += b
            b = (b * np.uint32(1 << bits)) ^ (b >> np.uint32(32 - bits)) ^ a
        a += keys[(i + 1) % 3]
        b += keys[(i + 2) % 3] + np.uint32(i + 1)
    return Key(a, b)


def _hashes(e: Emitter, key: Key, shape: Shape) -> Any:
    """The hashes of 0, 1, 2 and so on, in a shape, for each key."""
    if not jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
        e.refuse("jax_threefry_partitionable is off", "pass the random numbers as an input")
    spread = (*key.shape, *(1 for _ in shape))
    counts = np.arange(math.prod(shape), dtype=np.uint32).reshape(shape)

    def hashes(key: Key) -> Key:
        each = jnp.broadcast_to(counts, (*key.shape, *shape))
        return _threefry(jax.tree.map(lambda half: half.reshape(spread), key), each)

    return write(e, hashes, key)


def _bits(e: Emitter, key: Key, *, bit_width: int, shape: Shape) -> Value:
    if bit_width not in _DTYPES:
        e.refuse(f"it is not written for {bit_width} bits", "use 32 bits")
    hashed = _hashes(e, key, shape)
    return e.cast(e.compute("BITWISE_XOR", hashed.re, hashed.im), _DTYPES[bit_width])


def _split(e: Emitter, key: Key, *, shape: Shape) -> Any:
    return _hashes(e, key, shape)


def _fold_in(key: Key, data: Any) -> Key:
    shape = jnp.broadcast_shapes(key.shape, data.shape)
    return _threefry(key, jnp.broadcast_to(data.astype(_U32), shape))


def _seed(e: Emitter, seed: Value, *, impl: Any) -> Key:
    _check(e, impl)
    if seed.dtype.itemsize > 4 or seed.dtype == BOOL:
        e.refuse(f"its seed is {seed.dtype.name}", "use int32")
    return Key(e.broadcast(e.const(0, _U32), seed.shape), e.cast(seed, _U32))


def _wrap(e: Emitter, data: Value, *, impl: Any) -> Any:
    _check(e, impl)
    return write(e, lambda d: Key(d[..., 0], d[..., 1]), data)


def _check(e: Emitter, impl: Any) -> None:
    if impl.name != "threefry2x32":
        e.refuse(f"its generator {impl.name!r} is not written", "use threefry2x32, JAX's default")


def _other(e: Emitter, *_: Any, **__: Any) -> None:
    e.refuse("its generator is not written", "use threefry2x32, JAX's default")


_BITS = "RIGHT_SHIFT, BITWISE_XOR, STABLEHLO_ADD, MUL"
_THREEFRY = "threefry2x32"
_UNWRAP = by(lambda key: jnp.stack([key.re, key.im], -1))
PRIMITIVES = (
    Primitive("random_bits", _BITS, _other, _THREEFRY, _bits),
    Primitive("random_split", "as random_bits", _other, _THREEFRY, _split),
    Primitive("random_fold_in", "as random_bits", _other, _THREEFRY, by(_fold_in)),
    Primitive("random_seed", "none: two tensors", _seed, _THREEFRY),
    Primitive("random_wrap", "none: two tensors", _wrap, _THREEFRY),
    Primitive("random_unwrap", "CONCATENATION", _other, "", _UNWRAP),
)
