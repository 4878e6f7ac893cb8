"""Weights in blocks whose values were taken out of the file: zeros, and said so."""

import logging

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import AddOptions, SubOptions
from jaxdelegate.quant.params import Blockwise, Quantization
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import run_once

NOTHING = np.empty(0, np.float32), np.empty(0, np.int64)


def sums(values: np.ndarray | None, *, name: str = "ADD") -> bytes:
    """int8 x without a scale, plus (minus) weights in blocks of two."""
    builder = ModelBuilder()
    scales = builder.constant(np.array([0.5, 2], np.float32))
    x = builder.input((4,), np.int8, "x")
    q = Quantization(*NOTHING, blockwise=Blockwise(scales, -1, 2))
    if values is None:
        w = builder.tensor((4,), np.int8, "w", quantization=q)
    else:
        w = builder.constant(values, "w", quantization=q)
    y = builder.tensor((4,), np.int8, "y")
    builder.operator(name, [x, w], [y], AddOptions() if name == "ADD" else SubOptions())
    builder.outputs(y)
    return builder.build()


X = np.array([1, -2, 100, -128], np.int8)
MODES = [None, "float_view", "integer"]


def run(content: bytes, quant_mode: str | None) -> np.ndarray:
    delegates = [jd.JaxDelegate(quant_mode=quant_mode)] if quant_mode else None
    return run_once(jd.Interpreter(model_content=content, experimental_delegates=delegates), [X])[0]


@pytest.mark.parametrize("quant_mode", MODES)
def test_stripped_values_are_zeros(
    quant_mode: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "jaxdelegate")
    np.testing.assert_array_equal(run(sums(None), quant_mode), X)
    assert "'w' has no data in the file: zeros are used" in caplog.text


@pytest.mark.parametrize("quant_mode", MODES)
@pytest.mark.parametrize(("name", "sign"), [("ADD", 1), ("SUB", -1)])
def test_values_count_by_their_scales(name: str, sign: int, quant_mode: str | None) -> None:
    values = np.array([4, -6, 30, 3], np.int8)
    want = np.clip(X + sign * values * np.array([0.5, 0.5, 2, 2]), -128, 127)
    np.testing.assert_array_equal(run(sums(values, name=name), quant_mode), want)


def test_other_tensors_without_data_are_an_error() -> None:
    builder = ModelBuilder()
    x, w, y = builder.input((4,), name="x"), builder.tensor((4,)), builder.tensor((4,))
    builder.operator("ADD", [x, w], [y], AddOptions())
    builder.outputs(y)
    with pytest.raises(jd.ModelError, match="must hold data"):
        jd.load(builder.build())
