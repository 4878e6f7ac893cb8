"""Write the tables of docs/reliability.md from the lines of bench/results.

    python docs/generate_reliability.py

Each table is between two marks; the text around them stays.
"""

import collections
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))
from tests.support import known_differences  # noqa: E402

PAGE = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "bench" / "results"
END = "<!-- end of table -->"
Row = dict[str, Any]

SIDES = {
    "reference": "ours, the reference",
    "delegate": "ours, with a delegate",
    "litert": "stock LiteRT",
}
OUTCOMES = {  # of tests/fuzz/workers.py; a LoweringError is a bug of ours, not a refusal
    "ran": "ran",
    "refused": "refused",
    "stopped": "ended by `timeout`",
    "time limit": "time limit",
    "memory": "memory limit",
    "died": "process died",
    "error": "other exceptions",
    "before damage": "before damage",
}
RUNS = {
    "differential.jsonl": "every engine",
    "differential_reference.jsonl": "LiteRT and the reference only",
}
COUNTED = {
    "compared with LiteRT": "LiteRT ran",
    "refused by LiteRT": "LiteRT refused",
    "LiteRT ended the process": "LiteRT ended its process",
    "XNNPACK differs from LiteRT's reference": "XNNPACK is further off than a delegate may be",
}


def lines(name: str) -> list[Row]:
    """The lines of a file of bench/results; empty if the file does not exist."""
    path = RESULTS / name
    return [json.loads(s) for s in path.read_text().splitlines() if s] if path.exists() else []


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown whose first column is text and whose other columns are numbers."""
    head = list(head)
    parts = [f"| {' | '.join(head)} |", "|---" + "|--:" * (len(head) - 1) + "|"]
    cells = ((f"{c:,}" if isinstance(c, int) else str(c) for c in row) for row in rows)
    return "\n".join([*parts, *(f"| {' | '.join(row)} |" for row in cells)])


def damaged(rows: list[Row]) -> str:
    """The outcomes for damaged files, by side."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for row in rows:
        for side, outcomes in row.get("counts", {}).items():  # findings have none
            for label, n in outcomes.items():
                kind = "error" if label.endswith("LoweringError") else label.split(":")[0]
                counts[side][kind] += n
    if unknown := {kind for c in counts.values() for kind in c} - OUTCOMES.keys():
        raise ValueError(f"outcomes without a column: {sorted(unknown)}")
    return table(
        ("", "models", *OUTCOMES.values()),
        (
            (name, counts[side].total(), *(counts[side][kind] for kind in OUTCOMES))
            for side, name in SIDES.items()
            if side in counts
        ),
    )


def random_graphs(runs: dict[str, list[Row]]) -> str:
    """How many graphs ran, and how they were judged."""
    rows = []
    for name, shards in runs.items():
        found = [d for shard in shards for d in shard["disagreements"]]
        is_open = sum(d["explained"] is None for d in found)
        rows.append(
            (
                RUNS[name],
                sum(shard["seeds"][1] - shard["seeds"][0] for shard in shards),
                len({operator for shard in shards for operator in shard["operators"]}),
                *(sum(s["outcomes"].get(outcome, 0) for s in shards) for outcome in COUNTED),
                len(found) - is_open,
                is_open,
            )
        )
    return table(("run", "graphs", "operators", *COUNTED.values(), "explained", "open"), rows)


def causes(runs: dict[str, list[Row]]) -> str:
    """The explanations, from the docstrings of their functions, and how often each was given."""
    counts = collections.Counter(
        d["explained"] for rows in runs.values() for shard in rows for d in shard["disagreements"]
    )
    functions = [why for all_ in known_differences.BY_ENGINE.values() for why in all_]
    functions += [*known_differences.OF_ANY, *known_differences.OF_THE_REST]
    texts = {f.__name__: " ".join((f.__doc__ or "").split()) for f in functions}
    rows = ((f"{said} `{name}`", counts[name]) for name, said in texts.items())
    return table(("cause and name", "found"), rows)


def filled(text: str) -> str:
    """The page with its tables as the lines say."""
    runs = {name: lines(name) for name in RUNS}
    tables = {
        "damaged files": damaged(lines("mutations.jsonl")),
        "random graphs": random_graphs(runs),
        "causes": causes(runs),
    }
    for name, content in tables.items():
        before, _, rest = text.partition(f"<!-- table: {name} -->\n")
        _, _, after = rest.partition(END)
        text = f"{before}<!-- table: {name} -->\n\n{content}\n\n{END}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
