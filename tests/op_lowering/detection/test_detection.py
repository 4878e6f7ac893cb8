import dataclasses
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flatbuffers import flexbuffers

from jaxdelegate.op_lowering.options import DetectionPostProcessOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.quant import affine
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import Arg, Case, const, value
from tests.support.quantized import scaled

NAN = np.nan
POSTPROCESS = "TFLite_Detection_PostProcess"
DEFAULTS = {
    "max_detections": 6,
    "max_classes_per_detection": 1,
    "nms_score_threshold": 0.2,
    "nms_iou_threshold": 0.5,
    "y_scale": 10.0,
    "x_scale": 10.0,
    "h_scale": 5.0,
    "w_scale": 5.0,
}
REGULAR = {"use_regular_nms": True, "detections_per_class": 4}


def settings(**changes: Any) -> DetectionPostProcessOptions:
    data = bytes(flexbuffers.Dumps({**DEFAULTS, **changes}))
    return DetectionPostProcessOptions.from_bytes(data)


def postprocess(
    label: str,
    n_boxes: int = 40,
    n_classes: int = 3,
    *,
    background: int = 1,
    levels: int = 0,
    box_size: int = 4,
    scores: np.ndarray | None = None,
    **changes: Any,
) -> Case:
    """Random boxes near random anchors; `levels` rounds the scores, so that many are equal."""
    rng = np.random.default_rng(zlib.crc32(label.encode()))
    encodings = rng.normal(0, 3, (1, n_boxes, box_size))
    corners, sizes = rng.uniform(0, 1, (n_boxes, 2)), rng.uniform(0.05, 0.4, (n_boxes, 2))
    drawn = rng.uniform(0, 1, (1, n_boxes, n_classes + background))
    drawn = np.round(drawn * levels) / levels if levels else drawn
    inputs = [
        value(encodings, np.float32),
        value(drawn if scores is None else scores, np.float32),
        const(np.concatenate([corners, sizes], axis=1), np.float32),
    ]
    options = settings(num_classes=n_classes, **changes)
    return Case(POSTPROCESS, label, inputs, options, outputs=[np.float32] * 4)


SCATTERED = np.float32(
    [[[0, 0.9, NAN, 0.2], [0, NAN, 0.3, 0.4], [0, NAN, NAN, NAN], [0.9, 0.1, 0.1, 0.1]]]
)
POSTPROCESSES = [
    postprocess("fast"),
    postprocess("fast-one-class", n_classes=1),
    postprocess("fast-no-background", background=0),
    postprocess("fast-classes", max_classes_per_detection=2, max_detections=9),
    postprocess("fast-more-classes-than-there-are", max_classes_per_detection=5),
    postprocess("fast-more-detections-than-boxes", n_boxes=4, max_detections=9),
    postprocess("fast-ties", levels=4, nms_iou_threshold=0.8),
    postprocess("fast-nothing", nms_score_threshold=2.0),
    postprocess("fast-all", nms_score_threshold=0.0, nms_iou_threshold=1.0, max_detections=40),
    postprocess("fast-no-detections", max_detections=0),
    postprocess("fast-keypoints", box_size=7),
    postprocess("fast-one-box", n_boxes=1),
    postprocess("fast-nan", n_boxes=4, scores=SCATTERED, nms_score_threshold=0.05),
    postprocess("fast-anchors", y_scale=1.0, x_scale=2.0, h_scale=3.0, w_scale=4.0),
    postprocess("fast-large", n_boxes=600, n_classes=10, max_detections=50),
    postprocess("regular", **REGULAR),
    postprocess("regular-one-class", n_classes=1, **REGULAR),
    postprocess("regular-no-background", background=0, **REGULAR),
    postprocess("regular-classes", max_classes_per_detection=2, **REGULAR),
    postprocess("regular-ties", levels=3, nms_iou_threshold=0.8, max_detections=12, **REGULAR),
    postprocess("regular-nothing", nms_score_threshold=2.0, **REGULAR),
    postprocess("regular-few", nms_score_threshold=0.97, max_detections=20, **REGULAR),
    postprocess("regular-all", nms_iou_threshold=1.0, max_detections=40, use_regular_nms=True),
    postprocess("regular-nan", n_boxes=4, scores=SCATTERED, nms_score_threshold=0.05, **REGULAR),
    postprocess("regular-one-each", use_regular_nms=True, detections_per_class=1),
    postprocess(
        "regular-large", n_boxes=300, n_classes=20, max_detections=50, use_regular_nms=True
    ),
]

BOXES = np.float32(
    [
        [0, 0, 1, 1],
        [0, 0.1, 1, 1.1],
        [0, -0.1, 1, 0.9],
        [1, 11, 0, 10],  # corners the other way round
        [0, 10.1, 1, 11.1],
        [0, 100, 1, 101],
        [5, 5, 5, 6],  # without an area
    ]
)
SCORES = np.float32([0.9, 0.75, 0.6, 0.95, 0.5, 0.3, 0.25])


