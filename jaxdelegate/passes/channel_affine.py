"""MUL, DIV, ADD and SUB by a constant for each channel, next to a convolution or matrix product.

Converted normalizations leave them in a file, as scale * x + offset. Scale and offset can be folded
into the filter and bias of the product.
"""

import dataclasses

import numpy as np

from jaxdelegate.op_lowering.options import record_of

ARITHMETIC = ("MUL", "DIV", "ADD", "SUB")


@dataclasses.dataclass(frozen=True)
class Product:
    """A convolution or matrix product: the positions of its inputs, and the axes of its filter."""

    x: int  # multiplied by the filter
    filter: int
    bias: int  # may be absent
    units: int  # the filter's axis of output channels
    depth: int | None  # its axis of input channels (of a group); None in a depthwise filter

    @property
    def rank(self) -> int:
        return max(self.units, self.depth or 0) + 1


# Axes of the filter: output channels, input channels.
_AXES: dict[str, tuple[int, int | None]] = {
    "CONV_2D": (0, 3),
    "DEPTHWISE_CONV_2D": (3, None),
    "CONV_3D": (4, 3),
    "TRANSPOSE_CONV": (0, 3),
    "FULLY_CONNECTED": (0, 1),
}


def _product(operator: str, units: int, depth: int | None) -> Product:
    product = record_of(operator).product
    assert product is not None
    assert product.bias is not None  # all of these take a bias
    x, filter_, bias = product.bias
    return Product(x=x, filter=filter_, bias=bias, units=units, depth=depth)


PRODUCTS = {operator: _product(operator, *axes) for operator, axes in _AXES.items()}


def by_channel(constant: np.ndarray, channels: int) -> np.ndarray | None:
    """A constant that is broadcast over tensors [..., channels] as float64 [channels].

    None if it varies along other axes, or is not finite.
    """
    is_scalar = constant.size == 1
    if not is_scalar and (constant.size != channels or constant.shape[-1] != channels):
        return None
    if not np.isfinite(constant).all():
        return None
    return np.broadcast_to(constant.reshape(-1).astype(np.float64), (channels,))


def affine(
    operator: str, c: np.ndarray, *, is_first: bool = False
) -> tuple[np.ndarray, np.ndarray] | None:
    """Scale and offset, float64 [channels], that replace an operator with the constant `c`.

    A divisor of zero leads to results that are not finite. `is_first`: `c` is the first input. None
    if the operator is not affine (c / x).
    """
    one, zero = np.ones_like(c), np.zeros_like(c)
    if operator == "MUL":
        return c, zero
    if operator == "ADD":
        return one, c
    if operator == "SUB":
        return (-one, c) if is_first else (one, -c)
    with np.errstate(divide="ignore"):
        return None if is_first else (1 / c, zero)
