"""On a GPU: whole networks at batch, attention, float16 beyond its range, int8, shipped models."""

import functools
import warnings
from collections.abc import Callable

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.measuring.tolerance import NETWORK, Tolerance, assert_close
from jaxdelegate.op_lowering.options import (
    BatchMatMulOptions,
    Conv2DOptions,
    FullyConnectedOptions,
    Padding,
    ReducerOptions,
)
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import random_inputs, run_once
from sample_tasks.tasks import TASKS
from tests.gpu.on_device import HALF, NEEDS_DEVICE, reference, run, stock
from tests.support.attention_networks import bert_small
from tests.support.decoders import (
    FLOAT32,
    INT4,
    INT8,
    VOCABULARY,
    chain,
    gated_layers,
    quantized_decoder,
)
from tests.support.networks import mobilenet_v2

pytestmark = NEEDS_DEVICE
BECAUSE = "the whole network in half precision"
FULL = {"require_full_delegation": True}
LARGEST_HALF = 65504.0


def feeds(model: bytes, batch: int) -> list[np.ndarray]:
    details = jd.Interpreter(model_content=model).get_input_details()
    return random_inputs([{**d, "shape": np.array([batch, *d["shape"][1:]])} for d in details])


@functools.cache
def mobilenet() -> bytes:
    return mobilenet_v2(size=96, width=0.5, classes=100)


@pytest.mark.parametrize("batch", [32, 128])
def test_mobilenet_at_batch(batch: int) -> None:
    """Above 2^23 products depthwise convolutions are lowered differently."""
    x = feeds(mobilenet(), batch)
    want = stock(mobilenet(), x)
    float32, _ = run(mobilenet(), x, compute_dtype="float32", **FULL)
    assert_close(float32, want, tolerance=NETWORK)
    float16, _ = run(mobilenet(), x, compute_dtype="float16", **FULL)
    assert_close(float16, float32, tolerance=HALF, because=BECAUSE)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("batch", [1, 8])
def test_attention_of_a_transformer(dtype: str, batch: int) -> None:
    """Heads of 64 and a mask, which cuDNN's fused attention accepts in float16."""
    model = bert_small(length=128, layers=2, hidden=128, heads=2, vocabulary=100)
    x = feeds(model, batch)
    got, _ = run(model, x, compute_dtype=dtype, **FULL)
    if dtype == "float32":
        assert_close(got, stock(model, x), tolerance=NETWORK)
    else:
        assert_close(got, stock(model, x), tolerance=HALF, because=BECAUSE)


@pytest.mark.parametrize("batch", [1, 32])
def test_int8_to_the_bit(batch: int) -> None:
    model = mobilenet_v2(size=32, width=0.5, classes=10, quantized=True)
    x = feeds(model, batch)
    got, _ = run(model, x, quant_mode="integer", **FULL)
    np.testing.assert_array_equal(got[0], stock(model, x, exact=True)[0])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("rows", [1, 7, 100])
def test_filters_of_few_bits(rows: int, dtype: str) -> None:
    """Programs hold them as the file does; activations are floats."""
    model = quantized_decoder(rows)
    ids = np.arange(rows, dtype=np.int32) * 3 % VOCABULARY
    options = {"quant_mode": "float_view", **FULL}
    got, _ = run(model, [ids], compute_dtype=dtype, **options)
    on_cpu = jd.JaxDelegate(platform="cpu", quant_mode="float_view")
    interpreter = jd.Interpreter(model_content=model, experimental_delegates=[on_cpu])
    want = run_once(interpreter, [ids])
    if dtype == "float32":
        assert_close(got, want, tolerance=NETWORK)
    else:
        assert_close(got, want, tolerance=HALF, because=BECAUSE)


@pytest.mark.parametrize("block", [0, 32])
@pytest.mark.parametrize("dtype", [INT8, INT4])
def test_long_rows_of_few_bits(dtype: np.dtype, block: int) -> None:
    """Several programs of the kernel share a row."""
    model = chain(7, dtype, block, layers=1, width=2048)
    x = feeds(model, 7)
    got, _ = run(model, x, compute_dtype="float16", quant_mode="float_view", **FULL)
    on_cpu = jd.JaxDelegate(platform="cpu", quant_mode="float_view")
    interpreter = jd.Interpreter(model_content=model, experimental_delegates=[on_cpu])
    assert_close(got, run_once(interpreter, x), tolerance=HALF, because=BECAUSE)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("filters", [(INT8, 0), (INT4, 0), (INT4, 32), (FLOAT32, 0)])
@pytest.mark.parametrize("rows", [1, 3, 16, 64])
def test_layers_of_a_decoder(rows: int, filters: tuple[np.dtype, int], dtype: str) -> None:
    """Norm, products, gate and residual are one kernel each, except on float32 filters."""
    model = gated_layers(rows, *filters, layers=2, width=512, hidden=768)
    x = feeds(model, 7)
    got, _ = run(model, x, compute_dtype=dtype, quant_mode="float_view", **FULL)
    on_cpu = jd.JaxDelegate(platform="cpu", quant_mode="float_view")
    interpreter = jd.Interpreter(model_content=model, experimental_delegates=[on_cpu])
    want = run_once(interpreter, x)
    if dtype == "float32":
        assert_close(got, want, tolerance=NETWORK)
    else:
        assert_close(got, want, tolerance=HALF, because=BECAUSE)


