"""Which engines are accepted as computing the model."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.op_lowering.options import Conv2DOptions, ReshapeOptions
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import ModelBuilder
from tests.support.networks import small_classifier

pytestmark = pytest.mark.litert
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
IMAGE = {"shape": np.array([1, 16, 16, 3]), "dtype": np.float32}


@pytest.fixture
def agreement() -> Any:
    return pytest.importorskip("agreement")


def convolution(*, batch: int = 1, is_quantized: bool = False, reshapes: bool = False) -> bytes:
    """[batch, 4, 4, 8] to [batch, 4, 4, 8] by one pixel, weights of unit size."""
    rng = np.random.default_rng(0)
    builder = ModelBuilder()
    if is_quantized:
        scale = Quantization(np.array([0.05]), np.array([0]))
        x = builder.input((batch, 4, 4, 8), np.int8, quantization=scale)
        weights = rng.integers(-127, 128, (8, 1, 1, 8)).astype(np.int8)
        filters = Quantization(np.array([0.01]), np.array([0]))
        w = builder.constant(weights, quantization=filters)
        b = builder.constant(
            np.zeros(8, np.int32), quantization=Quantization(np.array([0.0005]), np.array([0]))
        )
        y = builder.tensor((batch, 4, 4, 8), np.int8, quantization=scale)
    else:
        x = builder.input((batch, 4, 4, 8), np.float32)
        w = builder.constant(rng.normal(size=(8, 1, 1, 8)).astype(np.float32))
        b = builder.constant(rng.normal(size=8).astype(np.float32))
        y = builder.tensor((batch, 4, 4, 8))
    builder.operator("CONV_2D", [x, w, b], [y], Conv2DOptions(stride_w=1, stride_h=1))
    if reshapes:
        flat = builder.tensor((1, 128))
        sizes = builder.constant(np.array([1, 128], np.int32))
        builder.operator("RESHAPE", [y, sizes], [flat], ReshapeOptions((1, 128)))
        y = flat
    builder.outputs(y)
    return builder.build()


def test_in_float32_a_thousandth_of_the_largest_output_is_wrong(agreement: Any) -> None:
    arrays = agreement.inputs([IMAGE], 1)
    rule = agreement.judge(small_classifier(), arrays, None)
    (want,) = rule.want
    assert rule.why_not([want]) is None
    assert rule.why_not([want + 0.5e-4 * want.max()]) is None
    assert "disagrees" in rule.why_not([want + 1e-3 * want.max()])
    assert "disagrees" in rule.why_not([np.full_like(want, np.nan)])
    assert "outputs of shape" in rule.why_not([want[:, :-1]])


def test_a_short_dtype_is_judged_by_what_rounding_does_to_the_model(agreement: Any) -> None:
    arrays = agreement.inputs([IMAGE], 2)
    rule = agreement.judge(small_classifier(), arrays, BFLOAT16)
    (want,), (rounded,) = rule.want, rule.yardstick
    assert 0 < np.abs(rounded - want).max() < 0.1 * want.max()
    assert rule.why_not([rounded]) is None
    assert rule.times_yardstick([rounded]) == pytest.approx(1)
    assert "disagrees" in rule.why_not([want + 4 * (rounded - want) + 1e-3 * want.max()])
    assert "disagrees" in rule.why_not([want[::-1]])  # from the other image


def test_float16_may_be_a_rounding_step_further_away(agreement: Any) -> None:
    arrays = agreement.inputs([IMAGE], 2)
    rule = agreement.judge(small_classifier(), arrays, np.dtype(np.float16))
    (want,) = rule.want
    assert rule.why_not([want + 0.9e-3 * want.max()]) is None
    assert "disagrees" in rule.why_not([want + 3e-3 * want.max()])
    assert "disagrees" in rule.why_not([want[::-1]])


def test_a_batch_repeats_what_was_judged(agreement: Any) -> None:
    arrays = agreement.inputs([IMAGE], 5)
    assert arrays[0].shape == (5, 16, 16, 3)
    (want,) = agreement.judge(small_classifier(), arrays, None).want
    (whole,) = agreement.reference(small_classifier(), arrays)
    np.testing.assert_array_equal(want, whole)
    assert not np.array_equal(want[0], want[1])


def test_a_batch_that_the_file_has_is_judged_whole(agreement: Any) -> None:
    details = [{"shape": np.array([4, 4, 4, 8]), "dtype": np.float32}]
    arrays = agreement.inputs(details, 1)
    (want,) = agreement.judge(convolution(batch=4), arrays, None).want
    (whole,) = agreement.reference(convolution(batch=4), arrays)
    np.testing.assert_array_equal(want, whole)


def test_a_model_that_refuses_the_batch_is_absent(agreement: Any) -> None:
    arrays = agreement.inputs([{"shape": np.array([1, 4, 4, 8]), "dtype": np.float32}], 2)
    with pytest.raises(pytest.importorskip("harness").AbsentError, match="LiteRT"):
        agreement.judge(convolution(reshapes=True), arrays, None)


def test_quantized_files_may_be_off_by_one_step(agreement: Any) -> None:
    content = convolution(is_quantized=True)
    assert agreement.file_kind(content) == "int8"
    arrays = agreement.inputs([{"shape": np.array([1, 4, 4, 8]), "dtype": np.int8}], 1)
    rule = agreement.judge(content, arrays, None)
    (want,) = rule.want
    up = np.minimum(want.astype(np.int32) + 1, 127).astype(np.int8)
    assert rule.why_not([up]) is None
    assert "disagrees" in rule.why_not([np.roll(want, 1, axis=-1)])


def test_floats_are_in_the_requested_range(agreement: Any) -> None:
    (image,) = agreement.inputs([IMAGE], 1, (0.0, 255.0))
    assert image.dtype == np.float32
    assert 0 <= image.min() < 10
    assert 245 < image.max() <= 255
