"""Device arrays as inputs and outputs of the interpreter: transfers and waits.

On a CPU jax's transfer guard detects transfers to a device, but not reads by the host. Those are
counted for bfloat16, which numpy cannot read through the buffer protocol, so it calls `__array__`.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jaxlib import _jax

import jaxdelegate as jd
from jaxdelegate.errors import InterpreterError, TensorError
from jaxdelegate.op_lowering.options import AddOptions, MulOptions
from jaxdelegate.testing import ModelBuilder

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
X = np.arange(4, dtype=np.float32).reshape(1, 4)


def chain(dtype: Any = np.float32) -> bytes:
    """y = (x + x) * (x + x)."""
    builder, dtype = ModelBuilder(), np.dtype(dtype)
    x = builder.input((1, 4), dtype, "x", shape_signature=(-1, 4))
    total, y = builder.tensor((1, 4), dtype), builder.tensor((1, 4), dtype)
    builder.operator("ADD", [x, x], [total], AddOptions())
    builder.operator("MUL", [total, total], [y], MulOptions())
    builder.outputs(y)
    builder.signature("run", {"x": x}, {"y": y})
    return builder.build()


def allocated(model: bytes, *delegates: jd.SimpleDelegate) -> jd.Interpreter:
    interpreter = jd.Interpreter(model_content=model, experimental_delegates=delegates)
    interpreter.allocate_tensors()
    return interpreter


def ends(interpreter: jd.Interpreter) -> tuple[int, int]:
    (x,), (y,) = interpreter.get_input_details(), interpreter.get_output_details()
    return x["index"], y["index"]


def on_device(interpreter: jd.Interpreter, value: Any) -> jax.Array:
    x, y = ends(interpreter)
    interpreter.set_tensor(x, value)
    interpreter.invoke()
    return interpreter.get_device_tensor(y)


# ---- transfers


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[jax.Array]:
    """The bfloat16 arrays that the host has read."""
    seen: list[jax.Array] = []
    original = _jax.ArrayImpl.__array__

    def spy(array: jax.Array, *args: Any, **kwargs: Any) -> np.ndarray:
        seen.append(array)
        read: np.ndarray = original(array, *args, **kwargs)
        return read

    monkeypatch.setattr(_jax.ArrayImpl, "__array__", spy)
    return seen


def one_partition() -> list[jd.SimpleDelegate]:
    return [jd.JaxDelegate()]


def two_partitions() -> list[jd.SimpleDelegate]:
    return [jd.JaxDelegate(last_delegate_node_index=0, min_gain=0), jd.JaxDelegate(min_gain=0)]


@pytest.mark.parametrize("delegates", [one_partition, two_partitions])
def test_nothing_is_transferred(
    delegates: Callable[[], list[jd.SimpleDelegate]], reads: list[jax.Array]
) -> None:
    interpreter = allocated(chain(BFLOAT16), *delegates())
    x = jax.device_put(X.astype(BFLOAT16))
    with jax.transfer_guard("disallow_explicit"):
        y = on_device(interpreter, x)
        again = on_device(interpreter, y)
    assert not reads
    np.testing.assert_array_equal(np.asarray(y).astype(np.float32), (X + X) ** 2)
    np.testing.assert_array_equal(np.asarray(again).astype(np.float32), (4 * X**2 * 2) ** 2)
    assert len(reads) == 2


def test_host_arrays_are_transferred(reads: list[jax.Array]) -> None:
    """Shows that the counters of the test above work."""
    interpreter = allocated(chain(BFLOAT16), jd.JaxDelegate())
    x, y = ends(interpreter)
    interpreter.set_tensor(x, X.astype(BFLOAT16))
    with (
        jax.transfer_guard("disallow_explicit"),
        pytest.raises(InterpreterError, match="host-to-device transfer"),
    ):
        interpreter.invoke()
    interpreter.invoke()
    interpreter.get_tensor(y)
    assert len(reads) == 1


def test_host_kernels_read_device_arrays(reads: list[jax.Array]) -> None:
    interpreter = allocated(
        chain(BFLOAT16), jd.JaxDelegate(first_delegate_node_index=1, min_gain=0)
    )
    y = on_device(interpreter, jnp.asarray(X, BFLOAT16))
    assert len(reads) == 2  # both operands of ADD
    np.testing.assert_array_equal(np.asarray(y).astype(np.float32), (X + X) ** 2)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_results_in_host_memory_are_put_on_the_device(dtype: type) -> None:
    interpreter = allocated(chain(dtype))
    x, _ = ends(interpreter)
    y = on_device(interpreter, X.astype(dtype))
    assert isinstance(y, jax.Array)
    assert y.dtype == dtype
    given = interpreter.get_device_tensor(x)
    interpreter.set_tensor(x, X.astype(dtype) + 1)
    np.testing.assert_array_equal(np.asarray(given), X)  # not a view of the interpreter's buffer


def test_a_users_array_is_neither_donated_nor_changed() -> None:
    given = jnp.asarray(X)
    interpreter = allocated(chain(), jd.JaxDelegate(donate_inputs=True))
    x, y = ends(interpreter)
    for _ in range(2):
        np.testing.assert_array_equal(np.asarray(on_device(interpreter, given)), (X + X) ** 2)
    assert interpreter.get_device_tensor(x) is given
    interpreter.set_tensor(x, X + 1)  # a host array after it
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(y), (2 * X + 2) ** 2)
    np.testing.assert_array_equal(np.asarray(given), X)


def test_views_are_live_with_device_arrays() -> None:
    interpreter = allocated(chain(), jd.JaxDelegate())
    on_device(interpreter, X + 1)
    x, y = map(interpreter.tensor, ends(interpreter))
    assert x().shape == y().shape  # allocates them
    interpreter.set_tensor(ends(interpreter)[0], jnp.asarray(X))
    np.testing.assert_array_equal(x(), X)
    interpreter.invoke(wait=False)
    np.testing.assert_array_equal(y(), (X + X) ** 2)


def test_signature_runners_resize_for_device_arrays() -> None:
    interpreter = jd.Interpreter(model_content=chain(), experimental_delegates=[jd.JaxDelegate()])
    runner = interpreter.get_signature_runner("run")
    images = jnp.concatenate([jnp.asarray(X)] * 3)
    results = runner.on_device(x=images)
    assert isinstance(results["y"], jax.Array)
    wanted = np.tile((X + X) ** 2, (3, 1))
    np.testing.assert_array_equal(np.asarray(results["y"]), wanted)
    np.testing.assert_array_equal(runner(x=images)["y"], wanted)


def test_a_stored_start_takes_device_arrays(tmp_path: Path) -> None:
    for _ in range(2):
        interpreter = allocated(chain(), jd.JaxDelegate(serialization_dir=str(tmp_path)))
        np.testing.assert_array_equal(np.asarray(on_device(interpreter, X)), (X + X) ** 2)
        y = on_device(interpreter, jnp.asarray(X) + 1)
        np.testing.assert_array_equal(np.asarray(y), (2 * X + 2) ** 2)


# ---- invalid arrays


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (X.astype(np.float16), r"Got value of type FLOAT16 but expected type FLOAT32"),
        (X[0], r"Dimension mismatch. Got 1 but expected 2 for input 0.*x\[np.newaxis\]"),
        (np.tile(X, (2, 1)), r"Got 2 but expected 1 for dimension 0 .* resize_tensor_input"),
    ],
)
def test_device_arrays_are_checked_as_numpys(value: np.ndarray, message: str) -> None:
    interpreter = allocated(chain(), jd.JaxDelegate())
    for array in (value, jnp.asarray(value)):
        with pytest.raises(TensorError, match=message):
            interpreter.set_tensor(0, array)


def test_tensors_without_data() -> None:
    interpreter = allocated(chain(), jd.JaxDelegate())
    with pytest.raises(TensorError, match="Tensor data is null"):
        interpreter.get_device_tensor(ends(interpreter)[1])
    with pytest.raises(TensorError, match="exceeds max tensor index"):
        interpreter.get_device_tensor(17)


# ---- DLPack


class Exported:
    """An array of another library, with DLPack as its only interface."""

    def __init__(self, array: np.ndarray, device: int) -> None:
        self.array, self.device = array, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, **_options: Any) -> Any:
        return self.array.__dlpack__()


CPU, CUDA = 1, 2


def test_host_arrays_by_dlpack() -> None:
    interpreter = allocated(chain(), jd.JaxDelegate())
    np.testing.assert_array_equal(
        np.asarray(on_device(interpreter, Exported(X, CPU))), (2 * X) ** 2
    )


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_device_arrays_by_dlpack_are_copied(monkeypatch: pytest.MonkeyPatch, dtype: type) -> None:
    """A library may change its arrays. Here host memory replaces device memory."""
    monkeypatch.setattr("jaxdelegate.delegate.device_arrays._HOST_MEMORY", ())
    theirs = X.astype(dtype)
    interpreter = allocated(chain(dtype), jd.JaxDelegate())
    x, _ = ends(interpreter)
    interpreter.set_tensor(x, Exported(theirs, CPU))
    theirs += 1
    given = interpreter.get_device_tensor(x)
    assert given.dtype == dtype
    np.testing.assert_array_equal(np.asarray(given), X)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="jax has another device here")
def test_a_device_that_jax_does_not_have() -> None:
    interpreter = allocated(chain(), jd.JaxDelegate())
    with pytest.raises(
        TensorError, match=r"jax cannot take this Exported by DLPack: .*numpy array"
    ):
        interpreter.set_tensor(0, Exported(X, CUDA))


# ---- runs in flight


def test_runs_in_flight_keep_their_results() -> None:
    interpreter = allocated(chain(), jd.JaxDelegate())
    x, y = ends(interpreter)
    runs = [interpreter._start({x: X + n}) for n in range(3)]
    for n, results in enumerate(runs):
        (got,) = results()
        np.testing.assert_array_equal(got, (2 * (X + n)) ** 2)
        got[:] = 0  # a copy
    np.testing.assert_array_equal(interpreter.get_tensor(y), (2 * (X + 2)) ** 2)


def test_a_started_run_transfers_its_input() -> None:
    """Starting transfers the input, so the program itself copies nothing."""
    interpreter = allocated(chain(), jd.JaxDelegate())
    x, _ = ends(interpreter)
    interpreter._start({x: X})()
    with jax.transfer_guard_host_to_device("disallow_explicit"):
        with pytest.raises(RuntimeError, match=r"[Dd]isallowed host-to-device transfer"):
            interpreter._start({x: X})
        interpreter.invoke(wait=True)  # with the present input


def test_without_a_delegate_a_started_run_is_done() -> None:
    interpreter = allocated(chain())
    x, _ = ends(interpreter)
    runs = [interpreter._start({x: X + n}) for n in range(2)]
    for n, results in enumerate(runs):
        np.testing.assert_array_equal(results()[0], (2 * (X + n)) ** 2)


def test_an_error_of_the_device_names_the_nodes_of_a_started_run() -> None:
    interpreter = allocated(chain(), jd.JaxDelegate())
    x, y = ends(interpreter)

    class Lost:
        def __array__(self, *_: Any, **__: Any) -> np.ndarray:
            raise RuntimeError("device lost")

        def block_until_ready(self) -> None:
            raise RuntimeError("device lost")

    host = interpreter._runner(0)
    interpreter._start({x: X})()
    host.assign(y, Lost())
    with pytest.raises(InterpreterError, match=r"0 \(ADD\) to 1 \(MUL\) failed .*device lost"):
        host.results()()


# ---- two devices

TWO_DEVICES = """
import jax, numpy as np
import jaxdelegate as jd
from jaxdelegate.model import open_models

