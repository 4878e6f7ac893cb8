"""Cases of operators with state, over two invokes: other inputs, then the first one's state."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.rule import OpRule
from jaxdelegate.testing.case import Arg, Case, compiled
from tests.support.quantized import scaled

Run = Callable[[Case], list[np.ndarray]]  # outputs, then new states


def state(dtype: Any, shape: Sequence[int], scale: float, zero_point: int = 0) -> Arg:
    """A variable tensor with the zero point as its initial value."""
    first = np.full(shape, zero_point, dtype)
    return Arg(first, is_variable=True, quantization=scaled(scale, zero_point))


def twice(case: Case, run: Run) -> list[np.ndarray]:
    """Outputs of the first invoke, then outputs and new states of the second."""
    n_outputs = len(case.specs()[1])
    first = run(case)
    return [*first[:n_outputs], *run(_next(case, first[n_outputs:]))]


def lowered_twice(cases: Sequence[Case], rules: Mapping[str, OpRule]) -> list[list[np.ndarray]]:
    """Like `twice` for lowerings: one program of all cases, called twice."""
    run = compiled([case.lowered_call(rules[case.name]) for case in cases])
    counts = [len(case.specs()[1]) for case in cases]
    first = run([case.live_arrays() for case in cases])
    later = [_next(case, y[n:]) for case, n, y in zip(cases, counts, first, strict=True)]
    second = run([case.live_arrays() for case in later])
    return [[*y[:n], *z] for n, y, z in zip(counts, first, second, strict=True)]


def under_way(case: Case) -> Case:
    """The case with the states that the reference leaves, and the same run-time inputs."""
    left = iter(case.run_reference()[len(case.specs()[1]) :])
    inputs = [
        dataclasses.replace(a, value=next(left)) if a is not None and a.is_variable else a
        for a in case.inputs
    ]
    return dataclasses.replace(case, inputs=inputs)


def litert_twice(case: Case, *, optimized: bool = False) -> list[np.ndarray]:
    """Outputs of two invokes of one stock interpreter whose variable tensors start at zero."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    kind = OpResolverType.BUILTIN_REF
    if optimized:
        kind = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(model_content=case.model(), experimental_op_resolver_type=kind)
    interpreter.allocate_tensors()
    states = [a.value for a in case.inputs if a is not None and a.is_variable]
    results = []
    for now in (case, _next(case, states)):
        for detail, array in zip(interpreter.get_input_details(), now.feeds(), strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        for detail in interpreter.get_output_details():
            results.append(np.array(interpreter.get_tensor(detail["index"])))  # noqa: PERF401
    return results


def _next(case: Case, states: Sequence[np.ndarray]) -> Case:
    """The second invoke: run-time inputs reversed, variable tensors as the first left them."""
    left = iter(states)

    def arg(a: Arg | None) -> Arg | None:
        if a is None or a.is_const:
            return a
        return dataclasses.replace(a, value=next(left) if a.is_variable else np.flip(a.value))

    return dataclasses.replace(case, inputs=[arg(a) for a in case.inputs])
