"""Write the tables and the plot of docs/performance.md from bench/compare.py's results.

    python docs/generate_performance.py [RESULTS.jsonl ...]

Without arguments it reads bench/results/compare*.jsonl.

Of several lines for the same model and settings the newest counts. The tables stand between two
marks in docs/performance.md, the plot beside it in performance.svg.
"""

import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

DOCS = Path(__file__).parent
PAGE, PLOT = DOCS / "performance.md", DOCS / "performance.svg"
BEGIN, END = "<!-- tables: docs/generate_performance.py -->", "<!-- end of tables -->"
OWN, OVER = "jaxdelegate", "litert_xnnpack"
ENGINES = (OWN, "jaxdelegate_in_stock", "jaxdelegate_function", "openvino", "onnxruntime")
LEAST_MS = 2.0  # faster models measure the call, not the network

Record = dict[str, Any]
Settings = tuple[Any, ...]


def read(paths: Iterable[Path]) -> list[Record]:
    """The newest record for each model and settings; only those that XNNPACK ran, slowly enough."""
    newest: dict[tuple[Any, ...], Record] = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["bench"] == "compare":
                newest[record["graph"], settings(record)] = record
    return [r for r in newest.values() if r["ms"].get(OVER, {"median": 0})["median"] > LEAST_MS]


def settings(record: Record) -> Settings:
    options = tuple(sorted(record["options"].items()))
    platform = "cpu" if "cpu" in record["device"].lower() else record["device"]
    return platform, options, record["batch"], record["threads"]


def title(of: Settings) -> str:
    platform, options, batch, threads = of
    words = [f"{name}={value}" for name, value in options if (name, value) != ("platform", "cpu")]
    unit = "thread" if threads == 1 else "threads"
    return ", ".join([platform, f"batch {batch}", f"{threads} {unit}", *words])


def ratio(record: Record, engine: str) -> float | None:
    found = record["ratio_to_litert"].get(engine)
    return None if found is None else float(found["median"])


def mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def table(records: Sequence[Record]) -> list[str]:
    """Time over XNNPACK's, model by model, then the geometric mean of each column."""
    engines = [e for e in ENGINES if any(ratio(r, e) is not None for r in records)]
    ours = [ratio(r, OWN) for r in records]
    ordered = sorted(zip(ours, records, strict=True), key=lambda pair: pair[0] or 0)
    lines = [
        "| model | XNNPACK, ms | " + " | ".join(engines) + " |",
        "|---|--:|" + "--:|" * len(engines),
    ]
    for _, record in ordered:
        cells = [_cell(ratio(record, e)) for e in engines]
        ms = f"{record['ms'][OVER]['median']:.2f}"
        lines.append(f"| {record['graph']} | {ms} | " + " | ".join(cells) + " |")
    columns = [[v for r in records if (v := ratio(r, e)) is not None] for e in engines]
    means = [f"**{mean(column):.2f}** ({len(column)})" for column in columns]
    return [*lines, "| **geometric mean** (models) | | " + " | ".join(means) + " |"]


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def plot(groups: dict[Settings, list[Record]]) -> None:
    """Each model's ratio in each setting, as dots; the line at 1 is XNNPACK."""
    mpl.rcParams["svg.hashsalt"] = "performance"
    figure = Figure(figsize=(9, 0.6 + 0.9 * len(groups)), layout="constrained")
    axes = figure.subplots()
    for row, records in enumerate(groups.values()):
        values = [v for r in records if (v := ratio(r, OWN)) is not None]
        axes.scatter(values, [row] * len(values), s=28, alpha=0.6, color="tab:blue")
        axes.scatter([mean(values)], [row], marker="|", s=400, color="tab:red")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(groups)), [title(of) for of in groups])
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlabel("time / XNNPACK's; dots: models, red: geometric mean")
    figure.savefig(PLOT, metadata={"Date": None})


def main(arguments: Sequence[str]) -> None:
    paths = [Path(a) for a in arguments]
    paths = paths or sorted(DOCS.parent.glob("bench/results/compare*.jsonl"))
    groups: dict[Settings, list[Record]] = {}
    for record in read(paths):
        if ratio(record, OWN) is not None:
            groups.setdefault(settings(record), []).append(record)
    if not groups:
        raise SystemExit(f"no results of bench/compare.py in {', '.join(map(str, paths)) or PAGE}")
    groups = dict(sorted(groups.items(), key=lambda item: str(item[0])))
    machines = sorted({f"{r['machine']['cpu']}" for rs in groups.values() for r in rs})
    lines = [f"Measured on {'; '.join(machines)}.", "", f"![ratios]({PLOT.name})"]
    for of, records in groups.items():
        lines += ["", f"### {title(of)}", "", *table(records)]
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    text = f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}"
    PAGE.write_text(text, encoding="utf-8")
    plot(groups)


if __name__ == "__main__":
    main(sys.argv[1:])
