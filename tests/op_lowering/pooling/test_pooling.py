import struct
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flatbuffers import flexbuffers

from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    CustomOptions,
    MaxPoolWithArgmaxOptions,
    Padding,
    Pool2DOptions,
    Pool3DOptions,
    PoolParamsOptions,
    custom_options,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.testing import Arg, Case, f32, of, value
from tests.support.quantized import scaled

SAME, VALID = Padding.SAME, Padding.VALID
POOLS = ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D")
NOT_IN_LITERT = "a custom operator that stock LiteRT does not have"
HALF = "the kernel has no half-precision types"
Shape = tuple[int, ...]


def pool(
    name: str, label: str, x: Arg, options: Any, window: int = 1, litert: str | None = None
) -> Case:
    version = 3 if x.value.dtype == np.int16 else 2 if x.value.dtype == np.int8 else 1
    return Case(name, label, [x], options, accumulated=window, version=version, litert=litert)


# Input, window [h, w], strides [h, w].
WINDOWS = [
    ((2, 7, 9, 3), (3, 3), (2, 2)),
    ((1, 6, 6, 2), (2, 2), (2, 2)),
    ((2, 7, 7, 3), (7, 7), (7, 7)),  # global
    ((1, 4, 5, 3), (6, 7), (8, 9)),  # global, padded
    ((1, 9, 8, 2), (5, 4), (1, 2)),  # axis by axis
    ((1, 5, 6, 1), (1, 1), (2, 3)),
    ((1, 5, 5, 2), (3, 4), (1, 1)),
]
POOL_2D = [
    pool(
        name,
        f"{padding.name}-{shape}-{window}-{stride}",
        f32(*shape),
        Pool2DOptions(padding, stride[1], stride[0], window[1], window[0]),
        window[0] * window[1],
    )
    for name in POOLS
    for padding in (SAME, VALID)
    for shape, window, stride in WINDOWS
]
POOL_2D += [
    *(
        pool(name, act.name, f32(1, 6, 6, 2, high=9), Pool2DOptions(SAME, 2, 2, 3, 3, act), 9)
        for name in POOLS
        for act in (Act.RELU, Act.RELU_N1_TO_1, Act.RELU6)
    ),
    *(
        pool(
            name,
            np.dtype(dtype).name,
            of(dtype, 1, 6, 6, 2),
            Pool2DOptions(SAME, 2, 2, 3, 3),
            9,
            litert=HALF,
        )
        for name in POOLS
        for dtype in (np.float16, ml_dtypes.bfloat16)
    ),
    *(
        pool(
            name,
            f"{np.dtype(dtype).name}-{size}",
            of(dtype, 1, 7, 6, 2, low=-128, high=127),
            Pool2DOptions(SAME, 2, 2, size, size),
        )
        for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D")
        for dtype in (np.uint8, np.int8, np.int16)
        for size in (3, 4)
    ),
    pool(  # squares that float32 cannot hold: an infinite sum, clamped to the largest number
        "L2_POOL_2D",
        "overflow",
        value(np.float32([3e38, 1, -2e20, 2]).reshape(1, 2, 2, 1)),
        Pool2DOptions(VALID, 1, 1, 2, 1),
    ),
    *(
        pool(name, "empty-batch", f32(0, 6, 6, 2), Pool2DOptions(SAME, 2, 2, 3, 3))
        for name in POOLS
    ),
    *(
        pool(name, "nothing-fits", f32(1, 4, 6, 2), Pool2DOptions(VALID, 1, 1, 3, 9))
        for name in POOLS
    ),
]


def attributes(**values: Any) -> bytes:
    return bytes(flexbuffers.Dumps(values))


def pool_3d(name: str, label: str, x: Arg, ksize: Shape, strides: Shape, padding: str) -> Case:
    data = attributes(
        T=0, ksize=[1, *ksize, 1], strides=[1, *strides, 1], padding=padding, data_format="NDHWC"
    )
    options = custom_options(name, data)
    return Case(name, label, [x], options, accumulated=int(np.prod(ksize)), litert=NOT_IN_LITERT)


