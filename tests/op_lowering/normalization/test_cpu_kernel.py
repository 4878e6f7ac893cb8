"""SOFTMAX by the native CPU kernel, against the definition in float64."""

import jax
import numpy as np
import pytest

from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.normalization import rule as normalization
from jaxdelegate.op_lowering.normalization.rule import SOFTMAX
from jaxdelegate.op_lowering.options import SoftmaxOptions
from jaxdelegate.op_lowering.precision import BFLOAT16, PrecisionPolicy
from jaxdelegate.op_lowering.rule import Function, KernelSet, LoweringContext, Op
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.testing import assert_close

CONTEXT = LoweringContext(kernels=KernelSet(cpu=True))


def lowered(shape: Shape) -> Function:
    x = TensorSpec("x", shape, np.dtype(np.float32))
    return SOFTMAX.lower(Op(CONTEXT, SoftmaxOptions(1.0), (x,), (x,)))


def run(x: np.ndarray) -> np.ndarray:
    function = lowered(x.shape)
    assert str(jax.make_jaxpr(function)(x)).count(library.SOFTMAX) == 1
    return np.asarray(jax.jit(function)(x)[0])


def defined(x: np.ndarray) -> np.ndarray:
    y = np.exp(np.float64(x) - x.max(-1, keepdims=True))
    return np.float32(y / y.sum(-1, keepdims=True))


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("shape", [(1, 32), (3, 5, 67), (40, 1001), (2, 17000)], ids=str)
@pytest.mark.parametrize("scale", [1, 30])
def test_it_equals_the_definition(shape: Shape, scale: int) -> None:
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32) * scale
    y = run(x)
    assert_close([y], [defined(x)], accumulated=8)
    np.testing.assert_allclose(y.sum(-1, dtype=np.float64), 1, rtol=1e-5)


@pytest.mark.usefixtures("instruction_set")
def test_special_values() -> None:
    x = np.zeros((7, 35), np.float32)
    x[0, 34] = np.nan
    x[1, 3] = np.inf
    x[2] = -np.inf
    x[3, ::2] = -np.inf
    x[4] = np.finfo(np.float32).max
    x[5, 1:] = np.finfo(np.float32).min
    y = run(x)
    assert np.isnan(y[:3]).all()
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(y[3:], defined(x[3:]), rtol=1e-6)


@pytest.mark.usefixtures("built")
def test_a_row_has_the_same_bits_among_any_number_of_rows() -> None:
    x = np.random.default_rng(0).normal(size=(700, 40)).astype(np.float32)
    together = run(x)
    for i in (0, 1, 699):
        np.testing.assert_array_equal(run(x[i : i + 1])[0], together[i])
    batch = jax.vmap(lowered((1, 40)))(x[:, None])[0]
    np.testing.assert_array_equal(batch[:, 0], together)


def test_what_it_takes() -> None:
    def takes(
        shape: Shape, context: LoweringContext = CONTEXT, beta: float = 1, dtype: type = np.float32
    ) -> bool:
        return normalization.kernel_takes(
            context, SoftmaxOptions(beta), TensorSpec("x", shape, np.dtype(dtype))
        )

    assert takes((1, 32))
    assert not takes((9, 31))
    assert not takes((0, 32))
    assert not takes((1, 32), beta=2)
    assert not takes((1, 32), dtype=np.float64)
    assert not takes((1, 32), LoweringContext())
    short = LoweringContext(
        kernels=KernelSet(cpu=True), precision=PrecisionPolicy(storage=BFLOAT16)
    )
    assert not takes((1, 32), short)
