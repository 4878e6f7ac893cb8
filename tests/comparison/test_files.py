"""Two files compared on the same inputs: paired, dequantized and judged as a whole."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.comparison.diff import InferenceDiff
from jaxdelegate.comparison.files import FilePair, file_diff
from jaxdelegate.comparison.inputs import InputSettings
from jaxdelegate.comparison.sides import delegated
from jaxdelegate.comparison.text import summary, verdict
from jaxdelegate.errors import OptionError
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.options import FullyConnectedOptions
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import ModelBuilder
from tests.support.detectors import color_detector
from tests.support.quantized import scaled

WEIGHTS = np.random.default_rng(0).normal(0, 0.5, (4, 8)).astype(np.float32)
INPUT, OUTPUT = scaled(1 / 64, 3), scaled(1 / 16, -7)
MODELS = Path(__file__).parents[3] / "shared/models/networks"


def diff(model: bytes, against: bytes, **options: Any) -> InferenceDiff:
    test = delegated(model, [jd.JaxDelegate()])
    return file_diff(model, against, test, **{"num_runs": 2, **options})


def dense(weights: np.ndarray = WEIGHTS, dtype: Any = np.float32) -> bytes:
    """A product with weights [4, n]; those that are not float32 are dequantized first."""
    builder = ModelBuilder()
    x = builder.input((1, weights.shape[1]), np.float32, "x")
    y = builder.tensor((1, 4), np.float32, name="y")
    w = builder.constant(weights.astype(dtype))
    if dtype != np.float32:
        whole = builder.tensor(weights.shape)
        builder.operator("DEQUANTIZE", [w], [whole])
        w = whole
    builder.operator("FULLY_CONNECTED", [x, w], [y], FullyConnectedOptions())
    builder.outputs(y)
    return builder.build()


def int8_dense(output: Quantization = OUTPUT) -> bytes:
    builder = ModelBuilder()
    x = builder.input((1, 8), np.int8, "x", quantization=INPUT)
    y = builder.tensor((1, 4), np.int8, name="y_int8", quantization=output)
    scale = float(np.abs(WEIGHTS).max()) / 127
    weights = np.rint(WEIGHTS / scale).astype(np.int8)
    w = builder.constant(weights, quantization=scaled(scale))
    builder.operator("FULLY_CONNECTED", [x, w], [y], FullyConnectedOptions())
    builder.outputs(y)
    return builder.build()


def difference(first: str, second: str, output: str = "z") -> bytes:
    """b - a, whatever the order of its inputs."""
    builder = ModelBuilder()
    index = {name: builder.input((2,), np.float32, name) for name in (first, second)}
    y = builder.tensor((2,), name=output)
    last, begin = sorted(index, reverse=True)
    builder.operator("SUB", [index[last], index[begin]], [y])
    builder.outputs(y)
    return builder.build()


@pytest.mark.parametrize("is_int8_tested", [True, False])
def test_a_float_and_a_quantized_file(is_int8_tested: bool) -> None:
    files = (int8_dense(), dense())
    found = diff(*(files if is_int8_tested else files[::-1]))
    (output,) = found.outputs
    assert (output.dtype, output.name) == ("float32", "y" if is_int8_tested else "y_int8")
    assert output.max_abs is not None
    assert 0 < output.max_abs <= 1 / 32 + 0.03  # a step of the output, and the weights' rounding
    assert not found.agrees
    assert found.is_healthy
    rms, top = found.likenesses
    assert (rms.figure, rms.limit) == ("relative RMS error", 0.14)
    assert 0 < rms.loss < 0.05
    assert (top.figure, top.loss) == ("other top-1", 0)
    assert "by rounding: " in verdict(found)
    assert "Right as a whole: relative RMS error of " in summary(found)


def test_a_wrong_scale_is_wrong() -> None:
    found = diff(int8_dense(scaled(1 / 8, -7)), dense())
    assert found.is_healthy  # a coarser grid
    assert not diff(int8_dense(), dense(-WEIGHTS)).is_healthy
    found = diff(int8_dense(scaled(1 / 256, -7)), dense())  # saturates
    assert not found.is_healthy
    assert "Wrong as a whole: relative RMS error of 'y': " in verdict(found)


def test_both_files_get_the_same_real_inputs() -> None:
    for tested, other in ((int8_dense(), dense()), (dense(), int8_dense())):
        pair = FilePair.of(read_model(tested), read_model(other))
        details = jd.Interpreter(model_content=tested).get_input_details()
        (drawn,) = InputSettings().source(pair.drawn_details(details, ()))()
        assert drawn.dtype == np.int8
        given = [*pair.tested_inputs([drawn]), *pair.other_inputs([drawn])]
        integers, floats = sorted(given, key=lambda array: array.dtype.itemsize)
        np.testing.assert_array_equal((integers.astype(np.float32) - 3) / 64, floats)
        assert np.ptp(integers.astype(np.int32)) > 100


def test_values_from_files_have_the_first_files_dtype(tmp_path: Path) -> None:
    """They move to the nearest values that the other file's scale can represent."""
    np.save(tmp_path / "x.npy", np.linspace(-9, 1, 8, dtype=np.float32)[None])
    pair = FilePair.of(read_model(dense()), read_model(int8_dense()))
    details = jd.Interpreter(model_content=dense()).get_input_details()
    settings = InputSettings(files={"x": tmp_path / "x.npy"})
    drawn = settings.source(pair.drawn_details(details, ("x",)))()
    (tested,), (other,) = pair.tested_inputs(drawn), pair.other_inputs(drawn)
    assert other.tolist() == [[-128, -128, -128, -128, -128, -116, -24, 67]]
    np.testing.assert_array_equal(tested, (other.astype(np.float32) - 3) / 64)


