"""Loading begins on a guess, while the constants are still hashed; only the whole key decides."""

import os
import threading
import time
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate import jax_private
from jaxdelegate.cache import constants
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.programs import Statistics
from jaxdelegate.cache.store import ProgramStore
from jaxdelegate.testing import ModelBuilder

LOADED, STORED = Statistics(loaded=1), Statistics(stored=1)
N = 40_000  # elements: the table becomes an argument of the program


def table(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=N).astype(np.float32)


def run_table(directory: Path, seed: int) -> Statistics:
    """Run x * table; models of different seeds are alike but for the table's elements."""
    builder = ModelBuilder()
    x = builder.input((N,), np.float32, "x")
    y = builder.tensor((N,))
    builder.operator("MUL", [x, builder.constant(table(seed), "table")], [y])
    builder.outputs(y)
    delegate = jd.JaxDelegate(serialization_dir=str(directory))
    interpreter = jd.Interpreter(model_content=builder.build(), experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    given = np.arange(N, dtype=np.float32)
    interpreter.set_tensor(x, given)
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(y), given * table(seed))
    assert delegate.programs is not None
    return delegate.programs.statistics


def use_last(directory: Path, path: Path) -> None:
    """Make a program the one that was used last."""
    for other in directory.glob("*.program"):
        os.utime(other, (0, 0))
    os.utime(path, (time.time(), time.time()))


@pytest.fixture
def two(directory: Path) -> tuple[Path, Path]:
    """The programs of seeds 1 and 2 in one directory."""
    assert run_table(directory, 1) == STORED
    (first,) = directory.glob("*.program")
    assert run_table(directory, 2) == STORED
    (second,) = set(directory.glob("*.program")) - {first}
    return first, second


def test_loading_does_not_wait_for_the_constants_digests(
    run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    for hint in directory.glob("*.hint"):  # tests/cache/test_hints.py
        hint.unlink()
    guessed = threading.Event()
    latest, digests = ProgramStore.latest, constants.array_digests

    def guess(store: ProgramStore, family: str) -> object:
        guessed.set()
        return latest(store, family)

    def hashed(arrays: list[np.ndarray]) -> list[str]:
        assert guessed.wait(timeout=60)
        return digests(arrays)

    monkeypatch.setattr(ProgramStore, "latest", guess)
    monkeypatch.setattr(ProgramStore, "find", lambda *_: pytest.fail("the guess was not used"))
    monkeypatch.setattr(constants, "array_digests", hashed)
    assert run() == "loaded"
    assert guessed.is_set()


def test_models_that_differ_in_constants_are_of_one_family(two: tuple[Path, Path]) -> None:
    first, second = two
    assert first.name[:32] == second.name[:32]
    assert first.name[32:] != second.name[32:]


@pytest.mark.parametrize("last", [0, 1])
def test_a_wrong_guess_is_not_run(directory: Path, two: tuple[Path, Path], last: int) -> None:
    use_last(directory, two[last])
    assert run_table(directory, 1) == LOADED
    use_last(directory, two[last])
    assert run_table(directory, 2) == LOADED


@pytest.mark.parametrize("content", [b"", b"damaged", None])
def test_damage_to_a_wrong_guess_says_nothing(
    directory: Path, two: tuple[Path, Path], content: bytes | None
) -> None:
    """None: a sound entry, whose code cannot be loaded."""
    if content is not None:
        two[0].write_bytes(content)
    use_last(directory, two[0])
    right, load = two[1].read_bytes(), jax_private.load_executable

    def fail_for_others(code: bytes, device: jax.Device, n_in: int, n_out: int) -> object:
        if content is None and code not in right:
            raise RuntimeError("not for this machine")
        return load(code, device, n_in, n_out)

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error", jd.CacheWarning)
        patch.setattr(jax_private, "load_executable", fail_for_others)
        assert run_table(directory, 2) == LOADED


def test_the_latest_of_a_family(directory: Path, two: tuple[Path, Path]) -> None:
    store = ProgramStore(PrivateDirectory.open(directory))
    for path in two:
        use_last(directory, path)
        entry = store.latest(path.name[:32])
        assert entry is not None
        assert entry.file == path.name
    assert store.latest("0" * 32) is None


def test_using_a_guess_makes_it_young(directory: Path, two: tuple[Path, Path]) -> None:
    use_last(directory, two[0])
    os.utime(two[0], (1, 1))
    assert run_table(directory, 1) == LOADED
    assert two[0].stat().st_mtime > 1


@pytest.mark.usefixtures("xla_alone")
def test_weights_begin_where_xla_takes_arrays_over(run, directory: Path) -> None:
    run()
    store = ProgramStore(PrivateDirectory.open(directory))
    ((_, entry),) = store.entries()
    arrays = list(store.weights(entry).values())
    assert len(arrays) == 2
    assert all(a.ctypes.data % 64 == 0 for a in arrays)
    assert not np.shares_memory(*arrays)
