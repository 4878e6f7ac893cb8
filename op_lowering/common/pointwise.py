"""The shell around operators that act element by element: dtypes, broadcasting, float32 inside."""

import dataclasses
from collections.abc import Callable
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.common.basics import Array, align_ranks, why_not_broadcast
from jaxdelegate.op_lowering.common.quantization import why_not_one_scale, why_not_symmetric
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.rule import (
    Function,
    LoweringContext,
    OpRule,
    OptionsT,
    WhyNot,
    first_reason,
    why_not_dtype,
)
from jaxdelegate.op_lowering.spec import Specs, TensorSpec

Elementwise = Callable[..., jax.Array]  # arrays of one rank -> their elementwise result
Build = Callable[[OptionsT, Specs], Elementwise]  # options, inputs -> the function to apply
BuildInteger = Callable[[OptionsT, Specs, Specs], Elementwise]  # and outputs -> likewise
OptionsT_contra = TypeVar("OptionsT_contra", bound=Options, contravariant=True)
Dtypes = frozenset[np.dtype]

BOOL = np.dtype(np.bool_)
BOOLS: Dtypes = frozenset([BOOL])
INTEGERS: Dtypes = frozenset(np.dtype(f"{sign}int{8 << i}") for sign in ("", "u") for i in range(4))
PACKED: Dtypes = frozenset(np.dtype(t) for t in (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2))
COMPLEX: Dtypes = frozenset([np.dtype(np.complex64), np.dtype(np.complex128)])
NUMBERS: Dtypes = FLOATS | INTEGERS
INT8, UINT8, INT16 = (np.dtype(t) for t in (np.int8, np.uint8, np.int16))


@dataclasses.dataclass(frozen=True)
class IntegerKernel(Generic[OptionsT_contra]):
    """How an operator computes on quantized tensors, one scale each.

    `dtypes` lists what the inputs, then the output, may hold together.
    `build` makes the function: stored integers of one rank -> stored integers. It raises ValueError
    or ArithmeticError where the kernel has none for such scales; why_not gives that sentence.
    `symmetric`: the kernel wants zero points of 0 in int16 tensors.
    """

    dtypes: frozenset[tuple[np.dtype, ...]]
    build: BuildInteger[OptionsT_contra]
    symmetric: bool = True

    def why_not(self, name: str, o: OptionsT_contra, inputs: Specs, outputs: Specs) -> str | None:
        """A reason if the kernel cannot take these tensors."""
        specs = (*inputs, *outputs)
        if tuple(spec.dtype for spec in specs) not in self.dtypes:
            kinds = ", ".join(str(spec.dtype) for spec in inputs)
            return f"LiteRT has no integer kernel of {name} from {kinds} to {outputs[0].dtype}"
        reason = first_reason(
            *(why_not_one_scale(spec, or_zero=True) for spec in inputs),
            *(why_not_one_scale(spec) for spec in outputs if spec.dtype != BOOL),
            why_not_broadcast(*(spec.shape for spec in inputs)),
        )
        if reason is None and self.symmetric:
            reason = first_reason(*map(why_not_symmetric, specs))
        return reason or self._why_not_build(name, o, inputs, outputs)

    def _why_not_build(
        self, name: str, o: OptionsT_contra, inputs: Specs, outputs: Specs
    ) -> str | None:
        try:
            with np.errstate(all="ignore"):
                self.build(o, inputs, outputs)
        except (ValueError, ArithmeticError) as error:
            return f"{name} has no arithmetic for these scales: {error}"
        return None


def unary(
    name: str,
    options_type: type[OptionsT],
    max_version: int,
    function: Elementwise,
    *,
    dtypes: Dtypes = FLOATS,
    results: Dtypes | None = None,
    why_not: WhyNot[OptionsT] | None = None,
    integer: IntegerKernel[OptionsT] | None = None,
) -> OpRule[OptionsT]:
    """The record of `y = function(x)`; see `pointwise`."""
    return pointwise(
        name,
        options_type,
        max_version,
        lambda _o, _inputs: function,
        dtypes,
        results=results,
        why_not=why_not,
        integer=integer,
    )


def binary(
    name: str,
    options_type: type[OptionsT],
    max_version: int,
    function: Elementwise,
    *,
    dtypes: Dtypes = NUMBERS,
    results: Dtypes | None = None,
    why_not: WhyNot[OptionsT] | None = None,
    integer: IntegerKernel[OptionsT] | None = None,
) -> OpRule[OptionsT]:
    """The record of `z = function(x, y)` over broadcast inputs; see `pointwise`."""
    return pointwise(
        name,
        options_type,
        max_version,
        lambda _o, _inputs: function,
        dtypes,
        arity=2,
        results=results,
        why_not=why_not,
        integer=integer,
    )


