"""Products of int8: a single row, and in float16 on a GPU."""

import re
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxdelegate.op_lowering.common import integer_products
from jaxdelegate.op_lowering.common.integer_products import dot, product
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.testing.case import Case
from tests.support.case_tables import cases_in, is_quantized

OPERATOR_TESTS = Path(__file__).parents[1]
INT8_PRODUCT = re.compile(r"dot_general.*: \(tensor<[0-9x]*u?i8>")


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(1, 24), (24,)])
@pytest.mark.parametrize("units", [1, 5, 400])
def test_a_row_equals_the_product(axis: int, shape: tuple[int, ...], units: int) -> None:
    x, w = integers(*shape), integers(*((24, units) if axis == 0 else (units, 24)))
    got = product(x, w, ((x.ndim - 1,), (axis,)), ((), ()))
    want = x.astype(np.int64) @ (w if axis == 0 else w.T).astype(np.int64)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("depth", [0, 1, 1024, 1025, 5000])
def test_floats_hold_the_sums(depth: int) -> None:
    """Sums of the largest products are exact, too."""
    x, w = integers(2, 3, depth), integers(2, 7, depth)
    x[:, 0], w[:, 0] = -128, -128
    dims = ((2,), (2,)), ((0,), (0,))
    got = integer_products._dot_in_floats(x, w, dims=dims)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, np.einsum("bmk,bnk->bmn", x, w, dtype=np.int32))


@pytest.mark.parametrize(("platform", "is_int8"), [("cpu", True), ("tpu", True), ("cuda", False)])
def test_int8_is_multiplied_where_it_is_right(platform: str, is_int8: bool) -> None:
    text = lowered(lambda x, w: dot(x, w, ((1,), (1,))), platform, integers(3, 9), integers(4, 9))
    assert bool(INT8_PRODUCT.search(text)) is is_int8


# With how many evenly spread cases of each operator: those of recurrent ones take long to lower.
@pytest.mark.parametrize(("folder", "count"), [("convolution", 3), ("matmul", 3), ("recurrent", 1)])
def test_no_operator_multiplies_int8_on_a_gpu(folder: str, count: int) -> None:
    context = LoweringContext(platform="gpu", quant_mode="integer")
    products = 0
    for case in sampled(OPERATOR_TESTS / folder, count, context):
        call, arrays = case.lowered_call(RULES[case.name], context)
        text = lowered(call, "cuda", *arrays)
        products += "dot_general" in text
        assert not INT8_PRODUCT.search(text), case
    assert products


def sampled(folder: Path, count: int, context: LoweringContext) -> Iterator[Case]:
    """Quantized cases that are lowered in this context."""
    for name, cases in cases_in(folder).items():
        fit = [c for c in cases if is_quantized(c) and RULES[name].reason(c.op(context)) is None]
        yield from fit[:: max(1, len(fit) // count)][:count]


def lowered(call: object, platform: str, *arrays: np.ndarray) -> str:
    with jax.enable_x64(True):
        return jax.jit(call).trace(*arrays).lower(lowering_platforms=(platform,)).as_text()
