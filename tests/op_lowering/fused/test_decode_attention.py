"""The kernel of a decode step's attention, in Pallas' interpreter, against float64 in numpy."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental import pallas as pl

from jaxdelegate.op_lowering.common.quantized_cache import QuantizedCache
from jaxdelegate.op_lowering.fused import decode_attention, decode_attention_triton
from jaxdelegate.op_lowering.fused.decode_attention_triton import (
    CACHES,
    SCALES,
    Form,
    Launch,
    hidden_below,
)
from jaxdelegate.op_lowering.options import DecodeAttentionOptions
from jaxdelegate.op_lowering.precision import BFLOAT16
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext, Op
from jaxdelegate.op_lowering.spec import TensorSpec
from tests.support.absent_gpu import lowered_for_gpu

GPU = LoweringContext("gpu", kernels=KernelSet(triton=True))
FLOAT32, FLOAT16 = np.dtype(np.float32), np.dtype(np.float16)
MASKED, WINDOWED = -0.7 * float(np.finfo(np.float32).max), -10000.0
# Of float32 sums; of entries that a cache rounds, relative to values near 1.
TOLERANCES = {FLOAT32: 1e-5, FLOAT16: 2e-3, BFLOAT16: 1.6e-2}
Arrays = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pl, "pallas_call", functools.partial(pl.pallas_call, interpret=True))


def form(heads: int = 2, queries: int = 2, size: int = 16, length: int = 64, **more: Any) -> Form:
    """Qwen3's form unless `more` says otherwise: norms, rotation, values with places last."""
    plain = {"scale": size**-0.5, "cap": 0.0, "keys_last": False, "values_last": True}
    plain |= {"epsilons": (1e-6, 1e-6, 0.0), "rotates": True, "hidden": 1e9, "dtype": FLOAT32}
    return Form(heads, queries, size, length, **{**plain, **more})


