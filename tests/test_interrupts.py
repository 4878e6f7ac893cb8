"""Interrupted inferences: Ctrl-C at any point, and custom operators that fail."""

import dataclasses
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.op_lowering.options import CustomOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import OpRule
from jaxdelegate.program import Program
from jaxdelegate.reference.kernel import Kernel, same_shape
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import run_once
from jaxdelegate.whole_imports import whole_imports
from jaxdelegate.xla import aot

pytestmark = pytest.mark.usefixtures("signals_at_their_defaults")


class OwnError(Exception):
    """An error that is not expected from a kernel."""


def fails(*_: Any) -> Any:
    raise OwnError("no such book")


def identity(_options: Any, _inputs: Any, _outputs: Any, x: np.ndarray) -> tuple[np.ndarray]:
    return (x,)


def model(name: str = "RELU") -> bytes:
    builder = ModelBuilder()
    x, y = builder.input((4,), np.float32, "x"), builder.tensor((4,), np.float32, "y")
    builder.operator(name, [x], [y])
    builder.outputs(y)
    return builder.build()


X = np.array([1, 2, 3, 4], np.float32)


def interrupted(real: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with Ctrl-C during its first call."""
    presses = [KeyboardInterrupt]

    def call(*args: Any, **kwargs: Any) -> Any:
        if presses:
            raise presses.pop()
        return real(*args, **kwargs)

    return call


@pytest.mark.parametrize(
    ("where", "name"),
    [(aot, "compiled_with"), (PrivateDirectory, "write"), (Program, "__call__")],
    ids=["compile", "store", "invoke"],
)
def test_ctrl_c_leaves_an_interpreter_that_works(
    where: Any, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The next calls repeat unfinished work, and the cache has no partial files."""
    directory = tmp_path / "programs"
    delegate = jd.JaxDelegate(serialization_dir=str(directory), min_gain=0)
    interpreters: list[jd.Interpreter] = []

    def run() -> np.ndarray:
        if not interpreters:  # its constructor stores the reasons of rules
            interpreters.append(
                jd.Interpreter(model_content=model(), experimental_delegates=[delegate])
            )
        return run_once(interpreters[0], [X])[0]

    monkeypatch.setattr(where, name, interrupted(getattr(where, name)))
    with pytest.raises(KeyboardInterrupt):
        run()
    for _ in range(2):
        np.testing.assert_array_equal(run(), X)
    interpreters.clear()
    np.testing.assert_array_equal(run(), X)
    assert not list(directory.glob(".writing-*"))


def test_ctrl_c_in_a_reference_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = KERNELS["RELU"]
    monkeypatch.setitem(KERNELS, "RELU", dataclasses.replace(kernel, run=interrupted(kernel.run)))
    interpreter = jd.Interpreter(model_content=model())
    with pytest.raises(KeyboardInterrupt):
        run_once(interpreter, [X])
    np.testing.assert_array_equal(run_once(interpreter, [X])[0], X)


@pytest.fixture
def registered() -> Iterator[Callable[..., bytes]]:
    """Registers the operator Own and returns a model of it."""

    def register(kernel: Kernel, rule: dict[str, Any] | None = None) -> bytes:
        functions = {"why_not": lambda *_: None, "lower": lambda *_: lambda x: (x,)}
        own = OpRule("Own", CustomOptions, 1, **{**functions, **rule}) if rule else None
        jd.register_operator("Own", kernel, own)
        return model("Own")

    yield register
    KERNELS.pop("Own", None), RULES.pop("Own", None)


def test_a_kernel_that_fails_is_named(registered: Callable[..., bytes]) -> None:
    """The interpreter works again when the kernel does."""
    is_broken = [True]

    def run(*args: Any) -> Any:
        return fails() if is_broken[0] else identity(*args)

    interpreter = jd.Interpreter(model_content=registered(Kernel(run, same_shape)))
    with pytest.raises(jd.InterpreterError, match=r"number 0 \(Own\) failed.* no such book"):
        run_once(interpreter, [X])
    is_broken[0] = False
    np.testing.assert_array_equal(run_once(interpreter, [X])[0], X)


def test_a_shape_function_that_fails_is_named(registered: Callable[..., bytes]) -> None:
    interpreter = jd.Interpreter(model_content=registered(Kernel(identity, fails)))
    with pytest.raises(jd.InterpreterError, match=r"number 0 \(Own\) failed to prepare: no such"):
        interpreter.allocate_tensors()


@pytest.mark.parametrize("part", ["why_not", "lower", "traced"])
def test_a_rule_that_fails_is_named(registered: Callable[..., bytes], part: str) -> None:
    """Without the delegate the model runs."""
    rule = {"lower": lambda *_: fails} if part == "traced" else {part: fails}
    content = registered(Kernel(identity, same_shape), rule)
    delegate = jd.JaxDelegate(min_gain=0)
    with pytest.raises(
        jd.LoweringError, match=r"node 0 \(Own\): its registered rule raised OwnError: no such"
    ):
        jd.Interpreter(model_content=content, experimental_delegates=[delegate]).allocate_tensors()
    np.testing.assert_array_equal(run_once(jd.Interpreter(model_content=content), [X])[0], X)


# Ctrl-C at the start of every import, once for each name: an import must finish, or leave no
# partially imported modules.
STORM = """
import signal, sys
import numpy as np
import jaxdelegate as jd

def press(event, args, seen=set()):
    if event == "import" and args[0] not in seen:
        seen.add(args[0])
        signal.raise_signal(signal.SIGINT)

def interpreter(kind=None):
    delegate = jd.JaxDelegate(min_gain=0)
    found = (kind or jd.Interpreter)(sys.argv[2], experimental_delegates=[delegate])
    found.allocate_tensors()
    found.set_tensor(0, x)
    found.invoke()
    return found.get_tensor(1)

def stock():
    return interpreter(ai_edge_litert.interpreter.Interpreter)

def function():
    return jd.load(sys.argv[2])(x)[0]

x = np.float32([-1, 2, -3, 4])
if sys.argv[1] == "stock":
    import ai_edge_litert.interpreter
sys.addaudithook(press)
presses = 0
while True:
    try:
        print(np.asarray(globals()[sys.argv[1]]()).tolist(), presses, "jax" in sys.modules)
        break
    except KeyboardInterrupt:
        presses += 1
    except RuntimeError as error:  # as stock interpreters report it
        if "KeyboardInterrupt" not in str(error):
            raise
        presses += 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("use", ["interpreter", "stock", "function"])
def test_ctrl_c_during_the_imports_of_a_first_use(use: str, tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(model())
    command = [sys.executable, "-c", STORM, use, str(path)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    answer, _, rest = ran.stdout.partition("] ")
    assert answer == "[0.0, 2.0, 0.0, 4.0", ran.stderr[-2000:]
    presses, has_jax = rest.split()
    assert 0 < int(presses) < 50, "each import was interrupted, not each group of imports"
    assert has_jax == "True"


def interrupted_imports(seen: list[int]) -> None:
    with whole_imports():
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1):
            signal.raise_signal(number)
        with whole_imports():
            signal.raise_signal(signal.SIGUSR2)
        assert not seen


def test_signal_handlers_wait_for_imports_and_run_once_each() -> None:
    seen: list[int] = []
    signals = (signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.signal(number, lambda number, _: seen.append(number)) for number in signals]
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted_imports(seen)
        assert sorted(seen) == sorted(signals)
        signal.raise_signal(signal.SIGUSR1)
        assert len(seen) == 3
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def test_a_handler_that_an_import_installs_stays() -> None:
    def own(_number: int, _frame: Any) -> None: ...

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with whole_imports():
            signal.signal(signal.SIGUSR1, own)
        assert signal.getsignal(signal.SIGUSR1) is own
    finally:
        signal.signal(signal.SIGUSR1, before)
