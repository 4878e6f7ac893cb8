"""Models are saved into bundles; all other parts stay byte for byte."""

import io
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.bundles.bundle import Bundle
from jaxdelegate.errors import ModelError
from jaxdelegate.model import bundle_writing, files
from jaxdelegate.testing import ModelBuilder
from tests.support.bundles import (
    BLOCK,
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
LONG = multiplier(3.0, 4 * BLOCK)  # of 256 KiB


def check_others(before: Bundle, after: Bundle, new: dict[str, bytes]) -> None:
    """Check that only these sections differ, and that each keeps its alignment."""
    archives = {name.rpartition("!")[0] for name in new}
    assert (after.format, after.properties) == (before.format, before.properties)
    for old, section in zip(before.sections, after.sections, strict=True):
        same = [(s.name, s.type, s.items, s.offset % BLOCK) for s in (old, section)]
        assert same[0] == same[1]
        if section.name not in archives:
            assert after.data(section.name) == new.get(section.name, before.data(section.name))


@pytest.mark.parametrize(
    "new",
    [
        {"prefill_decode": LONG},
        {"vision_encoder": multiplier()},
        {"prefill_decode": multiplier(7.0), "vision_encoder": multiplier(5.0, 9 * BLOCK)},
        {"HF_Tokenizer_Zlib": b"x", "LlmMetadataProto": bytes(5 * BLOCK)},
        {},
    ],
    ids=lambda new: " ".join(new) or "nothing",
)
def test_a_section_of_a_litertlm_file(new: dict[str, bytes], tmp_path: Path) -> None:
    last = model_part("tf_lite_vision_encoder", LONG, backend_constraint="cpu")
    content = litertlm([*parts(), last], properties={"Authors": "tests", "size": 7})
    before = jd.open_bundle(content)
    before.save(tmp_path / "b", new)
    after = jd.open_bundle(tmp_path / "b")
    check_others(before, after, new)
    after.save(tmp_path / "b", {name: before.data(name) for name in new})
    assert (tmp_path / "b").read_bytes() == content


class _Stream(io.RawIOBase):
    """A file without places, in which an archive's sizes follow its data."""

    def __init__(self) -> None:
        self.written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.written += data
        return len(data)


def streamed() -> bytes:
    stream = _Stream()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.comment = b"tests"
        archive.writestr("a.tflite", multiplier())
        archive.writestr("labels.txt", b"left\nright\n" * 99, zipfile.ZIP_DEFLATED)
        archive.writestr("ä.tflite", multiplier(4.0))
    return bytes(stream.written)


def compressed_archive() -> bytes:
    files = {"a.tflite": LONG, "b/": b"", "b/c": bytes(99), "b/d": b"d"}
    return zipped(files, compress=["a.tflite", "b/c"])


HANDS = "hands.task!hand_detector.tflite"


@pytest.mark.parametrize(
    ("content", "new"),
    [
        (llm_task, {"prefill_decode": LONG}),
        (llm_task, {"METADATA": b"x"}),
        (gestures, {"gestures.tflite": LONG}),
        (gestures, {HANDS: LONG}),
        (gestures, {HANDS: multiplier(), "hands.task!labels.txt": b"up", "gestures.tflite": LONG}),
        (compressed_archive, {"a.tflite": multiplier(5.0)}),
        (streamed, {"a.tflite": LONG}),
        (streamed, {"ä.tflite": multiplier()}),
        (gestures, {}),
    ],
)
def test_a_member_of_an_archive(
    content: Callable[[], bytes], new: dict[str, bytes], tmp_path: Path
) -> None:
    before = jd.open_bundle(content())
    before.save(tmp_path / "b", new)
    check_others(before, jd.open_bundle(tmp_path / "b"), new)
    with zipfile.ZipFile(tmp_path / "b") as after, zipfile.ZipFile(io.BytesIO(content())) as old:
        assert after.testzip() is None
        assert after.comment == old.comment
        assert after.namelist() == old.namelist()
    assert new or (tmp_path / "b").read_bytes() == content()


def test_a_part_is_a_model_a_path_or_content(tmp_path: Path) -> None:
    bundle = jd.open_bundle(litertlm(parts("prefill_decode", "embedder")))
    (tmp_path / "m.tflite").write_bytes(multiplier(5.0))
    model = jd.load(multiplier())
    (name,) = model.params
    changed = model.with_params({name: 7 * np.ones(4, np.float32)})
    for part, factor in (
        (multiplier(3.0), 3),
        (tmp_path / "m.tflite", 5),
        (changed, 7),
        (changed.to_bytes({name: 9 * np.ones(4, np.float32)}), 9),
        (jd.open_bundle(gestures()).models["gestures.tflite"], 5),
    ):
        bundle.save(tmp_path / "b", {"TF_LITE_EMBEDDER": part})
        np.testing.assert_array_equal(jd.load(f"{tmp_path}/b!embedder")(X)[0], factor * X)
        np.testing.assert_array_equal(jd.load(f"{tmp_path}/b!prefill_decode")(X)[0], 2 * X)


@pytest.mark.parametrize("content", [litertlm(parts()), gestures()])
def test_the_open_file_may_be_replaced(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "READ_BYTES", 0)  # map it
    path = tmp_path / "b"
    path.write_bytes(content)
    path.chmod(0o640)
    bundle = jd.open_bundle(path)
    name = list(bundle.models)[-1]
    source = bundle.models[name]
    bundle.save(path, {name: LONG})
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["b"]
    assert bundle.models[name].content == source.content != LONG
    bundle.check_unchanged()
    assert jd.open_bundle(path).models[name].content == LONG


@pytest.mark.parametrize("part", ["!prefill_decode", ""])
def test_a_model_is_saved_where_it_was_read(part: str, tmp_path: Path) -> None:
    path = tmp_path / "b.litertlm"
    path.write_bytes(litertlm(parts()))
    before = jd.open_bundle(path.read_bytes())
    model = jd.load(f"{path}{part}")
    (name,) = model.params
    model.save(f"{path}{part}", {name: 7 * np.ones(4, np.float32)})
    np.testing.assert_array_equal(model(X)[0], 2 * X)  # the open one
    jd.save(f"{path}{part}", f"{path}{part}")
    np.testing.assert_array_equal(jd.load(f"{path}{part}")(X)[0], 7 * X)
    assert os.listdir(tmp_path) == ["b.litertlm"]
    after = jd.open_bundle(path)
    check_others(before, after, {"prefill_decode": bytes(after.data("prefill_decode"))})


def test_a_bundle_is_not_replaced_by_a_model(tmp_path: Path) -> None:
    model = jd.load(multiplier())
    for content, part, says in (
        (litertlm(parts("prefill_decode", "embedder")), "", "name one after an exclamation mark"),
        (litertlm(parts()), "!embedder", "does not have a model 'embedder'"),
        (zipped({"notes.txt": b"x"}), "", "the bundle must have a model, got notes.txt"),
    ):
        path = tmp_path / "b"
        path.write_bytes(content)
        with pytest.raises(ModelError, match=re.escape(says)):
            model.save(f"{path}{part}")
        assert path.read_bytes() == content
        assert os.listdir(tmp_path) == ["b"]
    (tmp_path / "m.tflite").write_bytes(multiplier())
    model.save(tmp_path / "m.tflite!2")  # no bundle: a file's name may have an exclamation mark
    np.testing.assert_array_equal(jd.load(tmp_path / "m.tflite!2")(X)[0], 2 * X)


def _with_weights(group: str = "tflite_weights") -> bytes:
    builder = ModelBuilder()
    x, y = builder.input((4,)), builder.tensor((4,))
    w = builder.external((4,), np.float32, builder.external_slice(group, 16, 16))
    builder.operator("MUL", [x, w], [y])
    builder.outputs(y)
    return builder.build()


def _weights(factor: float) -> bytes:
    return bytes(16) + np.full(4, factor, np.float32).tobytes()


def _bundle_with_weights() -> bytes:
    weights = (TYPES.TFLiteWeights, {"model_type": "tf_lite_embedder"}, _weights(3))
    return litertlm([weights, *parts(), model_part("tf_lite_embedder", _with_weights())])


def test_weights_in_another_section_are_saved_there(tmp_path: Path) -> None:
    path = tmp_path / "b.litertlm"
    path.write_bytes(_bundle_with_weights())
    model = jd.load(f"{path}!embedder")
    (name,) = model.params
    model.save(f"{path}!embedder", {name: 7 * np.ones(4, np.float32)})
    bundle = jd.open_bundle(path)
    assert bundle.data("TFLiteWeights.embedder") == _weights(7)
    np.testing.assert_array_equal(jd.load(f"{path}!embedder")(X)[0], 7 * X)
    (tmp_path / "m.tflite").write_bytes(_with_weights())
    (tmp_path / "tflite_weights").write_bytes(_weights(9))
    bundle.save(path, {"embedder": tmp_path / "m.tflite"})
    np.testing.assert_array_equal(jd.load(f"{path}!embedder")(X)[0], 9 * X)
    with pytest.raises(ModelError, match="weights are in files next to the model"):
        bundle.save(path, {"embedder": model})
    with pytest.raises(ModelError, match="'tflite_weights', for which the bundle has no section"):
        bundle.save(path, {"prefill_decode": tmp_path / "m.tflite"})


@pytest.mark.parametrize(
    ("new", "error", "says"),
    [
        ({"prefil_decode": b""}, ModelError, "did you mean 'prefill_decode'?"),
        (
            {"prefill_decode": b"x" * 99},
            ModelError,
            "part 'prefill_decode': <bytes>: file: bytes 4",
        ),
        ({"prefill_decode": multiplier()[:-99]}, ModelError, "part 'prefill_decode': <bytes>: "),
        ({"prefill_decode": "missing"}, ModelError, "part 'prefill_decode': Could not open"),
        ({"prefill_decode": 5}, TypeError, "expected the path of a .tflite file, or its content"),
        ({"LlmMetadataProto": "x"}, TypeError, "expected the bytes of the section, got str"),
    ],
)
def test_what_is_no_part_is_refused(
    new: dict[str, Any], error: type[Exception], says: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=re.escape(says)):
        jd.open_bundle(litertlm(parts())).save(tmp_path / "b", new)
    assert not os.listdir(tmp_path)


def test_a_path_must_be_one(tmp_path: Path) -> None:
    bundle = jd.open_bundle(litertlm(parts()))
    with pytest.raises(TypeError, match="expected path to be that of a file, got dict"):
        bundle.save({}, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="no such folder; create it first"):
        bundle.save(tmp_path / "missing" / "b", {})


def test_archives_that_cannot_be_changed(tmp_path: Path) -> None:
    bundle = jd.open_bundle(gestures())
    inner = bytes(bundle.data("hands.task"))
    with pytest.raises(ModelError, match="or for its members, got both"):
        bundle.save(tmp_path / "b", {"hands.task": inner, HANDS: multiplier()})
    with pytest.raises(ModelError, match="or the new data are an archive"):
        bundle.save(tmp_path / "b", {"hands.task!labels.txt": inner})
    latin = zipped({"ä.tflite": multiplier(), "b.tflite": multiplier()})
    utf8 = re.compile(rb"(PK\x03\x04..|PK\x01\x02....)\x00\x08", re.DOTALL)
    latin = utf8.sub(rb"\1\0\0", latin)
    with pytest.raises(ModelError, match="expected a name in UTF-8"):
        jd.open_bundle(latin).save(tmp_path / "b", {"b.tflite": LONG})
    assert not os.listdir(tmp_path)


def test_what_cannot_be_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "b"
    path.write_bytes(litertlm(parts()))
    bundle = jd.open_bundle(path)
    monkeypatch.setattr(bundle_writing, "read_container", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bundle.save(path, {"prefill_decode": LONG})
    assert path.read_bytes() == litertlm(parts())
    assert os.listdir(tmp_path) == ["b"]


@pytest.mark.parametrize("name", ["new.litertlm", "new.task", "new.litertlm!prefill_decode"])
def test_a_model_is_not_saved_as_a_bundle(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"expected a bundle that exists: .*writes a new one"):
        jd.load(multiplier()).save(tmp_path / name)
    assert not os.listdir(tmp_path)


def test_a_member_that_reaches_into_the_directory_is_not_cut(tmp_path: Path) -> None:
    content = bytearray(zipped({"a.tflite": multiplier(), "b.txt": b"text"}))
    content[content.index(b"PK\x03\x04", 4) + 28] += 60  # of its extra fields
    with pytest.raises(ModelError, match=r"'b\.txt' must end where"):
        jd.open_bundle(bytes(content)).save(tmp_path / "b", {"a.tflite": multiplier(3.0)})
