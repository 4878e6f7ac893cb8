"""Attention by the package's own kernel, against the operators written out in float64."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from jaxdelegate.op_lowering.fused import attention_cpu_kernel
from jaxdelegate.op_lowering.precision import BFLOAT16, PrecisionPolicy
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.testing import assert_close

CONTEXT = LoweringContext(native_kernels=True)
# Images, queries, heads, keys, values of a head; then the mask.
SIZES = [(1, 16, 1, 16, 16), (2, 17, 3, 23, 20), (1, 130, 2, 40, 64), (1, 20, 4, 5, 3)]
MASKS = ["none", "keys", "queries", "heads", "everything", "one"]


def mask_shape(kind: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    b, t, n, s, _ = sizes
    shapes = {"keys": (b, 1, 1, s), "queries": (1, 1, t, s), "heads": (1, n, 1, s)}
    return {**shapes, "everything": (b, n, t, s), "one": (1, 1, 1, 1)}[kind]


def example(sizes: tuple[int, ...], mask: str) -> list[np.ndarray]:
    b, t, n, s, h = sizes
    random = np.random.default_rng(s)
    arrays = [random.normal(0, 1, (b, length, n, h)) for length in (t, s, s)]
    if mask != "none":
        arrays.append(random.normal(0, 3, mask_shape(mask, sizes)))
    return [np.float32(a) for a in arrays]


def run(arrays: list[np.ndarray], scale: float) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(jax.jit(attention_cpu_kernel.attention(scale))(*arrays)[0])


def written_out(arrays: list[np.ndarray], scale: float) -> np.ndarray:
    q, k, v, *mask = (np.float64(a) for a in arrays)
    logits = np.einsum("btnh,bsnh->bnts", q, k) * scale + (mask[0] if mask else 0)
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return np.einsum("bnts,bsnh->btnh", shares, v)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("mask", MASKS)
def test_it_equals_the_operators_written_out(sizes: tuple[int, ...], mask: str) -> None:
    arrays = example(sizes, mask)
    assert_close([run(arrays, 0.3)], [np.float32(written_out(arrays, 0.3))], accumulated=sizes[3])


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("masked", [-100.0, -1e9, -np.inf])
def test_masked_keys_do_not_count(masked: float) -> None:
    arrays = example(SIZES[1], "keys")
    arrays[3][...] = 0
    arrays[3][..., 7:] = masked
    arrays[2][:, 7:] = 1e38  # no share of it is small enough
    whole, cut = run(arrays, 0.5), [arrays[0], *(a[:, :7] for a in arrays[1:3])]
    assert_close([whole], [np.float32(written_out(cut, 0.5))], accumulated=7)


@pytest.mark.usefixtures("instruction_set")
def test_keys_that_are_all_masked_count_equally() -> None:
    """LiteRT's ADD of a mask of -infinity yields the lowest number."""
    arrays = example(SIZES[1], "everything")
    arrays[3][0, 1, 2] = -np.inf
    y = run(arrays, 0.5).copy()
    assert_close([y[0, 2, 1]], [arrays[2][0, :, 1].mean(0)], accumulated=SIZES[1][3])
    arrays[3][0, 1, 2] = 0
    y[0, 2, 1] = run(arrays, 0.5)[0, 2, 1]
    assert_close([y], [np.float32(written_out(arrays, 0.5))], accumulated=SIZES[1][3])


@pytest.mark.usefixtures("instruction_set")
def test_nan_stays_in_its_row() -> None:
    arrays = example(SIZES[1], "none")
    arrays[0][1, 4, 2] = np.nan
    y = run(arrays, 1.0)
    assert np.isnan(y[1, 4, 2]).all()
    assert np.isnan(y).sum() == y.shape[-1]


def specs(*arrays: np.ndarray) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec("x", a.shape, a.dtype) for a in arrays)


def test_what_it_takes() -> None:
    three = specs(*example(SIZES[0], "none"))
    assert attention_cpu_kernel.takes(CONTEXT, (1, 1, 16, 16), three)
    assert not attention_cpu_kernel.takes(CONTEXT, (1, 1, 15, 16), three)
    assert not attention_cpu_kernel.takes(LoweringContext(), (1, 1, 16, 16), three)
    integer = LoweringContext(native_kernels=True, quant_mode="integer")
    assert attention_cpu_kernel.takes(integer, (1, 1, 16, 16), three)
    integer = dataclasses.replace(integer, quantized_later=True)
    assert not attention_cpu_kernel.takes(integer, (1, 1, 16, 16), three)
    for policy in (PrecisionPolicy(operand=BFLOAT16), PrecisionPolicy(storage=BFLOAT16)):
        short = LoweringContext(native_kernels=True, precision=policy)
        assert not attention_cpu_kernel.takes(short, (1, 1, 16, 16), three)
    halves = specs(*(a.astype(np.float16) for a in example(SIZES[0], "none")))
    assert not attention_cpu_kernel.takes(CONTEXT, (1, 1, 16, 16), halves)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("said", ["do not fit each other", "the mask does not fit"])
def test_a_call_that_does_not_fit_is_refused(said: str) -> None:
    q, k, v = example(SIZES[1], "none")
    more: list[Any] = []
    if "mask" in said:
        more = [np.zeros((1, 1, 2, 23), np.float32)]
    else:
        v = v[:, 1:]
    with jax.enable_x64(True), pytest.raises(Exception, match=said):
        jax.block_until_ready(attention_cpu_kernel.attention(1.0)(q, k, v, *more))
