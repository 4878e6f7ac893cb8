"""What an engine's second start knows of a model without reading its operators."""

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pytest

from jaxdelegate import lm
from jaxdelegate.errors import CacheWarning
from jaxdelegate.lm.model_file import Constants, ModelFile
from jaxdelegate.model import open_models
from jaxdelegate.model.source import open_source
from jaxdelegate.testing import ModelBuilder
from tests.support.language_models import embedders, language_bundle, language_model

Forget = Callable[[], None]
PROMPTS = ["a long prompt", "b"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.litertlm"
    path.write_bytes(language_bundle(model=language_model(hidden=64)))
    return path


def engine(path: Path) -> lm.Engine:
    return lm.Engine(path, lm.Backend.CPU(), max_batch=2, cache_dir=str(path.parent / "programs"))


def answers(engine: lm.Engine) -> list[str]:
    return [found.text for found in engine.generate(PROMPTS, max_output_tokens=6)]


def record(path: Path) -> Path:
    (found,) = path.parent.glob("programs/*.signatures")
    return found


def unreadable(*_: object) -> None:
    raise AssertionError("the model was read")


def started_again(path: Path, forget: Forget) -> lm.Engine:
    """An engine that has answered, as in another process; it must not read the model."""
    forget()
    with mock.patch.object(open_models, "read_model", unreadable):
        found = engine(path)
        answers(found)
    return found


def test_a_second_start_reads_no_model(path: Path, forget_models: Forget) -> None:
    first = engine(path)
    want = answers(first)
    again = started_again(path, forget_models)
    assert answers(again) == want
    assert again.graph.hidden_size == first.graph.hidden_size > 0
    assert again.graph.states.keys() == first.graph.states.keys()


def test_several_models(tmp_path: Path, forget_models: Forget) -> None:
    path = tmp_path / "model.litertlm"
    names = "tf_lite_embedder", "tf_lite_per_layer_embedder"
    others = dict(zip(names, embedders(), strict=True))
    path.write_bytes(language_bundle(model=language_model(has_embedders=True), others=others))
    want = answers(engine(path))
    assert answers(started_again(path, forget_models)) == want


def test_what_is_not_stored_is_compiled_then(path: Path, forget_models: Forget) -> None:
    answers(engine(path))
    forget_models()
    again = engine(path)
    found = again.generate(PROMPTS, max_output_tokens=2, log_probabilities=True)
    forget_models()
    fresh = lm.Engine(path, lm.Backend.CPU(), max_batch=2, cache_dir=":nocache")
    want = fresh.generate(PROMPTS, max_output_tokens=2, log_probabilities=True)
    assert [c.log_probabilities for c in found] == [c.log_probabilities for c in want]


def test_a_damaged_record_is_reported(path: Path, forget_models: Forget) -> None:
    want = answers(engine(path))
    content = bytearray(record(path).read_bytes())
    content[-1] ^= 1
    record(path).write_bytes(content)
    forget_models()
    with pytest.warns(CacheWarning, match="stored signatures .* SHA-256 is wrong"):
        again = engine(path)
    assert answers(again) == want


def test_a_missing_record_is_stored_again(path: Path, forget_models: Forget) -> None:
    """For example if the cache was pruned."""
    want = answers(engine(path))
    record(path).unlink()
    forget_models()
    assert answers(engine(path)) == want
    assert answers(started_again(path, forget_models)) == want


def test_another_file_has_another_record(path: Path, forget_models: Forget) -> None:
    answers(engine(path))
    path.write_bytes(language_bundle(model=language_model(hidden=64, seed=1)))
    forget_models()
    with mock.patch.object(open_models, "read_model", unreadable), pytest.raises(AssertionError):
        engine(path)


def test_engines_share_programs_whether_or_not_they_read(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = engine(path)
    want = answers(first)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        again = engine(path)
        assert answers(again) == want
    assert again.weight_bytes == first.weight_bytes > 0
    assert not [r.message for r in caplog.records if "Compiling" in r.message]


def test_constants_that_the_file_does_not_hold_are_read() -> None:
    """Booleans and few packed integers are copies in memory."""
    model = ModelBuilder()
    x, y = model.input([4]), model.tensor([4], np.float32)
    kept = model.constant(np.arange(4, dtype=np.float32))
    copied = model.constant(np.array([True, False, True, False]))
    model.operator("SELECT", [copied, x, kept], [y])
    model.outputs(y)
    model.signature("main", {"x": x}, {"y": y})
    content = model.build()
    file = ModelFile(open_source(content), None, None)
    (key,) = file.records
    constants = Constants([(file, key), (file, key)])
    count = file.records[key].tensors
    assert kept in file.records[key].places
    assert copied not in file.records[key].places
    for first in (0, count):
        np.testing.assert_array_equal(constants[first + kept].view(np.float32), [0, 1, 2, 3])
        np.testing.assert_array_equal(constants[first + copied], [True, False, True, False])
    assert {*constants} == {kept, copied, count + kept, count + copied}
    assert x not in constants
    assert 2 * count not in constants
