"""Write docs/quantized_models.md: quantized models in both modes, compared with LiteRT.

    python docs/generate_quantized.py FOLDER [--inputs=200] [--seconds=60]

FOLDER holds .tflite files and manifest.json: a list of {"file", "kind", "litert_runs"}. Each model
runs on up to `--inputs` inputs, fewer where they take longer than `--seconds`; the page says how
many.
"""

import argparse
import dataclasses
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from ai_edge_litert.interpreter import OpResolverType
from tqdm import tqdm

import jaxdelegate as jd

NOT_QUANTIZED = ("float", "fp16w", "integer", "string", "other")
LEAST_INPUTS = 5
MODES = ("float_view", "integer", "XNNPACK")
Arrays = list[np.ndarray]

HEAD = """# Quantized models

For anyone who wants to know how accurate JaxDelegate is on real quantized models, and how it compares with XNNPACK. To check your
own model, run `jaxdelegate inference_diff --graph=model.tflite --reference=litert_ref --jax_quant_mode=integer`.

| column | configuration |
|---|---|
| float_view | `JaxDelegate(quant_mode="float_view")`, the default: fake-quantized floats, as in TFLite's GPU delegate |
| integer | `JaxDelegate(quant_mode="integer")`: the arithmetic of the integer kernels |
| XNNPACK | the stock interpreter with its default delegate |

All outputs are compared with LiteRT's reference kernels (BUILTIN_REF or, for operators without one, its optimized kernels) and with
XNNPACK, on the same seeded inputs (noise and smooth fields of several contrasts).

* Quantized outputs: the percentages of elements that are off by 0 / 1 / 2 / more steps of the output's scale (LSB).
* Float outputs: the largest difference relative to the largest element, for the worst input.

[quantization.md](quantization.md) explains the differences. The models are public;
`python docs/generate_quantized.py FOLDER` writes this page.

"""  # noqa: E501 (the rows of a table)


# ---- Inputs


def varied(details: Sequence[dict[str, Any]], seed: int) -> Arrays:
    """Arrays for `get_input_details()`: noise for even seeds, smooth fields for odd ones."""
    rng = np.random.default_rng(seed)
    return [_array(rng, detail, smooth=bool(seed % 2)) for detail in details]


def _array(rng: np.random.Generator, detail: dict[str, Any], *, smooth: bool) -> np.ndarray:
    shape, dtype = np.maximum(detail["shape"], 1), np.dtype(detail["dtype"])
    if dtype.kind not in "fiu" or (dtype.kind in "iu" and not _is_quantized(detail)):
        return rng.integers(0, 2, shape).astype(dtype)  # often indices, which must stay small
    field = _smooth(rng, shape) if smooth else rng.uniform(-1, 1, shape)
    field = np.clip(field * rng.choice([0.3, 1.0, 2.0]) + rng.uniform(-0.3, 0.3), -1, 1)
    if dtype.kind == "f":
        return field.astype(dtype)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.round(low + (field + 1) / 2 * (high - low)).astype(dtype)


def _is_quantized(detail: dict[str, Any]) -> bool:
    return len(detail["quantization_parameters"]["scales"]) > 0


def _smooth(rng: np.random.Generator, shape: np.ndarray) -> np.ndarray:
    """A sum of coarse random grids, spread over all axes but the first and the last."""
    total = np.zeros(shape)
    for cells, weight in ((3, 0.6), (9, 0.3), (33, 0.1)):
        coarse = rng.uniform(-1, 1, [*shape[:1], *np.minimum(shape[1:-1], cells), *shape[1:][-1:]])
        for axis in range(1, len(shape) - 1):
            at = np.linspace(0, coarse.shape[axis] - 1e-6, shape[axis]).astype(int)
            coarse = np.take(coarse, at, axis)
        total += weight * coarse
    return total


# ---- Runs


