"""Padding: PAD, PADV2, MIRROR_PAD."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.derivatives import padded
from jaxdelegate.op_lowering.common.movement import integers, zero_point
from jaxdelegate.op_lowering.common.signature import ANY, MOVED, moving_rule
from jaxdelegate.op_lowering.padding.options import MirrorPadOptions
from jaxdelegate.op_lowering.records.enums import MirrorPadMode
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.rule import Function, Op, first_reason, optional, table, why_not_const
from jaxdelegate.op_lowering.spec import TensorSpec

_Widths = list[tuple[int, int]]  # before and after, for each dimension


def _why_not_widths(x: TensorSpec, paddings: TensorSpec) -> str | None:
    shape = (len(x.shape), 2)
    reason = first_reason(
        why_not_const(paddings),
        None if paddings.dtype.kind in "iub" else f"paddings are {paddings.dtype}, not integers",
        None if paddings.shape == shape else f"paddings must be {list(shape)}",
    )
    if reason is not None:
        return reason
    return "paddings must not be negative" if min(integers(paddings), default=0) < 0 else None


def _widths(paddings: TensorSpec) -> _Widths:
    flat = integers(paddings)
    return list(zip(flat[::2], flat[1::2], strict=True))


def _why_not_pad(op: Op[Options]) -> str | None:
    x, fill = op.inputs[0], optional(op.inputs, 2)
    one = fill is None or math.prod(fill.shape) == 1
    reason = None if one else "the value to pad with must be one value"
    return _why_not_widths(x, op.inputs[1]) or reason


def _lower_pad(op: Op[Options]) -> Function:
    widths = [(low, high, 0) for low, high in _widths(op.inputs[1])]
    zero = np.asarray(zero_point(op.outputs[0])).astype(op.outputs[0].dtype)

    def pad(x: jax.Array, _widths: jax.Array, fill: jax.Array | None = None) -> tuple[jax.Array]:
        return (lax.pad(x, zero, widths) if fill is None else padded(x, fill, widths),)

    return pad


def _why_not_mirror_pad(op: Op[MirrorPadOptions]) -> str | None:
    x, paddings = op.inputs[:2]
    reason = _why_not_widths(x, paddings)
    if reason is not None:
        return reason
    edge = _edge(op.options)
    is_long = any(max(w) > n - edge for n, w in zip(x.shape, _widths(paddings), strict=True))
    return f"{op.options.mode.name} paddings are longer than what they mirror" if is_long else None


def _edge(o: MirrorPadOptions) -> int:
    """1 if the mirror image leaves out the border itself (kernels/mirror_pad.cc)."""
    return int(o.mode is MirrorPadMode.REFLECT)


def _lower_mirror_pad(op: Op[MirrorPadOptions]) -> Function:
    widths, edge = _widths(op.inputs[1]), _edge(op.options)

    def mirror_pad(x: jax.Array, _widths: jax.Array) -> tuple[jax.Array]:
        for axis, (low, high) in enumerate(widths):
            n = x.shape[axis]
            before = lax.slice_in_dim(x, edge, edge + low, axis=axis)
            after = lax.slice_in_dim(x, n - edge - high, n - edge, axis=axis)
            parts = [lax.rev(before, [axis]), x, lax.rev(after, [axis])]
            x = jnp.concatenate([p for p in parts if p.shape[axis]] or [x], axis)
        return (x,)

    return mirror_pad


RULES = table(
    moving_rule("PAD", 6, [MOVED, ANY, MOVED], _lower_pad, _why_not_pad, arity=2),
    moving_rule("PADV2", 6, [MOVED, ANY, MOVED], _lower_pad, _why_not_pad, arity=2),
    moving_rule("MIRROR_PAD", 3, [MOVED, ANY], _lower_mirror_pad, _why_not_mirror_pad),
)
