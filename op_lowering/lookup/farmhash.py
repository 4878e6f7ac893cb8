"""FarmHash's Fingerprint64 (the published algorithm `farmhashna::Hash64`) on traced arrays.

Keys are uint8 [..., n], fingerprints uint64 [...]; n decides which of the algorithm's branches is
traced. Needs 64-bit types.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_K0, _K1, _K2 = (np.uint64(k) for k in (0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F))
_SEED = 81
_Read = Callable[[int], jax.Array]  # byte position -> the eight bytes from there, uint64 [...]
_State = tuple[jax.Array, ...]  # x, y, z, v0, v1, w0, w1


def fingerprint64(keys: jax.Array) -> jax.Array:
    n = keys.shape[-1]
    if n < 8:
        return _up_to_7(keys)

    def read(at: int) -> jax.Array:
        return _number(keys[..., at : at + 8])

    if n <= 16:
        return _up_to_16(read, n)
    if n <= 32:
        return _mix(*_ends(read, n, _K1), _multiplier(n))
    return _up_to_64(read, n) if n <= 64 else _beyond_64(keys)


def _number(some: jax.Array) -> jax.Array:
    """Bytes, uint8 [..., k], the lowest first -> uint64 [...]."""
    bytes_ = (some[..., i].astype(np.uint64) << np.uint64(8 * i) for i in range(some.shape[-1]))
    return functools.reduce(jnp.bitwise_or, bytes_)


def _turn(x: jax.Array, n: int) -> jax.Array:
    """Rotate to the right."""
    return jnp.bitwise_or(x >> np.uint64(n), x << np.uint64(64 - n))


def _fold(x: jax.Array) -> jax.Array:
    return jnp.bitwise_xor(x, x >> np.uint64(47))


def _multiplier(n: int) -> np.uint64:
    return np.uint64((int(_K2) + 2 * n) % 2**64)


def _mix(u: jax.Array, v: jax.Array, multiplier: jax.Array | np.uint64) -> jax.Array:
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


def _beyond_64(keys: jax.Array) -> jax.Array:
    """Mix 64 bytes at a time into a state, then the last 64, which may repeat some."""
    n = keys.shape[-1]
    first, last = _number(keys[..., :8]), _words(keys[..., n - 64 :])
    y = jnp.full_like(first, (_SEED * int(_K1) + 113) % 2**64)
    z = _fold(y * _K2 + np.uint64(113)) * _K2
    x = np.uint64(_SEED * int(_K2) % 2**64) + first
    nothing = jnp.zeros_like(y)
    state: _State = x, y, z, nothing, nothing, nothing, nothing
    whole = keys[..., : (n - 1) // 64 * 64].reshape(*keys.shape[:-1], -1, 64)
    state, _ = lax.scan(
        lambda state, block: (_take_in(_words(block), state, _K1, np.uint64(1)), None),
        state,
        jnp.moveaxis(whole, -2, 0),
    )
    x, y, z, v0, v1, w0, w1 = state
    multiplier = _K1 + ((z & np.uint64(0xFF)) << np.uint64(1))
    w0 = w0 + np.uint64((n - 1) % 64)
    v0 = v0 + w0
    state = x, y, z, v0, v1, w0 + v0, w1
    x, y, z, v0, v1, w0, w1 = _take_in(last, state, multiplier, np.uint64(9))
    u = _mix(v0, w0, multiplier) + _fold(y) * _K0 + z
    return _mix(u, _mix(v1, w1, multiplier) + x, multiplier)


def _words(some: jax.Array) -> list[jax.Array]:
    return [_number(some[..., at : at + 8]) for at in range(0, 64, 8)]


def _take_in(
    words: Sequence[jax.Array], state: _State, multiplier: jax.Array | np.uint64, weight: np.uint64
) -> _State:
    """Mix eight words into the state; `weight` is 9 for the last ones."""
    x, y, z, v0, v1, w0, w1 = state
    x = _turn(x + y + v0 + words[1], 37) * multiplier ^ w1 * weight
    y = _turn(y + v1 + words[6], 42) * multiplier + v0 * weight + words[5]
    z = _turn(z + w0, 33) * multiplier
    v0, v1 = _weak(words[:4], v1 * multiplier, x + w0)
    w0, w1 = _weak(words[4:], z + w1, y + words[2])
    return z, y, x, v0, v1, w0, w1


def _weak(words: Sequence[jax.Array], a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    start = a + words[0]
    end = start + words[1] + words[2]
    turned = _turn(b + start + words[3], 21)
    return end + words[3], turned + _turn(end, 44) + start
