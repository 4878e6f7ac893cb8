"""Detectors with TFLite_Detection_PostProcess, built in memory: for tests of evaluation."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flatbuffers import flexbuffers

from jaxdelegate.demo.mobilenet import MOBILENET_V1_BLOCKS
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    ConcatenationOptions,
    Conv2DOptions,
    DetectionPostProcessOptions,
    Padding,
    Pool2DOptions,
    ReshapeOptions,
)
from jaxdelegate.testing.builder import ModelBuilder
from tests.support.layers import Layers, scaled

_CELLS = 4  # to each side of the color detector's grid
_COLORS = 2  # red and green
_FEATURE_BLOCKS = (10, 12)  # of MobileNet v1: 1/16 and 1/32 of the image
_ANCHORS = 3  # of a cell: wide, square, tall
_DETECTIONS = 10


def color_detector(
    *,
    size: int = 32,
    outputs: tuple[int, int, int, int] = (0, 1, 2, 3),
    has_output_shapes: bool = True,
) -> bytes:
    """A detector that finds red (class 0) and green (class 1) cells of a 4 x 4 grid.

    The score of a cell in its color is 1 / (1 + exp(-6)), of a black one 1 / (1 + exp(6)).

    Args:
        size: height and width of the float32 input, a multiple of 4.
        outputs: the order in which boxes, classes, scores and count leave the model.
        has_output_shapes: False: the file has no shapes for them, like those of older converters.
    """
    builder = ModelBuilder("finds red and green cells")
    x = builder.input((1, size, size, 3), np.float32, "image")
    pooled, side = builder.tensor((1, _CELLS, _CELLS, 3)), size // _CELLS
    options = Pool2DOptions(Padding.VALID, side, side, side, side)
    builder.operator("AVERAGE_POOL_2D", [x], [pooled], options)
    weights = np.full((_COLORS + 1, 1, 1, 3), -3, np.float32)  # the background comes first
    weights[0], weights[1, ..., 0], weights[2, ..., 1] = 0, 6, 6
    bias = np.array([-9, -6, -6], np.float32)
    logits = builder.tensor((1, _CELLS, _CELLS, _COLORS + 1))
    builder.operator(
        "CONV_2D",
        [pooled, builder.constant(weights), builder.constant(bias)],
        [logits],
        Conv2DOptions(Padding.SAME, 1, 1, ActivationFunctionType.NONE),
    )
    anchors = _grid(_CELLS, ((1 / _CELLS, 1 / _CELLS),))
    encodings = builder.constant(np.zeros((1, len(anchors), 4), np.float32))
    scores = _flat(builder, logits, (1, len(anchors), _COLORS + 1))
    found = _post_process(
        builder,
        encodings,
        scores,
        anchors,
        has_shapes=has_output_shapes,
        num_classes=_COLORS,
        nms_score_threshold=0.5,
    )
    builder.outputs(*(found[i] for i in outputs))
    return builder.build()


def mobilenet_v1_ssd(
    *, size: int = 64, width: float = 0.25, classes: int = 5, seed: int = 0
) -> bytes:
    """MobileNet v1 with SSD heads on two feature maps, float32, random weights.

    Args:
        size: height and width of the input, a multiple of 32.
        width: the width multiplier of all channels.
        classes: how many classes, besides the background.
        seed: of the random weights.
    """
    net = Layers(seed)
    shape = (1, size, size, 3)
    x = net.builder.input(shape, np.float32, "input")
    x, shape = net.convolution(x, shape, scaled(32, width), 3, 2)
    boxes, scores, anchors = [], [], []
    for i, (filters, stride) in enumerate(MOBILENET_V1_BLOCKS):
        x, shape = net.depthwise(x, shape, stride)
        x, shape = net.convolution(x, shape, scaled(filters, width), 1, 1)
        if i in _FEATURE_BLOCKS:
            n = shape[1] * shape[2] * _ANCHORS
            boxes.append(_flat(net.builder, _head(net, x, shape, 4), (1, n, 4)))
            head = _head(net, x, shape, classes + 1)
            scores.append(_flat(net.builder, head, (1, n, classes + 1)))
            anchors.append(_grid(shape[1], ((0.2, 0.4), (0.3, 0.3), (0.4, 0.2))))
    found = _post_process(
        net.builder,
        _joined(net.builder, boxes, len(np.concatenate(anchors)), 4),
        _joined(net.builder, scores, len(np.concatenate(anchors)), classes + 1),
        np.concatenate(anchors),
        num_classes=classes,
        nms_score_threshold=0.3,
        y_scale=10.0,
        x_scale=10.0,
        h_scale=5.0,
        w_scale=5.0,
    )
    net.builder.outputs(*found)
    return net.builder.build()


def _head(net: Any, x: int, shape: Any, values: int) -> int:
    none = ActivationFunctionType.NONE
    y: int = net.convolution(x, shape, _ANCHORS * values, 1, 1, none)[0]
    return y


def _flat(builder: ModelBuilder, x: int, shape: tuple[int, ...]) -> int:
    y, size = builder.tensor(shape), builder.constant(np.array(shape, np.int32))
    builder.operator("RESHAPE", [x, size], [y], ReshapeOptions(new_shape=shape))
    return y


def _joined(builder: ModelBuilder, parts: Sequence[int], count: int, values: int) -> int:
    y = builder.tensor((1, count, values))
    builder.operator("CONCATENATION", parts, [y], ConcatenationOptions(axis=1))
    return y


def _grid(n: int, sizes: Sequence[tuple[float, float]]) -> np.ndarray:
    """Anchors (y, x, h, w) in the middle of each of n x n cells, in each of the sizes."""
    centers = (np.indices((n, n)).reshape(2, -1).T + 0.5) / n
    rows = [[*center, *size] for center in centers for size in sizes]
    return np.array(rows, np.float32)


def _post_process(
    builder: ModelBuilder,
    encodings: int,
    logits: int,
    anchors: np.ndarray,
    *,
    has_shapes: bool = True,
    **settings: float,
) -> tuple[int, ...]:
    scores = builder.tensor((1, len(anchors), int(settings["num_classes"]) + 1))
    builder.operator("LOGISTIC", [logits], [scores])
    defaults = {
        "max_detections": _DETECTIONS,
        "max_classes_per_detection": 1,
        "nms_iou_threshold": 0.6,
        **dict.fromkeys(("y_scale", "x_scale", "h_scale", "w_scale"), 1.0),
    }
    packed = bytes(flexbuffers.Dumps({**defaults, **settings}))
    shapes = ((1, _DETECTIONS, 4), (1, _DETECTIONS), (1, _DETECTIONS), (1,))
    names = ("boxes", "classes", "scores", "count")
    found = tuple(
        builder.tensor(shape if has_shapes else (), name=name)
        for name, shape in zip(names, shapes, strict=True)
    )
    builder.operator(
        "TFLite_Detection_PostProcess",
        [encodings, scores, builder.constant(anchors)],
        found,
        DetectionPostProcessOptions.from_bytes(packed),
    )
    return found
