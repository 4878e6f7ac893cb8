"""`load_delegate`: the stub library in the stock interpreter, and delegates by name."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from ai_edge_litert.interpreter import load_delegate as stock_load_delegate

import jaxdelegate as jd
from jaxdelegate.litert import library, plugin
from jaxdelegate.litert.structures import host_version
from jaxdelegate.testing import assert_close
from jaxdelegate.testing.running import run_once

ROOT = Path(__file__).parents[2]
Stock = Callable[..., Interpreter]
X, Y = np.arange(4, dtype=np.float32), np.full(4, 3, np.float32)
COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")

SCALING = '''
import jaxdelegate as jd


class Kernel(jd.SimpleDelegateKernel):
    def __init__(self, factor):
        self.factor = factor

    def init(self, context, params):
        pass

    def prepare(self, context, node):
        pass

    def eval(self, context, node):
        a, b = (context.array(i) for i in node.inputs)
        context.assign(node.outputs[0], self.factor * (a + b))


class Scaling(jd.SimpleDelegate):
    """An ADD that scales, to show which delegate ran."""

    name = "Scaling"

    def __init__(self, factor="1"):
        super().__init__()
        self.factor = float(factor)

    def is_node_supported(self, node):
        return node.name == "ADD"

    def create_kernel(self):
        return Kernel(np.float32(self.factor))


import numpy as np
'''


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> str:
    return built("stub.c", tmp_path_factory.mktemp("stub") / "libjaxdelegate.so")


def built(source: str, path: Path) -> str:
    """A library, built as in setup.py, with warnings as errors."""
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-shared", "-fPIC"]
    source_path = str(Path(library.__file__).parent / source)
    subprocess.run([str(COMPILER), *flags, source_path, "-o", str(path)], check=True)
    return str(path)


@pytest.fixture
def scaling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "somebodys_delegate.py").write_text(SCALING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "somebodys_delegate", raising=False)
    return "somebodys_delegate:Scaling"


@needs_compiler
def test_the_stock_load_delegate(stub: str, stock: Stock, add_mul_sub: bytes) -> None:
    delegate = stock_load_delegate(stub, {"platform": "cpu", "max_delegated_partitions": 1})
    interpreter = stock(add_mul_sub, [delegate])
    assert_close(run_once(interpreter, [X, Y]), [(X + Y) * Y - X])
    assert interpreter._get_ops_details()[-1]["op_name"] == "DELEGATE"
    address = delegate._get_native_delegate_pointer()
    assert plugin._LOADED[address].options == jd.DelegateOptions(
        platform="cpu", max_delegated_partitions=1
    )
    del interpreter, delegate
    assert address not in plugin._LOADED


@needs_compiler
def test_a_custom_delegate(stub: str, stock: Stock, add_mul_sub: bytes, scaling: str) -> None:
    delegate = stock_load_delegate(stub, {"delegate": scaling, "factor": 10})
    assert_close(run_once(stock(add_mul_sub, [delegate]), [X, Y]), [10 * (X + Y) * Y - X])


BAD = [
    ({"platfrm": "cpu"}, "unknown option 'platfrm'; did you mean: platform"),
    ({"device_index": "first"}, "device_index: expected int, got 'first'"),
    ({"platform": "tpu"}, "platform: 'tpu' is not there; JAX has:"),
    ({"delegate": "no.such.module:Class"}, "'no.such.module:Class': No module named 'no'"),
    ({"delegate": "jaxdelegate"}, "expected package.module:Class, got 'jaxdelegate'"),
    ({"delegate": "jaxdelegate:Interpreter"}, "is not a SimpleDelegate class"),
]


@needs_compiler
@pytest.mark.parametrize(("options", "words"), BAD)
def test_bad_options_are_value_errors(stub: str, options: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match="Failed to load delegate from") as caught:
        stock_load_delegate(stub, options)
    assert words in str(caught.value)


@needs_compiler
def test_it_imports_the_package(stub: str) -> None:
    code = (
        "import sys; from ai_edge_litert.interpreter import load_delegate\n"
        "assert 'jaxdelegate' not in sys.modules; before = set(globals())\n"
        f"load_delegate({stub!r}, {{'platform': 'cpu'}})\n"
        "assert 'jaxdelegate' in sys.modules\n"
        "assert set(globals()) - before <= {'before'}, set(globals()) - before\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@needs_compiler
def test_a_broken_installation_is_an_error_with_its_cause(stub: str, tmp_path: Path) -> None:
    (tmp_path / "jaxdelegate.py").write_text("raise ImportError('no jaxlib, 100%')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from ai_edge_litert.interpreter import load_delegate\n"
        f"load_delegate({stub!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "ValueError: Failed to load delegate from" in done.stderr
    assert "jaxdelegate: no jaxlib, 100%" in done.stderr


WITHOUT_PYTHON = r"""
#include <dlfcn.h>
#include <stdio.h>
static void report(const char* message) { puts(message); }
int main(int argc, char** argv) {
  void* library = dlopen(argv[argc - 1], RTLD_NOW);
  void* (*create)(char**, char**, size_t, void (*)(const char*)) =
      (void* (*)(char**, char**, size_t, void (*)(const char*)))dlsym(
          library, "tflite_plugin_create_delegate");
  void (*destroy)(void*) = (void (*)(void*))dlsym(library, "tflite_plugin_destroy_delegate");
  destroy(NULL);
  return create(NULL, NULL, 0, report) != NULL || create(NULL, NULL, 0, NULL) != NULL;
}
"""


@needs_compiler
def test_a_process_without_python_gets_a_clear_error(stub: str, tmp_path: Path) -> None:
    source, program = tmp_path / "main.c", tmp_path / "main"
    source.write_text(WITHOUT_PYTHON)
    subprocess.run([str(COMPILER), str(source), "-o", str(program), "-ldl"], check=True)
    done = subprocess.run([program, stub], capture_output=True, text=True, check=False)
    said = "this delegate is written in Python, which does not run in this process"
    assert (done.returncode, done.stdout) == (0, f"jaxdelegate: {said}\n")


@needs_compiler
def test_load_delegate_accepts_libraries(stub: str, stock: Stock, add_mul_sub: bytes) -> None:
    delegate = jd.load_delegate(stub, {"platform": "cpu"})
    assert_close(run_once(stock(add_mul_sub, [delegate]), [X, Y]), [(X + Y) * Y - X])


@pytest.mark.parametrize("ours", [False, True], ids=["stock", "ours"])
def test_load_delegate_accepts_names(
    stock: Stock, add_mul_sub: bytes, scaling: str, ours: bool
) -> None:
    delegate = jd.load_delegate(scaling, {"factor": 2})
    if ours:
        interpreter: Any = jd.Interpreter(
            model_content=add_mul_sub, experimental_delegates=[delegate]
        )
    else:
        interpreter = stock(add_mul_sub, [delegate])
    assert_close(run_once(interpreter, [X, Y]), [2 * (X + Y) * Y - X])
    taken = jd.load_delegate("jaxdelegate:JaxDelegate", {"enable_quant": False}).options
    assert taken == jd.DelegateOptions(enable_quant=False)


def test_load_delegate_names_what_it_could_not_load(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"no_such_library\.so: no such library"):
        jd.load_delegate(str(tmp_path / "no_such_library.so"))
    with pytest.raises(jd.OptionError, match="has no attribute 'NoClass'"):
        jd.load_delegate("jaxdelegate:NoClass")


def test_library_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "_FOLDER", tmp_path)
    for path in (jd.litert.library_path, jd.litert.runtime_path):
        with pytest.raises(
            FileNotFoundError, match="is missing, and there is no record of a build"
        ):
            path()
    for name in ("libjaxdelegate.so", "libLiteRtGpuAccelerator.so"):
        (tmp_path / name).touch()
    assert jd.litert.library_path() == os.fspath(tmp_path / "libjaxdelegate.so")
    assert jd.litert.runtime_path() == os.fspath(tmp_path)


COMPILED_MODEL = """
import sys
import numpy as np
from ai_edge_litert.compiled_model import CompiledModel
from ai_edge_litert.environment import Environment
from ai_edge_litert.hardware_accelerator import HardwareAccelerator