def test_inputs_are_paired_by_name_else_by_order() -> None:
    """c - b is b - a in order, but b and a, in this order, are not."""
    assert diff(difference("a", "b"), difference("b", "a")).agrees
    assert diff(difference("a", "b"), difference("b", "c", "other")).agrees
    assert not diff(difference("a", "b"), difference("c", "b")).is_healthy


def test_inputs_are_paired_by_the_signatures_names() -> None:
    def named(first: str, second: str, keys: dict[str, str]) -> bytes:
        builder = ModelBuilder()
        index = {name: builder.input((2,), np.float32, name) for name in (first, second)}
        y = builder.tensor((2,), name=f"of {first}")
        builder.operator("SUB", [index[keys["left"]], index[keys["right"]]], [y])
        builder.outputs(y)
        builder.signature("serve", {k: index[name] for k, name in keys.items()}, {"out": y})
        return builder.build()

    one = named("p", "q", {"left": "p", "right": "q"})
    other = named("r", "s", {"left": "s", "right": "r"})
    assert diff(one, other).agrees


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 0, 1)])
def test_detections_are_compared_as_such(order: tuple[int, int, int, int]) -> None:
    found = diff(color_detector(), color_detector(outputs=order), num_runs=1)
    assert found.is_healthy
    (figure,) = found.likenesses
    assert figure.figure == "1 - mean IoU of detections"
    assert figure.outputs == ("boxes", "classes", "scores", "count")
    assert figure.loss < 1e-3


def test_float16_weights_are_reduced_precision() -> None:
    found = diff(dense(dtype=np.float16), dense())
    assert found.is_healthy
    assert [figure.limit for figure in found.likenesses] == [0.03, 0]
    assert diff(dense(), dense()).likenesses[0].limit == 1e-3


def test_a_saved_file_is_the_same(network: bytes, tmp_path: Path) -> None:
    model = jd.load(network)
    model.save(tmp_path / "same.tflite")
    found = diff(network, (tmp_path / "same.tflite").read_bytes())
    assert found.agrees
    assert verdict(found).startswith("All outputs agree with <bytes> (numpy). As a whole: ")
    params = dict(model.params)
    name = max(params, key=lambda n: params[n].size)
    model.save(tmp_path / "other.tflite", {**params, name: params[name] * 2})
    assert not diff(network, (tmp_path / "other.tflite").read_bytes()).is_healthy


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (difference("a", "b"), "different inputs: 'x' and 'a', 'b'; expected"),
        (
            dense(WEIGHTS[:, :5]),
            r"input 'x' has the shape \[1, 8\], but 'x' of the other file has \[1, 5\]",
        ),
    ],
)
def test_files_of_different_networks(other: bytes, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        diff(dense(), other)


@pytest.mark.slow
@pytest.mark.skipif(not MODELS.exists(), reason="the real models are not here")
def test_real_networks() -> None:
    names = ("vww_96_int8.tflite", "vww_96_float.tflite")
    model, against = ((MODELS / name).read_bytes() for name in names)
    found = diff(model, against, reference="litert_builtin", num_runs=5)
    assert found.is_healthy
    assert 0.01 < found.likenesses[0].loss < 0.14
