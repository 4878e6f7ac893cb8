"""FULLY_CONNECTED of floats by a filter in the width of the file, for GPUs and TPUs.

The float view would keep a float of two or four bytes for each integer of one byte or less: more
memory, and a product of few rows takes as long as its filter is read. Here the program holds the
integers and widens them where it multiplies. Sums are float32 and are scaled once for a channel, or
for each block (with operands of 16 bits the scales of blocks may multiply elements instead), so a
result differs from the view's by rounding only.

Operands have 16 bits, in which every such integer is exact. A float32 row is the sum of three rows
of bfloat16, exactly, which takes less time than a product of float32.
"""

import dataclasses
import functools
import math
import operator
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.op_lowering.common.basics import Array
from jaxdelegate.op_lowering.common.downcast import downcast
from jaxdelegate.op_lowering.common.dynamic_range import filter_scales, row_scales
from jaxdelegate.op_lowering.common.packed_weights import Packed
from jaxdelegate.op_lowering.common.products import Arithmetic, finish
from jaxdelegate.op_lowering.common.quantized_products import INT2, INT4, INT8, Tensors
from jaxdelegate.op_lowering.common.row_batches import by_rows
from jaxdelegate.op_lowering.matmul import stored_width_triton
from jaxdelegate.op_lowering.matmul.options import FullyConnectedOptions
from jaxdelegate.op_lowering.matmul.stored_width_triton import Around, Filter, Stored
from jaxdelegate.op_lowering.precision import BFLOAT16, FLOAT32
from jaxdelegate.op_lowering.rule import Lowered, LoweringContext, Op, Prepare
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.affine import block_parameters
from jaxdelegate.quant.packing import BITS

_FILTERS = frozenset((INT8, INT4, INT2))
MANY = 1 << 16  # elements: a smaller filter is a constant of the program, in floats
_PARTS = 3  # a bfloat16 has a third of a float32's bits


