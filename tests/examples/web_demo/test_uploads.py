"""Uploaded .tflite files: limits, inputs, and outputs as text."""

from pathlib import Path

import numpy as np
import pytest

from jaxdelegate.errors import InterpreterError, ModelError
from jaxdelegate.op_lowering.options import ReducerOptions
from jaxdelegate.testing import ModelBuilder
from tests.support.descriptions import AXIS_LABELS, NAME, Described, metadata, with_archive
from tests.support.detectors import color_detector
from tests.support.networks import broadcast, small_classifier
from tests.support.quantized import scaled
from web_demo import engines, uploads
from web_demo.engines import REFERENCE, Engines
from web_demo.uploads import Upload

IMAGE = np.random.default_rng(0).integers(0, 256, (20, 30, 3)).astype(np.uint8)


def read(folder: Path, content: bytes) -> Upload:
    path = folder / "given.tflite"
    path.write_bytes(content)
    return uploads.read(path, Engines())


def same(shape: tuple[int, ...], dtype: type, **more: object) -> bytes:
    """A network that returns its input."""
    builder = ModelBuilder("same")
    x = builder.input(shape, dtype, "x", **more)
    y = builder.tensor(shape, dtype, "y", **more)
    builder.operator("RESHAPE", [x, builder.constant(np.array(shape, np.int32))], [y])
    builder.outputs(y)
    return builder.build()


def test_an_image_classifier(tmp_path: Path) -> None:
    upload = read(tmp_path, small_classifier())
    assert upload.takes_image
    (x,) = upload.arrays(IMAGE, 0)
    assert (x.shape, x.dtype) == ((1, 16, 16, 3), np.float32)
    assert -1 <= x.min() < -0.5 < 0.5 < x.max() <= 1
    assert upload.inputs_in_words() == "The picture as float32 [1, 16, 16, 3], scaled to -1 ... 1."
    outputs = REFERENCE.open(upload.content).run([x]).outputs
    (row,) = upload.table(outputs)
    assert row.type == "float32 [1, 32]"
    best = np.argsort(-outputs[0][0])[:5]
    assert row.values.startswith(f"class {best[0]}: {outputs[0][0, best[0]]:.4g}, class {best[1]}:")
    assert row.values.count("class") == 5


def test_labels_and_normalization_of_the_file(tmp_path: Path) -> None:
    builder = ModelBuilder()
    x = builder.input((1, 4, 6, 3), name="x")
    y = builder.tensor((1, 3), name="y")
    axes = builder.constant(np.array([1, 2], np.int32))
    builder.operator("MEAN", [x, axes], [y], ReducerOptions())
    builder.outputs(y)
    picture = Described("picture", mean=(100, 110, 120), std=(50, 55, 60))
    scores = Described("scores", files={"labels.txt": AXIS_LABELS})
    builder.metadata(NAME, metadata([picture], [scores]))
    upload = read(tmp_path, with_archive(builder.build(), {"labels.txt": "cat\ndog"}))
    (x,) = upload.arrays(np.full((5, 5, 3), 200, np.uint8), 0)
    np.testing.assert_allclose(x[0, 0, 0], [2, 90 / 55, 80 / 60], rtol=1e-6)
    assert (
        "minus 100, 110, 120, divided by 50, 55, 60, as the file says" in upload.inputs_in_words()
    )
    (row,) = upload.table([np.float32([[0.5, 0.2, 0.7]])])
    assert row.values == "class 2: 0.7, cat: 0.5, dog: 0.2"


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [(np.float32, -1, 1), (np.uint8, 0, 255), (np.int8, -128, 127)]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_preprocessing_of_images(
    tmp_path: Path, dtype: type, low: float, high: float, channels: int
) -> None:
    upload = read(tmp_path, same((1, 4, 6, channels), dtype))
    assert upload.takes_image
    for value, wanted in ((0, low), (255, high)):
        (x,) = upload.arrays(np.full((5, 5, 3), value, np.uint8), 0)
        assert (x.shape, x.dtype) == ((1, 4, 6, channels), dtype)
        np.testing.assert_allclose(x.astype(np.float64), wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1, 10), np.float32),
        ((2, 4, 4, 3), np.float32),
        ((1, 4, 4, 2), np.float32),
        ((1, 1, 4, 3), np.float32),
        ((1, 4, 4, 3), np.int32),
    ],
)
def test_other_inputs_are_random(tmp_path: Path, shape: tuple[int, ...], dtype: type) -> None:
    upload = read(tmp_path, same(shape, dtype))
    assert not upload.takes_image
    (x,) = upload.arrays(IMAGE, 3)
    assert (x.shape, x.dtype) == (shape, dtype)
    np.testing.assert_array_equal(x, upload.arrays(IMAGE, 3)[0])
    assert np.dtype(dtype).name in upload.inputs_in_words()
    assert upload.inputs_in_words().startswith("Random values: ")
    assert len(upload.table(REFERENCE.open(upload.content).run([x]).outputs)) == 1


