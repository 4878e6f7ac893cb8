"""Parameters of operators that no file holds: rewrites make them of several that one does."""

from dataclasses import dataclass

from jaxdelegate.op_lowering.options.base import Options
from jaxdelegate.op_lowering.options.enums import ActivationFunctionType


@dataclass(frozen=True)
class FusedOptions(Options):
    """No table of the schema: the operator stands for several of the file's."""


@dataclass(frozen=True)
class LayerNormOptions(FusedOptions):
    """x over the root of its variance: inputs x, scale, offset; the latter two may be absent.

    Attributes:
        axes: of `x`, over which mean and variance are taken.
        epsilon: added to the variance.
        is_centered: whether the mean is taken off first; else the mean square is the variance.
        fused_activation_function: of the result.
    """

    axes: tuple[int, ...] = ()
    epsilon: float = 0.0
    is_centered: bool = True
    fused_activation_function: ActivationFunctionType = ActivationFunctionType.NONE


@dataclass(frozen=True)
class AttentionOptions(FusedOptions):
    """softmax(scale * q k^T + mask) v: inputs q, k, v and perhaps a mask.

    Attributes:
        logits: the shape of the softmax, [B, N, T, S] or [B, T, S]; q [..., T, H], k and v
            [..., S, H] may have their leading dimensions in one.
        scale: of the logits.
        keys_last: whether k is [..., H, S] instead.
        values_last: whether v is.
    """

    logits: tuple[int, ...] = ()
    scale: float = 1.0
    keys_last: bool = False
    values_last: bool = False