POOL_3D = [
    pool_3d(name, f"{padding}-{ksize}-{strides}-{x.value.dtype}", x, ksize, strides, padding)
    for name in ("AvgPool3D", "MaxPool3D")
    for padding in ("SAME", "VALID")
    for ksize, strides in (((2, 3, 2), (1, 2, 2)), ((1, 1, 1), (2, 2, 4)), ((3, 2, 3), (3, 1, 1)))
    for x in (f32(2, 5, 6, 7, 3), of(np.int8, 1, 4, 5, 6, 2, low=-128, high=127))
]


def argmax(
    label: str, x: Arg, ksize: Shape, strides: Shape, padding: str, *, batch: bool, index: Any
) -> Case:
    data = attributes(
        ksize=[1, *ksize, 1],
        strides=[1, *strides, 1],
        padding=padding,
        include_batch_in_index=batch,
        Targmax=2,
    )
    options = custom_options("MaxPoolWithArgmax", data)
    outputs = [x.value.dtype, index]
    return Case("MaxPoolWithArgmax", label, [x], options, outputs, litert=NOT_IN_LITERT)


def pool_params(name: str, padding: Padding, stride: Shape, window: Shape) -> CustomOptions:
    data = struct.pack("<10i", padding + 1, *stride[::-1], *window[::-1], 0, 0, 0, 0, 0)
    return custom_options(name, data)


TIES = of(np.int8, 2, 6, 7, 3, low=-2, high=2)
DIGITS = Arg(TIES.value.astype(np.float32))
ARGMAX = [
    *(
        argmax(f"{padding}-{ksize}", DIGITS, ksize, strides, padding, batch=batch, index=index)
        for padding in ("SAME", "VALID")
        for ksize, strides in (((2, 2), (2, 2)), ((3, 2), (1, 2)))
        for batch, index in ((False, np.int32), (True, np.int64))
    ),
    *(
        Case(
            "MaxPoolingWithArgmax2D",
            f"{padding.name}-{window}-{np.dtype(index).name}",
            [DIGITS],
            pool_params("MaxPoolingWithArgmax2D", padding, stride, window),
            [np.float32, index],
            litert=NOT_IN_LITERT,
        )
        for padding in (SAME, VALID)
        for window, stride in (((2, 2), (2, 2)), ((3, 2), (2, 1)))
        for index in (np.float32, np.int32)
    ),
]


def window_places(window: Shape, *shape: int) -> Arg:
    rng = np.random.default_rng(0)
    return value(rng.integers(0, window[0] * window[1], shape) + 0.1, np.float32)


def image_places(padding: Padding, window: Shape, stride: Shape, *shape: int) -> Arg:
    """Distinct places for each image; two of them are outside."""
    n, h, w, c = shape
    if padding is SAME:
        size = h * stride[0] * w * stride[1] * c
    else:
        size = ((h - 1) * stride[0] + window[0]) * ((w - 1) * stride[1] + window[1]) * c
    rng = np.random.default_rng(0)
    places = np.stack([rng.permutation(size)[: h * w * c] for _ in range(n)]).reshape(shape)
    places[0, 0, 0, 0], places[-1, -1, -1, -1] = -3, size + 5
    return value(places, np.int32)


UNPOOL = [
    Case(
        "MaxUnpooling2D",
        f"{kind}-{padding.name}-{window}-{stride}",
        [f32(2, 3, 4, 2), places],
        pool_params("MaxUnpooling2D", padding, stride, window),
        litert=NOT_IN_LITERT,
    )
    for padding in (SAME, VALID)
    for window, stride in (((2, 2), (2, 2)), ((2, 3), (2, 3)), ((3, 2), (4, 3)))
    for kind, places in (
        ("window", window_places(window, 2, 3, 4, 2)),
        ("image", image_places(padding, window, stride, 2, 3, 4, 2)),
    )
]
UNPOOL.append(
    Case(
        "MaxUnpooling2D",
        "the last value of a place",
        [f32(1, 2, 3, 2), value(np.resize([5, 0, 7], (1, 2, 3, 2)), np.int32)],
        pool_params("MaxUnpooling2D", VALID, (2, 2), (2, 2)),
        litert=NOT_IN_LITERT,
    )
)
CASES = POOL_2D + POOL_3D + ARGMAX + UNPOOL


