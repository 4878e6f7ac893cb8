"""Quantized operators as simulated floats, as TFLite's GPU delegate runs them.

Constants are dequantized once. A quantized output that somebody reads is put back on its grid, so
that rounding happens where the integer kernels round. Values that enter or leave a program are
integers outside and are converted at its border, on the device.
Source: delegates/gpu/common/transformations/add_quant_adjustments.cc, gpu/common/object_reader.cc.

Where LiteRT's kernels do other than the file says, the view follows the kernels.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdelegate.lowering import learned_scales
from jaxdelegate.model.operator_tables import called_subgraphs
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.common.derivatives import underivable, with_64_bits
from jaxdelegate.op_lowering.common.quantization import why_not_scales
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    Options,
    SVDFOptions,
    record_of,
    why_not_in_reals,
)
from jaxdelegate.op_lowering.rule import Function
from jaxdelegate.op_lowering.spec import Grid, Specs, TensorSpec
from jaxdelegate.passes.propagation import gather
from jaxdelegate.quant import affine, jax_affine
from jaxdelegate.quant.params import Quantization

_MOST_BYTES = 2  # of integers whose steps float32 holds
_BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))


def why_not(operator: str, options: Options, inputs: Specs, outputs: Specs) -> str | None:
    """Why the view has no such operator; None if it has, or no tensor is quantized."""
    present = [spec for spec in (*inputs, *outputs) if spec is not None]
    reason = next(filter(None, map(_why_not_viewed, present)), None)
    if reason is not None:
        return reason
    has_reals = any(spec.is_variable or _in_blocks(spec) for spec in present)
    has_reals |= bool(called_subgraphs(options))
    return why_not_in_reals(record_of(operator), inputs, outputs) if has_reals else None


def _in_blocks(spec: TensorSpec) -> bool:
    return spec.quantization is not None and spec.quantization.blockwise is not None


def is_on_integers(operator: str, inputs: Specs, outputs: Specs) -> bool:
    """Whether the view lowers an operator as integer mode does: reals do not tell its result."""
    return why_not_in_reals(record_of(operator), inputs, outputs) is not None


def on_integers(
    operators: Iterable[Operator], specs: Mapping[int, TensorSpec]
) -> dict[int, tuple[Specs, Specs]]:
    """By index, the operators that `is_on_integers` is true of: their inputs and outputs."""
    rows = ((op, gather(specs, op.inputs), gather(specs, op.outputs)) for op in operators)
    return {op.index: (ins, outs) for op, ins, outs in rows if is_on_integers(op.name, ins, outs)}


def run_on_integers(run: Function, operator: str, inputs: Specs, outputs: Specs) -> Function:
    """A lowering of integer mode as the view calls it, on floats.

    Args:
        run: the lowering.
        operator: whose it is.
        inputs: as hosts store them.
        outputs: likewise.
    """

    def stored(value: Any, spec: TensorSpec | None) -> Any:
        if spec is None or spec.quantization is None or not spec.is_quantized:
            return value
        quantize = functools.partial(
            jax_affine.quantize, quantization=spec.quantization, dtype=spec.dtype
        )
        step = f"{operator} computes on the integers of {spec.name!r}"
        return underivable(quantize, step, "there is no other way to compute it")(value)

    def call(*arrays: Any) -> tuple[Any, ...]:
        return tuple(map(enter, run(*map(stored, arrays, inputs)), outputs))

    return call


def _why_not_viewed(spec: TensorSpec) -> str | None:
    """Why a quantized tensor has no float view; None if it has one, or is not quantized."""
    q = spec.quantization
    if q is None or not spec.is_quantized:
        return None
    if spec.const is None and (q.is_per_channel or q.blockwise is not None):
        how = "per channel" if q.is_per_channel else "in blocks"
        return f"{spec.name!r} is quantized {how}, but not constant"
    if spec.const is None and spec.dtype.itemsize > _MOST_BYTES:
        return f"{spec.name!r} is {spec.dtype}, whose steps floats do not hold"
    reason = affine.why_not_blocks(q, spec.shape)
    if reason is not None:
        return f"{spec.name!r} is quantized in blocks: {reason}"
    return why_not_scales(spec) or _why_not_steps(spec)


def _why_not_steps(spec: TensorSpec) -> str | None:
    """A reason if floats do not hold every real that the tensor's integers may stand for."""
    q = spec.quantization
    if q is None or q.blockwise is not None:
        return None
    with np.errstate(all="ignore"):
        scale = q.scale.astype(np.float32)
        ends = [scale * np.float32(end) for end in affine.integer_range(spec.dtype)]
    is_zero = spec.const is not None and scale == 0  # a converter's scale of nothing but zeros
    is_right = is_zero | ((scale >= np.finfo(np.float32).tiny) & np.isfinite(ends).all(0))
    if not is_right.all():
        return f"the scale of {spec.name!r} is {scale[~is_right][0]}"
    low, high = affine.integer_range(spec.dtype)
    point = next((p for p in q.zero_point.tolist() if not low <= p <= high), None)
    if point is None:
        return None
    return f"the zero point of {spec.name!r} is {point}, not of {spec.dtype}"


