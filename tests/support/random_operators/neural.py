"""How to draw convolutions, products, pools and normalizations, in every scheme of weights.

Sources: schema.fbs, kernels/*.cc, and the quantization specification of TFLite.
"""

import dataclasses

import numpy as np

from jaxdelegate.op_lowering.options import (
    BatchMatMulOptions,
    Conv2DOptions,
    Conv3DOptions,
    DepthwiseConv2DOptions,
    FullyConnectedOptions,
    L2NormOptions,
    LocalResponseNormalizationOptions,
    Padding,
    Pool2DOptions,
    ResizeBilinearOptions,
    ResizeNearestNeighborOptions,
    SoftmaxOptions,
    TransposeConvOptions,
)
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.quant.params import Quantization
from tests.support.graph_drawing import Drawing, int4_values
from tests.support.quantized import scaled
from tests.support.random_operators.elementwise import ACTIVATIONS, QUANTIZED, Draw, F, fixed_scale

_SCHEMES = {
    "float32": ("float", "float", "float16", "weights only", "dynamic range"),
    "qint8": ("per channel", "per channel", "per tensor", "int4"),
    "quint8": ("uint8",),
    "qint16": ("per channel",),
}


@dataclasses.dataclass(frozen=True)
class Weights:
    """A filter's tensor, its scales (None: float), and which input has the scale."""

    tensor: int
    scales: np.ndarray | None
    scheme: str


def weights(
    d: Drawing,
    kind: str,
    shape: Shape,
    channel: int,
    *,
    without: str = "",
    scales_must_differ: bool = False,
) -> Weights:
    """Weights in one of the schemes for activations of this kind; `channel`: the scales' axis."""
    schemes = [s for s in _SCHEMES[kind] if s not in without.split(",")]
    scheme = d.one_of(schemes)
    floats = d.rng.normal(0, 0.6, shape)
    if scheme == "float":
        index = d.const(floats, np.float32) if d.chance(0.9) else d.fed(floats, np.float32)
        return Weights(index, None, scheme)
    if scheme == "float16":
        half = d.const(floats, np.float16)
        return Weights(_dequantized(d, half, shape), None, scheme)
    if scheme == "uint8":
        q = d.quantization("quint8")
        index = d.const(d.rng.integers(0, 256, shape), np.uint8, q)
        return Weights(index, None if q is None else q.scale, scheme)
    by_channel = scheme in {"per channel", "int4"} or (
        scheme in {"weights only", "dynamic range"} and (scales_must_differ or d.chance(0.6))
    )
    scales = d.rng.uniform(0.001, 0.02, shape[channel] if by_channel else 1).astype(np.float32)
    if scheme == "int4":
        index = d.const(int4_values(d.rng, shape), q=scaled(scales * 16, axis=channel))
        return Weights(index, scales * 16, scheme)
    index = d.const(d.rng.integers(-127, 128, shape), np.int8, scaled(scales, axis=channel))
    if scheme == "weights only":
        return Weights(_dequantized(d, index, shape), None, scheme)
    return Weights(index, scales, scheme)


def _dequantized(d: Drawing, index: int, shape: Shape) -> int:
    result = d.add(shape, np.float32)
    d.node("DEQUANTIZE", [index], [result], version=5, live=False)
    return result


def _bias(d: Drawing, x: int, w: Weights, n: int) -> list[int]:
    """A bias, or None."""
    q = d.q_of(x)
    if d.kind(x) != "qint16" and d.chance(0.3):  # required by the int16 kernel
        return []
    if q is None or w.scales is None:
        return [d.const(d.rng.normal(0, 1, n), np.float32)]
    dtype = np.int64 if d.kind(x) == "qint16" else np.int32
    return [d.const(d.rng.integers(-2000, 2000, n), dtype, scaled(q.scale[0] * w.scales))]


def _output_scale(d: Drawing, x: int, w: Weights, products: int) -> Quantization | None:
    """A scale that fits most sums."""
    q, kind = d.q_of(x), d.kind(x)
    if q is None or w.scales is None:
        return None
    steps = 60.0 if kind != "qint16" else 3000.0
    real = float(q.scale[0]) * float(np.mean(w.scales)) * 60 * np.sqrt(products)
    scale = np.float32(real * steps / (127.0 if kind != "qint16" else 32767.0))
    zero = {"qint8": d.between(-40, 40), "quint8": d.between(80, 170)}.get(kind, 0)
    return scaled(scale, zero)


