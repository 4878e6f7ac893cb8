"""Transposed convolutions by the native CPU kernel.

Those of floats are compared with the products in float64, those of integers with XLA's.
"""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.common.window import Spread
from jaxdelegate.op_lowering.convolution import cpu_kernel_transposed
from jaxdelegate.op_lowering.convolution.cpu_kernel import NATIVE
from jaxdelegate.op_lowering.convolution.options import (
    Convolution2DTransposeBiasOptions,
    Padding,
    TransposeConvOptions,
)
from jaxdelegate.op_lowering.convolution.transpose_conv import RULES
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.precision import BFLOAT16, PrecisionPolicy
from jaxdelegate.op_lowering.rule import Function, KernelSet, LoweringContext, Op
from jaxdelegate.op_lowering.spec import Shape, TensorSpec
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import assert_close

CONTEXT = LoweringContext(kernels=KernelSet(cpu=True))
SAME, VALID = Padding.SAME, Padding.VALID
FLOAT32 = np.dtype(np.float32)
Arrays = list[np.ndarray]
# Sizes of the output, the filter and strides. The results of a stride fill a panel, are one with
# many channels, or end in the middle; a row of an image and a column; windows beyond the image.
SIZES = [
    ((8, 6), (3, 3), (2, 2)),
    ((7, 9), (3, 4), (2, 3)),
    ((6, 6), (2, 2), (2, 2)),
    ((5, 7), (4, 5), (1, 1)),
    ((33, 41), (5, 5), (4, 4)),
    ((1, 96), (1, 8), (1, 4)),
    ((96, 1), (8, 1), (4, 1)),
    ((3, 2), (7, 6), (2, 2)),
    ((40, 96), (3, 3), (2, 2)),
]
CHANNELS = [(4, 4), (3, 16), (33, 40), (5, 7)]  # of the input and the output


