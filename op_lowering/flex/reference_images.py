"""Images: resized, cropped, projected, cut into patches, other colors (core/kernels/image/)."""

import colorsys
import itertools
import math
from collections.abc import Callable

import numpy as np

from jaxdelegate.op_lowering.flex.reference_kernels import constant, kernels
from jaxdelegate.op_lowering.records.enums import Padding
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.reference.kernel import Array, ResultShapes
from jaxdelegate.reference.movement import ints
from jaxdelegate.reference.window import pad_before, size_out, windows


def bicubic_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    return (_resized(inputs[0], inputs[1], inputs[0].shape[:1]),)


def _resized(image: TensorSpec, size: TensorSpec, count: Shape) -> Shape | None:
    if len(image.shape) != 4 or size.shape != (2,):
        raise ValueError(f"an image {list(image.shape)}, a size {list(size.shape)}")
    sizes = constant(size)
    return None if sizes is None else (*count, *sizes, image.shape[3])


def resize_bicubic(o: FlexOptions, x: Array, size: Array) -> Array:
    """The rows by a matrix, then the columns."""
    if o.align_corners and o.half_pixel_centers:
        raise ValueError("ResizeBicubic: align_corners and half_pixel_centers")
    if min(*x.shape[1:3], *size.tolist()) < 1:
        raise ValueError(f"ResizeBicubic of {list(x.shape)} to {size.tolist()}")
    rows, columns = (_matrix(n, int(m), o) for n, m in zip(x.shape[1:3], size, strict=True))
    y = np.einsum("ih,nhwc->niwc", rows, x.astype(np.float64))
    return np.asarray(np.einsum("jw,niwc->nijc", columns, y))


def _matrix(n_in: int, n_out: int, o: FlexOptions) -> Array:
    """The weight of each pixel in each result, [n_out, n_in]."""
    scale = np.float32(n_in / n_out)
    if o.align_corners and n_out > 1:
        scale = np.float32((n_in - 1) / (n_out - 1))
    matrix = np.zeros((n_out, n_in))
    for i in range(n_out):
        at = np.float32(i) * scale
        if o.half_pixel_centers:
            at = np.float32(i + 0.5) * scale - np.float32(0.5)
        first = int(np.floor(at))
        part = round(float(at - np.float32(first)) * 1024) / 1024  # a table has 1024 places
        for pixel in range(first - 1, first + 3):
            weight = _weight(abs(pixel - first - part), -0.5 if o.half_pixel_centers else -0.75)
            if 0 <= pixel < n_in or not o.half_pixel_centers:
                matrix[i, min(max(pixel, 0), n_in - 1)] += weight
    if o.half_pixel_centers:
        matrix /= matrix.sum(axis=1, keepdims=True)
    return matrix


def _weight(distance: float, a: float) -> float:
    """Keys's cubic convolution."""
    if distance <= 1:
        return ((a + 2) * distance - (a + 3)) * distance**2 + 1
    return ((distance - 5) * distance + 8) * distance * a - 4 * a


# ---- CropAndResize


def crop_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    image, boxes, places, size = inputs
    if boxes.shape[1:] != (4,) or boxes.shape[:1] != places.shape:
        raise ValueError(f"boxes {list(boxes.shape)} for indices {list(places.shape)}")
    return (_resized(image, size, boxes.shape[:1]),)


def crop_and_resize(o: FlexOptions, x: Array, boxes: Array, places: Array, size: Array) -> Array:
    """Pixel by pixel; a place outside the image is the extrapolation value."""
    if o.method not in ("bilinear", "nearest"):
        raise ValueError(f"CropAndResize: the method {o.method!r}")
    y = np.full((len(boxes), *ints(size), x.shape[3]), o.extrapolation_value, np.float32)
    for box, row, column in np.ndindex(y.shape[:3]):
        place = int(places[box])
        if not 0 <= place < len(x):
            raise ValueError(f"CropAndResize: image {place} of {len(x)}")
        at = [
            _crop_place(boxes[box, axis], boxes[box, axis + 2], x.shape[1 + axis], *i)
            for axis, i in enumerate(((row, y.shape[1]), (column, y.shape[2])))
        ]
        if all(0 <= v <= n - 1 for v, n in zip(at, x.shape[1:3], strict=True)):
            y[box, row, column] = _read(x[place], at, o.method == "nearest", 0)
    return y


