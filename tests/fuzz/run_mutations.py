"""Run damaged models: each runs or is refused, in bounded time and memory, or is a finding.

    python -m tests.fuzz.run_mutations --models=FOLDER --count=50000
    python -m tests.fuzz.run_mutations --models=FOLDER --count=2000 --host=litert
    python -m tests.fuzz.run_mutations --models=FOLDER --replay=1234

Model number n is one of FOLDER's; its choice and damage depend only on n and --seed, so that
--replay can repeat it. Each shard appends a line with its counts to --results, each finding a line
with its number and damage; shards that have a line are skipped, so that an interrupted run can be
continued. Files of findings are stored in --findings.
"""

import argparse
import collections
import dataclasses
import json
import random
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fuzz.mutations import mutated
from tests.fuzz.workers import BEFORE, DIED, MEMORY_BYTES, STOPPED, TIME, Outcome, Worker

_OFTEN = 300_000  # bytes; larger files are damaged less often, in proportion


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Models to damage."""

    names: Sequence[str]
    contents: Sequence[bytes]
    seed: int

    @classmethod
    def of_folder(
        cls, folder: Path, seed: int, largest: int | None = None, only: str = ""
    ) -> "Corpus":
        """Its .tflite files, in the order of their names; `only`: a pattern in the name."""
        paths = sorted(p for p in folder.rglob("*.tflite") if re.search(only, p.stem))
        paths = [p for p in paths if largest is None or p.stat().st_size <= largest]
        return cls(
            [p.relative_to(folder).as_posix() for p in paths], [p.read_bytes() for p in paths], seed
        )

    def content(self, name: str) -> bytes:
        """The undamaged model."""
        return self.contents[self.names.index(name)]

    def damaged(self, number: int) -> tuple[str, bytes, str]:
        """The model with this number: its name, its content, and its damage."""
        rng = random.Random(f"{self.seed}:{number}")
        weights = [min(1.0, _OFTEN / max(len(c), 1)) for c in self.contents]
        at, other = rng.choices(range(len(self.names)), weights, k=2)
        content, damage = mutated(self.contents[at], rng.randrange(2**32), self.contents[other])
        return self.names[at], content, damage


@dataclasses.dataclass
class Tally:
    """The result of many models: counts for each side, and the most memory that one took."""

    counts: dict[str, collections.Counter[str]] = dataclasses.field(default_factory=dict)
    peak: int = 0

    def add(self, side: str, outcome: Outcome) -> None:
        """Count it."""
        self.counts.setdefault(side, collections.Counter())[outcome.label] += 1
        self.peak = max(self.peak, outcome.peak)


def run(
    corpus: Corpus,
    numbers: Sequence[int],
    workers: Mapping[str, Worker],
    delegate_every: int,
    tally: Tally,
) -> Iterator[dict[str, Any]]:
    """Run models; yield the findings with the contents of their files."""
    for number in numbers:
        name, content, damage = corpus.damaged(number)
        for side, worker in workers.items():
            if side == "delegate" and number % delegate_every:
                continue
            outcome = worker.run(content, number)
            if outcome.kind in (TIME, DIED):
                outcome = _named(outcome, worker, content, corpus.content(name), number)
            tally.add(side, outcome)
            if outcome.is_finding:
                yield {
                    "finding": number, "side": side, "model": name, "damage": damage[:300],
                    "outcome": outcome, "content": content,
                }  # fmt: skip


def _named(outcome: Outcome, worker: Worker, content: bytes, before: bytes, seed: int) -> Outcome:
    """TIME or DIED, or an excuse: the undamaged file does the same, or a timeout stops it."""
    whole = worker.run(before, seed)
    if whole.kind == outcome.kind:
        return dataclasses.replace(whole, kind=BEFORE, name=whole.kind)
    if outcome.kind == TIME:
        again = worker.run(content, seed, timeout=True)
        if again.kind == STOPPED:
            return again
    return outcome


def _keep(finding: dict[str, Any], folder: Path, seed: int) -> dict[str, Any]:
    """Append the line of a finding; write its file and its full report to the folder."""
    outcome, content = finding.pop("outcome"), finding.pop("content")
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{seed}-{finding['finding']:06d}-{finding['side']}"
    stem.with_suffix(".tflite").write_bytes(content)
    story = [finding["model"], finding["damage"], outcome.kind, outcome.name, outcome.text]
    stem.with_suffix(".txt").write_text("\n".join([*story, outcome.stack]), "utf-8")
    where = outcome.text or " | ".join(outcome.stack.split("\n")[:4])
    where = re.sub(r"/[\w./-]*/", "", where)[:300]
    return {**finding, "outcome": outcome.kind, "name": outcome.name, "text": where}


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    folder = Path(__file__).parent
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return answer.stdout.strip()


def _shards(options: argparse.Namespace, host: str) -> Iterator[range]:
    """The shards that have no line in the results yet."""
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    rows = [json.loads(line) for line in lines]
    key = ("host", "seed", "first", "count")
    done = {tuple(row[k] for k in key) for row in rows if "counts" in row}
    for first in range(0, options.count, options.shard_size):
        count = min(options.shard_size, options.count - first)
        if (host, options.seed, first, count) not in done:
            yield range(first, first + count)


def _run_shards(options: argparse.Namespace, corpus: Corpus, workers: dict[str, Worker]) -> None:
    options.results.parent.mkdir(parents=True, exist_ok=True)
    for shard in _shards(options, options.host):
        tally, start, found = Tally(), time.monotonic(), []
        for finding in run(corpus, shard, workers, options.delegate_every, tally):
            row = {"host": options.host, "seed": options.seed, "commit": _commit()}
            found.append({**row, **_keep(finding, options.findings, options.seed)})
            print(json.dumps(found[-1]), flush=True)
        line = {
            "host": options.host, "seed": options.seed, "first": shard.start, "count": len(shard),
            "counts": tally.counts, "peak_mib": tally.peak >> 20,
            "seconds": round(time.monotonic() - start), "commit": _commit(),
        }  # fmt: skip
        if options.host == "litert":  # LiteRT's crashes are counted, but are not findings
            found = []
        with options.results.open("a") as results:
            results.writelines(json.dumps(row) + "\n" for row in (line, *found))
        print(json.dumps(line), flush=True)


def _replay(options: argparse.Namespace, corpus: Corpus, workers: dict[str, Worker]) -> None:
    name, content, damage = corpus.damaged(options.replay)
    print(f"{name}: {damage}")
    for side, worker in workers.items():
        outcome = worker.run(content, options.replay)
        if outcome.kind in (TIME, DIED):
            outcome = _named(outcome, worker, content, corpus.content(name), options.replay)
        print(f"--- {side}: {outcome.label}, {outcome.peak >> 20} MiB\n{outcome.text}")
        print(outcome.stack)
    options.findings.mkdir(parents=True, exist_ok=True)
    path = options.findings / f"{options.seed}-{options.replay:06d}.tflite"
    path.write_bytes(content)
    print(path)


def main() -> None:
    """Run shards, or replay one model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--largest", type=int, help="leave out larger files, bytes")
    parser.add_argument("--only", default="", help="leave out models without this pattern")
    parser.add_argument("--memory", type=int, default=MEMORY_BYTES, help="bytes; 0: no limit")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard_size", type=int, default=500)
    parser.add_argument("--delegate_every", type=int, default=5, help="0: never")
    parser.add_argument("--host", choices=("jaxdelegate", "litert"), default="jaxdelegate")
    parser.add_argument("--kernels", type=Path, help="native kernels to run: make fuzz-sanitized")
    parser.add_argument("--results", type=Path, default=Path("bench/results/mutations.jsonl"))
    parser.add_argument("--findings", type=Path, default=Path("build/findings"))
    parser.add_argument("--replay", type=int, metavar="NUMBER")
    options = parser.parse_args()
    corpus = Corpus.of_folder(options.models, options.seed, options.largest, options.only)
    sides = ["litert"] if options.host == "litert" else ["reference"]
    if options.delegate_every and options.host != "litert":
        sides.append("delegate")
    workers = {side: Worker(side, options.kernels, options.memory) for side in sides}
    try:
        (_run_shards if options.replay is None else _replay)(options, corpus, workers)
    finally:
        for worker in workers.values():
            worker.close()


if __name__ == "__main__":
    main()
