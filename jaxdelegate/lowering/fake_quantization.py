"""The float view: quantized operators simulated in float32, as in TFLite's GPU delegate.

Constants are dequantized once. A quantized result that another operator reads is rounded to its
grid, so that rounding happens where the integer kernels round. A program's inputs and outputs are
integers; it converts them on the device.
Source: delegates/gpu/common/transformations/add_quant_adjustments.cc, gpu/common/object_reader.cc.

Where LiteRT's kernels deviate from the file, the view follows the kernels.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from jaxdelegate.op_lowering.layout.rule import why_not_dequantized
from jaxdelegate.op_lowering.matmul import stored_width
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    Options,
    SVDFOptions,
    record_of,
    why_not_in_reals,
)
from jaxdelegate.op_lowering.records.operator import Result
from jaxdelegate.op_lowering.rule import Function
from jaxdelegate.op_lowering.spec import Grid, Specs, TensorSpec
from jaxdelegate.passes.propagation import gather
from jaxdelegate.quant import affine, jax_affine
from jaxdelegate.quant.params import Quantization

_CONVERSIONS = ("DEQUANTIZE", "QUANTIZE")
_MAX_BYTES = 2  # float32 represents the steps of integers up to this width
_BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))


def why_not(operator: str, options: Options, inputs: Specs, outputs: Specs) -> str | None:
    """Why the view does not support an operator; None if it does, or no tensor is quantized."""
    present = [spec for spec in (*inputs, *outputs) if spec is not None]
    reason = next(filter(None, map(_why_not_viewed, present)), None)
    if reason is not None:
        return reason
    calls = bool(called_subgraphs(options))
    may_have_channels = not calls and _may_have_channels(operator)
    refused = (s for s in present if s.is_variable or not may_have_channels)
    name = next((spec.name for spec in refused if _has_channels(spec)), None)
    if name is not None:
        return f"{name!r} is quantized per channel, but not constant"
    has_reals = calls or any(spec.is_variable or _in_blocks(spec) for spec in present)
    return why_not_in_reals(record_of(operator), inputs, outputs) if has_reals else None


def _in_blocks(spec: TensorSpec) -> bool:
    return spec.quantization is not None and spec.quantization.blockwise is not None


def _may_have_channels(operator: str) -> bool:
    """Whether an operator converts or moves values: others combine channels, and have biases."""
    return operator in _CONVERSIONS or record_of(operator).precision.result is Result.MOVED


def _has_channels(spec: TensorSpec | None) -> bool:
    q = None if spec is None or spec.const is not None else spec.quantization
    return q is not None and q.is_per_channel


def is_on_integers(operator: str, inputs: Specs, outputs: Specs) -> bool:
    """Whether the view lowers an operator as integer mode does, because it depends on integers.

    Those that move values with scales per channel may move them to another channel.
    """
    if why_not_in_reals(record_of(operator), inputs, outputs) is not None:
        return True
    return operator not in _CONVERSIONS and any(map(_has_channels, (*inputs, *outputs)))


def on_integers(
    operators: Iterable[Operator], specs: Mapping[int, TensorSpec]
) -> dict[int, tuple[Specs, Specs]]:
    """The inputs and outputs of the operators for which `is_on_integers` is true, by index."""
    rows = ((op, gather(specs, op.inputs), gather(specs, op.outputs)) for op in operators)
    return {op.index: (ins, outs) for op, ins, outs in rows if is_on_integers(op.name, ins, outs)}


def run_on_integers(run: Function, operator: str, inputs: Specs, outputs: Specs) -> Function:
    """A lowering of integer mode as a function on floats, for the view.

    `inputs` and `outputs` are the stored specs, not viewed.
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
    if spec.const is None and q.blockwise is not None:
        return f"{spec.name!r} is quantized in blocks, but not constant"
    if spec.const is None and spec.dtype.itemsize > _MAX_BYTES:
        return f"{spec.name!r} is {spec.dtype}, whose steps float32 cannot represent"
    reason = affine.why_not_blocks(q, spec.shape)
    if reason is not None:
        return f"{spec.name!r} is quantized in blocks: {reason}"
    return why_not_scales(spec) or _why_not_steps(spec)