def n_in(padding: Padding, n: int, size: int, stride: int) -> int:
    return -(-n // stride) if padding is SAME else max((n + stride - size) // stride, 0)


@dataclasses.dataclass(frozen=True)
class Example:
    x: np.ndarray
    w: np.ndarray  # [O, h, w, I]
    bias: np.ndarray | None
    out: Shape
    options: TransposeConvOptions

    def op(self, context: LoweringContext) -> Op[TransposeConvOptions]:
        shape = np.array(self.out, np.int32)
        inputs = [
            TensorSpec("shape", (4,), shape.dtype, const=shape),
            TensorSpec("w", self.w.shape, FLOAT32, const=self.w),
            TensorSpec("x", self.x.shape, FLOAT32),
        ]
        if self.bias is not None:
            inputs.append(TensorSpec("bias", self.bias.shape, FLOAT32, const=self.bias))
        y = TensorSpec("y", self.out, FLOAT32)
        return Op(context, self.options, tuple(inputs), (y,))

    def lowered(self, context: LoweringContext = CONTEXT) -> Function:
        return RULES["TRANSPOSE_CONV"].lower(self.op(context))

    def arrays(self) -> Arrays:
        more = [] if self.bias is None else [self.bias]
        return [np.array(self.out, np.int32), self.w, self.x, *more]

    def defined(self) -> np.ndarray:
        """Each value of x adds a patch to the output, from which LiteRT crops the padding."""
        n, height, width, output_channels = self.out
        strides = self.options.stride_h, self.options.stride_w
        _, h, w, _ = self.w.shape
        rows = (self.x.shape[1] - 1) * strides[0] + h
        columns = (self.x.shape[2] - 1) * strides[1] + w
        y = np.zeros((n, max(rows, height), max(columns, width), output_channels))
        for i, j in np.ndindex(*self.x.shape[1:3]):
            top, left = i * strides[0], j * strides[1]
            patch = np.einsum("nc,ohwc->nhwo", np.float64(self.x[:, i, j]), np.float64(self.w))
            y[:, top : top + h, left : left + w] += patch
        is_same = self.options.padding is SAME
        top = max(rows - height, 0) // 2 if is_same else 0
        left = max(columns - width, 0) // 2 if is_same else 0
        y = y[:, top : top + height, left : left + width]
        return np.float32(y + (0 if self.bias is None else self.bias))


def example(
    padding: Padding,
    sizes: tuple[Shape, Shape, Shape],
    channels: tuple[int, int] = (4, 4),
    *,
    activation: Act = Act.NONE,
    has_bias: bool = True,
) -> Example:
    random = np.random.default_rng(0)
    out, size, stride = sizes
    image = (n_in(padding, *d) for d in zip(out, size, stride, strict=True))
    return Example(
        random.normal(size=(2, *image, channels[0])).astype(np.float32),
        random.normal(size=(channels[1], *size, channels[0])).astype(np.float32),
        random.normal(size=channels[1]).astype(np.float32) if has_bias else None,
        (2, *out, channels[1]),
        TransposeConvOptions(padding, stride[1], stride[0], activation),
    )


def calls(function: Function, arrays: Arrays, kernel: str = library.TRANSPOSED) -> int:
    return str(jax.make_jaxpr(function)(*arrays)).count(kernel)


POSSIBLE = [
    (padding, sizes)
    for padding, sizes in itertools.product((SAME, VALID), SIZES)
    if all(n_in(padding, *d) > 0 for d in zip(*sizes, strict=True))
]


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize(("padding", "sizes"), POSSIBLE, ids=str)
def test_it_equals_the_products_in_float64(
    padding: Padding, sizes: tuple[Shape, Shape, Shape]
) -> None:
    for channels in CHANNELS:
        given = example(padding, sizes, channels, has_bias=channels != (5, 7))
        run = given.lowered(dataclasses.replace(CONTEXT, algorithm=NATIVE))
        assert calls(run, given.arrays()) == 1
        (y,) = run(*given.arrays())
        accumulated = int(np.prod(given.w.shape[1:]))
        assert_close([np.asarray(y)], [given.defined()], accumulated=accumulated)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("activation", [Act.RELU, Act.RELU6, Act.RELU_N1_TO_1])
def test_results_are_clamped(activation: Act) -> None:
    given = example(SAME, SIZES[0], activation=activation)
    low, high = {Act.RELU: (0, None), Act.RELU6: (0, 6), Act.RELU_N1_TO_1: (-1, 1)}[activation]
    (y,) = given.lowered()(*given.arrays())
    want = np.clip(given.defined(), low, high)
    assert_close([np.asarray(y)], [want], accumulated=36)


@pytest.mark.usefixtures("built")
def test_a_convolution_of_mediapipe() -> None:
    given = example(SAME, ((8, 8), (2, 2), (2, 2)), (4, 8))
    options = Convolution2DTransposeBiasOptions(padding=SAME, stride_h=2, stride_w=2)
    _, w, x, bias = given.op(CONTEXT).inputs
    op = Op(CONTEXT, options, (x, w, bias), (TensorSpec("y", given.out, FLOAT32),))
    run = RULES["Convolution2DTransposeBias"].lower(op)
    arrays = [given.x, given.w, given.bias]
    assert calls(run, arrays) == 1
    assert_close([np.asarray(run(*arrays)[0])], [given.defined()], accumulated=16)


# ---- int8


def quantization(scale: float | np.ndarray, zero: int = 0) -> Quantization:
    scales = np.atleast_1d(np.float32(scale))
    return Quantization(scales, np.full(len(scales), zero, np.int64))


def int8_op(given: Example, context: LoweringContext) -> tuple[Op[TransposeConvOptions], Arrays]:
    random = np.random.default_rng(1)
    channels = len(given.w)
    of_filter = random.uniform(0.001, 0.004, channels).astype(np.float32)
    x = random.integers(-128, 128, given.x.shape).astype(np.int8)
    w = random.integers(-127, 128, given.w.shape).astype(np.int8)
    bias = random.integers(-9999, 9999, channels).astype(np.int32)
    shape = np.array(given.out, np.int32)
    inputs = [
        TensorSpec("shape", (4,), shape.dtype, const=shape),
        TensorSpec("w", w.shape, w.dtype, quantization(of_filter), const=w),
        TensorSpec("x", x.shape, x.dtype, quantization(0.02, 3)),
        TensorSpec("bias", bias.shape, bias.dtype, quantization(0.02 * of_filter), const=bias),
    ]
    if given.bias is None:
        inputs.pop()
    y = TensorSpec("y", given.out, x.dtype, quantization(0.05 * given.w[0].size ** 0.5, -5))
    arrays = [shape, w, x, bias][: len(inputs)]
    return Op(context, given.options, tuple(inputs), (y,)), arrays


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize(("padding", "sizes"), POSSIBLE, ids=str)
def test_integers_equal_those_of_xla(
    padding: Padding, sizes: tuple[Shape, Shape, Shape], is_exhaustive: bool
) -> None:
    first, step = (0, 1) if is_exhaustive else (POSSIBLE.index((padding, sizes)) % 2, 2)
    for channels in CHANNELS[first::step]:  # XLA compiles each
        given = example(padding, sizes, channels, has_bias=channels != (5, 7))
        results = []
        for native in (True, False):
            context = LoweringContext(quant_mode="integer", kernels=KernelSet(cpu=native))
            op, arrays = int8_op(given, context)
            run = RULES["TRANSPOSE_CONV"].lower(op)
            with jax.enable_x64(True):
                assert calls(run, arrays, library.TRANSPOSED_INT8) == native
                results.append(np.asarray(run(*arrays)[0]))
        np.testing.assert_array_equal(*results)
        assert len(np.unique(results[0])) > 5


def chosen(given: Example, context: LoweringContext = CONTEXT) -> str:
    return next(iter(RULES["TRANSPOSE_CONV"].algorithms(given.op(context))))


def test_what_it_takes() -> None:
    given = example(SAME, SIZES[0])
    assert chosen(given) == NATIVE
    assert chosen(example(SAME, ((9, 9), (2, 2), (3, 3)))) != NATIVE  # gaps
    few = example(SAME, SIZES[0], (4, 2))
    assert chosen(few) != NATIVE
    assert NATIVE in RULES["TRANSPOSE_CONV"].algorithms(few.op(CONTEXT))
    assert chosen(example(SAME, ((16, 2), (3, 3), (2, 2)))) != NATIVE  # one column
    assert chosen(example(SAME, ((16, 1), (3, 1), (2, 1)), (4, 16))) == NATIVE
    assert chosen(given, LoweringContext()) != NATIVE
    for policy in (PrecisionPolicy(operand=BFLOAT16), PrecisionPolicy(storage=BFLOAT16)):
        assert (
            chosen(given, LoweringContext(kernels=KernelSet(cpu=True), precision=policy)) != NATIVE
        )
    of_run_time = [*given.op(CONTEXT).inputs]
    of_run_time[1] = dataclasses.replace(of_run_time[1], const=None)
    op = dataclasses.replace(given.op(CONTEXT), inputs=tuple(of_run_time))
    assert NATIVE not in RULES["TRANSPOSE_CONV"].algorithms(op)


@pytest.mark.usefixtures("built")
def test_a_call_that_does_not_fit_is_refused() -> None:
    spreads = (Spread(2, 4, 3, 2, 0), Spread(2, 4, 3, 2, 0))
    given = example(SAME, ((4, 4), (3, 3), (2, 2)), (4, 16))
    op = given.op(CONTEXT)
    tensors = cpu_kernel_transposed.Tensors(op.inputs[2], op.inputs[1], None, op.outputs[0])
    run, layout = cpu_kernel_transposed.transposed(spreads, Act.NONE, tensors)
    w = layout(given.w.transpose(1, 2, 3, 0))
    run(given.x, w, given.bias)
    for x, filters in ((given.x[:1], w), (given.x, w[:-16])):
        with pytest.raises(Exception, match="fit"):
            run(x, filters, given.bias)
