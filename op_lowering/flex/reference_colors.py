"""Colors of images (core/kernels/{colorspace_op,image/adjust_*_op}.cc), in float64."""

import colorsys
from collections.abc import Callable

import numpy as np

from jaxdelegate.op_lowering.flex.reference_named import named
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel

_Shapes = tuple[Shape | None, ...]
_Color = tuple[float, float, float]


def colors_shape(_o: FlexOptions, inputs: Specs) -> _Shapes:
    shape = inputs[0].shape
    if shape[-1:] != (3,):
        raise ValueError(f"{list(shape)} is not of colors: expected 3 in the last dimension")
    return (shape,)


def adjusted_shape(o: FlexOptions, inputs: Specs) -> _Shapes:
    _check_number(inputs)
    return colors_shape(o, inputs)


def images_shape(_o: FlexOptions, inputs: Specs) -> _Shapes:
    _check_number(inputs)
    return (inputs[0].shape,)


def _check_number(inputs: Specs) -> None:
    x, number = inputs
    if len(x.shape) < 3 or number.shape:
        raise ValueError(f"images {list(x.shape)} by {list(number.shape)}: expected one number")


def _each(function: Callable[[_Color], _Color], x: Array, outputs: Specs) -> tuple[Array]:
    colors = x.reshape(-1, 3).astype(np.float64)
    y = np.array([function((r, g, b)) for r, g, b in colors.tolist()])
    return (y.reshape(x.shape).astype(outputs[0].dtype),)


def to_hsv(_o: FlexOptions, _inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    return _each(lambda color: colorsys.rgb_to_hsv(*color), x, outputs)


def to_rgb(_o: FlexOptions, _inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """Hues outside 0 to 1 are those of the nearest end."""

    def rgb(color: _Color) -> _Color:
        h, s, v = color
        return colorsys.hsv_to_rgb(min(max(h, 0), 1), s, v)

    return _each(rgb, x, outputs)


def adjust_hue(
    _o: FlexOptions, _inputs: Specs, outputs: Specs, x: Array, delta: Array
) -> tuple[Array]:
    def adjusted(color: _Color) -> _Color:
        h, s, v = colorsys.rgb_to_hsv(*color)
        return colorsys.hsv_to_rgb((h + float(delta)) % 1, s, v)

    return _each(adjusted, x, outputs)


def adjust_saturation(
    _o: FlexOptions, _inputs: Specs, outputs: Specs, x: Array, scale: Array
) -> tuple[Array]:
    def adjusted(color: _Color) -> _Color:
        h, s, v = colorsys.rgb_to_hsv(*color)
        return colorsys.hsv_to_rgb(h, min(max(s * float(scale), 0), 1), v)

    return _each(adjusted, x, outputs)


def adjust_contrast(
    _o: FlexOptions, _inputs: Specs, outputs: Specs, x: Array, factor: Array
) -> tuple[Array]:
    wide = x.astype(np.float64)
    mean = wide.mean(axis=(-3, -2), keepdims=True)
    return (((wide - mean) * float(factor) + mean).astype(outputs[0].dtype),)


KERNELS = named(
    {
        f"{FLEX}AdjustContrastv2": Kernel(adjust_contrast, images_shape),
        f"{FLEX}AdjustHue": Kernel(adjust_hue, adjusted_shape),
        f"{FLEX}AdjustSaturation": Kernel(adjust_saturation, adjusted_shape),
        f"{FLEX}HSVToRGB": Kernel(to_rgb, colors_shape),
        f"{FLEX}RGBToHSV": Kernel(to_hsv, colors_shape),
    }
)
