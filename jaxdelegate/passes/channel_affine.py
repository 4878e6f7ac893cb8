"""MUL, DIV, ADD and SUB by a constant of each channel, next to a convolution or matrix product.

Normalizations leave them in a file: scale x + offset. Both can join filter and bias of the product.
"""

import dataclasses

import numpy as np

from jaxdelegate.op_lowering.options import record_of

ARITHMETIC = ("MUL", "DIV", "ADD", "SUB")


@dataclasses.dataclass(frozen=True)
class Product:
    """A convolution or matrix product: its inputs by position, and the axes of its filter.

    Attributes:
        x: what is multiplied with the filter.
        filter: the filter.
        bias: the bias, which may be absent.
        units: the filter's axis of output channels.
        depth: its axis of input channels (of a group); None: there is one for each output channel.
    """

    x: int
    filter: int
    bias: int
    units: int
    depth: int | None

    @property
    def rank(self) -> int:
        """How many dimensions the filter has."""
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
    positions = record_of(operator).bias
    assert positions is not None  # all of these take a bias
    return Product(*positions, units, depth)


PRODUCTS = {operator: _product(operator, *axes) for operator, axes in _AXES.items()}


def by_channel(constant: np.ndarray, channels: int) -> np.ndarray | None:
    """A constant that is broadcast over tensors [..., channels] as float64 [channels].

    None: it has other values at other places, or some that are not finite.
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
    """What an operator with the constant `c`, float64 [channels], does with its other input.

    Args:
        operator: of `ARITHMETIC`.
        c: the constant; a divisor of zero leads to results that are not finite.
        is_first: whether it is the first input.

    Returns:
        scale and offset, float64 [channels]; None: it does something else (c / x).
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
