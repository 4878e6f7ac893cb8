"""The networks of `sample_tasks`, with random weights."""

import numpy as np
from flatbuffers import flexbuffers

from jaxdelegate.op_lowering.options import DetectionPostProcessOptions
from network_training.layers import NONE, Layers, Tensor
from sample_tasks.pictures import JOINTS, MASKED, SHAPES
from sample_tasks.sounds import BANDS, LABELS

SIZE = 64  # height and width of the images
ANCHOR = 0.3  # height and width of the detector's only anchor, in each of its cells
CELLS = 8  # to each side of the detector's grid
SCALES = {"y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0}  # as in TFLite's SSDs
_DETECTIONS = 10


def anchors() -> np.ndarray:
    """float32 [CELLS * CELLS, 4]: y and x of the center, height, width."""
    centers = (np.indices((CELLS, CELLS)).reshape(2, -1).T + 0.5) / CELLS
    sizes = np.full((len(centers), 2), ANCHOR)
    return np.concatenate([centers, sizes], axis=1).astype(np.float32)


def classifier(seed: int) -> bytes:
    """Images [n, 64, 64, 3] to `probabilities` [n, classes] and `features` [n, 48]."""
    net = Layers("which shape an image shows", seed)
    image = net.image(SIZE)
    *_, x = _encoded(net, image)
    features = net.mean(x, "features")
    probabilities = net.softmax(net.dense(features, len(SHAPES), "logits"), "probabilities")
    return net.finished(image, {"probabilities": probabilities, "features": features})


def detector(seed: int, *, decoded: bool = True) -> bytes:
    """Images [1, 64, 64, 3] to the four outputs of TFLite_Detection_PostProcess.

    Args:
        seed: of the random weights.
        decoded: False: the outputs are what that operator decodes, `encodings` [n, cells, 4] and
            `scores` [n, cells, 1 + classes], which can be trained.
    """
    net = Layers("where shapes are in an image", seed)
    image = net.image(SIZE)
    _, _, eighth, deep = _encoded(net, image)
    x = net.conv(_joined(net, deep, eighth, 32), 32)
    encodings = net.rows(net.conv(x, 4, 1, activation=NONE), 4, "encodings")
    logits = net.rows(net.conv(x, 1 + len(SHAPES), 1, activation=NONE), 1 + len(SHAPES), "logits")
    scores = net.logistic(logits, "scores")
    outputs = {"encodings": encodings, "scores": scores}
    return net.finished(image, _decoded(net, encodings, scores) if decoded else outputs)


def segmenter(seed: int) -> bytes:
    """Images [n, 64, 64, 3] to `scores` [n, 64, 64, 1 + classes]."""
    net = Layers("which shape each pixel belongs to", seed)
    image = net.image(SIZE)
    half, quarter, eighth, deep = _encoded(net, image)
    x = net.conv(_joined(net, deep, eighth, 32), 32)
    x = net.conv(_joined(net, x, quarter, 16), 16)
    x = net.separable(_joined(net, x, half, 16), 16)
    scores = net.conv(x, len(MASKED), 1, activation=NONE)
    return net.finished(image, {"scores": net.enlarged(scores, name="scores")})


def poser(seed: int) -> bytes:
    """Images [n, 64, 64, 3] to `heatmaps` [n, 16, 16, joints]."""
    net = Layers("where a figure's joints are", seed)
    image = net.image(SIZE)
    _, quarter, eighth, deep = _encoded(net, image)
    x = net.conv(_joined(net, deep, eighth, 32), 32)
    x = net.separable(_joined(net, x, quarter, 32), 32)
    return net.finished(image, {"heatmaps": net.conv(x, len(JOINTS), 1, activation=NONE)})


def listener(seed: int) -> bytes:
    """A frame's features [1, bands] to `scores` [1, labels]; the memory is in variable tensors."""
    net = Layers("which keyword was just spoken", seed)
    features = Tensor(net.builder.input((1, BANDS), np.float32, "features"), (1, BANDS))
    x = net.svdf(features, 64, memory=16)
    x = net.svdf(x, 64, memory=24)
    return net.finished(
        features,
        {"scores": net.softmax(net.dense(x, len(LABELS), "logits"), "scores")},
        given_name="features",
    )


def _encoded(net: Layers, image: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Feature maps of 1/2, 1/4, 1/8 and 1/16 of the image's size."""
    half = net.conv(net.contrasts(image), 16, stride=2)
    quarter = net.conv(net.conv(half, 24, stride=2), 24)
    eighth = net.conv(net.conv(quarter, 32, stride=2), 32)
    return half, quarter, eighth, net.separable(eighth, 48, stride=2)


def _joined(net: Layers, deep: Tensor, shallow: Tensor, filters: int) -> Tensor:
    """The sum of a map, enlarged to twice its size, and a shallower one."""
    return net.add(
        net.enlarged(net.conv(deep, filters, 1, activation=NONE)),
        net.conv(shallow, filters, 1, activation=NONE),
    )


def _decoded(net: Layers, encodings: Tensor, scores: Tensor) -> dict[str, Tensor]:
    settings = {
        **SCALES,
        "max_detections": _DETECTIONS,
        "max_classes_per_detection": 1,
        "num_classes": len(SHAPES),
        "nms_score_threshold": 0.3,
        "nms_iou_threshold": 0.2,  # the shapes do not touch
    }
    shapes = {"boxes": (1, _DETECTIONS, 4), "classes": (1, _DETECTIONS)}
    shapes |= {"scores": (1, _DETECTIONS), "count": (1,)}
    found = {n: Tensor(net.builder.tensor(s, name=f"found/{n}"), s) for n, s in shapes.items()}
    net.builder.operator(
        "TFLite_Detection_PostProcess",
        [encodings.index, scores.index, net.builder.constant(anchors(), "anchors")],
        [t.index for t in found.values()],
        DetectionPostProcessOptions.from_bytes(bytes(flexbuffers.Dumps(settings))),
    )
    return found
