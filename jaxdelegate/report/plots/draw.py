"""Plots from the tools' JSON files."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdelegate.errors import OptionError
from jaxdelegate.report.plots.batch import BatchPoint, batch_scaling
from jaxdelegate.report.plots.latency import LatencyRuns, latency_distribution
from jaxdelegate.report.plots.layers import LayerPoint, error_per_layer
from jaxdelegate.report.plots.roofline import MeasuredOperator, Peaks, roofline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = Mapping[str, Any]


def draw(
    kind: str, paths: Sequence[str | os.PathLike[str]], peaks: Peaks | None = None
) -> "Figure":
    """The figure of one kind from one or more JSON files.

    Args:
        kind: a key of KINDS.
        paths: results of `jaxdelegate benchmark_model` (latency, batch; with operator profile:
            roofline), of `inference_diff --per_layer` (layers). A file may also hold a list of
            results, or one in each line. A roofline needs only `{"operators": [{"name", "flops",
            "bytes", "seconds"}], "peaks": {"flops_per_second", "bytes_per_second"}}`.
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


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """The results in a file: one, a list, or one in each line.

    Raises:
        OptionError: it is not JSON, or holds something else than objects.
        OSError: it cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        found = _parsed(text)
    except ValueError as error:  # UnicodeDecodeError is one, too
        raise OptionError(f"{path}: not a JSON file: {error}") from error
    if not all(isinstance(record, dict) for record in found):
        raise OptionError(f"{path}: want a JSON object or a list of them")
    return found


def _parsed(text: str) -> list[Any]:
    try:
        content = json.loads(text)
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2:
            raise
        return [json.loads(line) for line in lines]
    return content if isinstance(content, list) else [content]


Records = Sequence[tuple[str, Record]]


def _latency(records: Records, _peaks: Peaks | None) -> "Figure":
    return latency_distribution([_latency_runs(path, record) for path, record in records])


def _latency_runs(path: str, record: Record) -> LatencyRuns:
    stat = record["inference_ms"]
    values = tuple(float(ms) for ms in stat.get("values", ()))
    percentiles = {0.0: float(stat["min"]), 100.0: float(stat["max"]), 50.0: float(stat["median"])}
    percentiles |= {
        float(key[1:]): float(ms) for key, ms in stat.items() if key[0] == "p" and key[1:].isdigit()
    }
    batch = record.get("batch", 1)
    name = _name(path, record) + (f", batch {batch}" if batch != 1 else "")
    return LatencyRuns(name, values, {} if values else percentiles)


def _name(path: str, record: Record) -> str:
    """What the user called the benchmark, or else its model and where it ran."""
    if record.get("name"):
        return str(record["name"])
    parts = [Path(str(record.get("model", path))).stem, record.get("platform") or ""]
    return " ".join(str(part) for part in parts if part)


def _batch(records: Records, _peaks: Peaks | None) -> "Figure":
    return batch_scaling(
        [
            BatchPoint(
                _name(path, record), int(record["batch"]), float(record["inference_ms"]["avg"])
            )
            for path, record in records
        ]
    )


def _roofline(records: Records, peaks: Peaks | None) -> "Figure":
    operators = [
        MeasuredOperator(
            str(row["name"]), float(row["flops"]), float(row["bytes"]), float(row["seconds"])
        )
        for _, record in records
        for row in record["operators"]
        if row["flops"] is not None
    ]
    return roofline(operators, peaks or _peaks_of(records))


def _peaks_of(records: Records) -> Peaks:
    for _, record in records:
        if "peaks" in record:
            found = record["peaks"]
            return Peaks(float(found["flops_per_second"]), float(found["bytes_per_second"]))
    raise OptionError(
        "roofline: want the device's peaks, in the file or as --peak_flops and --peak_bandwidth"
    )


def _layers(records: Records, _peaks: Peaks | None) -> "Figure":
    rows = [row for _, record in records for row in record["layers"]["layers"]]
    return error_per_layer([_layer_point(row) for row in rows])


def _layer_point(row: Record) -> LayerPoint:
    local, whole = row["local"], row["tensor"]
    return LayerPoint(
        f"#{row['node']} {row['operator']}",
        _finite(whole["relative_to_largest"]),
        None if local is None else _finite(local["relative_to_largest"]),
        (whole if local is None else local)["agrees"],
    )


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


KINDS: dict[str, Callable[[Records, Peaks | None], "Figure"]] = {
    "latency": _latency,
    "batch": _batch,
    "roofline": _roofline,
    "layers": _layers,
}
