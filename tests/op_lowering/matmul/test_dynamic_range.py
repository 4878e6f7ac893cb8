import dataclasses
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.common.dynamic_range import quantize_rows
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import BatchMatMulOptions, FullyConnectedOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext, Op
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.params import Blockwise, Quantization, integer_range
from jaxdelegate.reference.products import quantize_rows as reference_rows
from jaxdelegate.testing import Arg, Case, Tolerance
from tests.support.case_groups import CaseGroup
from tests.support.quantized import scaled

INT8, UINT8 = np.dtype(np.int8), np.dtype(np.uint8)
INT4, INT2 = np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.int2)
OTHER_ROWS = "the kernel reads the scales of other rows"
PACKED = "packed weights are constants"
EMPTY = "refuses no elements"
EXACT = Tolerance()
AS_ROUNDED = "every step is rounded as the kernel rounds it"
Shape = tuple[int, ...]


def floats(shape: Shape, seed: int = 0) -> np.ndarray:
    """Rows of very different extents; some hold one sign only."""
    rng = np.random.default_rng([*shape, seed])
    extents = np.exp(rng.normal(size=(*shape[:-1], 1)) * 2)
    return ((rng.normal(size=shape) + rng.normal(size=extents.shape)) * extents).astype(np.float32)


def weights(dtype: np.dtype, shape: Shape) -> np.ndarray:
    """Without the lowest integer, which the kernels for x86 take for another."""
    low, high = integer_range(np.dtype(np.int8) if dtype == UINT8 else dtype, narrow=True)
    values = np.random.default_rng(shape).integers(low, high, shape, endpoint=True)
    return values.astype(np.int8).view(np.uint8) if dtype == UINT8 else values.astype(dtype)


def scales(count: int) -> np.ndarray:
    return np.geomspace(0.001, 0.1, count).astype(np.float32)


def dense(
    label: str,
    x: Shape,
    w: Shape,
    dtype: np.dtype = INT8,
    *,
    by_row: bool = False,
    asymmetric: bool = False,
    act: Act = Act.NONE,
    has_bias: bool = True,
    late: bool = False,
    keep: bool = False,
    **details: Any,
) -> Case:
    """`w` is [N, K]; late: weights come at run time."""
    q = scaled(scales(w[0]) if by_row else 0.01)
    inputs = [Arg(floats(x)), Arg(weights(dtype, w), not late, quantization=q)]
    inputs += [Arg(floats((w[0],), 1), is_const=True)] if has_bias else []
    options = FullyConnectedOptions(act, keep_num_dims=keep, asymmetric_quantize_inputs=asymmetric)
    exact: dict[str, Any] = {"tolerance": EXACT, "because": AS_ROUNDED}
    version = 14 if dtype == INT2 else 12
    return Case(
        "FULLY_CONNECTED",
        f"{dtype}-{label}",
        inputs,
        options,
        **(({} if act is Act.TANH else exact) | {"version": version} | details),
    )


FULLY_CONNECTED = [
    *(
        dense(
            f"{by_row}-{asymmetric}-{output_channels}",
            (4, 37),
            (output_channels, 37),
            dtype,
            by_row=by_row,
            asymmetric=asymmetric,
        )
        for dtype in (INT8, UINT8, INT4, INT2)
        for by_row in (False, True)
        for asymmetric in (False, True)
        for output_channels in (5, 8)
    ),
    *(
        dense(act.name, (3, 20), (6, 20), by_row=True, asymmetric=True, act=act)
        for act in (Act.RELU, Act.RELU_N1_TO_1, Act.RELU6, Act.TANH)
    ),
    *(
        dense(
            f"late-{asymmetric}", (3, 20), (6, 20), dtype, asymmetric=asymmetric, late=True, **how
        )
        for dtype, how in ((INT8, {}), (UINT8, {}), (INT4, {"litert": PACKED}))
        for asymmetric in (False, True)
    ),
    dense("no-bias", (3, 20), (6, 20), asymmetric=True, has_bias=False),
    dense("keep", (2, 1, 3, 20), (6, 20), by_row=True, keep=True),
    dense("left-over", (2, 5), (4, 3), asymmetric=True),
    dense("deep", (2, 3000), (3, 3000), asymmetric=True),
    dense("no-depth", (3, 0), (5, 0), litert=EMPTY),
    dense("no-rows", (0, 7), (5, 7), litert=EMPTY),
]


def product(
    label: str,
    batches: tuple[Shape, Shape],
    o: BatchMatMulOptions | None = None,
    *,
    by_column: bool = False,
    size: tuple[int, int, int] = (4, 23, 3),
    **details: Any,
) -> Case:
    """Matrices of [M, K] and [K, N]; the options may turn them."""
    o, (rows, depth, columns) = o or BatchMatMulOptions(), size
    x = (*batches[0], *((depth, rows) if o.adj_x else (rows, depth)))
    w = (*batches[1], *((columns, depth) if o.adj_y else (depth, columns)))
    q = scaled(scales(columns) if by_column else 0.01, axis=len(w) - (2 if o.adj_y else 1))
    inputs = [Arg(floats(x)), Arg(weights(INT8, w), is_const=True, quantization=q)]
    exact: dict[str, Any] = {"tolerance": EXACT, "because": AS_ROUNDED, "version": 4}
    return Case("BATCH_MATMUL", label, inputs, o, **(exact | details))


