"""Write the table of primitives in docs/from_jax.md from the code."""

from pathlib import Path

from jaxdelegate.conversion.interpreting import PRIMITIVES

PAGE = Path(__file__).parent / "from_jax.md"
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


def page() -> str:
    """The page with the current table."""
    before, rest = PAGE.read_text().split(START)
    return before + table() + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    PAGE.write_text(page())