def suppression(
    label: str,
    limit: Any = 4,
    iou: float = 0.5,
    threshold: float = 0.0,
    sigma: float | None = None,
    *,
    boxes: Any = BOXES,
    scores: Any = SCORES,
) -> Case:
    limit = limit if isinstance(limit, Arg) else const(limit, "int32")
    inputs = [value(boxes, "float32"), value(scores, "float32"), limit]
    inputs += [const(iou, "float32"), const(threshold, "float32")]
    if sigma is None:
        return Case("NON_MAX_SUPPRESSION_V4", label, inputs, outputs=[np.int32, np.int32])
    inputs.append(const(sigma, "float32"))
    outputs = [np.int32, np.float32, np.int32]
    return Case("NON_MAX_SUPPRESSION_V5", label, inputs, outputs=outputs)


def random_suppression(
    n: int, limit: int, iou: float, threshold: float, sigma: float | None
) -> Case:
    rng = np.random.default_rng(n)
    corner, size = rng.uniform(0, 4, (n, 2)), rng.uniform(0.2, 2, (n, 2))
    boxes, scores = np.concatenate([corner, corner + size], axis=1), rng.uniform(0, 1, n)
    label = f"random-{n}-{limit}-{iou}-{threshold}-{sigma}"
    return suppression(label, limit, iou, threshold, sigma, boxes=boxes, scores=scores)


