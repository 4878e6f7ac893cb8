"""Write the README's table of where jaxdelegate was measured, and its plot of times.

    python docs/generate_status.py

Reads bench/results/**/*.jsonl. The table is between two marks in README.md, the plot is
docs/images/times.svg.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib as mpl
from generate_performance import OWN, Record, cpu_name, is_large, mean, ratio
from matplotlib.figure import Figure

DOCS = Path(__file__).parent
PAGE, PLOT = DOCS.parent / "README.md", DOCS / "images" / "times.svg"
BEGIN, END = "<!-- status: docs/generate_status.py -->", "<!-- end of status -->"


def read(folder: Path) -> list[Record]:
    lines = (
        line
        for path in sorted(folder.rglob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    )
    return [json.loads(line) for line in lines]


def status(records: Sequence[Record]) -> list[str]:
    """A row for each kind of hardware."""
    rows = [
        ("x86-64 CPU with AVX2 or AVX-512", on_cpu(records)),
        (
            "other x86-64 CPUs, aarch64",
            "runs emulated (`make emulate`, `make emulate-arm`); no times",
        ),
        ("NVIDIA GPU", on_device(records, "gpu", "compile_for_gpu")),
        ("TPU", on_device(records, "tpu", "compile_for_tpu")),
    ]
    return ["| hardware | state |", "|---|---|", *(f"| {name} | {state} |" for name, state in rows)]


def compared(records: Iterable[Record], platform: str) -> list[Record]:
    of_compare = (r for r in records if r.get("bench") == "compare" and "refused" not in r)
    return [r for r in of_compare if r["options"].get("platform", "cpu") == platform]


def of_bundles(records: Iterable[Record], platform: str) -> list[Record]:
    of_bench = (r for r in records if r.get("bench") == "language_models")
    return [r for r in of_bench if r.get("platform") == platform]


def on_cpu(records: Sequence[Record]) -> str:
    found = compared(records, "cpu")
    processors = sorted(set(map(cpu_name, found)))
    return f"measured: {models(found)} on {join(processors)} ([times](docs/performance.md))"


def on_device(records: Sequence[Record], platform: str, bench: str) -> str:
    """Measured there, or compiled for devices that were absent, or neither."""
    if found := compared(records, platform):
        kinds = sorted({str(r["device_kind"]) for r in found})
        bundles = {r["bundle"] for r in of_bundles(records, platform)}
        counts = f"{models(found)} and {len(bundles)} language models" if bundles else models(found)
        return f"measured: {counts} on {join(kinds)} ([GPUs](docs/gpu.md#measured))"
    compiled = [r for r in records if r.get("bench") == bench and "error" not in r]
    if not compiled:
        return "**never run**"
    targets = sorted({r["compiled_for"].partition(",")[0] for r in compiled})
    verb = "was" if len(targets) == 1 else "were"
    return f"**never run**; {models(compiled)} compiled for {join(targets)}, which {verb} absent"


def models(records: Iterable[Record]) -> str:
    count = len({r["graph"] for r in records})
    return f"{count} model{'s' * (count != 1)}"


def join(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def plot(records: Iterable[Record]) -> None:
    """Our time over XNNPACK's of all large models: one thread, one image, by default."""
    newest = {
        r["graph"]: r
        for r in compared(records, "cpu")
        if r["threads"] == r["batch"] == 1 and r["options"] == {"platform": "cpu"}
        if is_large(r)
    }
    ratios = {graph: value for graph, r in newest.items() if (value := ratio(r, OWN)) is not None}
    ordered = sorted(ratios, key=ratios.__getitem__)
    figure = Figure(figsize=(9, 0.8 + 0.22 * len(ordered)), layout="constrained")
    axes = figure.subplots()
    colors = ["tab:blue" if ratios[g] <= 1 else "tab:gray" for g in ordered]
    axes.barh(ordered, [ratios[g] for g in ordered], color=colors, height=0.7)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=8)
    whole = mean(list(ratios.values()))
    axes.set_xlabel(f"time / LiteRT's with XNNPACK, CPU, one thread; geometric mean {whole:.2f}")
    figure.savefig(PLOT, metadata={"Date": None})


def main() -> None:
    mpl.rcParams["svg.hashsalt"] = "status"
    records = read(DOCS.parent / "bench" / "results")
    plot(records)
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    table = "\n".join(status(records))
    PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
