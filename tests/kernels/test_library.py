"""The kernels' library: concurrent calls, threads, processes, and the delegate's option."""

import concurrent.futures
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.cache.environment import environment_parts
from jaxdelegate.cache.programs import Statistics
from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.options import Conv2DOptions, Padding
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext
from jaxdelegate.testing import Case, const, f32


@pytest.mark.skipif(not library.LIBRARY.exists(), reason="no library was built")
def test_the_library_is_built_from_these_sources() -> None:
    """Otherwise every test of a CPU kernel would be skipped, and the suite would pass."""
    reason = library.why_not() or ""
    assert "other sources" not in reason, f"{reason}: build it again (make test)"


@pytest.mark.usefixtures("built")
def test_concurrent_calls() -> None:
    inputs = [f32(1, 30, 30, 8), const(f32(40, 3, 3, 8, seed=1)), const(f32(40, seed=2))]
    case = Case("CONV_2D", "", inputs, Conv2DOptions(Padding.SAME, 1, 1))
    context = LoweringContext(kernels=KernelSet(cpu=True))
    lowered: Any = RULES["CONV_2D"].lower(case.op(context))
    w, bias = lowered.prepare[1](case.inputs[1].value), case.inputs[2].value  # type: ignore[union-attr]
    images = [f32(1, 30, 30, 8, seed=i).value for i in range(8)]
    with jax.enable_x64(True):
        run = jax.jit(lowered.run).lower(images[0], w, bias).compile()
        alone = [np.asarray(run(x, w, bias)[0]) for x in images]

    def again(x: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(run(x, w, bias)[0])

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        together = list(pool.map(again, images * 10))
    for got, want in zip(together, alone * 10, strict=True):
        np.testing.assert_array_equal(got, want)


_THREADS = """
import sys, numpy as np, jax
from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.convolution import cpu_kernel
assert library.why_not() is None
from jaxdelegate.op_lowering.convolution.algorithms import Convolution
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act, Padding
from jaxdelegate.op_lowering.common.window import Window
from jaxdelegate.op_lowering.spec import TensorSpec
rng = np.random.default_rng(0)

def save(lowered, x, w):
    (y,) = jax.jit(lambda x, w: lowered(x, w))(x, w)
    np.save(sys.stdout.buffer, np.asarray(y))

for rows, depth, units in ((500, 70, 90), (49, 300, 500), (1, 2000, 1001), (3000, 20, 17)):
    shapes = (rows, depth), (units, depth), (units,), (rows, units)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in shapes[:2])
    tensors = tuple(TensorSpec("", s, np.dtype(np.float32)) for s in shapes)
    save(cpu_kernel.fully_connected(cpu_kernel.NATIVE, tensors, Act.NONE), x, w)
for size, depth, groups in ((30, 4, 8), (14, 20, 7), (3, 64, 2)):
    window, channels = Window(size, 3, 1, Padding.SAME, 1), depth * groups
    c = Convolution((window, window), channels, depth, channels, batch=2)
    shapes = (2, size, size, channels), (3, 3, depth, channels)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    save(cpu_kernel.convolution(cpu_kernel.NATIVE, c, Act.NONE, lambda w: w), x, w)
"""


def printed(code: str, *arguments: str, **environment: str) -> bytes:
    """The output of another process."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        check=True,
        capture_output=True,
    )
    return done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("built")
def test_results_do_not_depend_on_the_number_of_threads() -> None:
    one, three = (printed(_THREADS, NPROC=threads) for threads in ("1", "3"))
    assert len(one) > 4 * (500 * 90 + 2 * 900 * 32)
    assert one == three


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("units", [1, 100_000], ids=["the caller's thread", "several threads"])
def test_without_memory_a_call_returns_an_error(units: int) -> None:
    """Windows with such large distances that the pixels between them cannot be copied."""
    fields = (1, 1, 1, 2, 1, 2, 2 * units, 2, 1, 1, 1, 1, 2**44, 1, 1, 0, 0)
    attributes = {
        "geometry": np.array(fields, np.int64),
        "range": np.array((-1, 1), np.float32),
        "then": np.array((0,), np.int64),
    }
    call = jax.ffi.ffi_call(library.PRODUCT, jax.ShapeDtypeStruct((2, 2 * units), np.float32))
    shapes = (2,), (2, math.ceil(units / library.PANEL), library.PANEL), (2 * units,)
    arrays = [np.ones(shape, np.float32) for shape in shapes]
    asked = 4 * ((2**44 + 1) + 16)  # floats of one row of the image, padded to a cache line
    said = f"RESOURCE_EXHAUSTED.* no memory for {asked // 64 * 64 + 64} bytes"
    with jax.enable_x64(True), pytest.raises(jax.errors.JaxRuntimeError, match=said):
        jax.block_until_ready(call(*arrays, **attributes))


# ---- the library, and the delegate's option


@pytest.mark.usefixtures("built")
def test_a_library_with_kernels_in_another_order_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Call batches refer to them by index."""
    names = library.kernel_names(library.opened(library.LIBRARY))
    monkeypatch.setattr(library, "kernel_names", lambda _library: names[::-1])
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "libother.so")
    library.LIBRARY.symlink_to(Path(library.__file__).parent / "libjaxdelegate_kernels.so")
    assert "libother.so was built from other sources" in (library.why_not() or "")