def example(f: Form, places: list[int], dtype: np.dtype = FLOAT32, window: int = 0) -> Arrays:
    """Slots that have filled their caches up to these places; the rest of the caches is NaN."""
    random, slots = np.random.default_rng(len(places)), len(places)

    def normal(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    def cache(is_last: bool) -> np.ndarray:
        x = normal(slots, f.heads, f.length, f.size)
        for slot, place in enumerate(places):
            x[slot, :, place:] = np.nan
        return np.ascontiguousarray(x.swapaxes(2, 3) if is_last else x).astype(dtype)

    numbers, place = np.arange(f.length)[None], np.array(places, np.int32)
    mask = np.where(numbers <= place[:, None], 0, MASKED)
    if window:
        mask = np.where(numbers > place[:, None] - window, mask, mask + WINDOWED)
    arrays = {
        "q": normal(slots, f.heads * f.queries * f.size),
        "k": normal(slots, f.heads * f.size),
        "v": normal(slots, f.heads * f.size),
        "keys": cache(f.keys_last),
        "values": cache(f.values_last),
        "place": place,
        "mask": mask.astype(np.float32),
    }
    for name, epsilon in zip("qkv", f.epsilons, strict=True):
        arrays |= {f"{name}_scale": 1 + normal(f.size) / 4} if epsilon else {}
    angles = place[:, None] * np.tile(100.0 ** -np.linspace(0, 1, f.size // 2), 2)
    turns = {"cos": np.cos(angles), "sin": np.sin(angles)}
    return arrays | ({n: np.float32(x) for n, x in turns.items()} if f.rotates else {})


def prepared(f: Form, arrays: Arrays, name: str, slot: int) -> np.ndarray:
    """float64 [heads, size] of one slot, normalized and rotated."""
    x = arrays[name][slot].astype(np.float64).reshape(-1, f.size)
    epsilon = f.epsilons["qkv".index(name)]
    if epsilon:
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * arrays[f"{name}_scale"]
    if not f.rotates or name == "v":
        return x
    one, two = np.split(x, 2, -1)
    return x * arrays["cos"][slot] + np.concatenate([-two, one], -1) * arrays["sin"][slot]


def expected(
    f: Form, arrays: Arrays, *, is_written: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    caches = [arrays["keys"].copy(), arrays["values"].copy()]
    by_place = [
        x.swapaxes(2, 3) if is_last else x
        for x, is_last in zip(caches, (f.keys_last, f.values_last), strict=True)
    ]
    results = []
    for slot, place in enumerate(arrays["place"]):
        for name, cache in zip("kv", by_place, strict=True) if not is_written else ():
            cache[slot, :, place] = prepared(f, arrays, name, slot)
        mask = arrays["mask"][slot].astype(np.float64)
        shown = mask > MASKED / 2
        keys, values = (c[slot][:, shown].astype(np.float64) for c in by_place)
        q = prepared(f, arrays, "q", slot).reshape(f.heads, f.queries, f.size)
        logits = q @ keys.swapaxes(1, 2) * f.scale
        logits = np.tanh(logits / f.cap) * f.cap if f.cap else logits
        shares = np.exp(logits + mask[shown] - (logits + mask[shown]).max(-1, keepdims=True))
        results.append((shares / shares.sum(-1, keepdims=True) @ values).ravel())
    return np.array(results), caches[0], caches[1]


def run(f: Form, arrays: Arrays) -> list[np.ndarray]:
    with jax.enable_x64(True):
        got = jax.jit(functools.partial(decode_attention_triton.decode_attention, f))(arrays)
    return [np.asarray(y) for y in got]


def check(f: Form, arrays: Arrays) -> None:
    dtype = arrays["keys"].dtype
    for got, want in zip(run(f, arrays), expected(f, arrays), strict=True):
        given, wanted = np.float64(got), np.float64(want)
        np.testing.assert_allclose(given, wanted, rtol=0, atol=TOLERANCES[dtype])


SLOTS = [5], [0, 63, 17], [*range(16)], [63 - i for i in range(64)]
DTYPES = FLOAT32, FLOAT16, BFLOAT16, FLOAT32
EACH = [*zip(SLOTS, DTYPES, strict=True)]
OTHERS = [(p, d) for p in SLOTS for d in DTYPES[:3] if (p, d) not in EACH]


@pytest.mark.parametrize(
    ("places", "dtype"),
    [*EACH, *(pytest.param(*each, marks=pytest.mark.slow) for each in OTHERS)],
    ids=lambda x: f"{len(x)} slots" if isinstance(x, list) else str(x),
)
def test_slots_and_dtypes(places: list[int], dtype: np.dtype) -> None:
    """At the first place, in the middle, and in a full cache; unfilled places are NaN."""
    f = form(heads=1 if len(places) > 16 else 2)
    check(f, example(f, places, dtype))


FAMILIES = {
    "llama": form(epsilons=(0.0, 0.0, 0.0), queries=3, length=37),
    "gemma": form(heads=1, queries=4, size=32, length=50),
    "gemma2": form(cap=5.0, epsilons=(0.0, 0.0, 0.0)),
    "gemma4": form(epsilons=(1e-6, 1e-6, 1e-6), scale=1.0, heads=1),
    "phi3": form(queries=1, size=24, epsilons=(0.0, 0.0, 0.0)),
    "without rotation": form(rotates=False, epsilons=(1e-6, 0.0, 0.0), size=12),
    "keys last": form(keys_last=True, values_last=False, length=33),
    "neither last": form(values_last=False),
    "one place more than a block": form(length=1025, size=8),
    "a long mask": form(length=2049, size=8, heads=1, queries=1),
}


IN_MAKE_TEST = "gemma4", "neither last", "a long mask"


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=[] if f in IN_MAKE_TEST else pytest.mark.slow) for f in FAMILIES],
)
def test_families(family: str) -> None:
    f = FAMILIES[family]
    check(f, example(f, [f.length - 1, f.length // 2, 1]))


def example_in_int8(f: Form, places: list[int]) -> Arrays:
    """The scales of unfilled places are NaN."""
    arrays = example(f, places)
    for name, is_last in (("keys", f.keys_last), ("values", f.values_last)):
        cache = QuantizedCache.of(jnp.asarray(arrays[name]), 2 if is_last else 3)
        arrays[name] = np.asarray(cache.values)
        arrays[SCALES[name]] = np.asarray(cache.scales).reshape(len(places), f.heads, f.length)
    return arrays


def reals(f: Form, arrays: Mapping[str, Any]) -> Arrays:
    """float64 caches of int8 ones."""
    found = {}
    for name, is_last in zip(SCALES, (f.keys_last, f.values_last), strict=True):
        scales = np.expand_dims(arrays[SCALES[name]], 2 if is_last else 3)
        with np.errstate(invalid="ignore"):  # of NaN
            found[name] = np.float64(arrays[name]) * scales
    return found


@pytest.mark.parametrize("family", ["llama", "gemma4", "keys last", "one place more than a block"])
def test_int8_caches(family: str) -> None:
    """New entries are within half a step; the result is that of the entries as stored."""
    f = FAMILIES[family]
    arrays = example_in_int8(f, [f.length - 1, f.length // 2, 1])
    y, *new = run(f, arrays)
    after = dict(zip(CACHES, new, strict=True))
    stored, before = reals(f, after), reals(f, arrays)
    _, *caches = expected(f, arrays | before)
    for name, is_last, exact in zip(SCALES, (f.keys_last, f.values_last), caches, strict=True):
        assert after[name].dtype == np.int8
        step = np.expand_dims(after[SCALES[name]], 2 if is_last else 3)
        assert np.nanmax(np.abs(stored[name] - exact) / step) < 0.501
        assert np.isfinite(stored[name]).sum() == np.isfinite(exact).sum()
        axis = 3 if is_last else 2
        for slot, place in enumerate(arrays["place"]):
            kept = np.delete(np.arange(f.length), place)
            pair = (np.take(x[slot], kept, axis - 1) for x in (stored[name], before[name]))
            np.testing.assert_array_equal(*pair)
    want, *_ = expected(f, arrays | stored, is_written=True)
    np.testing.assert_allclose(y, want, rtol=0, atol=TOLERANCES[FLOAT32])


@pytest.mark.parametrize("hidden", [1e9, 200.0])
def test_a_window(hidden: float) -> None:
    """Places before the window have no share, whether they are read or not."""
    f = form(length=256, hidden=hidden)
    check(f, example(f, [200, 255, 3], window=20))


def test_places_before_a_window_are_not_read() -> None:
    f = form(length=256, hidden=200.0)
    arrays = example(f, [200], window=20)
    want = run(f, arrays)[0]
    arrays["keys"][:, :, :180], arrays["values"][..., :180] = np.nan, np.nan
    np.testing.assert_array_equal(run(f, arrays)[0], want)


def test_a_ring_of_entries() -> None:
    """The window's places are at both ends of the cache."""
    f = form(length=32)
    arrays = example(f, [31, 31])
    arrays["place"][:] = 3
    shown = (np.arange(32) <= 3) | (np.arange(32) > 20)
    arrays["mask"][:] = np.where(shown, 0, MASKED)
    check(f, arrays)


def test_places_beyond_the_cache_are_clamped() -> None:
    f = form()
    arrays = example(f, [63, 63])
    want = run(f, arrays)
    arrays["place"][:] = 64, 1000
    for got, wanted in zip(run(f, arrays), want, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_mask_that_hides_everything_equals_none() -> None:
    """Logits get lost in sums with the mask; all places have the same share."""
    f = form(length=20)
    arrays = example(f, [19])
    arrays["mask"][:] = MASKED
    y, _, values = run(f, arrays)
    want = np.repeat(values[0].mean(-1), f.queries, 0).ravel()
    np.testing.assert_allclose(y[0], want, atol=1e-5)


@pytest.mark.parametrize("splits", [2, pytest.param(3, marks=pytest.mark.slow), 8])
def test_programs_share_the_places(splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    f = form(length=500, size=8, values_last=False)
    arrays = example(f, [0, 250, 499, 31])
    (want, *caches) = run(f, arrays)
    launch = Launch(splits, 4, 32)
    monkeypatch.setattr(Launch, "of", lambda *_: launch)
    decode_attention_triton._by_slots.cache_clear()
    got, *new = run(f, arrays)
    decode_attention_triton._by_slots.cache_clear()
    np.testing.assert_allclose(got, want, atol=1e-6)
    for a, b in zip(new, caches, strict=True):
        np.testing.assert_array_equal(a, b)


def test_launches() -> None:
    """Long caches of few slots are shared; a block of many programs is smaller."""

    def of(slots: int, length: int, size: int = 128) -> Launch:
        return Launch.of(slots, form(heads=8, size=size, length=length))

    assert of(1, 256) == Launch(1, 8, 64)
    assert [of(1, n).splits for n in (256, 300, 512, 1024, 4096)] == [1, 2, 4, 8, 16]
    assert [of(n, 4096).splits for n in (1, 4, 8, 16, 17, 64)] == [16, 4, 2, 1, 1, 1]
    assert of(64, 4096) == Launch(1, 4, 32)
    assert of(1, 40) == Launch(1, 8, 64)
    assert of(64, 1024, 512) == Launch(1, 8, 16)
    for n in (1, 2, 7, 13, 64):
        for length in (2, 17, 255, 1025, 5000):
            assert of(n, length, 24).splits in (1, 2, 4, 8, 16)


def test_a_result_in_half_precision_is_rounded_once() -> None:
    f = form(dtype=FLOAT16)
    arrays = example(f, [7, 40])
    (y, *_), (want, *_) = run(f, arrays), expected(f, arrays)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, want, rtol=1e-3, atol=1e-5)
    arrays["v"][:] = 1e6  # beyond float16
    arrays["place"][:] = 0
    arrays["mask"][:, 1:] = MASKED
    np.testing.assert_array_equal(run(f, arrays)[0], np.float16(65504))


def test_a_batch_of_slots_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, pallas_call = [], pl.pallas_call
    f = form()
    arrays = example(f, [3, 5, 60])
    own = {n: x[:, None] for n, x in arrays.items() if "_" not in n}
    shared = {n: x for n, x in arrays.items() if "_" in n}

    def counted(*a: Any, **more: Any) -> Any:
        calls.append(more["grid"])
        return pallas_call(*a, **more)

    monkeypatch.setattr(pl, "pallas_call", counted)
    one = functools.partial(decode_attention_triton.decode_attention, f)
    got = jax.jit(jax.vmap(lambda each: one({**each, **shared})))(own)
    assert calls[-1] == (3, 2, 1)  # it was traced for one slot before
    for y, want in zip(got, run(f, arrays), strict=True):
        np.testing.assert_array_equal(np.asarray(y).reshape(want.shape), want)
    scales = {n: np.stack([x] * 3) for n, x in shared.items()}  # one for each item
    each = jax.jit(jax.vmap(one))({**own, **scales})
    np.testing.assert_array_equal(np.asarray(each[0][:, 0]), np.asarray(got[0][:, 0]))


# ---- the rule


def op(context: LoweringContext = GPU, dtype: Any = np.float32, **more: Any) -> Op[Any]:
    """Two heads of two queries, caches of 64 places and 16 elements."""
    options = {"logits": (1, 2, 2, 64), "scale": 0.25, "values_last": True}
    options |= {"epsilons": (1e-6, 1e-6, 0.0)} | more
    scale = np.full(16, 3, np.float32)
    shapes = (
        (1, 1, 64),
        (1, 2, 1, 16),
        (1, 1, 32),
        (1, 2, 64, 16),
        (1, 2, 16, 64),
        (),
        (1, 1, 1, 64),
    )
    specs: list[TensorSpec | None] = [TensorSpec("x", shape, np.dtype(dtype)) for shape in shapes]
    specs[5] = TensorSpec("place", (), np.dtype(np.int32))
    specs += [TensorSpec("scale", (16,), scale.dtype, const=scale)] * 2
    specs += [None, *[TensorSpec("turn", (1, 1, 16), np.dtype(np.float32))] * 2]
    outputs = TensorSpec("y", (1, 2, 2, 16), np.dtype(np.float32)), *specs[3:5]
    return Op(context, DecodeAttentionOptions(**options), tuple(specs), outputs)  # type: ignore[arg-type]


RULE = decode_attention.DECODE_ATTENTION


@pytest.mark.parametrize(
    ("example", "reason"),
    [
        (op(LoweringContext("gpu")), "only our kernel for GPUs"),
        (op(LoweringContext("cpu", kernels=KernelSet(cpu=True))), "only our kernel for GPUs"),
        (op(LoweringContext("tpu", kernels=KernelSet(mosaic=True))), "only our kernel for GPUs"),
        (op(dtype=np.float64), "is float64"),
        (op(dtype=np.int8), "is int8"),
        (op(logits=(1, 2, 9, 64)), "no 9 queries of 16"),
    ],
    ids=range(6),
)
def test_what_it_does_not_take(example: Op[Any], reason: str) -> None:
    assert reason in RULE.reason(example)


def test_what_masks_hide_is_known_of_normalized_heads() -> None:
    def hidden(example: Op[Any]) -> float:
        return decode_attention._form(example).hidden

    assert RULE.reason(op()) is None
    assert hidden(op()) == hidden_below(2 * 0.25 * 16 * 3 * 3)  # 4 is the root of 16
    assert hidden(op(epsilons=(0.0, 0.0, 0.0))) == hidden_below(None) == 1e9
    assert hidden(op(epsilons=(0.0, 0.0, 0.0), cap=50.0)) == hidden_below(50.0)
    assert 2 * 50 + 104 < hidden_below(50.0) == 256 < -WINDOWED
    assert hidden(op(cap=-50.0)) == 256
    assert {hidden_below(x) for x in (1e30, np.inf, np.nan)} == {1e9}


@pytest.mark.parametrize("has_scales", [False, True])
def test_it_is_one_kernel_that_changes_the_caches_in_place(
    has_scales: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pl, "pallas_call", pl.pallas_call.func)  # type: ignore[attr-defined]
    step = RULE.lower(op())
    arrays = [
        None if spec is None else np.zeros((3, *spec.shape), spec.dtype) for spec in op().inputs
    ]
    axes = [0 if i not in (7, 8) else None for i in range(len(arrays))]
    arrays[7] = arrays[8] = np.ones(16, np.float32)
    if has_scales:  # of keys [2, 64, 16] and of values [2, 16, 64]
        arrays[3], arrays[4] = (
            QuantizedCache(x.astype(np.int8), x.max(axis, keepdims=True))
            for x, axis in ((arrays[3], -1), (arrays[4], -2))
        )
    text = lowered_for_gpu(jax.vmap(step, axes), *arrays)
    assert text.count("stablehlo.custom_call @__gpu$xla.gpu.triton") == 1
    assert text.count("#stablehlo.output_operand_alias") == (4 if has_scales else 2)


def test_int8_caches_keep_their_scales() -> None:
    """Keys have the new key at place 0, whatever the order of the kernel's results."""
    example = op(epsilons=(0.0, 0.0, 0.0))
    arrays: list[Any] = [None if s is None else np.ones(s.shape, s.dtype) for s in example.inputs]
    arrays[1], arrays[2] = 127 * arrays[1], 254 * arrays[2]
    arrays[3], arrays[4] = (
        QuantizedCache.of(jnp.asarray(arrays[i]), axis) for i, axis in ((3, -1), (4, -2))
    )
    arrays[5], arrays[7:9] = np.int32(0), [None, None]
    arrays[11] = 0 * arrays[11]  # the sine: nothing is turned
    with jax.enable_x64(True):
        _, *caches = jax.jit(RULE.lower(example).__call__)(*arrays)
    (keys, values), steps = caches, (1.0, 2.0)
    for scales, step in ((keys.scales[0, 0, :, 0], steps[0]), (values.scales[0, 0, 0], steps[1])):
        np.testing.assert_allclose(scales[0], step, rtol=1e-6)
        np.testing.assert_allclose(scales[1:], 1 / 127, rtol=1e-6)
    assert (keys.values == 127).all()
    assert (values.values == 127).all()


def test_reduced_caches_stay_reduced() -> None:
    example = op()
    arrays = [None if s is None else np.ones(s.shape, s.dtype) for s in example.inputs]
    arrays[3], arrays[4] = (arrays[i].astype(ml_dtypes.bfloat16) for i in (3, 4))
    with jax.enable_x64(True):
        y, keys, values = jax.jit(RULE.lower(example).__call__)(*arrays)
    assert (y.dtype, keys.dtype, values.dtype) == (np.float32, BFLOAT16, BFLOAT16)
