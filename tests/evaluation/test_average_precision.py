import itertools
import math

import numpy as np
import pytest

from jaxdelegate.evaluation.coco_metrics import IOU_THRESHOLDS, average_precisions
from jaxdelegate.evaluation.ground_truth import Objects

NOTHING = Objects.of([], [])
TRUTH = Objects.of([1, 1, 2], [[0.5, 0.5, 1, 1], [0, 0, 1, 1], [0.5, 0.5, 1, 1]])
DETECTED = Objects.of(
    [1, 1, 1],
    [[0.091, 0.091, 1, 1], [0.474, 0.474, 1, 1], [0.474, 0.474, 1, 1]],
    [0.8, 0.9, 0.95],
)


def test_thresholds_are_cocos() -> None:
    assert [f"{t:g}" for t in IOU_THRESHOLDS] == [
        "0.5", "0.55", "0.6", "0.65", "0.7", "0.75", "0.8", "0.85", "0.9", "0.95",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("detected", "at_threshold", "overall"),
    [  # the numbers of TFLite's own test of the stage
        ([NOTHING], (0.0, 0.0), 0.0),
        ([NOTHING, TRUTH], (0.50495052, 0.50495052), 0.50495052),
        ([NOTHING, TRUTH, DETECTED], (0.4841584, 0.33663365), 0.41039604),
    ],
)
def test_as_tflites_stage(
    detected: list[Objects], at_threshold: tuple[float, ...], overall: float
) -> None:
    got = average_precisions([TRUTH] * len(detected), detected, (0.5, 0.999))
    assert got.at_threshold == pytest.approx(at_threshold, rel=1e-6)
    assert got.overall == pytest.approx(overall, rel=1e-6)


def test_as_tflites_boxes() -> None:
    """Two boxes, each shifted by a tenth: the overlap is 0.81 / 1.19."""
    truth = [Objects.of([0], [[0, 0, 1, 1]]), Objects.of([0], [[1, 1, 2, 2]])]
    found = [
        Objects.of([0], [[0.1, 0.1, 1.1, 1.1]], [0.8]),
        Objects.of([0], [[0.9, 0.9, 1.9, 1.9]], [0.8]),
    ]
    assert average_precisions(truth, found, (0.5, 0.85)).at_threshold == pytest.approx((1, 0))


def test_perfect_detections() -> None:
    got = average_precisions([TRUTH], [TRUTH])
    assert got.at_threshold == pytest.approx([1.0] * 10)
    assert got.overall == pytest.approx(1.0)


def test_nothing_at_all() -> None:
    assert average_precisions([NOTHING], [NOTHING]).at_threshold == ()


def test_a_class_that_is_only_detected_counts_as_zero() -> None:
    truth, found = (
        Objects.of([1], [[0, 0, 1, 1]]),
        Objects.of([1, 3], [[0, 0, 1, 1]] * 2, [0.9, 0.9]),
    )
    assert average_precisions([truth], [found]).overall == pytest.approx(0.5)


def test_the_mean_over_recalls_uses_the_best_later_precision() -> None:
    """Ten detections of five objects, each in an image of its own."""
    is_hit = [True, True, False, False, False, True, True, False, False, True]
    box, elsewhere = [0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]
    truth = [Objects.of([0], [box]) if hit else NOTHING for hit in is_hit]
    found = [
        Objects.of([0], [box if hit else elsewhere], [1 - n / 10]) for n, hit in enumerate(is_hit)
    ]
    hits = np.cumsum(is_hit)
    precision, recall = hits / np.arange(1, 11), hits / 5
    at_recalls = [
        max(p for p, r in zip(precision, recall, strict=True) if r >= level / 100 - 1e-9)
        for level in range(101)
    ]
    got = average_precisions(truth, found)
    assert got.overall == pytest.approx(math.fsum(at_recalls) / 101, abs=1e-6)


def test_a_box_with_a_negative_side_is_a_false_positive() -> None:
    box, wrong = [0.0, 0.0, 0.5, 0.5], [0.5, 0.0, 0.1, 0.5]
    truth, found = Objects.of([0], [box]), Objects.of([0, 0], [wrong, box], [0.9, 0.8])
    assert average_precisions([truth], [found]).overall == pytest.approx(0.5)


def test_a_recall_that_is_reached_exactly_counts() -> None:
    """0.29 of a hundred objects: its float is not that of 29 steps."""
    box = [0.0, 0.0, 0.5, 0.5]
    truth = [Objects.of([0], [box])] * 100
    found = [Objects.of([0], [box], [0.5])] * 29 + [NOTHING] * 71
    assert average_precisions(truth, found).overall == pytest.approx(30 / 101, abs=1e-6)


def only(objects: Objects, number: int) -> Objects:
    mask = objects.classes == number
    return Objects(objects.classes[mask], objects.boxes[mask], objects.scores[mask])


def literal(truth: list[Objects], found: list[Objects], threshold: float) -> float:
    """The definition, box by box, for one class."""
    left = [[tuple(box) for box in o.boxes.tolist()] for o in truth]
    count = sum(map(len, left))
    all_found = [
        (score, i, box)
        for i, o in enumerate(found)
        for score, box in zip(o.scores.tolist(), o.boxes.tolist(), strict=True)
    ]
    curve, hits = [], 0
    for n, (_, image, box) in enumerate(sorted(all_found, key=lambda f: -f[0]), 1):
        overlaps = [overlap(box, other) for other in left[image]]
        if overlaps and max(overlaps) >= threshold:
            hits += 1
            del left[image][overlaps.index(max(overlaps))]
        curve.append((hits / n, hits / count))
    return sum(
        max((p for p, r in curve if r * 100 >= level - 1e-4), default=0) for level in range(101)
    ) / 101  # fmt: skip


def overlap(a: list[float], b: tuple[float, ...]) -> float:
    def area(top: float, left: float, bottom: float, right: float) -> float:
        return max(0.0, bottom - top) * max(0.0, right - left)

    both = area(max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3]))
    return both / (area(*a) + area(*b) - both)


def random_objects(rng: np.random.Generator, n: int) -> np.ndarray:
    corner, size = rng.uniform(0, 0.6, (n, 2)), rng.uniform(0.2, 0.4, (n, 2))
    return np.concatenate([corner, corner + size], axis=1)


def test_random_images_by_the_literal_definition(rng: np.random.Generator) -> None:
    truth, found = [], []
    for _ in range(6):
        boxes = random_objects(rng, 5)
        near = boxes[rng.integers(5, size=9)] + rng.normal(0, 0.03, (9, 4))
        truth.append(Objects.of(rng.integers(2, size=5).tolist(), boxes.tolist()))
        found.append(
            Objects.of(
                rng.integers(2, size=9).tolist(), near.tolist(), rng.uniform(0, 1, 9).tolist()
            )
        )
    got = average_precisions(truth, found)
    want = [
        [
            literal(
                [only(t, c) for t in truth],
                [only(f, c) for f in found],
                x,
            )
            for c in (0, 1)
        ]
        for x in IOU_THRESHOLDS
    ]
    assert got.at_threshold == pytest.approx(np.mean(want, axis=1).tolist(), abs=1e-5)
    assert got.overall == pytest.approx(np.mean(want), abs=1e-5)
    assert 0.05 < got.overall < 0.95
    assert all(a >= b for a, b in itertools.pairwise(got.at_threshold))
