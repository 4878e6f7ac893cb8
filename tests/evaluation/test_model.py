import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter

from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.errors import ModelError
from jaxdelegate.evaluation.files import DataError
from jaxdelegate.evaluation.model import ImageModel, open_image_model
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.op_lowering.options import ReducerOptions, ReshapeOptions
from jaxdelegate.testing.builder import ModelBuilder


def model(
    folder: Path,
    *,
    shape: Sequence[int] = (1, 4, 5, 3),
    dtype: type = np.float32,
    signature: Sequence[int] | None = None,
    new_shape: Sequence[int] = (-1, 60),
    mixes: bool = False,
) -> Path:
    """Reshapes images to `new_shape`; `mixes` subtracts the mean over the batch first."""
    builder = ModelBuilder()
    x = builder.input(shape, dtype, "image", shape_signature=signature)
    if mixes:
        mean, centered = builder.tensor((1, *shape[1:])), builder.tensor(shape)
        axes = builder.constant(np.array([0], np.int32))
        builder.operator("MEAN", [x, axes], [mean], ReducerOptions(keep_dims=True))
        builder.operator("SUB", [x, mean], [centered])
        x = centered
    y = builder.tensor((1, 60), dtype)
    size = builder.constant(np.array(new_shape, np.int32))
    builder.operator("RESHAPE", [x, size], [y], ReshapeOptions(new_shape=tuple(new_shape)))
    builder.outputs(y)
    path = folder / "model.tflite"
    path.write_bytes(builder.build())
    return path


def opened(path: Path, batch_size: int = 8, *, stock: bool = False) -> ImageModel:
    kind = StockInterpreter if stock else Interpreter
    return open_image_model(path, kind(str(path)), batch_size=batch_size, num_outputs=1)


@pytest.mark.parametrize("stock", [False, True], ids=["ours", "stock"])
@pytest.mark.parametrize("signature", [None, (-1, 4, 5, 3)], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int8])
def test_a_model_that_supports_batches(
    tmp_path: Path,
    rng: np.random.Generator,
    stock: bool,
    signature: tuple[int, ...] | None,
    dtype: type,
) -> None:
    found = opened(model(tmp_path, dtype=dtype, signature=signature), stock=stock)
    assert (found.batch_size, found.input_shape, found.notes) == (8, (8, 4, 5, 3), ())
    assert found.output_shapes == ((8, 60),)
    images = rng.integers(0, 100, (8, 4, 5, 3)).astype(dtype)
    (got,) = found.invoke(images)
    np.testing.assert_array_equal(got, images.reshape(8, 60))


@pytest.mark.parametrize("stock", [False, True], ids=["ours", "stock"])
@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"new_shape": (1, 60)}, "image by image: "),
        ({"new_shape": (1, -1)}, r"image by image: batches of 8 have outputs of \[\[1, 480\]\]"),
        ({"mixes": True}, "image by image: its outputs depend on the other images of a batch"),
    ],
    ids=["refused", "other-shape", "mixed"],
)
def test_a_model_that_does_not_support_batches_runs_single_images(
    tmp_path: Path, rng: np.random.Generator, stock: bool, changes: dict[str, object], note: str
) -> None:
    found = opened(model(tmp_path, **changes), stock=stock)  # type: ignore[arg-type]
    assert found.batch_size == 1
    assert len(found.notes) == 1
    assert "\n" not in found.notes[0]
    assert re.search(note, found.notes[0])
    image = rng.normal(size=(1, 4, 5, 3)).astype(np.float32)
    (got,) = found.invoke(image)
    want = np.zeros((1, 60)) if "mixes" in changes else image.reshape(1, 60)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"new_shape": (1, 60)}, r"because Node number 0 \(RESHAPE\)"),
        ({"new_shape": (1, -1)}, r"because node 0 \(RESHAPE\) may mix"),
        ({"mixes": True}, r"because node 0 \(MEAN\) may mix"),
        (
            {"new_shape": (1, -1), "signature": (-1, 4, 5, 3)},
            r"because node 0 \(RESHAPE\) may mix",
        ),
    ],
    ids=["refused", "other-shape", "mixed", "dynamic"],
)
def test_a_delegate_rebatches_a_model_that_fixes_the_batch(
    tmp_path: Path, rng: np.random.Generator, changes: dict[str, object], note: str
) -> None:
    path = model(tmp_path, **changes)  # type: ignore[arg-type]
    interpreter = Interpreter(str(path), experimental_delegates=[JaxDelegate(platform="cpu")])
    found = open_image_model(path, interpreter, batch_size=8, num_outputs=1)
    assert (found.batch_size, found.output_shapes) == (8, ((8, 60),))
    assert re.search(f"^rebatched: 8 single runs in one program, {note}", *found.notes)
    images = rng.normal(size=(8, 4, 5, 3)).astype(np.float32)
    (got,) = found.invoke(images)
    want = np.zeros((8, 60)) if "mixes" in changes else images.reshape(8, 60)
    np.testing.assert_array_equal(got, want)


def test_two_batches_in_flight_keep_their_results(tmp_path: Path, rng: np.random.Generator) -> None:
    path = model(tmp_path, mixes=True)  # it subtracts: no result is a view of its input
    interpreter = Interpreter(str(path), experimental_delegates=[JaxDelegate(platform="cpu")])
    found = open_image_model(path, interpreter, batch_size=8, num_outputs=1)
    assert found.in_flight == 1  # inputs of a CPU are not copied
    both = dataclasses.replace(found, in_flight=2)
    first, second = rng.normal(size=(2, 8, 4, 5, 3)).astype(np.float32) * 2 + 1
    wanted = [found.invoke(images)[0] for images in (first, second)]
    waiting = [both.start(images) for images in (first, second)]
    for wait, want in zip(waiting, wanted, strict=True):
        np.testing.assert_array_equal(wait()[0], want)


def test_two_batches_are_in_flight_where_inputs_are_copied(tmp_path: Path) -> None:
    path = model(tmp_path)
    delegate = JaxDelegate(platform="cpu")
    delegate.target.platform = "gpu"
    interpreter = Interpreter(str(path), experimental_delegates=[delegate])
    assert open_image_model(path, interpreter, batch_size=8, num_outputs=1).in_flight == 2


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"shape": (1, 60)}, r"float32 \[1, 60\]"),
        ({"shape": (2, 5, 2, 3)}, r"float32 \[2, 5, 2, 3\]"),
        ({"shape": (1, 15, 1, 4)}, r"float32 \[1, 15, 1, 4\]"),
        ({"dtype": np.int32}, r"int32 \[1, 4, 5, 3\]"),
        ({"shape": (1, 1, 1, 3), "signature": (1, -1, -1, 3)}, r"float32 \[1, -1, -1, 3\]"),
    ],
)
def test_inputs_that_are_not_images(tmp_path: Path, changes: dict[str, object], got: str) -> None:
    path = model(tmp_path, **changes)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=rf"model.tflite: expected an input .* got {got}"):
        opened(path)


def test_another_number_of_outputs(tmp_path: Path) -> None:
    path = model(tmp_path)
    with pytest.raises(DataError, match="expected a model with 1 input and 4 outputs, got 1 and 1"):
        open_image_model(path, Interpreter(str(path)), batch_size=1, num_outputs=4)


def test_a_missing_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        open_image_model(tmp_path / "x", None, batch_size=1, num_outputs=1)
