"""Attention of few queries by the native CPU kernel, against the operators in float64."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.fused.attention import ATTENTION
from jaxdelegate.op_lowering.options import AttentionOptions
from jaxdelegate.op_lowering.precision import BFLOAT16, PrecisionPolicy
from jaxdelegate.op_lowering.rule import Function, LoweringContext, Op
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.testing import assert_close

CONTEXT = LoweringContext(native_kernels=True)
# Images, heads, queries, keys, values of a head.
SIZES = [(1, 3, 3, 256, 64), (2, 2, 1, 67, 16), (1, 1, 8, 130, 5)]
MASKS = ["none", "keys", "queries", "images", "heads", "rank 2"]
LAYOUTS = [*itertools.product([False, True], repeat=2)]
Arrays = list[np.ndarray]


def mask_shape(kind: str, sizes: tuple[int, ...]) -> Shape:
    b, n, t, s, _ = sizes
    shapes = {"keys": (1, 1, 1, s), "queries": (1, 1, t, s), "images": (b, 1, t, s)}
    return {**shapes, "heads": (1, n, 1, s), "rank 2": (t, s)}[kind]


def example(sizes: tuple[int, ...], mask: str, last: tuple[bool, bool]) -> Arrays:
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
    arrays: Arrays, last: tuple[bool, bool], context: LoweringContext = CONTEXT
) -> Op[AttentionOptions]:
    q, k = arrays[0].shape, arrays[1].shape
    options = AttentionOptions((*q[:-1], k[-1 if last[0] else -2]), 0.3, *last)
    specs = tuple(TensorSpec("t", a.shape, a.dtype) for a in arrays)
    return Op(context, options, specs, specs[:1])


def written_out(arrays: Arrays, last: tuple[bool, bool]) -> np.ndarray:
    q, k, v, *mask = (np.float64(a) for a in arrays)
    k, v = k if last[0] else k.swapaxes(-1, -2), v.swapaxes(-1, -2) if last[1] else v
    logits = q @ k * 0.3 + (mask[0] if mask else 0)
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return np.float32(shares / shares.sum(-1, keepdims=True) @ v)


def run(function: Function, *arrays: np.ndarray) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(jax.jit(function)(*arrays)[0])


def calls(function: Function, *arrays: np.ndarray) -> int:
    with jax.enable_x64(True):
        return str(jax.make_jaxpr(function)(*arrays)).count(library.FEW_QUERIES)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize(("sizes", "last"), [*zip(SIZES * 4, LAYOUTS * 3, strict=True)], ids=str)
def test_it_equals_the_operators_written_out(
    sizes: tuple[int, ...], last: tuple[bool, bool]
) -> None:
    for mask in MASKS:
        arrays = example(sizes, mask, last)
        function = ATTENTION.lower(op(arrays, last))
        assert calls(function, *arrays) == 1
        assert_close([run(function, *arrays)], [written_out(arrays, last)], accumulated=sizes[3])


@pytest.mark.usefixtures("built")
def test_a_batch_is_one_call_with_the_same_bits() -> None:
    last = False, True
    each = [example(SIZES[0], "queries", last) for _ in range(3)]
    each = [[a * np.float32(n + 1) for a in arrays] for n, arrays in enumerate(each)]
    function = ATTENTION.lower(op(each[0], last))
    together = [np.stack(arrays) for arrays in zip(*each, strict=True)]
    assert calls(jax.vmap(function), *together) == 1
    found = run(jax.vmap(function), *together)
    np.testing.assert_array_equal(found, [run(function, *arrays) for arrays in each])


@pytest.mark.usefixtures("built")
def test_a_batch_of_some_arrays() -> None:
    last = False, False
    q, *rest = example(SIZES[0], "keys", last)
    many = np.stack([q, -q])
    function = jax.vmap(ATTENTION.lower(op([q, *rest], last)), (0, None, None, None))
    want = [written_out([x, *rest], last) for x in many]
    assert_close([run(function, many, *rest)], [np.stack(want)], accumulated=SIZES[0][3])


@pytest.mark.usefixtures("instruction_set")
def test_masked_keys_do_not_count() -> None:
    last = False, True
    arrays = example(SIZES[0], "keys", last)
    arrays[3][..., 7:] = -np.inf
    arrays[2][..., 7:] = 1e38
    cut = [arrays[0], arrays[1][:, :, :7], arrays[2][..., :7], arrays[3][..., :7]]
    found = run(ATTENTION.lower(op(arrays, last)), *arrays)
    assert_close([found], [written_out(cut, last)], accumulated=7)


def test_what_it_takes() -> None:
    last = False, True
    arrays = example(SIZES[0], "keys", last)
    assert ATTENTION.reason(op(arrays, last)) is None
    assert ATTENTION.reason(op(arrays, last, LoweringContext())) is not None
    later = dataclasses.replace(CONTEXT, quant_mode="integer", quantized_later=True)
    assert ATTENTION.reason(op(arrays, last, later)) is not None
    assert (
        ATTENTION.reason(op(arrays, last, dataclasses.replace(later, follows_xnnpack=True))) is None
    )
    for policy in (PrecisionPolicy(operand=BFLOAT16), PrecisionPolicy(storage=BFLOAT16)):
        short = dataclasses.replace(CONTEXT, precision=policy)
        assert ATTENTION.reason(op(arrays, last, short)) is not None
    many = example((1, 2, 9, 32, 8), "none", (False, False))
    assert ATTENTION.reason(op(many, (False, False))) is not None


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("said", ["do not fit each other", "the mask does not fit"])
def test_a_call_that_does_not_fit_is_refused(said: str) -> None:
    q, k, v, mask = (a[0] for a in example(SIZES[0], "keys", (False, False)))
    if "mask" in said:
        mask = mask[..., 1:]
    else:
        v = v[:, 1:]
    attributes = {"are_last": np.zeros(2, np.int64), "scale": np.ones(1, np.float32)}
    call = jax.ffi.ffi_call(library.FEW_QUERIES, jax.ShapeDtypeStruct(q.shape, np.float32))
    with jax.enable_x64(True), pytest.raises(Exception, match=said):
        jax.block_until_ready(call(q, k, v, mask, **attributes))
