"""Bounds on the performance of a device."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.benchmark.peaks import DevicePeaks
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.options import Conv2DOptions
from jaxdelegate.testing import ModelBuilder

PIXELS, CHANNELS = 64, 16  # [1, 8, 8, 16]
TENSOR = PIXELS * CHANNELS * 4
FILTER = CHANNELS * CHANNELS * 4 + CHANNELS * 4


@pytest.fixture
def roofline() -> Any:
    return pytest.importorskip("roofline")


def residual() -> bytes:
    """A convolution, RELU, a second convolution, and their sum."""
    rng = np.random.default_rng(0)
    builder = ModelBuilder()
    shape = (1, 8, 8, CHANNELS)
    x = builder.input(shape, np.float32)

    def convolution(x: int) -> int:
        w = builder.constant(rng.normal(size=(CHANNELS, 1, 1, CHANNELS)).astype(np.float32))
        b = builder.constant(rng.normal(size=CHANNELS).astype(np.float32))
        y = builder.tensor(shape)
        builder.operator("CONV_2D", [x, w, b], [y], Conv2DOptions(stride_w=1, stride_h=1))
        return y

    first = builder.tensor(shape)
    builder.operator("RELU", [convolution(x)], [first])
    total = builder.tensor(shape)
    builder.operator("ADD", [first, convolution(first)], [total])
    builder.outputs(total)
    return builder.build()


def groups(roofline: Any, *, batch: int = 1, short: Any = None) -> Any:
    model = read_model(residual())
    subgraph = model.subgraphs[0]
    specs = roofline.batched_specs(subgraph, batch, model.subgraphs)
    return roofline.fused(subgraph, specs, short)


def test_elementwise_operators_join_what_they_wait_for(roofline: Any) -> None:
    first, second = groups(roofline)
    assert first.operators == (0, 1)
    assert second.operators == (2, 3)
    product = 2 * PIXELS * CHANNELS * CHANNELS
    assert first.flops == second.flops == product + PIXELS * CHANNELS
    assert first.bytes == second.bytes == 2 * TENSOR + FILTER  # the residual is read once


def test_a_batch_reads_its_filters_once(roofline: Any) -> None:
    assert groups(roofline, batch=8)[0].bytes == 8 * 2 * TENSOR + FILTER


def test_what_comes_in_and_goes_out_is_never_short(roofline: Any) -> None:
    first, second = groups(roofline, short=np.dtype(ml_dtypes.bfloat16))
    assert first.bytes == TENSOR + (TENSOR + FILTER) / 2
    assert second.bytes == TENSOR + (TENSOR + FILTER) / 2


def test_the_slower_of_arithmetic_and_traffic_counts(roofline: Any) -> None:
    peaks = DevicePeaks(1e9, {1 << 20: 1e8, 4 << 20: 1e7})
    assert roofline.least_seconds(peaks, 1e9, 1) == 1
    assert roofline.least_seconds(peaks, 1, 1e6) == pytest.approx(1e-2)  # stays in the cache
    assert roofline.least_seconds(peaks, 1, 2e6) == pytest.approx(2e-1)
    assert roofline.least_seconds(peaks, 1, 1e8) == pytest.approx(
        10
    )  # larger than what was measured


def test_a_model_takes_the_sum_of_its_groups(roofline: Any, tmp_path: Any) -> None:
    graph = tmp_path / "model.tflite"
    graph.write_bytes(residual())
    peaks = DevicePeaks(1e9, {1 << 20: 1e30})
    flops = sum(group.flops for group in groups(roofline))
    assert roofline.model_seconds(graph, 1, peaks, None) == pytest.approx(flops / 1e9)
