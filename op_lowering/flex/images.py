"""Images: resized, cropped, projected, cut into patches, other colors (core/kernels/image/)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.movement import integers
from jaxdelegate.op_lowering.common.products import nothing
from jaxdelegate.op_lowering.common.signature import ANY, CONSTANTS32, FLOAT32, INT32, MOVED, Input
from jaxdelegate.op_lowering.common.window import (
    Window,
    pad_windows,
    read_tap,
    taps,
    why_not_windows,
)
from jaxdelegate.op_lowering.detection.rule import overlaps
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.flex.signature import rule
from jaxdelegate.op_lowering.records.enums import Padding
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.rule import Function, Op, OpRule, first_reason, table
from jaxdelegate.op_lowering.spec import TensorSpec

_Op = Op[FlexOptions]
_PIXELS = Input(FLOATS | frozenset(map(np.dtype, (np.uint8, np.int8, np.int16, np.int32))))
_STEPS = 1024  # a pixel has as many places


def _why_not_bicubic(op: _Op) -> str | None:
    both = op.options.align_corners and op.options.half_pixel_centers
    reason = "align_corners and half_pixel_centers exclude each other" if both else None
    return _why_not_images(op.inputs[0], op.inputs[1]) or reason


def _why_not_images(image: TensorSpec, size: TensorSpec) -> str | None:
    has_pixels = min(*image.shape[1:3], *integers(size)) > 0
    return None if has_pixels else f"{image.name!r} {list(image.shape)} or its result has no pixels"


def _curve(a: float) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the pixels at a distance below 1, and from 1 to 2; Keys's cubic convolution."""
    near = np.arange(_STEPS + 1) / _STEPS
    far = near + 1
    return (
        ((a + 2) * near - (a + 3)) * near * near + 1,
        ((a * far - 5 * a) * far + 8 * a) * far - 4 * a,
    )


def _taps(n_in: int, n_out: int, o: FlexOptions) -> tuple[np.ndarray, np.ndarray]:
    """Pixels and weights, both [n_out, 4]. Only half-pixel centers leave out those outside."""
    aligned = int(o.align_corners and n_out > 1)
    scale = np.float32(n_in - aligned) / np.float32(n_out - aligned)
    at = np.arange(n_out, dtype=np.float32)
    half = np.float32(0.5)
    at = (at + half) * scale - half if o.half_pixel_centers else at * scale
    first = np.floor(at)
    place = np.rint((at - first) * _STEPS).astype(int)
    near, far = _curve(-0.5 if o.half_pixel_centers else -0.75)
    weights = np.stack([far[place], near[place], near[_STEPS - place], far[_STEPS - place]], 1)
    around = first.astype(int)[:, None] + np.arange(-1, 3)
    pixels = np.clip(around, 0, n_in - 1)
    if o.half_pixel_centers:
        weights = np.where(around == pixels, weights, 0)
        total = weights.sum(1, keepdims=True)
        weights = np.where(np.abs(total) > 1e-30, weights / total, weights)
    return pixels, weights.astype(np.float32)


def _lower_bicubic(op: _Op) -> Function:
    sizes = zip(op.inputs[0].shape[1:3], op.outputs[0].shape[1:3], strict=True)
    axes = [(axis, *_taps(*size, op.options)) for axis, size in enumerate(sizes, 1)]

    def resize_bicubic(x: jax.Array, _size: jax.Array) -> tuple[jax.Array]:
        y = x.astype(np.float32)  # [N, H, W, C] -> [N, h, w, C]
        for axis, pixels, weights in axes:
            shape = [-1 if i == axis else 1 for i in range(4)]
            terms = (
                jnp.take(y, pixels[:, k], axis) * weights[:, k].reshape(shape) for k in range(4)
            )
            y = sum(terms, start=jnp.zeros((), np.float32))
        return (y,)

    return resize_bicubic


# ---- CropAndResize: images, boxes (y1, x1, y2, x2), the image of each box, size


