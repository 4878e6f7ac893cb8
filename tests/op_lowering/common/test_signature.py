"""Rules from the types of their inputs and results."""

from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.common.signature import (
    ANY,
    COMPLEX_OF,
    CONSTANT,
    FLOAT32,
    REAL,
    SAME,
    Input,
    dtypes,
    typed_rule,
)
from jaxdelegate.op_lowering.options import NoOptions
from jaxdelegate.op_lowering.rule import Function, LoweringContext, Op
from jaxdelegate.op_lowering.spec import TensorSpec


def spec(name: str, dtype: Any, *shape: int, const: Any = None) -> TensorSpec:
    return TensorSpec(name, shape, np.dtype(dtype), const=const)


def lower(_op: Op[NoOptions]) -> Function:
    return lambda *arrays: arrays


def reason(
    inputs: list[Input], given: list[TensorSpec], results: Any = (0,), y: Any = np.float32
) -> str | None:
    rule = typed_rule("FLOOR", inputs, lower, lambda _op: "further", results=results)
    outputs = tuple(spec(f"y{i}", y) for i in range(len(results)))
    return rule.reason(Op(LoweringContext(), NoOptions(), tuple(given), outputs))


X, AXIS = spec("x", np.float32, 2, 3), spec("axis", np.int32, const=np.int32(1))


def test_further_reasons_come_last() -> None:
    assert reason([FLOAT32, CONSTANT], [X, AXIS]) == "further"
    assert reason([ANY, SAME], [X, X]) == "further"


@pytest.mark.parametrize(
    ("said", "inputs", "given"),
    [
        ("needs 2 inputs", [FLOAT32, CONSTANT], [X]),
        ("'axis' is int32, not one of float32", [FLOAT32], [AXIS]),
        ("'axis' is computed at run time", [ANY, CONSTANT], [X, spec("axis", np.int32)]),
        (
            "'axis' [2] is not one number",
            [ANY, CONSTANT],
            [X, spec("axis", np.int32, 2, const=np.int32([0, 1]))],
        ),
        ("'x' is float32 and 'axis' int32", [ANY, SAME], [X, AXIS]),
    ],
)
def test_inputs_of_another_type(said: str, inputs: list[Input], given: list[TensorSpec]) -> None:
    assert said in str(reason(inputs, given))


@pytest.mark.parametrize(
    ("result", "right", "wrong"),
    [
        (0, np.float32, np.float64),
        (np.int64, np.int64, np.int32),
        (dtypes(np.int32, np.int64), np.int32, np.float32),
        (COMPLEX_OF, np.complex64, np.complex128),
    ],
    ids=["position", "type", "types", "by dtype"],
)
def test_results_of_another_type(result: Any, right: Any, wrong: Any) -> None:
    assert reason([REAL], [X], [result], right) == "further"
    assert f"'y0' is {np.dtype(wrong)}" in str(reason([REAL], [X], [result], wrong))
    assert reason([REAL], [X], [None], wrong) == "further"
