"""Products of a decode step with what surrounds them, as one kernel of an NVIDIA GPU.

Only rewrites create this operator, where `why_not` has no objection. A batch of `jax.vmap` may have
more rows than the kernel: XLA normalizes, and multiplies as it multiplies for FULLY_CONNECTED.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.basics import Array
from jaxdelegate.op_lowering.common.downcast import downcast
from jaxdelegate.op_lowering.common.products import Arithmetic
from jaxdelegate.op_lowering.common.row_batches import by_rows
from jaxdelegate.op_lowering.dtypes import HALVES
from jaxdelegate.op_lowering.fused.options import FusedProductsOptions
from jaxdelegate.op_lowering.matmul import stored_width, stored_width_triton
from jaxdelegate.op_lowering.matmul.stored_width import StoredFilter
from jaxdelegate.op_lowering.matmul.stored_width_triton import Around, Filter, Stored
from jaxdelegate.op_lowering.precision import FLOAT32
from jaxdelegate.op_lowering.records.enums import Gate
from jaxdelegate.op_lowering.rule import (
    Lowered,
    LoweringContext,
    Op,
    Prepare,
    first_reason,
    rule,
    table,
    why_not_dtype,
)
from jaxdelegate.op_lowering.spec import TensorSpec

_FIRST = 3  # the position of the first filter; biases follow their filters
_GATES: dict[Gate, Callable[[jax.Array], jax.Array]] = {
    Gate.LOGISTIC: lax.logistic,
    Gate.SWISH: jax.nn.silu,
    Gate.GELU: functools.partial(jax.nn.gelu, approximate=True),
}


@dataclasses.dataclass(frozen=True)
class _Product:
    """A filter [N, K] in a program, and the arithmetic of its product."""

    w: TensorSpec
    arithmetic: Arithmetic
    stored: StoredFilter | None  # None: of floats

    @classmethod
    def of(cls, context: LoweringContext, x: TensorSpec, w: TensorSpec) -> Self:
        columns, depth = w.shape
        specs = (x,) if w.is_quantized else (x, w)
        arithmetic = Arithmetic.of_dot(context, math.prod(x.shape) // depth, columns, *specs)
        return cls(w, arithmetic, StoredFilter.of(context, w) if w.is_quantized else None)

    @property
    def form(self) -> Stored:
        return Stored() if self.stored is None else self.stored.form

    @property
    def prepare(self) -> Prepare:
        return self._as_operand if self.stored is None else self.stored.stored

    @property
    def layout(self) -> Any:
        return self.arithmetic.operand if self.stored is None else self.stored.packed

    def why_not(self) -> str | None:
        if self.w.const is None:
            return f"{self.w.name!r} is computed at run time"
        if not stored_width_triton.fits(*self.w.shape):
            return f"{self.w.name!r} is too large"
        if self.w.is_quantized:
            is_taken = stored_width.supports(self.w)
            return None if is_taken else f"{self.w.name!r} is not read as the file stores it"
        is_short = self.w.dtype == FLOAT32 and self.arithmetic.operand in HALVES
        return None if is_short else f"{self.w.name!r} is not multiplied in 16 bits"

    def by_xla(self, context: LoweringContext, x: jax.Array, given: Filter) -> jax.Array:
        """float32 [rows, N], as FULLY_CONNECTED multiplies."""
        if self.stored is None:
            total = self.arithmetic.dot(x, given.w, ((1,), (1,)))
        else:
            total = self.stored.product(context, self.arithmetic, x, given.w, given.scales)
        return total if given.bias is None else total + given.bias[None, :]

    def _as_operand(self, w: Array) -> Array:
        reduced: Array = self.arithmetic.reduced(w)
        return reduced


def _products(op: Op[FusedProductsOptions]) -> list[_Product]:
    return [_Product.of(op.context, op.inputs[0], w) for w in op.inputs[_FIRST::2]]


def _why_not(op: Op[FusedProductsOptions]) -> str | None:
    context, x, y = op.context, op.inputs[0], op.outputs[0]
    if not context.kernels.triton or context.quant_mode != "float_view":
        return "only a kernel of NVIDIA GPUs computes it, on floats"
    depth = op.inputs[_FIRST].shape[1]
    products = _products(op)
    total = sum(math.prod(p.w.shape) for p in products)
    few = 0 < math.prod(x.shape) <= stored_width_triton.MOST_ROWS * depth
    alike = len({(p.form, p.w.shape) for p in products}) == 1 or op.options.gate is Gate.NONE
    return first_reason(
        *(why_not_dtype(spec, np.float32) for spec in (x, y)),
        None if few else f"{list(x.shape)} are more rows than the kernel takes",
        *(p.why_not() for p in products),
        None if total >= stored_width.MANY else "the filters are small",
        None if alike else "the filter of a gate differs from the other one",
        None if len({p.arithmetic.operand for p in products}) == 1 else "operands differ",
    )


def _lower(op: Op[FusedProductsOptions]) -> Lowered:
    products, outputs = _products(op), op.outputs
    depth = products[0].w.shape[1]
    places = range(_FIRST, len(op.inputs), 2)
    has_scales = [p.stored is not None for p in products]

    def run(
        x: jax.Array,
        scale: jax.Array | None,
        residual: jax.Array | None,
        *rest: Any,
        dtypes: Sequence[np.dtype] = (FLOAT32,) * len(outputs),
    ) -> tuple[jax.Array, ...]:
        scales = iter(rest[2 * len(products) :])
        filters = [
            Filter(w, next(scales) if has else None, bias)
            for w, bias, has in zip(rest[::2], rest[1::2], has_scales, strict=False)
        ]
        rows = [x.reshape(-1, depth)]
        if residual is not None:
            rows.append(residual.reshape(-1, outputs[0].shape[-1]))
        call = by_rows(functools.partial(_call, op, products, tuple(dtypes)), len(rows))
        found = call(*rows, None if scale is None else scale.reshape(-1), filters)
        return tuple(y.reshape(spec.shape) for y, spec in zip(found, outputs, strict=True))

    return Lowered(
        run,
        {place: p.prepare for place, p in zip(places, products, strict=True)},
        ("as stored", *(p.layout for p in products)),
        takes_reduced=True,
        takes_dtypes=True,
        derived=[
            (place, stored_width.scaling(p.w))
            for place, p in zip(places, products, strict=True)
            if p.stored is not None
        ],
    )


def _call(
    op: Op[FusedProductsOptions],
    products: Sequence[_Product],
    dtypes: tuple[np.dtype, ...],
    x: jax.Array,
    *rest: Any,
) -> tuple[jax.Array, ...]:
    """The results [rows, N] of x [rows, K], perhaps a residual [rows, N], scale and filters."""
    *residual, scale, filters = rest
    arithmetic, context = products[0].arithmetic, op.context
    gate, epsilon = _GATES.get(op.options.gate), op.options.epsilon
    if len(x) <= stored_width_triton.MOST_ROWS:
        around = Around(arithmetic.operand, dtypes, epsilon, gate, context.kernels.processors)
        forms = [p.form for p in products]
        return stored_width_triton.products(
            x, filters, scale, *residual, forms=forms, around=around
        )
    if scale is not None:
        x = stored_width_triton.normalized(x, scale, epsilon)
    rows = arithmetic.reduced(x)
    totals = [p.by_xla(context, rows, f) for p, f in zip(products, filters, strict=True)]
    if gate is not None:
        totals = [gate(totals[0]) * totals[1]]
    if residual:
        totals = [totals[0] + residual[0].astype(np.float32)]
    return tuple(
        downcast(y, dtype, infinities=False) for y, dtype in zip(totals, dtypes, strict=True)
    )


FUSED_PRODUCTS = rule("fused_products", 1, _why_not, _lower)

FUSED = table(FUSED_PRODUCTS)
