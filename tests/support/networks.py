"""Real architectures with random weights, built in memory: for tests and benchmarks."""

import numpy as np

from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    ConcatenationOptions,
    ReshapeOptions,
    ResizeBilinearOptions,
)
from jaxdelegate.testing.builder import ModelBuilder
from tests.support.layers import (
    BRANCH,
    LINEAR,
    RECTIFIED,
    UNCHANGED,
    Int8Layers,
    MoreLayers,
    Shape,
    scaled,
)

RELU = ActivationFunctionType.RELU
# Expansion, filters, repeats and first stride of each stage (Sandler et al. 2018, table 2).
_MOBILENET_V2_STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
    (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
# Bottleneck filters and repeats of each stage (He et al. 2016, table 1); the last is four times.
_RESNET50_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
_ASPP_RATES = (6, 12, 18)  # at output stride 16 (Chen et al. 2017)
_CLASSES = 1001  # ImageNet and a background class, as TFLite's hosted models


def mobilenet_v2(
    *,
    size: int = 224,
    width: float = 1.0,
    classes: int = _CLASSES,
    seed: int = 0,
    quantized: bool = False,
) -> bytes:
    """MobileNet v2 as a .tflite: images [1, size, size, 3] to probabilities [1, classes].

    Args:
        size: height and width of the input, a multiple of 32.
        width: the width multiplier of all channels.
        classes: how many classes.
        seed: of the random weights.
        quantized: in int8, inputs and outputs as well; otherwise float32.

    Returns:
        The file's content: 65 operators, about 14 MB at full width, a fourth of it in int8.
    """
    net = (Int8Layers if quantized else MoreLayers)(seed, "MobileNet v2, random weights")
    x, shape = net.image(size)
    x, shape = _mobilenet_v2_features(net, x, shape, width)
    x, shape = net.convolution(x, shape, max(1280, scaled(1280, width)), 1, 1)
    logits = net.fully_connected(net.features(x, shape), shape[3], classes, LINEAR)
    net.softmax(logits, classes)
    return net.builder.build()


def _mobilenet_v2_features(
    net: MoreLayers, x: int, shape: Shape, width: float, *, most: int = 32
) -> tuple[int, Shape]:
    """Inverted residual blocks down to 1/`most` of the image; strides beyond that are dilations."""
    x, shape = net.convolution(x, shape, scaled(32, width), 3, 2)
    reached, dilation = 2, 1
    for expansion, filters, repeats, first_stride in _MOBILENET_V2_STAGES:
        for i in range(repeats):
            stride = first_stride if i == 0 else 1
            if reached * stride > most:  # this layer's own inputs are not dilated yet
                stride, next_dilation = 1, dilation * stride
            else:
                reached, next_dilation = reached * stride, dilation
            x, shape = _inverted_residual(
                net, x, shape, expansion, scaled(filters, width), stride=stride, dilation=dilation
            )
            dilation = next_dilation
    return x, shape


def _inverted_residual(
    net: MoreLayers,
    x: int,
    shape: Shape,
    expansion: int,
    filters: int,
    *,
    stride: int,
    dilation: int,
) -> tuple[int, Shape]:
    y, inner = x, shape
    if expansion > 1:
        y, inner = net.convolution(y, inner, expansion * shape[3], 1, 1)
    y, inner = net.depthwise(y, inner, stride, dilation=dilation)
    is_residual = stride == 1 and filters == shape[3]
    gain = BRANCH if is_residual else UNCHANGED
    y, inner = net.convolution(y, inner, filters, 1, 1, LINEAR, gain=gain)
    return (net.add(x, y, inner) if is_residual else y), inner


def resnet50(
    *, size: int = 224, width: float = 1.0, classes: int = _CLASSES, seed: int = 0
) -> bytes:
    """ResNet50 v1.5 as a .tflite, float32: images [1, size, size, 3] to [1, classes].

    v1.5 has the strides in the 3x3 convolutions, as PyTorch's and NVIDIA's.

    Args:
        size: height and width of the input, a multiple of 32.
        width: a multiplier of all channels.
        classes: how many classes.
        seed: of the random weights.

    Returns:
        The file's content: 73 operators, about 102 MB at full width.
    """
    net = MoreLayers(seed, "ResNet50, random weights")
    x, shape = net.image(size)
    x, shape = net.convolution(x, shape, scaled(64, width), 7, 2, RELU)
    x, shape = net.max_pool(x, shape, 3, 2)
    for stage, (filters, repeats) in enumerate(_RESNET50_STAGES):
        for i in range(repeats):
            stride = 2 if stage > 0 and i == 0 else 1
            x, shape = _bottleneck(net, x, shape, scaled(filters, width), stride, project=i == 0)
    logits = net.fully_connected(net.features(x, shape), shape[3], classes, LINEAR)
    net.softmax(logits, classes)
    return net.builder.build()


def _bottleneck(
    net: MoreLayers, x: int, shape: Shape, filters: int, stride: int, *, project: bool
) -> tuple[int, Shape]:
    y, inner = net.convolution(x, shape, filters, 1, 1, RELU)
    y, inner = net.convolution(y, inner, filters, 3, stride, RELU)
    y, inner = net.convolution(y, inner, 4 * filters, 1, 1, LINEAR, gain=BRANCH)
    if project:
        x, _ = net.convolution(x, shape, 4 * filters, 1, stride, LINEAR, gain=RECTIFIED)
    return net.add(x, y, inner, RELU), inner


def deeplab_v3(
    *, size: int = 257, width: float = 1.0, depth: int = 256, classes: int = 21, seed: int = 0
) -> bytes:
    """DeepLab v3 on MobileNet v2 as a .tflite, float32: images to scores of the same size.

    Images [1, size, size, 3] to [1, size, size, classes]; the features are 1/16 of the image, and
    the atrous pyramid has separable convolutions.

    Args:
        size: height and width, 16 n + 1: the corners of both grids meet.
        width: the width multiplier of MobileNet's channels.
        depth: channels of the pyramid.
        classes: how many classes.
        seed: of the random weights.

    Returns:
        The file's content: 75 operators, about 10 MB at full width.
    """
    net = MoreLayers(seed, "DeepLab v3, MobileNet v2, random weights")
    x, shape = net.image(size)
    x, shape = _mobilenet_v2_features(net, x, shape, width, most=16)
    pooled, pooled_shape = net.convolution(*net.average_pool(x, shape), depth, 1, 1, RELU)
    branches = [_resized(net.builder, pooled, pooled_shape, shape[1])]
    branches.append(net.convolution(x, shape, depth, 1, 1, RELU)[0])
    for rate in _ASPP_RATES:
        atrous, inner = net.depthwise(x, shape, 1, dilation=rate)
        branches.append(net.convolution(atrous, inner, depth, 1, 1, RELU)[0])
    joined_shape = (*shape[:3], depth * len(branches))
    joined = net.builder.tensor(joined_shape, name="pyramid")
    net.builder.operator("CONCATENATION", branches, [joined], ConcatenationOptions(axis=3))
    x, shape = net.convolution(joined, joined_shape, depth, 1, 1, RELU)
    x, shape = net.convolution(x, shape, classes, 1, 1, LINEAR)
    scores = _resized(net.builder, x, shape, size)
    net.builder.outputs(scores)
    net.builder.signature("serving_default", {"input": 0}, {"scores": scores})
    return net.builder.build()


def _resized(builder: ModelBuilder, x: int, shape: Shape, size: int) -> int:
    y = builder.tensor((1, size, size, shape[3]))
    sizes = builder.constant(np.array([size, size], np.int32))
    builder.operator("RESIZE_BILINEAR", [x, sizes], [y], ResizeBilinearOptions(align_corners=True))
    return y


def broadcast(n: int) -> bytes:
    """[1, 1] to [n, n], by a constant shape: a small file with a large result."""
    builder = ModelBuilder("broadcast")
    x = builder.input((1, 1), np.float32, "x")
    shape = builder.constant(np.array([n, n], np.int32), "shape")
    y = builder.tensor((n, n), np.float32, "y")
    builder.operator("BROADCAST_TO", [x, shape], [y], version=2)
    builder.outputs(y)
    return builder.build()


def small_classifier(*, seed: int = 0) -> bytes:
    """Every layer of an image classifier once or twice, float32: small enough for any test.

    Images [1, 16, 16, 3] to probabilities [1, 32]; the fully connected layers are 32 and 64 wide,
    so that quantizers can divide their rows into blocks of 32.

    Args:
        seed: of the random weights.

    Returns:
        The file's content: 8 operators and a signature from `input` to `probabilities`.
    """
    net = MoreLayers(seed)
    x = net.builder.input((1, 16, 16, 3), np.float32, "input")
    x, shape = net.convolution(x, (1, 16, 16, 3), 32, 3, 2)
    x, shape = net.depthwise(x, shape, 1)
    x, shape = net.convolution(x, shape, 32, 1, 1)
    x, shape = net.average_pool(x, shape)
    features, new_shape = (1, shape[3]), (-1, shape[3])
    flat = net.builder.tensor(features, name="features")
    target = net.builder.constant(np.array(new_shape, np.int32), "features/shape")
    net.builder.operator("RESHAPE", [x, target], [flat], ReshapeOptions(new_shape=new_shape))
    hidden = net.fully_connected(flat, shape[3], 64, RELU)
    logits = net.fully_connected(hidden, 64, 32, LINEAR)
    net.softmax(logits, 32)
    return net.builder.build()
