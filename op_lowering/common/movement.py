"""Common parts of rules that only move data: which tensors XLA moves, axes, constant integers."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.dtypes import DTYPES
from jaxdelegate.op_lowering.records.operator import why_not_alike
from jaxdelegate.op_lowering.rule import LoweringContext, first_reason
from jaxdelegate.op_lowering.spec import TensorSpec

# XLA's CPU compiler aborts the process on a concatenation of values narrower than a byte.
_PACKED = frozenset(np.dtype(t) for t in (ml_dtypes.int2, ml_dtypes.int4, ml_dtypes.uint4))
_HANDLES = frozenset(np.dtype(t) for t in ("V4", "V8"))  # RESOURCE, VARIANT
_STRING = np.dtype(object)
MOVABLE = frozenset(DTYPES.values()) - _PACKED - _HANDLES - {_STRING}


def why_not_moved(context: LoweringContext, *specs: TensorSpec | None) -> str | None:
    """A reason if values of these tensors cannot be copied from one to another.

    Those that are not None must have one dtype that XLA supports and one quantization (scale and
    zero point; `quantized_dimension` may move with the data).
    """
    present = [spec for spec in specs if spec is not None]
    return first_reason(
        *(_why_not_held(context, spec) for spec in present),
        *(_why_not_alike(present[0], spec) for spec in present[1:]),
    )


def why_not_axis(axis: int, rank: int) -> str | None:
    return None if -rank <= axis < rank else f"axis {axis} is outside rank {rank}"


def why_not_indices(*specs: TensorSpec) -> str | None:
    wrong = next((s for s in specs if s.dtype.kind not in "iu" or s.dtype in _PACKED), None)
    return None if wrong is None else f"indices {wrong.name!r} are {wrong.dtype}, not integers"


def integers(spec: TensorSpec) -> tuple[int, ...]:
    """The values of a constant tensor, in row-major order."""
    return tuple(int(value) for value in np.ravel(np.asarray(spec.const)))


def with_last(
    x: jax.Array, updates: jax.Array, maximum: Callable[[jax.Array, jax.Array], jax.Array]
) -> jax.Array:
    """`x` with the last of the updates of each element, as LiteRT's kernels; a GPU keeps any.

    `maximum` scatters a number for each update, in row-major order, to an array like `x` and keeps
    the largest.
    """
    order = lax.iota(np.int32, updates.size).reshape(updates.shape)
    last = maximum(jnp.full(x.shape, -1, np.int32), order)
    return jnp.where(last < 0, x, jnp.take(updates.reshape(-1), last, mode="clip"))


def zero_point(spec: TensorSpec) -> int:
    """The integer of real zero, which is one for the tensor: padding supports no other kind."""
    quantization = spec.quantization
    if quantization is None or not spec.is_quantized or quantization.zero_point.size == 0:
        return 0
    return int(quantization.zero_point[0])


def why_not_present(*specs: TensorSpec | None) -> str | None:
    return "an input is missing" if any(spec is None for spec in specs) else None


def _why_not_held(context: LoweringContext, spec: TensorSpec) -> str | None:
    if spec.dtype not in MOVABLE:
        return f"{spec.name!r} is {spec.dtype}, which XLA cannot move"
    if spec.is_quantized and not context.enable_quant:
        return f"{spec.name!r} is quantized and enable_quant is off"
    if spec.blocks is not None:
        return f"{spec.name!r} is quantized in blocks, which do not move with the values"
    return None


def _why_not_alike(first: TensorSpec, spec: TensorSpec) -> str | None:
    if spec.dtype != first.dtype:
        return f"{spec.name!r} is {spec.dtype}, but {first.name!r} is {first.dtype}"
    return why_not_alike(first, spec)
