"""docs/generate_fine_tuning.py: the page for results of bench/fine_tuning*.py."""

import json
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATE = runpy.run_path(str(ROOT / "docs" / "generate_fine_tuning.py"))


def test_the_page_has_the_stored_results() -> None:
    page = (ROOT / "docs" / "fine_tuning.md").read_text(encoding="utf-8")
    assert GENERATE["written"](page) == page, "run docs/generate_fine_tuning.py"


def test_what_differs_is_said_and_the_best_is_bold() -> None:
    results = (ROOT / "bench" / "results" / "fine_tuning.jsonl").read_text(encoding="utf-8")
    records = [json.loads(line) for line in results.splitlines()]
    for r in records:
        r["sides"]["jaxdelegate"]["loss"][1] = 1e-9
        r["sides"]["litert_tunner"]["apart"]["largest"] = 0.25
    table = GENERATE["training"](records)
    assert "weights and biases | **1.00e-09** | **1.00e-09** |" in table
    assert "over all rows above | 0.25 | 0.25 |" in table
