"""Custom operators of MediaPipe's face meshes, as its matrices and loops.

Sources: mediapipe/util/tflite/operations/{landmarks_to_transform_matrix,transform_landmarks,
transform_tensor_bilinear}.cc; options: tensorflow/lite/delegates/gpu/common/mediapipe/*.cc.
"""

import functools

import numpy as np

from jaxdelegate.op_lowering.custom.options import (
    LandmarksToMatrixOptions,
    TransformLandmarksOptions,
    TransformTensorOptions,
)
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel, same_shape, without_specs


def matrix_shape(_o: Options, _inputs: Specs) -> tuple[Shape | None, ...]:
    return ((1, 4, 4),)


def landmarks_to_matrix(o: LandmarksToMatrixOptions, x: Array) -> Array:
    """The matrix from the pixels of the crop around landmarks to those of the image."""
    name = "Landmarks2TransformMatrix"
    _check(name, x, 3, 4)
    indices = o.subset if x.ndim == 4 else o.subset_idxs
    if not indices:
        raise ValueError(f"{name}: the subset is empty")
    read = np.array([o.left_rotation_idx, o.right_rotation_idx, *indices])
    if read.min() < 0 or read.max() >= x.size // 3 or x.size % 3:
        raise ValueError(f"{name}: landmarks {read.tolist()} of {list(x.shape)}")
    points = x.reshape(-1, 3)[read, :2]
    matrix = (_first_crop if x.ndim == 4 else _crop)(o, points)
    return matrix.astype(x.dtype)[None]


def _first_crop(o: LandmarksToMatrixOptions, points: Array) -> Array:
    sizes = (*o.input_hw, *o.output_hw)
    if len(sizes) != 4 or min(sizes) < 1 or min(sizes[2:]) < 2:
        raise ValueError(f"Landmarks2TransformMatrix: sizes {list(sizes)}")
    if o.landmarks_range < 1 or o.bbox_size_multiplier == 0:
        raise ValueError(
            f"Landmarks2TransformMatrix: the range {o.landmarks_range}, "
            f"the multiplier {o.bbox_size_multiplier}"
        )
    height, width, crop_height, crop_width = (n - 1 for n in sizes)
    (x, y), limit = points[1] - points[0], np.full((1, 2), 100000, points.dtype)
    alpha = -np.arctan(y / x)
    rotated = points[2:] @ _rotation(alpha)[:2, :2].T
    high = np.concatenate([rotated, -limit]).max(axis=0)
    low = np.concatenate([rotated, limit]).min(axis=0)
    box = (high - low) * o.bbox_size_multiplier / o.landmarks_range
    middle = _rotation(-alpha)[:2, :2] @ (high + low) / 2 / o.landmarks_range * 2 - 1
    steps = (
        _moved(width / 2, height / 2) @ _scaled(width / 2, height / 2),  # to the image's pixels
        _moved(*middle) @ _rotation(-alpha),
        _scaled(*box),
        _moved(-1, -1) @ _scaled(2 / crop_width, 2 / crop_height),  # from the crop's pixels
    )
    return functools.reduce(np.matmul, steps)


def _crop(o: LandmarksToMatrixOptions, points: Array) -> Array:
    width, height = o.output_width, o.output_height
    if min(width, height) < 1 or min(o.scale_x, o.scale_y) <= 0:
        raise ValueError(
            f"Landmarks2TransformMatrix: {height} x {width}, scales {o.scale_y} x {o.scale_x}"
        )
    x, y = points[1] - points[0]
    turn = o.target_rotation_radians - np.arctan2(y, x)
    rotated = points[2:] @ _rotation(turn)[:2, :2].T
    high, low = rotated.max(axis=0), rotated.min(axis=0)
    center = _rotation(-turn)[:2, :2] @ (high + low) / 2
    scales = (high - low) * (o.scale_x / width, o.scale_y / height)
    steps = (_moved(*center), _rotation(-turn), _scaled(*scales), _moved(-width / 2, -height / 2))
    return functools.reduce(np.matmul, steps)


