"""`python examples/web_demo`: missing packages, and its flags."""

import subprocess
import sys
from pathlib import Path

import pytest

WEB_DEMO = str(Path(__file__).parents[3] / "examples/web_demo")
# The page is not served: the flags are printed, as the page would get them.
PRINTING = """
import os, runpy, sys, types
page = types.SimpleNamespace(launch=lambda folder, host, port: print(
    host, port, os.environ["JAXDELEGATE_NATIVE_KERNELS"], os.environ["GRADIO_TEMP_DIR"] == folder))
sys.modules |= {"PIL": page, "gradio": page, "web_demo.web": page}
"""


def started(code: str, *flags: str) -> subprocess.CompletedProcess:
    code = f"{code}\nimport runpy\nrunpy.run_path({WEB_DEMO!r}, run_name='__main__')"
    command = [sys.executable, "-c", code, *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["gradio", pytest.param("PIL", marks=pytest.mark.exhaustive)])
def test_without_an_extra(name: str) -> None:
    process = started(f"import sys; sys.modules[{name!r}] = None")
    assert process.returncode == 1
    assert f"{name} is not installed" in process.stderr
    assert "pip install 'av>=" in process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize(
    ("flags", "served"),
    [
        (("--nojax_native_kernels",), "127.0.0.1 None 0 True"),
        (("--host=0.0.0.0", "--port=8000", "--jax_native_kernels"), "0.0.0.0 8000 1 True"),
    ],
)
def test_its_flags(flags: tuple[str, ...], served: str) -> None:
    process = started(PRINTING, *flags)
    assert (process.returncode, process.stdout.strip()) == (0, served)


@pytest.mark.parametrize("words", ["--port=0", "--port=65536", "--ports=1", "model.tflite"])
def test_a_mistake_is_refused(words: str) -> None:
    process = started(PRINTING, words)
    assert process.returncode == 1
    assert "Traceback" not in process.stderr
    assert process.stdout == "" or "usage" in process.stdout.lower()
