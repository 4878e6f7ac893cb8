"""Write the tables of docs/design/gpu.md from bench/results/compile_for_gpu.jsonl and _tpu.jsonl.

python docs/generate_device_programs.py
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "design" / "gpu.md"
END = "<!-- end of table -->"
GPU = (
    "| model | batch | dtype | mode | kernels | in graphs | MB moved | ideal | ratio | 64-bit "
    "| scratch, MB |"
)
TPU = "| model | batch | dtype | mode | fusions | products | convolutions | scratch, MB |"

Record = Mapping[str, Any]


def gpu_row(r: Record) -> list[Any]:
    """The cells for a line of compile_for_gpu.jsonl."""
    least = r["least_mb"]
    ratio = f"{r['moved_mb'] / least:.2f}" if least else "-"
    graphs = f"{r['captured'] / r['launches']:.0%} in {r['graphs']}"
    moved = (_whole(r["moved_mb"]), _whole(least), ratio)
    return [r["kernels"], graphs, *moved, r["wide_operations"], _whole(r["mb"]["scratch"])]


def tpu_row(r: Record) -> list[Any]:
    """The cells for a line of compile_for_tpu.jsonl."""
    scratch = _whole(r["mb"]["scratch"]) if r["mb"] else "-"
    return [r["fusions"], r["products"], r["convolutions"], scratch]


def table(head: str, records: Iterable[Record], row: Callable[[Record], list[Any]]) -> str:
    """One row for each line of results, and the reasons for those that do not compile."""
    lines, notes = [], []
    for r in records:
        name = r["graph"].removesuffix(".tflite")
        case = [name, r["batch"], r["compute_dtype"], r["quant_mode"]]
        if "absent" in r:
            reason = r["absent"].partition(" %")[0]  # XLA names the instruction
            notes.append(f"* {' '.join(map(str, case))}: {reason}")
        else:
            lines.append(f"| {' | '.join(map(str, [*case, *row(r)]))} |")
    rule = "|---|--:|---|---|" + "--:|" * (head.count("|") - 5)
    return "\n".join([head, rule, *lines, *(["", *notes] if notes else [])])


def tables(records: Sequence[Record], head: str, row: Callable[[Record], list[Any]]) -> str:
    """A table for each device, with the version of jax."""
    devices = dict.fromkeys(r["compiled_for"] for r in records)
    parts = []
    for device in devices:
        own = [r for r in records if r["compiled_for"] == device]
        versions = own[0]["machine"]["versions"]
        name = device.removesuffix(", which was not there")
        parts.append(f"For {name}, with jax {versions['jax']}:\n\n{table(head, own, row)}\n")
    return "\n".join(parts)


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def replaced(page: str, bench: str, text: str) -> str:
    """The page with a new table for a bench."""
    begin = f"<!-- table: {bench} -->"
    head, _, rest = page.partition(begin)
    return f"{head}{begin}\n{text}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for bench, head, row in (("compile_for_gpu", GPU, gpu_row), ("compile_for_tpu", TPU, tpu_row)):
        results = ROOT / "bench" / "results" / f"{bench}.jsonl"
        records = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
        page = replaced(page, bench, tables(records, head, row))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