BATCH_MATMUL = [
    *(
        product(f"{x}x{w}-{asymmetric}", (x, w), BatchMatMulOptions(False, False, asymmetric))
        for x, w in (((), ()), ((3,), (3,)), ((3,), ()), ((), (4,)), ((2, 1), (1, 3)))
        for asymmetric in (False, True)
    ),
    *(
        product(f"{x}x{w}-rows", (x, w), BatchMatMulOptions(False, False, True), litert=OTHER_ROWS)
        for x, w in (((2, 3), ()), ((2, 3), (2, 3)), ((2, 1, 3), (4, 1)))
    ),
    *(
        product(
            f"{o.adj_x}-{o.adj_y}-{o.asymmetric_quantize_inputs}", ((2,), ()), o, by_column=True
        )
        for o in (
            BatchMatMulOptions(True, False, False),
            BatchMatMulOptions(False, True, True),
            BatchMatMulOptions(True, True, True),
        )
    ),
    product("no-depth", ((), ()), size=(2, 0, 3), litert=EMPTY),
    product("no-rows", ((), ()), size=(0, 2, 3), litert=EMPTY),
]
CASES = FULLY_CONNECTED + BATCH_MATMUL


@pytest.mark.usefixtures("instruction_set")
def test_one_matrix_is_multiplied_by_the_cpu_kernel() -> None:
    context = LoweringContext(kernels=KernelSet(cpu=True), quant_mode="integer")

    def is_taken(case: Case) -> bool:
        arrays = [arg.value for arg in case.inputs]
        run = RULES["BATCH_MATMUL"].lower(case.op(context))
        with jax.enable_x64(True):
            return library.FULLY_CONNECTED in str(jax.make_jaxpr(run)(*arrays))

    found = {case.label: is_taken(case) for case in BATCH_MATMUL}
    assert found["()x()-True"]
    assert found["(2, 3)x()-rows"]
    assert found["True-True-True"]
    assert not found["(3,)x(3,)-True"]
    assert not found["no-depth"]
    CaseGroup(BATCH_MATMUL).check_lowerings(RULES, context)


@pytest.mark.parametrize("act", [Act.TANH, Act.SIGN_BIT])
def test_the_kernel_applies_other_activations(act: Act) -> None:
    plain, fused = (dense("fused", (3, 20), (6, 20), act=a) for a in (Act.NONE, act))
    function = np.tanh if act is Act.TANH else np.signbit
    want = function(plain.run_reference()[0]).astype(np.float32)
    np.testing.assert_array_equal(fused.run_reference()[0], want)
    np.testing.assert_allclose(fused.run_litert()[0], want, rtol=1e-6)


ROWS = [
    [0.0, 0.0, 0.0],
    [1.0, 2.0, 3.0],
    [-3.0, -1.0, -0.5],
    [-1e-3, 0.0, 1e3],
    [1e-30, -1e-30, 2e-30],
    [3e38, -3e37, 1.0],
    [0.5, -0.5, 127.5],
    [255.0, 127.5, -0.0],
]


@pytest.mark.parametrize("asymmetric", [False, True])
def test_rows_are_quantized_as_in_the_reference(asymmetric: bool, rng: np.random.Generator) -> None:
    rows = np.concatenate([np.float32(ROWS), floats((500, 3)), rng.normal(size=(500, 3))])
    rows = rows.astype(np.float32)
    with jax.enable_x64(True):
        got = jax.jit(lambda x: quantize_rows(x, asymmetric=asymmetric))(rows)
        for g, w in zip(got, reference_rows(rows, asymmetric=asymmetric), strict=True):
            np.testing.assert_array_equal(np.broadcast_to(g, w.shape), w)


def spec(shape: Shape, dtype: Any, scale: Any = None, axis: int = 0) -> TensorSpec:
    q = None if scale is None else scaled(scale, axis=axis)
    return TensorSpec("t", shape, np.dtype(dtype), q)


X, Y, B = spec((4, 6), np.float32), spec((4, 5), np.float32), spec((5,), np.float32)
W = spec((5, 6), np.int8, 0.1)
BLOCKS = Quantization(np.zeros(0, np.float32), np.zeros(0, np.int64), blockwise=Blockwise(0, -1, 2))
REFUSED = [
    ((X, spec((5, 6), np.int16, 0.1), B, Y), "quantized int16"),
    ((X, TensorSpec("t", (5, 6), INT4, BLOCKS), B, Y), "in blocks"),
    ((X, spec((5, 6), np.int8, [0.1] * 6, 1), B, Y), "6 scales"),
    ((X, spec((5, 6), np.int8, [0.1] * 5, 1), B, Y), "5 scales"),
    ((X, spec((5, 6), np.int8, [np.nan] * 5), B, Y), "not finite"),
    ((X, W, spec((5,), np.int32), Y), "is int32"),
    ((spec((4, 6), np.float16), W, B, Y), "is float16"),
]


@pytest.mark.parametrize(("specs", "said"), REFUSED)
def test_refuses(specs: tuple[TensorSpec, ...], said: str) -> None:
    rule, context = RULES["FULLY_CONNECTED"], LoweringContext(quant_mode="integer")
    got = rule.reason(Op(context, FullyConnectedOptions(), specs[:-1], specs[-1:]))
    assert said in (got or "")
    assert rule.reason(Op(context, FullyConnectedOptions(), (X, W, B), (Y,))) is None


def test_refuses_a_fused_sign_bit() -> None:
    rule, context = RULES["FULLY_CONNECTED"], LoweringContext(quant_mode="integer")
    options = FullyConnectedOptions(Act.SIGN_BIT)
    assert "SIGN_BIT" in (rule.reason(Op(context, options, (X, W, B), (Y,))) or "")


def test_the_reference_refuses_other_dtypes() -> None:
    case = dense("one", (2, 3), (4, 3))
    x, w, b = case.inputs
    wide = dataclasses.replace(w, value=w.value.astype(np.int16))
    with pytest.raises(TypeError, match="quantized int16"):
        dataclasses.replace(case, inputs=[x, wide, b]).run_reference()
