"""Normalization of rows by the native CPU kernel, against the definition in float64."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.fused.layer_norm import LAYER_NORM
from jaxdelegate.op_lowering.options import ActivationFunctionType, LayerNormOptions
from jaxdelegate.op_lowering.precision import BFLOAT16, PrecisionPolicy
from jaxdelegate.op_lowering.rule import (
    Function,
    KernelSet,
    LoweringContext,
    Op,
    ProgramTraits,
    ResultUse,
)
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.testing import assert_close

CONTEXT = LoweringContext(kernels=KernelSet(cpu=True))
EPSILON = 0.25
SHAPES: list[Shape] = [(1, 1, 576), (2, 3, 7), (5, 1), (64, 300), (3, 67), (300, 96)]
Arrays = list[np.ndarray | None]


def example(shape: Shape, scale: bool, offset: bool) -> Arrays:
    random = np.random.default_rng(shape[-1])
    ones = (1,) * (len(shape) - 1)
    shapes = [shape, (*ones, shape[-1]) if scale else None, (shape[-1],) if offset else None]
    return [None if s is None else random.normal(2, 1, s).astype(np.float32) for s in shapes]


def op(
    arrays: Arrays, is_centered: bool, context: LoweringContext = CONTEXT, **more: object
) -> Op[LayerNormOptions]:
    specs = [None if a is None else TensorSpec("t", a.shape, a.dtype) for a in arrays]
    assert specs[0] is not None
    options = LayerNormOptions((len(specs[0].shape) - 1,), EPSILON, is_centered)
    options = dataclasses.replace(options, **more)  # type: ignore[arg-type]
    return Op(context, options, tuple(specs), (specs[0],))


def defined(arrays: Arrays, is_centered: bool) -> np.ndarray:
    x, scale, offset = (None if a is None else np.float64(a) for a in arrays)
    assert x is not None
    x = x - x.mean(-1, keepdims=True) if is_centered else x
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON)
    y = y * (1 if scale is None else scale) + (0 if offset is None else offset)
    return np.float32(y)


def run(function: Function, *arrays: np.ndarray | None) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(jax.jit(function)(*arrays)[0])


def calls(function: Function, *arrays: np.ndarray | None) -> int:
    with jax.enable_x64(True):
        return str(jax.make_jaxpr(function)(*arrays)).count(library.LAYER_NORM)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_equals_the_definition(shape: Shape) -> None:
    for n in range(8):
        is_centered, scale, offset = n & 1 > 0, n & 2 > 0, n & 4 > 0
        arrays = example(shape, scale, offset)
        function = LAYER_NORM.lower(op(arrays, is_centered))
        assert calls(function, *arrays) == 1
        want = defined(arrays, is_centered)
        assert_close([run(function, *arrays)], [want], accumulated=shape[-1])


@pytest.mark.usefixtures("built")
def test_a_batch_is_one_call_with_the_same_bits() -> None:
    each = [example((2, 67), True, False) for _ in range(3)]
    xs = np.stack([a[0] * np.float32(n + 1) for n, a in enumerate(each) if a[0] is not None])
    function, scale = LAYER_NORM.lower(op(each[0], True)), each[0][1]
    together = jax.vmap(function, (0, None))
    assert calls(together, xs, scale) == 1
    np.testing.assert_array_equal(run(together, xs, scale), [run(function, x, scale) for x in xs])


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_special_values_stay_in_their_row(special: float) -> None:
    arrays = example((3, 67), True, True)
    x = arrays[0]
    assert x is not None
    x[1, 66] = special
    found = run(LAYER_NORM.lower(op(arrays, True)), *arrays)
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[[0, 2]]).all()


@pytest.mark.usefixtures("instruction_set")
def test_a_variance_beyond_float32_is_the_largest_number() -> None:
    """LiteRT's kernels limit the sum of variance and epsilon."""
    x = np.full((1, 16), 1e30, np.float32)
    (found,) = run(LAYER_NORM.lower(op([x, None, None], False)), x)
    np.testing.assert_allclose(found, 1e30 / np.sqrt(np.finfo(np.float32).max), rtol=1e-6)


def is_by_kernel(arrays: Arrays, context: LoweringContext = CONTEXT, **more: object) -> bool:
    one = op(arrays, True, context, **more)
    return LAYER_NORM.reason(one) is None and calls(LAYER_NORM.lower(one), *arrays) == 1


def test_what_it_takes() -> None:
    arrays = example((3, 67), True, True)
    assert is_by_kernel(arrays)
    assert not is_by_kernel(arrays, LoweringContext())
    later = dataclasses.replace(
        CONTEXT, quant_mode="integer", result=ResultUse(quantized_later=True)
    )
    assert not is_by_kernel(arrays, later)
    assert is_by_kernel(
        arrays, dataclasses.replace(later, program=ProgramTraits(follows_xnnpack=True))
    )
    short = dataclasses.replace(CONTEXT, precision=PrecisionPolicy(storage=BFLOAT16))
    assert not is_by_kernel(arrays, short)
    assert not is_by_kernel(arrays, axes=(0,))
    assert is_by_kernel(example((65, 67), True, True))
    assert not is_by_kernel(example((0, 67), True, True))
    assert not is_by_kernel(arrays, fused_activation_function=ActivationFunctionType.RELU)
    assert not is_by_kernel([arrays[0], np.ones((3, 1), np.float32), None])


@pytest.mark.usefixtures("built")
def test_a_call_that_does_not_fit_is_refused() -> None:
    x, y = np.zeros((2, 8), np.float32), jax.ShapeDtypeStruct((2, 8), np.float32)
    call = jax.ffi.ffi_call(library.LAYER_NORM, y)
    attributes = {"epsilon": np.ones(1, np.float32), "has": np.array([0, 1, 0], np.int64)}
    with jax.enable_x64(True):
        for arrays, said in (((x,), "expected x"), ((x, x[0, 1:]), "do not fit each other")):
            with pytest.raises(Exception, match=said):
                jax.block_until_ready(call(*arrays, **attributes))
