"""Several algorithms to lower one operator: how one is chosen, and the key of a choice.

A rule with several algorithms lists them by name, the default of its heuristics first
(`OpRule.algorithms`). All of them compute the same, except that floats are added in another order.
`LoweringContext.algorithm` names the one that runs; the tuner stores choices by `operator_key`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from jaxdelegate.op_lowering.common.fusion_barrier import fusion_barrier
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.rule import Function, Op, OpRule
from jaxdelegate.op_lowering.spec import Specs, TensorSpec

_Algorithm = TypeVar("_Algorithm")


def chosen(algorithms: Mapping[str, _Algorithm], name: str | None) -> _Algorithm:
    """The algorithm of this name, or the default, which is the first."""
    default = next(iter(algorithms.values()))
    return default if name is None else algorithms.get(name, default)


def operator_key(name: str, op: Op[Options]) -> str:
    """A key that operators share which run equally fast: everything except the values."""
    context = op.context
    precision = dataclasses.replace(context.precision, float32_operators=())
    tensors = f"{_listed(op.inputs)} -> {_listed(op.outputs)}"
    return f"{name} {tensors}; {op.options}; {context.platform} {context.quant_mode} {precision}"


def with_algorithm(rule: OpRule, op: Op[Options]) -> Op[Options]:
    """The operator with the algorithm that was chosen for operators of its key."""
    if not op.context.program.algorithms or rule.algorithms is None:
        return op
    return op.in_context(algorithm=op.context.program.algorithms.get(operator_key(rule.name, op)))


def with_barriers(run: Function, inputs: Specs) -> Function:
    """Keep run-time inputs and outputs in memory, as they were when the function was measured.

    XLA would fuse some algorithms with the operators before and after, and repeat their work.
    """

    def with_barriers(*arrays: Any) -> tuple[Any, ...]:
        pairs = zip(arrays, inputs, strict=True)
        fed = (a if s is None or s.const is not None else fusion_barrier(a) for a, s in pairs)
        return tuple(map(fusion_barrier, run(*fed)))

    return with_barriers


def _listed(specs: Specs) -> str:
    return ", ".join(map(_described, specs))


def _described(spec: TensorSpec | None) -> str:
    if spec is None:
        return "none"
    words = [f"{spec.dtype}[{','.join(map(str, spec.shape))}]"]
    words += ["constant"] if spec.const is not None else []
    q = spec.quantization
    if spec.is_quantized and q is not None:
        words += ["quantized", "per channel"] if q.is_per_channel else ["quantized"]
        words += ["with zero points"] if q.zero_point.any() else []
    return " ".join(words)