def supports(w: TensorSpec) -> bool:
    """Whether a filter [N, K] of the file is read as stored: a large one, without zero points.

    Its scales belong to rows or to blocks; rows fill whole bytes, blocks whole steps of the kernel.
    """
    q = w.quantization
    if w.const is None or q is None or w.dtype not in _FILTERS or len(w.shape) != 2:
        return False
    if math.prod(w.shape) < MANY or w.shape[1] % (8 // BITS.get(w.dtype, 8)):
        return False
    if w.blocks is None:
        by_row = q.scale.size == 1 or (q.quantized_dimension, q.scale.size) == (0, w.shape[0])
        return by_row and not q.zero_point.any()
    scale, points = block_parameters(w.blocks, w.shape)
    form = Stored(8 // BITS.get(w.dtype, 8), w.shape[1] // scale.shape[1])
    return not points.any() and stored_width_triton.divides(form, w.shape[1])


def lower_fully_connected(op: Op[FullyConnectedOptions]) -> Lowered:
    """[..., K] x [N, K] -> [rows, N], or [..., N] with keep_num_dims."""
    tensors, activation = Tensors.of(op), op.options.fused_activation_function
    w_spec, y_spec = tensors.w, tensors.y
    output_channels, depth = w_spec.shape
    rows = math.prod(tensors.x.shape) // depth
    arithmetic = Arithmetic.of_dot(op.context, rows, output_channels, tensors.x)
    filters = StoredFilter.of(op.context, w_spec)
    multiply = by_rows(functools.partial(filters.product, op.context, arithmetic))

    def fully_connected(x: jax.Array, w: jax.Array, *rest: Any) -> tuple[jax.Array]:
        whole = x.reshape(-1)[: rows * depth].reshape(rows, depth)
        bias = None if tensors.bias is None else rest[0]
        total = multiply(arithmetic.reduced(whole), w, rest[-1])
        return (finish(total, bias, activation, y_spec.dtype).reshape(y_spec.shape),)

    return Lowered(
        fully_connected,
        {1: filters.stored},
        ("as stored", filters.packed),
        takes_reduced=True,
        derived=((1, scaling(w_spec)),),
    )


@dataclasses.dataclass(frozen=True)
class StoredFilter:
    """A filter [N, K] in a program. `block` is how many elements share a scale; 0: a row's."""

    packed: Packed | None
    block: int

    @classmethod
    def of(cls, context: LoweringContext, w: TensorSpec) -> Self:
        """A TPU packs int4 itself."""
        is_packed = w.dtype in BITS and (context.platform == "gpu" or w.dtype == INT2)
        block = 0 if w.blocks is None else w.shape[1] // row_scales(w).shape[1]
        return cls(Packed(w.dtype, w.shape[1]) if is_packed else None, block)

    @property
    def form(self) -> Stored:
        return Stored(1 if self.packed is None else 8 // BITS[self.packed.dtype], self.block)

    def product(
        self,
        context: LoweringContext,
        arithmetic: Arithmetic,
        x: jax.Array,
        w: jax.Array,
        scales: jax.Array,
    ) -> jax.Array:
        """float32 [rows, N]: the scaled sums of x [rows, K]."""
        if len(x) == 1 and context.platform == "gpu":
            return self._sums_of_one_row(x, w, scales)
        takes = len(x) <= stored_width_triton.MOST_ROWS and stored_width_triton.fits(*w.shape)
        if context.kernels.triton and takes:
            around = Around(arithmetic.operand, (FLOAT32,), processors=context.kernels.processors)
            filters, forms = (Filter(w, scales),), (self.form,)
            return stored_width_triton.products(x, filters, forms=forms, around=around)[0]
        by_xla = self._by_blocks if self.block else self._by_channels
        return by_xla(arithmetic, x, w, scales)

    def stored(self, w: Array) -> Array:
        return w if self.packed is None else self.packed.pack(w)

    def _read(self, w: jax.Array) -> jax.Array:
        return w if self.packed is None else self.packed.unpack(w)

    def _sums_of_one_row(self, x: jax.Array, w: jax.Array, scales: jax.Array) -> jax.Array:
        """XLA fuses everything into one reduction, which a matrix unit would not make faster."""
        runs = [w] if self.packed is None else self.packed.runs(w)
        shape = (len(w), -1, self.block or w.shape[1])
        terms = [
            (x_run.astype(np.float32) * run.astype(np.float32)).reshape(shape)
            for x_run, run in zip(jnp.split(x, len(runs), 1), runs, strict=True)
        ]
        if not self.block:
            return functools.reduce(operator.add, terms).sum((1, 2))[None] * scales.T
        of_runs = jnp.split(scales.astype(np.float32)[..., None], len(runs), 1)
        scaled = (term * scale for term, scale in zip(terms, of_runs, strict=True))
        return functools.reduce(operator.add, scaled).sum((1, 2))[None]

    def _by_channels(
        self, arithmetic: Arithmetic, x: jax.Array, w: jax.Array, scales: jax.Array
    ) -> jax.Array:
        rows, count = _parts(arithmetic, x)
        y = lax.dot_general(
            rows,
            self._read(w).astype(rows.dtype),
            (((1,), (1,)), ((), ())),
            preferred_element_type=np.float32,
        )
        return y.reshape(count, x.shape[0], -1).sum(0) * scales.T

    def _by_blocks(
        self, arithmetic: Arithmetic, x: jax.Array, w: jax.Array, scales: jax.Array
    ) -> jax.Array:
        values = self._read(w).astype(np.float32).reshape(*scales.shape, self.block)
        reals = (values * scales.astype(np.float32)[..., None]).reshape(len(w), -1)
        return arithmetic.dot(x, arithmetic.reduced(reals), ((1,), (1,)))


def _parts(arithmetic: Arithmetic, x: jax.Array) -> tuple[jax.Array, int]:
    """Rows of 16 bits whose sum is `x`, [count * rows, K], and their count."""
    if arithmetic.operand != FLOAT32:
        return x, 1
    parts, rest = list[jax.Array](), x
    for _ in range(_PARTS):
        parts.append(downcast(rest, BFLOAT16, exactly=True))
        known = parts[-1].astype(np.float32)
        rest = jnp.where(jnp.isfinite(known), rest - known, np.float32(0))
    return jnp.concatenate(parts), len(parts)


def _scales(w: TensorSpec) -> np.ndarray:
    """[N, 1] in float32; of blocks [N, blocks], in float16 if that holds them, as files have."""
    if w.blocks is None:
        return filter_scales(w, w.shape[0]).reshape(-1, 1)
    scale = row_scales(w)
    half = scale.astype(np.float16)
    return half if np.array_equal(scale, half) else scale


def scaling(w: TensorSpec) -> Prepare:
    """What prepares a filter's scales: [N, 1], or [N, blocks of a row]."""
    return lambda _values: np.ascontiguousarray(_scales(w))
