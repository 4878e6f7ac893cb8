"""Custom operators that LiteRT registers: NumericVerify, aeq.hadamard_rotation."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.cast.rule import DEQUANTIZE
from jaxdelegate.op_lowering.common.signature import ANY, FLOAT32, typed_rule
from jaxdelegate.op_lowering.custom.options import HadamardRotationOptions, NumericVerifyOptions
from jaxdelegate.op_lowering.records.record import NoOptions
from jaxdelegate.op_lowering.rule import Function, Op, first_reason, table


def _why_not_numeric_verify(op: Op[NumericVerifyOptions]) -> str | None:
    x, expected = op.inputs[:2]
    stops = op.options.log_if_failed and op.options.tolerance >= 0.1
    return first_reason(
        "it stops the model at a mismatch, which compiled code cannot" if stops else None,
        None if _is_viewed(op) else DEQUANTIZE.why_not(_dequantize(op)),
        None if x.shape == expected.shape else f"{list(x.shape)} and {list(expected.shape)} differ",
    )


def _is_viewed(op: Op[NumericVerifyOptions]) -> bool:
    """Whether the float view has the reals that the operator would dequantize."""
    return op.context.quant_mode == "float_view" and op.inputs[0].dtype == np.float32


def _dequantize(op: Op[NumericVerifyOptions]) -> Op[NoOptions]:
    return Op(op.context, NoOptions(), op.inputs[:1], op.outputs)


def _lower_numeric_verify(op: Op[NumericVerifyOptions]) -> Function:
    if _is_viewed(op):
        return lambda x, expected: (x - expected,)
    dequantize = DEQUANTIZE.lower(_dequantize(op))
    return lambda x, expected: (dequantize(x)[0] - expected,)


def _why_not_hadamard_rotation(op: Op[HadamardRotationOptions]) -> str | None:
    x, size = op.inputs[0], op.options.hadamard_size
    return first_reason(
        None if len(x.shape) in (2, 3) else f"expected [(batch,) rows, n], got {list(x.shape)}",
        None if size > 0 else f"hadamard_size is {size}",
    )


def _lower_hadamard_rotation(op: Op[HadamardRotationOptions]) -> Function:
    """Runs are contiguous, as many as fit into the last dimension of each row."""
    shape, size = op.inputs[0].shape, op.options.hadamard_size
    n_runs = math.prod(shape[:-1]) * (shape[-1] // size)
    if size & (size - 1) or n_runs == 0:  # the kernel ignores sizes other than powers of two
        return lambda x: (x,)

    def hadamard_rotation(x: jax.Array) -> tuple[jax.Array]:
        flat = x.reshape(-1)
        runs = _butterflies(flat[: n_runs * size].reshape(n_runs, size), size)
        y = (runs * np.float32(1 / math.sqrt(size))).reshape(-1)
        return (jnp.concatenate([y, flat[n_runs * size :]]).reshape(shape),)

    return hadamard_rotation


def _butterflies(runs: jax.Array, size: int) -> jax.Array:
    """[runs, size] -> [runs, size]: sums and differences at distances 1, 2, 4..."""
    for step in range(size.bit_length() - 1):
        pairs = runs.reshape(len(runs), -1, 2, 2**step)
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        runs = jnp.stack([low + high, low - high], axis=2).reshape(runs.shape)
    return runs


RULES = table(
    typed_rule(
        "NumericVerify",
        [ANY, FLOAT32],
        _lower_numeric_verify,
        _why_not_numeric_verify,
        results=[np.float32],
    ),
    typed_rule(
        "aeq.hadamard_rotation", [FLOAT32], _lower_hadamard_rotation, _why_not_hadamard_rotation
    ),
)