def _crop_place(first: np.float32, last: np.float32, n: int, i: int, n_out: int) -> np.float32:
    if n_out == 1:
        return np.float32(0.5) * (first + last) * np.float32(n - 1)
    step = (last - first) * np.float32(n - 1) / np.float32(n_out - 1)
    return first * np.float32(n - 1) + np.float32(i) * step


def _read(image: Array, at: list[np.float32], is_nearest: bool, outside: float) -> Array:
    """The pixel [C] at a place, from the nearest or the four around it."""
    if is_nearest:
        row, column = (int(math.copysign(math.floor(abs(v) + 0.5), v)) for v in at)
        return _pixel(image, row, column, outside)
    top, left = (math.floor(v) for v in at)
    down, right = float(at[0]) - top, float(at[1]) - left
    total = np.zeros(image.shape[-1])
    for i, j in itertools.product((0, 1), repeat=2):
        weight = (down if i else 1 - down) * (right if j else 1 - right)
        if weight:
            total += weight * _pixel(image, top + i, left + j, outside)
    return total


def _pixel(image: Array, row: int, column: int, outside: float) -> Array:
    height, width, channels = image.shape
    if 0 <= row < height and 0 <= column < width:
        pixel: Array = image[row, column].astype(np.float64)
        return pixel
    return np.full(channels, outside, np.float64)


# ---- ImageProjectiveTransformV2, V3


def projected_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    image, transforms, size = inputs[:3]
    if transforms.shape not in ((1, 8), (*image.shape[:1], 8)):
        shapes = f"transforms {list(transforms.shape)} for images {list(image.shape)}"
        raise ValueError(shapes)
    return (_resized(image, size, image.shape[:1]),)


def project(
    o: FlexOptions, x: Array, transforms: Array, size: Array, outside: Array | None = None
) -> Array:
    """Each pixel of the result reads one place of the image."""
    if o.interpolation not in ("NEAREST", "BILINEAR") or o.fill_mode not in _FILLED:
        raise ValueError(f"ImageProjectiveTransform: {o.interpolation!r}, {o.fill_mode!r}")
    empty, fill = 0.0 if outside is None else float(outside.reshape(())), _FILLED[o.fill_mode]
    y = np.full((len(x), *ints(size), x.shape[3]), empty, x.dtype)
    for image, row, column in np.ndindex(y.shape[:3]):
        a = transforms[image if len(transforms) > 1 else 0]
        j, i = np.float32(column), np.float32(row)
        scale = a[6] * j + a[7] * i + np.float32(1)
        if scale:
            down = (a[3] * j + a[4] * i + a[5]) / scale
            right = (a[0] * j + a[1] * i + a[2]) / scale
            at = [fill(v, n) for v, n in zip((down, right), x.shape[1:3], strict=True)]
            y[image, row, column] = _read(x[image], at, o.interpolation == "NEAREST", empty)
    return y


def _clipped(at: np.float32, n: int) -> np.float32:
    return min(max(at, np.float32(0)), np.float32(n - 1))


def _reflected(at: np.float32, n: int) -> np.float32:
    at = np.float32(math.fmod(at, 2 * n))
    at = at + 2 * n if at < 0 else at
    return _clipped(2 * n - 1 - at if at >= n else at, n)


def _wrapped(at: np.float32, n: int) -> np.float32:
    """TensorFlow counts a turn of n - 1 values."""
    if 0 <= at <= n - 1 or n == 1:
        return _clipped(at, n)
    turns = int(-at / (n - 1)) + 1 if at < 0 else -int(at / (n - 1))
    return _clipped(at + np.float32(n * turns), n)


_FILLED = {
    "CONSTANT": lambda at, _n: at,
    "NEAREST": _clipped,
    "REFLECT": _reflected,
    "WRAP": _wrapped,
}


# ---- ExtractImagePatches


