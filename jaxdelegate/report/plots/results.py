"""Plots from the tools' JSON files."""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxdelegate.errors import OptionError
from jaxdelegate.report.plots.benchmarks import (
    BatchPoint,
    LatencyRuns,
    batch_scaling,
    latency_distribution,
)
from jaxdelegate.report.plots.layers import LayerPoint, error_per_layer
from jaxdelegate.report.plots.roofline import MeasuredOperator, Peaks, roofline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Record = Mapping[str, Any]

_MAX_NAMES = 3  # models or devices in a title
_MAX_INDICES = 3  # fused operators that a label names


def draw(
    kind: str, paths: Sequence[str | os.PathLike[str]], peaks: Peaks | None = None
) -> "Figure":
    """The figure of one kind, a key of KINDS, from the JSON files of tools.

    `benchmark_model` writes those for latency and batch, with an operator profile also for a
    roofline, `benchmark_performance_options` for latency, `inference_diff --per_layer` for layers.
    A roofline needs only `{"operators": [{"name", "flops", "bytes", "seconds"}], "peaks":
    {"flops_per_second", "bytes_per_second"}}`; `peaks` replace those in the file.
    """
    if kind not in KINDS:
        raise OptionError(f"plot: expected one of {', '.join(KINDS)}, got {kind!r}")
    results = [result for path in paths for result in _read(path)]
    if not results:
        raise OptionError("plot: expected at least one result, got none")
    try:
        return KINDS[kind](results, peaks)
    except OptionError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        where = ", ".join(dict.fromkeys(result.path for result in results))
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise OptionError(f"{where}: not a result for a {kind} plot: {why}") from error


def kind_of(paths: Sequence[str | os.PathLike[str]]) -> str:
    """The first kind that the results have figures for, a key of KINDS.

    Raises:
        OptionError: none.
    """
    records = [result.record for path in paths for result in _read(path)]
    if any("layers" in record for record in records):
        return "layers"
    if any("inference_ms" in record for record in records):
        return "batch" if len({record.get("batch") for record in records}) > 1 else "latency"
    if any("operators" in record for record in records):
        return "roofline"
    raise OptionError(
        f"{', '.join(map(str, paths))}: expected a result of inference_diff or benchmark_model "
        "(--result_json)"
    )


class _Result(NamedTuple):
    """One result of a tool."""

    path: str
    record: _Record

    @property
    def model(self) -> str:
        return Path(str(self.record.get("model", self.path))).stem

    @property
    def name(self) -> str:
        """The benchmark's name, or else its model, where it ran, and its options."""
        if self.record.get("name"):
            return str(self.record["name"])
        flags = dict(self.record.get("flags") or {})
        options = [f"--{name}={value}" for name, value in flags.items()]
        parts = [self.model, self.record.get("platform"), *options]
        return " ".join(str(part) for part in parts if part)

    @property
    def device(self) -> str:
        """Where it ran, or what was compared."""
        record = self.record
        if record.get("tool") == "inference_diff":
            return f"{record['test']} against {record['reference']}. {record['delegation']}"
        if record.get("device"):
            return f"on {record['device']}"
        return "in the stock interpreter" if record.get("interpreter") == "litert" else ""


