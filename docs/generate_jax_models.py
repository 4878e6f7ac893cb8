"""Write docs/jax_models.md from bench/results/jax_functions.jsonl (bench/jax_functions.py).

python docs/generate_jax_models.py
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "bench" / "results" / "jax_functions.jsonl"
CELLS = "load", "jit", "vmap", "grad", "batch", "cpu", "cuda", "tpu"

HEAD = """# What models can do as JAX functions

For anyone who wants to know whether `jaxdelegate.load` works for a model like theirs, and what works with it. Every cell was tested;
failures have the number of their reason, below the table. [JAX users](jax.md) explains the calls.

| column | test |
|---|---|
| load | `model(*inputs)` |
| jit | `jax.jit(apply)`, compared with `model(*inputs)` |
| vmap | `jax.vmap(apply)` for two inputs, compared with two single runs |
| grad | `jax.grad` with respect to weights and float inputs (`io="float"`): the number of leaves with a nonzero gradient; for float models also the ratio of the slope along the gradient by central differences to the gradient's |
| batch | `model.batched(2)`, compared with two single runs; the method |
| cpu | `model.export("cpu", "b")`, stored, loaded, called with two inputs, and compared with two single runs |
| cuda, tpu | `model.export(..., "b")`, stored and loaded: the convolutions and matrix products in the program (none: -), and slices |

Two results agree within 1e-3 of the largest value; in quantized networks, where the last bit of a float may change a value by a step,
within 10%, and within 1% on average. Models that end in ARG_MAX or non-maximum suppression are compared at its inputs.

"""  # noqa: E501 (the rows of a table)

TAIL = """
`python bench/jax_functions.py --models=FOLDER --out=bench/results/jax_functions.jsonl` runs the
cells; `python docs/generate_jax_models.py` writes this page.
"""


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The page of these results."""
    reasons: dict[str, int] = {}
    lines = [
        f"| {row['model']} | {' | '.join(_mark(row, cell, reasons) for cell in CELLS)} |"
        for row in sorted(rows, key=lambda row: str(row["model"]))
    ]
    machine = rows[0]["machine"]
    commits = ", ".join(sorted({row["machine"]["commit"] for row in rows}))
    versions = ", ".join(f"{n} {machine['versions'][n]}" for n in ("jax", "jaxlib", "numpy"))
    ran = ", ".join(f"{cell} {_count(rows, cell)}" for cell in CELLS)
    wrong = sum(str(row.get(cell)).startswith("WRONG") for row in rows for cell in CELLS)
    return (
        f"{HEAD}Of {len(rows)} models, these numbers work: {ran}. Wrong: {wrong}. "
        f"Measured on {machine['cpu']}, {machine['cores']} cores, with {versions}, at "
        f"{commits}.\n\n"
        f"| model | {' | '.join(CELLS)} |\n|---|{'---|' * len(CELLS)}\n"
        + "".join(f"{line}\n" for line in lines)
        + "\n## Reasons\n\n"
        + "".join(f"{number}. {reason}\n" for reason, number in reasons.items())
        + TAIL
    )


def _count(rows: Sequence[Mapping[str, Any]], cell: str) -> int:
    return sum(not str(row.get(cell, "no")).startswith(("no", "WRONG")) for row in rows)


def _mark(row: Mapping[str, Any], cell: str, reasons: dict[str, int]) -> str:
    told = str(row.get(cell, "no: it was not run"))
    if told.startswith(("no:", "WRONG:")):
        reason = re.sub(r"\S*/(?=[\w.-]+\.(tflite|bin|lite))", "", told.partition(": ")[2])
        number = reasons.setdefault(reason.replace("<", "&lt;").replace("|", "/"), len(reasons) + 1)
        return f"**wrong** ({number})" if told.startswith("WRONG") else f"no ({number})"
    if cell == "grad":
        return _slopes(told)
    if cell in ("cuda", "tpu"):
        return _held(told)
    return told.partition(":")[0].replace("ok", "yes")


def _slopes(told: str) -> str:
    """`3 of 4 leaves not zero; slope 1.000` -> `3/4, 1.000`."""
    return re.sub(r"(\d+) of (\d+) leaves not zero(?:; slope )?(.*)", r"\1/\2 \3", told).strip()


def _held(told: str) -> str:
    """`ok: 28 convolution, 3 slice` -> `28, 3 slices`."""
    counts = {name: int(n) for n, name in re.findall(r"(\d+) (\w+)", told)}
    products = counts.get("convolution", 0) + counts.get("dot_general", 0)
    slices = counts.get("slice", 0)
    return f"{products or '-'}{f', {slices} slices' if slices else ''}"


if __name__ == "__main__":
    results = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    (Path(__file__).parent / "jax_models.md").write_text(page(results))
