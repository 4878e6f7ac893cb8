"""File locks: one process at a time compiles a program, and a killed one releases its lock."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jaxdelegate.cache import locks
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.maintenance import foreign_files
from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.interpreter import Interpreter

ROOT = Path(__file__).parents[2]
HOLDER = """
import sys
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.locks import program_lock
with program_lock(PrivateDirectory.open(sys.argv[1]), "program"):
    print("locked", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def directory(tmp_path: Path) -> PrivateDirectory:
    return PrivateDirectory.open(tmp_path / "programs")


@pytest.fixture
def holder(directory: PrivateDirectory) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


class Waiting(threading.Thread):
    """Acquires the lock, and sets an event when it has."""

    def __init__(self, directory: PrivateDirectory, digest: str = "program") -> None:
        super().__init__()
        self._directory, self._digest = directory, digest
        self.acquired = threading.Event()
        self.start()

    def run(self) -> None:
        with locks.program_lock(self._directory, self._digest):
            self.acquired.set()


@pytest.mark.parametrize("how", ["leaves", "dies"])
def test_others_wait_until_the_holder_leaves_or_dies(
    directory: PrivateDirectory, holder: subprocess.Popen[str], how: str
) -> None:
    another = Waiting(directory, "another program")
    assert another.acquired.wait(60)
    waiting = [Waiting(directory) for _ in range(3)]
    assert not any(w.acquired.is_set() for w in waiting)
    assert holder.stdin is not None
    if how == "dies":
        holder.kill()
    else:
        holder.stdin.write("\n")
        holder.stdin.flush()
    for w in (another, *waiting):
        assert w.acquired.wait(60)
        w.join()
    assert list(directory.path.iterdir()) == []


def test_only_one_thread_holds_it_at_a_time(directory: PrivateDirectory) -> None:
    inside, most, guard = [0], [0], threading.Lock()

    def work() -> None:
        for _ in range(50):
            with locks.program_lock(directory, "program"):
                with guard:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                with guard:
                    inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_where_files_cannot_be_locked_every_process_compiles(
    directory: PrivateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with locks.program_lock(directory, "program"):
        assert foreign_files(directory.path) == []


def test_a_program_that_was_stored_meanwhile_is_loaded(
    network: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that start at the same time, simulated in one: the second looks again."""
    folder = str(tmp_path / "programs")
    late = JaxDelegate(platform="cpu", serialization_dir=folder)
    assert late.programs is not None
    late.programs.compiles_once = True
    load, calls = late.programs.load, [0]

    def first_too_early(*arguments: object) -> object:
        calls[0] += 1
        if calls[0] > 1:
            return load(*arguments)  # type: ignore[arg-type]
        early = JaxDelegate(platform="cpu", serialization_dir=folder)
        Interpreter(model_content=network, experimental_delegates=[early]).allocate_tensors()
        return None

    monkeypatch.setattr(late.programs, "load", first_too_early)
    interpreter = Interpreter(model_content=network, experimental_delegates=[late])
    interpreter.allocate_tensors()
    interpreter.invoke()
    assert np.isfinite(interpreter.get_tensor(interpreter.get_output_details()[0]["index"])).all()
    assert (late.programs.statistics.loaded, late.programs.statistics.stored) == (1, 0)
