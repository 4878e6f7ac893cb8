"""No memory on the device, and partitions that cannot be compiled: errors, and what goes on."""

import dataclasses
import logging
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import AddOptions, CustomOptions, FullyConnectedOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.pjrt import client
from jaxdelegate.program import Program
from jaxdelegate.reference.kernel import Kernel, same_shape
from jaxdelegate.testing import ModelBuilder, assert_close

HOST_ONLY = "HostOnlyDouble"
ASKED = 4 << 30
# What jaxlib raises on a GPU, lines and lines of it, and on a CPU.
GPU_TEXT = f"""RESOURCE_EXHAUSTED: Out of memory while trying to allocate {ASKED} bytes.
BufferAssignment OOM Debugging.
BufferAssignment stats:
             parameter allocation:  372.76MiB
"""
CPU_TEXT = f"RESOURCE_EXHAUSTED: Out of memory allocating {ASKED} bytes."
OUT_OF_MEMORY = [
    jax.errors.JaxRuntimeError(GPU_TEXT),
    jax.errors.JaxRuntimeError(CPU_TEXT),
    MemoryError(),
]
UNITS = 192  # weights of 144 KiB: an argument of the program


def network(operators: str = "fr", rows: int = 4) -> bytes:
    """`f` is FULLY_CONNECTED, `r` RELU, `h` an operator that only the host has: x -> 2 x."""
    builder = ModelBuilder()
    last = builder.input((rows, UNITS), np.float32, "x")
    weights = builder.constant(np.eye(UNITS, dtype=np.float32) * 3, "weights")
    for letter in operators:
        y = builder.tensor((rows, UNITS))
        match letter:
            case "f":
                options = FullyConnectedOptions(keep_num_dims=True)
                builder.operator("FULLY_CONNECTED", [last, weights, -1], [y], options)
            case "a":
                builder.operator("ADD", [last, last], [y], AddOptions())
            case "r":
                builder.operator("RELU", [last], [y])
            case "h":
                builder.operator(HOST_ONLY, [last], [y], CustomOptions())
        last = y
    builder.outputs(last)
    return builder.build()


def _raise(error: BaseException) -> NoReturn:
    raise error


def x(rows: int = 4) -> np.ndarray:
    return np.linspace(-1, 1, rows * UNITS, dtype=np.float32).reshape(rows, UNITS)


def opened(content: bytes, **options: Any) -> tuple[jd.Interpreter, jd.JaxDelegate]:
    delegate = jd.JaxDelegate(**{"min_gain": 0, "platform": "cpu", **options})
    return jd.Interpreter(model_content=content, experimental_delegates=[delegate]), delegate


def run(interpreter: Any, rows: int = 4) -> np.ndarray:
    index = interpreter.get_input_details()[0]["index"]
    interpreter.resize_tensor_input(index, [rows, UNITS])
    interpreter.allocate_tensors()
    interpreter.set_tensor(index, x(rows))
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def want(rows: int = 4) -> np.ndarray:
    return np.maximum(3 * x(rows), 0)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Makes programs for more than two rows fail, as on a device with room for two."""

    def install(error: BaseException) -> None:
        real = Program.__call__

        def call(self: Program, values: Sequence[Any]) -> Sequence[Any]:
            if max(np.shape(v)[0] for v in values) > 2:
                raise error
            return real(self, values)

        monkeypatch.setattr(Program, "__call__", call)

    return install


# ---- no memory to run


def assert_explains(error: BaseException) -> None:
    assert isinstance(error, jd.DeviceMemoryError)
    assert isinstance(error, RuntimeError)
    assert isinstance(error, MemoryError)
    text = str(error)
    assert "failed to invoke on XLA:CPU" in text
    assert "144.0 KiB of weights, 3.0 KiB of inputs, 3.0 KiB of results and " in text
    assert "What helps: a smaller batch" in text
    assert "BufferAssignment" not in text


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["gpu", "cpu", "host"])
def test_a_run_without_memory(full, error: BaseException) -> None:
    full(error)
    interpreter, _ = opened(network())
    with pytest.raises(jd.DeviceMemoryError) as caught:
        run(interpreter)
    assert_explains(caught.value)
    assert "Nodes number 0 (FULLY_CONNECTED) to 1 (RELU)" in str(caught.value)
    assert_close([run(interpreter, 2)], [want(2)])
    with pytest.raises(jd.DeviceMemoryError):
        run(interpreter, 4)


def test_a_run_never_falls_back_by_itself(full) -> None:
    """`fallback_on_error` is of what is prepared: a service that became slow would not notice."""
    full(OUT_OF_MEMORY[0])
    interpreter, delegate = opened(network(), fallback_on_error=True)
    with pytest.raises(jd.DeviceMemoryError):
        run(interpreter)
    assert not delegate.report().left


def test_a_result_that_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's programs fail after they were dispatched."""

    class Late:
        shape, dtype = (4, UNITS), np.dtype(np.float32)

        def block_until_ready(self) -> None:
            raise jax.errors.JaxRuntimeError(GPU_TEXT)

    monkeypatch.setattr(Program, "__call__", lambda *_: [Late()])
    interpreter, _ = opened(network())
    with pytest.raises(jd.DeviceMemoryError) as caught:
        run(interpreter)
    assert_explains(caught.value)


