"""Hints: loading begins before the model is read, and nothing depends on them."""

import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import jaxdelegate as jd
from jaxdelegate import interpreter, jax_private
from jaxdelegate.cache.store import ProgramStore
from jaxdelegate.precompile import precompile


@pytest.fixture
def hint(run, directory: Path) -> Path:
    """The hint that a run has left."""
    assert run() == "stored"
    (path,) = directory.glob("*.hint")
    return path


def loads_while_reading(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each model that is read, whether machine code was being loaded by then."""
    found, begun = [], threading.Event()
    load, read = jax_private.load_executable, interpreter.read_model

    def watched(*arguments: object) -> object:
        begun.set()
        return load(*arguments)

    def reading(source: object) -> object:
        found.append(begun.wait(0.5))
        return read(source)

    monkeypatch.setattr(jax_private, "load_executable", watched)
    monkeypatch.setattr(interpreter, "read_model", reading)
    return found


def test_a_hint_names_the_program(run, hint: Path) -> None:
    (program,) = run.programs()
    assert hint.read_text() == program.name
    assert hint.stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("hint")
def test_loading_begins_before_the_model_is_read(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProgramStore, "latest", lambda *_: pytest.fail("the hint was not used"))
    found = loads_while_reading(monkeypatch)
    assert run() == "loaded"
    assert found == [True]


@pytest.mark.parametrize("token", ["new", None])
def test_other_settings_have_a_hint_of_their_own(
    run, hint: Path, directory: Path, token: str | None
) -> None:
    written = hint.stat().st_mtime_ns
    run(model_token=token)
    assert hint.stat().st_mtime_ns == written
    assert len(list(directory.glob("*.hint"))) == (1 if token is None else 2)


def remove(run, hint: Path) -> None:
    del run
    hint.unlink()


def name_nothing(run, hint: Path) -> None:
    del run
    hint.write_text(f"{'0' * 64}.program")


def name_what_is_no_entry(run, hint: Path) -> None:
    del run
    hint.write_text("../../etc/passwd")


def damage(run, hint: Path) -> None:
    del run
    hint.write_bytes(b"\xff\x00")


def name_a_damaged_entry(run, hint: Path) -> None:
    name = f"{'1' * 64}.program"
    (hint.parent / name).write_bytes(run.programs()[0].read_bytes()[:-1])
    hint.write_text(name)


def open_to_others(run, hint: Path) -> None:
    del run
    hint.chmod(0o666)


@pytest.mark.parametrize(
    "spoil",
    [
        remove,
        name_nothing,
        name_what_is_no_entry,
        damage,
        name_a_damaged_entry,
        open_to_others,
    ],
)
def test_a_wrong_hint_costs_nothing_but_time(
    run, hint: Path, spoil: Callable[[object, Path], None]
) -> None:
    want = hint.read_text()
    spoil(run, hint)
    with warnings.catch_warnings():
        warnings.simplefilter("error", jd.CacheWarning)
        assert run() == "loaded"
    assert hint.read_text() == want


def test_a_hint_at_another_models_program(run, hint: Path) -> None:
    (own,) = run.programs()
    run(model_token="other")
    (other,) = set(run.programs()) - {own}
    hint.write_text(other.name)
    assert run() == "loaded"
    assert hint.read_text() == own.name


def test_what_was_made_elsewhere_is_not_loaded_on_a_hint(
    run, hint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even begun: machine code for another processor, or of another jaxlib."""
    monkeypatch.setattr("jaxdelegate.cache.environment.host_cpu", lambda: "another one")
    monkeypatch.setattr(jax_private, "load_executable", lambda *_: pytest.fail("it was loaded"))
    before = hint.read_text()
    assert run() == "stored"
    assert hint.read_text() != before


def test_programs_that_were_made_ahead_of_time(network: bytes, directory: Path) -> None:
    precompile(network, jd.JaxDelegate(serialization_dir=str(directory)))
    (hint,) = directory.glob("*.hint")
    (program,) = directory.glob("*.program")
    assert hint.read_text() == program.name


@pytest.mark.usefixtures("hint")
def test_code_that_cannot_be_loaded(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> object:
        raise RuntimeError("not for this machine")

    monkeypatch.setattr(jax_private, "load_executable", fail)
    with pytest.warns(jd.CacheWarning, match="not for this machine"):
        assert run() == "stored"
