"""Matrix products: FULLY_CONNECTED, BATCH_MATMUL."""

import dataclasses
import functools
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common.algorithms import chosen
from jaxdelegate.op_lowering.common.basics import (
    Array,
    align_ranks,
    why_not_activation,
    why_not_broadcast,
)
from jaxdelegate.op_lowering.common.products import (
    Arithmetic,
    finish,
    nothing,
    why_not_floats,
    why_not_fused,
)
from jaxdelegate.op_lowering.common.quantized_products import Tensors
from jaxdelegate.op_lowering.common.small_products_cpu_kernel import batch_product
from jaxdelegate.op_lowering.convolution import cpu_kernel, cpu_kernel_integer
from jaxdelegate.op_lowering.matmul import cpu_kernel as cpu_kernel_dynamic_range
from jaxdelegate.op_lowering.matmul import cpu_kernel_batch_matmul, stored_width
from jaxdelegate.op_lowering.matmul import dynamic_range as dynamic_range_matmul
from jaxdelegate.op_lowering.matmul import quantized as quantized_matmul
from jaxdelegate.op_lowering.matmul.options import BatchMatMulOptions, FullyConnectedOptions
from jaxdelegate.op_lowering.records.enums import FullyConnectedOptionsWeightsFormat
from jaxdelegate.op_lowering.rule import (
    Function,
    Lowered,
    LoweringContext,
    Op,
    first_reason,
    rule,
    table,
)
from jaxdelegate.op_lowering.spec import Shape, TensorSpec

_XLA = "dot"  # XLA's algorithm of integers
# A GPU writes the half-precision copy of a float32 matrix to memory before it multiplies. For fewer
# rows that takes longer than the product, for example of a query and all keys in a cache.
_LEAST_CONVERTED = 16


def _why_not_fully_connected(op: Op[FullyConnectedOptions]) -> str | None:
    o, tensors = op.options, Tensors.of(op)
    w = tensors.w
    default = o.weights_format is FullyConnectedOptionsWeightsFormat.DEFAULT
    fused = o.fused_activation_function
    return first_reason(
        None if default else f"weights are stored as {o.weights_format.name}",
        f"weights {w.name!r} are sparse" if w.sparsity is not None else None,
        "the option quant_spec is not supported" if o.quant_spec else None,
        why_not_activation(fused) if tensors.is_dynamic_range else why_not_fused(fused),
        _why_not_rows(o, tensors),
    ) or _why_not_dtypes(o, tensors)


def _why_not_dtypes(options: FullyConnectedOptions, tensors: Tensors) -> str | None:
    if tensors.is_integer:
        return quantized_matmul.why_not_fully_connected(options, tensors)
    if tensors.is_dynamic_range:
        return dynamic_range_matmul.FULLY_CONNECTED.why_not(tensors, 0)
    return why_not_floats(*tensors)


def _why_not_rows(options: FullyConnectedOptions, tensors: Tensors) -> str | None:
    x, w, bias, _ = tensors
    if len(w.shape) != 2:
        return f"weights {list(w.shape)} must have 2 dimensions"
    if options.keep_num_dims and x.shape[-1:] != w.shape[1:]:
        return f"input {list(x.shape)} does not end in rows of {w.shape[1]}"
    if bias is not None and math.prod(bias.shape) != w.shape[0]:
        return f"a bias of {math.prod(bias.shape)} values for {w.shape[0]} output channels"
    return None


