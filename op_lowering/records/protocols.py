"""Fields that several options tables have in common, for functions of any of them."""

from typing import Protocol

from jaxdelegate.op_lowering.records.enums import ActivationFunctionType, Padding


class Activated(Protocol):
    """The kernel ends in an activation."""

    @property
    def fused_activation_function(self) -> ActivationFunctionType:
        """Of the result."""
        ...


class QuantizesInputs(Protocol):
    """Dynamic range kernels quantize the activations, symmetrically or not."""

    @property
    def asymmetric_quantize_inputs(self) -> bool:
        """Whether they get a zero point."""
        ...


class Pool2D(Protocol):
    """A window in two dimensions."""

    @property
    def padding(self) -> Padding:
        """Around the image."""
        ...

    @property
    def stride_h(self) -> int:
        """Of the window."""
        ...

    @property
    def stride_w(self) -> int:
        """Of the window."""
        ...

    @property
    def filter_height(self) -> int:
        """The window's."""
        ...

    @property
    def filter_width(self) -> int:
        """The window's."""
        ...
