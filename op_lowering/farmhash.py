"""FarmHash's Fingerprint64 (the published algorithm `farmhashna::Hash64`) on traced arrays.

Keys are uint8 [..., n]; n decides which of the algorithm's branches is traced. Needs 64-bit types.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

_K0, _K1, _K2 = (np.uint64(k) for k in (0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F))
_SEED = 81
_Read = Callable[[int], jax.Array]  # byte position -> the eight bytes from there, uint64 [...]
_State = tuple[jax.Array, ...]  # x, y, z, v0, v1, w0, w1


def fingerprint64(keys: jax.Array) -> jax.Array:
    """uint8 [..., n] -> uint64 [...]."""
    n = keys.shape[-1]
    if n < 8:
        return _up_to_7(keys)

    def read(at: int) -> jax.Array:
        return _number(keys[..., at : at + 8])

    if n <= 16:
        return _up_to_16(read, n)
    if n <= 32:
        return _mix(*_ends(read, n, _K1), _multiplier(n))
    return _up_to_64(read, n) if n <= 64 else _beyond_64(read, n)


def _number(some: jax.Array) -> jax.Array:
    """Bytes, uint8 [..., k], the lowest first -> uint64 [...]."""
    shifts = 8 * np.arange(some.shape[-1], dtype=np.uint64)
    return jnp.sum(some.astype(np.uint64) << shifts, axis=-1)


def _turn(x: jax.Array, n: int) -> jax.Array:
    """Rotate to the right."""
    return jnp.bitwise_or(x >> np.uint64(n), x << np.uint64(64 - n))


def _fold(x: jax.Array) -> jax.Array:
    return jnp.bitwise_xor(x, x >> np.uint64(47))


def _multiplier(n: int) -> jax.Array:
    return jnp.uint64((int(_K2) + 2 * n) % 2**64)


def _mix(u: jax.Array, v: jax.Array, multiplier: jax.Array) -> jax.Array:
    a = _fold((u ^ v) * multiplier)
    return jnp.multiply(_fold((v ^ a) * multiplier), multiplier)


def _up_to_7(keys: jax.Array) -> jax.Array:
    n = keys.shape[-1]
    if n >= 4:
        first, last = _number(keys[..., :4]), _number(keys[..., n - 4 :])
        return _mix((first << np.uint64(3)) + np.uint64(n), last, _multiplier(n))
    if n == 0:
        return jnp.full(keys.shape[:-1], _K2)
    y = _number(keys[..., np.array([0, n // 2])])
    z = (keys[..., n - 1].astype(np.uint64) << np.uint64(2)) + np.uint64(n)
    return _fold(y * _K2 ^ z * _K0) * _K2


def _up_to_16(read: _Read, n: int) -> jax.Array:
    multiplier = _multiplier(n)
    first, last = read(0) + _K2, read(n - 8)
    u = _turn(last, 37) * multiplier + first
    return _mix(u, (_turn(first, 25) + last) * multiplier, multiplier)


def _ends(read: _Read, n: int, first: np.uint64) -> tuple[jax.Array, jax.Array]:
    """The 16 bytes at either end as two words to mix."""
    a, b, c, d = read(0) * first, read(8), read(n - 8) * _multiplier(n), read(n - 16) * _K2
    return _turn(a + b, 43) + _turn(c, 30) + d, a + _turn(b + _K2, 18) + c


def _up_to_64(read: _Read, n: int) -> jax.Array:
    multiplier = _multiplier(n)
    y, z = _ends(read, n, _K2)
    z = _mix(y, z, multiplier)
    e, f = read(16) * multiplier, read(24)
    g, h = (y + read(n - 32)) * multiplier, (z + read(n - 24)) * multiplier
    u = _turn(e + f, 43) + _turn(g, 30) + h
    return _mix(u, e + _turn(f + read(0) * _K2, 18) + g, multiplier)


def _beyond_64(read: _Read, n: int) -> jax.Array:
    """A state takes in 64 bytes at a time, the last 64 at last: some of them once more."""
    y = jnp.full_like(read(0), (_SEED * int(_K1) + 113) % 2**64)
    z = _fold(y * _K2 + np.uint64(113)) * _K2
    x = np.uint64(_SEED * int(_K2) % 2**64) + read(0)
    nothing = jnp.zeros_like(y)
    state: _State = x, y, z, nothing, nothing, nothing, nothing
    for at in range(0, (n - 1) // 64 * 64, 64):
        state = _take_in(read, at, state, _K1, np.uint64(1))
    x, y, z, v0, v1, w0, w1 = state
    multiplier = _K1 + ((z & np.uint64(0xFF)) << np.uint64(1))
    w0 = w0 + np.uint64((n - 1) % 64)
    v0 = v0 + w0
    state = x, y, z, v0, v1, w0 + v0, w1
    x, y, z, v0, v1, w0, w1 = _take_in(read, n - 64, state, multiplier, np.uint64(9))
    u = _mix(v0, w0, multiplier) + _fold(y) * _K0 + z
    return _mix(u, _mix(v1, w1, multiplier) + x, multiplier)


def _take_in(
    read: _Read, at: int, state: _State, multiplier: jax.Array | np.uint64, weight: np.uint64
) -> _State:
    x, y, z, v0, v1, w0, w1 = state
    x = _turn(x + y + v0 + read(at + 8), 37) * multiplier ^ w1 * weight
    y = _turn(y + v1 + read(at + 48), 42) * multiplier + v0 * weight + read(at + 40)
    z = _turn(z + w0, 33) * multiplier
    v0, v1 = _weak(read, at, v1 * multiplier, x + w0)
    w0, w1 = _weak(read, at + 32, z + w1, y + read(at + 16))
    return z, y, x, v0, v1, w0, w1


def _weak(read: _Read, at: int, a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """32 bytes into two words."""
    start = a + read(at)
    end = start + read(at + 8) + read(at + 16)
    turned = _turn(b + start + read(at + 24), 21)
    return end + read(at + 24), turned + _turn(end, 44) + start