def out_size(padding: Padding, size: int, window: int, stride: int) -> int:
    """How many windows there are; `window` is the dilated one."""
    if padding == Padding.SAME:
        return -(-size // stride)
    return (size - window) // stride + 1


def _image(d: Drawing, kinds: tuple[str, ...] = (*F, *QUANTIZED)) -> int:
    return d.operand(kinds, 4, 4, lambda s: all(s) and max(s[1:]) < 5000)


def _window(
    d: Drawing, sizes: Shape, most: int = 4
) -> tuple[Padding, list[int], list[int], list[int]]:
    """Padding, window, strides and dilations that fit an image."""
    padding = d.one_of(tuple(Padding))
    window, strides, dilations = [], [], []
    dilate = d.chance(0.25)
    for n in sizes:
        fits = most if padding == Padding.SAME else min(most, n)
        k = d.between(1, max(1, fits))
        rate = d.between(1, 3) if dilate else 1
        if padding == Padding.VALID and (k - 1) * rate + 1 > n:
            rate = 1
        window.append(k)
        dilations.append(rate)
        strides.append(1 if dilate else d.between(1, 3))
    return padding, window, strides, dilations


def _conv_2d(d: Drawing) -> None:
    x = _image(d)
    b, h, w_, c = d.shape_of(x)
    padding, k, s, r = _window(d, (h, w_))
    groups = d.one_of([g for g in (1, 1, 1, 2, 3) if c % g == 0])
    n = groups * d.between(1, 5)
    without = "dynamic range,int4" if groups > 1 else ""
    w = weights(d, d.kind(x), (n, *k, c // groups), 0, without=without)
    to = [
        b,
        *(
            out_size(padding, *v)
            for v in ((h, (k[0] - 1) * r[0] + 1, s[0]), (w_, (k[1] - 1) * r[1] + 1, s[1]))
        ),
        n,
    ]
    products = int(np.prod(k)) * c // groups
    options = Conv2DOptions(padding, s[1], s[0], d.one_of(ACTIVATIONS), r[1], r[0])
    operands = [x, w.tensor, *_bias(d, x, w, n)]
    q = _output_scale(d, x, w, products)
    version = {"int4": 7}.get(w.scheme, 5)
    d.result(
        "CONV_2D", operands, to, d.kind(x), options, q=q, accumulated=products, version=version
    )


def _depthwise(d: Drawing) -> None:
    x = _image(d)
    b, h, w_, c = d.shape_of(x)
    padding, k, s, r = _window(d, (h, w_))
    s[1] = s[0]  # the kernel accepts any; delegates need equal ones
    multiplier = d.one_of((1, 1, 2, 3))
    n = c * multiplier
    w = weights(d, d.kind(x), (1, *k, n), 3, without="int4", scales_must_differ=True)
    rows, columns = ((k[i] - 1) * r[i] + 1 for i in range(2))
    to = [b, out_size(padding, h, rows, s[0]), out_size(padding, w_, columns, s[1]), n]
    options = DepthwiseConv2DOptions(
        padding,
        stride_w=s[1],
        stride_h=s[0],
        depth_multiplier=multiplier,
        fused_activation_function=d.one_of(ACTIVATIONS),
        dilation_w_factor=r[1],
        dilation_h_factor=r[0],
    )
    products = int(np.prod(k))
    operands = [x, w.tensor, *_bias(d, x, w, n)]
    q = _output_scale(d, x, w, products)
    d.result(
        "DEPTHWISE_CONV_2D", operands, to, d.kind(x), options, q=q, accumulated=products, version=5
    )


def _transpose_conv(d: Drawing) -> None:
    x = _image(d)
    b, h, w_, c = d.shape_of(x)
    padding, k, s = (
        d.one_of(tuple(Padding)),
        *[[d.between(1, 3) for _ in range(2)] for _ in range(2)],
    )
    n = d.between(1, 4)
    w = weights(d, d.kind(x), (n, *k, c), 0, without="dynamic range,int4,weights only")
    if padding == Padding.SAME:
        sizes = [h * s[0], w_ * s[1]]
    else:
        sizes = [h * s[0] + max(k[0] - s[0], 0), w_ * s[1] + max(k[1] - s[1], 0)]
    to = [b, *sizes, n]
    products = int(np.prod(k)) * c
    operands = [d.const(to, np.int32), w.tensor, x, *_bias(d, x, w, n)]
    q = _output_scale(d, x, w, products)
    options = TransposeConvOptions(padding, s[1], s[0], d.one_of(ACTIVATIONS))
    d.result(
        "TRANSPOSE_CONV", operands, to, d.kind(x), options, q=q, accumulated=products, version=4
    )


def _conv_3d(name: str) -> Draw:
    def draw(d: Drawing) -> None:
        x = d.operand(F, 5, 5, lambda s: all(s) and bool(np.prod(s) < 2500))
        b, *sizes, c = d.shape_of(x)
        padding, k, s, r = _window(d, tuple(sizes), 3)
        n = d.between(1, 3)
        act = d.one_of(ACTIVATIONS)
        if name == "CONV_3D":
            options = Conv3DOptions(
                padding,
                stride_d=s[0],
                stride_w=s[2],
                stride_h=s[1],
                fused_activation_function=act,
                dilation_d_factor=r[0],
                dilation_w_factor=r[2],
                dilation_h_factor=r[1],
            )
            to = [
                out_size(padding, m, (w - 1) * rate + 1, step)
                for m, w, step, rate in zip(sizes, k, s, r, strict=True)
            ]
            filters = d.const(d.rng.normal(0, 0.6, (*k, c, n)), np.float32)
            operands = [x, filters, d.const(d.rng.normal(0, 1, n), np.float32)]
        else:
            options = Conv3DOptions(padding, s[0], s[2], s[1], act)
            to = [
                m * step + (max(w - step, 0) if padding == Padding.VALID else 0)
                for m, w, step in zip(sizes, k, s, strict=True)
            ]
            filters = d.const(d.rng.normal(0, 0.6, (*k, n, c)), np.float32)
            operands = [d.const([b, *to, n], np.int32), filters, x]
        products = int(np.prod(k)) * c
        d.result(name, operands, [b, *to, n], "float32", options, accumulated=products)

    return draw


def _fully_connected(d: Drawing) -> None:
    x = d.operand((*F, *QUANTIZED), 1, 4, all)
    shape = d.shape_of(x)
    n, depth = d.between(1, 9), shape[-1]
    w = weights(d, d.kind(x), (n, depth), 0)
    keep = d.chance(0.5)
    rows = int(np.prod(shape)) // depth
    to = [*shape[:-1], n] if keep else [rows, n]
    asymmetric = w.scheme == "dynamic range" and d.chance(0.5)
    options = FullyConnectedOptions(
        d.one_of(ACTIVATIONS), keep_num_dims=keep, asymmetric_quantize_inputs=asymmetric
    )
    operands = [x, w.tensor, *_bias(d, x, w, n)]
    q = _output_scale(d, x, w, depth)
    version = {"int4": 10, "dynamic range": 9}.get(w.scheme, 5)
    d.result(
        "FULLY_CONNECTED", operands, to, d.kind(x), options, q=q, accumulated=depth, version=version
    )


def _batch_matmul(d: Drawing) -> None:
    x = d.operand((*F, "qint8", "qint16"), 2, 5, all)
    shape = d.shape_of(x)
    adj_x, adj_y = d.chance(0.3), d.chance(0.3)
    rows, depth = shape[-2:][::-1] if adj_x else shape[-2:]
    n = d.between(1, 6)
    y_shape = (*d.broadcast(shape[:-2]), *((n, depth) if adj_y else (depth, n)))
    y = d.like(d.kind(x), y_shape)
    to = (*np.broadcast_shapes(shape[:-2], y_shape[:-2]), rows, n)
    q, q_y = d.q_of(x), d.q_of(y)
    scale = None
    if q is not None and q_y is not None:
        scale = _output_scale(d, x, Weights(y, q_y.scale, ""), depth)
    options = BatchMatMulOptions(adj_x, adj_y)
    d.result("BATCH_MATMUL", [x, y], to, d.kind(x), options, q=scale, accumulated=depth, version=4)


# ---- pools, resizing, normalization


def _pool(name: str) -> Draw:
    def draw(d: Drawing) -> None:
        x = _image(d, F if name == "L2_POOL_2D" else (*F, *QUANTIZED))
        b, h, w, c = d.shape_of(x)
        padding, k, s, _ = _window(d, (h, w), 5)
        to = [b, out_size(padding, h, k[0], s[0]), out_size(padding, w, k[1], s[1]), c]
        options = Pool2DOptions(padding, s[1], s[0], k[1], k[0], d.one_of(ACTIVATIONS))
        version = 1 if name == "L2_POOL_2D" else 2
        d.same(name, [x], to, options, version=version, accumulated=int(np.prod(k)))

    return draw


def _resize(name: str) -> Draw:
    def draw(d: Drawing) -> None:
        x = _image(d)
        b, h, w, c = d.shape_of(x)
        size = [d.between(1, min(2 * n + 2, 20)) for n in (h, w)]
        align, half = d.one_of(((False, False), (True, False), (False, True)))
        kind = ResizeBilinearOptions if name == "RESIZE_BILINEAR" else ResizeNearestNeighborOptions
        operands = [x, d.const(size, np.int32)]
        d.same(name, operands, [b, *size, c], kind(align, half), version=3)

    return draw


def _softmax(d: Drawing) -> None:
    x = d.operand((*F, *QUANTIZED), 1, 4, all)
    options = SoftmaxOptions(float(np.float32(d.one_of((1.0, 1.0, 0.5, 2.0, 0.1)))))
    q = fixed_scale(d.kind(x), signed=False)
    n = d.shape_of(x)[-1]
    d.result("SOFTMAX", [x], d.shape_of(x), d.kind(x), options, q=q, accumulated=n, version=2)


def _log_softmax(d: Drawing) -> None:
    x = d.operand((*F, "qint8", "quint8"), 1, 4, all)
    q = {"qint8": scaled(16 / 256, 127), "quint8": scaled(16 / 256, 255)}.get(d.kind(x))
    n = d.shape_of(x)[-1]
    d.result("LOG_SOFTMAX", [x], d.shape_of(x), d.kind(x), q=q, accumulated=n, version=2)


def _l2_normalization(d: Drawing) -> None:
    x = d.operand((*F, "qint8", "quint8"), 1, 4, all)
    q = fixed_scale(d.kind(x), signed=True)
    n = d.shape_of(x)[-1]
    d.result(
        "L2_NORMALIZATION",
        [x],
        d.shape_of(x),
        d.kind(x),
        L2NormOptions(),
        q=q,
        accumulated=n,
        version=2,
    )


def _local_response(d: Drawing) -> None:
    x = _image(d, F)
    numbers = (d.one_of((0.5, 1.0, 2.0)), d.one_of((0.1, 1.0)), d.one_of((0.5, 0.75, 1.0)))
    options = LocalResponseNormalizationOptions(
        d.between(1, 4), *(float(np.float32(v)) for v in numbers)
    )
    d.result("LOCAL_RESPONSE_NORMALIZATION", [x], d.shape_of(x), "float32", options, accumulated=9)


OPERATORS: dict[str, Draw] = {
    "CONV_2D": _conv_2d,
    "DEPTHWISE_CONV_2D": _depthwise,
    "TRANSPOSE_CONV": _transpose_conv,
    "CONV_3D": _conv_3d("CONV_3D"),
    "CONV_3D_TRANSPOSE": _conv_3d("CONV_3D_TRANSPOSE"),
    "FULLY_CONNECTED": _fully_connected,
    "BATCH_MATMUL": _batch_matmul,
    "AVERAGE_POOL_2D": _pool("AVERAGE_POOL_2D"),
    "MAX_POOL_2D": _pool("MAX_POOL_2D"),
    "L2_POOL_2D": _pool("L2_POOL_2D"),
    "RESIZE_BILINEAR": _resize("RESIZE_BILINEAR"),
    "RESIZE_NEAREST_NEIGHBOR": _resize("RESIZE_NEAREST_NEIGHBOR"),
    "SOFTMAX": _softmax,
    "LOG_SOFTMAX": _log_softmax,
    "L2_NORMALIZATION": _l2_normalization,
    "LOCAL_RESPONSE_NORMALIZATION": _local_response,
}
