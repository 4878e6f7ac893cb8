"""What takes long says so, once."""

import time

import jax
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate import waiting as module
from jaxdelegate.waiting import waiting


def test_a_short_wait_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    with waiting("never said"):
        pass
    assert caplog.messages == []


def test_a_long_wait_is_named_even_if_it_fails(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.0)

    def fail() -> None:
        end = time.monotonic() + 5
        while not caplog.messages and time.monotonic() < end:
            time.sleep(1e-3)
        raise ValueError

    with pytest.raises(ValueError), waiting("reading 100%"):  # noqa: PT011
        fail()
    assert caplog.messages == ["reading 100%"]


def test_compiling_names_the_remedy(
    network: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.0)
    delegate = jd.JaxDelegate(platform="cpu")
    host = jd.Interpreter(model_content=network, experimental_delegates=[delegate])
    host.allocate_tensors()
    host.set_tensor(host.get_input_details()[0]["index"], np.zeros((1, 8, 8, 3), np.float32))
    host.invoke()
    (message,) = [m for m in caplog.messages if m.startswith("compiling")]
    assert message.startswith(f"compiling 5 operators for {delegate.device}; ")
    assert "--jax_serialization_dir" in message


def test_the_callers_own_jit_says_which_function_it_compiles(
    network: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only traces is silent after that, and so is a call of the compiled program."""
    apply, params = jd.load(network, platform="cpu").function()
    x = np.zeros((1, 8, 8, 3), np.float32)

    @jax.jit
    @jax.grad
    def step(params: dict[str, jax.Array]) -> jax.Array:
        (y,) = apply(params, x)
        end = time.monotonic() + 5
        while not caplog.messages and time.monotonic() < end:
            time.sleep(1e-3)
        return y.sum()

    trace = jax.make_jaxpr(lambda params: apply(params, x))
    trace(params)
    monkeypatch.setattr(module, "SILENT_S", 0.1)
    trace(params)
    time.sleep(0.3)
    assert caplog.messages == []
    step(params)
    assert caplog.messages[0].startswith("JAX traces and compiles a program that calls <")
    caplog.clear()
    step(params)
    time.sleep(0.2)
    assert caplog.messages == []
    with waiting("own"):
        trace(params)
        time.sleep(0.3)
    assert caplog.messages == ["own"]
