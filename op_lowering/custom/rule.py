"""Custom operators that LiteRT registers by itself: NumericVerify, aeq.hadamard_rotation."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.cast.options import DequantizeOptions
from jaxdelegate.op_lowering.cast.rule import DEQUANTIZE
from jaxdelegate.op_lowering.custom.options import HadamardRotationOptions, NumericVerifyOptions
from jaxdelegate.op_lowering.rule import (
    Function,
    LoweringContext,
    Op,
    OpRule,
    first_reason,
    table,
    why_not_dtype,
)
from jaxdelegate.op_lowering.spec import Specs, TensorSpec


def _why_not_numeric_verify(
    context: LoweringContext, o: NumericVerifyOptions, inputs: Specs, outputs: Specs
) -> str | None:
    x, wanted = inputs[:2]
    stops = o.log_if_failed and o.tolerance >= 0.1
    return first_reason(
        "it stops the model at a mismatch, which compiled code cannot" if stops else None,
        None
        if _is_viewed(context, x)
        else DEQUANTIZE.why_not(Op(context, DequantizeOptions(), inputs[:1], outputs)),
        why_not_dtype(wanted, np.float32),
        why_not_dtype(outputs[0], np.float32),
        None if x.shape == wanted.shape else f"{list(x.shape)} and {list(wanted.shape)} differ",
    )


def _is_viewed(context: LoweringContext, x: TensorSpec) -> bool:
    """Whether the float view has the reals that the operator would dequantize."""
    return context.quant_mode == "float_view" and x.dtype == np.float32


def _lower_numeric_verify(
    context: LoweringContext, _o: NumericVerifyOptions, inputs: Specs, outputs: Specs
) -> Function:
    if _is_viewed(context, inputs[0]):
        return lambda x, wanted: (x - wanted,)
    dequantize = DEQUANTIZE.lower(Op(context, DequantizeOptions(), inputs[:1], outputs))
    return lambda x, wanted: (dequantize(x)[0] - wanted,)


NUMERIC_VERIFY = OpRule(
    "NumericVerify",
    NumericVerifyOptions,
    1,
    _why_not_numeric_verify,
    _lower_numeric_verify,
    arity=2,
)


def _why_not_hadamard_rotation(
    _context: LoweringContext, o: HadamardRotationOptions, inputs: Specs, outputs: Specs
) -> str | None:
    x = inputs[0]
    return first_reason(
        why_not_dtype(x, np.float32),
        why_not_dtype(outputs[0], np.float32),
        None if len(x.shape) in (2, 3) else f"want [rows, n] or [batch, rows, n], got {x.shape}",
        None if o.hadamard_size > 0 else f"hadamard_size is {o.hadamard_size}",
    )


def _lower_hadamard_rotation(
    _context: LoweringContext, o: HadamardRotationOptions, inputs: Specs, _outputs: Specs
) -> Function:
    """Runs lie one after the other, as many as fit into the last dimension of each row."""
    shape, size = inputs[0].shape, o.hadamard_size
    n_runs = math.prod(shape[:-1]) * (shape[-1] // size)
    if size & (size - 1) or n_runs == 0:  # the kernel leaves other sizes than powers of two alone
        return lambda x: (x,)

    def hadamard_rotation(x: jax.Array) -> tuple[jax.Array]:
        flat = x.reshape(-1)
        runs = _butterflies(flat[: n_runs * size].reshape(n_runs, size), size)
        y = (runs * np.float32(1 / math.sqrt(size))).reshape(-1)
        return (jnp.concatenate([y, flat[n_runs * size :]]).reshape(shape),)

    return hadamard_rotation


def _butterflies(runs: jax.Array, size: int) -> jax.Array:
    """[runs, size] -> the same: sums and differences of neighbors at distances 1, 2, 4..."""
    for step in range(size.bit_length() - 1):
        pairs = runs.reshape(len(runs), -1, 2, 2**step)
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        runs = jnp.stack([low + high, low - high], axis=2).reshape(runs.shape)
    return runs


HADAMARD_ROTATION = OpRule(
    "aeq.hadamard_rotation",
    HadamardRotationOptions,
    1,
    _why_not_hadamard_rotation,
    _lower_hadamard_rotation,
)

RULES = table(NUMERIC_VERIFY, HADAMARD_ROTATION)