@pytest.mark.parametrize("name", sorted(TASKS))
@pytest.mark.parametrize("quantized", [False, True])
def test_shipped_models(name: str, quantized: bool) -> None:
    task = TASKS[name]
    model, x = task.network(quantized), [task.inputs(task.picture(0))]
    got, _ = run(model, x, quant_mode="integer", **FULL)
    want = reference(model, x)  # LiteRT does not write the rows of missing detections
    if quantized:
        because = "int8 inside, float outside: bit-equal except for the last dequantization"
        assert_close(got, want, tolerance=Tolerance(of_largest=1e-6), because=because)
    else:
        assert_close(got, want, tolerance=NETWORK)


# ---- float16 beyond its range


class Sums:
    """Sums of 64 products with a weight, and a hundredth of them."""

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.builder = ModelBuilder("sums beyond float16")

    def then(
        self, name: str, inputs: list[int], shape: tuple[int, ...], options: object = None
    ) -> int:
        y = self.builder.tensor(shape, name=f"sums_by_{name}")
        self.builder.operator(name, inputs, [y], options)  # type: ignore[arg-type]
        return y

    def full(self, *shape: int) -> int:
        return self.builder.constant(np.full(shape, self.weight, np.float32))

    def model(self, y: int, shape: tuple[int, ...]) -> bytes:
        scale = self.builder.constant(np.float32(0.01))
        self.builder.outputs(self.then("MUL", [y, scale], shape))
        return self.builder.build()


def by_convolution(window: int, weight: float) -> bytes:
    s, shape = Sums(weight), (1, 8, 8, 16)
    x = s.builder.input((1, 8, 8, 64 // window**2), name="x")
    zeros = s.builder.constant(np.zeros(16, np.float32))
    inputs = [x, s.full(16, window, window, 64 // window**2), zeros]
    return s.model(s.then("CONV_2D", inputs, shape, Conv2DOptions(Padding.SAME, 1, 1)), shape)


def by_matrix(weight: float) -> bytes:
    s, shape = Sums(weight), (4, 16)
    inputs = [s.builder.input((4, 64), name="x"), s.full(16, 64)]
    return s.model(s.then("FULLY_CONNECTED", [*inputs, -1], shape, FullyConnectedOptions()), shape)


def by_batch_matmul(weight: float) -> bytes:
    s, shape = Sums(weight), (2, 4, 16)
    inputs = [s.builder.input((2, 4, 64), name="x"), s.full(2, 64, 16)]
    return s.model(s.then("BATCH_MATMUL", inputs, shape, BatchMatMulOptions()), shape)


def by_sum(weight: float) -> bytes:
    """LiteRT#9249: a sum of 4096 values in float16."""
    s, shape = Sums(weight), (1, 1)
    axes = s.builder.constant(np.array([1], np.int32))
    inputs = [s.builder.input((1, 4096), name="x"), axes]
    return s.model(s.then("SUM", inputs, shape, ReducerOptions(keep_dims=True)), shape)


OVERFLOWS: list[Callable[[float], bytes]] = [
    functools.partial(by_convolution, 1),
    functools.partial(by_convolution, 4),
    by_matrix,
    by_batch_matmul,
    by_sum,
]
IDS = ["CONV_2D_1x1", "CONV_2D_4x4", "FULLY_CONNECTED", "BATCH_MATMUL", "SUM"]


@pytest.mark.parametrize("build", OVERFLOWS, ids=IDS)
@pytest.mark.parametrize("dtype", ["float16", "auto"])
def test_float16_beyond_its_range(build: Callable[[float], bytes], dtype: str) -> None:
    """Right, or clamped to 65504, or a warning names the operator.

    `auto` must be right: it has tried values of [-1, 1]. A sum, which has no weights, needs larger
    ones.
    """
    value, weight = (1.0, 4e4) if dtype == "auto" and build is not by_sum else (40.0, 40.0)
    model = build(weight)
    x = [np.full(a.shape, value, np.float32) for a in feeds(model, _batch(model))]
    (want,) = stock(model, x)
    assert want.max() > LARGEST_HALF / 100
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        (got,), _ = run(model, x, compute_dtype=dtype, **FULL)
    if dtype == "float16" and any("sums_by_" in str(w.message) for w in warned):
        return
    held = np.minimum(want, LARGEST_HALF / 100) if dtype == "float16" else want
    is_right = np.abs(got - want) <= 1e-2 * want
    assert np.isfinite(got).all()
    assert np.all(is_right | (np.abs(got - held) <= 1e-2 * held))


def _batch(model: bytes) -> int:
    return int(jd.Interpreter(model_content=model).get_input_details()[0]["shape"][0])