def _patch_padding(o: FlexOptions, shape: Shape) -> Padding:
    lists = shape, o.ksizes, o.strides, o.rates
    fits = all(len(sizes) == 4 for sizes in lists) and all(s[0] == s[3] == 1 for s in lists[1:])
    if not fits or o.padding not in Padding.__members__:
        raise ValueError(f"ExtractImagePatches: {list(o.ksizes)}, {o.padding!r} of {list(shape)}")
    return Padding[o.padding]


def _patch_counts(o: FlexOptions, x: Shape) -> Shape:
    dims = list(zip(x, o.ksizes, o.strides, o.rates, strict=True))[1:3]
    return tuple(size_out(_patch_padding(o, x), *dim) for dim in dims)


def patches_shape(o: FlexOptions, inputs: Specs) -> ResultShapes:
    shape = inputs[0].shape
    _patch_padding(o, shape)
    return ((shape[0], *_patch_counts(o, shape), math.prod((*o.ksizes, shape[3]))),)


def patches(o: FlexOptions, x: Array) -> Array:
    """The values of each window, row by row, in the last dimension."""
    padding, spatial = _patch_padding(o, x.shape), slice(1, 3)
    out = _patch_counts(o, x.shape)
    sizes, strides, rates = (list(v[spatial]) for v in (o.ksizes, o.strides, o.rates))
    dims = zip(x.shape[spatial], sizes, strides, out, rates, strict=True)
    before = [pad_before(padding, *dim) for dim in dims]
    y = np.zeros((len(x), *out, *sizes, x.shape[3]), x.dtype)
    for (row, column), values in windows(x, out, before, sizes, strides, rates):
        y[..., row, column, :] = values
    return y.reshape(len(x), *out, math.prod((*sizes, x.shape[3])))


# ---- colors (core/kernels/colorspace_op.cc, image/adjust_*_op.cc), in float64

_Color = tuple[float, float, float]


def colors_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    shape = inputs[0].shape
    if shape[-1:] != (3,):
        raise ValueError(f"{list(shape)} is not of colors: expected 3 in the last dimension")
    return (shape,)


def adjusted_shape(o: FlexOptions, inputs: Specs) -> ResultShapes:
    _check_number(inputs)
    return colors_shape(o, inputs)


def images_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    _check_number(inputs)
    return (inputs[0].shape,)


def _check_number(inputs: Specs) -> None:
    x, number = inputs
    if len(x.shape) < 3 or number.shape:
        raise ValueError(f"images {list(x.shape)} by {list(number.shape)}: expected one number")


def _each(function: Callable[[_Color], _Color], x: Array) -> Array:
    colors = [function((r, g, b)) for r, g, b in x.reshape(-1, 3).astype(np.float64).tolist()]
    return np.array(colors).reshape(x.shape)


def to_hsv(_o: FlexOptions, x: Array) -> Array:
    return _each(lambda color: colorsys.rgb_to_hsv(*color), x)


def to_rgb(_o: FlexOptions, x: Array) -> Array:
    """Hues outside 0 to 1 are those of the nearest end."""

    def rgb(color: _Color) -> _Color:
        h, s, v = color
        return colorsys.hsv_to_rgb(min(max(h, 0), 1), s, v)

    return _each(rgb, x)


def adjust_hue(_o: FlexOptions, x: Array, delta: Array) -> Array:
    def adjusted(color: _Color) -> _Color:
        h, s, v = colorsys.rgb_to_hsv(*color)
        return colorsys.hsv_to_rgb((h + float(delta)) % 1, s, v)

    return _each(adjusted, x)


def adjust_saturation(_o: FlexOptions, x: Array, scale: Array) -> Array:
    def adjusted(color: _Color) -> _Color:
        h, s, v = colorsys.rgb_to_hsv(*color)
        return colorsys.hsv_to_rgb(h, min(max(s * float(scale), 0), 1), v)

    return _each(adjusted, x)


def adjust_contrast(_o: FlexOptions, x: Array, factor: Array) -> Array:
    wide = x.astype(np.float64)
    mean = wide.mean(axis=(-3, -2), keepdims=True)
    return np.asarray((wide - mean) * float(factor) + mean)