def test_a_run_in_a_stock_interpreter(full) -> None:
    full(OUT_OF_MEMORY[0])
    delegate = jd.JaxDelegate(platform="cpu", min_gain=0)
    interpreter = StockInterpreter(model_content=network(), experimental_delegates=[delegate])
    with pytest.raises(RuntimeError, match=r"144\.0 KiB of weights"):
        run(interpreter)
    assert_close([run(interpreter, 2)], [want(2)])


def test_a_function_without_memory(full) -> None:
    full(OUT_OF_MEMORY[1])
    model = jd.load(network())
    with pytest.raises(jd.DeviceMemoryError, match=r"144\.0 KiB of weights, 3\.0 KiB of inputs"):
        model(x())
    assert_close([np.asarray(model(x(2))[0])], [want(2)])


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=["gpu", "cpu", "host"])
def test_a_stored_start_without_memory(tmp_path: Path, full, error: BaseException) -> None:
    content = network()
    for _ in range(2):
        delegate = jd.JaxDelegate(platform="cpu", serialization_dir=str(tmp_path / "programs"))
        interpreter = jd.Interpreter(model_content=content, experimental_delegates=[delegate])
        interpreter.allocate_tensors()
    assert interpreter._stored is not None
    full(error)
    with pytest.raises(jd.DeviceMemoryError) as caught:
        interpreter.invoke()
    assert_explains(caught.value)
    assert_close([run(interpreter, 2)], [want(2)])


def test_a_first_run_without_memory_does_not_ask_for_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing of this jaxlib's calls; to compile it again would take more memory."""
    executable = client.Executable.__new__(client.Executable)
    executable._runtime = types.SimpleNamespace(has_jax=False)  # type: ignore[assignment]
    executable._has_run = False
    monkeypatch.setattr(executable, "_start", lambda *_: _raise(OUT_OF_MEMORY[1]))
    with pytest.raises(jax.errors.JaxRuntimeError):
        executable.run([], [])
    assert not client._failures


def test_an_operators_error_is_another(full) -> None:
    full(jax.errors.JaxRuntimeError("INTERNAL: no such luck"))
    interpreter, _ = opened(network())
    with pytest.raises(jd.InterpreterError, match="INTERNAL: no such luck") as caught:
        run(interpreter)
    assert not isinstance(caught.value, jd.DeviceMemoryError)


def test_what_helps_on_a_gpu() -> None:
    from jaxdelegate import memory_errors

    plan = types.SimpleNamespace(
        argument_size_in_bytes=3 << 20, output_size_in_bytes=12, temp_size_in_bytes=3 << 30
    )
    executable = types.SimpleNamespace(memory_analysis=lambda: plan)
    weights = (np.zeros(1 << 20, np.uint8),)
    program: Any = types.SimpleNamespace(weights=weights, constants=weights, executable=executable)
    text = memory_errors.of_program(OUT_OF_MEMORY[0], "gpu", program)
    assert "1.0 MiB of weights, 2.0 MiB of inputs, 12 bytes of results and 3.0 GiB of temp" in text
    assert "XLA_CLIENT_MEM_FRACTION" in text
    assert "compute_dtype='float16'" in text
    plan = None
    assert "1.0 MiB of weights. What" in memory_errors.of_program(OUT_OF_MEMORY[0], "tpu", program)


# ---- no memory for weights, or to compile