def _why_not_steps(spec: TensorSpec) -> str | None:
    """A reason if float32 cannot represent all real values of the tensor's integers."""
    q = spec.quantization
    if q is None or q.blockwise is not None:
        return None
    with np.errstate(all="ignore"):
        scale = q.scale.astype(np.float32)
        ends = [scale * np.float32(end) for end in affine.integer_range(spec.dtype)]
    is_zero = spec.const is not None and scale == 0  # converters write it if all values are zero
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
    const = None if spec.const is None else affine.dequantized(spec.const, spec.quantization)
    return dataclasses.replace(spec, dtype=np.dtype(np.float32), quantization=None, const=const)


def view(
    operators: Sequence[Operator], specs: Mapping[int, TensorSpec], as_stored: Collection[int] = ()
) -> tuple[list[Operator], dict[int, TensorSpec]]:
    """Operators and their tensors' specs as rules see them; of those in `as_stored` unchanged.

    Intermediates of an integer LSTM keep their quantization: they have no values.
    """
    kept = without_values(operators).union(as_stored)
    signed = set(read_as_int8(operators, specs))
    seen = {
        i: spec if i in kept else viewed(as_int8(spec) if i in signed else spec)
        for i, spec in specs.items()
    }
    return [_as_run(operator, specs) for operator in operators], seen


def read_as_stored(
    operators: Iterable[Operator], specs: Mapping[int, TensorSpec]
) -> frozenset[int]:
    """The filters and tables that all their readers' rules read in the stored width."""
    as_stored, others = set[int](), set[int]()
    for operator in operators:
        for position, index in enumerate(operator.inputs):
            is_read = index in specs and _is_read_as_stored(operator, position, specs)
            (as_stored if is_read else others).add(index)
    return frozenset(as_stored - others)


def _is_read_as_stored(operator: Operator, position: int, specs: Mapping[int, TensorSpec]) -> bool:
    """Whether it is a filter of FULLY_CONNECTED, or a table of EMBEDDING_LOOKUP with float rows."""
    spec = specs[operator.inputs[position]]
    if position != 1 or spec.const is None or not spec.is_quantized:
        return False
    if operator.name == "EMBEDDING_LOOKUP":
        return why_not_dequantized(spec, specs[operator.outputs[0]]) is None
    return operator.name == "FULLY_CONNECTED" and stored_width.supports(spec)


def without_values(operators: Sequence[Operator]) -> set[int]:
    """Intermediates that no operator reads or writes. Damaged files may list any tensor as one."""
    touched = {i for operator in operators for i in (*operator.inputs, *operator.outputs)}
    return {i for operator in operators for i in operator.intermediates} - touched


def _as_run(operator: Operator, specs: Mapping[int, TensorSpec]) -> Operator:
    inputs = tuple(specs.get(i) for i in operator.inputs)
    return dataclasses.replace(operator, options=options_of(operator.options, inputs))


def options_of(options: Options, inputs: Sequence[TensorSpec | None]) -> Options:
    """An operator's options, corrected to what its kernel computes.

    The integer kernel of SVDF requires RELU, but does not apply it.
    """
    if isinstance(options, SVDFOptions) and inputs and inputs[0] and inputs[0].is_quantized:
        return dataclasses.replace(options, fused_activation_function=ActivationFunctionType.NONE)
    return options


def read_as_int8(operators: Iterable[Operator], specs: Mapping[int, TensorSpec]) -> Iterable[int]:
    """Tensors of uint8 weights whose bytes a dynamic range kernel interprets as int8."""
    for operator in operators:
        if reads_as_int8(operator.name, gather(specs, operator.outputs)):
            for i in operator.inputs:
                if i in specs and specs[i].is_quantized and specs[i].dtype == np.uint8:
                    yield i


def reads_as_int8(name: str, outputs: Specs) -> bool:
    """Whether an operator is of dynamic range, with a kernel that reads uint8 weights as int8."""
    is_float = not any(spec is not None and spec.is_quantized for spec in outputs)
    return is_float and record_of(name).reads_uint8_as_int8


def as_int8(spec: TensorSpec) -> TensorSpec:
    """The bytes of a uint8 constant, interpreted as int8."""
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
    return tuple(spec and viewed(spec) for spec in specs)


