"""On a GPU: the switches of docs/gpu.md change no result. bench/gpu_switches.py measures them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.host_memory import pinned_zeros
from jaxdelegate.options import EARLY_COPIES, GPU_LOOPS, PINNED_INPUTS, SPLIT_PRODUCTS
from tests.gpu.on_device import NEEDS_DEVICE, PLATFORM

pytestmark = NEEDS_DEVICE
SIZE = 160  # 307,200 bytes of an image: enough for pinned memory


def images(count: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.random((1, SIZE, SIZE, 3), np.float32) for _ in range(count)]


def inferred(model: bytes) -> list[np.ndarray]:
    delegate = jd.JaxDelegate(platform=PLATFORM)  # type: ignore[arg-type]
    interpreter = jd.Interpreter(model_content=model, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    (x,), (y,) = interpreter.get_input_details(), interpreter.get_output_details()
    results = []
    for image in images(6):
        interpreter.set_tensor(x["index"], image)
        interpreter.invoke()
        results.append(interpreter.get_tensor(y["index"]))
    return results


@pytest.mark.parametrize(
    "switches",
    [[EARLY_COPIES], [PINNED_INPUTS], [EARLY_COPIES, PINNED_INPUTS], [SPLIT_PRODUCTS]],
)
def test_networks(monkeypatch: pytest.MonkeyPatch, switches: list[str]) -> None:
    """XLA may choose other kernels when it compiles again."""
    model = mobilenet_v1(size=SIZE, width=0.25)
    want = inferred(model)
    for name in switches:
        monkeypatch.setenv(name, "1")
    found = inferred(model)
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


def test_memory_is_pinned() -> None:
    if PLATFORM != "gpu":
        pytest.skip("only a GPU reads host memory")
    client: Any = jax.devices(PLATFORM)[0].client
    buffer = pinned_zeros((1 << 20,), np.dtype(np.float32), client)
    assert buffer is not None
    for value in range(3):
        buffer[...] = value
        assert (np.asarray(jax.device_put(buffer, jax.devices(PLATFORM)[0])) == value).all()


def test_a_loop_in_a_graph_runs_again() -> None:
    """In a process of its own, which it may end (openxla/xla#35760)."""
    command = [sys.executable, "-m", "jaxdelegate.xla.loop_trial", PLATFORM]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("form", ["tried", "unrolled"])
def test_tokens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: str) -> None:
    for package in ("litert_lm_builder", "minijinja", "tokenizers"):
        pytest.importorskip(package, reason=f"the extra lm is not installed: no {package}")
    from jaxdelegate import lm
    from tests.support.language_models import language_bundle

    path = tmp_path / "model.litertlm"
    path.write_bytes(language_bundle())
    answers = []
    for value in ("host", form):
        monkeypatch.setenv(GPU_LOOPS, value)
        options = {"platform": PLATFORM}
        with lm.Engine(path, max_batch=2, options=options, cache_dir=":nocache") as engine:
            found = [engine.generate(["Hello", "x"], max_output_tokens=n) for n in (6, 20, 6, 20)]
            answers.append([c.token_ids for completions in found for c in completions])
    assert answers[0] == answers[1]
