"""Random graphs through every engine: LiteRT, the numpy reference and the delegate.

    python tests/fuzz/run_differential.py --count=5000 --seed=0 --results=differential.jsonl
    python tests/fuzz/run_differential.py --seed=1234 --count=1 --shard=1   # one graph, printed

Every shard of seeds becomes one line of the results; shards that have a line are skipped, so a run
can be continued. A disagreement is recorded with its seed, the operators of the smallest part that
still disagrees, the engine and the difference; `explained` names a function of
tests/support/known_differences.py. The exit status is 1 if a disagreement is open.
"""

import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import warnings
from importlib import metadata
from typing import Any

import numpy as np

from jaxdelegate.testing.case import COMPILER_OPTIONS
from jaxdelegate.xla import aot
from tests.support.differential import (
    EXACTLY,
    FAKE_QUANTIZED,
    Arrays,
    Disagreement,
    delegated,
    disagreements,
    mismatch,
    reference,
)
from tests.support.known_differences import explanation
from tests.support.random_graphs import RandomGraph, random_graph
from tests.support.stock_worker import CrashedError, RefusedError, StockWorker

_OPTIMIZED = 10  # one graph in this many is compiled as models are
_CACHED = 4  # one graph in this many also runs from a stored program
_NATIVE = {
    "CONV_2D",
    "DEPTHWISE_CONV_2D",
    "TRANSPOSE_CONV",
    "FULLY_CONNECTED",
    "BATCH_MATMUL",
    "MEAN",
}

RAISED = "raised"
_compiler_options = aot.compiler_options


def compile_for(seed: int) -> None:
    """Compile with few optimizations, as operator cases do: compilation is most of the time."""
    fast = {} if seed % _OPTIMIZED == 0 else COMPILER_OPTIONS
    aot.compiler_options = lambda *args, **kwargs: {**_compiler_options(*args, **kwargs), **fast}  # type: ignore[assignment]


class Examination:
    """What happened to one graph."""

    def __init__(self, graph: RandomGraph, stock: StockWorker, *, delegates: bool = True) -> None:
        self.graph, self.stock, self.delegates = graph, stock, delegates
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.found: list[Disagreement] = []

    def run(self) -> None:
        g = self.graph
        self._against_litert()
        try:
            want = reference(g.content, g.inputs)
        except RefusedError:
            self.outcomes["refused by the reference"] += 1
            return
        if not self.delegates:
            return
        self._judge("integer", {"quant_mode": "integer"})
        if any(t.quantization is not None for t in g.graph.tensors):
            self._judge("float_view", {"quant_mode": "float_view"})
        if not _NATIVE.isdisjoint(g.graph.operators):
            self._judge(
                "without native kernels", {"quant_mode": "integer", "native_kernels": False}
            )
        if g.seed % _CACHED == 0:
            self._from_the_cache(want)

    def _against_litert(self) -> None:
        g = self.graph
        try:
            want = self.stock.run(g.content, g.inputs)
            found = disagreements("reference", g.graph, reference, self.stock.run)
        except RefusedError:
            self.outcomes["refused by LiteRT"] += 1
            return
        except CrashedError:
            self.outcomes["LiteRT ended the process"] += 1
            return
        self.outcomes["compared with LiteRT"] += 1
        self.found += found
        try:
            got = self.stock.run(g.content, g.inputs, "AUTO")
        except (RefusedError, CrashedError):
            self.outcomes["XNNPACK refused"] += 1
        else:
            apart = mismatch(g.graph, got, want, FAKE_QUANTIZED) is not None
            self.outcomes["XNNPACK differs from LiteRT's reference"] += apart

    def _judge(self, name: str, options: dict[str, Any]) -> None:
        rule = FAKE_QUANTIZED if name == "float_view" else EXACTLY
        self.outcomes[f"compared: {name}"] += 1
        self.found += disagreements(name, self.graph.graph, delegated(**options), reference, rule)

    def _from_the_cache(self, want: Arrays) -> None:
        """Whether the stored program gives the same bits."""
        g = self.graph
        with tempfile.TemporaryDirectory() as folder:
            engine = delegated(quant_mode="integer", serialization_dir=folder, model_token="random")
            try:
                cold, warm = (engine(g.content, g.inputs) for _ in range(2))
            except RefusedError as error:
                difference: str | None = f"refused: {error}"
            else:
                same = all(map(_same_bits, warm, cold)) and len(warm) == len(want)
                difference = None if same else "the cached program's bits differ"
        self.outcomes["compared: cold and warm cache"] += 1
        if difference is not None:
            found = Disagreement("cache", tuple(g.graph.operators), difference, g.graph)
            self.found.append(found)


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


