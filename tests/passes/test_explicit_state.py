"""Resource variables: delegated as state, and quantized."""

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.dtypes import DTYPES
from jaxdelegate.op_lowering.options import AddOptions, TensorType, VarHandleOptions
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import run_once
from tests.support.quantized import scaled

OPERATORS = ["VAR_HANDLE", "ASSIGN_VARIABLE", "READ_VARIABLE", "ADD"]


def quantized(scale: float, zero_point: int = 3) -> Quantization:
    return scaled(scale, zero_point)


def doubled(read: Quantization | None, q: Quantization | None, dtype: type) -> bytes:
    """variable = x; y = x + variable, which is read with another scale."""
    builder = ModelBuilder()
    x = builder.input((4,), dtype, "x", quantization=q)
    handle = builder.tensor((1,), DTYPES[TensorType.RESOURCE], "handle")
    old = builder.tensor((4,), dtype, "old", quantization=read)
    y = builder.tensor((4,), dtype, "y", quantization=q)
    builder.operator("VAR_HANDLE", [], [handle], VarHandleOptions("container", "sum"))
    builder.operator("ASSIGN_VARIABLE", [handle, x], [])
    builder.operator("READ_VARIABLE", [handle], [old])
    builder.operator("ADD", [x, old], [y], AddOptions())
    builder.outputs(y)
    return builder.build()


def invokes(content: bytes, *delegates: jd.JaxDelegate) -> np.ndarray:
    interpreter = jd.Interpreter(
        model_content=content, experimental_delegates=list(delegates) or None
    )
    dtype = interpreter.get_input_details()[0]["dtype"]
    return np.stack([run_once(interpreter, [np.array([k, 5, -2, 40], dtype)])[0] for k in range(4)])


@pytest.mark.parametrize("quant_mode", ["float_view", "integer"])
@pytest.mark.parametrize(
    ("dtype", "q"), [(np.float32, None), (np.int8, quantized(0.5))], ids=["float32", "int8"]
)
def test_variables_are_delegated(dtype: type, q: Quantization | None, quant_mode: str) -> None:
    content = doubled(q, q, dtype)
    delegate = jd.JaxDelegate(quant_mode=quant_mode)
    np.testing.assert_array_equal(invokes(content, delegate), invokes(content))
    assert [n.op for n in delegate.report().delegated] == OPERATORS


def test_bytes_that_are_read_as_other_numbers_stay_bytes() -> None:
    content = doubled(quantized(0.25), quantized(0.5), np.int8)
    delegate = jd.JaxDelegate(quant_mode="float_view", min_gain=0)
    np.testing.assert_array_equal(invokes(content, delegate), invokes(content))
    assert [n.op for n in delegate.report().left] == ["ASSIGN_VARIABLE", "READ_VARIABLE"]
    integers = jd.JaxDelegate(quant_mode="integer")
    np.testing.assert_array_equal(invokes(content, integers), invokes(content))
    assert [n.op for n in integers.report().delegated] == OPERATORS


def test_a_variable_that_holds_a_handle_stays_on_the_host() -> None:
    builder = ModelBuilder()
    x, y = builder.input((4,)), builder.tensor((4,))
    handle, other = (builder.tensor((1,), DTYPES[TensorType.RESOURCE], n) for n in ("a", "b"))
    builder.operator("VAR_HANDLE", [], [handle], VarHandleOptions("", "a"))
    builder.operator("VAR_HANDLE", [], [other], VarHandleOptions("", "b"))
    builder.operator("ASSIGN_VARIABLE", [handle, other], [])
    builder.operator("ADD", [x, x], [y], AddOptions())
    builder.outputs(y)
    delegate = jd.JaxDelegate(min_gain=0)
    interpreter = jd.Interpreter(model_content=builder.build(), experimental_delegates=[delegate])
    np.testing.assert_array_equal(run_once(interpreter, [np.ones(4, np.float32)])[0], 2)
    reasons = {node.op: node.reason for node in delegate.report().left}
    assert reasons["ASSIGN_VARIABLE"] == "'b' is a handle, which XLA does not have"


@pytest.mark.parametrize("names", [("a", "b/c", "a/b", "c"), ("", "x", "", "y")])
def test_two_variables_are_never_one(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxdelegate.op_lowering.resources.reference.zlib.crc32", lambda _: 7)
    builder = ModelBuilder()
    x, y = builder.input((4,)), builder.tensor((4,))
    one, other = (builder.tensor((1,), DTYPES[TensorType.RESOURCE], n) for n in "ab")
    builder.operator("VAR_HANDLE", [], [one], VarHandleOptions(*names[:2]))
    builder.operator("VAR_HANDLE", [], [other], VarHandleOptions(*names[2:]))
    builder.operator("ASSIGN_VARIABLE", [one, x], [])
    builder.operator("ASSIGN_VARIABLE", [other, builder.constant(np.zeros(4, np.float32))], [])
    builder.operator("READ_VARIABLE", [one], [y])
    builder.outputs(y)
    for delegates in ([], [jd.JaxDelegate(min_gain=0)]):
        interpreter = jd.Interpreter(
            model_content=builder.build(), experimental_delegates=delegates
        )
        np.testing.assert_array_equal(run_once(interpreter, [np.ones(4, np.float32)])[0], 1)
