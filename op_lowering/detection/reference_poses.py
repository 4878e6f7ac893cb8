"""Poses of persons from PoseNet's maps: PosenetDecoderOp, Coral's custom operator.

Sources: coral/pose_estimation/{posenet_decoder_op,posenet_decoder}.cc in google-coral/libcoral.
What the kernel leaves as it is in memory is zero here: poses and masks after the last one. Of equal
scores the first in the map comes first; the kernel keeps no order. Places are (y, x) in cells of
the maps; the results are in pixels.
"""

import heapq
from collections.abc import Iterator

import numpy as np

from jaxdelegate.op_lowering.detection.options import PosenetDecoderOptions
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.quant import affine
from jaxdelegate.reference.kernel import Array, Kernel

_PARTS = 17  # nose, eyes, ears, shoulders, elbows, wrists, hips, knees, ankles: left, then right
# Neighbors, from the nose to hands and feet.
_EDGES = (
    *((0, 1), (1, 3), (0, 2), (2, 4), (0, 5), (5, 7), (7, 9), (5, 11), (11, 13), (13, 15)),
    *((0, 6), (6, 8), (8, 10), (6, 12), (12, 14), (14, 16)),
)
_N = len(_EDGES)
_REFINEMENTS = 5  # each moves a neighbor's place by the short offsets
_MASK_STEPS = 3  # from a pixel to the parts of its person, by the long offsets
_MASK = 33  # rows and columns of the masks