def test_quantized_outputs_are_shown_dequantized(tmp_path: Path) -> None:
    upload = read(tmp_path, same((1, 3), np.int8, quantization=scaled(0.5, 10)))
    (row,) = upload.table([np.array([[10, 30, 12]], np.int8)])
    assert row.values == "class 1: 10, class 2: 1, class 0: 0"
    assert row.type == "int8 [1, 3]"


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 0, 1)])
def test_objects_of_a_detector_are_drawn(tmp_path: Path, order: tuple[int, int, int, int]) -> None:
    """Wherever its outputs are, and whether or not the file has their shapes."""
    content = color_detector(outputs=order, has_output_shapes=order[0] == 3)
    showing = pytest.importorskip("web_demo.showing", reason="needs Pillow")
    subject = showing.upload_subject(read(tmp_path, content), 0)
    image = np.zeros((128, 128, 3), np.uint8)
    image[32:64, 96:128, 0] = 255  # red: class 0, in the second row and fourth column of cells
    outputs = REFERENCE.open(content).run(subject.inputs(image)).outputs
    changed = np.any(subject.draw(image, outputs) != image, axis=-1)
    assert changed[32:64, 96:127].any(axis=0).all()
    assert not changed[65:].any()
    assert not changed[:, :40].any()
    words = subject.words(outputs)
    assert "class 0" in words
    assert "class 1" not in words  # classes and scores are not scores of classes
    assert "float32 [1, 10, 4]" in words
    black = np.zeros_like(image)
    outputs = REFERENCE.open(content).run(subject.inputs(black)).outputs
    np.testing.assert_array_equal(subject.draw(black, outputs), black)
    assert "Nothing was found" in subject.words(outputs)


def test_boxes_that_are_not_finite_are_not_drawn(tmp_path: Path) -> None:
    upload = read(tmp_path, color_detector())
    boxes = np.full((1, 10, 4), 0.5, np.float32)
    boxes[0, 0, 1] = np.nan
    classes, scores = np.zeros((1, 10), np.float32), np.ones((1, 10), np.float32)
    annotation = upload.decode([boxes, classes, scores, np.array([2], np.float32)])
    assert annotation is not None
    assert len(annotation.boxes) == 1


def test_other_outputs_are_a_range(tmp_path: Path) -> None:
    upload = read(tmp_path, same((2, 2), np.float32))
    assert upload.table([np.array([[1, 2], [3, 4]], np.float32)])[0].values == "1 to 4, mean 2.5"
    assert upload.table([np.zeros((0, 2), np.float32)])[0].values == "empty"
    assert upload.table([np.array([True, False])])[0].values == "True, False"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "given.tflite: the file is empty"),
        (b"hello", "given.tflite: file: a TFLite model has a header of 8 bytes, got 5 bytes"),
        (small_classifier()[:3000], "given.tflite: .*truncated"),
    ],
)
def test_damaged_files(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message) as error:
        read(tmp_path, content)
    assert str(tmp_path) not in str(error.value)


def test_large_files_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "large.tflite"
    with path.open("wb") as file:
        file.truncate(uploads.MAX_FILE_BYTES + 1)
    with pytest.raises(ModelError, match=r"large.tflite has 64 MiB; this page opens at most 64"):
        uploads.read(path, Engines())
    with pytest.raises(ModelError, match=r"none.tflite: No such file"):
        uploads.read(tmp_path / "none.tflite", Engines())


def test_large_tensors_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MAX_TENSOR_BYTES", 1000)
    with pytest.raises(InterpreterError, match="max_tensor_bytes is 1000"):
        read(tmp_path, broadcast(50))