# ---- CombinedNonMaxSuppression (core/kernels/image/non_max_suppression_op.cc)


def suppressed_shapes(o: FlexOptions, inputs: Specs) -> ResultShapes:
    boxes, scores, each, total = (spec for spec in inputs[:4])
    fits = len(boxes.shape) == 4 and len(scores.shape) == 3 and boxes.shape[:2] == scores.shape[:2]
    if not fits or boxes.shape[2] not in (1, scores.shape[2]) or boxes.shape[3] != 4:
        raise ValueError(f"boxes {list(boxes.shape)} for scores {list(scores.shape)}")
    batch, _, classes = scores.shape
    if total.const is None or (o.pad_per_class and each.const is None):
        return None, None, None, (batch,)
    n = _count(o, classes, np.asarray(each.const), np.asarray(total.const))
    return (batch, n, 4), (batch, n), (batch, n), (batch,)


def _count(o: FlexOptions, classes: int, each: Array, total: Array) -> int:
    """How many boxes the result has for an image."""
    n = int(total.reshape(()))
    return min(n, int(each.reshape(())) * classes) if o.pad_per_class else n


def suppress(
    o: FlexOptions,
    boxes: Array,
    scores: Array,
    each: Array,
    total: Array,
    iou: Array,
    least: Array,
) -> tuple[Array, ...]:
    """The best boxes of each class that do not overlap better ones; of these, the best of all."""
    if min(each, total) < 1:
        raise ValueError(f"{[int(each), int(total)]} boxes of a class and of all: expected some")
    batch, _, classes = scores.shape
    n = _count(o, classes, each, total)
    y, counts = np.zeros((batch, n, 6), np.float32), np.zeros(batch, int)
    for image in range(batch):
        selected = []
        for class_ in range(classes):
            of_class = boxes[image, :, class_ if boxes.shape[2] > 1 else 0]
            kept = _kept(of_class, scores[image, :, class_], float(iou), float(least), int(each))
            selected += [(*of_class[i], scores[image, i, class_], class_) for i in kept]
        selected = sorted(selected, key=lambda row: -row[4])[:n]
        counts[image] = len(selected)
        y[image, : len(selected)] = np.reshape(selected, (-1, 6))
    corners = np.clip(y[..., :4], 0, 1) if o.clip_boxes else y[..., :4]
    return corners, y[..., 4], y[..., 5], counts


def _kept(boxes: Array, scores: Array, iou: float, least: float, most: int) -> list[int]:
    kept: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        apart = all(_overlap(boxes[i], boxes[j]) <= iou for j in kept)
        if len(kept) < most and scores[i] > least and apart:
            kept.append(int(i))
    return kept


def _overlap(a: Array, b: Array) -> np.float32:
    """Intersection over union; corners come in any order."""
    (a1, a2), (b1, b2) = (
        (np.minimum(box[:2], box[2:]), np.maximum(box[:2], box[2:])) for box in (a, b)
    )
    areas = np.prod(a2 - a1), np.prod(b2 - b1)
    if min(areas) <= 0:
        return np.float32(0)
    inner = np.prod(np.maximum(np.minimum(a2, b2) - np.maximum(a1, b1), 0))
    return np.float32(inner / (areas[0] + areas[1] - inner))


KERNELS = kernels(
    {
        "AdjustContrastv2": (adjust_contrast, images_shape),
        "AdjustHue": (adjust_hue, adjusted_shape),
        "AdjustSaturation": (adjust_saturation, adjusted_shape),
        "HSVToRGB": (to_rgb, colors_shape),
        "RGBToHSV": (to_hsv, colors_shape),
        "CropAndResize": (crop_and_resize, crop_shape),
        "ExtractImagePatches": (patches, patches_shape),
        "ImageProjectiveTransformV2": (project, projected_shape),
        "ImageProjectiveTransformV3": (project, projected_shape),
        "ResizeBicubic": (resize_bicubic, bicubic_shape),
        "CombinedNonMaxSuppression": (suppress, suppressed_shapes),
    }
)
