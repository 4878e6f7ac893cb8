"""The rule of an operator whose inputs and results have known types."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxdelegate.op_lowering.common.movement import why_not_indices, why_not_moved
from jaxdelegate.op_lowering.common.pointwise import why_not_one_dtype
from jaxdelegate.op_lowering.dtypes import FLOATS, INDICES
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.rule import (
    Lower,
    Op,
    OpRule,
    WhyNot,
    first_reason,
    optional,
    rule,
    why_not_const,
    why_not_dtype,
    why_not_result,
)
from jaxdelegate.op_lowering.spec import Specs, TensorSpec

Dtypes = frozenset[np.dtype]


class Input(NamedTuple):
    """What one input may be."""

    dtypes: Dtypes | None = None  # None: any
    is_same: bool = False  # it has the dtype of the first input
    is_constant: bool = False  # its value must be known before the run
    is_number: bool = False  # it has one element
    is_moved: bool = False  # results have its values; it may be quantized
    is_whole: bool = False  # it holds integers, of any dtype

    def why_not(self, spec: TensorSpec) -> str | None:
        return first_reason(
            why_not_const(spec) if self.is_constant else None,
            why_not_indices(spec) if self.is_whole else None,
            None if self.dtypes is None else why_not_dtype(spec, self.dtypes),
            why_not_number(spec) if self.is_number else None,
        )


def why_not_number(spec: TensorSpec) -> str | None:
    is_one = spec.shape in ((), (1,))
    return None if is_one else f"{spec.name!r} {list(spec.shape)} is not one number"


def dtypes(*types: type) -> Dtypes:
    return frozenset(map(np.dtype, types))


COMPLEX_OF: dict[np.dtype, np.dtype] = {
    np.dtype(np.float32): np.dtype(np.complex64),
    np.dtype(np.float64): np.dtype(np.complex128),
}
REAL_OF = {wide: real for real, wide in COMPLEX_OF.items()}
REALS = frozenset(COMPLEX_OF)
ANY, SAME = Input(), Input(is_same=True)
MOVED, WHOLE = Input(is_moved=True), Input(is_whole=True)
KNOWN = Input(is_constant=True, is_whole=True)
FLOAT, REAL, INDEX = Input(FLOATS), Input(REALS), Input(INDICES)
FLOAT32, INT32, UINT64 = (Input(dtypes(t)) for t in (np.float32, np.int32, np.uint64))
CONSTANTS, CONSTANT = Input(INDICES, is_constant=True), Input(INDICES, False, True, True)
CONSTANTS32 = INT32._replace(is_constant=True)

# The dtype of a result: a type; one of these; that of the input in this position; by that of the
# first input. None: any.
Result = type[np.generic] | Dtypes | int | Mapping[np.dtype, np.dtype] | None


def typed_rule(
    name: str,
    inputs: Sequence[Input],
    lower: Lower[Any],
    why_not: WhyNot[Any] | None = None,
    *,
    results: Sequence[Result] = (0,),
    **traits: Any,
) -> OpRule[Any]:
    """A rule of version 1.

    `why_not` has further reasons, if types and constants are right; `traits` are fields of OpRule.
    """
    same = [i for i, expected in enumerate(inputs) if expected.is_same]
    moved = [i for i, expected in enumerate(inputs) if expected.is_moved]

    def refuse(op: Op[Options]) -> str | None:
        present = [(e, s) for e, s in zip(inputs, op.inputs, strict=False) if s is not None]
        sources = [optional(op.inputs, i) for i in moved]
        reason = first_reason(
            *(expected.why_not(spec) for expected, spec in present),
            *(why_not_one_dtype(op.inputs[0], op.inputs[i]) for i in same),
            *(
                _why_not_result(op.inputs, y, result)
                for y, result in zip(op.outputs, results, strict=False)
            ),
            why_not_moved(op.context, *sources, *op.outputs) if moved else None,
        )
        return reason if reason or why_not is None else why_not(op)

    traits = {"arity": len(inputs), "results": len(results), "max_version": 1} | traits
    return rule(name, why_not=refuse, lower=lower, **traits)


def moving_rule(
    name: str,
    max_version: int,
    inputs: Sequence[Input],
    lower: Lower[Any],
    why_not: WhyNot[Any] | None = None,
    **traits: Any,
) -> OpRule[Any]:
    """The typed_rule of an operator that moves values, or yields places and shapes."""
    traits["max_version"] = max_version
    return typed_rule(name, inputs, lower, why_not, results=[None], **traits)


def _why_not_result(inputs: Specs, y: TensorSpec, result: Result) -> str | None:
    if result is None:
        return None
    if isinstance(result, frozenset):
        return why_not_dtype(y, result)
    if isinstance(result, int):
        return why_not_result(y, inputs[result].dtype)
    if isinstance(result, Mapping):
        return why_not_result(y, result.get(inputs[0].dtype, inputs[0].dtype))
    return why_not_result(y, result)
