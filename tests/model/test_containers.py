"""Models in bundles are opened by a path with a part, without copies."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.errors import ModelError
from jaxdelegate.model import files, open_models
from jaxdelegate.model.open_models import open_model
from jaxdelegate.model.source import BundledModel, in_bundle, open_source, split_path
from jaxdelegate.testing import ModelBuilder
from tests.support.bundles import (
    TYPES,
    gestures,
    litertlm,
    llm_task,
    model_part,
    multiplier,
    parts,
    zipped,
)

X = np.arange(4, dtype=np.float32)


def write(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    return os.fspath(folder / name)


def run(model: str | BundledModel) -> np.ndarray:
    interpreter = jd.Interpreter(model)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], X)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


@pytest.mark.parametrize(
    ("content", "part", "factor"),
    [
        (lambda: litertlm(parts()), "", 2.0),
        (lambda: litertlm(parts()), "!prefill_decode", 2.0),
        (lambda: litertlm(parts()), "!TF_LITE_PREFILL_DECODE", 2.0),
        (lambda: litertlm([model_part(None)]), "!prefill_decode", 2.0),
        (lambda: litertlm([*parts(), model_part("EMBEDDER", multiplier(7.0))]), "!embedder", 7.0),
        (
            lambda: litertlm([*parts(), model_part("prefill_decode", multiplier(7.0))]),
            "!prefill_decode.2",
            7.0,
        ),
        (llm_task, "", 2.0),
        (llm_task, "!prefill_decode", 2.0),
        (gestures, "!gestures.tflite", 5.0),
        (gestures, "!hands.task!hand_detector.tflite", 3.0),
        (lambda: zipped({"a": b"", "m.tflite": multiplier()}, compress=["m.tflite"]), "", 2.0),
        (lambda: zipped({"odd": b"x", "model": multiplier(4.0)}), "!model", 4.0),
    ],
)
def test_a_path_names_a_model_in_a_bundle(
    content: Callable[[], bytes], part: str, factor: float, tmp_path: Path
) -> None:
    path = write(tmp_path, "bundle", content())
    np.testing.assert_array_equal(run(path + part), factor * X)
    (y,) = jd.load(path + part)(X)
    np.testing.assert_array_equal(y, factor * X)


def test_the_content_of_a_bundle_is_its_only_model() -> None:
    assert open_model(litertlm(parts())).source == "<bytes>!prefill_decode"


def test_a_file_whose_name_has_an_exclamation_mark_is_that_file(tmp_path: Path) -> None:
    path = write(tmp_path, "bundle!gestures.tflite", multiplier())
    write(tmp_path, "bundle", gestures())
    assert split_path(path) == (path, None)
    np.testing.assert_array_equal(run(path), 2 * X)
    odd = write(tmp_path, "b!c.task", gestures())
    np.testing.assert_array_equal(run(f"{odd}!gestures.tflite"), 5 * X)
    assert split_path("a\0!b") == ("a\0!b", None)


@pytest.mark.parametrize(
    ("content", "part", "says"),
    [
        (gestures, "", "a bundle of 2 models: name one after an exclamation mark, for example "),
        (gestures, "", "!hands.task!hand_detector.tflite'; its models: "),
        (gestures, "!gesture.tflite", "did you mean 'gestures.tflite'?"),
        (lambda: litertlm(parts()[:2]), "", "must have a model, got LlmMetadataProto, HF_Tok"),
        (lambda: litertlm([]), "", "the bundle must have a model, got nothing"),
        (multiplier, "!part", "is not a bundle of models; it looks like a single model"),
        (lambda: b"version https://git-lfs.github.com", "!part", "run `git lfs pull`"),
        (lambda: zipped({"readme.txt": b""}), "", "a ZIP archive without a .tflite file in it"),
        (lambda: zipped({}), "!a", "the bundle must have a model, got nothing"),
        (lambda: zipped({"a\n.tflite": b"", "b.tflite": b""}), "", r"a\n.tflite, b.tflite"),
    ],
)
def test_a_wrong_name_is_refused_with_the_names_of_the_models(
    content: Callable[[], bytes], part: str, says: str, tmp_path: Path
) -> None:
    path = write(tmp_path, "bundle", content())
    with pytest.raises(ModelError) as caught:
        jd.Interpreter(path + part)
    assert says in str(caught.value)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture(params=["read", "mapped"])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "mapped":
        for module in (files, open_models):
            monkeypatch.setattr(module, "READ_BYTES", 0)


@pytest.mark.usefixtures("limit")
def test_a_bundle_s_models_are_open_once(tmp_path: Path) -> None:
    path = write(tmp_path, "b.litertlm", litertlm(parts("prefill_decode", "embedder")))
    bundle = jd.open_bundle(path)
    first = open_model(bundle.models["embedder"])
    assert open_model(f"{path}!embedder") is first
    assert open_model(f"{path}!TF_LITE_EMBEDDER") is first
    assert open_model(f"{path}!prefill_decode") is not first


@pytest.mark.parametrize("content", [litertlm(parts("embedder")), gestures()])
def test_a_model_in_a_mapped_bundle_is_a_view(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "READ_BYTES", 0)
    path = write(tmp_path, "bundle", content)
    bundle = jd.open_bundle(path)
    for model in bundle.models.values():
        assert model.is_mapped
        assert open_source(model.name).is_mapped
        assert model.content.obj is bundle._file.content.obj
    with open(path, "r+b") as file:
        file.truncate(len(content) + 1)
    for model in bundle.models.values():
        with pytest.raises(ModelError, match="changed in place"):
            model.check_unchanged()
    with pytest.raises(ModelError, match="changed in place"):
        bundle.data(bundle.sections[0].name)


def test_a_model_of_a_bundle_is_a_path(tmp_path: Path) -> None:
    path = write(tmp_path, "b.litertlm", litertlm(parts()))
    model = jd.open_bundle(path).models["prefill_decode"]
    assert os.fspath(model) == f"{path}!prefill_decode"
    np.testing.assert_array_equal(run(model), 2 * X)
    again = pickle.loads(pickle.dumps(model))
    assert (again.name, again.content) == (model.name, model.content)
    loaded = pickle.loads(pickle.dumps(jd.load(model)))
    np.testing.assert_array_equal(loaded(X)[0], 2 * X)
    inside = in_bundle(path)
    assert inside is not None
    assert inside.name == model.name
    assert in_bundle(write(tmp_path, "m.tflite", multiplier())) is None
    assert in_bundle(tmp_path / "missing") is None


def _with_weights(group: str) -> bytes:
    builder = ModelBuilder()
    x, y = builder.input((4,)), builder.tensor((4,))
    w = builder.external((4,), np.float32, builder.external_slice(group, 16, 16))
    builder.operator("MUL", [x, w], [y])
    builder.outputs(y)
    return builder.build()


WEIGHTS = bytes(16) + np.full(4, 3, np.float32).tobytes()


def test_weights_may_be_in_another_section(tmp_path: Path) -> None:
    weights = (TYPES.TFLiteWeights, {"model_type": "tf_lite_embedder"}, WEIGHTS)
    model = model_part("tf_lite_embedder", _with_weights("tflite_weights"))
    path = write(tmp_path, "b.litertlm", litertlm([*parts(), model, weights]))
    np.testing.assert_array_equal(run(f"{path}!embedder"), 3 * X)
    write(tmp_path, "tflite_weights", WEIGHTS)  # a file with this name is not used
    alone = write(tmp_path, "c.litertlm", litertlm([model]))
    with pytest.raises(ModelError, match=r"has weights in 'tflite_weights', which its bundle must"):
        run(alone)
    (tmp_path / "out").mkdir()
    jd.save(f"{path}!embedder", tmp_path / "out" / "m.tflite")
    assert (tmp_path / "out" / "tflite_weights").read_bytes() == WEIGHTS
    np.testing.assert_array_equal(run(os.fspath(tmp_path / "out" / "m.tflite")), 3 * X)
