"""docs/generate_performance.py: the page for the results."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("matplotlib")

DOCS = Path(__file__).parents[2] / "docs"
MACHINE = {"cpu": "a processor", "python": "3.13.5", "versions": {"jax": "0.12.0.1"}}


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate_performance.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, file in (("PAGE", "p.md"), ("RATIOS", "r.svg"), ("SCALING", "s.svg")):
        monkeypatch.setattr(module, name, tmp_path / file)
    module.PAGE.write_text(f"before {module.BEGIN} old {module.END} after")
    return module


def times(ratio: float, xnnpack: float = 10.0) -> dict[str, Any]:
    ms = {"litert_xnnpack": xnnpack, "jaxdelegate": ratio * xnnpack}
    return {
        "ms": {name: {"median": value} for name, value in ms.items()},
        "ratio_to_litert": {name: {"median": t / xnnpack} for name, t in ms.items()},
    }


def compared(graph: str, more: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {
        "bench": "compare",
        "graph": graph,
        "batch": 1,
        "threads": 1,
        "device": "cpu:0",
        "kind": "float32",
        "options": {"platform": "cpu"},
        "machine": MACHINE,
        **more,
        **changed,
    }


def written(page: Any, tmp_path: Path, *records: dict[str, Any]) -> str:
    results = tmp_path / "results.jsonl"
    results.write_text("".join(json.dumps(r) + "\n" for r in records))
    page.main([str(results)])
    return str(page.PAGE.read_text())


def test_the_newest_line_counts_and_fast_models_apart(page: Any, tmp_path: Path) -> None:
    text = written(
        page,
        tmp_path,
        compared("a", times(3.0)),
        compared("a", times(2.0)),
        compared("b", times(0.5)),
        compared("quick", times(9.0, xnnpack=0.1)),
    )
    assert text.startswith("before")
    assert text.endswith("after")
    assert "| a | 10.00 | 2.00 |" in text
    assert "| **geometric mean**, over 1 ms |  | **1.00** (2) |" in text
    assert "| **geometric mean**, smaller |  | **9.00** (1) |" in text
    assert (
        "| a processor, Python 3.13 and jax 0.12, batch 1, 1 thread | **1.00** (2) | **9.00** (1) "
        "| b 0.50 | quick 9.00 |" in text
    )
    assert text.index("| b |") < text.index("| a |")
    assert "old" not in text


def test_settings_and_weights_have_tables_of_their_own(page: Any, tmp_path: Path) -> None:
    text = written(
        page,
        tmp_path,
        compared("a", times(1.0)),
        compared("a", times(1.0), threads=2),
        compared("a_fp16w", times(1.0), kind="float16"),
        compared("a", times(1.0), options={"is_precision_loss_allowed": True}),
        compared("q", times(1.5) | {"ratio_to_float_twin": {"median": 1.25}}, kind="int8"),
    )
    titles = [line for line in text.splitlines() if line.startswith("### ")]
    head = "### a processor, Python 3.13 and jax 0.12, batch 1"
    assert titles == [
        f"{head}, 1 thread",
        f"{head}, 1 thread, is_precision_loss_allowed=True",
        f"{head}, 1 thread, float16 weights",
        f"{head}, 1 thread, int8",
        f"{head}, 2 threads",
    ]
    assert "| q | 10.00 | 1.50 | 1.25 |" in text


def test_quantized_files_show_the_better_mode(page: Any, tmp_path: Path) -> None:
    record = compared("q", times(0.6), kind="dynamic range")
    modes = {"jaxdelegate_integer": 0.5, "jaxdelegate_float_view": 0.8}
    record["ratio_to_litert"] |= {name: {"median": value} for name, value in modes.items()}
    text = written(page, tmp_path, record)
    assert "jaxdelegate | jaxdelegate_integer | jaxdelegate_float_view | over the better" in text
    assert "| q | 10.00 | 0.60 | 0.50 | 0.80 | 1.20 |" in text


def test_the_fastest_peer_and_the_roofline_on_a_gpu(page: Any, tmp_path: Path) -> None:
    peers = {"pytorch": 0.5, "pytorch_compile": 0.25, "pytorch_compile_on_device": 0.1}
    record = compared("net", times(0.3), device="cuda:0", device_kind="NVIDIA H200") | {
        "roofline_ms": 1.0
    }
    ratios = {name: {"median": value} for name, value in peers.items()}
    record["ratio_to_litert"] |= ratios | {"jaxdelegate_on_device": {"median": 0.2}}
    record["ms"]["jaxdelegate_on_device"] = {"median": 2.0}
    text = written(page, tmp_path, record)
    assert "| net | 10.00 | 0.30 | 0.20 | 0.50 | 0.25 | 0.10 | 1.20 | 2.00 | 0.50 |" in text


def test_what_did_not_run_is_named(page: Any, tmp_path: Path) -> None:
    refused = compared("b", {"refused": "its batch is fixed"})
    text = written(page, tmp_path, compared("a", times(1.0)), refused)
    assert "Not run: b (its batch is fixed)." in text


def test_operators_that_take_longest_come_first(page: Any, tmp_path: Path) -> None:
    def operator(index: int, ms: float, count: int) -> dict[str, Any]:
        reached = {"litert_xnnpack": {"of_roofline": 0.5}, "jaxdelegate": {"of_roofline": 0.25}}
        return compared("net", times(2.0, ms)) | {
            "bench": "operators",
            "operator": f"OP{index}",
            "index": index,
            "count": count,
            "shapes": [[1, 4], [4, 4], [4], [1, 4]],
            "reached": reached,
        }

    text = written(page, tmp_path, operator(0, 2.0, 1), operator(1, 1.0, 3))
    assert "| OP1 | 1x4, 4x4 | 3 | 1000 | 2000 | 2.00 | 50% | 25% |" in text
    assert text.index("OP1") < text.index("OP0")
    assert "| **all 2** |  |  | 5000 | 10000 | **2.00** |  |  |" in text


def test_overhead_and_scaling(page: Any, tmp_path: Path) -> None:
    us = ("litert", "by_xla", "invoke", "litert_set_invoke_get", "set_invoke_get")
    overhead = {
        "bench": "invoke_overhead",
        "bytes": 4096,
        "device": "cpu:0",
        "us": {name: {"median": 1.5} for name in (*us, "over_litert", "whole_over_litert")},
        "machine": MACHINE,
    }
    scaling = [compared("net", times(1.0)) | {"bench": "scaling", "size": n} for n in (224, 448)]
    text = written(page, tmp_path, overhead, *scaling)
    assert "| 4,096 | 1.5 | 1.5 | 1.5 (1.50) | 1.5 | 1.5 (1.50) |" in text
    assert "<svg" in page.SCALING.read_text()


def test_no_results_are_an_error(page: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no results"):
        written(page, tmp_path, {"bench": "latency"})


def test_start_up_is_shown_stage_by_stage(page: Any, tmp_path: Path) -> None:
    stages = {s: 10.0 * i for i, s in enumerate(page.STAGES, start=1)}
    record = {
        "bench": "startup",
        "graph": "net.tflite",
        "options": {"quant_mode": "integer"},
        "ms": {"litert": stages, "warm": stages, "cold": stages},
        "over_litert": {"warm": [1.5, 1.4, 1.6], "cold": [9.0, 8.0, 10.0]},
        "machine": MACHINE,
    }
    text = written(page, tmp_path, record)
    assert "| net, quant_mode=integer | warm | 10 | 20 | 30 | 40 | 50 | 60 | 1.50 |" in text
    assert "| net, quant_mode=integer | litert | 10 | 20 | 30 | 40 | 50 | 60 | - |" in text


def test_the_slowest_cold_loads_come_first(page: Any, tmp_path: Path) -> None:
    def load(graph: str, mode: str, wall: float) -> dict[str, Any]:
        own = {"bench": "cold_loads", "graph": graph, "mode": mode, "machine": MACHINE}
        return own | {"wall": wall, "cpu": wall, "xla": 0.5}

    records = [load("a", "default", 1.0), load("a", "integer", 4.0), load("b", "default", 2.0)]
    broken = load("c", "default", 9.0) | {"error": "no model"}
    text = written(page, tmp_path, *records, broken)
    rows = [line for line in text.splitlines() if line.startswith(("| a", "| b", "| c"))]
    assert rows == ["| a | 1.00 (0.50) | 4.00 (0.50) |", "| b | 2.00 (0.50) | - |"]
    assert "the slowest\n2 of 2 models" in text
