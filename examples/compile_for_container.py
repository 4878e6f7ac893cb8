"""Compile a model when an image is built, and only load it when the image runs.

python examples/compile_for_container.py [MODEL.tflite [PROGRAMS]]
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jaxdelegate as jd
from jaxdelegate.demo.mobilenet import mobilenet_v1


def serve(model: str, programs: str = "") -> None:
    """Run one inference on zeros, in place of your program."""
    start = time.perf_counter()
    delegate = jd.JaxDelegate(serialization_dir=programs or None)
    interpreter = jd.Interpreter(model, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    interpreter.invoke()
    how = "compiled or imported jax" if "jax" in sys.modules else "loaded what was compiled before"
    print(f"first answer after {time.perf_counter() - start:.3f} s: {how}")


if sys.argv[1:2] == ["--serve"]:
    serve(*sys.argv[2:])
    sys.exit()
folder = tempfile.mkdtemp()
defaults = f"{folder}/mobilenet.tflite", f"{folder}/programs"
model, programs = (*sys.argv[1:], *defaults[len(sys.argv) - 1 :])
if not sys.argv[1:]:
    Path(model).write_bytes(mobilenet_v1(size=64, width=0.25))
served = [sys.executable, __file__, "--serve", model]
subprocess.run(served, check=True)
flag = f"--jax_serialization_dir={programs}"
subprocess.run([sys.executable, "-m", "jaxdelegate", "compile", model, flag], check=True)
subprocess.run([*served, programs], check=True)
