import math
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.compile.precision_policy import device_policy
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    Conv3DOptions,
    Convolution2DTransposeBiasOptions,
    Padding,
    TransposeConvOptions,
    custom_options,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.testing import Arg, Case, const, f32, of

SAME, VALID = Padding.SAME, Padding.VALID
Shape = tuple[int, ...]


def transposed(
    label: str,
    out: Shape,
    w: Shape,
    x: Shape,
    options: TransposeConvOptions,
    *,
    dtype: Any = np.float32,
    has_bias: bool = False,
    **details: Any,
) -> Case:
    """`w` is [O, h, w, I]."""
    inputs = [const(out, "int32"), const(of(dtype, *w, seed=1)), of(dtype, *x)]
    inputs += [const(of(dtype, w[0], seed=2))] if has_bias else []
    details = {"litert": None if dtype is np.float32 else "the kernel takes float32 only"} | details
    return Case(
        "TRANSPOSE_CONV",
        label,
        inputs,
        options,
        [dtype],
        version=3 if has_bias else 1,
        accumulated=math.prod(w[1:]),
        **details,
    )


def transposed_3d(
    label: str, out: Shape, w: Shape, x: Shape, options: Conv3DOptions, *, has_bias: bool = True
) -> Case:
    """`w` is [d, h, w, O, I]."""
    inputs = [const(out, "int32"), const(f32(*w, seed=1)), f32(*x)]
    inputs += [const(f32(w[3], seed=2))] if has_bias else []
    return Case(
        "CONV_3D_TRANSPOSE",
        label,
        inputs,
        options,
        [np.float32],
        accumulated=math.prod(w) // w[3],
    )


def mediapipe(label: str, x: Shape, w: Shape, padding: Padding, stride: int) -> Case:
    data = struct.pack("<3i", padding + 1, stride, stride)
    return Case(
        "Convolution2DTransposeBias",
        label,
        [f32(*x), const(f32(*w, seed=1)), const(f32(w[0], seed=2))],
        custom_options("Convolution2DTransposeBias", data),
        accumulated=math.prod(w[1:]),
        litert="a custom operator of MediaPipe",
    )


# Output size, filter size, stride, and the input that they imply.
SIZES = [
    ((8, 6), (3, 3), (2, 2)),
    ((7, 9), (3, 2), (2, 3)),
    ((6, 6), (2, 2), (2, 2)),
    ((5, 7), (2, 1), (2, 3)),
    ((6, 5), (4, 5), (1, 1)),
    ((9, 8), (5, 4), (2, 3)),
]


