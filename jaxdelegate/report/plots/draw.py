"""Plots from the tools' JSON files."""

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxdelegate.errors import OptionError
from jaxdelegate.report.plots.batch import BatchPoint, batch_scaling
from jaxdelegate.report.plots.latency import LatencyRuns, latency_distribution
from jaxdelegate.report.plots.layers import LayerPoint, error_per_layer
from jaxdelegate.report.plots.records import Record, Records, read_records, series_name, title
from jaxdelegate.report.plots.roofline import MeasuredOperator, Peaks, roofline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_INDICES = 3  # of fused operators, in a label


def draw(
    kind: str, paths: Sequence[str | os.PathLike[str]], peaks: Peaks | None = None
) -> "Figure":
    """The figure of one kind from one or more JSON files.

    Args:
        kind: a key of KINDS.
        paths: results of `jaxdelegate benchmark_model` (latency, batch; with operator profile:
            roofline), of `benchmark_performance_options` (latency), of `inference_diff
            --per_layer` (layers). A file may also hold a list of results, or one in each line. A
            roofline needs only `{"operators": [{"name", "flops", "bytes", "seconds"}], "peaks":
            {"flops_per_second", "bytes_per_second"}}`.
        peaks: of the device, instead of those in the file.

    Raises:
        OptionError: an unknown kind, a file that is no such result, or no matplotlib.
        OSError: a file cannot be read.
    """
    if kind not in KINDS:
        raise OptionError(f"plot: want one of {', '.join(KINDS)}, got {kind!r}")
    records = [(str(path), record) for path in paths for record in read_records(path)]
    if not records:
        raise OptionError("plot: want at least one result, got none")
    try:
        return KINDS[kind](records, peaks)
    except OptionError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        where = ", ".join(dict.fromkeys(path for path, _ in records))
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise OptionError(f"{where}: not a result for a {kind} plot: {why}") from error


def _latency(records: Records, _peaks: Peaks | None) -> "Figure":
    runs = [_latency_runs(path, record) for path, record in records]
    return latency_distribution(runs, title=title(records))


def _latency_runs(path: str, record: Record) -> LatencyRuns:
    stat = record["inference_ms"]
    values = tuple(float(ms) for ms in stat.get("values", ()))
    percentiles = {0.0: float(stat["min"]), 100.0: float(stat["max"]), 50.0: float(stat["median"])}
    percentiles |= {
        float(key[1:]): float(ms) for key, ms in stat.items() if key[0] == "p" and key[1:].isdigit()
    }
    batch = record.get("batch", 1)
    name = series_name(path, record) + (f", batch {batch}" if batch != 1 else "")
    return LatencyRuns(name, values, {} if values else percentiles)


def _batch(records: Records, _peaks: Peaks | None) -> "Figure":
    points = [
        BatchPoint(
            series_name(path, record), int(record["batch"]), float(record["inference_ms"]["avg"])
        )
        for path, record in records
    ]
    return batch_scaling(points, title=title(records))


def _roofline(records: Records, peaks: Peaks | None) -> "Figure":
    operators = [
        MeasuredOperator(
            _operator_name(row),
            float(row["flops"] or 0),
            float(row["bytes"]),
            float(row["seconds"]),
            series,
        )
        for series, record in _distinguished(records)
        for row in record["operators"]
    ]
    return roofline(operators, peaks or _peaks_of(records), title=title(records))


def _operator_name(row: Record) -> str:
    """Types and indices; of many fused operators the first and the last index."""
    name, nodes = str(row["name"]), list(row.get("nodes") or [])
    if len(nodes) <= _MOST_INDICES:
        return name
    kinds = name.rpartition(" ")[0]
    return f"{kinds} {nodes[0]}…{nodes[-1]} ({len(nodes)} fused)"


def _peaks_of(records: Records) -> Peaks:
    for path, record in records:
        if "peaks" in record:
            found, given = record["peaks"], f"given in {Path(path).name}"
            return Peaks(
                float(found["flops_per_second"]),
                float(found["bytes_per_second"]),
                str(found.get("flops_source", given)),
                str(found.get("bytes_source", given)),
                {float(size): float(rate) for size, rate in found.get("cached", {}).items()},
            )
    raise OptionError(
        "roofline: want the device's peaks: from `benchmark_model --measure_peaks`, or as "
        "--peak_flops and --peak_bandwidth"
    )


def _layers(records: Records, _peaks: Peaks | None) -> "Figure":
    points = [
        _layer_point(row, series)
        for series, record in _distinguished(records)
        for row in record["layers"]["layers"]
    ]
    return error_per_layer(points, title=title(records))


def _layer_point(row: Record, series: str) -> LayerPoint:
    local, whole = row["local"], row["tensor"]
    return LayerPoint(
        f"#{row['node']} {row['operator']}",
        _finite(whole["relative_to_largest"]),
        None if local is None else _finite(local["relative_to_largest"]),
        (whole if local is None else local)["agrees"],
        str(whole.get("name") or ""),
        series,
    )


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _distinguished(records: Records) -> list[tuple[str, Record]]:
    """Each of several results with its model or file, or its place where these are equal."""
    names = [series_name(path, record) for path, record in records]
    files = [Path(path).stem for path, _ in records]
    found = []
    for i, (_, record) in enumerate(records):
        choices = ((names[i], names), (files[i], files))
        unequal = [text for text, texts in choices if texts.count(text) == 1]
        found.append((unequal[0] if unequal else f"{files[i]} ({i + 1})", record))
    return found if len(found) > 1 else [("", record) for _, record in found]


KINDS: dict[str, Callable[[Records, Peaks | None], "Figure"]] = {
    "latency": _latency,
    "batch": _batch,
    "roofline": _roofline,
    "layers": _layers,
}