def _why_not_crop(op: _Op) -> str | None:
    image, method = op.inputs[0], op.options.method
    return first_reason(
        _why_not_images(image, op.inputs[3]),
        None if method in ("bilinear", "nearest") else f"the method {method!r}",
        None if image.shape[0] else f"{image.name!r} {list(image.shape)} has no images",
    )


def _lower_crop(op: _Op) -> Function:
    """An index outside the batch is an error of TensorFlow's; here it is the nearest image."""
    _, height, width, _ = op.inputs[0].shape
    _, rows, columns, _ = op.outputs[0].shape
    read = _nearest if op.options.method == "nearest" else _bilinear
    outside = op.options.extrapolation_value

    def crop_and_resize(
        x: jax.Array, boxes: jax.Array, places: jax.Array, _size: jax.Array
    ) -> tuple[jax.Array]:
        x = jnp.asarray(x).astype(np.float32)
        y1, x1, y2, x2 = jnp.asarray(boxes).T
        y, in_y = _line(y1, y2, height, rows)
        at_x, in_x = _line(x1, x2, width, columns)
        kept = jnp.clip(jnp.asarray(places), 0, x.shape[0] - 1)[:, None, None]

        def pixels(row: jax.Array, column: jax.Array) -> jax.Array:
            row, column = jnp.clip(row, 0, height - 1), jnp.clip(column, 0, width - 1)
            return x[kept, row, column]

        crops = read(y[:, :, None], at_x[:, None, :], pixels)
        inside = in_y[:, :, None] & in_x[:, None, :]
        return (jnp.where(inside[..., None], crops, np.float32(outside)),)

    return crop_and_resize


def _line(first: jax.Array, last: jax.Array, n: int, n_out: int) -> tuple[jax.Array, jax.Array]:
    """Where each box reads along an axis, and whether that is inside the image: [boxes, n_out]."""
    if n_out > 1:
        step = (last - first) * np.float32(n - 1) / np.float32(n_out - 1)
        places = jnp.arange(n_out, dtype=np.float32)[None]
        at = (first * np.float32(n - 1))[:, None] + places * step[:, None]
    else:
        at = (np.float32(0.5) * (first + last) * np.float32(n - 1))[:, None]
    return at, (at >= 0) & (at <= n - 1)


_Pixels = Callable[[jax.Array, jax.Array], jax.Array]  # integer rows, columns -> [..., C]


def _nearest(y: jax.Array, x: jax.Array, pixels: _Pixels) -> jax.Array:
    return pixels(*jnp.broadcast_arrays(*(_rounded(at).astype(np.int32) for at in (y, x))))


def _rounded(at: jax.Array) -> jax.Array:
    """Halves away from zero."""
    return jnp.trunc(at + jnp.copysign(np.float32(0.5), at))


def _bilinear(y: jax.Array, x: jax.Array, pixels: _Pixels) -> jax.Array:
    """Each pixel's weight follows from its own distance.

    XLA may compute a place twice and round differently: the fraction of one then does not belong
    to the pixel below the other.
    """
    row, column = jnp.broadcast_arrays(*(jnp.floor(at).astype(np.int32) for at in (y, x)))

    def weighted(values: jax.Array, at: jax.Array, place: jax.Array) -> jax.Array:
        near = jnp.maximum(1 - jnp.abs(at - place.astype(at.dtype)), np.float32(0))
        return values * near[..., None].astype(values.dtype)

    def line(row: jax.Array) -> jax.Array:
        first = weighted(pixels(row, column), x, column)
        return first + weighted(pixels(row, column + 1), x, column + 1)

    return weighted(line(row), y, row) + weighted(line(row + 1), y, row + 1)


# ---- ImageProjectiveTransformV2, V3: images, transforms, size (, the value outside)


