"""What a lowered operator reads: tensors, and weights with the functions that prepare them."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from jaxdelegate.errors import LoweringError
from jaxdelegate.lowering.computation import LoweredOperator, Weight
from jaxdelegate.lowering.operators import lower_operator
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.options import AddOptions, FullyConnectedOptions
from jaxdelegate.op_lowering.precision import FLOAT16, PrecisionPolicy
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.op_lowering.spec import TensorSpec

FLOAT = np.dtype(np.float32)
X, W, Y = 0, 1, 2
CONTEXT = LoweringContext()


def spec(*shape: int, const: np.ndarray | None = None) -> TensorSpec:
    return TensorSpec("", shape, FLOAT, const=const)


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)


def operator(name: str, options: Any) -> Operator:
    return Operator(
        index=3, name=name, builtin_code=0, inputs=(X, W), outputs=(Y,), options=options
    )


def lowered(op: Operator, specs: dict[int, TensorSpec], **more: Any) -> LoweredOperator:
    context = more.pop("context", CONTEXT)
    return lower_operator(op, (op,), specs, context, **{"raw_weights": False, **more})


def product(w: np.ndarray, **more: Any) -> LoweredOperator:
    op = operator("FULLY_CONNECTED", FullyConnectedOptions())
    return lowered(op, {X: spec(2, 8), W: spec(4, 8, const=w), Y: spec(2, 4)}, **more)


def total(w: np.ndarray, **more: Any) -> LoweredOperator:
    op = operator("ADD", AddOptions())
    return lowered(op, {X: spec(*w.shape), W: spec(*w.shape, const=w), Y: spec(*w.shape)}, **more)


def run(step: LoweredOperator, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The result with the step's only weight as it prepares it."""
    ((_, prepare),) = step.preparations.items()
    (y,) = step.run(x, w if prepare is None else prepare(w))
    return np.asarray(y)


def test_a_constant_is_a_weight_in_the_layout_that_its_rule_prepares() -> None:
    w, x = values(4, 8), values(2, 8)
    step = product(w)
    weight = Weight(W, operator=3, position=1, layout=step.inputs[1].layout)  # type: ignore[union-attr]
    assert step.inputs == (X, weight)
    assert list(step.preparations) == [weight]
    np.testing.assert_allclose(run(step, x, w), x @ w.T, rtol=1e-5, atol=1e-5)


def test_raw_weights_have_the_layout_of_the_file() -> None:
    w, x = values(4, 8), values(2, 8)
    step = product(w, raw_weights=True)
    assert step.preparations == {Weight(W): None}
    np.testing.assert_allclose(run(step, x, w), x @ w.T, rtol=1e-5, atol=1e-5)


def test_layouts_differ_by_the_shapes_and_the_quantization_mode() -> None:
    w = values(4, 8)
    integer = dataclasses.replace(CONTEXT, quant_mode="integer")
    assert product(w).inputs == product(w.copy()).inputs
    assert product(w).inputs != product(w, context=integer).inputs


def test_large_constants_are_downcast_as_the_policy_stores_them() -> None:
    w = values(300, 300)
    half = LoweringContext("gpu", PrecisionPolicy(storage=FLOAT16))
    step = total(w, context=half)
    ((weight, prepare),) = step.preparations.items()
    assert weight == Weight(W, layout="float16")
    assert prepare is not None
    assert prepare(w).dtype == FLOAT16
    assert total(w).preparations == {Weight(W): None}


def test_an_operator_has_the_name_that_the_file_gives_it() -> None:
    part = dataclasses.replace(operator("MUL", AddOptions()), index=3)
    op = operator("ADD", AddOptions())
    specs = {X: spec(2), W: spec(2, const=values(2)), Y: spec(2)}
    step = lower_operator(op, (part,), specs, CONTEXT, raw_weights=False)
    assert step.name == "MUL"
    assert step.operator.name == "ADD"


def test_an_operator_without_a_rule_is_an_error() -> None:
    with pytest.raises(LoweringError, match=r"node 3 \(UNKNOWN\) has no rule"):
        lowered(operator("UNKNOWN", AddOptions()), {X: spec(2), W: spec(2), Y: spec(2)})
