"""Write the tables of docs/design/gpu.md from bench/results/compile_for_gpu.jsonl and _tpu.jsonl.

python docs/generate_device_programs.py
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "design" / "gpu.md"
END = "<!-- end of table -->"
GPU = (
    "| model | batch | dtype | mode | kernels | in graphs | MB moved | ideal | ratio | 64-bit "
    "| scratch, MB |"
)
TPU = "| model | batch | dtype | mode | fusions | products | convolutions | 64-bit | scratch, MB |"

Record = Mapping[str, Any]


def gpu_row(r: Record) -> list[Any]:
    """Of a line of compile_for_gpu.jsonl."""
    least = r["least_mb"]
    ratio = f"{r['moved_mb'] / least:.2f}" if least else "-"
    graphs = f"{r['captured'] / r['launches']:.0%} in {r['graphs']}"
    moved = (_whole(r["moved_mb"]), _whole(least), ratio)
    return [r["kernels"], graphs, *moved, r["wide_operations"], _whole(r["mb"]["scratch"])]


def tpu_row(r: Record) -> list[Any]:
    """Of a line of compile_for_tpu.jsonl."""
    scratch = _whole(r["mb"]["scratch"]) if r["mb"] else "-"
    return [r["fusions"], r["products"], r["convolutions"], r["wide_operations"], scratch]


def table(head: str, records: Iterable[Record], row: Any) -> str:
    """One row for each line of results; what does not compile says why in a line below."""
    lines, notes = [], []
    for r in records:
        name = r["graph"].removesuffix(".tflite")
        case = [name, r["batch"], r["compute_dtype"], r["quant_mode"]]
        if "absent" in r:
            notes.append(f"* {' '.join(map(str, case))}: {r['absent']}")
        else:
            lines.append(f"| {' | '.join(map(str, [*case, *row(r)]))} |")
    rule = "|---|--:|---|---|" + "--:|" * (head.count("|") - 5)
    return "\n".join([head, rule, *lines, *(["", *notes] if notes else [])])


def source(records: Sequence[Record]) -> str:
    """For what, and by which compiler."""
    versions = records[0]["machine"]["versions"]
    return f"Compiled for {records[0]['compiled_for']}, by jax {versions['jax']}."


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def replaced(page: str, bench: str, text: str) -> str:
    """The page with another table of a bench."""
    begin = f"<!-- table: {bench} -->"
    head, _, rest = page.partition(begin)
    return f"{head}{begin}\n{text}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for bench, head, row in (("compile_for_gpu", GPU, gpu_row), ("compile_for_tpu", TPU, tpu_row)):
        results = ROOT / "bench" / "results" / f"{bench}.jsonl"
        records = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
        text = f"{source(records)}\n\n{table(head, records, row)}"
        page = replaced(page, bench, text)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