ON_GPU = [c for c in POOL_2D + POOL_3D if "SAME" in c.label or "int8" in c.label]


def test_a_maximum_is_a_number() -> None:
    x = np.array([[np.nan, -np.inf, np.nan, 3], [-np.inf, np.nan, 2, np.nan]], np.float32)
    case = pool(
        "MAX_POOL_2D", "nan", value(x.reshape(1, 2, 4, 1)), Pool2DOptions(VALID, 2, 2, 2, 2)
    )
    lowest = np.finfo(np.float32).min
    want = [np.array([lowest, 3], np.float32).reshape(1, 1, 2, 1)]
    for got in (
        case.run_lowered(RULES["MAX_POOL_2D"]),
        case.run_lowered(RULES["MAX_POOL_2D"], LoweringContext(platform="gpu")),
        case.run_reference(),
        case.run_litert(),
    ):
        case.check(got, want)


def test_pools_and_their_inverse_agree() -> None:
    x = Arg(np.arange(1, 1 + 2 * 4 * 6 * 3, dtype=np.float32).reshape(2, 4, 6, 3))
    down = Case(
        "MaxPoolingWithArgmax2D",
        "down",
        [x],
        pool_params("MaxPoolingWithArgmax2D", VALID, (2, 2), (2, 2)),
        [np.float32, np.float32],
    )
    up = Case(
        "MaxUnpooling2D",
        "up",
        [Arg(y) for y in down.run_reference()],
        pool_params("MaxUnpooling2D", SAME, (2, 2), (2, 2)),
    )
    is_largest = np.zeros((4, 6), bool)
    is_largest[1::2, 1::2] = True
    up.check(up.run_reference(), [x.value * is_largest[..., None]])


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("name", ["AVERAGE_POOL_2D", "MAX_POOL_2D"])
@pytest.mark.parametrize("size", [3, 5])
def test_pools_have_gradients(name: str, size: int, platform: str) -> None:
    case = pool(name, "gradient", f32(1, 6, 6, 1), Pool2DOptions(SAME, 2, 2, size, size))
    lowered = RULES[name].lower(case.op(LoweringContext(platform)))
    x = np.asarray(case.arrays()[0])
    gradient = jax.grad(lambda x: jnp.sum(lowered(x)[0]))(x)
    np.testing.assert_allclose(np.sum(gradient), 9, rtol=1e-5)


def spec(shape: Shape, dtype: Any = np.float32, scale: float | None = None) -> TensorSpec:
    quantization = None if scale is None else scaled(scale)
    return TensorSpec("x", shape, np.dtype(dtype), quantization)