def viewed(spec: TensorSpec) -> TensorSpec:
    """The spec that rules see: float32 where the tensor is quantized, constants dequantized."""
    if not spec.is_quantized or spec.quantization is None:
        return spec
    const = None if spec.const is None else affine.dequantize(spec.const, spec.quantization)
    return dataclasses.replace(spec, dtype=np.dtype(np.float32), quantization=None, const=const)


def view(
    operators: Sequence[Operator], specs: Mapping[int, TensorSpec]
) -> tuple[list[Operator], dict[int, TensorSpec]]:
    """Operators and the tensors that they touch as rules see them.

    Tensors between the gates of an integer LSTM keep their quantization: they have no values.
    """
    kept = without_values(operators)
    signed = set(read_as_int8(operators, specs))
    seen = {
        i: spec if i in kept else viewed(as_int8(spec) if i in signed else spec)
        for i, spec in specs.items()
    }
    return [_as_run(operator, specs) for operator in operators], seen


def without_values(operators: Sequence[Operator]) -> set[int]:
    """Intermediates that no operator reads or writes. A damaged file may name any tensor as one."""
    touched = {i for operator in operators for i in (*operator.inputs, *operator.outputs)}
    return {i for operator in operators for i in operator.intermediates} - touched


def _as_run(operator: Operator, specs: Mapping[int, TensorSpec]) -> Operator:
    inputs = tuple(specs.get(i) for i in operator.inputs)
    return dataclasses.replace(operator, options=options_of(operator.options, inputs))


def options_of(options: Options, inputs: Sequence[TensorSpec | None]) -> Options:
    """An operator's options as far as its kernel follows them.

    The integer kernel of SVDF demands RELU, and applies none.
    """
    if isinstance(options, SVDFOptions) and inputs and inputs[0] and inputs[0].is_quantized:
        return dataclasses.replace(options, fused_activation_function=ActivationFunctionType.NONE)
    return options


def read_as_int8(operators: Iterable[Operator], specs: Mapping[int, TensorSpec]) -> Iterable[int]:
    """Tensors of uint8 weights whose bytes a dynamic range kernel takes for int8."""
    for operator in operators:
        results = [specs[i] for i in operator.outputs if i in specs]
        is_float = not any(spec.is_quantized for spec in results)
        if is_float and record_of(operator.name).reads_uint8_as_int8:
            yield from (i for i in operator.inputs if i in specs and _is_uint8(specs[i]))


def _is_uint8(spec: TensorSpec) -> bool:
    return spec.is_quantized and spec.dtype == np.uint8


def as_int8(spec: TensorSpec) -> TensorSpec:
    """The int8 tensor that a kernel sees in the bytes of a uint8 constant."""
    q = spec.quantization
    if spec.const is None or q is None:
        return spec
    return dataclasses.replace(
        spec,
        dtype=np.dtype(np.int8),
        const=spec.const.view(np.int8),
        quantization=dataclasses.replace(q, zero_point=np.zeros_like(q.zero_point)),
    )


def viewed_all(specs: Specs) -> Specs:
    """The view of each spec; an absent one stays absent."""
    return tuple(spec and viewed(spec) for spec in specs)


def enter(value: Any, spec: TensorSpec, scale: Any = None) -> Any:
    """Integers that come into the program -> float32; what is not quantized passes.

    Args:
        value: as hosts store it.
        spec: says how integers stand for reals.
        scale: float32 [1] in place of the file's; None: the file's.
    """
    if spec.quantization is None or not spec.is_quantized:
        return value
    if scale is not None:
        return learned_scales.dequantize(value, spec, scale)
    return jax_affine.dequantize(value, spec.quantization)