def _read(path: str | os.PathLike[str]) -> Iterator[_Result]:
    """The results in a file: one, a list, or one in each line.

    Of `benchmark_performance_options`, the configurations that ran, by their names.
    """
    try:
        records = _parsed(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:  # UnicodeDecodeError is one, too
        raise OptionError(f"{path}: not a JSON file: {error}") from error
    if not all(isinstance(record, dict) for record in records):
        raise OptionError(f"{path}: expected a JSON object or a list of them")
    for record in records:
        if "configuration" not in record:
            yield _Result(str(path), record)
        elif isinstance(record.get("result"), dict):
            name = record["configuration"]["name"]
            yield _Result(str(path), {**record["result"], "name": name})


def _parsed(text: str) -> list[Any]:
    try:
        content = json.loads(text)
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2:
            raise
        return [json.loads(line) for line in lines]
    return content if isinstance(content, list) else [content]


def _title(results: Sequence[_Result]) -> str:
    models = _distinct(result.model for result in results)
    return f"{models}\n{_distinct(result.device for result in results)}".rstrip()


def _distinct(names: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(filter(None, names)))
    more = len(distinct) - _MAX_NAMES
    return ", ".join(distinct[:_MAX_NAMES]) + (f" and {more} others" if more > 0 else "")


def _series(results: Sequence[_Result]) -> list[str]:
    """What tells results apart: their names, or files, or numbers where these are equal."""
    if len(results) == 1:
        return [""]
    names, files = [result.name for result in results], [Path(path).stem for path, _ in results]
    numbered = [f"{file} ({i + 1})" for i, file in enumerate(files)]
    choices = zip(names, files, numbered, strict=True)
    return [
        name if names.count(name) == 1 else file if files.count(file) == 1 else number
        for name, file, number in choices
    ]


def _latency(results: Sequence[_Result], _peaks: Peaks | None) -> "Figure":
    runs = []
    for result in results:
        batch = result.record.get("batch", 1)
        name = result.name + (f", batch {batch}" if batch != 1 else "")
        values = result.record["inference_ms"]["values"]
        runs.append(LatencyRuns(name, tuple(map(float, values))))
    return latency_distribution(runs, title=_title(results))


def _batch(results: Sequence[_Result], _peaks: Peaks | None) -> "Figure":
    points = []
    for result in results:
        batch, average = result.record["batch"], result.record["inference_ms"]["avg"]
        points.append(BatchPoint(result.name, int(batch), float(average)))
    return batch_scaling(points, title=_title(results))


def _roofline(results: Sequence[_Result], peaks: Peaks | None) -> "Figure":
    operators = [
        MeasuredOperator(
            name=_operator_name(row),
            flops=float(row["flops"] or 0),
            bytes=float(row["bytes"]),
            seconds=float(row["seconds"]),
            series=series,
        )
        for series, result in zip(_series(results), results, strict=True)
        for row in result.record["operators"]
    ]
    return roofline(operators, peaks or _peaks_of(results), title=_title(results))


def _operator_name(row: _Record) -> str:
    """Types and indices; of many fused operators the first and the last index."""
    name, nodes = str(row["name"]), list(row.get("nodes") or [])
    if len(nodes) <= _MAX_INDICES:
        return name
    kinds = name.rpartition(" ")[0]
    return f"{kinds} {nodes[0]}…{nodes[-1]} ({len(nodes)} fused)"


def _peaks_of(results: Sequence[_Result]) -> Peaks:
    for path, record in results:
        if "peaks" in record:
            peaks, source = record["peaks"], f"given in {Path(path).name}"
            return Peaks(
                flops_per_second=float(peaks["flops_per_second"]),
                bytes_per_second=float(peaks["bytes_per_second"]),
                flops_source=str(peaks.get("flops_source", source)),
                bytes_source=str(peaks.get("bytes_source", source)),
                cached={float(size): float(n) for size, n in peaks.get("cached", {}).items()},
            )
    raise OptionError(
        "roofline: the device's peaks are not known: measure them with `benchmark_model "
        "--measure_peaks`, or give --peak_flops and --peak_bandwidth"
    )


def _layers(results: Sequence[_Result], _peaks: Peaks | None) -> "Figure":
    points = [
        point
        for series, result in zip(_series(results), results, strict=True)
        for point in _layer_points(result.record, series)
    ]
    return error_per_layer(points, title=_title(results))


def _layer_points(record: _Record, series: str) -> Iterator[LayerPoint]:
    """The layers, or the outputs of a comparison without layers."""
    if record["layers"] is None:
        for n, output in enumerate(record["outputs"]):
            yield _layer_point(f"#{n} output", output, None, series)
    else:
        for row in record["layers"]["layers"]:
            label = f"#{row['node']} {row['operator']}"
            yield _layer_point(label, row["tensor"], row["local"], series)


def _layer_point(label: str, whole: _Record, own: _Record | None, series: str) -> LayerPoint:
    return LayerPoint(
        label=label,
        whole=_finite(whole["relative_to_largest"]),
        own=None if own is None else _finite(own["relative_to_largest"]),
        agrees=(whole if own is None else own)["agrees"],
        tensor=str(whole.get("name") or ""),
        series=series,
    )


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


KINDS: dict[str, Callable[[Sequence[_Result], Peaks | None], "Figure"]] = {
    "latency": _latency,
    "batch": _batch,
    "roofline": _roofline,
    "layers": _layers,
}
