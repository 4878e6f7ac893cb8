"""Write the tables of docs/fine_tuning.md from bench/results/fine_tuning.jsonl and _coverage.jsonl.

python docs/generate_fine_tuning.py
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "fine_tuning.md"
END = "<!-- end of table -->"
OURS, THEIRS, PEER = "jaxdelegate", "litert_tunner", "litert_tunner_weights"
# The page's names of networks and of what files hold, in its order.
NETWORKS = {"model_ToyCar_quant_fullint.tflite": "ToyCar", "hello_world_int8.tflite": "hello_world"}
KINDS = {
    "float32": "float32",
    "float16": "float16 weights",
    "dynamic range": "dynamic range",
    "int8 activations": "int8 activations",
    "uint8 activations": "uint8 activations",
    "int16 activations": "int16 activations",
}
SIDES = {
    OURS: "jaxdelegate, weights and biases",
    "jaxdelegate_learned": "jaxdelegate, scales too",
    THEIRS: "litert-tunner, biases and scales of weights (its default)",
    PEER: "litert-tunner, weights too",
}

Record = Mapping[str, Any]


def coverage(records: Sequence[Record]) -> str:
    """How many files of each kind both sides trained, by the latest line."""
    latest = records[-1]
    trained = latest["trained"]
    total = sum(kind["files"] for kind in trained.values())
    said = (
        f"Measured with {latest['files']} files, of which LiteRT runs {total} that have parameters "
        "to train. The table counts files\nthat were read, trained for one step and saved, and for "
        "which LiteRT's results equal those of the trained model\n"
        "(`bench/fine_tuning_coverage.py`).\n"
    )
    rows = [
        (name, trained[kind]["files"], trained[kind][OURS], trained[kind][THEIRS])
        for kind, name in KINDS.items()
    ]
    head = "| | files | jaxdelegate | litert-tunner |\n|---|---:|---:|---:|"
    return "\n".join([said, head, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def training(records: Iterable[Record]) -> str:
    """Losses, agreement and times of the two networks, by the latest line of each."""
    latest = {r["model"]: r for r in records}
    runs = [latest[model] for model in NETWORKS]
    rows = [
        ("loss before", [_loss(r["sides"][PEER]["loss"][0]) for r in runs]),
        *((f"after: {name}", [_after(r, side) for r in runs]) for side, name in SIDES.items()),
        (
            "largest difference between LiteRT's reference kernels on the saved file and the "
            "trained model, over all rows above",
            [_apart(max(s["apart"]["largest"] for s in r["sides"].values())) for r in runs],
        ),
        (
            'the same for `quant_mode="integer"`',
            [_apart(r["sides"][OURS]["integer_apart"]) for r in runs],
        ),
        (
            "bytes that change in a file saved without training: jaxdelegate, litert-tunner",
            [f"{r['sides'][OURS]['unchanged']}, {r['sides'][PEER]['unchanged']}" for r in runs],
        ),
        (
            "time of a step relative to litert-tunner's with weights: weights and biases",
            [_ratio(r["ratio"][OURS]) for r in runs],
        ),
        ("the same, scales too", [_ratio(r["ratio"]["jaxdelegate_learned"]) for r in runs]),
    ]
    head = f"| | {' | '.join(NETWORKS.values())} |\n|---|---|---|"
    return "\n".join([head, *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows)])


def _after(run: Record, side: str) -> str:
    losses = {name: run["sides"][name]["loss"][1] for name in SIDES}
    text = _loss(losses[side])
    return f"**{text}**" if losses[side] == min(losses.values()) else text


def _loss(value: float) -> str:
    return f"{value:#.3g}"


def _apart(value: float) -> str:
    return "equal" if value == 0 else f"{value:.2g}"


def _ratio(times: Record) -> str:
    return f"{times['median']:.2f} ({times['p10']:.2f} to {times['p90']:.2f})"


def replaced(page: str, bench: str, text: str) -> str:
    """The page with another table of a bench."""
    begin = f"<!-- table: {bench} -->"
    head, _, rest = page.partition(begin)
    return f"{head}{begin}\n\n{text}\n\n{END}{rest.partition(END)[2]}"


def written(page: str) -> str:
    """The page with the tables of the stored results."""
    for bench, table in (("fine_tuning_coverage", coverage), ("fine_tuning", training)):
        results = ROOT / "bench" / "results" / f"{bench}.jsonl"
        records = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
        page = replaced(page, bench, table(records))
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