def pointwise(
    name: str,
    options_type: type[OptionsT],
    max_version: int,
    build: Build[OptionsT],
    dtypes: Dtypes,
    *,
    arity: int = 1,
    variadic: bool = False,
    results: Dtypes | None = None,
    why_not: WhyNot[OptionsT] | None = None,
    integer: IntegerKernel[OptionsT] | None = None,
) -> OpRule[OptionsT]:
    """The record of an operator whose function `build` makes from the options and the input specs.

    The function gets every input in the accumulator's dtype and at one rank (leading ones, as
    kernels/internal/reference/broadcast_loop.h extends shapes); its result takes the output's
    dtype.

    Args:
        name: the operator.
        options_type: its options table.
        max_version: the newest version that LiteRT registers.
        build: makes the function.
        dtypes: what the inputs may hold; all hold the same.
        arity: how many inputs there are, or, if `variadic`, are at least.
        variadic: more inputs than `arity` may follow.
        results: what the output may hold; None: the inputs' dtype.
        why_not: reasons besides the common ones, asked when those found nothing.
        integer: how quantized tensors are computed.
    """

    def refuse(context: LoweringContext, o: OptionsT, inputs: Specs, outputs: Specs) -> str | None:
        count = None if variadic else why_not_count(inputs, arity)
        if count is not None or any(s is None for s in inputs):
            return count or "an input is left out"
        if _is_quantized(inputs, outputs):
            reason = _why_not_quantized(name, integer, o, inputs, outputs)
        else:
            reason = why_not_elements(inputs, dtypes) or _why_not_result(inputs, outputs, results)
        return reason if reason or why_not is None else why_not(context, o, inputs, outputs)

    def lower(context: LoweringContext, o: OptionsT, inputs: Specs, outputs: Specs) -> Function:
        if integer is not None and _is_quantized(inputs, outputs):
            return _lower_integer(integer.build(o, inputs, outputs))
        function, wide = build(o, inputs), context.precision.accumulator(inputs[0].dtype)

        def run(*arrays: Array) -> tuple[jax.Array]:
            y = function(*align_ranks(*(jnp.asarray(a, wide) for a in arrays)))
            return (y.astype(outputs[0].dtype),)

        return run

    return OpRule(name, options_type, max_version, refuse, lower, arity=arity)


def _is_quantized(inputs: Specs, outputs: Specs) -> bool:
    return any(spec.is_quantized for spec in (*inputs, *outputs))


def _why_not_quantized(
    name: str, kernel: IntegerKernel[OptionsT] | None, o: OptionsT, inputs: Specs, outputs: Specs
) -> str | None:
    if kernel is not None:
        return kernel.why_not(name, o, inputs, outputs)
    spec = next(spec for spec in (*inputs, *outputs) if spec.is_quantized)
    return f"{spec.name!r} is quantized {spec.dtype}: LiteRT has no integer kernel of {name}"


def _lower_integer(function: Elementwise) -> Function:
    return lambda *arrays: (function(*align_ranks(*map(jnp.asarray, arrays))),)


# ---- reasons


def why_not_elements(inputs: Specs, dtypes: Dtypes) -> str | None:
    """A reason unless the inputs share a dtype of `dtypes`, have no scale, and broadcast."""
    if any(s is None for s in inputs):
        return "an input is left out"
    return first_reason(
        *(why_not_dtype(spec, dtypes) for spec in inputs),
        *(why_not_one_dtype(inputs[0], s) for s in inputs[1:]),
        why_not_broadcast(*(s.shape for s in inputs)),
    )


def _why_not_result(inputs: Specs, outputs: Specs, results: Dtypes | None) -> str | None:
    wanted = frozenset([inputs[0].dtype]) if results is None else results
    return why_not_dtype(outputs[0], wanted)


def why_not_count(inputs: Specs, count: int) -> str | None:
    """A reason unless there are exactly so many inputs."""
    return None if len(inputs) == count else f"has {len(inputs)} inputs, not {count}"


def why_not_stored(spec: TensorSpec, dtypes: Dtypes) -> str | None:
    """As `why_not_dtype`, for operators that take stored values as they are, quantized or not."""
    if spec.dtype in dtypes:
        return None
    names = ", ".join(sorted(map(str, dtypes)))
    return f"{spec.name!r} is {spec.dtype}, not one of {names}"


def why_not_one_dtype(x: TensorSpec, y: TensorSpec) -> str | None:
    """A reason if two inputs differ in dtype."""
    differ = x.dtype != y.dtype
    return f"{x.name!r} is {x.dtype} and {y.name!r} {y.dtype}" if differ else None


def why_not_one_shape(x: TensorSpec, y: TensorSpec) -> str | None:
    """A reason if two inputs differ in shape."""
    differ = x.shape != y.shape
    return f"shapes {list(x.shape)} and {list(y.shape)} differ" if differ else None
