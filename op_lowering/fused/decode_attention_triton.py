"""Attention of a decode step on a GPU as one kernel: in Pallas, by Triton.

A program of the grid has one slot and one head of keys and values. It normalizes and rotates the
new query and key, writes the new entries into the caches where they are, and reads the caches from
the first to the last place that the mask shows. Where slots and heads are too few for a GPU's
processors, several programs share the places, and XLA merges their sums. Like the other kernels it
cannot be differentiated, so the context must allow it.

Caches may be int8, with a scale for each place and head (`QuantizedCache`).

Tests run it in Pallas' interpreter and compile it for an H100; it never ran on a GPU.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from jaxdelegate.op_lowering.common.downcast import downcast
from jaxdelegate.op_lowering.common.quantized_cache import quantized
from jaxdelegate.op_lowering.common.triton_support import expect_deprecation
from jaxdelegate.op_lowering.dtypes import HALVES

DTYPES = HALVES | {np.dtype(np.float32)}
MOST_QUERIES, MOST_SIZE = 8, 512  # of a head of keys; elements of a head: both are in registers
_OF_WARP = 1024  # elements of keys, and of values, that a warp reads at once
_SCANNED = 2048  # places of a mask that a program reads at once
# Estimates, not measured: a launch takes about as long as three blocks of places; an H100 has 132
# processors.
_FEW_BLOCKS, _PROGRAMS, _MOST_SPLITS = 4, 132, 16
_LEAST = np.float32(np.finfo(np.float32).min)

Arrays = Mapping[str, jax.Array]
_SHARED = ("q_scale", "k_scale", "v_scale")  # the same for all slots
SCALES = {"keys": "keys.scales", "values": "values.scales"}  # of int8 caches
CACHES = tuple(name for pair in SCALES.items() for name in pair)


@dataclasses.dataclass(frozen=True)
class Form:
    """What a kernel computes."""

    heads: int  # of keys and values
    queries: int  # heads of queries for each of them, at most `MOST_QUERIES`
    size: int  # elements of a head, at most `MOST_SIZE`
    length: int  # places of the caches
    scale: float  # multiplies the logits
    cap: float  # logits are cap * tanh(logits / cap); 0: they are not capped
    keys_last: bool  # places are the last dimension of the cache of keys
    values_last: bool  # the same for values
    # Added to the mean squares of queries, keys and values; 0: they are not normalized.
    epsilons: tuple[float, float, float]
    rotates: bool  # queries and keys are rotated
    hidden: float  # places whose mask is lower than the new place's by more than this are not read
    dtype: np.dtype  # of the result

    @property
    def width(self) -> int:
        """A head's elements, filled to a power of two."""
        return _power(self.size)


