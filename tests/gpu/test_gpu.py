"""On a GPU: operators, networks in three dtypes, int8, the program cache, donation, stock LiteRT.

Run `pytest tests/gpu` or `pytest -m gpu`. JAXDELEGATE_GPU_PLATFORM=cpu runs the tests on another
platform, to check the tests themselves.
"""

import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter

import jaxdelegate as jd
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.measuring.tolerance import EXACT, NETWORK, assert_close
from jaxdelegate.testing import Case
from jaxdelegate.testing.running import random_inputs, run_once
from tests.gpu.on_device import (
    HALF,
    HALVES,
    NEEDS_DEVICE,
    PLATFORM,
    has_platform,
    reference,
    run,
)
from tests.support.networks import small_classifier

OPERATOR_TESTS = Path(__file__).parents[1] / "op_lowering"
SAMPLE = 6  # evenly spread cases of each table
pytestmark = NEEDS_DEVICE

FLOAT_TABLES = (
    "activation/activation",
    "comparison/comparison",
    "convolution/convolution",
    "elementwise/elementwise",
    "indexing/indexing",
    "layout/layout",
    "recurrent/lstm",
    "matmul/matmul",
    "normalization/normalization",
    "padding/padding",
    "pooling/pooling",
    "recurrent/rnn",
    "reduction/reduction",
    "resize/resize",
    "slicing/slicing",
    "convolution/transpose_conv",
)
HALF_TABLES = ("convolution/convolution", "matmul/matmul", "pooling/pooling", "recurrent/lstm")
INTEGER_TABLES = (
    "activation/quantized",
    "convolution/quantized",
    "elementwise/quantized",
    "matmul/quantized",
    "pooling/quantized",
    "reduction/quantized",
)


