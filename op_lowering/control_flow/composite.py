"""STABLEHLO_COMPOSITE: its decomposition, or cuDNN's attention in half precision on a GPU."""

import dataclasses
import math

from jaxdelegate.op_lowering.control_flow.options import StableHLOCompositeOptions
from jaxdelegate.op_lowering.control_flow.rule import calling
from jaxdelegate.op_lowering.fused.attention import by_cudnn, is_by_cudnn, is_mask_shape
from jaxdelegate.op_lowering.records.custom import FlexbufferOptions
from jaxdelegate.op_lowering.rule import Function, Op, OpRule, optional, table

_ATTENTION = "odml.scaled_dot_product_attention"


@dataclasses.dataclass(frozen=True)
class AttentionAttributes(FlexbufferOptions):
    """Attributes of `odml.scaled_dot_product_attention`; NaN and 0: absent."""

    scale: float = math.nan
    logit_cap: float = 0.0


_decomposition: OpRule[StableHLOCompositeOptions] = calling(
    "STABLEHLO_COMPOSITE", lambda o: o.decomposition_subgraph_index
)


def _lower(op: Op[StableHLOCompositeOptions]) -> Function:
    decomposed = _decomposition.lower(op)
    scale = fused_scale(op)
    if scale is None:
        return decomposed
    return by_cudnn(scale, op.context.precision.operand_dtype(op.inputs[0].dtype), decomposed)


STABLEHLO_COMPOSITE = dataclasses.replace(_decomposition, lower=_lower)


def fused_scale(op: Op[StableHLOCompositeOptions]) -> float | None:
    """The factor of the logits if cuDNN computes the composite as attention, else None."""
    if op.options.name != _ATTENTION or not _fits(op):
        return None
    try:
        attributes = AttentionAttributes.from_bytes(op.options.composite_attributes)
    except ValueError:
        return None
    is_plain = math.isfinite(attributes.scale) and attributes.logit_cap == 0
    return attributes.scale if is_plain else None


def _fits(op: Op[StableHLOCompositeOptions]) -> bool:
    """Query and output [B, T, N, H], key and value [B, S, K, H], mask [B, N, T, S] or with ones."""
    if len(op.inputs) not in (3, 4) or any(spec is None for spec in op.inputs[:3]):
        return False
    q, k, v = op.inputs[:3]
    y, mask = op.outputs[0], optional(op.inputs, 3)
    if any(len(spec.shape) != 4 for spec in (q, k, v, y)):
        return False
    (b, t, n, h), (_, s, heads, _) = q.shape, k.shape
    return (
        len({spec.dtype for spec in (q, k, v, y)}) == 1
        and k.shape == v.shape == (b, s, heads, h)
        and y.shape == (b, t, n, h)
        and n % max(heads, 1) == 0
        and is_by_cudnn(op.context, q.dtype, h, mask)
        and (mask is None or is_mask_shape(mask.shape, (b, n, t, s)))
    )


RULES = table(STABLEHLO_COMPOSITE)