def _lower_fully_connected(op: Op[FullyConnectedOptions]) -> Function:
    context, tensors = op.context, Tensors.of(op)
    x, w, _, y = tensors
    output_channels, depth = w.shape
    if 0 in y.shape or depth == 0:  # the kernel then leaves zeros, without bias
        return nothing(op.outputs)
    if tensors.is_integer:
        return quantized_matmul.lower_fully_connected(op)
    if tensors.is_dynamic_range and context.quant_mode == "float_view":
        return stored_width.lower_fully_connected(op)
    if tensors.is_dynamic_range:
        return dynamic_range_matmul.lower_fully_connected(op)
    rows, activation = math.prod(x.shape) // depth, op.options.fused_activation_function
    native = cpu_kernel.chosen(context, tensors)
    if native is not None:
        return cpu_kernel.fully_connected(native, tensors, activation, context.result.grid)
    arithmetic = Arithmetic.of_dot(context, rows, output_channels, x, w)
    flip = chosen(_layouts(context, w), context.algorithm)
    contract = ((1,), (0 if flip else 1,))

    def fully_connected(
        x: jax.Array, w: jax.Array, bias: jax.Array | None = None
    ) -> tuple[jax.Array]:
        whole = x.reshape(-1)[: rows * depth]  # LiteRT's kernel ignores the rest
        total = arithmetic.dot(arithmetic.reduced(whole).reshape(rows, depth), w, contract)
        result = finish(total, bias, activation, y.dtype, is_finite=arithmetic.is_finite)
        return (result.reshape(y.shape),)

    def prepare(w: Array) -> Array:
        laid_out: Array = arithmetic.reduced(w.transpose(1, 0) if flip else w)
        return laid_out

    return Lowered(fully_connected, {1: prepare}, (flip, arithmetic.operand), takes_reduced=True)


def _algorithms(op: Op[FullyConnectedOptions]) -> Mapping[str, bool | None]:
    """How a product reads its filter, if it is one of floats or the CPU kernels support it."""
    context, tensors = op.context, Tensors.of(op)
    w = tensors.w
    if 0 in (*tensors.y.shape, w.shape[1]):
        return {}
    if w.is_quantized:
        activation = op.options.fused_activation_function
        by_kernel = (
            cpu_kernel_integer.algorithms(context, tensors, cpu_kernel_integer.transposed)
            if tensors.is_integer
            else cpu_kernel_dynamic_range.algorithms(context, tensors, activation)
        )
        return dict.fromkeys((*by_kernel, _XLA) if by_kernel else ())
    return {**dict.fromkeys(cpu_kernel.algorithms(context, tensors)), **_layouts(context, w)}


def _layouts(context: LoweringContext, w: TensorSpec) -> Mapping[str, bool]:
    """XLA's layouts of the filter by name, and whether each transposes it; the default first."""
    as_stored = {"units_first": False}
    if w.const is None:
        return as_stored
    # XLA:CPU multiplies several rows faster by [K, N] than by [N, K]. One row takes as long by
    # either, within 10%, and with one default the signatures of a language model share one copy of
    # the weights, whatever their numbers of rows.
    transposed = {"depth_first": True}
    is_first = context.platform == "cpu" and not context.program.weights_vary
    return transposed | as_stored if is_first else as_stored | transposed


def _why_not_batch_matmul(op: Op[BatchMatMulOptions]) -> str | None:
    (x, w), y, o = op.inputs[:2], op.outputs[0], op.options
    if min(len(x.shape), len(w.shape)) < 2:
        return f"{list(x.shape)} and {list(w.shape)} must have 2 dimensions or more"
    k_x, k_w = x.shape[-2 if o.adj_x else -1], w.shape[-1 if o.adj_y else -2]
    return first_reason(
        why_not_broadcast(x.shape[:-2], w.shape[:-2]),
        None if k_x == k_w else f"rows of {k_x} values times columns of {k_w}",
    ) or _why_not_matrices(o, Tensors(x, w, None, y), k_x)


def _why_not_matrices(options: BatchMatMulOptions, tensors: Tensors, depth: int) -> str | None:
    columns = len(tensors.w.shape) - (2 if options.adj_y else 1)
    if tensors.is_integer or quantized_matmul.is_unscaled(tensors):
        return quantized_matmul.why_not_batch_matmul(tensors, depth, columns)
    if tensors.is_dynamic_range:
        return dynamic_range_matmul.BATCH_MATMUL.why_not(tensors, columns)
    return why_not_floats(*tensors)


