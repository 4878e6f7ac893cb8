from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.common.packed_weights import Packed, WeightStorage
from jaxdelegate.op_lowering.options import Conv2DOptions, Padding
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import Lowered, LoweringContext, Op
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.params import Quantization, integer_range
from jaxdelegate.testing import Arg, Case
from tests.support.combinations import covering
from tests.support.quantized import scaled

INT4, INT2 = np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.int2)
INT8, FLOAT = np.dtype(np.int8), np.dtype(np.float32)
Shape = tuple[int, ...]


def weights(dtype: np.dtype, shape: Shape) -> np.ndarray:
    low, high = integer_range(dtype)
    return np.random.default_rng(shape).integers(low, high, shape, endpoint=True).astype(dtype)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    covering([(3, 8), (3, 7), (2, 3, 5), (1, 1), (0, 4), (4, 0)], [INT4, INT2]),
)
def test_rows_come_back(dtype: np.dtype, shape: Shape) -> None:
    packed, w = Packed(dtype, shape[-1]), weights(dtype, shape)
    data = packed.pack(w)
    assert (data.dtype, data.shape[:-1]) == (np.uint8, shape[:-1])
    assert data.shape[-1] == -(-shape[-1] * (4 if dtype == INT4 else 2) // 8)
    np.testing.assert_array_equal(packed.pack(jnp.asarray(w)), data)
    got = packed.unpack(jnp.asarray(data))
    assert got.dtype == np.int8
    np.testing.assert_array_equal(got, w.astype(np.int8))


@pytest.mark.parametrize(
    ("dtype", "shape", "known", "is_packed"),
    [
        (INT4, (256, 256), True, True),
        (INT2, (256, 256), True, True),
        (INT4, (255, 256), True, False),
        (INT4, (256, 256), False, False),
        (INT8, (256, 256), True, False),
    ],
)
def test_large_constants_are_packed(
    dtype: np.dtype, shape: Shape, known: bool, is_packed: bool
) -> None:
    w = weights(dtype, shape)
    storage = WeightStorage.of(TensorSpec("w", shape, dtype, const=w if known else None))
    assert (storage.packed is not None) == is_packed
    np.testing.assert_array_equal(storage.read(jnp.asarray(storage.prepare(w))), w.astype(np.int8))


def row_bytes(dtype: np.dtype) -> int:
    return 130 if dtype == INT4 else 65


def scale(value: float, zero_point: int = 0) -> Quantization:
    return scaled(value, zero_point)


def dense(dtype: np.dtype, activations: np.dtype) -> Case:
    """259 columns: rows end within a byte."""
    rng = np.random.default_rng(1)
    w = Arg(weights(dtype, (260, 259)), is_const=True, quantization=scale(0.02))
    x = rng.normal(size=(3, 259)).astype(np.float32)
    if activations == FLOAT:
        return Case("FULLY_CONNECTED", f"{dtype}-{activations}", [Arg(x), w], version=14)
    stored = Arg(np.rint(x * 30).clip(-128, 127).astype(activations), quantization=scale(1 / 30, 3))
    return Case(
        "FULLY_CONNECTED",
        f"{dtype}-{activations}",
        [stored, w],
        version=14,
        output_quantization=[scale(0.1, -5)],
    )


def lookup(dtype: np.dtype) -> Case:
    ids = Arg(np.array([3, 259, 0], np.int32))
    table = Arg(weights(dtype, (260, 259)), is_const=True, quantization=scale(0.02))
    return Case("EMBEDDING_LOOKUP", str(dtype), [ids, table], outputs=[np.float32], version=4)


def convolution(activations: np.dtype, window: int) -> Case:
    """Padded, so that zero points surround the image."""
    rng = np.random.default_rng(window)
    channels = 259 if window == 1 else 31
    w = Arg(weights(INT4, (260, window, window, channels)), is_const=True, quantization=scale(0.02))
    x = rng.normal(size=(2, 4, 5, channels)).astype(np.float32)
    bias = np.zeros(260, np.float32)
    details: dict[str, Any] = {"options": Conv2DOptions(Padding.SAME, 1, 1), "version": 8}
    label = f"{activations}-{window}"
    if activations == FLOAT:
        return Case("CONV_2D", label, [Arg(x), w, Arg(bias, is_const=True)], **details)
    stored = Arg(np.rint(x * 30).clip(-128, 127).astype(activations), quantization=scale(1 / 30, 3))
    zeros = Arg(bias.astype(np.int32), is_const=True, quantization=scale(0.02 / 30))
    details["output_quantization"] = [scale(0.1, -5)]
    return Case("CONV_2D", label, [stored, w, zeros], **details)


CONVOLUTIONS = [convolution(a, window) for a in (INT8, FLOAT) for window in (1, 3)]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolutions_compute_on_packed_filters(case: Case) -> None:
    rule, (inputs, outputs) = RULES[case.name], case.specs()
    context = LoweringContext(op_version=case.version, quant_mode="integer")
    lowered = rule.lower(Op(context, case.op_options, inputs, outputs))
    assert isinstance(lowered, Lowered)
    prepared = lowered.prepare[1](case.arrays()[1])
    assert (prepared.dtype, prepared.shape[-1]) == (np.uint8, 130)
    case.check(case.run_lowered(rule), case.run_reference())


PACKED = [
    *(dense(dtype, activations) for dtype in (INT4, INT2) for activations in (INT8, FLOAT)),
    *(lookup(dtype) for dtype in (INT4, INT2)),
]


@pytest.mark.parametrize("case", PACKED, ids=str)
def test_operators_compute_on_packed_constants(case: Case) -> None:
    rule, (inputs, outputs) = RULES[case.name], case.specs()
    w = case.inputs[1]
    assert w is not None
    context = LoweringContext(op_version=case.version, quant_mode="integer")
    lowered = rule.lower(Op(context, case.op_options, inputs, outputs))
    assert isinstance(lowered, Lowered)
    prepared = lowered.prepare[1](w.value)
    assert (prepared.dtype, prepared.shape) == (np.uint8, (260, row_bytes(w.value.dtype)))
    with jax.enable_x64(True):
        got = jax.jit(lowered.run)(case.feeds()[0], prepared)
    case.check([np.asarray(got[0])], case.run_reference())
    case.check(case.run_lowered(rule), case.run_reference())


@pytest.mark.parametrize("mode", ["integer", "float_view"])
@pytest.mark.parametrize("case", PACKED, ids=str)
def test_delegates_keep_them_so(case: Case, mode: Any) -> None:
    delegate = jd.JaxDelegate(quant_mode=mode, require_full_delegation=True)
    interpreter = jd.Interpreter(model_content=case.model(), experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], case.feeds()[0])
    interpreter.invoke()
    got = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    if mode == "integer":
        w = case.inputs[1]
        assert w is not None
        resident = {(a.dtype.name, a.shape) for a in jax.live_arrays()}
        assert ("uint8", (260, row_bytes(w.value.dtype))) in resident
    if mode == "integer" or case.name == "EMBEDDING_LOOKUP":
        case.check([got], case.run_reference())
    else:  # float activations are not rounded to 8 bits
        far = np.abs(got.astype(np.float64) - case.run_reference()[0])
        assert far.max() <= (1 if got.dtype == np.int8 else 0.2)