@pytest.mark.usefixtures("no_native_kernels")
def test_without_the_library_xla_computes(network: bytes) -> None:
    delegate = jd.JaxDelegate(platform="cpu")
    assert not delegate.lowering_context.kernels.cpu
    assert outputs_of(network, delegate)
    with pytest.raises(jd.OptionError, match="native_kernels: absent is missing"):
        jd.JaxDelegate(platform="cpu", native_kernels=True)


def test_a_damaged_library_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "libdamaged.so"
    path.write_bytes(b"no library")
    monkeypatch.setattr(library, "LIBRARY", path)
    assert "libdamaged.so cannot be used" in (library.why_not() or "")


def outputs_of(model: bytes, delegate: jd.JaxDelegate) -> list[np.ndarray]:
    interpreter = jd.Interpreter(model_content=model, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    (x,) = interpreter.get_input_details()
    values = np.random.default_rng(0).uniform(-1, 1, x["shape"]).astype(np.float32)
    interpreter.set_tensor(x["index"], values)
    interpreter.invoke()
    return [interpreter.get_tensor(y["index"]) for y in interpreter.get_output_details()]


@pytest.mark.usefixtures("built")
def test_the_option_switches_them(network: bytes) -> None:
    own, plain = (jd.JaxDelegate(platform="cpu", native_kernels=k) for k in (None, False))
    assert own.lowering_context.kernels.cpu
    assert not plain.lowering_context.kernels.cpu
    for got, want in zip(outputs_of(network, own), outputs_of(network, plain), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_functions_stay_transformable(network: bytes) -> None:
    apply, params = jd.load(network).function()
    x = np.ones((1, 8, 8, 3), np.float32)
    assert "ffi_call" not in str(jax.make_jaxpr(apply)(params, x))


def test_the_library_belongs_to_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (device, *_) = jax.devices("cpu")
    found = []
    for name, content in (("a", b"1"), ("b", b"2"), ("absent", None)):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        monkeypatch.setattr(library, "LIBRARY", tmp_path / name)
        found.append(environment_parts(device)["kernels"])
    assert len({part.digest for part in found}) == 3


_STORE = """
import sys, numpy as np, jaxdelegate as jd
delegate = jd.JaxDelegate(platform="cpu", serialization_dir=sys.argv[2])
interpreter = jd.Interpreter(model_path=sys.argv[1], experimental_delegates=[delegate])
interpreter.allocate_tensors()
interpreter.set_tensor(0, np.linspace(-1, 1, 192, dtype=np.float32).reshape(1, 8, 8, 3))
interpreter.invoke()
print(delegate.programs.statistics)
print(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).tolist())
"""


@pytest.mark.slow
@pytest.mark.usefixtures("built")
def test_a_stored_program_finds_them_in_another_process(network: bytes, tmp_path: Path) -> None:
    (tmp_path / "network.tflite").write_bytes(network)
    arguments = [str(tmp_path / "network.tflite"), str(tmp_path / "programs")]
    first, second = (printed(_STORE, *arguments).decode().splitlines() for _ in range(2))
    assert first[0] == str(Statistics(stored=1))
    assert second[0] == str(Statistics(loaded=1))
    assert first[1] == second[1]
