"""The demo's MobileNet v1 and its verdict."""

import numpy as np
import pytest

from jaxdelegate import Interpreter
from jaxdelegate.demo.mobilenet import DemoResult, mobilenet_v1
from jaxdelegate.model.records import read_model
from jaxdelegate.report.delegation import DelegationReport
from jaxdelegate.testing.running import random_inputs, run_once


def test_it_is_the_network_of_the_paper() -> None:
    (graph,) = read_model(mobilenet_v1(size=224)).subgraphs
    kinds = [operator.name for operator in graph.operators]
    assert [kinds.count(kind) for kind in ("CONV_2D", "DEPTHWISE_CONV_2D")] == [15, 13]
    assert kinds[-4:] == ["AVERAGE_POOL_2D", "CONV_2D", "RESHAPE", "SOFTMAX"]
    weights = sum(t.data.size for t in graph.tensors if t.data is not None and "/w" in t.name)
    assert weights == 864 + 44_640 + 3_139_584 + 1024 * 1001  # first, depthwise, pointwise, last


def test_any_batch_has_probabilities() -> None:
    interpreter = Interpreter(model_content=mobilenet_v1(size=32, width=0.25, classes=5))
    details = [{**d, "shape": np.array([2, 32, 32, 3])} for d in interpreter.get_input_details()]
    (y,) = run_once(interpreter, random_inputs(details))
    assert y.shape == (2, 5)
    np.testing.assert_allclose(y.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("error", "agrees"), [(0.0, True), (1e-4, True), (2e-4, False), (float("nan"), False)]
)
def test_the_verdict(error: float, agrees: bool) -> None:
    report = DelegationReport("JaxDelegate", "XLA:CPU", ())
    result = DemoResult(report, 10**6, 1.0, 1.0, 1.0, error)
    assert result.agrees == agrees
    assert f"outputs {'agree' if agrees else 'DISAGREE'} with" in str(result)
