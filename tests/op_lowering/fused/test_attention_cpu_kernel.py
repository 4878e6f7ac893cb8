"""Attention by the package's own kernel, against the operators written out in float64."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.fused.attention import ATTENTION
from jaxdelegate.op_lowering.options import AttentionOptions
from jaxdelegate.op_lowering.precision import BFLOAT16, PrecisionPolicy
from jaxdelegate.op_lowering.rule import Function, KernelSet, LoweringContext, Op, ResultUse
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.testing import assert_close
from tests.support.combinations import covering

CONTEXT = LoweringContext(kernels=KernelSet(cpu=True))
# Images, heads, queries, keys, values of a head.
FEW = [(1, 3, 3, 256, 64), (2, 2, 1, 67, 16), (1, 1, 8, 130, 5)]
MANY = [(1, 1, 17, 16, 16), (2, 3, 20, 23, 20), (1, 2, 130, 40, 64), (1, 3, 130, 200, 3)]
MASKS = ["none", "keys", "queries", "images", "heads", "everything", "one", "rank 2"]
LAYOUTS = [*itertools.product([False, True], repeat=2)]
FIRST = False, False
Arrays = list[np.ndarray]


def mask_shape(kind: str, sizes: tuple[int, ...]) -> Shape:
    b, n, t, s, _ = sizes
    shapes = {"keys": (b, 1, 1, s), "queries": (1, 1, t, s), "images": (b, 1, t, s)}
    others = {"heads": (1, n, 1, s), "everything": (b, n, t, s), "one": (1, 1, 1, 1)}
    return {**shapes, **others, "rank 2": (t, s)}[kind]


def example(sizes: tuple[int, ...], mask: str, last: tuple[bool, bool] = FIRST) -> Arrays:
    b, n, t, s, h = sizes
    random = np.random.default_rng(s)
    shapes: list[Shape] = [
        (b, n, t, h),
        *((b, n, h, s) if is_last else (b, n, s, h) for is_last in last),
    ]
    arrays = [random.normal(0, 1, shape) for shape in shapes]
    if mask != "none":
        arrays.append(random.normal(0, 3, mask_shape(mask, sizes)))
    return [np.float32(a) for a in arrays]


def op(
    arrays: Arrays,
    last: tuple[bool, bool] = FIRST,
    context: LoweringContext = CONTEXT,
    scale: float = 0.3,
) -> Op[AttentionOptions]:
    q, k = arrays[0].shape, arrays[1].shape
    options = AttentionOptions((*q[:-1], k[-1 if last[0] else -2]), scale, *last)
    specs = tuple(TensorSpec("t", a.shape, a.dtype) for a in arrays)
    return Op(context, options, specs, specs[:1])


def written_out(arrays: Arrays, last: tuple[bool, bool] = FIRST, scale: float = 0.3) -> np.ndarray:
    q, k, v, *mask = (np.float64(a) for a in arrays)
    k, v = k if last[0] else k.swapaxes(-1, -2), v.swapaxes(-1, -2) if last[1] else v
    logits = q @ k * scale
    if mask:  # a sum of float32, in which logits may get lost
        lowest = np.finfo(np.float32).min
        logits = np.float64(np.float32(logits) + np.maximum(np.float32(mask[0]), lowest))
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return np.float32(shares / shares.sum(-1, keepdims=True) @ v)


def run(function: Function, *arrays: np.ndarray) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(jax.jit(function)(*arrays)[0])


def attention(arrays: Arrays, last: tuple[bool, bool] = FIRST) -> np.ndarray:
    return run(ATTENTION.lower(op(arrays, last)), *arrays)


def calls(function: Function, *arrays: np.ndarray) -> int:
    with jax.enable_x64(True):
        return str(jax.make_jaxpr(function)(*arrays)).count(library.ATTENTION)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize(("sizes", "last"), covering(FEW + MANY, LAYOUTS), ids=str)
def test_it_equals_the_operators_written_out(
    sizes: tuple[int, ...], last: tuple[bool, bool]
) -> None:
    for mask in MASKS:
        arrays = example(sizes, mask, last)
        assert calls(ATTENTION.lower(op(arrays, last)), *arrays) == 1
        found = attention(arrays, last)
        assert_close([found], [written_out(arrays, last)], accumulated=sizes[3])


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("sizes", [FEW[1], MANY[1]], ids=str)
@pytest.mark.parametrize("scale", [-4.0, 0.0])
def test_a_scale_that_is_not_positive(sizes: tuple[int, ...], scale: float) -> None:
    for mask in ("none", "keys"):
        arrays = example(sizes, mask)
        found = run(ATTENTION.lower(op(arrays, scale=scale)), *arrays)
        assert_close([found], [written_out(arrays, scale=scale)], accumulated=sizes[3])


# ---- hidden keys


def shown(kind: str, t: int, s: int) -> np.ndarray:
    """Which of S keys each of T queries sees."""
    queries, keys = np.arange(t)[:, None] * s // t, np.arange(s)[None]
    sees = {
        "causal": keys <= queries,
        "window": (keys <= queries) & (keys > queries - 21),
        "first": keys < 19 + 0 * queries,
        "last": keys >= s - 3 + 0 * queries,
        "holes": (keys % 40 > 35) & (keys >= 36 + queries % 3),
    }
    return sees[kind]


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("sizes", [(1, 3, 3, 256, 64), (1, 3, 130, 200, 16)], ids=str)
@pytest.mark.parametrize(
    ("last", "hidden"), covering(LAYOUTS, [-100.0, -1e9, -2.3e38, -np.inf]), ids=str
)
def test_hidden_keys_do_not_count(
    sizes: tuple[int, ...], last: tuple[bool, bool], hidden: float
) -> None:
    for kind in ("causal", "window", "first", "last", "holes"):
        arrays = example(sizes, "queries", last)
        arrays[3][..., ~shown(kind, sizes[2], sizes[3])] = hidden
        found = attention(arrays, last)
        assert_close([found], [written_out(arrays, last)], accumulated=sizes[3])


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("sizes", [FEW[0], (1, 3, 130, 200, 16)], ids=str)
@pytest.mark.parametrize("last", LAYOUTS, ids=str)
def test_what_all_queries_do_not_see_is_not_read(
    sizes: tuple[int, ...], last: tuple[bool, bool]
) -> None:
    arrays = example(sizes, "queries", last)
    hidden = np.r_[0:48, 160 : sizes[3]]
    arrays[3][..., hidden] = -np.inf
    want = attention(arrays, last)
    for array, is_last in zip(arrays[1:3], last, strict=True):
        array[(..., hidden) if is_last else (..., hidden, slice(None))] = np.nan
    np.testing.assert_array_equal(attention(arrays, last), want)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("sizes", [FEW[0], (2, 3, 130, 200, 16)], ids=str)
@pytest.mark.parametrize("last", LAYOUTS, ids=str)
@pytest.mark.parametrize("hidden", [-1e9, -2.3e38, -np.inf])
def test_keys_that_are_all_hidden_count_equally(
    sizes: tuple[int, ...], last: tuple[bool, bool], hidden: float
) -> None:
    """LiteRT's ADD of a mask of -infinity yields the lowest number.

    Such rows of a mask belong to a prefill of fewer tokens than its signature takes.
    """
    arrays = example(sizes, "images", last)
    arrays[0] /= 64
    arrays[3][..., ~shown("first", *sizes[2:4])] = hidden
    arrays[3][0, 0, 1:] = hidden
    want = written_out(arrays, last)
    mean = (arrays[2] if last[1] else arrays[2].swapaxes(-1, -2))[0].mean(-1)
    assert_close([mean], [want[0, :, -1]], accumulated=sizes[3])
    assert_close([attention(arrays, last)], [want], accumulated=sizes[3])
    arrays[3][...] = hidden
    assert_close([attention(arrays, last)], [written_out(arrays, last)], accumulated=sizes[3])


@pytest.mark.usefixtures("built")
def test_numbers_of_different_size_that_hide_all_do_not_count_equally() -> None:
    arrays = example(MANY[1], "queries")
    arrays[3][..., 1::2] = -1e32
    arrays[3][..., ::2] = -np.inf
    assert_close([attention(arrays)], [written_out(arrays)], accumulated=MANY[1][3])


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("sizes", [FEW[0], MANY[2]], ids=str)
def test_nan_stays_in_its_row(sizes: tuple[int, ...]) -> None:
    for i in (0, 3):
        arrays = example(sizes, "everything")
        arrays[3][0, 0, :, 16:] = -np.inf
        arrays[i][0, 0, 2, -1] = np.nan
        y = attention(arrays)
        assert np.isnan(y[0, 0, 2]).all()
        assert np.isnan(y).sum() == y.shape[-1]


# ---- what it takes


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("sizes", [FEW[0], MANY[1]], ids=str)
def test_a_batch_is_one_call_with_the_same_bits(sizes: tuple[int, ...]) -> None:
    last = False, True
    each = [example(sizes, "queries", last) for _ in range(3)]
    each = [[a * np.float32(n + 1) for a in arrays] for n, arrays in enumerate(each)]
    each[1][3][..., 16:] = -np.inf
    function = ATTENTION.lower(op(each[0], last))
    together = [np.stack(arrays) for arrays in zip(*each, strict=True)]
    assert calls(jax.vmap(function), *together) == 1
    found = run(jax.vmap(function), *together)
    np.testing.assert_array_equal(found, [run(function, *arrays) for arrays in each])


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sizes", [FEW[0], FEW[1], MANY[1]], ids=str)
def test_a_batch_with_the_same_keys_and_values_has_more_queries(
    sizes: tuple[int, ...], mask: str
) -> None:
    last = True, False
    arrays = example(sizes, mask, last)
    q, k, v, *own = arrays
    for own_masks in ([], [np.stack([m, m / 2, -m]) for m in own]):
        together = [np.stack([q, -q, q / 2]), k, v, *(own_masks or own)]
        axes = [0, None, None, *(0 if own_masks else None for _ in own)]
        function = jax.vmap(ATTENTION.lower(op(arrays, last)), axes)
        assert calls(function, *together) == 1
        each = (
            [a if axis is None else a[i] for a, axis in zip(together, axes, strict=True)]
            for i in range(3)
        )
        want = np.stack([written_out(one, last) for one in each])
        assert_close([run(function, *together)], [want], accumulated=sizes[3])


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("sizes", [FEW[0], MANY[1]], ids=str)
def test_a_batch_of_some_arrays(sizes: tuple[int, ...]) -> None:
    q, k, *rest = example(sizes, "keys")
    many = np.stack([k, -k])
    function = jax.vmap(ATTENTION.lower(op([q, k, *rest])), (None, 0, None, None))
    want = [written_out([q, x, *rest]) for x in many]
    assert_close([run(function, q, many, *rest)], [np.stack(want)], accumulated=sizes[3])


@pytest.mark.usefixtures("built")
def test_one_head_without_a_dimension_for_it() -> None:
    arrays = [a[:, 0] for a in example(MANY[1], "images")]
    assert_close([attention(arrays)], [written_out(arrays)], accumulated=MANY[1][3])


def test_what_it_takes() -> None:
    arrays = example(FEW[0], "keys")
    assert ATTENTION.reason(op(arrays)) is None
    assert ATTENTION.reason(op(arrays, context=LoweringContext())) is not None
    later = dataclasses.replace(
        CONTEXT, quant_mode="integer", result=ResultUse(quantized_later=True)
    )
    assert ATTENTION.reason(op(arrays, context=later)) is None
    for policy in (PrecisionPolicy(operand=BFLOAT16), PrecisionPolicy(storage=BFLOAT16)):
        short = dataclasses.replace(CONTEXT, precision=policy)
        assert ATTENTION.reason(op(arrays, context=short)) is not None
    halves = [a.astype(np.float16) for a in arrays]
    assert ATTENTION.reason(op(halves)) is not None


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("changed", "said"),
    [(2, "do not fit each other"), (1, "do not fit each other"), (3, "the mask does not fit")],
)
def test_a_call_that_does_not_fit_is_refused(changed: int, said: str) -> None:
    arrays = example(FEW[0], "keys")
    arrays[changed] = arrays[changed][..., 1:]
    attributes = {"are_last": np.zeros(2, np.int64), "scale": np.ones(1, np.float32)}
    y = jax.ShapeDtypeStruct(arrays[0].shape, np.float32)
    call = jax.ffi.ffi_call(library.ATTENTION, y)
    with jax.enable_x64(True), pytest.raises(Exception, match=said):
        jax.block_until_ready(call(*arrays, **attributes))
