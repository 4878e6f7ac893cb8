"""docs/generate_status.py: what the README says of where jaxdelegate was measured."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def status(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "docs")
    spec = importlib.util.spec_from_file_location("status", ROOT / "docs" / "generate_status.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compared(graph: str, platform: str, **more: Any) -> dict[str, Any]:
    options = {"platform": platform}
    return {"bench": "compare", "graph": graph, "options": options, **more}


CPU = compared("a", "cpu", machine={"cpu": "a processor"})
COMPILED = {
    "bench": "compile_for_gpu",
    "graph": "a",
    "compiled_for": "an H100, which was absent",
}


def test_what_was_compiled_only_never_ran(status: ModuleType) -> None:
    rows = status.status([CPU, COMPILED])
    assert rows[2].endswith("| measured: 1 model on a processor ([times](docs/performance.md)) |")
    assert (
        rows[4] == "| NVIDIA GPU | **never run**; 1 model compiled for an H100, which was absent |"
    )
    assert rows[5] == "| TPU | **never run** |"


def test_what_ran_on_a_device(status: ModuleType) -> None:
    records = [compared(graph, "gpu", device_kind="an H100") for graph in ("a", "b", "b")]
    refused = compared("c", "gpu", device_kind="an H200", refused="no memory")
    rows = status.status([CPU, COMPILED, *records, refused])
    assert (
        rows[4] == "| NVIDIA GPU | measured: 2 models on an H100 ([GPUs](docs/gpu.md#measured)) |"
    )


def test_the_readme_is_what_the_script_writes(status: ModuleType) -> None:
    table = "\n".join(status.status(status.read(ROOT / "bench" / "results")))
    assert table in (ROOT / "README.md").read_text(encoding="utf-8")
