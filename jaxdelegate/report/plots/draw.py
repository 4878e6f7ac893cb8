"""Plots from the tools' JSON files."""

import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxdelegate.errors import OptionError
from jaxdelegate.report.plots.benchmarks import (
    BatchPoint,
    LatencyRuns,
    batch_scaling,
    latency_distribution,
)
from jaxdelegate.report.plots.layers import LayerPoint, error_per_layer
from jaxdelegate.report.plots.records import (
    Record,
    Records,
    distinguished,
    read_records,
    series_name,
    title,
)
from jaxdelegate.report.plots.roofline import MeasuredOperator, Peaks, roofline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_INDICES = 3  # of fused operators, in a label


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
    records = [(str(path), record) for path in paths for record in read_records(path)]
    if not records:
        raise OptionError("plot: expected at least one result, got none")
    try:
        return KINDS[kind](records, peaks)
    except OptionError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        where = ", ".join(dict.fromkeys(path for path, _ in records))
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise OptionError(f"{where}: not a result for a {kind} plot: {why}") from error


def kind_of(paths: Sequence[str | os.PathLike[str]]) -> str:
    """The first kind that the results have figures for, a key of KINDS.

    Raises:
        OptionError: none.
    """
    records = [record for path in paths for record in read_records(path)]
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


def _latency(records: Records, _peaks: Peaks | None) -> "Figure":
    runs = []
    for path, record in records:
        batch = record.get("batch", 1)
        name = series_name(path, record) + (f", batch {batch}" if batch != 1 else "")
        runs.append(LatencyRuns(name, tuple(map(float, record["inference_ms"]["values"]))))
    return latency_distribution(runs, title=title(records))


def _batch(records: Records, _peaks: Peaks | None) -> "Figure":
    points = [
        BatchPoint(
            series=series_name(path, record),
            batch=int(record["batch"]),
            latency_ms=float(record["inference_ms"]["avg"]),
        )
        for path, record in records
    ]
    return batch_scaling(points, title=title(records))


def _roofline(records: Records, peaks: Peaks | None) -> "Figure":
    operators = [
        MeasuredOperator(
            name=_operator_name(row),
            flops=float(row["flops"] or 0),
            bytes=float(row["bytes"]),
            seconds=float(row["seconds"]),
            series=series,
        )
        for series, record in distinguished(records)
        for row in record["operators"]
    ]
    return roofline(operators, peaks or _peaks_of(records), title=title(records))


def _operator_name(row: Record) -> str:
    """Types and indices; of many fused operators the first and the last index."""
    name, nodes = str(row["name"]), list(row.get("nodes") or [])
    if len(nodes) <= _MAX_INDICES:
        return name
    kinds = name.rpartition(" ")[0]
    return f"{kinds} {nodes[0]}…{nodes[-1]} ({len(nodes)} fused)"


def _peaks_of(records: Records) -> Peaks:
    for path, record in records:
        if "peaks" in record:
            found, given = record["peaks"], f"given in {Path(path).name}"
            return Peaks(
                flops_per_second=float(found["flops_per_second"]),
                bytes_per_second=float(found["bytes_per_second"]),
                flops_source=str(found.get("flops_source", given)),
                bytes_source=str(found.get("bytes_source", given)),
                cached={float(size): float(n) for size, n in found.get("cached", {}).items()},
            )
    raise OptionError(
        "roofline: the device's peaks are not known: measure them with `benchmark_model "
        "--measure_peaks`, or give --peak_flops and --peak_bandwidth"
    )


def _layers(records: Records, _peaks: Peaks | None) -> "Figure":
    points = [
        _layer_point(row, series)
        for series, record in distinguished(records)
        for row in _rows(record)
    ]
    return error_per_layer(points, title=title(records))


def _rows(record: Record) -> Iterable[Record]:
    """The layers, or the outputs of a comparison without layers."""
    if record["layers"] is not None:
        return list(record["layers"]["layers"])
    return [
        {"node": n, "operator": "output", "tensor": output, "local": None}
        for n, output in enumerate(record["outputs"])
    ]


def _layer_point(row: Record, series: str) -> LayerPoint:
    own, whole = row["local"], row["tensor"]
    return LayerPoint(
        label=f"#{row['node']} {row['operator']}",
        whole=_finite(whole["relative_to_largest"]),
        own=None if own is None else _finite(own["relative_to_largest"]),
        agrees=(whole if own is None else own)["agrees"],
        tensor=str(whole.get("name") or ""),
        series=series,
    )


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


KINDS: dict[str, Callable[[Records, Peaks | None], "Figure"]] = {
    "latency": _latency,
    "batch": _batch,
    "roofline": _roofline,
    "layers": _layers,
}