def tables(name: str) -> ModuleType:
    folder, file = name.split("/")
    path = OPERATOR_TESTS / folder / f"test_{file}.py"
    spec = importlib.util.spec_from_file_location(f"{folder}_{file}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def cases(name: str) -> tuple[Case, ...]:
    """Some of the cases of the operator's own tests."""
    found = {
        id(case): case
        for value in vars(tables(name)).values()
        if isinstance(value, list)
        for case in value
        if isinstance(case, Case) and case.feeds()
    }
    every = list(found.values())
    return tuple(every[:: max(1, len(every) // SAMPLE)][:SAMPLE])


def sample(names: Sequence[str]) -> list[Case]:
    return [case for name in names for case in cases(name)] if has_platform() else []


def delegated(model: bytes, feeds: Sequence[np.ndarray], **options: object) -> list[np.ndarray]:
    outputs, delegate = run(model, feeds, **options)
    left = delegate.report().left
    if left:
        pytest.skip(f"stays on the host: {left[0].reason}")
    return outputs


@pytest.mark.parametrize("case", sample(FLOAT_TABLES), ids=str)
def test_operators(case: Case) -> None:
    got = delegated(case.model(), case.feeds(), quant_mode="integer")
    case.check(got, reference(case.model(), case.feeds()))


@pytest.mark.parametrize("case", sample(INTEGER_TABLES), ids=str)
def test_integer_operators(case: Case) -> None:
    got = delegated(case.model(), case.feeds(), quant_mode="integer")
    case.check(got, reference(case.model(), case.feeds()))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", sample(HALF_TABLES), ids=str)
def test_operators_in_half_precision(case: Case, dtype: str) -> None:
    if any(array.dtype != np.float32 for array in case.feeds()):
        pytest.skip("not a float32 case")
    got = delegated(case.model(), case.feeds(), compute_dtype=dtype)
    want = reference(case.model(), case.feeds())
    because = "half precision, scaled by the largest value"
    assert_close(got, want, tolerance=HALF, because=because)


@functools.cache
def network(name: str) -> tuple[bytes, tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """A network, inputs, and the numpy reference's outputs."""
    model = mobilenet_v1(size=96, width=0.5) if name == "mobilenet" else small_classifier()
    feeds = random_inputs(jd.Interpreter(model_content=model).get_input_details())
    return model, tuple(feeds), tuple(reference(model, feeds))


@pytest.mark.parametrize("name", ["mobilenet", "classifier"])
@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_networks(name: str, dtype: str) -> None:
    model, feeds, want = network(name)
    got, delegate = run(model, feeds, compute_dtype=dtype, require_full_delegation=True)
    assert delegate.device.platform in ("gpu", "cuda", "rocm", PLATFORM)
    if dtype == "float32":
        assert_close(got, want, tolerance=NETWORK)
    else:
        assert_close(got, want, tolerance=HALF, because="the whole network in half precision")
    again, _ = run(model, feeds, compute_dtype=dtype)
    assert_close(again, got, tolerance=NETWORK)


def test_precision_loss_is_allowed_on_request() -> None:
    model, feeds, want = network("mobilenet")
    got, _ = run(model, feeds, is_precision_loss_allowed=True)
    assert_close(got, want, tolerance=HALF, because="the whole network in half precision")


def test_in_a_stock_interpreter() -> None:
    model, feeds, want = network("classifier")
    delegate = jd.JaxDelegate(platform=PLATFORM)
    stock = StockInterpreter(model_content=model, experimental_delegates=[delegate])
    assert_close(run_once(stock, feeds), want, tolerance=NETWORK)
    assert not delegate.report().left


# ---- the cache


@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_programs_are_kept(tmp_path: Path, dtype: str) -> None:
    """A program that is loaded is not autotuned again, so its results are bit-equal."""
    model, feeds, _ = network("mobilenet")
    options = {"serialization_dir": str(tmp_path / "programs"), "compute_dtype": dtype}
    cold, first = run(model, feeds, **options)
    warm, second = run(model, feeds, **options)
    assert (first.programs.statistics.stored, second.programs.statistics.loaded) == (1, 1)
    assert_close(warm, cold, tolerance=EXACT, because="the same program")


LEAST = ("COMPILE_TIME_SECS", "ENTRY_SIZE_BYTES")  # of what JAX keeps
CHILD = """
import json, sys
import numpy as np
import jaxdelegate as jd
from jaxdelegate.testing.running import run_once
folder, platform, programs = sys.argv[1:]
delegate = jd.JaxDelegate(serialization_dir=programs, platform=platform)
interpreter = jd.Interpreter(f"{folder}/model.tflite", experimental_delegates=[delegate])
np.save(f"{folder}/y.npy", run_once(interpreter, [np.load(f"{folder}/x.npy")])[0])
print(json.dumps([delegate.programs.statistics.loaded, delegate.programs.statistics.stored]))
"""


@pytest.mark.parametrize("cache", ["ours", "of JAX"])
def test_programs_are_kept_across_processes(tmp_path: Path, cache: str) -> None:
    """A process that compiles nothing has to start cuDNN itself."""
    model, feeds, want = network("classifier")
    (tmp_path / "model.tflite").write_bytes(model)
    np.save(tmp_path / "x.npy", feeds[0])
    # This process occupies most of the device's memory.
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if cache == "of JAX":
        environment |= {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "jax")}
        environment |= {f"JAX_PERSISTENT_CACHE_MIN_{what}": "0" for what in LEAST}
    found = []
    for attempt in range(2):
        folder = tmp_path / "both" if cache == "ours" else tmp_path / str(attempt)
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(tmp_path), PLATFORM, str(folder)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env=environment,
        )
        found.append(json.loads(done.stdout.splitlines()[-1]))
        assert_close([np.load(tmp_path / "y.npy")], want, tolerance=NETWORK)
    assert found == ([[0, 1], [1, 0]] if cache == "ours" else [[0, 1], [0, 0]])


@pytest.mark.skipif(
    has_platform() and len(jax.devices(PLATFORM)) < 2, reason="there is only one device"
)
def test_another_device_is_another_program(tmp_path: Path) -> None:
    model, feeds, want = network("classifier")
    for index in (0, 1):
        options = {"serialization_dir": str(tmp_path / "programs"), "device_index": index}
        got, delegate = run(model, feeds, **options)
        assert delegate.programs.statistics.stored == 1
        assert_close(got, want, tolerance=NETWORK)


def test_states_are_kept_on_the_device(tmp_path: Path) -> None:
    """A recurrent case loads twice from the cache; its state survives between invokes."""
    case = next(case for case in cases("recurrent/lstm") if case.feeds()[0].dtype == np.float32)
    for _ in range(2):
        delegate = jd.JaxDelegate(platform=PLATFORM, serialization_dir=str(tmp_path / "programs"))
        on_device = jd.Interpreter(model_content=case.model(), experimental_delegates=[delegate])
        on_host = jd.Interpreter(model_content=case.model())
        for _ in range(3):
            got, want = (_invoked(i, case.feeds()) for i in (on_device, on_host))
            case.check(got, want)


def _invoked(interpreter: jd.Interpreter, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
    if not interpreter._runner(0).is_allocated:
        interpreter.allocate_tensors()
    for detail, array in zip(interpreter.get_input_details(), feeds, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


# ---- donation


@pytest.mark.parametrize("is_cached", [False, True])
def test_donated_inputs(tmp_path: Path, is_cached: bool) -> None:
    """Results may reuse the inputs' memory, but not that of host arrays or shared ones."""
    model, feeds, want = network("classifier")
    options: dict[str, object] = {"donate_inputs": True, "platform": PLATFORM, "min_gain": 0}
    if is_cached:
        options["serialization_dir"] = str(tmp_path / "programs")
    for _ in range(2):
        delegates = [
            jd.JaxDelegate(options, last_delegate_node_index=3),
            jd.JaxDelegate(options),
        ]
        interpreter = jd.Interpreter(model_content=model, experimental_delegates=delegates)
        interpreter.allocate_tensors()
        assert [len(d.partitions()) for d in delegates] == [1, 1]
        for _ in range(2):
            assert_close(run_once(interpreter, feeds), want, tolerance=NETWORK)
        np.testing.assert_array_equal(
            interpreter.get_tensor(interpreter.get_input_details()[0]["index"]), feeds[0]
        )


def test_results_stay_on_the_device() -> None:
    model, feeds, _ = network("classifier")
    delegate = jd.JaxDelegate(platform=PLATFORM)
    interpreter = jd.Interpreter(model_content=model, experimental_delegates=[delegate])
    run_once(interpreter, feeds)
    (partition,) = delegate.partitions()
    results = partition.program(list(feeds))
    assert {d.platform for y in results for d in y.devices()} == {delegate.device.platform}
    assert {d for w in partition.program.weights for d in w.devices()} <= {delegate.device}


@pytest.mark.parametrize("split", [None, 3])
def test_device_arrays_stay_on_the_device(split: int | None) -> None:
    """There is no transfer in any direction, in one partition and between two."""
    model, feeds, want = network("classifier")
    everything = {"platform": PLATFORM, "min_gain": 0}
    delegates = [jd.JaxDelegate(everything)]
    if split is not None:
        delegates.insert(0, jd.JaxDelegate(everything, last_delegate_node_index=split))
    interpreter = jd.Interpreter(model_content=model, experimental_delegates=delegates)
    interpreter.allocate_tensors()
    (x,), (y,) = interpreter.get_input_details(), interpreter.get_output_details()
    given = jax.device_put(feeds[0], delegates[0].device)
    interpreter.set_tensor(x["index"], given)
    interpreter.invoke()  # includes the transfers that a program needs once
    with jax.transfer_guard("disallow_explicit"):
        for _ in range(2):
            interpreter.set_tensor(x["index"], given)
            interpreter.invoke()
            result = interpreter.get_device_tensor(y["index"]).block_until_ready()
    assert result.devices() == {delegates[0].device}
    assert_close([np.asarray(result)], want, tolerance=NETWORK)
    np.testing.assert_array_equal(np.asarray(given), feeds[0])