COMPILED_IN_PART = True
CASES = [
    case
    for sigma in (None, 0.0, 0.5)
    for case in [
        suppression(f"plain-{sigma}", sigma=sigma),
        suppression(f"threshold-{sigma}", threshold=0.4, sigma=sigma),
        suppression(f"all-{sigma}", limit=20, iou=0.95, sigma=sigma),
        suppression(f"never-{sigma}", limit=6, iou=1.5, threshold=0.1, sigma=sigma),
        suppression(f"always-{sigma}", iou=0.0, sigma=sigma),
        suppression(f"nothing-{sigma}", threshold=2.0, sigma=sigma),
        suppression(f"limit0-{sigma}", limit=0, sigma=sigma),
        suppression(f"one-{sigma}", limit=1, sigma=sigma),
        suppression(f"no-boxes-{sigma}", boxes=BOXES[:0], scores=SCORES[:0], sigma=sigma),
        suppression(
            f"nan-{sigma}",
            boxes=BOXES[:3],
            scores=[NAN, 0.5, NAN],
            threshold=-1.0 + (sigma or 0) * 2,
            sigma=sigma,
        ),
        *(random_suppression(n, n // 3, iou, 0.1, sigma) for n, iou in ((10, 0.3), (80, 0.6))),
    ]
] + [
    suppression("negative-scores", scores=SCORES - 1, threshold=-0.8),
    suppression("negative-scores", scores=SCORES - 1, threshold=-0.8, sigma=0.0),
]


def in_uint8(case: Case) -> Case:
    """The case with boxes, scores and anchors of 8 bits, as a fully quantized SSD has them."""
    inputs = []
    for arg in case.inputs:
        low, high = min(float(arg.value.min()), 0.0), float(arg.value.max())
        scale = np.float32((high - low) / 255)
        q = Quantization(scale.reshape(1), np.int64([round(-low / scale)]))
        stored = affine.quantize(arg.value, q, np.dtype(np.uint8))
        inputs.append(Arg(stored, is_const=arg.is_const, quantization=q))
    return dataclasses.replace(case, inputs=inputs, label=f"uint8-{case.label}")


LOWERED = [
    *POSTPROCESSES,
    in_uint8(postprocess("fast")),
    in_uint8(postprocess("r", use_regular_nms=True)),
]


@pytest.mark.litert
@pytest.mark.parametrize("case", LOWERED, ids=str)
def test_postprocess_matches_litert_where_that_writes(case: Case) -> None:
    want = case.run_litert()
    written = slots_written(case.op_options, int(want[3][0]))
    got = case.run_reference()
    case.check(
        [*(y[:, written] for y in got[:3]), got[3]], [*(y[:, written] for y in want[:3]), want[3]]
    )


def slots_written(o: Any, count: int) -> np.ndarray:
    """Which slots the kernel fills; the others hold whatever was in memory, and zeros here."""
    slot = np.arange(o.max_detections * o.max_classes_per_detection)
    if o.use_regular_nms:
        return slot < o.max_detections  # with zeros after the last detection
    detection, label = np.divmod(slot, o.max_classes_per_detection)
    return (detection < count) & (label < o.num_classes)


@pytest.mark.parametrize("case", LOWERED, ids=str)
def test_slots_without_a_detection_are_zero(case: Case) -> None:
    y = case.run_reference()
    filled = slots_written(case.op_options, int(y[3][0]))
    assert not any(np.any(values[:, ~filled]) for values in y[:3])


def test_equal_scores_are_selected_by_index() -> None:
    boxes = np.float32([[i, 0, i + 1, 1] for i in range(6)])
    case = suppression("ties", 6, boxes=boxes, scores=np.full(6, 0.5))
    for indices, count in (case.run_reference(), case.run_lowered(RULES[case.name])):
        assert indices.tolist() == [0, 1, 2, 3, 4, 5]
        assert count == 6


def test_equal_classes_of_a_box_are_ordered_by_index() -> None:
    scores = np.full((1, 12, 9), 0.5, np.float32)
    case = postprocess("", 12, 8, scores=scores, max_classes_per_detection=4, max_detections=3)
    for y in (case.run_reference(), case.run_lowered(RULES[case.name])):
        assert y[1].reshape(3, 4).tolist() == [[0, 1, 2, 3]] * 3


def test_anchors_may_be_found_at_run_time() -> None:
    case = postprocess("fast")
    anchors = value(case.inputs[2].value)  # type: ignore[union-attr]
    late = dataclasses.replace(case, inputs=[*case.inputs[:2], anchors])
    late.check(late.run_lowered(RULES[case.name]), case.run_reference())


def test_thresholds_may_be_found_at_run_time() -> None:
    case = suppression("plain")
    late = [value(a.value) for a in case.inputs[3:]]  # type: ignore[union-attr]
    case.check(
        dataclasses.replace(case, inputs=[*case.inputs[:3], *late]).run_lowered(RULES[case.name]),
        case.run_reference(),
    )


def test_gradients_reach_the_boxes() -> None:
    case = postprocess("fast")
    inputs, outputs = case.specs()
    lowered = RULES[POSTPROCESS].lower(Op(LoweringContext(), case.op_options, inputs, outputs))
    with jax.enable_x64(True):
        boxes, *others = map(jnp.asarray, case.arrays())
        slope = jax.jit(jax.grad(lambda x: lowered(x, *others)[0].sum()))(boxes)
    assert np.count_nonzero(np.any(np.asarray(slope)[0] != 0, axis=1)) == case.run_reference()[3][0]


def with_input(case: Case, position: int, array: Any) -> Case:
    inputs = list(case.inputs)
    inputs[position] = array if isinstance(array, Arg) else value(array)
    return dataclasses.replace(case, inputs=inputs)


FAST = postprocess("fast")
INT16 = Arg(np.zeros((1, 40, 4), np.int16), quantization=scaled(0.1))
INVERTED = const(np.tile(np.float32([0.5, 0.5, -0.1, 0.1]), (40, 1)))
REFUSED = {
    "is quantized int16": with_input(FAST, 0, INT16),
    "is float64, not one of float32": with_input(FAST, 1, np.zeros((1, 40, 4))),
    "do not match": with_input(FAST, 1, np.zeros((2, 40, 4), np.float32)),
    "anchors are [40, 5]": with_input(FAST, 2, np.zeros((40, 5), np.float32)),
    "an anchor has a negative size": with_input(FAST, 2, INVERTED),
    "num_classes is 3, of 6 scores a box": with_input(FAST, 1, np.zeros((1, 40, 6), np.float32)),
    "nms_iou_threshold 0.0 is not in (0, 1]": postprocess("", nms_iou_threshold=0.0),
    "max_detections is -1": postprocess("", max_detections=-1),
    "max_classes_per_detection is 0": postprocess("", max_classes_per_detection=0),
    "detections per class are 0": postprocess("", use_regular_nms=True, detections_per_class=0),
    "depends on data": suppression("", value(4, "int32")),
    "sigma is -1.0": suppression("", sigma=-1.0),
    "raises negative scores": suppression("", threshold=-1.0, sigma=0.5),
    "'in5' is computed at run time": with_input(suppression("", sigma=0.5), 5, np.float32(0.5)),
    "boxes [7, 3], scores [7]": suppression("", boxes=BOXES[:, :3]),
    "has shape [2], not one value": with_input(suppression(""), 3, np.float32([0.5, 0.5])),
}


@pytest.mark.parametrize(
    "case",
    [
        REFUSED["do not match"],
        REFUSED["anchors are [40, 5]"],
        REFUSED["an anchor has a negative size"],
        REFUSED["num_classes is 3, of 6 scores a box"],
        REFUSED["nms_iou_threshold 0.0 is not in (0, 1]"],
        REFUSED["detections per class are 0"],
        REFUSED["sigma is -1.0"],
    ],
)
def test_reference_stops_at_what_the_kernel_stops_at(case: Case) -> None:
    with pytest.raises(ValueError, match=r"box|num_classes|with|sigma"):
        case.run_reference()


def test_reference_suppresses_up_to_a_limit_found_at_run_time() -> None:
    case = suppression("")
    case.check(suppression("", value(4, "int32")).run_reference(), case.run_reference())
