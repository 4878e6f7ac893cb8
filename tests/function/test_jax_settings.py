"""Whatever a caller has set in JAX: a model, its function and a delegate compute the same."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.testing import assert_close
from tests.function.graphs import classifier
from tests.function.test_states import X as STEP
from tests.function.test_states import trained

pytestmark = pytest.mark.usefixtures("compiled_once")
X = np.linspace(-1, 1, 18, dtype=np.float32).reshape(1, 3, 3, 2)


@contextlib.contextmanager
def updated(name: str, value: object) -> Iterator[None]:
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    yield
    jax.config.update(name, before)


SETTINGS: dict[str, Callable[[], Any]] = {
    "disable_jit": jax.disable_jit,
    "transfer_guard": lambda: jax.transfer_guard("disallow"),
    "debug_nans": lambda: jax.debug_nans(True),
    "debug_infs": lambda: jax.debug_infs(True),
    "checking_leaks": jax.checking_leaks,
    "enable_checks": lambda: updated("jax_enable_checks", True),
    "enable_x64": lambda: jax.enable_x64(True),
    "explicit_x64_dtypes": lambda: updated("jax_explicit_x64_dtypes", "error"),
    "default_device": lambda: jax.default_device(jax.devices()[0]),
    "default_prng_impl": lambda: jax.default_prng_impl("rbg"),
    "default_matmul_precision": lambda: jax.default_matmul_precision("highest"),
    "mesh": lambda: jax.set_mesh(jax.make_mesh((1,), ("data",))),
}


def opened(**options: Any) -> jd.Interpreter:
    delegates = [jd.JaxDelegate(min_gain=0, **options)]
    interpreter = jd.Interpreter(model_content=classifier(), experimental_delegates=delegates)
    interpreter.allocate_tensors()
    return interpreter


def invoked(interpreter: jd.Interpreter) -> Any:
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], X)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


@pytest.fixture(scope="module")
def want() -> np.ndarray:
    return np.asarray(jd.load(classifier())(X)[0])


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_settings_change_no_result(setting: Callable[[], Any], want: np.ndarray) -> None:
    x = jnp.asarray(X)
    with setting():
        model = jd.load(classifier())
        apply, params = model.function()
        found = [
            *(model(X)[0], model(x)[0], apply(params, X)[0], apply(params, x)[0]),
            jax.jit(apply)(params, x)[0],
            model.with_params(model.params)(X)[0],
            model.batched(1)(X)[0],
            invoked(opened()),
        ]
        state = jd.load(trained()).initial_state()
        (y,), _ = jd.load(trained()).function("train")[0]({}, STEP, state=state)
    for result in found:
        assert_close([np.asarray(result)], [want], accumulated=36)
    np.testing.assert_array_equal(y, np.asarray(state["w"]) + STEP)


@pytest.mark.parametrize("name", ["disable_jit", "transfer_guard"])
def test_programs_that_were_compiled_before_run_under_settings(name: str, want: np.ndarray) -> None:
    model, interpreter = jd.load(classifier()), opened()
    for setting in (contextlib.nullcontext, SETTINGS[name], contextlib.nullcontext):
        with setting():
            assert_close([np.asarray(model(X)[0])], [want], accumulated=36)
            assert_close([invoked(interpreter)], [want], accumulated=36)


def test_precision_is_measured_under_settings() -> None:
    """With float16 a delegate computes each operator twice before it compiles."""
    for setting in (SETTINGS["disable_jit"], SETTINGS["transfer_guard"]):
        with setting():
            invoked(opened(compute_dtype="float16"))


def test_a_guard_still_refuses_what_the_caller_moves_by_accident() -> None:
    apply, params = jd.load(classifier()).function()
    jitted = jax.jit(apply)
    with jax.transfer_guard("disallow"):
        jd.load(classifier())(X)
        with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
            jitted(params, X)
