"""BATCH_MATMUL by the native CPU kernel, against the product in float64."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.common.quantized_products import Tensors
from jaxdelegate.op_lowering.common.small_products_cpu_kernel import batch_product
from jaxdelegate.op_lowering.matmul import cpu_kernel_batch_matmul
from jaxdelegate.op_lowering.matmul.options import BatchMatMulOptions
from jaxdelegate.op_lowering.matmul.rule import BATCH_MATMUL
from jaxdelegate.op_lowering.precision import BFLOAT16, PrecisionPolicy
from jaxdelegate.op_lowering.rule import Function, KernelSet, LoweringContext, Op
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.testing import assert_close

CONTEXT = LoweringContext(kernels=KernelSet(cpu=True))
BOTH = pytest.mark.parametrize("adj_y", [False, True])
# Rows, depth, columns: whole vectors, and odd sizes; more rows than are multiplied at once.
SIZES = [(1, 128, 128), (7, 4, 801), (2, 64, 256), (3, 67, 251), (5, 131, 127), (8, 257, 70)]
PRODUCTS = [*itertools.product(SIZES, [False, True]), ((16, 64, 258), True)]
# More rows: w is copied, whole and in parts, and its last panel is not full.
PRODUCTS += itertools.product(
    [(100, 4, 800), (17, 64, 64), (57, 67, 251), (60, 1100, 131)], [False, True]
)


def matrices(batch: Shape, adj_y: bool, rows: int, k: int, n: int) -> list[np.ndarray]:
    random = np.random.default_rng(rows)
    shapes = (*batch, rows, k), (*batch, *((n, k) if adj_y else (k, n)))
    return [random.normal(size=shape).astype(np.float32) for shape in shapes]


def multiplied(x: np.ndarray, w: np.ndarray, adj_y: bool) -> np.ndarray:
    product = np.float64(x) @ np.float64(w.swapaxes(-1, -2) if adj_y else w)
    return np.float32(product)


def op(x: Shape, w: Shape, adj_y: bool, context: LoweringContext) -> Op[BatchMatMulOptions]:
    batch = np.broadcast_shapes(x[:-2], w[:-2])
    shapes = x, w, (*batch, x[-2], w[-2 if adj_y else -1])
    *inputs, y = (TensorSpec("t", shape, np.dtype(np.float32)) for shape in shapes)
    return Op(context, BatchMatMulOptions(adj_y=adj_y), tuple(inputs), (y,))


def lowered(x: Shape, w: Shape, adj_y: bool, context: LoweringContext = CONTEXT) -> Function:
    return BATCH_MATMUL.lower(op(x, w, adj_y, context))


def calls(function: Function, *arrays: np.ndarray) -> int:
    """How often the traced function calls the kernel."""
    with jax.enable_x64(True):
        return str(jax.make_jaxpr(function)(*arrays)).count(library.BATCH_MATMUL)


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize(("sizes", "adj_y"), PRODUCTS, ids=str)
def test_it_equals_the_product_in_float64(sizes: tuple[int, int, int], adj_y: bool) -> None:
    x, w = matrices((2, 3), adj_y, *sizes)
    run = lowered(x.shape, w.shape, adj_y)
    assert calls(run, x, w) == 1
    with jax.enable_x64(True):
        (y,) = jax.jit(run)(x, w)
    assert_close([np.asarray(y)], [multiplied(x, w, adj_y)], accumulated=sizes[1])


@pytest.mark.usefixtures("built")
@BOTH
def test_tasks_divide_the_columns_of_one_matrix(adj_y: bool) -> None:
    x, w = matrices((1,), adj_y, 2, 520, 1999)
    with jax.enable_x64(True):
        (y,) = jax.jit(lowered(x.shape, w.shape, adj_y))(x, w)
    assert_close([np.asarray(y)], [multiplied(x, w, adj_y)], accumulated=520)


@pytest.mark.usefixtures("built")
@BOTH
def test_rows_are_repeated_for_matrices(adj_y: bool) -> None:
    _, w = matrices((2, 3), adj_y, 1, 64, 96)
    x = np.linspace(-1, 1, 2 * 64, dtype=np.float32).reshape(1, 2, 64)
    run = lowered(x.shape, w.shape, adj_y)
    assert calls(run, x, w) == 1
    assert_close([np.asarray(run(x, w)[0])], [multiplied(x, w, adj_y)], accumulated=64)


@pytest.mark.usefixtures("built")
@BOTH
def test_one_matrix_for_all_rows(adj_y: bool) -> None:
    x, _ = matrices((2, 3), adj_y, 1, 64, 256)
    _, w = matrices((1, 1), adj_y, 1, 64, 256)
    run = lowered(x.shape, w.shape, adj_y)
    assert calls(run, x, w) == 1
    assert_close([np.asarray(run(x, w)[0])], [multiplied(x, w, adj_y)], accumulated=64)


@pytest.mark.usefixtures("built")
@BOTH
def test_a_batch_is_one_call(adj_y: bool) -> None:
    x, w = matrices((5, 2), adj_y, 3, 64, 128)
    one = lowered(x.shape[1:], w.shape[1:], adj_y)
    together = jax.vmap(one)
    assert calls(together, x, w) == 1
    assert "while" not in str(jax.make_jaxpr(together)(x, w))
    with jax.enable_x64(True):
        (y,) = jax.jit(together)(x, w)
    assert_close([np.asarray(y)], [multiplied(x, w, adj_y)], accumulated=64)


@pytest.mark.usefixtures("built")
@BOTH
@pytest.mark.parametrize("axes", [(0, None), (None, 0)])
def test_a_batch_of_one_operand(axes: tuple[int | None, int | None], adj_y: bool) -> None:
    x, w = matrices((5, 2), adj_y, 3, 64, 128)
    x, w = x if axes[0] == 0 else x[0], w if axes[1] == 0 else w[0]
    one = lowered(x.shape[-3:], w.shape[-3:], adj_y)
    (y,) = jax.vmap(one, axes)(x, w)
    assert_close([np.asarray(y)], [multiplied(x, w, adj_y)], accumulated=64)


@pytest.mark.usefixtures("instruction_set")
@BOTH
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_values_are_those_of_the_sums(special: float, adj_y: bool) -> None:
    x, w = matrices((2,), adj_y, 3, 69, 133)
    x[0, 1] = 0  # times infinity: NaN
    for at in (3, 68):
        (w[0].T if adj_y else w[0])[at, 132 - at] = special
    x[1, 2, 5] = special
    (y,) = lowered(x.shape, w.shape, adj_y)(x, w)
    with np.errstate(invalid="ignore"):
        want = x @ (w.swapaxes(-1, -2) if adj_y else w)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(want))
    np.testing.assert_array_equal(np.isposinf(y), np.isposinf(want))
    np.testing.assert_array_equal(np.isneginf(y), np.isneginf(want))


def takes(x: Shape, w: Shape, adj_y: bool = True, context: LoweringContext = CONTEXT) -> bool:
    made = op(x, w, adj_y, context)
    tensors = Tensors(made.inputs[0], made.inputs[1], None, made.outputs[0])  # type: ignore[arg-type]
    return cpu_kernel_batch_matmul.takes(context, made.options, tensors)


def test_what_it_takes() -> None:
    assert takes((1, 8, 2, 64), (1, 8, 256, 64))
    assert takes((1, 8, 16, 64), (1, 8, 256, 64))
    assert takes((2, 64), (256, 64))
    assert takes((8, 8, 64), (8, 64, 256), adj_y=False)
    assert takes((8, 900, 64), (8, 64, 256), adj_y=False)
    assert takes((8, 2, 64), (1, 256, 64))  # one matrix for 16 rows
    assert not takes((8, 0, 64), (8, 256, 64))
    assert not takes((2, 8, 2, 64), (1, 8, 256, 64))  # it would be copied
    assert takes((2, 2, 63), (2, 65, 63))
    assert not takes((2, 1, 63), (2, 65, 63))
    assert not takes((2, 63), (65, 63))
    assert takes((8, 2, 63), (8, 256, 63))  # XLA would leave it to its runtime
    assert takes((4, 100, 4), (4, 4, 800), adj_y=False)
    assert not takes((1, 2, 64), (1, 255, 64))
    assert not takes((8, 2, 64), (8, 256, 64), context=LoweringContext())
    for policy in (PrecisionPolicy(operand=BFLOAT16), PrecisionPolicy(storage=BFLOAT16)):
        short = LoweringContext(kernels=KernelSet(cpu=True), precision=policy)
        assert not takes((8, 2, 64), (8, 256, 64), context=short)


def test_xla_multiplies_constants() -> None:
    x, w, y = (TensorSpec("t", s, np.dtype(np.float32)) for s in ((16, 64), (256, 64), (16, 256)))
    options = BatchMatMulOptions(adj_y=True)
    assert cpu_kernel_batch_matmul.takes(CONTEXT, options, Tensors(x, w, None, y))
    known = dataclasses.replace(w, const=np.zeros(w.shape, np.float32))
    assert not cpu_kernel_batch_matmul.takes(CONTEXT, options, Tensors(x, known, None, y))


@pytest.mark.usefixtures("built")
@BOTH
@pytest.mark.parametrize(
    ("sizes", "counted"), [((1, 70, 630, 64), 1), ((1, 16, 64, 64), 0), ((2, 9, 5, 7), 1)]
)
def test_columns_of_x_are_multiplied_where_xla_has_only_a_library(
    sizes: tuple[int, ...], counted: int, adj_y: bool
) -> None:
    count, *rest = sizes
    x, w = matrices((count,), adj_y, *rest)
    columns = np.ascontiguousarray(x.swapaxes(-1, -2))
    made = op(x.shape, w.shape, adj_y, CONTEXT)
    turned = dataclasses.replace(made.inputs[0], shape=columns.shape)  # type: ignore[type-var]
    options = dataclasses.replace(made.options, adj_x=True)
    run = BATCH_MATMUL.lower(Op(CONTEXT, options, (turned, made.inputs[1]), made.outputs))
    assert calls(run, columns, w) == counted
    (y,) = run(columns, w)
    assert_close([np.asarray(y)], [multiplied(x, w, adj_y)], accumulated=rest[1])


@pytest.mark.usefixtures("instruction_set")
@BOTH
@pytest.mark.parametrize("shapes", [((64, 128), (128, 513)), ((2, 3, 5, 7), (1, 1, 7, 33))])
def test_one_constant_matrix_is_multiplied_by_the_kernel_of_fully_connected(
    shapes: tuple[Shape, Shape], adj_y: bool
) -> None:
    (x_shape, w_shape), random = shapes, np.random.default_rng(0)
    x = random.normal(size=x_shape).astype(np.float32)
    w = random.normal(size=w_shape).astype(np.float32)
    w = w.swapaxes(-1, -2) if adj_y else w
    made = op(x.shape, w.shape, adj_y, CONTEXT)
    known = dataclasses.replace(made.inputs[1], const=w)
    run = BATCH_MATMUL.lower(dataclasses.replace(made, inputs=(made.inputs[0], known)))
    with jax.enable_x64(True):
        assert str(jax.make_jaxpr(run)(x, w)).count(library.PRODUCT) == 1
        (y,) = run(x, w)
        (infinite,) = run(np.full_like(x, 3e38), np.ones_like(w))
    assert_close([np.asarray(y)], [multiplied(x, w, adj_y)], accumulated=x.shape[-1])
    assert np.isinf(infinite).all()


@pytest.mark.usefixtures("built")
def test_a_call_that_does_not_fit_is_refused() -> None:
    x, w = matrices((2,), True, 2, 64, 128)
    run = batch_product(jnp.matmul, is_transposed=True)
    with pytest.raises(Exception, match="do not fit each other"):
        jax.block_until_ready(run(x, w[:, :, 1:]))
    with pytest.raises(Exception, match="expected three dimensions"):
        jax.block_until_ready(run(x[0], w[0]))
