"""docs/reliability.md counts what ran."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate_reliability.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_is_as_the_lines_say(generator: ModuleType) -> None:
    written = (DOCS / "reliability.md").read_text()
    assert written == generator.filled(written), "run `python docs/generate_reliability.py`"


def test_damaged_files_are_summed_by_side(generator: ModuleType) -> None:
    ours = {
        "ran": 3,
        "refused: ModelError": 2,
        "refused: LoweringError": 1,
        "time limit": 1,
        "stopped": 5,
    }
    rows = [
        {"counts": {"reference": ours, "delegate": {"ran": 1}}},
        {"finding": 7},
        {"counts": {"reference": {"before damage: died": 1, "memory": 2, "died": 1, "error": 1}}},
    ]
    first, second = generator.damaged(rows).splitlines()[2:]
    assert first == "| ours, the reference | 17 | 3 | 2 | 5 | 1 | 2 | 1 | 2 | 1 |"
    assert second == "| ours, with a delegate | 1 | 1 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |"
    with pytest.raises(ValueError, match="burnt"):
        generator.damaged([{"counts": {"litert": {"burnt": 1}}}])


def test_without_lines_nothing_is_claimed(generator: ModuleType) -> None:
    assert len(generator.damaged([]).splitlines()) == 2
    assert "every engine | 0 | 0" in generator.random_graphs({"differential.jsonl": []})
