"""Functions that `from_jax` writes, each with examples; the tables of test_functions.py."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return _RNG.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return np.abs(normal(*shape)) + np.float32(0.1)


def below(limit: int, *shape: int) -> np.ndarray:
    return _RNG.integers(0, limit, shape).astype(np.int32)


W, B, W2 = normal(8, 16), normal(16), normal(16, 4)
KERNEL, DEPTH, POINT = normal(3, 3, 4, 8), normal(3, 3, 1, 4), normal(1, 1, 4, 6)
NCHW = ("NCHW", "OIHW", "NCHW")
NHWC = ("NHWC", "HWIO", "NHWC")


def conv(x: Any, kernel: Any, dims: Any = NHWC, strides: Any = (1, 1), **how: Any) -> Any:
    how = {"padding": "SAME", **how}
    return lax.conv_general_dilated(x, kernel, strides, dimension_numbers=dims, **how)


def norm(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def mlp(x: Any) -> Any:
    return jax.nn.softmax(jax.nn.relu(x @ W + B) @ W2)


def cnn(x: Any) -> Any:
    x = jax.nn.relu6(conv(x, KERNEL, strides=(2, 2)) + B[:8])
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return x.reshape(x.shape[0], -1).mean(-1)


def nchw(x: Any) -> Any:
    kernel = jnp.transpose(KERNEL, (3, 2, 0, 1))
    x = jax.nn.relu(conv(x, kernel, NCHW) + B[:8, None, None])
    x = jax.nn.relu(conv(x, jnp.tile(kernel, (1, 2, 1, 1)), NCHW) + x)
    return x.mean((2, 3))


def grouped(x: Any) -> Any:
    return conv(x, normal_once(3, 3, 2, 8), feature_group_count=2)


@functools.cache
def normal_once(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def depthwise(x: Any) -> Any:
    return conv(jax.nn.relu6(conv(x, DEPTH, feature_group_count=4)), POINT)


def transposed_conv(x: Any) -> Any:
    return lax.conv_transpose(x, KERNEL, (2, 2), "SAME") + lax.conv_transpose(
        x, KERNEL, (2, 2), ((1, 2), (1, 2))
    )


def batch_norm(x: Any) -> Any:
    y = conv(x, KERNEL)
    mean, variance = B[:8], np.abs(B[8:])
    return jax.nn.relu((y - mean) * lax.rsqrt(variance + 1e-3) * W[0, :8] + W[1, :8])


def attention(x: Any, mask: Any) -> Any:
    q, k, v = (jnp.einsum("bsd,dhe->bshe", x, normal_once(8, 2, n)) for n in (4, 4, 4))
    scores = jnp.einsum("bqhe,bkhe->bhqk", q, k) / 2.0
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
    return jnp.einsum("bhqk,bkhe->bqhe", weights, v)


def decode(cache: Any, x: Any, position: Any) -> Any:
    keys = lax.dynamic_update_slice(cache["k"], x[:, None] @ normal_once(8, 8), (0, position, 0))
    values = lax.dynamic_update_slice(cache["v"], x[:, None], (0, position, 0))
    scores = jnp.einsum("bd,bsd->bs", x, keys)
    scores = jnp.where(jnp.arange(keys.shape[1]) <= position, scores, -jnp.inf)
    return jnp.einsum("bs,bsd->bd", jax.nn.softmax(scores), values), {"k": keys, "v": values}


def cell(state: Any, x: Any) -> Any:
    h, c = state
    i, f, g, o = jnp.split(jnp.concatenate([x, h], -1) @ normal_once(12, 16), 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h


def lstm(xs: Any) -> Any:
    zeros = jnp.zeros((xs.shape[1], 4))
    (h, _), out = lax.scan(cell, (zeros, zeros), xs)
    return h, out


def boxes(scores: Any, deltas: Any) -> Any:
    best, index = lax.top_k(scores.max(-1), 3)
    picked = jnp.take_along_axis(deltas, index[..., None], axis=1)
    center, size = picked[..., :2], jnp.exp(picked[..., 2:])
    return best, jnp.concatenate([center - size / 2, center + size / 2], -1)


def spectrum(x: Any) -> Any:
    frames = x.reshape(4, 32) * np.hanning(32).astype(np.float32)
    power = jnp.abs(jnp.fft.rfft(frames)) ** 2
    return jnp.log(power @ np.abs(normal_once(17, 5)) + 1e-3)


def branches(x: Any, k: Any) -> Any:
    return lax.switch(k, [lambda a: a + 1, lambda a: a * 2, jnp.sin], x), lax.cond(
        x.sum() > 0, lambda a: a @ W, lambda a: a[:, ::-1] @ W + 1, x
    )


def halves(x: Any) -> Any:
    return lax.while_loop(lambda c: c[0].max() > 1, lambda c: (c[0] / 2, c[1] + 1), (x, 0))


def tree(batch: Any, scale: Any) -> Any:
    return {"sum": batch["a"] + batch["b"][0], "parts": (batch["b"][1] * scale, -batch["a"])}


def folded_random(x: Any) -> Any:
    keep = jax.random.bernoulli(jax.random.key(1), 0.5, x.shape)
    return jnp.where(keep, x * 2, 0) + jax.random.normal(jax.random.PRNGKey(2), x.shape)


@jax.custom_jvp
def clipped(x: Any) -> Any:
    return jnp.clip(x, -1, 1)


clipped.defjvp(lambda p, t: (clipped(*p), t[0]))


@jax.custom_vjp
def scaled(x: Any) -> Any:
    return x * 3


scaled.defvjp(lambda x: (x * 3, None), lambda _, g: (g,))


def passed_through(x: Any) -> Any:
    return jax.checkpoint(clipped)(scaled(x)), jax.jit(scaled)(lax.stop_gradient(x))


def writes(x: Any, i: Any) -> Any:
    return (
        x.at[i].set(1.0),
        x.at[i, 0].add(2.0),
        x.at[1:3].set(0.0),
        x.at[jnp.array([0, 2])].max(0.5),
        x.at[0, 1].mul(3.0),
    )


def reads(x: Any, i: Any) -> Any:
    return x[i], x[:, i[0]], x[i, i], jnp.take(x, i - 2, axis=1), x[i[1]], x[::2, 1:-1]


def numpy_like(x: Any) -> Any:
    return (
        jnp.sort(x, axis=0),
        jnp.argsort(x),
        jnp.argmax(x, 1),
        jnp.argmin(x, 0),
        jnp.cumsum(x, 1),
        jnp.cumprod(x, 0),
        lax.cummax(x, axis=1, reverse=True),
        lax.cummin(x, axis=0),
        lax.cumlogsumexp(x, axis=1),
        jnp.flip(x, (0, 1)),
        jnp.roll(x, 2, 1),
        jnp.pad(x, ((1, 0), (2, 1)), constant_values=3),
        lax.pad(x, 0.5, ((1, 0, 2), (-1, 1, 1))),
        jnp.tile(x, (2, 1)),
        jnp.stack([x, x * 2], 1),
        jnp.any(x > 1, 1),
        jnp.all(x > -1),
        jnp.prod(x, 1),
        x.std(0),
    )


def integers(a: Any, b: Any) -> Any:
    return a + b, a // b, a % b, a * b - 3, jnp.minimum(a, b), a == b, (a > b) & ~(a < 3), a ^ b


def divided(a: Any, b: Any) -> Any:
    """Where b is 0, kernels would fail."""
    return jnp.gcd(a, b), jnp.where(b == 0, 0, a // b), lax.scan(lambda c, x: (c, x), a, b[:0])


def wide_integers(a: Any, b: Any) -> Any:
    return lax.rem(a, b), a % b, jnp.abs(a), jnp.sign(a), a - b * 2, jnp.maximum(a, b)


def bits(x: Any, by: Any) -> Any:
    """Operations on bits, with shifts beyond their number."""
    zero = jnp.zeros_like(by)
    logical, arithmetic = lax.shift_right_logical, lax.shift_right_arithmetic
    return (
        (x & 3, x | 9, x ^ 5, ~x, x & x[::-1], x << 3, logical(x, zero + 2), x >> 1),
        (lax.shift_left(x, by), logical(x, by), arithmetic(x, by), lax.shift_left(x, zero + 40)),
        (lax.bitcast_convert_type(x, np.uint32) >> 3, lax.population_count(x), lax.clz(x)),
    )


def unsigned(x: Any) -> Any:
    """What kernels have for signed integers only."""
    picked = jnp.take(x, np.array([3, 1]))
    moved = jnp.pad(x, 1), picked, jnp.concatenate([x, x]), jnp.stack([x, x])
    return moved, jnp.sort(x), x.at[1].set(7), x.at[1].add(7), x[::-1] & 255


def searched(x: Any) -> Any:
    """It halves unsigned integers."""
    grid = jnp.linspace(-2, 2, 9, dtype=np.float32)
    return jnp.searchsorted(grid, x), jnp.interp(x, grid, grid * grid)


def several_keys(a: Any, b: Any) -> Any:
    return (
        lax.sort((a, b, a * 2), num_keys=2),
        lax.sort((a, b > 0, b), num_keys=3, dimension=0),
        jnp.lexsort((b, a)),
        jnp.argsort(a, stable=True, descending=True),
        lax.approx_min_k(b, 3, reduction_dimension=0),
    )


def random_numbers(data: Any) -> Any:
    """The bits are those of JAX."""
    first, *others = jax.random.split(jax.random.wrap_key_data(data), 3)
    folded = jax.random.fold_in(jax.random.key(3), data[1])
    return (
        jax.random.bits(first, (2, 3)),
        jax.random.normal(others[0], (40,)),
        jax.vmap(lambda k: jax.random.uniform(k, (2,)))(jnp.stack(others)),
        jax.random.randint(folded, (5,), 0, 10),
        jax.random.permutation(folded, 6),
        jax.random.key_data(folded),
    )


def random_walk(x: Any, seed: Any) -> Any:
    def step(carry: Any, _: Any) -> Any:
        key, y = carry
        key, used = jax.random.split(key)
        return (key, y + jax.random.normal(used, y.shape)), None

    return lax.scan(step, (jax.random.key(seed), x), None, length=30)[0][1]


def pairs_in_loops(x: Any) -> Any:
    """Complex arrays in loops and branches."""
    z = jnp.fft.fft(x)
    turned = lax.fori_loop(0, 20, lambda _, c: c * 1j, z)
    rows = lax.scan(lambda c, y: (c * 1j, c + y), z, jnp.fft.fft(jnp.ones((12, 4))))[1]
    chosen = lax.cond(x.sum() > 0, lambda c: c * 2, lambda c: c * 1j, z)
    return turned.real, rows.imag, chosen.imag


def bytes_of(a: Any, b: Any) -> Any:
    return a + b, a * b, a.sum(), a < b, a.astype(np.int32) >> 1, a.astype(np.float32) / 2


def mathematics(x: Any) -> Any:
    f = (
        jnp.exp, jnp.log, jnp.sqrt, lax.rsqrt, jnp.sin, jnp.cos, jnp.tan, jnp.tanh, jnp.log1p,
        jnp.expm1, jnp.sinh, jnp.cosh, jnp.arctan, jnp.cbrt, jnp.exp2, lax.erf, lax.erfc,
        jnp.floor, jnp.ceil, jnp.round, jnp.isfinite, jnp.square, jnp.arcsinh,
    )  # fmt: skip
    return [g(x) for g in f] + [x**3, x**-2, x**0.5, jnp.arctan2(x, 1 - x), jnp.fmod(x, 0.3)]


def inverse_functions(x: Any) -> Any:
    return (
        jnp.arcsin(x),
        jnp.arccos(x),
        jnp.arctanh(x),
        jnp.arccosh(x + 2),
        jnp.sign(x),
        lax.erf_inv(x),
    )


def activations(x: Any) -> Any:
    names = "relu relu6 gelu silu hard_swish hard_sigmoid softplus leaky_relu log_softmax selu"
    return [getattr(jax.nn, name)(x) for name in names.split()]


def norms(x: Any) -> Any:
    rms = x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)
    return norm(x) * B[:8] + 1, rms, x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def halves_of_precision(x: Any) -> Any:
    return (x.astype(jnp.bfloat16) @ jnp.asarray(W, jnp.bfloat16)).astype(jnp.float32)


def pools(x: Any) -> Any:
    average = lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME") / 9
    lowest = lax.reduce_window(x, jnp.inf, lax.min, (1, 1, 2, 1), (1, 1, 2, 1), "VALID")
    highest = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    cubes = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 2), (1, 1, 2, 1), "SAME")
    return average, lowest, highest, cubes


def products(x: Any, y: Any) -> Any:
    return (
        x @ y,
        W.T @ x[0].T,
        jnp.einsum("bij,bjk->bki", x, y),
        jnp.vdot(x[0, 0], y[0, :, 0]),
        jnp.outer(x[0, 0], y[0, 0]),
        jnp.einsum("bij,j->bi", x, B[:8]),
        jnp.tensordot(x, W2[:8], ((2,), (0,))),
    )


def conv_ranks(x: Any) -> Any:
    one = lax.conv_general_dilated(
        x[:, 0], KERNEL[0], (2,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )
    three = lax.conv_general_dilated(
        x[:, None], KERNEL[None], (1, 1, 1), "VALID", dimension_numbers=("NDHWC", "DHWIO", "NDHWC")
    )
    dilated = conv(x, KERNEL, rhs_dilation=(2, 2))
    padded = conv(x, KERNEL, padding=((2, 0), (1, 3)), strides=(2, 1))
    return jax.nn.relu(one + B[:8]), three, dilated, padded


def fourier(x: Any) -> Any:
    z = jnp.fft.fft(x)
    both = jnp.fft.rfft2(x.reshape(2, 4, 6))
    return z.real, z.imag, jnp.fft.ifft(z * 2).real, jnp.fft.irfft(jnp.fft.rfft(x)), jnp.abs(both)


def complex_numbers(x: Any, y: Any) -> Any:
    a, b = lax.complex(x, y), lax.complex(y + 3, x)
    results = (
        a / b,
        jnp.exp(a),
        a @ b.T,
        a.sum(0),
        jnp.cumsum(a, 1),
        jnp.conj(a) ** 2,
        jnp.pad(a, 1),
    )
    return [(z.real, z.imag) for z in results]


def long_scan(xs: Any) -> Any:
    def step(carry: Any, x: Any) -> Any:
        carry = jnp.tanh(carry * 0.5 + x)
        return carry, (carry * 2, carry.sum())

    last, rows = lax.scan(step, jnp.zeros(3), xs)
    return last, rows, lax.scan(step, jnp.ones(3), xs, reverse=True)[1]


def counted(x: Any) -> Any:
    return lax.fori_loop(0, 20, lambda i, c: c * 0.9 + i, x), lax.map(jnp.sin, x)


def batched(x: Any, i: Any) -> Any:
    return jax.vmap(lambda r, j: lax.dynamic_slice(r, (j,), (3,)))(x, i), jax.vmap(jnp.sort)(x)


def convolved(x: Any, kernels: Any) -> Any:
    """Each image with its own kernel."""
    return jax.vmap(lambda a, k: conv(a[None], k))(x, kernels)


def chosen(x: Any) -> Any:
    return jnp.select([x > 1, x > 0], [x, x * 2], x * 3), jnp.stack([x > 0, x < 0], 1)


def tables(x: Any) -> Any:
    points = np.array([-1, 0, 1], np.float32)
    return jnp.interp(x, points, points**2), jnp.digitize(x, points)


def diagonals(x: Any) -> Any:
    return jnp.diag(x), jnp.triu(x), jnp.unstack(x.astype(jnp.uint8))[1]


def gradient(x: Any) -> Any:
    return jax.grad(lambda a: jnp.sum(jnp.tanh(a @ W) ** 2))(x)


def resize(x: Any) -> Any:
    return jax.image.resize(x, (1, 12, 12, 4), "bilinear"), jnp.repeat(x, 2, axis=1)


def one_hot(i: Any) -> Any:
    return jax.nn.one_hot(i, 5), jnp.eye(5)[i], jnp.tri(3) * i[0]


def constants_out(x: Any) -> Any:
    return x, jnp.arange(3), x, jnp.zeros((2, 2)) + 1


def nonmaximum(boxes: Any, scores: Any) -> Any:
    """Boxes of one coordinate that no better box covers."""
    order = jnp.argsort(-scores)
    sorted_boxes = boxes[order]
    near = jnp.abs(sorted_boxes[:, None] - sorted_boxes[None, :]) < 0.5

    def step(i: Any, kept: Any) -> Any:
        covered = jnp.any(near[i] & kept & (jnp.arange(kept.shape[0]) < i))
        return kept.at[i].set(~covered)

    return lax.fori_loop(0, boxes.shape[0], step, jnp.ones(boxes.shape, bool))


BITS = np.array([5, -12, 2**31 - 1, -(2**31), 0, 77], np.int32)
IMAGE = normal(1, 8, 8, 4)
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "mlp": (mlp, (normal(2, 8),)),
    "vector": (lambda x: jax.nn.relu(x @ W + B), (normal(8),)),
    "cnn": (cnn, (IMAGE,)),
    "nchw": (nchw, (normal(1, 4, 8, 8),)),
    "grouped": (grouped, (IMAGE,)),
    "depthwise": (depthwise, (IMAGE,)),
    "transposed_conv": (transposed_conv, (IMAGE,)),
    "batch_norm": (batch_norm, (IMAGE,)),
    "conv_ranks": (conv_ranks, (IMAGE,)),
    "pools": (pools, (IMAGE,)),
    "resize": (resize, (IMAGE[:, :6, :6],)),
    "attention": (attention, (normal(2, 6, 8), np.tril(np.ones((6, 6), bool)))),
    "decode": (decode, ({"k": normal(2, 5, 8), "v": normal(2, 5, 8)}, normal(2, 8), np.int32(3))),
    "lstm_unrolled": (lstm, (normal(3, 2, 8),)),
    "lstm": (lstm, (normal(20, 2, 8),)),
    "complex_numbers": (complex_numbers, (normal(3, 4), normal(3, 4))),
    "long_scan": (long_scan, (normal(12, 3),)),
    "counted": (counted, (normal(10),)),
    "boxes": (boxes, (normal(1, 10, 4), normal(1, 10, 4))),
    "nonmaximum": (nonmaximum, (positive(9), positive(9))),
    "spectrum": (spectrum, (normal(128),)),
    "fourier": (fourier, (normal(2, 24),)),
    "branches": (branches, (normal(2, 8), np.int32(1))),
    "branches_last": (branches, (-positive(2, 8), np.int32(7))),
    "halves": (halves, (positive(4) * 9,)),
    "tree": (tree, ({"a": normal(3), "b": [normal(3), normal(2, 3)]}, np.float32(2))),
    "folded_random": (folded_random, (normal(3, 4),)),
    "passed_through": (passed_through, (normal(5),)),
    "writes": (writes, (normal(4, 3), np.array([2, 1], np.int32))),
    "writes_outside": (writes, (normal(4, 3), np.array([7, -1], np.int32))),
    "reads": (reads, (normal(5, 5), np.array([4, 1], np.int32))),
    "numpy_like": (numpy_like, (normal(4, 6),)),
    "integers": (integers, (below(50, 8) - 20, below(9, 8) + 1)),
    "divided": (divided, (below(50, 8) - 20, below(3, 8) - 1)),
    "bytes_of": (bytes_of, (below(200, 6).astype(np.uint8), below(200, 6).astype(np.uint8))),
    "bits": (bits, (BITS, np.array([0, 1, 31, 4, 35, -1], np.int32))),
    "unsigned": (unsigned, (BITS.view(np.uint32),)),
    "unsigned_16": (unsigned, (BITS.astype(np.uint16),)),
    "several_keys": (several_keys, (below(3, 4, 7), normal(4, 7))),
    "random_numbers": (random_numbers, (np.array([5, 2**31 + 7], np.uint32),)),
    "random_walk": (random_walk, (normal(3), np.int32(-4))),
    "pairs_in_loops": (pairs_in_loops, (normal(4),)),
    "mathematics": (mathematics, (positive(3, 7),)),
    "inverse_functions": (inverse_functions, (normal(9).clip(-0.9, 0.9),)),
    "activations": (activations, (3 * normal(3, 8),)),
    "norms": (norms, (normal(2, 5, 8),)),
    "products": (products, (normal(2, 3, 8), normal(2, 8, 4))),
    "batched": (batched, (normal(4, 8), below(9, 4))),
    "convolved": (convolved, (normal(2, 5, 5, 4), normal(2, 3, 3, 4, 6))),
    "chosen": (chosen, (normal(9),)),
    "tables": (tables, (normal(9),)),
    "diagonals": (diagonals, (positive(4, 4) * 9,)),
    "gradient": (gradient, (normal(2, 8),)),
    "one_hot": (one_hot, (below(5, 6),)),
    "constants_out": (constants_out, (normal(2),)),
    "searched": (searched, (normal(12),)),
}
