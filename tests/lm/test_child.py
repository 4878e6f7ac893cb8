"""The child process that templates and schemas run in."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from jaxdelegate.errors import InterpreterError
from jaxdelegate.lm import child
from jaxdelegate.lm.child import Child, EndedError, RefusedError

SCRIPT = """
import ctypes, os, time
def answer(question):
    if question == "late": time.sleep(60)
    while question == "busy": pass
    if question == "crash": ctypes.string_at(0)
    if question == "exit": os._exit(3)
    if question == "memory": bytearray(1 << 40)
    if question == "deep": return answer_deeply(question)
    if question == "panic": raise BaseException("a panic\\nof a package")
    return [question, os.getpid()]
def answer_deeply(question):
    return answer_deeply(question)
"""


@pytest.fixture
def asked(tmp_path: Any) -> Iterator[Child]:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    made = Child(str(path), seconds=5, stack_bytes=1 << 22, memory_bytes=1 << 28)
    yield made
    made.close()


def test_answers(asked: Child) -> None:
    (first, process), (second, same) = asked.answer("a"), asked.answer({"b": ["€"]})
    assert (first, second, process) == ("a", {"b": ["€"]}, same)


@pytest.mark.parametrize(
    ("question", "says"),
    [("panic", "a panic$"), ("memory", "MemoryError"), ("deep", "recursion")],
)
def test_errors_are_answers(asked: Child, question: str, says: str) -> None:
    before = asked.answer("a")
    with pytest.raises(RefusedError, match=says):
        asked.answer(question)
    assert asked.answer("a") == before


@pytest.mark.parametrize(("question", "how"), [("crash", "SIGSEGV"), ("exit", "exit code 3")])
def test_a_crash_ends_only_the_child(asked: Child, question: str, how: str) -> None:
    with pytest.raises(EndedError, match=how) as error:
        asked.answer(question)
    assert not error.value.is_late
    assert asked.answer("a")[0] == "a"


@pytest.fixture(params=["default", "ignored", "blocked"])
def alarm(request: pytest.FixtureRequest) -> Iterator[None]:
    """How this process, which starts the child, treats the signal of the deadline."""
    handler = signal.getsignal(signal.SIGALRM)
    if request.param == "ignored":
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    if request.param == "blocked":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])


@pytest.mark.usefixtures("alarm")
def test_late_answers(asked: Child) -> None:
    asked.answer("a")
    asked.seconds = 0.2
    with pytest.raises(EndedError) as error:
        asked.answer("late")
    assert error.value.is_late
    assert asked.answer("a")[0] == "a"


def test_answers_that_take_too_long_of_the_processor(asked: Child) -> None:
    asked._cpu_seconds = 0.2
    assert asked.answer("a")[0] == "a"
    with pytest.raises(EndedError) as error:
        asked.answer("busy")
    assert error.value.is_late
    assert asked.answer("a")[0] == "a"


def test_a_child_that_someone_has_ended_is_replaced(asked: Child) -> None:
    asked.answer("a")
    assert asked._process is not None
    asked._process.terminate()
    asked._process.wait()
    assert asked.answer("b")[0] == "b"


def test_an_interrupted_wait_leaves_no_answer(
    asked: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            assert self.stdout is not None
            self.stdout = _Stream(self.stdout)

    class _Stream:
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def readline(self) -> bytes:
            raise KeyboardInterrupt

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

    with monkeypatch.context() as patch:
        patch.setattr(child.subprocess, "Popen", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            asked.answer("a")
    assert asked.answer("b")[0] == "b"


def test_a_python_that_is_missing(asked: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/python")
    with pytest.raises(InterpreterError, match="expected to start /no/python"):
        asked.answer("a")


FORKS = """
import os
from jaxdelegate.lm.templates import CHILD
ask = lambda text: CHILD.answer({"source": "{{ x }}", "variables": {"x": text}})
ask("a")
child = os.fork()
texts = [f"{child} {i}" for i in range(99)]
wrong = [text for text in texts if ask(text) != text]
if child == 0:
    os._exit(len(wrong))
assert not wrong and os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_process_has_its_own() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", FORKS], check=True, timeout=100)
