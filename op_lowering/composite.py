"""STABLEHLO_COMPOSITE: its decomposition, or a fused form of the names for which that pays.

Whatever its name, a composite carries a subgraph that says what it computes. Fused so far:
`odml.scaled_dot_product_attention` in half precision on a GPU, by cuDNN, which keeps logits and
softmax in float32. In float32 XLA's own attention equals the decomposition to the bit and is no
faster.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.control_flow import calling
from jaxdelegate.op_lowering.dtypes import HALVES
from jaxdelegate.op_lowering.narrowing import narrow
from jaxdelegate.op_lowering.options import FlexbufferOptions, StableHLOCompositeOptions
from jaxdelegate.op_lowering.rule import Function, LoweringContext, optional
from jaxdelegate.op_lowering.spec import Specs, TensorSpec

_ATTENTION = "odml.scaled_dot_product_attention"
_HEAD_SIZES = range(8, 129, 8)  # what cuDNN's flash attention takes on every GPU that has it


@dataclasses.dataclass(frozen=True)
class AttentionAttributes(FlexbufferOptions):
    """What `odml.scaled_dot_product_attention` says about itself; NaN and 0: not said."""

    scale: float = math.nan
    logit_cap: float = 0.0


_decomposition = calling(
    "STABLEHLO_COMPOSITE", StableHLOCompositeOptions, lambda o: o.decomposition_subgraph_index
)


def _lower(
    context: LoweringContext, o: StableHLOCompositeOptions, inputs: Specs, outputs: Specs
) -> Function:
    decomposed = _decomposition.lower(context, o, inputs, outputs)
    scale = fused_scale(context, o, inputs, outputs)
    if scale is None:
        return decomposed
    return _attention(scale, context.precision.factor(inputs[0].dtype), decomposed)


STABLEHLO_COMPOSITE = dataclasses.replace(_decomposition, lower=_lower)


def fused_scale(
    context: LoweringContext, o: StableHLOCompositeOptions, inputs: Specs, outputs: Specs
) -> float | None:
    """The factor of the logits if the composite is an attention that cuDNN computes, else None."""
    if context.platform != "gpu" or o.name != _ATTENTION or not _fits(context, inputs, outputs):
        return None
    try:
        attributes = AttentionAttributes.from_bytes(o.composite_attributes)
    except ValueError:
        return None
    is_plain = math.isfinite(attributes.scale) and attributes.logit_cap == 0
    return attributes.scale if is_plain else None


def _fits(context: LoweringContext, inputs: Specs, outputs: Specs) -> bool:
    """Query and output [B, T, N, H], key and value [B, S, K, H], mask [B, N, T, S] or with ones."""
    if len(inputs) not in (3, 4) or any(spec is None for spec in inputs[:3]):
        return False
    q, k, v = inputs[:3]
    y = outputs[0]
    floats: list[TensorSpec] = [q, k, v, y]
    if any(len(s.shape) != 4 or context.precision.factor(s.dtype) not in HALVES for s in floats):
        return False
    (b, t, n, h), (_, s, heads, _) = floats[0].shape, floats[1].shape
    return (
        len({spec.dtype for spec in floats}) == 1
        and floats[1].shape == floats[2].shape == (b, s, heads, h)
        and floats[3].shape == (b, t, n, h)
        and n % max(heads, 1) == 0
        and h in _HEAD_SIZES
        and _is_mask(optional(inputs, 3), q.dtype, (b, n, t, s))
    )


def _is_mask(mask: TensorSpec | None, dtype: np.dtype, logits: tuple[int, ...]) -> bool:
    """Whether it is added to the logits as it is; a boolean one selects, which is not fused."""
    if mask is None:
        return True
    fits = [m in (1, size) for m, size in zip(mask.shape, logits, strict=False)]
    return mask.dtype in (*HALVES, dtype) and len(fits) == len(mask.shape) == 4 and all(fits)


def _attention(scale: float, factor: np.dtype, decomposed: Function) -> Function:
    def attention(q: Any, k: Any, v: Any, mask: Any = None) -> tuple[jax.Array]:
        bias = None
        if mask is not None:  # cuDNN wants both sequence lengths written out
            bias = jnp.broadcast_to(mask, (*mask.shape[:2], q.shape[1], k.shape[1]))
            bias = narrow(bias, factor)
        try:
            with jax.numpy_dtype_promotion("standard"):  # jax's own code mixes dtypes
                y = jax.nn.dot_product_attention(
                    narrow(q, factor),
                    narrow(k, factor),
                    narrow(v, factor),
                    bias,
                    scale=scale,
                    implementation="cudnn",
                ).astype(q.dtype)
        except (NotImplementedError, RuntimeError):  # this GPU or this cuDNN has no such kernel
            arrays = (q, k, v) if mask is None else (q, k, v, mask)
            (y,) = decomposed(*arrays)
        return (y,)

    return attention