IMAGE = spec((1, 6, 6, 2))
REFUSED = [
    (
        "MAX_POOL_2D",
        Pool2DOptions(SAME, 1, 1, 2, 2),
        spec((1, 6, 6, 2), np.int8, 0.5),
        "without a scale",
    ),
    (
        "MAX_POOL_2D",
        Pool2DOptions(SAME, 1, 1, 2, 2),
        spec((1, 6, 6, 2), np.int32),
        "int32, not one",
    ),
    (
        "L2_POOL_2D",
        Pool2DOptions(SAME, 1, 1, 2, 2),
        spec((1, 6, 6, 2), np.int8),
        "int8, not one of",
    ),
    ("MAX_POOL_2D", Pool2DOptions(SAME, 1, 1, 2, 2, Act.TANH), IMAGE, "fused TANH"),
    (
        "AVERAGE_POOL_2D",
        Pool2DOptions(SAME, 1, 1, 2, 2, Act.RELU),
        spec((1, 6, 6, 2), np.int8),
        "needs a scale",
    ),
]
IMPOSSIBLE = [
    ("MAX_POOL_2D", Pool2DOptions(SAME, 0, 1, 2, 2), IMAGE, "must be positive"),
    ("MAX_POOL_2D", Pool2DOptions(SAME, 1, 1, 2, 0), IMAGE, "must be positive"),
    ("MAX_POOL_2D", Pool2DOptions(SAME, 1, 1, 2, 2), spec((6, 6, 2)), "must have 4 dimensions"),
]
VOLUME, ONES = spec((1, 4, 4, 4, 2)), (1, 1, 1, 1, 1)
MALFORMED = [
    ("AvgPool3D", Pool3DOptions(b"", ONES, ONES, "EXPLICIT"), VOLUME),
    ("AvgPool3D", Pool3DOptions(b"", ONES, ONES, "SAME", "NCDHW"), VOLUME),
    ("AvgPool3D", Pool3DOptions(b"", (1, 2, 2, 2, 2), ONES, "SAME"), VOLUME),
    ("AvgPool3D", Pool3DOptions(b"", ONES, (2, 2, 2), "SAME"), VOLUME),
    ("MaxPool3D", Pool3DOptions(b"", ONES, (1, 0, 1, 1, 1), "SAME"), VOLUME),
    ("MaxPool3D", Pool3DOptions(), VOLUME),
    ("MaxPool3D", Pool3DOptions(b"", ONES, ONES, "SAME"), IMAGE),
    ("MaxPoolWithArgmax", MaxPoolWithArgmaxOptions(b"", (1, 2, 2, 1), ONES, "SAME"), IMAGE),
    ("MaxPoolingWithArgmax2D", PoolParamsOptions(), IMAGE),
]


def reason(name: str, options: Any, x: TensorSpec) -> str:
    outputs = (spec(x.shape, x.dtype), spec(x.shape, np.int32))
    return RULES[name].reason(Op(LoweringContext(), options, (x,), outputs)) or ""


@pytest.mark.parametrize(("name", "options", "x", "said"), REFUSED + IMPOSSIBLE)
def test_refuses(name: str, options: Any, x: TensorSpec, said: str) -> None:
    assert said in reason(name, options, x)


@pytest.mark.parametrize(("name", "options", "x", "said"), IMPOSSIBLE)
def test_impossible_shapes_are_a_value_error(
    name: str, options: Any, x: TensorSpec, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        KERNELS[name].shapes(options, (x,))


@pytest.mark.parametrize(("name", "options", "x"), MALFORMED)
def test_malformed_attributes(name: str, options: Any, x: TensorSpec) -> None:
    assert reason(name, options, x)
    with pytest.raises(ValueError, match="pool"):
        KERNELS[name].shapes(options, (x,))


@pytest.mark.parametrize("data", [b"\x01", bytes(20), attributes(ksize="many"), b"\x00\x00\x00"])
@pytest.mark.parametrize("name", ["MaxPoolingWithArgmax2D", "MaxPool3D", "MaxPoolWithArgmax"])
def test_other_bytes_are_refused(name: str, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"pool|Pool|buffer|Padding|options"):
        custom_options(name, data)


def test_the_reference_refuses_half_quantized_operators() -> None:
    quantization = scaled(0.5)
    x = Arg(np.ones((1, 4, 4, 1), np.int8), quantization=quantization)
    for name in POOLS:
        with pytest.raises(TypeError, match="int8"):
            pool(name, "int8", x, Pool2DOptions(SAME, 1, 1, 2, 2)).run_reference()


def test_unpooling_needs_a_place_for_every_value() -> None:
    options, places = PoolParamsOptions(b"", SAME, 2, 2, 2, 2), spec((1, 6, 6, 3), np.int32)
    why = RULES["MaxUnpooling2D"].reason(Op(LoweringContext(), options, (IMAGE, places), (IMAGE,)))
    assert "one shape" in (why or "")
    with pytest.raises(ValueError, match="places"):
        KERNELS["MaxUnpooling2D"].shapes(options, (IMAGE, places))