def _why_not_projection(op: _Op) -> str | None:
    image, _, size = op.inputs[:3]
    o = op.options
    wrong = next((spec for spec in op.inputs[3:4] if spec and spec.shape not in ((), (1,))), None)
    return first_reason(
        _why_not_images(image, size),
        None if o.interpolation in _READ else f"the interpolation {o.interpolation!r}",
        None if wrong is None else f"{wrong.name!r} {list(wrong.shape)} is not one number",
        None if o.fill_mode in _FILL else f"the fill_mode {o.fill_mode!r}",
    )


def _reflected(at: jax.Array, n: int) -> jax.Array:
    """Mirrored at the edges, with the values at the edges twice."""
    at = jnp.mod(at, np.float32(2 * n))
    return jnp.where(at > n - 1, jnp.where(at >= n, 2 * n - 1 - at, at), at)


def _wrapped(at: jax.Array, n: int) -> jax.Array:
    """Repeated; TensorFlow counts a turn of n - 1 values."""
    if n == 1:
        return jnp.zeros_like(at)
    before = at + n * (jnp.trunc(-at / np.float32(n - 1)) + 1)
    after = at - n * jnp.trunc(at / np.float32(n - 1))
    return jnp.where(at < 0, before, jnp.where(at > n - 1, after, at))


def _clipped(at: jax.Array, n: int) -> jax.Array:
    return jnp.clip(at, 0, np.float32(n - 1))


_READ = {"NEAREST": _nearest, "BILINEAR": _bilinear}
_FILL: dict[str, Callable[[jax.Array, int], jax.Array]] = {
    "CONSTANT": lambda at, _n: at,
    "NEAREST": _clipped,
    "REFLECT": lambda at, n: _clipped(_reflected(at, n), n),
    "WRAP": lambda at, n: _clipped(_wrapped(at, n), n),
}


def _lower_projection(op: _Op) -> Function:
    """A place outside the image reads the fill value, also as one of four neighbors."""
    n_images, height, width, _ = op.inputs[0].shape
    _, rows, columns, _ = op.outputs[0].shape
    read, fill = _READ[op.options.interpolation], _FILL[op.options.fill_mode]
    dtype = op.outputs[0].dtype
    wide = np.float64 if dtype == np.float64 else np.float32

    def project(
        x: jax.Array, transforms: jax.Array, _size: jax.Array, outside: jax.Array | None = None
    ) -> tuple[jax.Array]:
        x = jnp.asarray(x).astype(wide)
        empty = jnp.asarray(0 if outside is None else outside).reshape(()).astype(wide)
        a = jnp.broadcast_to(jnp.asarray(transforms), (n_images, 8)).T[..., None, None]
        i = jnp.arange(rows, dtype=np.float32)[None, :, None]
        j = jnp.arange(columns, dtype=np.float32)[None, None]
        scale = a[6] * j + a[7] * i + 1
        left = fill((a[0] * j + a[1] * i + a[2]) / scale, width)
        top = fill((a[3] * j + a[4] * i + a[5]) / scale, height)
        left, top = jnp.clip(left, -2, width + 1), jnp.clip(top, -2, height + 1)  # far outside
        place = jnp.arange(n_images)[:, None, None]

        def pixels(row: jax.Array, column: jax.Array) -> jax.Array:
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            values = x[place, jnp.clip(row, 0, height - 1), jnp.clip(column, 0, width - 1)]
            return jnp.where(inside[..., None], values, empty)

        y = jnp.where((scale == 0)[..., None], empty, read(top, left, pixels))
        return (y.astype(dtype),)

    return project


# ---- ExtractImagePatches


def _patch_windows(op: _Op) -> tuple[Window, ...]:
    o = op.options
    dims = zip(op.inputs[0].shape, o.ksizes, o.strides, o.rates, strict=False)
    return tuple(Window(n, k, s, Padding[o.padding], r) for n, k, s, r in list(dims)[1:3])


def _why_not_patches(op: _Op) -> str | None:
    return why_not_windows(_patch_windows(op))