def enter(value: Any, spec: TensorSpec, scale: Any = None) -> Any:
    """Dequantize an input of the program to float32; values that are not quantized are unchanged.

    `spec` is as stored. `scale`, float32 [1], replaces the file's.
    """
    if spec.quantization is None or not spec.is_quantized:
        return value
    if scale is not None:
        return learned_scales.dequantize(value, spec, scale)
    return jax_affine.dequantize(value, spec.quantization)


def leave(value: Any, spec: TensorSpec, scale: Any = None) -> Any:
    """Quantize a float32 output of the program as `spec` declares; `scale`: see `enter`.

    States are outputs of every program, so they end derivatives silently. Other outputs raise a
    `GradientError` when they are differentiated.
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
        'this output has no other form. For float outputs, use model.function(io="float")',
    )
    return leaves(value)


def grid_of(spec: TensorSpec) -> Grid | None:
    """The grid that `simulate` rounds to, for kernels that round their own results.

    It contains the scale's inverse: XLA:CPU multiplies by the inverse of a constant divisor, and so
    must the kernels. None if kernels cannot round to it.
    """
    if spec.quantization is None or not spec.is_quantized or spec.dtype.itemsize > _MAX_BYTES:
        return None
    if spec.quantization.is_per_channel:
        return None
    scale, low, high = _grid(spec.quantization, spec.dtype, 0)
    with np.errstate(all="ignore"):
        first, last, inverse = scale * low, scale * high, np.float32(1) / scale
    grid = (float(first), float(last), float(inverse), float(low), float(scale))
    return grid if np.isfinite(grid).all() else None


def simulate(value: Any, spec: TensorSpec, scale: Any = None) -> Any:
    """Round float32 to the grid of the quantized tensor `spec`; NaN becomes its lowest value.

    `scale`: see `enter`.

    float32 arithmetic as in the GPU delegate (common/tasks/quantize_and_dequantize.cc), except that
    the result is the float that `enter` returns for the same integer, so that equal integers stay
    equal.
    """
    if spec.quantization is None or not spec.is_quantized:
        return value
    if scale is not None:
        return learned_scales.simulate(jnp.asarray(value, np.float32), spec, scale)
    return _on_grid(
        jnp.asarray(value, np.float32), *_grid(spec.quantization, spec.dtype, value.ndim)
    )


def _grid(quantization: Quantization, dtype: np.dtype, rank: int) -> tuple[np.ndarray, ...]:
    """The scale, and the integers' bounds minus their zero point, float32; they broadcast."""
    scale, zero_point = affine.along(quantization, rank)
    low, high = (np.asarray(q - zero_point, np.float32) for q in affine.integer_range(dtype))
    return scale, low, high


@jax.custom_jvp
@jax.jit  # traced and lowered once for each shape
def _on_grid(value: jax.Array, scale: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    gpus = dict.fromkeys(("cuda", "rocm"), _on_grid_of_one_read)
    grid: jax.Array = lax.platform_dependent(
        value, scale, low, high, default=_on_grid_by_round, **gpus
    )
    return grid


def _on_grid_by_round(
    value: jax.Array, scale: jax.Array, low: jax.Array, high: jax.Array
) -> jax.Array:
    first, last = scale * low, scale * high
    inside = jnp.minimum(jnp.where(value > first, value, first), last)
    steps = lax.round((inside - first) / scale, lax.RoundingMethod.AWAY_FROM_ZERO)
    return (steps + low) * scale


def _on_grid_of_one_read(
    value: jax.Array, scale: jax.Array, low: jax.Array, high: jax.Array
) -> jax.Array:
    """Equal to `_on_grid_by_round`, by operations that XLA:GPU fuses into matrix products.

    XLA fuses operations that read the product once and do not round. NaN becomes the integer 0.
    The steps are not negative: adding the float below 1/2 and truncating rounds them as
    AWAY_FROM_ZERO does. Adding 1/2 would round the float below 1/2 up to 1.
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
    """The straight-through estimator: slope one inside the grid's range, zero outside.

    The slope of rounding is zero, with which nothing could be trained (Bengio et al. 2013;
    tf.quantization.fake_quant_with_min_max_args does the same).
    """
    value, scale, low, high = primals
    is_inside = (value >= scale * low) & (value <= scale * high)
    return _on_grid(*primals), jnp.where(is_inside, tangents[0], 0)
