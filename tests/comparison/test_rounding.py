"""Outputs of quantized models that differ by rounding are distinguished from wrong ones."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.comparison.bisect import bisect, ranged
from jaxdelegate.comparison.diff import InferenceDiff, inference_diff
from jaxdelegate.comparison.page import page
from jaxdelegate.comparison.sides import Runner, delegated
from jaxdelegate.comparison.text import bisection, summary
from jaxdelegate.op_lowering.options import AddOptions, FullyConnectedOptions, MulOptions
from jaxdelegate.quant.params import Quantization
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.testing.builder import ModelBuilder
from jaxdelegate.tools.main import main


def scaled(scale: float) -> Quantization:
    return Quantization(np.array([scale], np.float32), np.array([0], np.int64))


def amplifying() -> bytes:
    """int8: y = x + x, with many sums between two steps, and z = 16 y: a step of y is 16 of z."""
    builder = ModelBuilder()
    x = builder.input((1, 20_000), np.int8, "x", quantization=scaled(0.0313))
    y = builder.tensor((1, 20_000), np.int8, "y", quantization=scaled(0.0626 * 2))
    z = builder.tensor((1, 20_000), np.int8, "z", quantization=scaled(0.0626 * 2))
    factor = builder.constant(np.array([16], np.int8), "factor", quantization=scaled(1.0))
    builder.operator("ADD", [x, x], [y], AddOptions(), version=2)
    builder.operator("MUL", [y, factor], [z], MulOptions(), version=2)
    builder.outputs(z)
    return builder.build()


def dynamic_range() -> bytes:
    """y = x w, of floats by int8 weights, which DEQUANTIZE also reads."""
    rng = np.random.default_rng(0)
    builder = ModelBuilder()
    x = builder.input((4, 32), np.float32, "x")
    w = builder.constant(
        rng.integers(-127, 127, (8, 32)).astype(np.int8), "w", quantization=scaled(0.01)
    )
    y = builder.tensor((4, 8), np.float32, "y")
    f = builder.tensor((8, 32), np.float32, "f")
    builder.operator("FULLY_CONNECTED", [x, w, None], [y], FullyConnectedOptions())
    builder.operator("DEQUANTIZE", [w], [f])
    builder.outputs(y, f)
    return builder.build()


def compared(model: bytes | None = None, **options: Any) -> InferenceDiff:
    model = model or amplifying()
    test = delegated(model, [jd.JaxDelegate(**options)])
    return inference_diff(model, test, num_runs=2)


def test_rounding_is_not_an_error() -> None:
    result = compared()
    assert not result.agrees
    assert result.outputs[0].max_abs == 16
    assert result.is_healthy
    assert result.rounding is not None
    assert (result.rounding.operators, result.rounding.wrong) == (2, ())
    text = summary(result)
    assert "DIFFERS" not in text
    assert "each of the 2 operators is at most one quantization step off LiteRT's kernel" in text
    assert "--jax_quant_mode=integer" in text
    assert '<body class="healthy">' in page(result)


def test_integers_agree_and_are_not_checked() -> None:
    result = compared(quant_mode="integer")
    assert result.agrees
    assert result.rounding is None


def test_bisect_names_no_operator_for_rounding() -> None:
    model = amplifying()
    result = bisect(model, ranged(model, jd.JaxDelegate()))
    assert (result.verdict, result.culprits) == ("rounding", ())
    assert "by rounding" in bisection(result, "numpy")


def test_the_reference_rounds_in_dynamic_range_operators(break_rule: Any) -> None:
    result = compared(dynamic_range())
    assert [output.agrees for output in result.outputs] == [False, True]
    assert result.is_healthy
    break_rule("FULLY_CONNECTED", lambda y: y * np.float32(1.002))  # less than LiteRT's rounding
    result = compared(dynamic_range())
    assert result.rounding is not None
    assert [wrong.operator for wrong in result.rounding.wrong] == ["FULLY_CONNECTED"]


@pytest.mark.parametrize("operator", ["ADD", "MUL"])
def test_operators_off_by_more_than_a_step_are_named(break_rule: Any, operator: str) -> None:
    break_rule(operator, lambda y: y + np.float32(0.4))  # three steps
    result = compared()
    assert not result.is_healthy
    assert result.rounding is not None
    assert [wrong.operator for wrong in result.rounding.wrong] == [operator]
    assert f"more than rounding, first in #{('ADD', 'MUL').index(operator)} {operator}" in summary(
        result
    )


def test_an_operator_without_a_float_counterpart_is_wrong(
    break_rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = KERNELS["ADD"]

    def of_integers(o: Any, inputs: Any, outputs: Any, *arrays: Any) -> Any:
        if inputs[0].dtype.kind == "f":
            raise ValueError("no kernel for floats")
        return kernel.run(o, inputs, outputs, *arrays)

    monkeypatch.setitem(KERNELS, "ADD", dataclasses.replace(kernel, run=of_integers))
    break_rule("ADD", lambda y: y + np.float32(0.4))
    result = compared()
    assert result.rounding is not None
    assert [wrong.operator for wrong in result.rounding.wrong] == ["ADD"]


def test_results_that_were_not_kept_explain_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    value = Runner.value
    monkeypatch.setattr(
        Runner, "value", lambda self, index: None if index == 1 else value(self, index)
    )
    result = compared()
    assert result.rounding is not None
    assert (result.rounding.operators, result.rounding.unseen) == (1, 1)
    assert not result.is_healthy


def test_another_program_explains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that keeps all tensors is correct, the original one is not."""
    opened = jd.Interpreter.get_tensor

    def get_tensor(self: jd.Interpreter, index: int, subgraph_index: int = 0) -> np.ndarray:
        value = opened(self, index, subgraph_index)
        is_plain = self._delegates and not self._preserve
        return np.roll(value, 1) if is_plain else value

    monkeypatch.setattr(jd.Interpreter, "get_tensor", get_tensor)
    result = compared()
    assert result.rounding is not None
    assert (result.rounding.wrong, result.rounding.is_same_program) == ((), False)
    assert not result.is_healthy


def test_exit_codes(tmp_path: Any, break_rule: Any) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(amplifying())
    assert main(["inference_diff", f"--graph={path}", "--num_runs=1"]) == 0
    assert main(["bisect", f"--graph={path}"]) == 0
    break_rule("ADD", lambda y: y + np.float32(0.4))
    assert main(["inference_diff", f"--graph={path}", "--num_runs=1"]) == 2