def pose_shapes(o: PosenetDecoderOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """Places of parts, their scores, scores of persons, the count; with long offsets, masks."""
    channels = (_PARTS, 2 * _PARTS, 4 * _N, 2 * _PARTS)
    for spec, n in zip(inputs, channels, strict=False):
        if len(spec.shape) != 4 or spec.shape[0] != 1 or spec.shape[3] != n:
            raise ValueError(
                f"PosenetDecoderOp: {spec.name!r} is {list(spec.shape)}, "
                f"not [1, height, width, {n}]"
            )
    if len({spec.shape[1:3] for spec in inputs}) > 1 or 0 in inputs[0].shape:
        sizes = [list(spec.shape[1:3]) for spec in inputs]
        raise ValueError(f"PosenetDecoderOp: maps of several sizes, or of none: {sizes}")
    if len(inputs) == 4 and inputs[3].shape[1:3] != (_MASK, _MASK):
        raise ValueError(f"PosenetDecoderOp: {inputs[3].name!r} is not [1, 33, 33, {2 * _PARTS}]")
    n = o.max_detections
    masks = ((1, n, _MASK, _MASK),) if len(inputs) == 4 else ()
    return (1, n, _PARTS, 2), (1, n, _PARTS), (1, n), (1,), *masks


def posenet_decoder(
    o: PosenetDecoderOptions, inputs: Specs, outputs: Specs, *arrays: Array
) -> tuple[Array, ...]:
    """Grow a person from each part that stands out, and list the best by their scores."""
    if o.stride < 1 or o.max_detections < 0:
        raise ValueError(f"PosenetDecoderOp: stride {o.stride}, {o.max_detections} detections")
    scales = (1, *(1 / o.stride,) * 3)
    maps = [_real(*each)[0] for each in zip(arrays, inputs, scales, strict=False)]
    places, scores = _persons(o, *maps[:3])
    totals = _suppressed(o, places, scores)
    y = [np.zeros(spec.shape, np.float32) for spec in outputs]
    order = [i for i in np.argsort(-totals, kind="stable") if totals[i] >= o.score_threshold]
    n = len(order)
    y[0][0, :n], y[1][0, :n], y[2][0, :n] = places[order] * o.stride, scores[order], totals[order]
    y[3][0] = n
    if len(maps) == 4:
        owners = _owners(maps[3], y[0][0, :n], o.stride)
        np.put_along_axis(y[4][0], owners[None], 1, axis=0)
    return tuple(y)


def _real(array: Array, spec: TensorSpec, scale: float) -> Array:
    if array.dtype == np.float32:
        return array * np.float32(scale)
    if array.dtype != np.uint8 or spec.quantization is None or not spec.is_quantized:
        raise TypeError(f"PosenetDecoderOp: {spec.name!r} is {array.dtype}, not float32 or uint8")
    return affine.dequantize(array, spec.quantization) * np.float32(scale)


def _persons(
    o: PosenetDecoderOptions, scores: Array, short: Array, mid: Array
) -> tuple[Array, Array]:
    """Places [n, parts, 2] and scores [n, parts] of persons, by the score of their first part."""
    places = np.zeros((0, _PARTS, 2), np.float32)
    of_parts = np.zeros((0, _PARTS), np.float32)
    for part, place in _seeds(o, scores, short):
        if len(places) == o.max_detections:
            break
        if _are_near(o, places[:, part], place).any():
            continue
        person, logits = _grown(part, place, scores, short, mid)
        with np.errstate(over="ignore"):
            score = 1 / (1 + np.exp(-logits))
        if score.mean() >= o.score_threshold:
            places = np.append(places, person[None], 0)
            of_parts = np.append(of_parts, score[None], 0)
    return places, of_parts


def _seeds(o: PosenetDecoderOptions, scores: Array, short: Array) -> Iterator[tuple[int, Array]]:
    """Parts above the threshold that no neighboring cell exceeds, the best first."""
    with np.errstate(all="ignore"):
        least = np.float32(-np.log(1 / (np.float64(o.score_threshold) + 1e-6) - 1))
    height, width, _ = scores.shape
    edged = np.pad(scores, ((1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(edged, (3, 3), axis=(0, 1))
    cells = np.argwhere((scores >= least) & (scores >= windows.max(axis=(3, 4))))
    order = np.argsort(-scores[tuple(cells.T)], kind="stable")
    for y, x, part in cells[order].tolist():
        moved = np.array([y, x], np.float32) + short[y, x, [part, part + _PARTS]]
        yield part, np.clip(moved, 0, (height - 1, width - 1)).astype(np.float32)


def _grown(part: int, place: Array, scores: Array, short: Array, mid: Array) -> tuple[Array, Array]:
    """The places of all parts of a person, and their logits: from the best to its neighbors."""
    places, logits = np.zeros((_PARTS, 2), np.float32), np.zeros(_PARTS, np.float32)
    is_known = [False] * _PARTS
    waiting = [(-_sample(scores, place, [part])[0], 0, part, place)]
    count = 0
    while waiting:
        score, _, part, place = heapq.heappop(waiting)
        if is_known[part]:
            continue
        places[part], logits[part], is_known[part] = place, -score, True
        for neighbor, channel in _neighbors(part):
            if not is_known[neighbor]:
                count += 1
                at = _moved(mid, place, [channel, channel + _N])
                for _ in range(_REFINEMENTS):
                    at = _moved(short, at, [neighbor, neighbor + _PARTS])
                score = -_sample(scores, at, [neighbor])[0]
                heapq.heappush(waiting, (score, count, neighbor, at))
    return places, logits


def _neighbors(part: int) -> Iterator[tuple[int, int]]:
    """The neighbors of a part, and the channel of the offsets to them: y, and _N later x."""
    yield from ((b, k) for k, (a, b) in enumerate(_EDGES) if a == part)
    yield from ((a, k + 2 * _N) for k, (a, b) in enumerate(_EDGES) if b == part)


def _moved(offsets: Array, places: Array, channels: list[int]) -> Array:
    """Places [..., 2] after the offsets there, within the map."""
    end = np.array(offsets.shape[:2], np.float32) - 1
    return np.asarray(np.clip(places + _sample(offsets, places, channels), 0, end))


def _sample(image: Array, places: Array, channels: list[int]) -> Array:
    """Channels [..., n] at places [..., 2] between four cells."""
    low, high = np.floor(places), np.ceil(places)
    down, across = np.moveaxis(places - low, -1, 0)[..., None]
    top, left = np.moveaxis(low.astype(int), -1, 0)[..., None]
    bottom, right = np.moveaxis(high.astype(int), -1, 0)[..., None]
    upper = (1 - across) * image[top, left, channels] + across * image[top, right, channels]
    lower = (1 - across) * image[bottom, left, channels] + across * image[bottom, right, channels]
    return np.asarray((1 - down) * upper + down * lower)


def _are_near(o: PosenetDecoderOptions, places: Array, place: Array) -> Array:
    radius = np.float32(o.nms_radius) / np.float32(o.stride)
    return np.asarray(np.square(places - place).sum(axis=-1) <= radius * radius)


def _suppressed(o: PosenetDecoderOptions, places: Array, scores: Array) -> Array:
    """The scores of persons, without parts that are near those of a better person."""
    totals = scores.mean(axis=1)
    order = np.argsort(-totals, kind="stable")
    for i, person in enumerate(order):
        hidden = _are_near(o, places[order[:i]], places[person]).any(axis=0)
        totals[person] = np.where(hidden, 0, scores[person]).sum() / _PARTS
    return np.asarray(totals)


def _owners(long: Array, places: Array, stride: int) -> Array:
    """For each cell the person whose parts are nearest to where its long offsets lead.

    Without any person it is the first, as in the kernel.
    """
    if not len(places):
        return np.zeros((_MASK, _MASK), int)
    cells = np.moveaxis(np.indices((_MASK, _MASK), np.float32), 0, -1)
    distances = np.zeros((_MASK, _MASK, len(places)), np.float32)
    for part in range(_PARTS):
        at = cells
        for _ in range(_MASK_STEPS):
            at = _moved(long, at, [part, part + _PARTS])
        distances += np.square(places[:, part] - at[:, :, None] * stride).sum(axis=-1)
    return np.asarray(distances.argmin(axis=-1))


KERNELS = {"PosenetDecoderOp": Kernel(posenet_decoder, pose_shapes)}