@dataclasses.dataclass(frozen=True)
class Launch:
    """How a kernel is launched."""

    splits: int  # programs that share the places of a slot and head
    warps: int  # of a program
    block: int  # places that it reads at once, a power of two

    @classmethod
    def of(cls, slots: int, form: Form) -> Self:
        """A launch for a number of slots.

        Many programs hide each other's waits. A few are larger, and share long caches.
        """
        programs = slots * form.heads
        is_few = programs < _PROGRAMS
        warps = 8 if is_few or form.width >= MOST_SIZE else 4
        block = max(16, min(warps * _OF_WARP // form.width, _power(form.length)))
        blocks = -(-form.length // block)
        if not is_few or blocks <= _FEW_BLOCKS:
            return cls(1, warps, block)
        wanted = min(blocks // 2, _PROGRAMS // programs, _MOST_SPLITS)
        return cls(_power(wanted + 1) // 2, warps, block)


def hidden_below(bound: float | None) -> float:
    """How much lower than a visible place's a mask must be to hide a place.

    Args:
        bound: of the logits' size, as the graph normalizes queries and keys; None: not known. With
            a bound, the hidden places' shares are 0 in float32; without one, as on a CPU, logits
            are taken to be smaller than 5e8.

    Returns:
        With a bound a power of two, so that most layers have one kernel.
    """
    if bound is None or not bound < 1e8:
        return 1e9
    return 2.0 ** math.ceil(math.log2(2.1 * bound + 128))


def decode_attention(form: Form, arrays: Mapping[str, jax.Array | None]) -> tuple[jax.Array, ...]:
    """The result and both caches with the new entries; `jax.vmap` over slots is one kernel.

    The caches' entries of places that the mask hides may be anything, also NaN.

    Args:
        form: what to compute.
        arrays: by name, float32, float16 or bfloat16: q [slots, heads * queries * size]; k and v
            [slots, heads * size]; keys and values, the caches, [slots, heads, length, size], or
            places last; mask [slots, length], added to logits; place, int32 [slots], where the new
            entries are, clamped; cos and sin, [slots, size], of the angles by which element i is
            rotated with element i + size / 2; q_scale, k_scale and v_scale, [size], or None. Of
            int8 caches also SCALES, float32 [slots, heads, length].

    Returns:
        [slots, heads * queries * size] in the form's dtype; the caches in theirs, each with its
        scales.
    """
    present = {name: array for name, array in arrays.items() if array is not None}
    shared = {name: present.pop(name) for name in _SHARED if name in present}
    y: tuple[jax.Array, ...] = _by_slots(form)(present, shared)
    return y


@functools.cache
def _by_slots(form: Form) -> Any:
    call = custom_vmap(functools.partial(_called, form))

    @call.def_vmap
    def _(size: int, batched: Sequence[Any], *arrays: Any) -> Any:
        whole = jax.tree.map(
            lambda is_batched, array: (
                array if is_batched else jnp.broadcast_to(array, (size, *array.shape))
            ),
            tuple(batched),
            arrays,
        )
        if any(jax.tree.leaves(batched[1])):  # each item has scales of its own
            found = lax.map(lambda each: call(*each), whole)
            return found, (True,) * len(found)
        flat = {name: array.reshape(-1, *array.shape[2:]) for name, array in whole[0].items()}
        results = call(flat, arrays[1])
        found = tuple(y.reshape(size, -1, *y.shape[1:]) for y in results)
        return found, (True,) * len(found)

    return call


def _called(form: Form, own: Arrays, shared: Arrays) -> tuple[jax.Array, ...]:
    from jax.experimental import pallas as pl  # noqa: PLC0415 (a GPU's programs alone need it)
    from jax.experimental.pallas import triton  # noqa: PLC0415

    arrays = {**own, **shared}
    caches = {name: arrays[name] for name in CACHES if name in arrays}
    slots, names = len(arrays["keys"]), [*arrays]
    launch = Launch.of(slots, form)
    heads = form.heads * form.queries
    results = [jax.ShapeDtypeStruct((slots, heads * form.size), form.dtype)]  # type: ignore[no-untyped-call]
    if launch.splits > 1:
        parts = slots, launch.splits, heads
        shapes = (*parts, form.size), parts, parts
        results = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]  # type: ignore[no-untyped-call]
    expect_deprecation()
    call = pl.pallas_call(
        functools.partial(_kernel, form=form, names=names, launch=launch),
        out_shape=[*(jax.ShapeDtypeStruct(c.shape, c.dtype) for c in caches.values()), *results],  # type: ignore[no-untyped-call]
        grid=(slots, form.heads, launch.splits),
        input_output_aliases={names.index(name): i for i, name in enumerate(caches)},
        compiler_params=triton.CompilerParams(num_warps=launch.warps, num_stages=2),
        name="decode_attention",
    )
    found = call(*arrays.values())
    new, sums = found[: len(caches)], found[len(caches) :]
    y = sums[0] if launch.splits == 1 else downcast(_merged(*sums), form.dtype, infinities=False)
    return y.reshape(slots, -1), *new


def _merged(sums: jax.Array, totals: jax.Array, tops: jax.Array) -> jax.Array:
    """The result of parts: weighted sums, sums of weights and largest logits.

    It is written out by parts, which XLA fuses into one kernel.
    """
    parts = range(sums.shape[1])
    top = functools.reduce(jnp.maximum, (tops[:, i] for i in parts))
    weights = [jnp.exp(tops[:, i] - top) for i in parts]
    total = functools.reduce(jnp.add, (totals[:, i] * w for i, w in enumerate(weights)))
    y = functools.reduce(jnp.add, (sums[:, i] * w[..., None] for i, w in enumerate(weights)))
    return y / total[..., None]


def _kernel(*refs: Any, form: Form, names: Sequence[str], launch: Launch) -> None:
    program = _Program(form, dict(zip(names, refs, strict=False)), launch)
    caches = [name for name in CACHES if name in names]
    new = dict(zip(caches, refs[len(names) :], strict=False))
    results = refs[len(names) + len(caches) :]
    queries = [program.head("q", program.number * form.queries + i) for i in range(form.queries)]
    key, value = program.head("k", program.number), program.head("v", program.number)
    key = program.write(new, "keys", key, is_last=form.keys_last)
    value = program.write(new, "values", value, is_last=form.values_last)
    program.finish(results, program.attended(queries, key, value))


# For each query: the largest logit, the sum of weights, and the weighted sum of values.
_Sums = tuple[tuple[jax.Array, jax.Array, jax.Array], ...]


class _Program:
    """One program of the grid, with its slot, its head and its share of the places."""

    def __init__(self, form: Form, refs: Mapping[str, Any], launch: Launch) -> None:
        from jax.experimental import pallas as pl  # noqa: PLC0415
        from jax.experimental.pallas import triton  # noqa: PLC0415

        self._form, self._refs, self._launch, self._triton = form, refs, launch, triton
        self._slot, self.number, self._part = (pl.program_id(i) for i in range(3))
        self._lane = lax.iota(np.int32, form.width)
        self._is_lane = self._lane < form.size
        place = triton.load(refs["place"].at[self._slot])
        self._place = lax.clamp(np.int32(0), place, np.int32(form.length - 1))
        own = triton.load(refs["mask"].at[self._slot, self._place])
        self._mask = own.astype(np.float32)
        self._floor = self._mask - np.float32(form.hidden)

    def head(self, name: str, number: Any) -> jax.Array:
        """float32 [width]: a head of `name`, normalized and rotated as the form says."""
        form, lane = self._form, self._lane
        first, half = number * form.size, form.size // 2
        x = self._vector(name, first + lane)
        y = self._scaled(name, x, lane)
        if form.rotates and name != "v":
            is_first = lane < half
            other = jnp.where(is_first, lane + half, lane - half)
            turned = self._scaled(name, self._vector(name, first + other), other)
            sine = self._vector("sin", lane)
            y = y * self._vector("cos", lane) + turned * jnp.where(is_first, -sine, sine)
        epsilon = form.epsilons["qkv".index(name)]
        if not epsilon:
            return y
        return y * lax.rsqrt(jnp.sum(x * x) * np.float32(1 / form.size) + np.float32(epsilon))

    def _vector(self, name: str, at: jax.Array) -> jax.Array:
        ref = self._refs[name].at[self._slot, at]
        return self._loaded(ref, self._is_lane)

    def _scaled(self, name: str, x: jax.Array, lane: jax.Array) -> jax.Array:
        scale = self._refs.get(f"{name}_scale")
        return x if scale is None else x * self._loaded(scale.at[lane], self._is_lane)

    def _loaded(self, ref: Any, mask: jax.Array, other: Any = 0) -> jax.Array:
        x: jax.Array = self._triton.load(ref, mask=mask, other=other)
        return x.astype(np.float32)

    def write(self, new: Mapping[str, Any], name: str, x: jax.Array, *, is_last: bool) -> jax.Array:
        """Write a new entry; returns it as the cache has it.

        Programs of other parts may read its place meanwhile, and discard it.
        """
        cache, scales, is_first = new[name], new.get(SCALES[name]), self._part == 0
        at = (self._lane, self._place) if is_last else (self._place, self._lane)
        if scales is None:
            stored = _narrowed(x, np.dtype(cache.dtype))
            entry = stored.astype(np.float32)
        else:
            largest = jnp.max(jnp.where(self._is_lane, jnp.abs(x), np.float32(0)))
            stored, scale = quantized(x, largest)
            entry = stored.astype(np.float32) * scale
            ref = scales.at[self._slot, self.number, self._place]
            self._triton.store(ref, scale, mask=is_first)
        ref = cache.at[self._slot, self.number, *at]
        self._triton.store(ref, stored, mask=self._is_lane & is_first)
        return entry

    def attended(self, queries: Sequence[jax.Array], key: jax.Array, value: jax.Array) -> _Sums:
        """The sums over this program's places; the first part has the new place, too."""
        is_first = self._part == 0
        own = (self._logits(jnp.sum(query * key)) + self._mask for query in queries)
        one = jnp.where(is_first, np.float32(1), np.float32(0))
        start = tuple((jnp.where(is_first, top, _LEAST), one, value * one) for top in own)
        first, count = self._blocks()

        def add(i: jax.Array, sums: _Sums) -> _Sums:
            return self._with_block((first + i) * self._launch.block, queries, sums)

        sums: _Sums = lax.fori_loop(np.int32(0), count, add, start)
        return sums

    def _logits(self, products: jax.Array) -> jax.Array:
        form = self._form
        if not form.cap:
            return products * np.float32(form.scale)
        return jnp.tanh(products * np.float32(form.scale / form.cap)) * np.float32(form.cap)

    def _blocks(self) -> tuple[jax.Array, jax.Array]:
        """The first block of this program's places, and how many blocks they are."""
        block, parts = np.int32(self._launch.block), np.int32(self._launch.splits)
        begin, end = self._shown()
        first = lax.div(begin, block)
        count = jnp.maximum(lax.div(end + (block - 1), block) - first, 0)
        share = lax.div(count + (parts - 1), parts)
        return first + self._part * share, jnp.clip(count - self._part * share, 0, share)

    def _shown(self) -> tuple[jax.Array, jax.Array]:
        """The first place that the mask shows besides the new one, and the last one plus 1."""
        length = self._form.length
        step = min(_SCANNED, _power(length))

        def scan(i: jax.Array, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            at = i * step + lax.iota(np.int32, step)
            is_shown, _ = self._is_shown(at)
            begin = jnp.min(jnp.where(is_shown, at, np.int32(length)))
            end = jnp.max(jnp.where(is_shown, at + 1, np.int32(0)))
            return jnp.minimum(ends[0], begin), jnp.maximum(ends[1], end)

        nothing = jnp.int32(length), jnp.int32(0)
        steps = np.int32(-(-length // step))
        ends: tuple[jax.Array, jax.Array] = lax.fori_loop(np.int32(0), steps, scan, nothing)
        return ends

    def _is_shown(self, at: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Which places to read from the caches, and their mask."""
        is_place = at < self._form.length
        mask = self._loaded(self._refs["mask"].at[self._slot, at], is_place)
        return is_place & (mask >= self._floor) & (at != self._place), mask

    def _with_block(self, start: jax.Array, queries: Sequence[jax.Array], sums: _Sums) -> _Sums:
        at = start + lax.iota(np.int32, self._launch.block)
        is_shown, mask = self._is_shown(at)
        keys = self._entries("keys", at, is_shown, is_last=self._form.keys_last)
        values = self._entries("values", at, is_shown, is_last=self._form.values_last)

        def one(query: jax.Array, top: jax.Array, total: jax.Array, y: jax.Array) -> Any:
            logits = self._logits(jnp.sum(keys * query[None], axis=1)) + mask
            logits = jnp.where(is_shown, logits, _LEAST)
            new_top = jnp.maximum(top, jnp.max(logits))
            weights = jnp.where(is_shown, jnp.exp(logits - new_top), np.float32(0))
            kept = jnp.exp(top - new_top)
            y = y * kept + jnp.sum(values * weights[:, None], axis=0)
            return new_top, total * kept + jnp.sum(weights), y

        return tuple(one(query, *each) for query, each in zip(queries, sums, strict=True))

    def _entries(
        self, name: str, at: jax.Array, is_shown: jax.Array, *, is_last: bool
    ) -> jax.Array:
        """float32 [block, width] of a cache; 0 where it is not shown.

        All of the block is loaded: a mask that differs from place to place would make it load
        elements of values one by one.
        """
        lane, row, is_place = self._lane[None], at[:, None], at < self._form.length
        index = (lane, row) if is_last else (row, lane)
        ref = self._refs[name].at[self._slot, self.number, *index]
        x = self._loaded(ref, is_place[:, None] & self._is_lane[None])
        if (scales := self._refs.get(SCALES[name])) is not None:
            x *= self._loaded(scales.at[self._slot, self.number, at], is_place)[:, None]
        return jnp.where(is_shown[:, None], x, np.float32(0))

    def finish(self, results: Sequence[Any], sums: _Sums) -> None:
        """Store the result, or this part's sums."""
        for i, (top, total, y) in enumerate(sums):
            head = self.number * self._form.queries + i
            if self._launch.splits == 1:
                at = head * self._form.size + self._lane
                whole = _narrowed(y / total, self._form.dtype)
                self._triton.store(results[0].at[self._slot, at], whole, mask=self._is_lane)
                continue
            place = self._slot, self._part, head
            self._triton.store(results[0].at[*place, self._lane], y, mask=self._is_lane)
            self._triton.store(results[1].at[place], total)
            self._triton.store(results[2].at[place], top)


def _narrowed(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """Values beyond a dtype's range become its largest; NaN stays, which a clamp might lose."""
    if dtype not in HALVES:
        return x.astype(dtype)
    most = np.float32(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    return jnp.where(x > most, most, jnp.where(x < -most, -most, x)).astype(dtype)


def _power(n: int) -> int:
    """The least power of two that is not below `n`."""
    return 1 << max(n - 1, 0).bit_length()
