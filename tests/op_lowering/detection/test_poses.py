"""PosenetDecoderOp."""

from typing import Any

import numpy as np
import pytest
from flatbuffers import flexbuffers

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import custom_options
from jaxdelegate.testing import Arg, Case, assert_close, f32, of, value
from jaxdelegate.testing.running import run_once
from tests.support.quantized import scaled

PARTS, EDGES, STRIDE = 17, 16, 16
# From the nose outward, as in the channels of the middle offsets; written by another rule.
TREE = [0, 1, 0, 2, 0, 5, 7, 5, 11, 13, 0, 6, 8, 6, 12, 14]
LEAVES = [1, 3, 2, 4, 5, 7, 9, 11, 13, 15, 6, 8, 10, 12, 14, 16]
BODY = np.float32([(2 + i % 6, 2 + i // 6 * 2) for i in range(PARTS)])  # in cells


def person(shape: tuple[int, int], *bodies: np.ndarray) -> list[np.ndarray]:
    """Maps in which each part's cell is certain, and offsets lead from part to part."""
    scores = np.full((1, *shape, PARTS), -4, np.float32)
    short = np.zeros((1, *shape, 2 * PARTS), np.float32)
    mid = np.zeros((1, *shape, 4 * EDGES), np.float32)
    for n, body in enumerate(bodies):
        cells = body.astype(int)
        for part, (y, x) in enumerate(cells):
            scores[0, y, x, part] = 4 - n - part / 32
            short[0, y, x, [part, part + PARTS]] = (body[part] - cells[part]) * STRIDE
        for edge, (a, b) in enumerate(zip(TREE, LEAVES, strict=True)):
            for start, end, channel in ((a, b, edge), (b, a, edge + 2 * EDGES)):
                y, x = cells[start]
                offset = (body[end] - body[start]) * STRIDE
                mid[0, y, x, [channel, channel + EDGES]] = offset
    return [scores, short, mid]


def case(label: str, maps: list[Any], **entries: Any) -> Case:
    given = {"max_detections": 3, "score_threshold": 0.5, "stride": STRIDE, "nms_radius": 20.0}
    data = bytes(flexbuffers.Dumps(given | entries))
    inputs = [m if isinstance(m, Arg) else value(m) for m in maps]
    outputs = [np.float32] * (len(maps) + 1)
    return Case(
        "PosenetDecoderOp", label, inputs, custom_options("PosenetDecoderOp", data), outputs
    )


def test_a_person_is_found_whole() -> None:
    places, scores, totals, count = case("", person((12, 12), BODY)).run_reference()
    assert count.tolist() == [1]
    assert_close([places[0, 0]], [BODY * STRIDE])
    logits = 4 - np.arange(PARTS, dtype=np.float32) / 32
    assert_close([scores[0, 0]], [1 / (1 + np.exp(-logits))])
    assert_close([totals[0]], [np.float32([scores[0, 0].mean(), 0, 0])])


def test_two_persons_are_listed_by_their_scores() -> None:
    other = BODY + np.float32([10, 9])
    places, _, totals, count = case("", person((24, 24), BODY, other)).run_reference()
    assert count.tolist() == [2]
    assert_close([places[0, :2]], [np.stack([BODY, other]) * STRIDE])
    assert totals[0, 0] > totals[0, 1] > totals[0, 2] == 0
    (*_, count) = case("", person((24, 24), other, BODY), max_detections=1).run_reference()
    assert count.tolist() == [1]


def test_a_part_near_a_better_persons_part_does_not_count() -> None:
    """Two share a hand and both feet: a sum over 17 parts loses three."""
    other, shared = BODY + np.float32([10, 9]), [10, 15, 16]
    other[shared] = BODY[shared]
    places, scores, totals, count = case("", person((24, 24), BODY, other)).run_reference()
    assert count.tolist() == [2]
    assert_close([places[0, :2]], [np.stack([BODY, other]) * STRIDE])
    counted = np.delete(scores[0, 1], shared)
    assert_close([totals[0, 1]], [counted.sum() / np.float32(PARTS)])


def test_nobody_is_there() -> None:
    places, _, totals, count = case("", person((12, 12))).run_reference()
    assert not any(y.any() for y in (places, totals, count))


def test_no_numbers_are_nobody() -> None:
    maps = person((12, 12), BODY)
    maps[0][0, 3, 2] = np.nan
    assert case("", maps).run_reference()[3].tolist() in ([0], [1])
    assert case("", [np.full_like(maps[0], np.nan), *maps[1:]]).run_reference()[3].tolist() == [0]


def test_quantized_maps_are_reals() -> None:
    """Scores and offsets are multiples of their steps."""
    maps = person((12, 12), BODY)
    maps[0] = np.round(maps[0] * 16) / 16
    quantized = [
        Arg(np.uint8(np.round(m / step) + zero), quantization=scaled(step, zero))
        for m, step, zero in zip(maps, (1 / 16, 1.0, 1.0), (128, 128, 128), strict=True)
    ]
    want, found = case("", maps).run_reference(), case("", quantized).run_reference()
    assert found[3].tolist() == [1]
    assert_close(found, want)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_masks_are_of_the_nearest_person(n: int) -> None:
    """Long offsets of zero: each part is where the cell is."""
    bodies = [BODY, BODY + np.float32([20, 20])][:n]
    long = np.zeros((1, 33, 33, 2 * PARTS), np.float32)
    *_, masks = case("", [*person((33, 33), *bodies), long]).run_reference()
    cells = np.moveaxis(np.indices((33, 33)), 0, -1)
    distances = [np.square(cells[:, :, None] - body).sum(axis=(2, 3)) for body in bodies]
    owner = np.argmin(distances, axis=0) if n else np.zeros((33, 33), int)
    np.testing.assert_array_equal(masks[0], np.arange(3)[:, None, None] == owner)


def test_it_stays_on_the_host() -> None:
    given = case("", person((12, 12), BODY))
    delegate = jd.JaxDelegate()
    interpreter = jd.Interpreter(model_content=given.model(), experimental_delegates=[delegate])
    given.check(run_once(interpreter, given.feeds()), given.run_reference())
    assert "how many persons it follows" in str(delegate.report())


MAPS = person((12, 12), BODY)
STOPPED = {
    "stride 0": case("", MAPS, stride=0),
    ("is int8, not float32 or uint8", TypeError): case("", [of(np.int8, 1, 12, 12, 17), *MAPS[1:]]),
}
IMPOSSIBLE = [
    case("channels", [f32(1, 12, 12, 16), *MAPS[1:]]),
    case("sizes", [f32(1, 12, 11, 17), *MAPS[1:]]),
    case("masks", [*MAPS, f32(1, 12, 12, 34)]),
    case("images", [f32(2, 12, 12, 17), *MAPS[1:]]),
]
