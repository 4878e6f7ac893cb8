"""What a process can do that was forked: before XLA was used, or after."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.networks import small_classifier

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

# `in_child` answers what a forked child made of a function; one that hangs is ended by an alarm.
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
    """What a process prints, line by line, in a folder with a model."""
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


def test_after_jax_ran(lines) -> None:
    """Old interpreters, delegates and models say so, and new ones; the reference still computes."""
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
def test_after_a_stored_start(lines) -> None:
    """The same where jax was never imported."""
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
    """Children and the parent compute, also where jax was imported, and in a pool of processes."""
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
