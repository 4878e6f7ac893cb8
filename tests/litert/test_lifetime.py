"""Many interpreters, resizes and threads leave nothing behind and do not crash."""

import gc
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import jaxdelegate as jd
from jaxdelegate.litert import native
from jaxdelegate.testing import assert_close
from jaxdelegate.testing.running import run_once
from jaxdelegate.xla import aot
from tests.support.combinations import covering

Stock = Callable[..., Interpreter]
ROOT = Path(__file__).parents[2]


def pair(n: int = 4) -> list[np.ndarray]:
    return [np.arange(n, dtype=np.float32), np.full(n, 3, np.float32)]


def wanted(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    return [(x + y) * y - x]


def resident_kb() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise OSError("no RssAnon")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_500_interpreters_leave_nothing_behind(
    tutorial: Any, stock: Stock, add_mul_sub: bytes
) -> None:
    mine, xla = tutorial(), jd.JaxDelegate(last_delegate_node_index=1)
    known = len(native._PARTITIONS), len(native._SHARED)

    def cycle(count: int) -> None:
        for _ in range(count):
            run_once(stock(add_mul_sub, [mine]), pair())

    cycle(50)
    gc.collect()
    before = resident_kb()
    cycle(500)
    gc.collect()
    assert resident_kb() - before < 2000
    for _ in range(3):
        run_once(stock(add_mul_sub, [xla]), pair())
    gc.collect()
    assert (len(native._PARTITIONS), len(native._SHARED)) == known


def test_a_delegate_is_freed_with_its_last_interpreter(
    tutorial: Any, stock: Stock, add_mul_sub: bytes
) -> None:
    delegate = tutorial()
    interpreter = stock(add_mul_sub, [delegate])
    address = delegate._get_native_delegate_pointer()
    assert address == delegate._get_native_delegate_pointer()
    del delegate
    gc.collect()
    assert_close(run_once(interpreter, pair()), wanted(*pair()))
    del interpreter
    gc.collect()
    assert address not in native._NATIVES


@pytest.mark.parametrize("auto", [False, True], ids=["reference", "redone after XNNPACK"])
def test_programs_outlive_a_resize(
    stock: Stock, add_mul_sub: bytes, auto: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []
    compile_partition = aot.compile_partition

    def counted(partition: Any, *more: Any) -> Any:
        compiled.append(partition.inputs)
        return compile_partition(partition, *more)

    monkeypatch.setattr(aot, "compile_partition", counted)
    interpreter = stock(add_mul_sub, [jd.JaxDelegate(last_delegate_node_index=0)], auto=auto)
    for n in (4, 8, 4, 8, 3):
        assert_close(run_once(interpreter, pair(n)), wanted(*pair(n)))
    assert len(compiled) == 3


@pytest.mark.parametrize("kind", ["python", "jax"])
def test_four_threads_with_four_interpreters_on_one_delegate(
    tutorial: Any, stock: Stock, add_mul_sub: bytes, kind: str
) -> None:
    delegate = tutorial() if kind == "python" else jd.JaxDelegate()
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            interpreter = stock(add_mul_sub, [delegate])
            for n in (4, 5, 4, 7):
                interpreter.resize_tensor_input(0, (n,))
                interpreter.resize_tensor_input(1, (n,))
                interpreter.allocate_tensors()
                for _ in range(50):
                    x, y = (rng.integers(-9, 9, n).astype(np.float32) for _ in range(2))
                    assert_close(run_once(interpreter, [x, y]), wanted(x, y))
        except BaseException as error:  # an assertion in a thread would pass unseen
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


EXIT = """
import numpy as np
from ai_edge_litert.interpreter import Interpreter
import jaxdelegate as jd
from jaxdelegate.testing import ModelBuilder

class Kernel(jd.SimpleDelegateKernel):
    def init(self, context, params): pass
    def prepare(self, context, node): pass
    def eval(self, context, node):
        context.assign(node.outputs[0], 2 * context.array(node.inputs[0]))

class Doubling(jd.SimpleDelegate):
    def is_node_supported(self, node): return True
    def create_kernel(self): return Kernel()

builder = ModelBuilder()
x, y = builder.input((4,)), builder.tensor((4,))
builder.operator("ADD", [x, x], [y])
builder.outputs(y)
delegates = {delegates}
model = builder.build()
interpreters = [Interpreter(model_content=model, experimental_delegates=[d]) for d in delegates]
for interpreter in interpreters:
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, np.ones(4, np.float32))
    interpreter.invoke()
    assert interpreter.get_tensor(1).tolist() == [2] * 4
{end}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "delegates"),
    covering(
        ["", "del delegates", "raise SystemExit(0)", "import sys; sys.kept = interpreters"],
        ["[Doubling()]", "[jd.JaxDelegate()]"],
    ),
)
def test_exit_with_live_interpreters(delegates: str, end: str) -> None:
    code = textwrap.dedent(EXIT).format(delegates=delegates, end=end)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    noise = ("INFO:", "WARNING:", "I0000", "W0000")
    errors = [line for line in done.stderr.splitlines() if not line.startswith(noise)]
    assert (done.returncode, errors) == (0, [])
