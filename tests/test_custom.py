"""Registering a custom operator."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flatbuffers import flexbuffers

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import CustomOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.reference.kernel import Kernel, same_shape
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.testing import ModelBuilder, assert_close
from jaxdelegate.testing.running import run_once


@pytest.fixture
def soft_clamp() -> Iterator[None]:
    """The operator that docs/custom_operators.md registers."""
    text = (Path(__file__).parents[1] / "docs" / "custom_operators.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(code, "custom_operators.md", "exec"), {"__name__": "example"})
    yield
    del KERNELS["SoftClamp"], RULES["SoftClamp"]


def model(limit: float) -> bytes:
    builder = ModelBuilder()
    x, y = builder.input((4,)), builder.tensor((4,))
    options = CustomOptions(bytes(flexbuffers.Dumps({"limit": limit})))
    builder.operator("SoftClamp", [x], [y], options)
    builder.outputs(y)
    return builder.build()


X = np.array([-5, -0.5, 0.5, 5], np.float32)


@pytest.mark.usefixtures("soft_clamp")
def test_the_documented_operator_runs_in_numpy_and_on_xla() -> None:
    want = 2 * np.tanh(X / 2)
    delegate = jd.JaxDelegate(require_full_delegation=True)
    for delegates in (None, [delegate]):
        interpreter = jd.Interpreter(model_content=model(2.0), experimental_delegates=delegates)
        assert_close(run_once(interpreter, [X]), [want])
    assert_close(jd.load(model(2.0))(X), [want])


@pytest.mark.usefixtures("soft_clamp")
def test_the_reason_of_its_rule_is_reported() -> None:
    delegate = jd.JaxDelegate()
    jd.Interpreter(model_content=model(-1.0), experimental_delegates=[delegate])
    assert delegate.report().nodes[0].reason == "limit must be positive, got -1.0"


def test_names_that_cannot_be_registered() -> None:
    kernel = Kernel(lambda *_: (), same_shape)
    with pytest.raises(ValueError, match="'CONV_2D' is a builtin operator"):
        jd.register_operator("CONV_2D", kernel)
    with pytest.raises(ValueError, match="'Roll' is already registered"):
        jd.register_operator("Roll", kernel)
    with pytest.raises(ValueError, match="the rule is for 'RELU' with NoOptions"):
        jd.register_operator("Mine", kernel, RULES["RELU"])
