"""Fields that several options tables have in common, for functions of any of them."""

from typing import Protocol

from jaxdelegate.op_lowering.records.enums import ActivationFunctionType, Padding


class Activated(Protocol):
    @property
    def fused_activation_function(self) -> ActivationFunctionType: ...


class QuantizesInputs(Protocol):
    """Dynamic range kernels quantize the activations, symmetrically or not."""

    @property
    def asymmetric_quantize_inputs(self) -> bool: ...


class Pool2D(Protocol):
    @property
    def padding(self) -> Padding: ...

    @property
    def stride_h(self) -> int: ...

    @property
    def stride_w(self) -> int: ...

    @property
    def filter_height(self) -> int: ...

    @property
    def filter_width(self) -> int: ...
