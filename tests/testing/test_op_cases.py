"""Recorded cases of a folder: found, run, and compared."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate.testing import ModelBuilder
from tests.support.op_cases import OpCase, check, find_cases, through

SCALE, ZERO = 0.5, 3


def case(folder: Path, recorded: dict[str, Any], *, is_quantized: bool = False) -> OpCase:
    """A recorded case whose model returns its input, int8 or float32, [1, 2, 3]."""
    x = np.array([1, 2, 3], np.int8 if is_quantized else np.float32)
    builder = ModelBuilder()
    tensor, shape, y = (
        builder.input((3,), x.dtype),
        np.array([3], np.int32),
        builder.tensor((3,), x.dtype),
    )
    builder.operator("RESHAPE", [tensor, builder.constant(shape)], [y])
    builder.outputs(y)
    path = folder / "reshape" / "made-000"
    path.mkdir(parents=True)
    (path / "model.tflite").write_bytes(builder.build())
    np.savez(path / "data.npz", in_0=x, **recorded)
    output = {"quant": {"scale": [SCALE], "zero_point": [ZERO]}} if is_quantized else {}
    meta = {"outputs": [output], "tflite_suite_tolerance": {"quant_multiplier": 4}}
    (path / "meta.json").write_text(json.dumps(meta))
    return next(find_cases(folder))


def test_the_preferred_source_is_the_judge(tmp_path: Path) -> None:
    found = case(tmp_path, {"litert_ref_0": np.array([1, 2, 3], np.float32)})
    assert str(found) == "reshape/made-000"
    check(found, through(list))


def test_a_different_result_fails(tmp_path: Path) -> None:
    found = case(tmp_path, {"litert_ref_0": np.array([1, 2, 4], np.float32)})
    with pytest.raises(AssertionError, match="output 0"):
        check(found, through(list))


def test_nothing_recorded(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="no outputs were recorded"):
        check(case(tmp_path, {}), through(list))


@pytest.mark.parametrize(("off", "is_right"), [(0.0, True), (1.9, True), (2.1, False)])
def test_integers_compared_with_real_numbers(tmp_path: Path, off: float, is_right: bool) -> None:
    real = np.float32(SCALE) * (np.array([1, 2, 3], np.float32) - ZERO) + np.float32(off)
    found = case(tmp_path, {"tf_0": real}, is_quantized=True)
    if is_right:
        check(found, through(list))
        return
    with pytest.raises(AssertionError, match="output 0"):
        check(found, through(list))
