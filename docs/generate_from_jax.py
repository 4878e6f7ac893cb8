"""Write the tables of docs/from_jax.md: primitives from the code, files from bench/results."""

import json
from pathlib import Path
from typing import Any

from jaxdelegate.conversion.primitives import PRIMITIVES

PAGE = Path(__file__).parent / "from_jax.md"
RESULTS = PAGE.parents[1] / "bench" / "results" / "from_jax.jsonl"
FILES = "| network | KB | operators | share of XNNPACK | time of an invoke |\n"
START, END = "| primitive | operators | condition |\n", "\n\n## "


def table() -> str:
    """The rows, by name; primitives that become the same are one row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for p in PRIMITIVES.values():
        rows.setdefault((p.operators, p.condition), []).append(f"`{p.name}`")
    lines = [
        f"| {', '.join(sorted(names))} | {ops} | {why} |" for (ops, why), names in rows.items()
    ]
    return START + "|---|---|---|\n" + "\n".join(sorted(lines))


def files() -> str:
    """A row for each network: its file, and that of TensorFlow's converter."""
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    rows = {r["network"]: _row(r) for r in lines if "network" in r}
    return FILES + "|---|---|---|---|---|\n" + "\n".join(rows.values())


def _row(r: dict[str, Any]) -> str:
    kilobytes = {name: f"{size / 1e3:.0f}" for name, size in r["bytes"].items()}
    shares = {name: f"{share:.0%}" for name, share in r["xnnpack_share"].items()}
    times = {name: f"{spread['median']:.3g} ms" for name, spread in r["ms"].items()}
    cells = (_beside(values) for values in (kilobytes, r["operators"], shares, times))
    return f"| {r['network']} | {' | '.join(cells)} |"


def _beside(values: dict[str, Any]) -> str:
    return f"{values['from_jax']}, {values.get('converter', 'no file')}"


def page() -> str:
    """The page with the current tables."""
    text = PAGE.read_text()
    for start, now in ((START, table()), (FILES, files())):
        before, rest = text.split(start)
        text = before + now + END + rest.split(END, 1)[1]
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