class Run:
    """An interpreter that runs one input after another."""

    def __init__(self, interpreter: Any) -> None:
        """Allocate."""
        self._interpreter = interpreter
        interpreter.allocate_tensors()
        self.inputs = interpreter.get_input_details()

    def __call__(self, arrays: Arrays) -> Arrays:
        """Outputs from a fresh state."""
        self._interpreter.reset_all_variables()
        for detail, array in zip(self.inputs, arrays, strict=True):
            self._interpreter.set_tensor(detail["index"], array)
        self._interpreter.invoke()
        outputs = self._interpreter.get_output_details()
        return [np.array(self._interpreter.get_tensor(d["index"])) for d in outputs]


def stock(path: Path, *kinds: OpResolverType) -> Run:
    """LiteRT with the first of these resolvers that runs the model; nothing has run in it yet."""

    def run(kind: OpResolverType) -> Run:
        return Run(StockInterpreter(str(path), experimental_op_resolver_type=kind))

    for kind in kinds:
        try:
            tried = run(kind)
            tried(varied(tried.inputs, 0))
        except (RuntimeError, ValueError):
            continue
        return run(kind)
    raise RuntimeError(f"LiteRT does not run {path.name}")


def delegated(path: Path, mode: str) -> tuple[Run, jd.DelegationReport]:
    """Our interpreter with the delegate in one mode, and its report."""
    delegate = jd.JaxDelegate(quant_mode=mode)
    run = Run(jd.Interpreter(path, experimental_delegates=[delegate]))
    return run, delegate.report()


# ---- Comparisons


@dataclasses.dataclass
class Tally:
    """How one configuration's outputs differ from another one's, over all inputs."""

    steps: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(4, np.int64))
    worst: float | None = None  # of float outputs
    same_top: int = 0
    tops: int = 0

    def add(self, got: Arrays, want: Arrays) -> None:
        """Add the outputs for an input."""
        for g, w in zip(got, want, strict=True):
            if w.size and w.dtype.kind in "iu" and w.dtype.itemsize <= 2:
                off = np.minimum(np.abs(g.astype(np.int64) - w.astype(np.int64)), 3)
                self.steps += np.bincount(off.ravel(), minlength=4)
            elif w.size and w.dtype.kind in "fiub":
                self.worst = max(self.worst or 0.0, _error(g, w))
        if _is_classifier(want):
            self.tops += 1
            self.same_top += int(np.argmax(got[0]) == np.argmax(want[0]))

    def difference(self) -> str:
        """The cell of the table."""
        total = int(self.steps.sum())
        parts = [] if not total else [" / ".join(_percent(n, total) for n in self.steps)]
        if self.worst is not None:
            parts.append(f"{self.worst:.1e}" if self.worst else "0")
        return "; ".join(parts)

    def top(self) -> str:
        """For classifiers, the number of inputs with the same top-1."""
        return f"{self.same_top} of {self.tops}" if self.tops else ""

    def is_within_one_step(self) -> bool:
        """Whether no integer is off by more than 1, and no float by more than 1e-4."""
        return not self.steps[2:].any() and (self.worst or 0.0) <= 1e-4


def _error(got: np.ndarray, want: np.ndarray) -> float:
    got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want)
    scale = max(float(np.abs(want[finite]).max(initial=0)), 1e-2)
    return float(np.abs(np.where(finite, got - want, 0)).max() / scale)


def _percent(part: int, total: int) -> str:
    if part in (0, total):
        return "100" if part else "0"
    share = 100 * part / total
    return f"{share:.2g}" if share < 1 else f"{share:.1f}" if share < 99.95 else ">99.9"


def _is_classifier(outputs: Arrays) -> bool:
    """One output of scores: its last dimension is the only one."""
    return len(outputs) == 1 and outputs[0].shape[-1:] == (outputs[0].size,) != (1,)


# ---- The table


@dataclasses.dataclass
class Row:
    """One model."""

    name: str
    kind: str
    operators: int
    taken: tuple[int, int]  # operators, by quant_mode float_view and integer
    inputs: int
    to_reference: dict[str, Tally]
    to_xnnpack: dict[str, Tally]


