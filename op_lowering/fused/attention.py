"""Attention: by cuDNN in half precision, which keeps logits and softmax in float32.

In float32 XLA's own attention equals the separate operators bit for bit and is no faster; on a CPU
our kernel is.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.common.basics import scalar
from jaxdelegate.op_lowering.common.downcast import downcast
from jaxdelegate.op_lowering.common.native_call import native_call
from jaxdelegate.op_lowering.common.row_batches import by_matrices
from jaxdelegate.op_lowering.dtypes import FLOATS, HALVES
from jaxdelegate.op_lowering.fused.options import AttentionOptions
from jaxdelegate.op_lowering.matmul.options import BatchMatMulOptions
from jaxdelegate.op_lowering.matmul.rule import BATCH_MATMUL
from jaxdelegate.op_lowering.normalization.options import SoftmaxOptions
from jaxdelegate.op_lowering.normalization.rule import SOFTMAX
from jaxdelegate.op_lowering.rule import (
    Function,
    Lowered,
    LoweringContext,
    Op,
    first_reason,
    optional,
    rule,
    table,
    why_not_dtype,
)
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec

# ---- float32 by this package's CPU kernel
#
# Logits never leave the cache. Keys that the mask hides (-1e9 or less) from all queries of a block
# are not read: at the start of a cache, most of them. For few queries the kernel reads keys and
# values once, where they are.


def _kernel_takes(context: LoweringContext, options: AttentionOptions, arrays: Specs) -> bool:
    """Whether it multiplies q, k and v, which `arrays` are, perhaps with a mask."""
    policy, specs = context.precision, [spec for spec in arrays if spec is not None]
    *_, queries, keys = options.logits
    return (
        context.kernels.cpu
        and all(spec.dtype == np.float32 and not spec.is_quantized for spec in specs)
        and policy.storage == np.float32
        and policy.operand_dtype(specs[0].dtype, rows=queries, output_channels=keys) == np.float32
        and math.prod(options.logits) > 0
    )


def _by_kernel(options: AttentionOptions, otherwise: Function) -> Function:
    """The function of q, k and v, [B, N, T, H] or as the options say, and a mask [B, N, T, S].

    Args:
        options: the layouts.
        otherwise: computes the same where `jax.vmap` adds a dimension to some of the arrays only;
            if keys and values have none, the kernel has more queries.
    """
    attributes = {
        "are_last": np.array([options.keys_last, options.values_last], np.int64),
        "scale": np.array([options.scale], np.float32),
    }

    @custom_vmap
    def of_some(*arrays: jax.Array) -> jax.Array:
        y: jax.Array = otherwise(*arrays)[0]
        return y

    @of_some.def_vmap
    def _(size: int, batched: Sequence[bool], *arrays: jax.Array) -> tuple[jax.Array, bool]:
        if batched[0] and not any(batched[1:3]):
            return _of_more_queries(call, size, batched, arrays), True
        axes = [0 if is_batched else None for is_batched in batched]
        (y,) = jax.vmap(otherwise, axes, axis_size=size)(*arrays)
        return y, True

    @by_matrices(of_some)
    def call(q: jax.Array, k: jax.Array, v: jax.Array, *mask: jax.Array) -> jax.Array:
        return native_call(library.ATTENTION, q.shape, **attributes)(q, k, v, *mask)

    def run(q: jax.Array, k: jax.Array, v: jax.Array, *mask: jax.Array) -> tuple[jax.Array]:
        masks = [jnp.broadcast_to(m, (*m.shape[:-1], options.logits[-1])) for m in mask]
        return (call(q, k, v, *masks),)

    return run


def _of_more_queries(
    call: Callable[..., jax.Array], size: int, batched: Sequence[bool], arrays: Sequence[jax.Array]
) -> jax.Array:
    """[size, B, N, T, H]: attention of all queries of a batch, which have the same keys and values.

    Args:
        call: attention [B, N, T, H].
        size: of the batch.
        batched: whether an array has it as its first dimension: q, and perhaps the mask.
        arrays: q, k, v, and perhaps a mask.
    """
    q, k, v, *masks = arrays
    *_, queries, _ = q.shape

    def merged(x: jax.Array) -> jax.Array:
        x = jnp.moveaxis(x, 0, 2)
        return x.reshape(*x.shape[:2], -1, x.shape[-1])

    def of_all(mask: jax.Array, has_batch: bool) -> jax.Array:
        mask = mask if has_batch else mask[None]
        return merged(jnp.broadcast_to(mask, (size, *mask.shape[1:3], queries, mask.shape[-1])))

    y = call(merged(q), k, v, *map(of_all, masks, batched[3:]))
    return jnp.moveaxis(y.reshape(*y.shape[:2], size, queries, y.shape[-1]), 2, 0)


# ---- by cuDNN

# Fewer queries are not worth laying out the keys and values for.
_LEAST_QUERIES = 16
_HEAD_SIZES = range(8, 129, 8)  # cuDNN's flash attention has them on every GPU that supports it


def is_by_cudnn(
    context: LoweringContext, dtype: np.dtype, head_size: int, mask: TensorSpec | None
) -> bool:
    """Boolean masks are not supported."""
    return (
        context.platform == "gpu"
        and not context.precision.rounds_exactly  # on any device
        and context.precision.operand_dtype(dtype) in HALVES
        and head_size in _HEAD_SIZES
        and (mask is None or mask.dtype in (*HALVES, dtype))
    )


def is_mask_shape(shape: Shape, logits: Shape) -> bool:
    """Whether a mask broadcasts to logits [B, N, T, S] of the same rank."""
    return len(shape) == len(logits) and all(
        m in (1, n) for m, n in zip(shape, logits, strict=True)
    )


def by_cudnn(scale: float, operand: np.dtype, written_out: Function) -> Function:
    """The function of q [B, T, N, H], k and v [B, S, K, H], and a mask that broadcasts to logits.

    Logits [B, N, T, S] are scaled. cuDNN multiplies in `operand`; the result keeps the dtype of
    `q`. `written_out` runs instead on a GPU or a cuDNN without such a kernel.
    """

    def attention(
        q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None = None
    ) -> tuple[jax.Array]:
        bias = None
        if mask is not None:  # cuDNN needs full sequence lengths, jax.vmap of it all heads
            bias = jnp.broadcast_to(mask, (mask.shape[0], q.shape[2], q.shape[1], k.shape[1]))
            bias = downcast(bias, operand)
        try:
            with jax.numpy_dtype_promotion("standard"):  # jax's own code mixes dtypes
                y = jax.nn.dot_product_attention(
                    downcast(q, operand),
                    downcast(k, operand),
                    downcast(v, operand),
                    bias,
                    scale=scale,
                    implementation="cudnn",
                ).astype(q.dtype)
        except (NotImplementedError, RuntimeError):  # this GPU or this cuDNN has no such kernel
            arrays = (q, k, v) if mask is None else (q, k, v, mask)
            (y,) = written_out(*arrays)
        return (y,)

    return attention


# ---- as rewrites find it: heads before positions


# ---- the operator


def _why_not(op: Op[AttentionOptions]) -> str | None:
    q, mask = op.inputs[0], optional(op.inputs, 3)
    shape = op.options.logits
    logits = _of_heads(shape, len(shape))
    fits = mask is None or is_mask_shape(_of_heads(mask.shape, len(shape)), logits)
    return first_reason(
        *(why_not_dtype(spec, FLOATS) for spec in (*op.inputs, *op.outputs) if spec is not None),
        None if fits else f"the mask does not broadcast to {list(shape)}",
        None
        if _kernel_takes(op.context, op.options, op.inputs)
        else _why_not_by_cudnn(op.context, shape[-2], q.shape[-1]),
    )


def _why_not_by_cudnn(context: LoweringContext, queries: int, head_size: int) -> str | None:
    if context.platform != "gpu" or context.precision.rounds_exactly:
        return "only cuDNN and our own kernels gain by it"
    if queries < _LEAST_QUERIES:
        return "keys and values would be laid out for few queries"
    return None if head_size in _HEAD_SIZES else f"cuDNN has no kernel for heads of {head_size}"


def _lower(op: Op[AttentionOptions]) -> Function:
    context, o = op.context, op.options
    q, mask = op.inputs[0], optional(op.inputs, 3)
    rank, shape = len(o.logits), op.outputs[0].shape
    *batch, _, _ = _of_heads(o.logits, rank)
    run = _written_out(op)
    in_cudnn = is_by_cudnn(context, q.dtype, q.shape[-1], mask)
    if in_cudnn:
        run = by_cudnn(o.scale, context.precision.operand_dtype(q.dtype), run)

    def by_position(x: jax.Array, is_last: bool = False) -> jax.Array:
        # [B, N, T, H], or [B, N, H, T] if positions are last -> [B, T, N, H]
        return (x.swapaxes(-1, -2) if is_last else x).swapaxes(1, 2)

    def by_head(q: jax.Array, k: jax.Array, v: jax.Array, *mask: jax.Array) -> tuple[jax.Array]:
        # XLA merges these transpositions with those of the file before and after.
        arrays = by_position(q), by_position(k, o.keys_last), by_position(v, o.values_last)
        (y,) = run(*arrays, *mask)
        return (y.swapaxes(1, 2),)

    if _kernel_takes(context, o, op.inputs):
        by_head = _by_kernel(o, by_head)

    def attention(q: jax.Array, k: jax.Array, v: jax.Array, *mask: jax.Array) -> tuple[jax.Array]:
        arrays = (x.reshape(*batch, *x.shape[-2:]) for x in (q, k, v))
        (y,) = by_head(*arrays, *(m.reshape(_of_heads(m.shape, rank)) for m in mask))
        return (y.reshape(shape),)

    return Lowered(attention, {}, takes_reduced=True) if in_cudnn else attention


def _of_heads(shape: Shape, rank: int) -> Shape:
    """The shape [B, N, T, S] of logits of this rank, or of a mask that broadcasts to them."""
    whole = (1,) * (rank - len(shape)) + tuple(shape)
    return whole if rank == 4 else (whole[0], 1, *whole[1:])


def _written_out(op: Op[AttentionOptions]) -> Function:
    """The separate operators, on q [B, T, N, H], k, v [B, S, N, H] and a mask."""
    context, o, q = op.context, op.options, op.inputs[0]
    *batch, t, s = _of_heads(o.logits, len(o.logits))
    queries, keys = (
        dataclasses.replace(q, shape=(*batch, n, q.shape[-1]), const=None) for n in (t, s)
    )
    logits = dataclasses.replace(queries, shape=(*batch, t, s))
    both = BatchMatMulOptions(adj_y=True)
    multiply = BATCH_MATMUL.lower(Op(context, both, (queries, keys), (logits,)))
    normalize = SOFTMAX.lower(Op(context, SoftmaxOptions(beta=1.0), (logits,), (logits,)))
    mix = BATCH_MATMUL.lower(Op(context, BatchMatMulOptions(), (logits, keys), (queries,)))

    def written_out(
        q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None = None
    ) -> tuple[jax.Array]:
        (y,) = multiply(q.swapaxes(1, 2), k.swapaxes(1, 2))
        y = y * scalar(o.scale, y)
        (shares,) = normalize(y if mask is None else y + mask.astype(y.dtype))
        (y,) = mix(shares, v.swapaxes(1, 2))
        return (y.swapaxes(1, 2),)

    return written_out


ATTENTION = rule("fused_attention", 1, _why_not, _lower, arity=3)


FUSED = table(ATTENTION)