def _moved(x: float, y: float) -> Array:
    matrix = np.eye(4)
    matrix[:2, 3] = x, y
    return matrix


def _scaled(x: float, y: float) -> Array:
    return np.diag([x, y, 1.0, 1.0])


def _rotation(angle: float) -> Array:
    matrix = np.eye(4)
    matrix[0, :2] = np.cos(angle), -np.sin(angle)
    matrix[1, :2] = np.sin(angle), np.cos(angle)
    return matrix


def transform_landmarks(o: TransformLandmarksOptions, x: Array, matrix: Array) -> Array:
    """Landmarks (x, y) times the matrix; a third coordinate stays."""
    _check("TransformLandmarks", x, 3, 4)
    rows = _rows("TransformLandmarks", matrix)
    n, scale = (o.dimensions, o.scale) if x.ndim == 4 else (x.shape[2], 1.0)
    if n not in (2, 3) or x.shape[-1] % n or scale == 0:
        raise ValueError(f"TransformLandmarks: {list(x.shape)} of {n} dimensions, scale {scale}")
    y = x.reshape(-1, n).copy()
    y[:, :2] = y[:, :2] @ rows[:, :2].T + rows[:, 3] * scale
    return y.reshape(x.shape)


def tensor_shape(o: TransformTensorOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    size = o.output_size or (o.output_height, o.output_width)
    if len(size) != 2 or min(size) < 1 or len(inputs[0].shape) != 4:
        raise ValueError(f"TransformTensorBilinear of {list(inputs[0].shape)} to {list(size)}")
    return ((1, *size, inputs[0].shape[3]),)


def transform_tensor(
    o: TransformTensorOptions, _i: Specs, outputs: Specs, x: Array, matrix: Array
) -> tuple[Array]:
    """A pixel mixes the four around its place in the image; places outside are 0."""
    _check("TransformTensorBilinear", x, 4)
    if o.mode != "bilinear":
        raise ValueError(f"TransformTensorBilinear: mode {o.mode!r}")
    rows = _rows("TransformTensorBilinear", matrix).copy()
    if not o.output_size:  # version 2: pixels are where their centers are
        rows[:, 3] += rows[:, :2] @ np.array([0.5, 0.5], x.dtype) - x.dtype.type(0.5)
    y = np.zeros(outputs[0].shape, x.dtype)
    image = np.pad(x[0], ((0, 1), (0, 1), (0, 0)))
    for at in np.ndindex(*y.shape[1:3]):
        place = rows[:, :2] @ np.array(at[::-1], x.dtype) + rows[:, 3]
        if (place < 0).any() or (place > (x.shape[2] - 1, x.shape[1] - 1)).any():
            continue
        column, row = np.floor(place).astype(int)
        right, lower = place - (column, row)
        window = image[row : row + 2, column : column + 2]
        y[0, *at] = np.einsum("i,j,ijc->c", [1 - lower, lower], [1 - right, right], window)
    return (y,)


def _check(name: str, x: Array, *ranks: int) -> None:
    if x.dtype not in (np.float32, np.float64):
        raise TypeError(f"{name}: the input is {x.dtype}, not float32 or float64")
    if x.ndim not in ranks or x.shape[0] != 1:
        raise ValueError(f"{name}: the input is {list(x.shape)}, not one image")


def _rows(name: str, matrix: Array) -> Array:
    if matrix.size != 16:
        raise ValueError(f"{name}: the matrix is {list(matrix.shape)}, not [4, 4]")
    return matrix.reshape(4, 4)[:2]


KERNELS = {
    "Landmarks2TransformMatrix": Kernel(without_specs(landmarks_to_matrix), matrix_shape),
    "TransformLandmarks": Kernel(without_specs(transform_landmarks), same_shape),
    "TransformTensorBilinear": Kernel(transform_tensor, tensor_shape),
}