@pytest.fixture(params=["weights", "compiler"])
def cramped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A device without room for weights, or for what the compiler tries out."""
    if request.param == "weights":
        monkeypatch.setattr(
            client.Runtime, "put", lambda *_: _raise(jax.errors.JaxRuntimeError(GPU_TEXT))
        )
    else:
        monkeypatch.setattr(
            "jaxdelegate.xla.aot.compiled_with",
            lambda *_: _raise(jax.errors.JaxRuntimeError(GPU_TEXT)),
        )
    yield
    monkeypatch.undo()


@pytest.mark.usefixtures("cramped")
def test_no_memory_to_prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter, _ = opened(network())
    with pytest.raises(jd.DeviceMemoryError) as caught:
        interpreter.allocate_tensors()
    assert "nodes 0 (FULLY_CONNECTED) to 1 (RELU) could not be compiled" in str(caught.value)
    assert "144.0 KiB of weights, 3.0 KiB of inputs and 3.0 KiB of results" in str(caught.value)
    monkeypatch.undo()
    assert_close([run(interpreter)], [want()])


@pytest.mark.usefixtures("cramped")
def test_no_memory_to_prepare_falls_back() -> None:
    interpreter, delegate = opened(network(), fallback_on_error=True)
    assert_close([run(interpreter)], [want()])
    assert [node.delegated for node in delegate.report().nodes] == [False, False]
    assert "RESOURCE_EXHAUSTED" in str(delegate.report())


# ---- one partition of several


@pytest.fixture
def host_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxdelegate.reference import KERNELS

    monkeypatch.setitem(
        KERNELS, HOST_ONLY, Kernel(lambda _o, _i, _s, array: (2 * array,), same_shape)
    )


@pytest.fixture
def relu_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise ValueError("no such luck")

    monkeypatch.setitem(RULES, "RELU", dataclasses.replace(RULES["RELU"], lower=crash))


@pytest.mark.usefixtures("host_only", "relu_crashes")
def test_the_other_partitions_stay(caplog: pytest.LogCaptureFixture) -> None:
    interpreter, delegate = opened(network("fahrahf"), fallback_on_error=True, rewrites="none")
    assert "".join(".d"[n.delegated] for n in delegate.report().nodes) == "dd.dd.d"
    with caplog.at_level(logging.WARNING, "jaxdelegate"):
        got = run(interpreter)
    assert_close([got], [np.maximum(12 * x(), 0) * 2 * 2 * 3])
    report = delegate.report()
    assert "".join(".d"[n.delegated] for n in report.nodes) == "dd....d"
    assert report.nodes[3].reason is not None
    assert "its partition failed: nodes 3 (RELU) to 4 (ADD)" in report.nodes[3].reason
    assert "no such luck" in report.nodes[3].reason
    assert report.n_partitions == 2
    assert any("the partition runs on the CPU" in message for message in caplog.messages)


@pytest.mark.usefixtures("relu_crashes")
def test_full_delegation_does_not_fall_back() -> None:
    interpreter, _ = opened(
        network("fr"), fallback_on_error=True, require_full_delegation=True, rewrites="none"
    )
    with pytest.raises(jd.DelegationError, match=r"2 of 2 operators .*\n.*no such luck"):
        interpreter.allocate_tensors()


# ---- a real one

REAL = """
import resource, sys
import numpy as np, jax
import jaxdelegate as jd
from jaxdelegate.op_lowering.options import AddOptions
from jaxdelegate.testing import ModelBuilder

builder = ModelBuilder()
x = builder.input((1, 1024), np.float32, "x")
c = builder.constant(np.ones((1024, 1024), np.float32), "c")
y = builder.tensor((1024, 1024))
builder.operator("ADD", [x, c], [y], AddOptions())
builder.outputs(y)
delegate = jd.JaxDelegate(platform="cpu", min_gain=0)
i = jd.Interpreter(
    model_content=builder.build(), experimental_delegates=[delegate], max_tensor_bytes=1 << 40
)
def run(n):
    i.resize_tensor_input(0, [n, 1, 1024])
    i.allocate_tensors()
    i.invoke()
    return i.get_tensor(i.get_output_details()[0]["index"])
run(1)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30),) * 2)
try:
    run(1024)
except jd.DeviceMemoryError as error:
    print(error)
print(run(2).sum())
"""


@pytest.mark.slow
def test_a_process_without_memory() -> None:
    """XLA:CPU's own error, under a limit of the address space; the interpreter goes on."""
    done = subprocess.run(
        [sys.executable, "-c", REAL], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    error, total = done.stdout.splitlines()
    assert "RESOURCE_EXHAUSTED: Out of memory allocating 4294967296 bytes" in error
    assert "4.0 MiB of weights, 4.0 MiB of inputs, 4.0 GiB of results and" in error
    assert float(total) == 2 * 1024 * 1024


# ---- no such backend


def test_a_gpu_that_is_not_there_is_an_error() -> None:
    if any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("this machine has a GPU")
    for options in ({}, {"fallback_on_error": True}):
        with pytest.raises(jd.OptionError, match="platform: 'gpu' is not there; JAX has: cpu"):
            jd.JaxDelegate(platform="gpu", **options)