runtime, model = sys.argv[1:]
environment = Environment.create(runtime_path=runtime)
gpu = HardwareAccelerator.GPU
compiled = CompiledModel.from_file(model, hardware_accel=gpu, environment=environment)
inputs, outputs = compiled.create_input_buffers(0), compiled.create_output_buffers(0)
x, y = np.arange(4, dtype=np.float32), np.full(4, 3, np.float32)
for scale in (1, 2):
    for buffer, array in zip(inputs, (scale * x, y)):
        buffer.write(array)
    compiled.run_by_index(0, inputs, outputs)
    np.testing.assert_array_equal(outputs[0].read(4, np.float32), (scale * x + y) * y - scale * x)

from jaxdelegate.litert import plugin
(delegate,) = plugin._LOADED.values()
assert delegate.report().left == (), delegate.report()
"""


@needs_compiler
def test_compiled_model(tmp_path: Path, add_mul_sub: bytes) -> None:
    if tuple(map(int, host_version("ai_edge_litert").split(".")[:2])) < (2, 3):
        pytest.skip("CompiledModel has other tables before 2.3")
    built("accelerator.c", tmp_path / "libLiteRtGpuAccelerator.so")
    (tmp_path / "model.tflite").write_bytes(add_mul_sub)
    paths = [str(tmp_path), str(tmp_path / "model.tflite")]
    # In a separate process, since LiteRT does not unload libraries.
    done = subprocess.run(
        [sys.executable, "-c", COMPILED_MODEL, *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
