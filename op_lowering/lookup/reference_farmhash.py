"""FarmHash's Fingerprint64 (the published algorithm `farmhashna::Hash64`), for many keys at once.

Keys are uint8 [..., n]: one array, one length. All arithmetic is modulo 2**64.
"""

import numpy as np

from jaxdelegate.reference.kernel import Array

_K0, _K1, _K2 = (
    np.asarray(k, np.uint64) for k in (0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F)
)
_Pair = tuple[Array, Array]


def fingerprint64(keys: Array) -> Array:
    """uint8 [..., n] -> uint64 [...]."""
    n = keys.shape[-1]
    mix = _short if n <= 16 else _medium if n <= 32 else _longer if n <= 64 else _long
    with np.errstate(over="ignore"):  # a lone key makes scalars, which warn where arrays wrap
        return mix(keys)


def _number(x: int | Array) -> Array:
    return np.asarray(x, np.uint64)


def _fetch(keys: Array, at: int, dtype: str = "<u8") -> Array:
    """The number that begins at a byte; a negative position counts from the end."""
    at %= keys.shape[-1]
    word = np.ascontiguousarray(keys[..., at : at + np.dtype(dtype).itemsize])
    return _number(word.view(dtype)[..., 0])


def _rotate(x: Array, bits: int) -> Array:
    return _number(x >> bits | x << (64 - bits))


def _shift_mix(x: Array) -> Array:
    return _number(x ^ x >> 47)


def _join(u: Array, v: Array, factor: Array) -> Array:
    a = _shift_mix((u ^ v) * factor)
    return _number(_shift_mix((v ^ a) * factor) * factor)


def _factor(n: int) -> Array:
    return _number(_K2 + 2 * n)


def _short(keys: Array) -> Array:
    """At most 16 bytes."""
    n = keys.shape[-1]
    if n >= 8:
        a, b = _fetch(keys, 0) + _K2, _fetch(keys, -8)
        c, d = _rotate(b, 37) * _factor(n) + a, (_rotate(a, 25) + b) * _factor(n)
        return _join(c, d, _factor(n))
    if n >= 4:
        first, last = _fetch(keys, 0, "<u4"), _fetch(keys, -4, "<u4")
        return _join((first << 3) + n, last, _factor(n))
    if n == 0:
        return np.full(keys.shape[:-1], _K2)
    first, middle, last = (_number(keys[..., i]) for i in (0, n // 2, n - 1))
    return _shift_mix((first + (middle << 8)) * _K2 ^ (n + (last << 2)) * _K0) * _K2


def _ends(keys: Array, first_factor: Array) -> tuple[Array, Array, Array]:
    """The 16 bytes at either end as two words to join, and the first word."""
    n = keys.shape[-1]
    a, b = _fetch(keys, 0) * first_factor, _fetch(keys, 8)
    c, d = _fetch(keys, -8) * _factor(n), _fetch(keys, -16) * _K2
    return _rotate(a + b, 43) + _rotate(c, 30) + d, a + _rotate(b + _K2, 18) + c, a


def _medium(keys: Array) -> Array:
    """17 to 32 bytes."""
    u, v, _ = _ends(keys, _K1)
    return _join(u, v, _factor(keys.shape[-1]))


def _longer(keys: Array) -> Array:
    """33 to 64 bytes."""
    factor = _factor(keys.shape[-1])
    y, v, a = _ends(keys, _K2)
    z = _join(y, v, factor)
    e, f = _fetch(keys, 16) * factor, _fetch(keys, 24)
    g, h = (y + _fetch(keys, -32)) * factor, (z + _fetch(keys, -24)) * factor
    return _join(_rotate(e + f, 43) + _rotate(g, 30) + h, e + _rotate(f + a, 18) + g, factor)


def _mix_32(keys: Array, at: int, a: Array, b: Array) -> _Pair:
    """Mix 32 bytes into a pair (WeakHashLen32WithSeeds)."""
    w, x, y, z = (_fetch(keys, at + 8 * i) for i in range(4))
    a = a + w
    b = _rotate(b + a + z, 21)
    inner = a + x + y
    return inner + z, b + _rotate(inner, 44) + a


def _long(keys: Array) -> Array:
    """More than 64 bytes: a state of seven words that takes in 64 bytes at a time."""
    n = keys.shape[-1]
    zero = np.zeros(keys.shape[:-1], np.uint64)
    y = zero + 81 * _K1 + 113
    z = _shift_mix(y * _K2 + 113) * _K2
    x = 81 * _K2 + _fetch(keys, 0)
    v, w = (zero, zero), (zero, zero)
    for at in range(0, (n - 1) // 64 * 64, 64):
        x, y, z, v, w = _round(keys, at, (x, y, z, v, w), _K1, 1)
    factor = _number(_K1 + ((z & 0xFF) << 1))
    first = w[0] + (n - 1) % 64
    v = v[0] + first, v[1]
    w = first + v[0], w[1]
    x, y, z, v, w = _round(keys, n - 64, (x, y, z, v, w), factor, 9)
    return _join(
        _join(v[0], w[0], factor) + _shift_mix(y) * _K0 + z, _join(v[1], w[1], factor) + x, factor
    )


def _round(
    keys: Array, at: int, state: tuple[Array, Array, Array, _Pair, _Pair], factor: Array, nine: int
) -> tuple[Array, Array, Array, _Pair, _Pair]:
    """Mix in 64 bytes; `nine` is 9 in the last round, and 1 before."""
    x, y, z, v, w = state
    x = _rotate(x + y + v[0] + _fetch(keys, at + 8), 37) * factor
    y = _rotate(y + v[1] + _fetch(keys, at + 48), 42) * factor
    x = x ^ w[1] * nine
    y = y + v[0] * nine + _fetch(keys, at + 40)
    z = _rotate(z + w[0], 33) * factor
    v = _mix_32(keys, at, v[1] * factor, x + w[0])
    w = _mix_32(keys, at + 32, z + w[1], y + _fetch(keys, at + 16))
    return z, y, x, v, w
