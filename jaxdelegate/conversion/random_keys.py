"""Random keys that are inputs: the generator threefry2x32, by additions and bits of uint32."""

import math
from typing import Any

import jax
import numpy as np

from jaxdelegate.conversion.emitter import BOOL, Emitter
from jaxdelegate.conversion.graph import Key, Shape, Value
from jaxdelegate.conversion.table import Primitive

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = 0x1BD11BDA
_U32 = np.dtype(np.uint32)
_DTYPES = {8: np.uint8, 16: np.uint16, 32: np.uint32}
_PASS = "pass the random numbers as an input"


def _threefry(e: Emitter, key: Key, counts: Value) -> Key:
    """The hash of 64-bit counts whose high halves are 0, for a key or one for each count."""

    def mixed(op: str, a: Value, b: Value) -> Value:
        return e.op(op, [a, b], counts.shape, _U32)

    def rotated(x: Value, by: int) -> Value:
        left = mixed("MUL", x, e.const(1 << by, _U32))
        return mixed("BITWISE_XOR", left, mixed("RIGHT_SHIFT", x, e.const(32 - by, _U32)))

    first, second = (e.broadcast(v, counts.shape) for v in (key.re, key.im))
    parity = e.broadcast(e.const(_PARITY, _U32), counts.shape)
    third = mixed("BITWISE_XOR", mixed("BITWISE_XOR", first, second), parity)
    keys = (first, second, third)
    a, b = first, mixed("STABLEHLO_ADD", counts, second)
    for i in range(5):
        for by in _ROTATIONS[i % 2]:
            a = mixed("STABLEHLO_ADD", a, b)
            b = mixed("BITWISE_XOR", rotated(b, by), a)
        a = mixed("STABLEHLO_ADD", a, keys[(i + 1) % 3])
        b = mixed("STABLEHLO_ADD", b, keys[(i + 2) % 3])
        b = mixed("STABLEHLO_ADD", b, e.broadcast(e.const(i + 1, _U32), counts.shape))
    return Key(a, b)


def _each(e: Emitter, key: Key, shape: Shape) -> Key:
    """The hashes of 0, 1, 2 and so on, in a shape, for each key."""
    if not jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
        e.refuse("jax_threefry_partitionable is off", _PASS)
    full, rank = (*key.shape, *shape), len(key.shape)
    numbers = np.arange(math.prod(shape), dtype=np.uint32).reshape((1,) * rank + tuple(shape))
    spread = (*key.shape, *(1 for _ in shape))
    halves = Key(*(e.reshape(v, spread) for v in (key.re, key.im)))
    return _threefry(e, halves, e.broadcast(e.const(numbers), full))


def _bits(e: Emitter, key: Key, *, bit_width: int, shape: Shape) -> Value:
    if bit_width not in _DTYPES:
        e.refuse(f"it is not written for {bit_width} bits", "use 32 bits")
    hashed = _each(e, key, shape)
    mixed = e.compute("BITWISE_XOR", hashed.re, hashed.im)
    return e.cast(mixed, _DTYPES[bit_width])


def _split(e: Emitter, key: Key, *, shape: Shape) -> Key:
    return _each(e, key, shape)


def _fold_in(e: Emitter, key: Key, data: Value) -> Key:
    shape = e.broadcast_shape(key.shape, data.shape)
    return _threefry(e, key, e.broadcast(e.cast(data, _U32), shape))


def _seed(e: Emitter, seed: Value, *, impl: Any) -> Key:
    _check(e, impl)
    if seed.dtype.itemsize > 4 or seed.dtype == BOOL:
        e.refuse(f"its seed is {seed.dtype.name}", "use int32")
    zeros = e.broadcast(e.const(0, _U32), seed.shape)
    return Key(zeros, e.cast(seed, _U32))


def _wrap(e: Emitter, data: Value, *, impl: Any) -> Key:
    _check(e, impl)
    shape, starts = data.shape[:-1], [0] * (data.rank - 1)
    halves = (e.slice(data, [*starts, i], (*shape, 1)) for i in range(2))
    return Key(*(e.reshape(half, shape) for half in halves))


def _unwrap(e: Emitter, key: Key) -> Value:
    return e.concatenate([e.reshape(v, (*v.shape, 1)) for v in (key.re, key.im)], -1)


def _check(e: Emitter, impl: Any) -> None:
    if impl.name != "threefry2x32":
        e.refuse(f"its generator {impl.name!r} is not written", "use threefry2x32, JAX's default")


PRIMITIVES = (
    Primitive("random_bits", "RIGHT_SHIFT, BITWISE_XOR, STABLEHLO_ADD, MUL", _bits, "threefry2x32"),
    Primitive("random_split", "as random_bits", _split, "threefry2x32"),
    Primitive("random_fold_in", "as random_bits", _fold_in, "threefry2x32"),
    Primitive("random_seed", "none: two tensors", _seed, "threefry2x32"),
    Primitive("random_wrap", "none: two tensors", _wrap, "threefry2x32"),
    Primitive("random_unwrap", "CONCATENATION", _unwrap),
)
