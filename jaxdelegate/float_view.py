"""Quantized operators as simulated floats, as TFLite's GPU delegate runs them.

Constants are dequantized once. A quantized output that somebody reads is put back on its grid, so
that rounding happens where the integer kernels round. Values that enter or leave a program are
integers outside and are converted at its border, on the device.
Source: delegates/gpu/common/transformations/add_quant_adjustments.cc, gpu/common/object_reader.cc.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.quant import affine, jax_affine


def why_not(spec: TensorSpec) -> str | None:
    """Why a quantized tensor has no float view; None if it has one, or is not quantized."""
    q = spec.quantization
    if q is None or not spec.is_quantized:
        return None
    if q.blockwise is not None:
        return f"{spec.name!r} is quantized in blocks"
    if spec.const is None and q.is_per_channel:
        return f"{spec.name!r} is quantized per channel, but not constant"
    return None


def viewed(spec: TensorSpec) -> TensorSpec:
    """The spec that rules see: float32 where the tensor is quantized, constants dequantized."""
    if not spec.is_quantized or spec.quantization is None:
        return spec
    const = None if spec.const is None else affine.dequantize(spec.const, spec.quantization)
    return dataclasses.replace(spec, dtype=np.dtype(np.float32), quantization=None, const=const)


def viewed_all(specs: Specs) -> Specs:
    """The view of each spec; an absent one stays absent."""
    return tuple(spec and viewed(spec) for spec in specs)


def enter(value: Any, spec: TensorSpec) -> Any:
    """Integers that come into the program -> float32; what is not quantized passes."""
    if spec.quantization is None or not spec.is_quantized:
        return value
    return jax_affine.dequantize(value, spec.quantization)


def leave(value: Any, spec: TensorSpec) -> Any:
    """float32 that leaves the program -> the integers that `spec` declares."""
    if spec.quantization is None or not spec.is_quantized:
        return value
    return jax_affine.quantize(value, spec.quantization, spec.dtype)


def simulate(value: Any, spec: TensorSpec) -> Any:
    """float32 on the grid of the quantized tensor that it stands for.

    Plain float32 arithmetic, as on the GPU (common/tasks/quantize_and_dequantize.cc).
    """
    if spec.quantization is None or not spec.is_quantized:
        return value
    scale, zero_point = np.float32(spec.quantization.scale[0]), int(spec.quantization.zero_point[0])
    first, last = (scale * np.float32(q - zero_point) for q in affine.integer_range(spec.dtype))
    steps = jnp.round((jnp.clip(value, first, last) - first) / scale)
    return steps * scale + first
