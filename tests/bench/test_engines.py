"""Engines compute the model, or report why they are absent."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from tests.support.networks import small_classifier

pytestmark = [pytest.mark.litert, pytest.mark.usefixtures("compiled_once")]
IMAGE = {"shape": np.array([1, 16, 16, 3]), "dtype": np.float32}
OURS = ("jaxdelegate", "jaxdelegate_in_stock", "jaxdelegate_function", "jaxdelegate_on_device")


@pytest.fixture
def engines() -> ModuleType:
    return pytest.importorskip("engines")  # type: ignore[no-any-return]


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "model.tflite"
    path.write_bytes(small_classifier())
    return path


@pytest.mark.parametrize("name", ["litert_xnnpack", *OURS])
def test_engines_compute_the_model(engines: Any, graph: Path, name: str) -> None:
    agreement = pytest.importorskip("agreement")
    arrays = agreement.inputs([IMAGE], 3)
    run = engines.ENGINES[name](engines.Settings(graph), arrays)
    rule = agreement.judge(graph.read_bytes(), arrays, None)
    assert rule.why_not([engines.to_host(y) for y in run(arrays)]) is None


def test_arrays_that_are_lent_compute_the_model(engines: Any, graph: Path) -> None:
    """Arrays stay on the device, as on a GPU, for two batches."""
    delegate = jd.JaxDelegate(platform="cpu")
    interpreter = jd.Interpreter(graph, experimental_delegates=[delegate])
    first, second = np.random.default_rng(0).normal(size=(2, 2, 16, 16, 3)).astype(np.float32)
    run = engines._lending(interpreter, [first])
    model = jd.load(graph)
    for images in (first, second):
        np.testing.assert_allclose(run([images])[0], model(images)[0], rtol=1e-4, atol=1e-6)


def test_the_float_twin_takes_quantized_inputs(engines: Any, graph: Path) -> None:
    images = np.ones((1, 16, 16, 3), np.int8)
    run = engines.float_twin(engines.Settings(Path("unread"), float_graph=graph), [images])
    assert run([images])[0].dtype == np.float32


def test_the_newer_api_of_litert_computes_the_model(engines: Any, graph: Path) -> None:
    agreement = pytest.importorskip("agreement")
    options = pytest.importorskip("ai_edge_litert.options").Options
    arrays = agreement.inputs([IMAGE], 1)
    run = engines.compiled_model(engines.Settings(graph), arrays, options())
    rule = agreement.judge(graph.read_bytes(), arrays, None)
    assert rule.why_not(run(arrays)) is None


def test_ynnpack_computes_the_model_or_is_absent(engines: Any, graph: Path) -> None:
    agreement, harness = pytest.importorskip("agreement"), pytest.importorskip("harness")
    arrays = agreement.inputs([IMAGE], 1)
    try:
        run = engines.litert_ynnpack(engines.Settings(graph), arrays)
    except harness.AbsentError:
        pytest.skip("LiteRT was built without it")
    rule = agreement.judge(graph.read_bytes(), arrays, None)
    assert rule.why_not(run(arrays)) is None


@pytest.mark.parametrize(
    ("name", "settings", "why"),
    [
        ("jaxdelegate_function", {"short": np.dtype(np.float16)}, "float32"),
        ("jaxdelegate_function", {"options": {"quant_mode": "integer"}}, "float view"),
        ("jaxdelegate_float_twin", {}, "--float_graph"),
        ("litert_gpu", {"options": {"platform": "cpu"}}, "no GPU"),
    ],
)
def test_who_is_absent_says_why(
    engines: Any, graph: Path, name: str, settings: dict[str, Any], why: str
) -> None:
    arrays = [np.zeros((1, 16, 16, 3), np.float32)]
    with pytest.raises(pytest.importorskip("harness").AbsentError, match=why):
        engines.ENGINES[name](engines.Settings(graph, **settings), arrays)


@pytest.mark.parametrize("name", ["onnxruntime", "onnxruntime_tensorrt_on_device"])
def test_onnx_runtime_is_absent_where_it_is_not_installed(
    graph: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx_engines, engines = pytest.importorskip("onnx_engines"), pytest.importorskip("engines")
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(pytest.importorskip("harness").AbsentError, match="not installed"):
        onnx_engines.ONNX_ENGINES[name](engines.Settings(graph), [])


def test_an_engine_that_computes_elsewhere_does_not_count(engines: Any) -> None:
    absent = pytest.importorskip("harness").AbsentError
    on_cpu = engines.Engine(lambda given: given, "cpu CPUExecutionProvider")
    with pytest.raises(absent, match="on cpu CPUExecutionProvider, not on the gpu"):
        engines.assert_place("onnxruntime", on_cpu, "gpu")
    engines.assert_place("onnxruntime", on_cpu, "cpu")
    engines.assert_place("litert_xnnpack", on_cpu, "gpu")  # the peer of a GPU
    with pytest.raises(absent, match="not on the cpu"):
        engines.assert_place("jaxdelegate", engines.Engine(on_cpu.run, "gpu NVIDIA L4"), "cpu")


def test_pytorch_is_absent_where_it_is_not_installed(
    engines: Any, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_engines = pytest.importorskip("torch_engines")
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(pytest.importorskip("harness").AbsentError, match="not installed"):
        torch_engines.TORCH_ENGINES["pytorch"](engines.Settings(graph), [])