def measured(path: Path, name: str, kind: str, limit: int, seconds: float) -> Row:
    """Run one model in every configuration until there are `limit` inputs, or the time is over."""
    reference = stock(
        path, OpResolverType.BUILTIN_REF, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    )
    float_view, report = delegated(path, "float_view")
    integer, integer_report = delegated(path, "integer")
    runs = dict(zip(MODES, (float_view, integer, stock(path, OpResolverType.AUTO)), strict=True))
    row = Row(
        name,
        kind,
        len(report.nodes),
        (len(report.delegated), len(integer_report.delegated)),
        0,
        {mode: Tally() for mode in MODES},
        {mode: Tally() for mode in MODES[:2]},
    )
    for arrays in tqdm(_inputs(reference, limit, seconds), name, limit, leave=False, disable=None):
        got, want = {mode: run(arrays) for mode, run in runs.items()}, reference(arrays)
        for mode, tally in row.to_reference.items():
            tally.add(got[mode], want)
        for mode, tally in row.to_xnnpack.items():
            tally.add(got[mode], got["XNNPACK"])
        row.inputs += 1
    return row


def _inputs(run: Run, limit: int, seconds: float) -> Iterator[Arrays]:
    start = time.monotonic()
    for seed in range(limit):
        if seed >= LEAST_INPUTS and time.monotonic() - start > seconds:
            return
        yield varied(run.inputs, seed)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Markdown; the first column is text, the others are numbers."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines) + "\n"


def page(rows: Sequence[Row], failed: Sequence[tuple[str, str]]) -> str:
    """The whole file."""
    parts = [HEAD, "## Summary\n\n", *_summary(rows), "\n## Delegated operators\n\n"]
    parts.append(
        table(
            ["model", "kind", "operators", "float_view", "integer", "inputs"],
            [[r.name, r.kind, r.operators, *r.taken, r.inputs] for r in rows],
        )
    )
    for title, cells in _sections():
        kept = [(row.name, row.inputs, *cells(row)) for row in rows]
        names = MODES[: len(kept[0]) - 2]
        parts.append(f"## {title}\n\n")
        parts.append(table(["model", "inputs", *names], [k for k in kept if any(k[2:])]))
    if failed:
        parts += ["## Not run\n\n", *(f"* {name}: {why}\n" for name, why in failed)]
    return "".join(parts).rstrip() + "\n"


def _sections() -> list[tuple[str, Callable[[Row], list[str]]]]:
    return [
        (
            "Differences from LiteRT's reference kernels",
            lambda row: [tally.difference() for tally in row.to_reference.values()],
        ),
        (
            "Differences from XNNPACK",
            lambda row: [tally.difference() for tally in row.to_xnnpack.values()],
        ),
        (
            "The same top-1 as LiteRT's reference kernels",
            lambda row: [tally.top() for tally in row.to_reference.values()],
        ),
    ]


def _summary(rows: Sequence[Row]) -> Iterator[str]:
    for mode in MODES:
        tallies = [row.to_reference[mode] for row in rows]
        close = sum(tally.is_within_one_step() for tally in tallies)
        tops, same = sum(t.tops for t in tallies), sum(t.same_top for t in tallies)
        yield (
            f"* {mode}: {close} of {len(rows)} models are within 1 LSB (floats: 1e-4) of the "
            f"reference kernels for every input; the same top-1 for {same} of {tops} inputs of "
            "classifiers.\n"
        )


def main() -> None:
    """Measure every model, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--inputs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    logging.getLogger("jaxdelegate").setLevel(logging.ERROR)
    manifest = json.loads((given.folder / "manifest.json").read_text())
    entries = [m for m in manifest if m["litert_runs"] and m["kind"] not in NOT_QUANTIZED]
    entries.sort(key=lambda m: (given.folder / m["file"]).stat().st_size)
    rows, failed = [], []
    for entry in tqdm(entries, disable=None):
        name = entry["file"]
        try:
            path = given.folder / name
            rows.append(measured(path, name, entry["kind"], given.inputs, given.seconds))
        except (jd.JaxDelegateError, RuntimeError, ValueError) as problem:
            failed.append((name, str(problem).splitlines()[0][:120]))
    text = page(sorted(rows, key=lambda row: row.name), sorted(failed))
    (Path(__file__).parent / "quantized_models.md").write_text(text)


if __name__ == "__main__":
    main()
