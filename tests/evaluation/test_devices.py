import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.errors import InterpreterError
from jaxdelegate.evaluation.files import DataError
from jaxdelegate.evaluation.model import open_on_devices
from jaxdelegate.interpreter import Interpreter
from tests.evaluation.test_model import model

TIMEOUT = 30  # seconds; only a failure waits for it


class Counted(Interpreter):
    """Records the threads of its runs."""

    def __init__(self, path: Path, before: Any = None) -> None:
        super().__init__(str(path), experimental_delegates=[JaxDelegate()])
        self.runs: list[str] = []
        self.before = before

    def invoke(self) -> None:
        self.runs.append(threading.current_thread().name)
        if self.before is not None:
            self.before()
        super().invoke()


@pytest.mark.parametrize("mixes", [False, True], ids=["takes the batch", "single runs"])
def test_batches_go_to_the_devices_in_turn(
    tmp_path: Path, rng: np.random.Generator, mixes: bool
) -> None:
    path = model(tmp_path, mixes=mixes)
    interpreters = [Counted(path) for _ in range(3)]
    opened = open_on_devices(path, interpreters, batch_size=4, num_outputs=1)
    assert (opened.in_flight, opened.batch_size) == (3, 4)
    assert (opened.notes != ()) == mixes
    tried = len(interpreters[0].runs)
    batches = [rng.normal(size=(4, 4, 5, 3)).astype(np.float32) for _ in range(7)]
    one = open_on_devices(path, Counted(path), batch_size=4, num_outputs=1)
    found = [start() for start in [opened.start(batch) for batch in batches]]
    for (y,), batch in zip(found, batches, strict=True):
        np.testing.assert_array_equal(y, one.invoke(batch)[0])
    assert [len(i.runs) for i in interpreters] == [3 + tried, 2, 2]
    for i, interpreter in enumerate(interpreters):
        assert {name[:8] for name in interpreter.runs[-2:]} == {f"device {i}"}


def test_devices_work_at_the_same_time(tmp_path: Path) -> None:
    both = threading.Barrier(2)
    path = model(tmp_path, signature=(-1, 4, 5, 3))
    interpreters = [Counted(path, lambda: both.wait(TIMEOUT)) for _ in range(2)]
    opened = open_on_devices(path, interpreters, batch_size=2, num_outputs=1)
    images = np.zeros((2, 4, 5, 3), np.float32)
    for wait in [opened.start(images), opened.start(images)]:
        assert wait()[0].shape == (2, 60)


def test_errors_come_with_the_outputs(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("the device is gone")

    path = model(tmp_path, signature=(-1, 4, 5, 3))
    good, bad = Counted(path), Counted(path, fail)
    opened = open_on_devices(path, [good, bad], batch_size=2, num_outputs=1)
    images = np.zeros((2, 4, 5, 3), np.float32)
    first, second = opened.start(images), opened.start(images)
    assert first()[0].shape == (2, 60)
    with pytest.raises(InterpreterError, match="the device is gone"):
        second()


def test_an_empty_list_of_interpreters(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected at least one interpreter, got an empty list"):
        open_on_devices(model(tmp_path), [], batch_size=2, num_outputs=1)
