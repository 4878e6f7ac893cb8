"""Common parts of elementwise operators: dtypes, broadcasting, the accumulator's dtype."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

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
    Op,
    OpRule,
    OptionsT,
    WhyNot,
    first_reason,
    rule,
    why_not_dtype,
)
from jaxdelegate.op_lowering.spec import Specs, TensorSpec

Elementwise = Callable[..., jax.Array]  # arrays of one rank -> their elementwise result
Build = Callable[[Op[OptionsT]], Elementwise]  # -> the function to apply
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
class Operands:
    """What a pointwise operator reads and writes.

    All inputs have the same one of `dtypes`; `results` are those of the output, None: the inputs'
    dtype. `arity` is the least number of inputs if `variadic`.
    """

    dtypes: Dtypes
    arity: int = 1
    _: dataclasses.KW_ONLY
    variadic: bool = False
    results: Dtypes | None = None

    def why_not(self, inputs: Specs, y: TensorSpec) -> str | None:
        """A reason if tensors without scales have other dtypes or do not broadcast."""
        wanted = frozenset([inputs[0].dtype]) if self.results is None else self.results
        return why_not_elements(inputs, self.dtypes) or why_not_dtype(y, wanted)

    def why_not_count(self, inputs: Specs) -> str | None:
        if not self.variadic and len(inputs) != self.arity:
            return why_not_count(inputs, self.arity)
        return "an input is left out" if any(spec is None for spec in inputs) else None


@dataclasses.dataclass(frozen=True)
class IntegerKernel(Generic[OptionsT_contra]):
    """How an operator computes on quantized tensors with one scale each.

    `dtypes` lists the supported combinations of inputs, then the output.
    `build` returns the function: stored integers of one rank -> stored integers. It raises
    ValueError or ArithmeticError if the kernel does not support the scales; `why_not` returns the
    error's message.
    `symmetric`: the kernel requires zero points of 0 in int16 tensors.
    """

    dtypes: frozenset[tuple[np.dtype, ...]]
    build: Build[OptionsT_contra]
    symmetric: bool = True

    def why_not(self, name: str, op: Op[OptionsT_contra]) -> str | None:
        specs = (*op.inputs, *op.outputs)
        if tuple(spec.dtype for spec in specs) not in self.dtypes:
            kinds = ", ".join(str(spec.dtype) for spec in op.inputs)
            return f"LiteRT has no integer kernel of {name} from {kinds} to {op.outputs[0].dtype}"
        reason = first_reason(
            *(why_not_one_scale(spec, or_zero=True) for spec in op.inputs),
            *(why_not_one_scale(spec) for spec in op.outputs if spec.dtype != BOOL),
            why_not_broadcast(*(spec.shape for spec in op.inputs)),
        )
        if reason is None and self.symmetric:
            reason = first_reason(*map(why_not_symmetric, specs))
        return reason or self._why_not_build(name, op)

    def _why_not_build(self, name: str, op: Op[OptionsT_contra]) -> str | None:
        try:
            with np.errstate(all="ignore"):
                self.build(op)
        except ZeroDivisionError:
            return f"{name} has no arithmetic for these scales: all are 0"
        except (ValueError, ArithmeticError) as error:
            return f"{name} has no arithmetic for these scales: {error}"
        return None


def pointwise(
    name: str,
    max_version: int,
    build: Build[OptionsT],
    operands: Operands,
    *,
    why_not: WhyNot[OptionsT] | None = None,
    integer: IntegerKernel[OptionsT] | None = None,
) -> OpRule[OptionsT]:
    """The rule of an operator; `build` returns its function.

    The function gets every input in the accumulator's dtype and at one rank (leading ones, as
    kernels/internal/reference/broadcast_loop.h extends shapes); its result takes the output's
    dtype. `why_not` has further reasons, if the common checks find none.
    """

    def refuse(op: Op[OptionsT]) -> str | None:
        reason = operands.why_not_count(op.inputs)
        if reason is None and _is_quantized(op):
            reason = _why_not_quantized(name, integer, op)
        elif reason is None:
            reason = operands.why_not(op.inputs, op.outputs[0])
        return reason if reason or why_not is None else why_not(op)

    def lower(op: Op[OptionsT]) -> Function:
        if integer is not None and _is_quantized(op):
            kernel = integer.build(op)
            return lambda *arrays: (kernel(*align_ranks(*map(jnp.asarray, arrays))),)
        function, wide = build(op), op.context.precision.accumulator(op.inputs[0].dtype)
        dtype = op.outputs[0].dtype

        def run(*arrays: Array) -> tuple[jax.Array]:
            y = function(*align_ranks(*(jnp.asarray(a, wide) for a in arrays)))
            return (y.astype(dtype),)

        return run

    return rule(name, max_version, refuse, lower, arity=operands.arity)


def _of_function(
    name: str,
    max_version: int,
    function: Elementwise,
    *,
    arity: int,
    dtypes: Dtypes,
    results: Dtypes | None = None,
    **traits: Any,
) -> OpRule[OptionsT]:
    operands = Operands(dtypes, arity, results=results)
    return pointwise(name, max_version, lambda _op: function, operands, **traits)


# Rules of operators whose function depends on no option; the inputs of binary ones broadcast.
unary = functools.partial(_of_function, arity=1, dtypes=FLOATS)
binary = functools.partial(_of_function, arity=2, dtypes=NUMBERS)


def _is_quantized(op: Op[Options]) -> bool:
    return any(spec.is_quantized for spec in (*op.inputs, *op.outputs))


def _why_not_quantized(
    name: str, kernel: IntegerKernel[OptionsT] | None, op: Op[OptionsT]
) -> str | None:
    if kernel is not None:
        return kernel.why_not(name, op)
    spec = next(spec for spec in (*op.inputs, *op.outputs) if spec.is_quantized)
    return f"{spec.name!r} is quantized {spec.dtype}: LiteRT has no integer kernel of {name}"


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


def why_not_count(specs: Specs, count: int, what: str = "inputs") -> str | None:
    return None if len(specs) == count else f"has {len(specs)} {what}, not {count}"


def why_not_stored(spec: TensorSpec, dtypes: Dtypes) -> str | None:
    """Like `why_not_dtype`, for operators on stored values, quantized or not."""
    if spec.dtype in dtypes:
        return None
    names = ", ".join(sorted(map(str, dtypes)))
    return f"{spec.name!r} is {spec.dtype}, not one of {names}"


def why_not_one_dtype(x: TensorSpec, y: TensorSpec) -> str | None:
    differ = x.dtype != y.dtype
    return f"{x.name!r} is {x.dtype} and {y.name!r} {y.dtype}" if differ else None


def why_not_one_shape(x: TensorSpec, y: TensorSpec) -> str | None:
    differ = x.shape != y.shape
    return f"shapes {list(x.shape)} and {list(y.shape)} differ" if differ else None
