import dataclasses
from typing import Any

import numpy as np
import pytest
from flatbuffers import flexbuffers

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import HadamardRotationOptions, NumericVerifyOptions
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import Arg, Case, f32, of, value
from jaxdelegate.testing.running import run_once
from tests.support.quantized import scaled

SCALE = scaled(0.25, 3)
CHANNELS = Quantization(np.float32([0.25, 0.5, 2]), np.int64([0, 0, 0]), 1)


def verify(label: str, x: Arg, tolerance: float = 5.0, stops: bool = False, **details: Any) -> Case:
    data = bytes(flexbuffers.Dumps({"tolerance": tolerance, "log_if_failed": stops}))
    inputs = [x, f32(*x.value.shape)]
    options = NumericVerifyOptions.from_bytes(data)
    return Case("NumericVerify", label, inputs, options, [np.float32], **details)


def integers(dtype: Any, *shape: int, scale: Quantization | None = SCALE) -> Arg:
    return Arg(of(dtype, *shape, low=-9, high=9).value, quantization=scale)


VERIFIED = [
    verify("int8", integers(np.int8, 2, 3)),
    verify("uint8", integers(np.uint8, 2, 3, 4)),
    verify("int16", integers(np.int16, 7)),
    verify("scalar", integers(np.int8)),
    verify("float16", of(np.float16, 2, 3)),
    verify("channels", integers(np.int8, 2, 3, scale=CHANNELS)),
    verify("empty", integers(np.int8, 0, 3), litert="refuses empty tensors"),
    verify("no-tolerance", integers(np.int8, 2, 3), 0.0, True),
]
TOLERATED = verify("tolerated", integers(np.int8, 2, 3), 50.0, True)


def rotate(x: Arg, size: int, **details: Any) -> Case:
    entries = {"hadamard_size": size, "random_binary_vector": [1, -1] * (size // 2)}
    options = HadamardRotationOptions.from_bytes(bytes(flexbuffers.Dumps(entries)))
    return Case("aeq.hadamard_rotation", f"{list(x.value.shape)}-{size}", [x], options, **details)


ROTATED = [
    rotate(f32(2, 8), 8),
    rotate(f32(3, 8), 4),
    rotate(f32(2, 3, 16), 16),
    rotate(f32(2, 3, 128), 128),
    rotate(f32(1, 2, 512), 64),
    rotate(f32(2, 2), 2),
    rotate(f32(2, 5), 1),
    rotate(f32(3, 7), 2),
    rotate(f32(3, 7), 8),
    rotate(f32(3, 12), 6),
    rotate(f32(0, 8), 8, litert="refuses empty tensors"),
]
CASES = [*VERIFIED, *ROTATED]


def run_litert(case: Case) -> list[np.ndarray]:
    # The reference resolver does not have the rotation.
    return case.run_litert(optimized=case.name != "NumericVerify")


@pytest.mark.litert
@pytest.mark.parametrize("quant_mode", [None, "float_view", "integer"])
def test_a_debugger_declares_the_result_as_it_does_its_input(quant_mode: str | None) -> None:
    """TensorFlow's QuantizationDebugger writes such files; the kernel's output is float32."""
    case = verify("debugger", integers(np.int8, 2, 3))
    declared = dataclasses.replace(case, outputs=[np.int8], output_quantization=[SCALE])
    delegates = [] if quant_mode is None else [jd.JaxDelegate(quant_mode=quant_mode)]
    interpreter = jd.Interpreter(model_content=declared.model(), experimental_delegates=delegates)
    case.check(run_once(interpreter, case.feeds()), declared.run_litert())
    assert all(not delegate.report().left for delegate in delegates)
    (details,) = interpreter.get_output_details()
    assert details["dtype"] is np.float32
    np.testing.assert_array_equal(details["quantization_parameters"]["scales"], SCALE.scale)


@pytest.mark.litert
def test_a_tolerance_is_that_of_litert() -> None:
    TOLERATED.check(TOLERATED.run_reference(), TOLERATED.run_litert())


REFUSED = {
    "stops the model at a mismatch": TOLERATED,
    "int8 without a scale": verify("", of(np.int8, 2, 3)),
    "[2, 3] and [3, 2] differ": dataclasses.replace(
        TOLERATED, inputs=[integers(np.int8, 2, 3), f32(3, 2)], options=VERIFIED[0].options
    ),
    "'in0' is int32": rotate(of(np.int32, 2, 8), 8),
    "expected [(batch,) rows, n]": rotate(f32(8), 8),
    "hadamard_size is 0": rotate(f32(2, 8), 0),
}


STOPPED = {
    "more than 2.0 steps": verify("", integers(np.int8, 2, 3), 2.0, True),
    ("without a scale", TypeError): verify("", of(np.int8, 2, 3)),
    "differ": REFUSED["[2, 3] and [3, 2] differ"],
    ("not float32", TypeError): rotate(of(np.int32, 2, 8), 8),
    "x is [8]": rotate(f32(8), 8),
    "the size 0": rotate(f32(2, 8), 0),
}


def test_a_rotation_twice_is_none() -> None:
    case = ROTATED[2]
    (once,) = case.run_reference()
    (twice,) = dataclasses.replace(case, inputs=[value(once)]).run_reference()
    case.check([twice], [case.inputs[0].value])  # type: ignore[union-attr]
