"""Custom operators of MediaPipe's face meshes: landmarks, the crop that they span, its pixels.

A landmark is (x, y) or (x, y, z) in pixels. A matrix [4, 4] takes a pixel of the crop to one of the
image; only its upper rows count, and z moves nothing. Landmarks of version 1 have four dimensions,
those of version 2 have three.

Sources: mediapipe/util/tflite/operations/{landmarks_to_transform_matrix,transform_landmarks,
transform_tensor_bilinear}.cc; options: tensorflow/lite/delegates/gpu/common/mediapipe/*.cc.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common.signature import REAL, SAME, typed_rule
from jaxdelegate.op_lowering.custom.options import (
    LandmarksToMatrixOptions,
    TransformLandmarksOptions,
    TransformTensorOptions,
)
from jaxdelegate.op_lowering.rule import Function, Op, first_reason, table
from jaxdelegate.op_lowering.spec import TensorSpec

_FARTHEST = 100000  # where version 1 begins to look for the edges of the crop


def _why_not_image(x: TensorSpec, *ranks: int) -> str | None:
    if len(x.shape) in ranks and x.shape[0] == 1:
        return None
    return f"{x.name!r} {list(x.shape)} is not one image of rank {' or '.join(map(str, ranks))}"


def _why_not_matrix(matrix: TensorSpec) -> str | None:
    is_matrix = math.prod(matrix.shape) == 16
    return None if is_matrix else f"{matrix.name!r} {list(matrix.shape)} is not a matrix [4, 4]"


def _why_not_to_matrix(op: Op[LandmarksToMatrixOptions]) -> str | None:
    x, o = op.inputs[0], op.options
    reason = _why_not_image(x, 3, 4)
    if reason is not None:
        return reason
    is_first = len(x.shape) == 4
    subset = o.subset if is_first else o.subset_idxs
    read = [o.left_rotation_idx, o.right_rotation_idx, *subset]
    n_landmarks, rest = divmod(math.prod(x.shape), 3)
    return first_reason(
        f"{x.name!r} {list(x.shape)} does not hold (x, y, z)" if rest else None,
        None if subset else "no landmarks are in the crop",
        None
        if min(read) >= 0 and max(read) < n_landmarks
        else f"landmarks {min(read)} to {max(read)} are read of {n_landmarks}",
        _why_not_first_crop(o) if is_first else _why_not_crop(o),
    )


def _why_not_first_crop(o: LandmarksToMatrixOptions) -> str | None:
    sizes = (*o.input_hw, *o.output_hw)
    if len(o.input_hw) != 2 or len(o.output_hw) != 2 or min(sizes) < 1 or min(o.output_hw) < 2:
        return f"sizes {list(o.input_hw)} and {list(o.output_hw)} are not those of an image"
    if o.landmarks_range < 1 or o.bbox_size_multiplier == 0:
        return f"the range is {o.landmarks_range}, the multiplier {o.bbox_size_multiplier}"
    return None


def _why_not_crop(o: LandmarksToMatrixOptions) -> str | None:
    if min(o.output_height, o.output_width) < 1 or min(o.scale_x, o.scale_y) <= 0:
        return (
            f"a crop of {o.output_height} x {o.output_width} pixels, "
            f"scaled by {o.scale_y} x {o.scale_x}"
        )
    return None


def _lower_to_matrix(op: Op[LandmarksToMatrixOptions]) -> Function:
    o, is_first, dtype = op.options, len(op.inputs[0].shape) == 4, op.inputs[0].dtype
    if is_first:
        last, crop = (np.array(hw[::-1], dtype) - 1 for hw in (o.input_hw, o.output_hw))
        image, steps = last / o.landmarks_range, o.bbox_size_multiplier / crop
        farthest = float(_FARTHEST)
    else:
        crop = np.array([o.output_width, o.output_height], dtype)
        image, steps = np.ones(2, dtype), np.array([o.scale_x, o.scale_y], dtype) / crop
        farthest = math.inf
    spanned = np.array(o.subset if is_first else o.subset_idxs)

    def turn(x: jax.Array, y: jax.Array) -> jax.Array:
        if is_first:
            return -jnp.arctan(y / x)
        return o.target_rotation_radians - jnp.arctan2(y, x)

    def to_matrix(landmarks: jax.Array) -> tuple[jax.Array]:
        points = landmarks.reshape(-1, 3)[:, :2]
        angle = turn(*(points[o.right_rotation_idx] - points[o.left_rotation_idx]))
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        x, y = points[spanned].T
        upright = jnp.stack([x * cos - y * sin, x * sin + y * cos])
        high = jnp.max(upright, axis=1, initial=-farthest)
        low = jnp.min(upright, axis=1, initial=farthest)
        (u, v), (across, down) = (high + low) / 2, (high - low) * steps
        center = image * jnp.stack([u * cos + v * sin, v * cos - u * sin])
        turned = jnp.stack(
            [jnp.stack([across * cos, down * sin]), jnp.stack([-across * sin, down * cos])]
        )
        linear = image[:, None] * turned  # (column, row) in the crop -> (x, y)
        shift = center - linear[:, 0] * (crop[0] / 2) - linear[:, 1] * (crop[1] / 2)
        matrix = jnp.eye(4, dtype=landmarks.dtype).at[:2, :2].set(linear).at[:2, 3].set(shift)
        return (matrix.reshape(1, 4, 4),)

    return to_matrix


def _why_not_landmarks(op: Op[TransformLandmarksOptions]) -> str | None:
    x, matrix = op.inputs[:2]
    reason = _why_not_image(x, 3, 4) or _why_not_matrix(matrix)
    if reason is not None:
        return reason
    n = _dimensions(op)
    return first_reason(
        None if n in (2, 3) and x.shape[-1] % n == 0 else f"landmarks of {n} dimensions",
        "the scale is 0" if op.options.scale == 0 else None,
    )


def _dimensions(op: Op[TransformLandmarksOptions]) -> int:
    shape = op.inputs[0].shape
    return op.options.dimensions if len(shape) == 4 else shape[2]


def _lower_landmarks(op: Op[TransformLandmarksOptions]) -> Function:
    shape, n = op.inputs[0].shape, _dimensions(op)
    scale = op.options.scale if len(shape) == 4 else 1.0

    def transform_landmarks(landmarks: jax.Array, matrix: jax.Array) -> tuple[jax.Array]:
        points = landmarks.reshape(-1, n)
        x, y = points[:, 0], points[:, 1]
        rows = matrix.reshape(4, 4)[:2]
        moved = [row[0] * x + row[1] * y + row[3] * scale for row in rows]
        return (jnp.stack([*moved, *points.T[2:]], axis=1).reshape(shape),)

    return transform_landmarks


def _why_not_tensor(op: Op[TransformTensorOptions]) -> str | None:
    x, matrix = op.inputs[:2]
    o = op.options
    size = o.output_size or (o.output_height, o.output_width)
    return first_reason(
        _why_not_image(x, 4),
        _why_not_matrix(matrix),
        None if o.mode == "bilinear" else f"mode {o.mode!r} is not 'bilinear'",
        None if len(size) == 2 and min(size) > 0 else f"the result's size is {list(size)}",
    )


def _lower_tensor(op: Op[TransformTensorOptions]) -> Function:
    _, height, width, _ = op.inputs[0].shape
    n_rows, n_columns = op.outputs[0].shape[1:3]
    rows = np.arange(n_rows, dtype=op.inputs[0].dtype)[:, None]
    columns = np.arange(n_columns, dtype=op.inputs[0].dtype)[None]
    center = 0 if op.options.output_size else 0.5  # the middle of a pixel: version 1 aligns edges

    def place(row: jax.Array) -> jax.Array:
        start = row[3] + (row[0] * center + row[1] * center - center)
        return row[0] * columns + (row[1] * rows + start)

    def transform_tensor(image: jax.Array, matrix: jax.Array) -> tuple[jax.Array]:
        x, y = (place(row) for row in matrix.reshape(4, 4)[:2])
        is_inside = (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)
        left, top = jnp.floor(x), jnp.floor(y)
        across, down = (x - left)[..., None], (y - top)[..., None]
        left, top = left.astype(np.int32), top.astype(np.int32)

        def line(row: jax.Array) -> jax.Array:
            near = image[0].at[row, left].get(mode="fill", fill_value=0)
            far = image[0].at[row, left + 1].get(mode="fill", fill_value=0)
            return (1 - across) * near + across * far

        mixed = down * line(top + 1) + (1 - down) * line(top)
        return (jnp.where(is_inside[..., None], mixed, 0)[None],)

    return transform_tensor


RULES = table(
    typed_rule(
        "Landmarks2TransformMatrix", [REAL], _lower_to_matrix, _why_not_to_matrix, max_version=2
    ),
    typed_rule(
        "TransformLandmarks", [REAL, SAME], _lower_landmarks, _why_not_landmarks, max_version=2
    ),
    typed_rule(
        "TransformTensorBilinear", [REAL, SAME], _lower_tensor, _why_not_tensor, max_version=2
    ),
)