def leave(value: Any, spec: TensorSpec, scale: Any = None) -> Any:
    """float32 that leaves the program -> the integers that `spec` declares; `scale`: see `enter`.

    A state leaves with the outputs, wanted or not: it ends derivatives without a word.

    Raises:
        GradientError: they are derived.
    """
    quantization = spec.quantization
    if quantization is None or not spec.is_quantized:
        return value
    quantize: Callable[[Any], Any] = functools.partial(
        jax_affine.quantize, quantization=quantization, dtype=spec.dtype
    )
    if scale is not None:
        quantize = functools.partial(learned_scales.quantize, spec=spec, scale=scale)
    if spec.is_variable:
        return quantize(value)
    leaves = underivable(
        quantize,
        f"output {spec.name!r} is {spec.dtype}",
        'here they are all that leaves. Derive it as floats: model.function(io="float")',
    )
    return leaves(value)


def grid_of(spec: TensorSpec) -> Grid | None:
    """What `simulate` rounds to, for kernels that do so themselves; None: they do not.

    XLA:CPU multiplies by the inverse of a constant, and so do they.
    """
    if spec.quantization is None or not spec.is_quantized or spec.dtype.itemsize > _MOST_BYTES:
        return None
    scale, low, high = _grid(spec.quantization, spec.dtype)
    with np.errstate(all="ignore"):
        first, last, inverse = scale * low, scale * high, np.float32(1) / scale
    grid = (float(first), float(last), float(inverse), float(low), float(scale))
    return grid if np.isfinite(grid).all() else None


def simulate(value: Any, spec: TensorSpec, scale: Any = None) -> Any:
    """float32 on the grid of the quantized tensor that it stands for; NaN is its lowest value.

    `scale`: see `enter`.

    Plain float32 arithmetic, as on the GPU (common/tasks/quantize_and_dequantize.cc); but the
    result is the float that `enter` makes of the same integer, so that equal integers stay equal.
    """
    if spec.quantization is None or not spec.is_quantized:
        return value
    if scale is not None:
        return learned_scales.simulate(jnp.asarray(value, np.float32), spec, scale)
    return _on_grid(jnp.asarray(value, np.float32), *_grid(spec.quantization, spec.dtype))


def _grid(quantization: Quantization, dtype: np.dtype) -> tuple[np.float32, np.float32, np.float32]:
    """The scale, and the integers' bounds less their zero point."""
    scale, zero_point = (x.reshape(()) for x in affine.along(quantization, 0))
    low, high = (np.float32(q - zero_point) for q in affine.integer_range(dtype))
    return np.float32(scale), low, high


@jax.custom_jvp
@jax.jit  # traced and lowered once for each shape
def _on_grid(value: jax.Array, scale: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    gpus = dict.fromkeys(("cuda", "rocm"), _on_grid_at_one_reading)
    grid: jax.Array = lax.platform_dependent(
        value, scale, low, high, default=_on_grid_in_turn, **gpus
    )
    return grid


def _on_grid_in_turn(
    value: jax.Array, scale: jax.Array, low: jax.Array, high: jax.Array
) -> jax.Array:
    first, last = scale * low, scale * high
    inside = jnp.minimum(jnp.where(value > first, value, first), last)
    steps = lax.round((inside - first) / scale, lax.RoundingMethod.AWAY_FROM_ZERO)
    return (steps + low) * scale


def _on_grid_at_one_reading(
    value: jax.Array, scale: jax.Array, low: jax.Array, high: jax.Array
) -> jax.Array:
    """The same floats, by operations that XLA:GPU has a matrix product end in.

    It does so with what reads a value once, and does not round. NaN is the integer 0. The float
    next to 1/2 rounds steps, which are not negative, as AWAY_FROM_ZERO does: 1/2 itself would lift
    the float below 1/2 to 1.
    """
    first = scale * low
    steps = jnp.minimum((jnp.maximum(value, first) - first) / scale, high - low)
    whole: jax.Array = (steps + _BELOW_HALF).astype(np.int32).astype(np.float32)
    return (whole + low) * scale


@_on_grid.defjvp
@with_64_bits
def _straight_through(
    primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    """The slope of what is rounded: one inside of the grid's range, zero beyond its ends.

    Rounding itself has the slope zero everywhere, by which nothing could be trained (Bengio et al.
    2013; tf.quantization.fake_quant_with_min_max_args does the same).
    """
    value, scale, low, high = primals
    is_inside = (value >= scale * low) & (value <= scale * high)
    return _on_grid(*primals), jnp.where(is_inside, tangents[0], 0)