def examine_shard(seeds: range, stock: StockWorker, *, delegates: bool = True) -> dict[str, Any]:
    """Examine a shard; return its line of the results."""
    outcomes: collections.Counter[str] = collections.Counter()
    operators: collections.Counter[str] = collections.Counter()
    found = []
    begun = time.perf_counter()
    for seed in seeds:
        graph = random_graph(seed)
        compile_for(seed)
        operators.update(set(graph.graph.operators))
        examined = Examination(graph, stock, delegates=delegates)
        try:
            examined.run()
            found += [
                _line(seed, f.engine, f.operators, f.difference[:300], explanation(f, stock))
                for f in examined.found
            ]
        except Exception as error:  # errors of engines are findings
            outcomes[RAISED] += 1
            found.append(_line(seed, "raises", graph.graph.operators, repr(error)[:400]))
        outcomes.update(examined.outcomes)
    return {
        "seeds": [seeds.start, seeds.stop],
        "commit": _commit(),
        "seconds": round(time.perf_counter() - begun, 1),
        "versions": {n: metadata.version(n) for n in ("ai-edge-litert", "jax", "numpy")},
        "outcomes": dict(sorted(outcomes.items())),
        "operators": dict(sorted(operators.items())),
        "disagreements": found,
    }


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    folder = pathlib.Path(__file__).parent
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return answer.stdout.strip()


def examined_again(row: dict[str, Any], stock: StockWorker) -> dict[str, Any]:
    """The line of a shard after running its graphs with open disagreements again."""
    is_open = {d["seed"] for d in row["disagreements"] if d["explained"] is None}
    kept = [d for d in row["disagreements"] if d["seed"] not in is_open]
    outcomes = {name: n for name, n in row["outcomes"].items() if name != RAISED}
    for seed in sorted(is_open):
        again = examine_shard(range(seed, seed + 1), stock)
        kept += again["disagreements"]
        if RAISED in again["outcomes"]:
            outcomes[RAISED] = outcomes.get(RAISED, 0) + 1
    return {**row, "again": _commit(), "outcomes": outcomes, "disagreements": kept}


def _line(seed: int, engine: str, operators: Any, difference: str, why: str | None = None) -> Any:
    return {
        "seed": seed,
        "engine": engine,
        "operators": list(operators),
        "difference": difference,
        "explained": why,
    }


def lines(results: pathlib.Path) -> list[dict[str, Any]]:
    """The lines of earlier results."""
    return [json.loads(row) for row in results.read_text().splitlines()] if results.exists() else []


def summary(rows: list[dict[str, Any]]) -> str:
    """Counts over all shards."""
    outcomes: collections.Counter[str] = collections.Counter()
    operators: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    for row in rows:
        outcomes.update(row["outcomes"])
        operators.update(row["operators"])
        reasons.update(d["explained"] or "open" for d in row["disagreements"])
    graphs = sum(row["seeds"][1] - row["seeds"][0] for row in rows)
    few = sorted(operators.items(), key=lambda item: item[1])[:3]
    said = [f"{graphs} graphs, {len(operators)} operators, the rarest {few}"]
    said += [f"{n:6} {what}" for what, n in (*outcomes.items(), *reasons.items())]
    return "\n".join(said)


def main() -> int:
    """Run the shards that have no line yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100, help="how many graphs")
    parser.add_argument("--seed", type=int, default=0, help="of the first graph")
    parser.add_argument("--shard", type=int, default=50, help="graphs for each line")
    parser.add_argument(
        "--no-delegates", action="store_true", help="compare only LiteRT and the reference"
    )
    parser.add_argument(
        "--results", type=pathlib.Path, help="a file of JSON lines; unset: print them"
    )
    parser.add_argument("--again", action="store_true", help="examine open disagreements again")
    parser.add_argument(
        "--seeds", type=int, nargs="*", help="examine only these graphs, and print them"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # graphs may contain NaN and overflow
    stock = StockWorker()
    if options.seeds:
        rows = [
            examine_shard(range(s, s + 1), stock, delegates=not options.no_delegates)
            for s in options.seeds
        ]
        print("\n".join(json.dumps(d) for row in rows for d in row["disagreements"]))
        print(summary(rows))
        return 0
    results: pathlib.Path | None = options.results
    rows = lines(results) if results else []
    if options.again and results is not None:
        rows = [examined_again(row, stock) for row in rows]
        results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = {tuple(row["seeds"]) for row in rows}
    for start in range(options.seed, options.seed + options.count, options.shard):
        seeds = range(start, min(start + options.shard, options.seed + options.count))
        if (seeds.start, seeds.stop) in done:
            continue
        rows.append(examine_shard(seeds, stock, delegates=not options.no_delegates))
        row = json.dumps(rows[-1])
        if results is None:
            print(row)
        else:
            with results.open("a") as file:
                file.write(row + "\n")
    stock.close()
    print(summary(rows))
    return any(d["explained"] is None for row in rows for d in row["disagreements"])


if __name__ == "__main__":
    sys.exit(main())