def n_in(padding: Padding, n: int, size: int, stride: int) -> int:
    return -(-n // stride) if padding is SAME else (n + stride - size) // stride


TRANSPOSE_CONV = [
    transposed(
        f"{padding.name}-{out}-{size}-{stride}",
        (2, *out, 3),
        (3, *size, 4),
        (2, *(n_in(padding, *d) for d in zip(out, size, stride, strict=True)), 4),
        TransposeConvOptions(padding, stride[1], stride[0]),
        has_bias=size == (3, 3),
    )
    for padding in (SAME, VALID)
    for out, size, stride in SIZES
]
TRANSPOSE_CONV += [
    *(
        transposed(
            f"{act.name}-{size}",
            (1, 6, 6, 3),
            (3, size, size, 4),
            (1, 3, 3, 4),
            TransposeConvOptions(SAME, 2, 2, act),
            has_bias=True,
        )
        for act in (Act.RELU, Act.RELU_N1_TO_1, Act.RELU6)
        for size in (2, 3)
    ),
    *(
        transposed(
            f"{np.dtype(dtype).name}-{size}",
            (1, 6, 6, 3),
            (3, size, size, 4),
            (1, 3, 3, 4),
            TransposeConvOptions(SAME, 2, 2),
            dtype=dtype,
            has_bias=True,
        )
        for dtype in (np.float16, ml_dtypes.bfloat16)
        for size in (2, 3)
    ),
    transposed(
        "empty-batch", (0, 6, 6, 3), (3, 2, 2, 4), (0, 3, 3, 4), TransposeConvOptions(SAME, 2, 2)
    ),
    Case(
        "TRANSPOSE_CONV",
        "run-time-filter",
        [const((1, 6, 6, 3), "int32"), f32(3, 3, 3, 4), f32(1, 3, 3, 4)],
        TransposeConvOptions(SAME, 2, 2),
        [np.float32],
        accumulated=36,
    ),
]
CONV_3D_TRANSPOSE = [
    transposed_3d(
        "same",
        (2, 6, 8, 9, 3),
        (2, 3, 4, 3, 5),
        (2, 3, 4, 3, 5),
        Conv3DOptions(SAME, 2, 3, 2),
    ),
    transposed_3d(
        "valid",
        (1, 5, 7, 9, 3),
        (2, 3, 2, 3, 5),
        (1, 4, 3, 8, 5),
        Conv3DOptions(VALID, 1, 1, 2, Act.RELU),
    ),
    transposed_3d(
        "dilated",
        (1, 5, 7, 6, 3),
        (2, 3, 2, 3, 5),
        (1, 5, 7, 6, 5),
        Conv3DOptions(SAME, 1, 1, 1, Act.RELU6, 2, 1, 3),
    ),
    transposed_3d(
        "no-bias",
        (1, 4, 4, 4, 3),
        (2, 2, 2, 3, 5),
        (1, 2, 2, 2, 5),
        Conv3DOptions(SAME, 2, 2, 2),
        has_bias=False,
    ),
]
MEDIAPIPE = [
    mediapipe(f"{padding.name}-{size}-{w}-{stride}", (2, *size, 4), (3, w, w, 4), padding, stride)
    for padding in (SAME, VALID)
    for size in ((4, 4), (3, 5))
    for w, stride in ((2, 2), (3, 2), (4, 2), (2, 3), (3, 1))
]
CASES = TRANSPOSE_CONV + CONV_3D_TRANSPOSE + MEDIAPIPE
ON_GPU = CASES


def test_no_infinity_and_no_rounded_bias_on_a_gpu() -> None:
    """cuDNN has no epilogue for transposed convolutions: XLA computes it, in float32."""
    x, w = np.full((1, 2, 2, 2), 60000, np.float32), np.ones((2, 3, 3, 2), np.float32)
    x[..., 0, :] = 0
    bias, out = np.array([2049, 0], np.float32), np.array([1, 4, 4, 2], np.int32)
    arrays = (out, w, x, bias)
    specs = [spec(a.shape, a.dtype, None if a is x else a) for a in arrays]
    context = LoweringContext(platform="gpu", precision=device_policy("float16"))
    options = TransposeConvOptions(SAME, 2, 2)
    (y,) = RULES["TRANSPOSE_CONV"].lower(Op(context, options, specs, (spec((1, 4, 4, 2)),)))(
        *arrays
    )
    assert y.dtype == np.float32
    assert np.all(np.isfinite(y))
    assert y[0, 0, 0, 0] == 2049


def test_mediapipe_doubles_an_image() -> None:
    case = mediapipe("doubled", (1, 2, 2, 1), (1, 2, 2, 1), SAME, 2)
    x, w, b = (np.asarray(a) for a in case.arrays())
    tiles = x[:, :, None, :, None] * w.reshape(1, 1, 2, 1, 2, 1)
    case.check(case.run_reference(), [tiles.reshape(1, 4, 4, 1) + b])


def spec(shape: Shape, dtype: Any = np.float32, const: Any = None) -> TensorSpec:
    return TensorSpec(
        "t", shape, np.dtype(dtype), const=None if const is None else np.asarray(const, dtype)
    )


def asked(*shape: int) -> TensorSpec:
    return spec((len(shape),), np.int32, shape)


OPTIONS = TransposeConvOptions(SAME, 2, 2)
FILTER, IMAGE = spec((3, 3, 3, 4)), spec((1, 3, 3, 4))
REFUSED = [
    (OPTIONS, spec((4,), np.int32), FILTER, IMAGE, "XLA needs it constant"),
    (OPTIONS, spec((4,), np.int64, (1, 6, 6, 3)), FILTER, IMAGE, "int64"),
    (OPTIONS, asked(6, 6, 3), FILTER, IMAGE, "must hold 4 values"),
    (OPTIONS, asked(1, 6, 6, 3), spec((3, 3, 3, 5)), IMAGE, "4 input channels"),
    (OPTIONS, asked(1, 8, 6, 3), FILTER, IMAGE, "does not come from input"),
    (OPTIONS, asked(1, 6, 6, 5), FILTER, IMAGE, "does not come from input"),
    (OPTIONS, asked(2, 6, 6, 3), FILTER, IMAGE, "does not come from input"),
    (OPTIONS, asked(1, 6, 6, 3), spec((3, 3, 4)), IMAGE, "must have 4 dimensions"),
    (OPTIONS, asked(1, 6, 6, 3), FILTER, spec((1, 3, 3, 4), np.int8), "int8"),
    (TransposeConvOptions(SAME, 0, 2), asked(1, 6, 6, 3), FILTER, IMAGE, "must be positive"),
    (TransposeConvOptions(SAME, 2, 2, Act.TANH), asked(1, 6, 6, 3), FILTER, IMAGE, "fused TANH"),
]


@pytest.mark.parametrize(("options", "shape", "w", "x", "said"), REFUSED)
def test_refuses(options: Any, shape: TensorSpec, w: TensorSpec, x: TensorSpec, said: str) -> None:
    inputs, out = (shape, w, x), spec((1, 6, 6, 3))
    reason = RULES["TRANSPOSE_CONV"].reason(Op(LoweringContext(), options, inputs, (out,)))
    assert said in (reason or "")


def test_the_reference_takes_a_run_time_shape() -> None:
    constant = TRANSPOSE_CONV[0]
    shape = np.asarray(constant.arrays()[0])
    assert KERNELS["TRANSPOSE_CONV"].shapes(OPTIONS, (spec((4,), np.int32),)) == (None,)
    late = Case(
        "TRANSPOSE_CONV",
        "late",
        [Arg(shape), *constant.inputs[1:]],
        constant.options,
        [np.float32],
        version=3,
        accumulated=36,
    )
    late.check(late.run_reference(), constant.run_reference())
    late.check(late.run_reference(), late.run_litert())


def test_the_reference_refuses_an_output_that_does_not_fit() -> None:
    case = transposed("misfit", (1, 9, 8, 3), (3, 3, 3, 4), (1, 4, 4, 4), OPTIONS)
    with pytest.raises(ValueError, match="does not come from input"):
        case.run_reference()
    with pytest.raises(RuntimeError, match="computed_input_height"):
        case.run_litert()


@pytest.mark.parametrize(
    ("options", "x", "w"),
    [
        (Convolution2DTransposeBiasOptions(b"", SAME, 0, 1), (1, 3, 3, 4), (3, 3, 3, 4)),
        (Convolution2DTransposeBiasOptions(b"", SAME, 1, 1), (1, 3, 3, 4), (3, 3, 3, 5)),
        (Convolution2DTransposeBiasOptions(b"", SAME, 1, 1), (1, 0, 3, 4), (3, 3, 3, 4)),
        (Convolution2DTransposeBiasOptions(b"", SAME, 1, 1), (3, 3, 4), (3, 3, 3, 4)),
    ],
)
def test_mediapipe_refuses_what_does_not_fit(options: Any, x: Shape, w: Shape) -> None:
    name, inputs = "Convolution2DTransposeBias", (spec(x), spec(w))
    assert RULES[name].reason(Op(LoweringContext(), options, inputs, (spec(()),)))
    with pytest.raises(ValueError, match=name):
        KERNELS[name].shapes(options, inputs)