def _lower_patches(op: _Op) -> Function:
    windows, y = _patch_windows(op), op.outputs[0]
    if 0 in y.shape:
        return lambda _x: (jnp.zeros(y.shape, y.dtype),)

    def extract(x: jax.Array) -> tuple[jax.Array]:
        padded = pad_windows(x, windows, 0)
        return (jnp.concatenate([read_tap(padded, windows, t) for t in taps(windows)], -1),)

    return extract


# ---- colors (core/kernels/colorspace_op.cc, image/adjust_*_op.cc)


def _to_hsv(x: jax.Array) -> jax.Array:
    """[..., red, green, blue] to [..., hue, saturation, value], all from 0 to 1."""
    r, g, b = jnp.moveaxis(x, -1, 0)
    v = jnp.max(x, -1)
    span = v - jnp.min(x, -1)
    safe = jnp.where(span > 0, span, jnp.ones_like(span))
    sector = jnp.where(r == v, g - b, jnp.where(g == v, b - r + 2 * safe, r - g + 4 * safe))
    hue = jnp.where(span > 0, sector / (6 * safe), jnp.zeros_like(v))
    s = jnp.where(v > 0, span / jnp.where(v > 0, v, jnp.ones_like(v)), jnp.zeros_like(v))
    return jnp.stack([jnp.where(hue < 0, hue + 1, hue), s, v], -1)


def _to_rgb(x: jax.Array) -> jax.Array:
    h, s, v = jnp.moveaxis(x, -1, 0)
    r, g, b = (jnp.abs(6 * h - k) for k in (3, 2, 4))
    parts = (jnp.clip(part, 0, 1) for part in (r - 1, 2 - g, 2 - b))
    return jnp.stack([(1 - s + s * part) * v for part in parts], -1)


def _with_hue(x: jax.Array, delta: jax.Array) -> jax.Array:
    h, s, v = jnp.moveaxis(_to_hsv(x), -1, 0)
    return _to_rgb(jnp.stack([jnp.mod(h + delta, 1), s, v], -1))


def _with_saturation(x: jax.Array, scale: jax.Array) -> jax.Array:
    h, s, v = jnp.moveaxis(_to_hsv(x), -1, 0)
    return _to_rgb(jnp.stack([h, jnp.clip(s * scale, 0, 1), v], -1))


def _with_contrast(x: jax.Array, factor: jax.Array) -> jax.Array:
    mean = jnp.mean(x, (-3, -2), keepdims=True)
    return (x - mean) * factor + mean


def _of_colors(name: str, function: Callable[..., jax.Array], arity: int) -> OpRule[FlexOptions]:
    def lower(_op: _Op) -> Function:
        return lambda *arrays: (function(*map(jnp.asarray, arrays)),)

    return rule(name, [FLOAT32] * arity, lower)


_CROP = [_PIXELS, FLOAT32, INT32, CONSTANTS32]
_PROJECT = [_PIXELS, FLOAT32, CONSTANTS32]


# ---- CombinedNonMaxSuppression (core/kernels/image/non_max_suppression_op.cc)
#
# One step for each box to select, over all boxes of a class at once: no shape depends on data.


def _why_not_suppression(op: _Op) -> str | None:
    wrong = next((spec for spec in op.inputs[2:6] if spec.shape), None)
    if wrong is not None:
        return f"{wrong.name!r} {list(wrong.shape)} is not one number"
    counts = [n for spec in op.inputs[2:4] for n in integers(spec)]
    return None if min(counts) > 0 else f"{counts} boxes of a class and of all: expected some"


