"""Forked processes: before and after the parent used XLA."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.networks import small_classifier

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

# `in_child` returns the result of a function in a forked child; an alarm ends a child that hangs.
BEFORE = """
import multiprocessing, os, signal, sys, warnings
import numpy as np
import jaxdelegate as jd
from jaxdelegate.testing.running import random_inputs, run_once
warnings.simplefilter("ignore")

def in_child(use):
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        signal.alarm(60)
        try:
            said = f"answer {use()}"
        except jd.JaxDelegateError as error:
            said = f"{type(error).__name__}: {error}"
        except BaseException as error:
            said = f"unexpected {error!r}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with open(read) as said:
        print(said.read() or "died", flush=True)
    os.waitpid(pid, 0)

def opened(*delegates):
    return jd.Interpreter("model.tflite", experimental_delegates=list(delegates))

def served(interpreter):
    run_once(interpreter, random_inputs(interpreter.get_input_details()))
    return "right"
"""
LOST = "InterpreterError: XLA cannot run in this process: it was forked from one that had used XLA"


@pytest.fixture
def lines(tmp_path: Path):
    """The lines that a process prints, in a folder with a model."""
    (tmp_path / "model.tflite").write_bytes(small_classifier())

    def run(code: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", BEFORE + code],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=subprocess.PIPE,
            text=True,
            timeout=200,
            check=True,
        )
        return done.stdout.splitlines()

    return run


@pytest.mark.slow
def test_after_jax_ran(lines) -> None:
    """Old and new interpreters, delegates and models raise an error; the reference still works."""
    said = lines("""
delegate = jd.JaxDelegate()
interpreter, model = opened(delegate), jd.load("model.tflite")
print(served(interpreter))
x = random_inputs(interpreter.get_input_details())
model(*x)
apply, params = model.function()
for use in (
    interpreter.invoke,
    lambda: served(interpreter),
    lambda: served(opened(delegate)),
    jd.JaxDelegate,
    lambda: model(*x),
    lambda: jd.load("model.tflite")(*x),
    lambda: model.params,
    lambda: apply(params, *x),
    lambda: served(opened()),
):
    in_child(use)
in_child(lambda: in_child(jd.JaxDelegate))
print(served(interpreter))
""")
    assert said[0] == said[-1] == "right"
    assert [line[: len(LOST)] for line in said[1:9]] == [LOST] * 8
    assert said[9] == "answer right"
    assert said[10].startswith(LOST)  # a grandchild
    assert 'multiprocessing.get_context("spawn")' in said[1]


@pytest.mark.slow
@pytest.mark.parametrize("module", ["jaxdelegate.interpreter", "scipy.constants"])
def test_while_another_thread_imports(lines, module: str) -> None:
    """The fork waits: no child could finish the import."""
    said = lines(f"""
import threading, time
begun = threading.Event()
class Slow:
    def find_spec(name, *_):
        if name == {module!r}:
            begun.set()
            time.sleep(0.2)
sys.modules.pop({module!r}, None)
sys.meta_path.insert(0, Slow)
thread = threading.Thread(target=lambda: __import__({module!r}))
thread.start()
begun.wait()
in_child(lambda: __import__({module!r}) and sys.modules[{module!r}].__name__)
thread.join()
""")
    assert said == [f"answer {module}"]


@pytest.mark.slow
def test_while_another_thread_uses_the_package(lines) -> None:
    """The child would wait forever for what that thread has locked."""
    said = lines("""
import threading
from jaxdelegate.lru_cache import LruCache
used, forked = threading.Event(), threading.Event()
def using():
    LruCache(1).get(0, lambda: used.set() or forked.wait())
thread = threading.Thread(target=using)
thread.start()
used.wait()
in_child(lambda: in_child(jd.JaxDelegate) or jd.JaxDelegate())
in_child(lambda: served(opened()))
forked.set()
thread.join()
in_child(lambda: served(opened(jd.JaxDelegate())))
""")
    assert [line[: len(LOST)] for line in said[:2]] == [LOST] * 2  # a grandchild, too
    assert said[2:] == ["answer right"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.02, 0.3])
@pytest.mark.parametrize("use", ["served(opened(jd.JaxDelegate()))", "__import__('jax').devices()"])
def test_while_another_thread_uses_it_for_the_first_time(lines, use: str, delay: float) -> None:
    said = lines(f"""
import threading, time
thread = threading.Thread(target=lambda: {use})
thread.start()
time.sleep({delay})
in_child(lambda: served(opened(jd.JaxDelegate())))
in_child(lambda: served(opened()))
thread.join()
""")
    assert said[0] == "answer right" or said[0].startswith(LOST)
    assert said[1] == "answer right"


@pytest.mark.slow
def test_while_another_thread_holds_the_lock_of_backends(lines) -> None:
    """The fork itself returns in the child, as does all that needs no XLA."""
    said = lines("""
import threading
import jaxdelegate.pjrt.client
from jax._src import xla_bridge
held, forked = threading.Event(), threading.Event()
def holding():
    with xla_bridge._backend_lock:
        held.set()
        forked.wait()
thread = threading.Thread(target=holding)
thread.start()
held.wait()
in_child(lambda: served(opened()))
forked.set()
thread.join()
""")
    assert said == ["answer right"]


@pytest.mark.slow
def test_after_a_start_from_a_stored_program(lines) -> None:
    """The error is the same without an import of jax."""
    said = lines("""
def stored():
    return jd.JaxDelegate(serialization_dir="programs")
in_child(lambda: served(opened(stored())))  # fills the folder; this process has not used XLA yet
delegate = stored()
interpreter = opened(delegate)
print(served(interpreter), "jax" in sys.modules)
for use in (interpreter.invoke, lambda: served(opened(delegate)), stored):
    in_child(use)
print(served(interpreter), "jax" in sys.modules)
""")
    assert said[0] == "answer right"
    assert said[1] == said[-1] == "right False"
    assert [line[: len(LOST)] for line in said[2:5]] == [LOST] * 3


@pytest.mark.slow
def test_before_any_use(lines) -> None:
    """Children and the parent work, even after an import of jax, and in a pool of processes."""
    said = lines("""
import jax
for _ in range(2):
    in_child(lambda: served(opened(jd.JaxDelegate())))
def work(_):
    return served(opened(jd.JaxDelegate()))
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(work, range(2)))
print(served(opened(jd.JaxDelegate())))
with multiprocessing.get_context("fork").Pool(1) as pool:
    try:
        pool.map(work, range(1))
    except jd.JaxDelegateError as error:
        print(type(error).__name__, error)
""")
    assert said[:2] == ["answer right"] * 2
    assert said[2:4] == ["['right', 'right']", "right"]
    assert said[4].startswith("InterpreterError XLA cannot run in this process")
