"""Reads the tools' JSON files."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Result:
    """One result of a tool."""

    path: Path
    record: dict[str, Any]

    @property
    def model(self) -> str:
        return Path(str(self.record.get("model", self.path))).stem

    @property
    def name(self) -> str:
        """The benchmark's name, or else its model, where it ran, and its options."""
        options = [f"--{name}={v}" for name, v in (self.record.get("flags") or {}).items()]
        parts = [self.model, self.record.get("platform"), *options]
        return str(self.record.get("name") or " ".join(filter(None, parts)))

    @property
    def device(self) -> str:
        """Where it ran, or what was compared."""
        if self.record.get("tool") == "inference_diff":
            return "{test} against {reference}. {delegation}".format_map(self.record)
        if self.record.get("device"):
            return f"on {self.record['device']}"
        return "in the stock interpreter" if self.record.get("interpreter") == "litert" else ""

    def with_peaks(self, peaks: dict[str, float], source: str) -> "Result":
        sources = {"flops_source": source, "bytes_source": source}
        return dataclasses.replace(self, record={**self.record, "peaks": {**peaks, **sources}})


def read(path: Path) -> Iterator[Result]:
    """The results in a file: one, a list, or one in each line.

    A file of `benchmark_performance_options` has those of the configurations that ran.

    Raises:
        ValueError: it has something else.
    """
    for record in _parsed(path.read_text("utf-8")):
        if not isinstance(record, dict):
            raise ValueError("expected JSON objects")
        if "configuration" not in record:
            yield Result(path, record)
        elif record["result"] is not None:
            yield Result(path, {**record["result"], "name": record["configuration"]["name"]})


def _parsed(text: str) -> Sequence[Any]:
    try:
        content = json.loads(text)
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2:
            raise
        return [json.loads(line) for line in lines]
    return content if isinstance(content, list) else [content]


def kind_of(results: Iterable[Result]) -> str:
    """The first kind of figure that the results have data for.

    Raises:
        ValueError: they have data for no kind.
    """
    records = [result.record for result in results]
    if any("layers" in record for record in records):
        return "layers"
    if any("inference_ms" in record for record in records):
        return "batch" if len({record.get("batch") for record in records}) > 1 else "latency"
    if any("operators" in record for record in records):
        return "roofline"
    raise ValueError("expected a result of inference_diff or benchmark_model (--result_json)")


def series(results: Sequence[Result]) -> list[str]:
    """What tells results apart: their names, or files with numbers if names are equal."""
    if len(results) == 1:
        return [""]
    names = [result.name for result in results]
    return [
        name if names.count(name) == 1 else f"{result.path.stem} ({i})"
        for i, (name, result) in enumerate(zip(names, results, strict=True), start=1)
    ]