def _lower_suppression(op: _Op) -> Function:
    n_boxes, classes = op.inputs[1].shape[1:]
    n_out, n_total = min(*integers(op.inputs[2]), n_boxes), op.outputs[1].shape[1]
    if 0 in (*op.inputs[1].shape, n_out):
        return nothing(op.outputs)

    def suppress(
        boxes: jax.Array, scores: jax.Array, _each: int, _all: int, iou: jax.Array, least: jax.Array
    ) -> tuple[jax.Array, ...]:
        boxes, scores = jnp.asarray(boxes), jnp.asarray(scores)
        by_class = jnp.broadcast_to(boxes, (*scores.shape, 4)).transpose(0, 2, 3, 1)
        first, last = jnp.split(by_class, 2, axis=2)
        corners = jnp.concatenate([jnp.minimum(first, last), jnp.maximum(first, last)], 2)

        def of_class(corners: jax.Array, scores: jax.Array) -> tuple[jax.Array, jax.Array]:
            return _select(corners, scores, iou, least, n_out)

        # [N, classes, n_out]: the index of each box, and its score, -inf if it does not exist.
        index, best = jax.vmap(jax.vmap(of_class))(corners, scores.transpose(0, 2, 1))
        kept, place = lax.top_k(best.reshape(len(scores), -1), min(n_total, classes * n_out))
        exists, class_ = kept > -jnp.inf, place // n_out
        chosen = jnp.take_along_axis(index.reshape(len(scores), -1), place, 1)
        group = class_ if boxes.shape[2] > 1 else jnp.zeros_like(class_)
        listed = boxes[jnp.arange(len(scores))[:, None], chosen, group]
        if op.options.clip_boxes:
            listed = jnp.clip(listed, 0, 1)
        results = listed, kept, class_.astype(np.float32)
        return *(_filled(r, exists, n_total) for r in results), jnp.sum(exists, 1, dtype=np.int32)

    return suppress


def _select(
    boxes: jax.Array, scores: jax.Array, iou: jax.Array, least: jax.Array, n_out: int
) -> tuple[jax.Array, jax.Array]:
    """Indices of the best boxes [4, n] that do not overlap a better one, and their scores."""

    def keep_best(live: jax.Array, _: None) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        held = jnp.where(live, scores, -jnp.inf)
        best = lax.argmax(held, 0, np.int32)
        others = jnp.arange(live.size, dtype=np.int32) != best
        return live & others & ~(overlaps(boxes[:, best], boxes) > iou), (best, held[best])

    selected: tuple[jax.Array, jax.Array] = lax.scan(keep_best, scores > least, length=n_out)[1]
    return selected


def _filled(values: jax.Array, exists: jax.Array, n: int) -> jax.Array:
    """[N, k, ...] -> [N, n, ...], zero where there is no box."""
    mask = exists.reshape(exists.shape + (1,) * (values.ndim - 2))
    kept = jnp.where(mask, values, jnp.zeros_like(values))
    return jnp.pad(kept, [(0, 0), (0, n - values.shape[1])] + [(0, 0)] * (values.ndim - 2))


RULES = table(
    _of_colors("AdjustContrastv2", _with_contrast, 2),
    _of_colors("AdjustHue", _with_hue, 2),
    _of_colors("AdjustSaturation", _with_saturation, 2),
    _of_colors("HSVToRGB", _to_rgb, 1),
    _of_colors("RGBToHSV", _to_hsv, 1),
    rule("CropAndResize", _CROP, _lower_crop, _why_not_crop, results=[np.float32]),
    rule("ExtractImagePatches", [MOVED], _lower_patches, _why_not_patches),
    rule("ImageProjectiveTransformV2", _PROJECT, _lower_projection, _why_not_projection),
    rule("ImageProjectiveTransformV3", [*_PROJECT, ANY], _lower_projection, _why_not_projection),
    rule(
        "ResizeBicubic",
        [_PIXELS, CONSTANTS32],
        _lower_bicubic,
        _why_not_bicubic,
        results=[np.float32],
    ),
    rule(
        "CombinedNonMaxSuppression",
        [FLOAT32, FLOAT32, CONSTANTS32, CONSTANTS32, FLOAT32, FLOAT32],
        _lower_suppression,
        _why_not_suppression,
        results=[np.float32, np.float32, np.float32, np.int32],
    ),
)