first, second = jax.devices()
model = open("chain.tflite", "rb").read()
x = np.arange(4, dtype=np.float32).reshape(1, 4)
moved = jax.device_put(x, second)
halves = jax.sharding.NamedSharding(
    jax.make_mesh((2,), ("x",)), jax.sharding.PartitionSpec(None, "x")
)
for _ in range(2):  # compiled, then from the cache
    delegates = [
        jd.JaxDelegate(last_delegate_node_index=0, min_gain=0, serialization_dir="programs"),
        jd.JaxDelegate(device_index=1, min_gain=0, serialization_dir="programs"),
    ]
    interpreter = jd.Interpreter(model_content=model, experimental_delegates=delegates)
    interpreter.allocate_tensors()
    y = interpreter.get_output_details()[0]["index"]
    for given in (moved, jax.device_put(x, halves)):
        interpreter.set_tensor(0, given)
        assert interpreter.get_device_tensor(0).devices() == {first}
        with jax.transfer_guard_host_to_device("disallow_explicit"):
            interpreter.invoke()
        np.testing.assert_array_equal(interpreter.get_tensor(y), (2 * x) ** 2)
        assert interpreter._runner(0).value(y).devices() == {second}
    open_models._OPEN.clear()  # as another process would find it
assert [d.programs.statistics.loaded for d in delegates] == [1, 1]

alone = jd.Interpreter(model_content=model, experimental_delegates=delegates[1:])
alone.allocate_tensors()
with jax.transfer_guard_device_to_device("disallow_explicit"):
    (result,) = alone._start({0: x})()
np.testing.assert_array_equal(result, (2 * x) ** 2)
assert alone.get_device_tensor(0).devices() == {second}
"""


def test_two_devices(tmp_path: Path) -> None:
    """Arrays are copied from one device to another directly, not through the host."""
    (tmp_path / "chain.tflite").write_bytes(chain())
    environment = {
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    run = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES],
        cwd=tmp_path,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