def _lower_batch_matmul(op: Op[BatchMatMulOptions]) -> Function:
    (x, w), y, o = op.inputs[:2], op.outputs[0], op.options
    tensors = Tensors(x, w, None, y)
    if 0 in y.shape:
        return nothing(op.outputs)
    if tensors.is_integer or quantized_matmul.is_unscaled(tensors):
        return quantized_matmul.lower_batch_matmul(o, tensors)
    if tensors.is_dynamic_range:
        return dynamic_range_matmul.lower_batch_matmul(op.context, o, tensors)
    if 0 in (*x.shape, *w.shape):
        return nothing(op.outputs)
    rows, output_channels = (1, *y.shape)[-2], y.shape[-1]
    shared = _is_shared(o, w)
    if shared:
        rows *= math.prod(x.shape[:-2])
    arithmetic = Arithmetic.of_dot(op.context, rows, output_channels, x, w)
    product = _one_matrix if shared else _many_matrices
    converts = rows >= _LEAST_CONVERTED or op.context.platform != "gpu"
    by_kernel = _by_kernel(op.context, arithmetic, o, tensors)
    if by_kernel is not None:
        return by_kernel

    def batch_matmul(x: jax.Array, w: jax.Array) -> tuple[jax.Array]:
        by = arithmetic
        if not converts and w.dtype == np.float32:
            x, by = x.astype(np.float32), Arithmetic.of_float32(op.context)
        x, w = by.reduced(x), by.reduced(w)
        return (product(by, o, x, w).astype(y.dtype).reshape(y.shape),)

    return Lowered(batch_matmul, {}, takes_reduced=True)


def _is_shared(options: BatchMatMulOptions, w: TensorSpec) -> bool:
    return math.prod(w.shape[:-2]) == 1 and not options.adj_x


def _by_kernel(
    context: LoweringContext, a: Arithmetic, options: BatchMatMulOptions, tensors: Tensors
) -> Function | None:
    if cpu_kernel_batch_matmul.takes(context, options, tensors):
        return _many_matrices_by_kernel(a, options, tensors)
    return _by_constant(context, options, tensors)


def _by_constant(
    context: LoweringContext, options: BatchMatMulOptions, tensors: Tensors
) -> Function | None:
    """By FULLY_CONNECTED's kernel: XLA leaves larger products to a library (xla/runtime_steps.py).

    None: that kernel does not multiply by this matrix.
    """
    w = tensors.w
    if w.const is None or not _is_shared(options, w):
        return None
    matrix = w.const.reshape(w.shape[-2:])
    stored = matrix if options.adj_y else matrix.T
    as_filter = tensors._replace(w=dataclasses.replace(w, shape=stored.shape, const=stored))
    name = cpu_kernel.chosen(context, as_filter)
    if name is None:
        return None
    return cpu_kernel.batch_matmul(name, as_filter, is_transposed=options.adj_y)


def _many_matrices_by_kernel(a: Arithmetic, o: BatchMatMulOptions, tensors: Tensors) -> Function:
    by_xla = functools.partial(_many_matrices, a, dataclasses.replace(o, adj_x=False))
    product = batch_product(by_xla, is_transposed=o.adj_y)
    shape = tensors.y.shape

    def batch_matmul(x: jax.Array, w: jax.Array) -> tuple[jax.Array]:
        w = w.reshape(-1, *w.shape[-2:])
        x = x.swapaxes(-1, -2) if o.adj_x else x
        x = jnp.broadcast_to(x, (*shape[:-2], *x.shape[-2:])).reshape(len(w), -1, x.shape[-1])
        return (product(x, w).reshape(shape),)

    return batch_matmul


def _one_matrix(a: Arithmetic, o: BatchMatMulOptions, x: jax.Array, w: jax.Array) -> jax.Array:
    w = w.reshape(w.shape[-2:])
    return a.dot(x.reshape(-1, x.shape[-1]), w, ((1,), (1 if o.adj_y else 0,)))


def _many_matrices(a: Arithmetic, o: BatchMatMulOptions, x: jax.Array, w: jax.Array) -> jax.Array:
    x, w = align_ranks(x, w)
    batches: Shape = np.broadcast_shapes(x.shape[:-2], w.shape[:-2])
    x = jnp.broadcast_to(x, (*batches, *x.shape[-2:]))
    w = jnp.broadcast_to(w, (*batches, *w.shape[-2:]))
    rank, both = x.ndim, tuple(range(len(batches)))
    contract = ((rank - 2 if o.adj_x else rank - 1,), (rank - 1 if o.adj_y else rank - 2,))
    return a.dot(x, w, contract, (both, both))


BATCH_MATMUL = rule("BATCH_MATMUL", 4, _why_not_batch_matmul, _lower_batch_matmul, arity=2)

RULES = table(
    rule(
        "FULLY_CONNECTED",
        14,
        _why_not_fully_connected,
        _lower_fully_connected,
        arity=2,
        algorithms=_algorithms,
    ),
    BATCH_MATMUL,
)
