"""Reductions of a few rows: the bits of a row do not depend on how many others there are."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxdelegate.op_lowering.common.row_order import has_few_rows
from jaxdelegate.op_lowering.normalization.rule import SOFTMAX
from jaxdelegate.op_lowering.options import ReducerOptions, SoftmaxOptions
from jaxdelegate.op_lowering.reduction.rule import RULES
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext, Op
from jaxdelegate.op_lowering.spec import TensorSpec

NATIVE = LoweringContext(kernels=KernelSet(cpu=True))
SHAPES = [(1, 1, 512), (8, 1, 256), (1, 3, 259), (1, 1, 576), (1, 1, 1024)]


def spec(shape: tuple[int, ...], const: Any = None) -> TensorSpec:
    dtype = np.float32 if const is None else np.int32
    return TensorSpec("", shape, np.dtype(dtype), const=const)


def lowered(operator: str, shape: tuple[int, ...]) -> Any:
    x = spec(shape)
    if operator == "SOFTMAX":
        return SOFTMAX.lower(Op(NATIVE, SoftmaxOptions(beta=1.0), (x,), (x,)))
    axis = np.array([len(shape) - 1], np.int32)
    mean = RULES["MEAN"].lower(
        Op(NATIVE, ReducerOptions(True), (x, spec((1,), axis)), (spec((*shape[:-1], 1)),))
    )
    return lambda x: mean(x, axis)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("operator", ["SOFTMAX", "MEAN"])
def test_a_sequence_is_the_same_alone_and_in_a_batch(
    operator: str, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    one = lowered(operator, shape)
    x = rng.normal(size=(8, *shape)).astype(np.float32)
    (many,) = jax.jit(jax.vmap(one))(x)
    for i in range(8):
        (alone,) = jax.jit(one)(x[i])
        np.testing.assert_array_equal(alone, many[i])
    want = x.mean(-1, keepdims=True) if operator == "MEAN" else np.exp(x - x.max(-1, keepdims=True))
    want = want if operator == "MEAN" else want / want.sum(-1, keepdims=True)
    np.testing.assert_allclose(many, want, rtol=1e-5, atol=1e-6)


def test_many_rows_and_other_devices_have_no_order() -> None:
    assert has_few_rows(NATIVE, spec((64, 9)))
    assert not has_few_rows(NATIVE, spec((65, 9)))
    assert not has_few_rows(NATIVE, spec((0, 9)))
    assert not has_few_rows(LoweringContext(), spec((1, 9)))
