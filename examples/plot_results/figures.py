"""Figures of results. They change no global state of matplotlib (pyplot, rcParams)."""

import itertools
import math
import statistics
import textwrap
from collections.abc import Sequence
from typing import Any

from cycler import cycler
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator

from plot_results.results import Result, series

# Okabe and Ito's colors without black and yellow, then two of Tol's, which people who confuse red
# and green can distinguish. Series differ by marker, too.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_STYLES = cycler(linestyle=("-", "--", "-.", ":")) * (cycler(color=COLORS) + cycler(marker=MARKERS))
_GRAY = "#9a9a9a"  # what has no name

_DPI, _PIXELS = 150, 1400
_SMALL = 9  # points: 11 pixels once a figure is 800 pixels wide
_TITLE_LETTERS, _LEGEND_LETTERS, _NAME_LETTERS = 90, 105, 48  # what fits in this width
_MUCH = 20  # values whose ratio is larger are shown on a logarithmic scale
_NAMED_LAYERS, _NAMED_OPERATORS = 12, 8  # the others are counted


def latency(results: Sequence[Result]) -> Figure:
    """The cumulative distribution of each benchmark's latencies, with its median."""
    figure, (axes,) = _figure("Latency distribution", results, height=5 + 0.2 * len(results))
    shown = []
    for result in results:
        values = result.record["inference_ms"]["values"]
        batch, median = result.record.get("batch", 1), statistics.median(values)
        name = result.name + (f", batch {batch}" if batch != 1 else "")
        label = f"{name} (median {median:.4g} ms)"
        line = axes.ecdf(values, label=label, markevery=max(1, len(values) // 12))
        axes.axvline(median, color=line.get_color(), linestyle=":", linewidth=1, marker="")
        shown += values
    _scale(axes.xaxis, shown)
    axes.set_xlabel("latency of one inference (ms); dotted: median")
    axes.set_ylabel("share of inferences that took no longer")
    _legend(figure, axes)
    return figure


def batch(results: Sequence[Result]) -> Figure:
    """Samples per second and latency by batch, with a line for each series."""
    points: dict[str, list[tuple[int, float]]] = {}
    for result in results:
        point = result.record["batch"], result.record["inference_ms"]["avg"]
        points.setdefault(result.name, []).append(point)
    height = 4.8 + 0.2 * len(points)
    figure, (left, right) = _figure("Batch scaling", results, columns=2, height=height)
    for name, line in points.items():
        batches, times = zip(*sorted(line), strict=True)
        rates = [1e3 * n / ms for n, ms in sorted(line)]
        left.plot(batches, rates, label=name)
        right.plot(batches, times)
    every = [point for line in points.values() for point in line]
    _scale(left.yaxis, [1e3 * n / ms for n, ms in every])
    _scale(right.yaxis, [ms for _, ms in every])
    left.set_ylabel("throughput (samples/s)")
    right.set_ylabel("latency of a batch (ms)")
    for axes in (left, right):
        axes.set_xlabel("batch (samples)")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
    _legend(figure, left)
    return figure


def layers(results: Sequence[Result]) -> Figure:
    """Errors in execution order, and below them the layers with the largest ones by name.

    Layers out of bounds come first among these.
    """
    groups = {
        name: [{**row, "color": color} for row in _layer_rows(result.record)]
        for name, result, color in zip(series(results), results, itertools.cycle(COLORS))
    }
    every = itertools.chain.from_iterable(groups.values())
    ranked = sorted(every, key=lambda row: (row["agrees"], -row["error"]))
    named, rest = ranked[:_NAMED_LAYERS], ranked[_NAMED_LAYERS:]
    heights = [3.2, 1.2 + 0.27 * len(named)]
    height = sum(heights) + 1.2 + 0.4 * len(results)
    figure, (along, bars) = _figure("Error per layer", results, rows=heights, height=height)
    _draw_errors(along, groups)
    _legend(figure, along)
    _draw_bars(
        bars,
        [_bar_name(row["label"], row["tensor"]) for row in named],
        [row["error"] for row in named],
        [_text(row) for row in named],
        [row["color"] for row in named],
    )
    others = f"; {len(rest)} others: at most {rest[0]['error']:.2g}" if rest else ""
    bars.set_xlabel(f"error that the operator adds / largest value{others}")
    return figure


def _layer_rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The layers, or the outputs of a comparison without layers."""
    if record["layers"] is None:
        outputs = enumerate(record["outputs"])
        return [_layer_row(f"#{n} output", output, None) for n, output in outputs]
    rows = record["layers"]["layers"]
    return [_layer_row(f"#{r['node']} {r['operator']}", r["tensor"], r["local"]) for r in rows]


def _layer_row(label: str, whole: dict[str, Any], own: dict[str, Any] | None) -> dict[str, Any]:
    """The whole program's error, and what the operator adds on the reference's inputs."""
    judged = whole if own is None else own
    return {
        "label": label,
        "tensor": whole.get("name") or "",
        "whole": whole["relative_to_largest"],
        "own": None if own is None else own["relative_to_largest"],
        "error": judged["relative_to_largest"] or 0.0,
        "agrees": judged["agrees"],
    }


def _draw_errors(axes: Any, groups: dict[str, list[dict[str, Any]]]) -> None:
    for name, rows in groups.items():
        _draw_series(axes, f"{name}, " if name else "", rows)
    every = itertools.chain.from_iterable(groups.values())
    errors = [e for row in every for e in (row["own"], row["whole"]) if e]
    if errors:
        _logarithmic(axes.yaxis, max(errors) / min(errors), None)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer, by its place in execution order")
    axes.set_ylabel("error / largest value")


def _draw_series(axes: Any, prefix: str, rows: Sequence[dict[str, Any]]) -> None:
    """Own errors as dots, the whole program's as a line, crosses on those out of bounds."""
    own, whole = ([row[kind] or math.nan for row in rows] for kind in ("own", "whole"))
    label = f"{prefix}own: what the operator adds on the reference's inputs"
    color = rows[0]["color"] if rows else None
    axes.plot(own, label=label, color=color, linestyle="", markersize=4)
    line = {"color": color, "linestyle": "-", "marker": "", "alpha": 0.7}
    axes.plot(whole, label=f"{prefix}whole: in the whole program", **line)
    wrong = [(i, row["error"]) for i, row in enumerate(rows) if not row["agrees"]]
    if wrong:
        cross = {"color": "black", "markersize": 7, "label": f"{prefix}out of bounds"}
        axes.plot(*zip(*wrong, strict=True), "x", **cross)


def _text(row: dict[str, Any]) -> str:
    what = " (whole program)" if row["own"] is None else ""
    return f"{row['error']:.2g}{what}" + ("" if row["agrees"] else ", out of bounds")


def roofline(results: Sequence[Result]) -> Figure:
    """Operators as dots under the device's limits; below, the slowest by name with their times.

    Operators without arithmetic or memory traffic have bars, but no dots.
    (Williams, Waterman and Patterson, 2009.)
    """
    peaks = _peaks(results)
    every = itertools.chain.from_iterable(map(_timed, results, series(results)))
    rows = sorted(every, key=lambda row: -row["seconds"])
    named, rest = rows[:_NAMED_OPERATORS], rows[_NAMED_OPERATORS:]
    heights = [4.5, 1.2 + 0.27 * len(named)]
    figure, (dots, bars) = _figure("Roofline", results, rows=heights, height=sum(heights) + 1.6)
    for i, row in reversed([*enumerate(rows)]):
        _draw_dot(dots, row, i)
    _draw_roof(dots, peaks)
    _legend(figure, dots)
    _draw_bars(
        bars,
        [_bar_name(_operator_name(row), row["series"]) for row in named],
        [1e3 * row["seconds"] for row in named],
        [f"{row['share']:.0%} of the time, {_reached(row, peaks)}" for row in named],
        COLORS,
    )
    together = f"; {len(rest)} others: {1e3 * sum(row['seconds'] for row in rest):.3g} ms"
    bars.set_xlabel("time of one inference (ms); color: the dot above" + together * bool(rest))
    return figure


def _timed(result: Result, name: str) -> list[dict[str, Any]]:
    """A result's operators that take time, with their shares of it."""
    rows = [row for row in result.record["operators"] if row["seconds"] > 0]
    total = sum(row["seconds"] for row in rows)
    return [{**row, "series": name, "share": row["seconds"] / total} for row in rows]


def _peaks(results: Sequence[Result]) -> dict[str, Any]:
    for result in results:
        if "peaks" in result.record:
            peaks: dict[str, Any] = result.record["peaks"]
            return peaks
    raise ValueError(
        "the device's peaks are not known: measure them with `benchmark_model --measure_peaks`, "
        "or give --peak_flops and --peak_bandwidth"
    )


def _draw_dot(axes: Any, row: dict[str, Any], i: int) -> None:
    look = {"color": _GRAY, "s": 20}
    if i < _NAMED_OPERATORS:
        look = {"color": COLORS[i], "marker": MARKERS[i], "s": 70}
    if row["flops"] and row["bytes"]:
        place = row["flops"] / row["bytes"], row["flops"] / row["seconds"]
        axes.scatter(*place, edgecolors="black", linewidths=0.5, **look)


def _draw_roof(axes: Any, peaks: dict[str, Any]) -> None:
    """The limits, over the intensities of the dots and the ridges."""
    _logarithmic(axes.xaxis, math.inf)
    _logarithmic(axes.yaxis, math.inf, EngFormatter())
    top, cached = peaks["flops_per_second"], peaks.get("cached") or {}
    slopes = [("memory", peaks["bytes_per_second"], "-")]
    if cached:
        size, rate = max(cached.items(), key=lambda item: item[1])
        slopes.append((f"cache (array of {float(size) / 2**20:g} MiB)", rate, "--"))
    ridges = [top / rate for _, rate, _ in slopes]
    left, right = min(*axes.get_xlim(), *ridges) / 2, 2 * max(*axes.get_xlim(), *ridges)
    for (name, rate, dashes), ridge in zip(slopes, ridges, strict=True):
        label = f"{name}: {_engineering(rate, 'B/s')}, {peaks.get('bytes_source', 'given')}"
        ends = [left, ridge], [left * rate, top]
        axes.plot(*ends, color="black", linestyle=dashes, marker="", label=label)
    label = f"arithmetic: {_engineering(top, 'FLOP/s')}, {peaks.get('flops_source', 'given')}"
    flat = {"linestyle": "-", "marker": "", "linewidth": 2.5}
    axes.plot([min(ridges), right], [top, top], color="black", label=label, **flat)
    axes.set(xlim=(left, right))
    axes.set_xlabel("arithmetic intensity (FLOP per byte)")
    axes.set_ylabel("arithmetic rate (FLOP/s)")


def _engineering(value: float, unit: str) -> str:
    return str(EngFormatter(unit=unit)(float(f"{value:.3g}")))


def _operator_name(row: dict[str, Any]) -> str:
    """Types and indices; if many operators are fused, the first and the last index."""
    nodes = row.get("nodes") or []
    if len(nodes) <= 3:
        return str(row["name"])
    return f"{row['name'].rpartition(' ')[0]} {nodes[0]}…{nodes[-1]} ({len(nodes)} fused)"


def _reached(row: dict[str, Any], peaks: dict[str, Any]) -> str:
    """Which part of its roof an operator reached, by the fastest memory that holds its bytes."""
    if not (row["flops"] and row["bytes"]):
        return "no arithmetic"
    fitting = [
        rate for size, rate in (peaks.get("cached") or {}).items() if float(size) >= row["bytes"]
    ]
    slope = row["flops"] / row["bytes"] * max(peaks["bytes_per_second"], *fitting, 0)
    return (
        f"{row['flops'] / row['seconds'] / min(peaks['flops_per_second'], slope):.0%} of its roof"
    )


# ---- what all figures share


def _figure(
    what: str,
    results: Sequence[Result],
    *,
    rows: Sequence[float] = (1.0,),
    columns: int = 1,
    height: float,
) -> tuple[Figure, Sequence[Any]]:
    """A figure with a title, and its axes; `rows` are relative heights, `height` is in inches."""
    figure = Figure(figsize=(_PIXELS / _DPI, height), dpi=_DPI, layout="constrained")
    lines = [
        what,
        *(_distinct([getattr(r, part) for r in results]) for part in ("model", "device")),
    ]
    wrapped = [textwrap.fill(line, _TITLE_LETTERS) for line in lines if line]
    figure.suptitle("\n".join(wrapped), fontsize=11)
    every = list(figure.subplots(len(rows), columns, squeeze=False, height_ratios=rows).flat)
    for axes in every:
        axes.set_prop_cycle(_STYLES)
        axes.grid(visible=True, alpha=0.3)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=_SMALL)
    return figure, every


def _distinct(names: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(filter(None, names)))
    others = f" and {len(distinct) - 3} others" if len(distinct) > 3 else ""
    return ", ".join(distinct[:3]) + others


def _legend(figure: Figure, axes: Any) -> None:
    """A legend under the axes, where it covers no data."""
    handles, labels = axes.get_legend_handles_labels()
    wrapped = [textwrap.fill(label, _LEGEND_LETTERS) for label in labels]
    figure.legend(handles, wrapped, loc="outside lower center", fontsize=_SMALL)


def _scale(axis: Any, values: Sequence[float]) -> None:
    """Logarithmic if the values differ much, else linear from 0."""
    if max(values) > _MUCH * min(values):
        _logarithmic(axis, max(values) / min(values))
    else:
        axis.axes.set(**{f"{axis.axis_name}lim": (0, 1.08 * max(values))})


def _logarithmic(axis: Any, ratio: float, formatter: Any = "{x:g}") -> None:
    """A scale for values of this ratio, without labels that overlap; None: powers of ten."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_minor_formatter("")
    if formatter is not None:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if ratio < 300 else (1,)))
        axis.set_major_formatter(formatter)


def _draw_bars(
    axes: Any,
    names: Sequence[str],
    values: Sequence[float],
    texts: Sequence[str],
    colors: Sequence[str],
) -> None:
    """Bars from the top, with a name on their left and a text on their right."""
    bars = axes.barh(range(len(values)), values, color=colors[: len(values)], height=0.7)
    axes.bar_label(bars, texts, padding=8, fontsize=_SMALL)
    axes.set_yticks(range(len(values)), names, fontsize=_SMALL)
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.set_xlim(0, 1.85 * (max(values, default=0) or 1))  # room for the texts
    axes.grid(visible=False, axis="y")


def _bar_name(label: str, detail: str) -> str:
    """The label and what fits of the detail: names of tensors differ at their ends."""
    label = _end(label, _NAME_LETTERS)
    return f"{label} {_end(detail, max(_NAME_LETTERS - len(label) - 1, 1))}".rstrip()


def _end(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"…{text[len(text) - letters + 1 :]}"
