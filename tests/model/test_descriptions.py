"""Labels and normalization in files; damaged ones."""

import contextlib
import itertools
from collections.abc import Mapping

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.analysis.analyzer import analyze_model
from jaxdelegate.errors import ModelError
from jaxdelegate.model.descriptions import Normalization, describe, tensor_descriptions
from jaxdelegate.model.records import read_model
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import run_once
from tests.support.descriptions import (
    AXIS_LABELS,
    FEATURE,
    IMAGE,
    NAME,
    VOCABULARY,
    Described,
    metadata,
    with_archive,
)

PICTURE = Described("picture", IMAGE, (127.5, 120, 100), (58, 57, 57.5))
SCORES = Described("scores", FEATURE, files={"words.txt": VOCABULARY, "labels.txt": AXIS_LABELS})
LABELS = {"labels.txt": "cat\nbig dog\ncow\n\n", "words.txt": "a"}


def model(data: bytes | None, archive: Mapping[str, str] | None = LABELS) -> bytes:
    builder = ModelBuilder()
    x = builder.input((1, 2, 2, 3), name="x")
    y = builder.tensor((1, 2, 2, 3))
    builder.operator("NEG", [x], [y])
    builder.outputs(y)
    if data is not None:
        builder.metadata(NAME, data)
    built = builder.build()
    return built if archive is None else with_archive(built, archive)


def test_what_a_file_says() -> None:
    content = model(metadata([PICTURE], [SCORES]))
    found = describe(read_model(content))
    assert found is not None
    assert (found.name, found.author, found.license) == ("a classifier", "someone", "")
    (picture,), (scores,) = found.inputs, found.outputs
    assert (picture.name, picture.content) == ("picture", "image")
    assert picture.normalization == Normalization((127.5, 120, 100), (58, 57, 57.5))
    assert scores.files == ("words.txt", "labels.txt")
    assert scores.labels == ("cat", "big dog", "cow")
    (x,) = run_once(jd.Interpreter(model_content=content), [ones()])
    np.testing.assert_array_equal(x, -ones())


def ones() -> np.ndarray:
    return np.ones((1, 2, 2, 3), np.float32)


def test_files_without_a_description() -> None:
    assert describe(read_model(model(None))) is None
    assert tensor_descriptions(read_model(model(None))) == {}


DAMAGED = {
    "another identifier": (b"\x10\0\0\0M002" + bytes(16), LABELS, "identifier M001"),
    "no bytes": (b"M001", LABELS, "identifier M001"),
    "two inputs": (metadata([PICTURE, PICTURE], [SCORES]), LABELS, "must describe 1 tensors"),
    "no archive": (metadata([PICTURE], [SCORES]), None, "not a zip file"),
    "no such file": (metadata([PICTURE], [SCORES]), {"other": ""}, "is not in the archive"),
    "a bomb": (metadata([PICTURE], [SCORES]), {"labels.txt": "a\n" * (1 << 20)}, "at most 1048576"),
    "a deviation of 0": (
        metadata([Described("x", IMAGE, (1, 2), (1, 0))], [SCORES]), LABELS, "other than 0",
    ),
    "one deviation": (
        metadata([Described("x", IMAGE, (1, 2), (1,))], [SCORES]), LABELS, "other than 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_descriptions(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The model still runs, and a warning names the reason."""
    data, archive, message = DAMAGED[name]
    content = model(data, archive)
    with pytest.raises(ModelError, match=message):
        describe(read_model(content))
    assert tensor_descriptions(read_model(content)) == {}
    assert "Labels and normalization are ignored" in caplog.text
    analysis = analyze_model(content)
    assert analysis.described is None
    assert message in " ".join(str(analysis).split())


def test_any_damaged_byte_is_a_model_error() -> None:
    """Or it changes a word."""
    whole = metadata([PICTURE], [SCORES])
    for at, value in itertools.product(range(8, len(whole)), (0, 0xFF)):
        data = bytearray(whole)
        data[at] = value
        with contextlib.suppress(ModelError):
            describe(read_model(model(bytes(data))))


def test_any_damaged_byte_of_the_archive_is_a_model_error() -> None:
    """Or it changes a label."""
    bare, whole = (model(metadata([PICTURE], [SCORES]), files) for files in (None, LABELS))
    for at in range(len(bare), len(whole)):
        data = bytearray(whole)
        data[at] ^= 0xFF
        with contextlib.suppress(ModelError):
            describe(read_model(bytes(data)))


def test_a_report_shows_it() -> None:
    analysis = analyze_model(model(metadata([PICTURE], [SCORES])))
    assert "Metadata: a classifier, someone" in str(analysis)
    assert "T#0 picture: image; (x - [127.5, 120.0, 100.0]) / [58.0, 57.0, 57.5]" in str(analysis)
    assert "T#1 scores: feature; 3 labels: cat, big dog, cow" in str(analysis)
    described = analysis.to_dict()["described"]
    assert described["outputs"][0]["labels"] == ["cat", "big dog", "cow"]
