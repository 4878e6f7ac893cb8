"""Operator profiles as TFLite prints them: text and CSV tables, and its profiling proto.

The layout is that of tsl/util/stats_calculator.cc and profiling/profile_summary_formatter.cc, at
any width: scripts that read TFLite's tables read these.
"""

import importlib
from collections.abc import Sequence
from typing import Any

from jaxdelegate.benchmark.op_profile import Profile, totals
from jaxdelegate.benchmark.work import OpTime
from jaxdelegate.measuring.stats import Stat
from jaxdelegate.text import printable

_RULE = "=" * 30
_INIT = "Profiling Info for Benchmark Initialization:"
_RUNS = "Operator-wise Profiling Info for Regular Benchmark Runs:"
_TOP = 10  # rows of the table by time
_CSV_HEADER = "node type, first, avg_ms, %, cdf%, mem KB, times called, name"
_HEADER = ("[node type]", "[first]", "[avg ms]", "[%]", "[cdf%]", "[mem KB]", "[times called]")
_WIDTHS = (40, 9, 9, 8, 8, 10, 9)
_CSV_TYPE_HEADER = "node type, count, avg_ms, avg %, cdf %, mem KB, times called"
_TYPE_HEADER = (
    "[Node type]", "[count]", "[avg ms]", "[avg %]", "[cdf %]", "[mem KB]", "[times called]",
)  # fmt: skip
_TYPE_WIDTHS = (40, 9, 10, 11, 11, 10, 10)


def profile_text(profile: Profile, *, as_csv: bool = False) -> str:
    parts = []
    if profile.init:
        parts.append(f"{_INIT}\n{_report(profile.init, as_csv)}")
    parts.append(f"{_RUNS}\n{_report(profile.nodes, as_csv)}")
    if profile.inside:
        parts[-1] += f"Delegate internal: \n{_report(profile.inside, as_csv)}"
    return "\n".join(parts)


def _report(rows: Sequence[OpTime], as_csv: bool) -> str:
    by_time = sorted(rows, key=lambda row: -row.times.avg)[:_TOP]
    return (
        _table("Run Order", rows, totals(rows), as_csv)
        + _table("Top by Computation Time", by_time, totals(rows), as_csv)
        + _by_type(rows, as_csv)
        + f"Timings (microseconds): {totals(rows).line()}\n"
        + f"Memory (bytes): count=0\n{len(rows)} nodes observed\n\n"
    )


def _table(title: str, rows: Sequence[OpTime], total: Stat, as_csv: bool) -> str:
    header = _CSV_HEADER if as_csv else f"{_aligned(_HEADER, _WIDTHS)}\t[Name]"
    lines, so_far = [f"{_RULE} {title} {_RULE}", header], 0.0
    for row in rows:
        so_far += row.times.sum
        shares = _share(row.times.sum, total.sum), _share(so_far, total.sum)
        first = _number(row.times.first / 1e3, as_csv)
        cells = _cells([row], first, row.times.avg, shares, as_csv)
        name = printable(row.name)
        # As in TFLite: the name must not break the columns.
        lines.append(
            ", ".join([*cells, name.replace(",", "\t")])
            if as_csv
            else f"{_aligned(cells, _WIDTHS)}\t{name}"
        )
    return "\n".join(lines) + "\n\n"


def _by_type(rows: Sequence[OpTime], as_csv: bool) -> str:
    groups: dict[str, list[OpTime]] = {}
    for row in rows:
        groups.setdefault(row.type, []).append(row)
    spent = {kind: sum(int(row.times.avg) for row in group) for kind, group in groups.items()}
    lines = [f"Number of nodes executed: {len(rows)}", f"{_RULE} Summary by node type {_RULE}"]
    lines.append(_CSV_TYPE_HEADER if as_csv else _aligned(_TYPE_HEADER, _TYPE_WIDTHS))
    cumulated, whole = 0.0, sum(spent.values())
    for kind, group in sorted(groups.items(), key=lambda item: -spent[item[0]]):
        share = _share(spent[kind], whole)
        cumulated += share
        cells = _cells(group, f"{len(group)}", spent[kind], (share, cumulated), as_csv)
        lines.append(", ".join(cells) if as_csv else _aligned(cells, _TYPE_WIDTHS))
    return "\n".join(lines) + "\n\n"


def _cells(
    rows: Sequence[OpTime], second: str, us: float, shares: Sequence[float], as_csv: bool
) -> list[str]:
    """The columns for rows of one type; `second` is the second one."""
    return [
        printable(rows[0].type),
        second,
        _number(us / 1e3, as_csv),
        *(f"{_number(share, as_csv)}%" for share in shares),
        _number(sum(row.bytes for row in rows) / 1e3, as_csv),
        f"{sum(row.times_called for row in rows)}",
    ]


def _number(value: float, as_csv: bool) -> str:
    return f"{value:g}" if as_csv else f"{value:.3f}"


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(f"\t{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _share(part: float, whole: float) -> float:
    return 100 * part / whole if whole else 0.0


def profile_proto(profile: Profile, model: str) -> bytes:
    """The bytes of a tflite.profiling.BenchmarkProfilingData (profiling/proto)."""
    messages = importlib.import_module("ai_edge_litert.profiling_info_pb2")
    data = messages.BenchmarkProfilingData(model_name=model)
    _add_rows(data.init_profile.subgraph_profiles.add(subgraph_index=0), profile.init)
    _add_rows(data.runtime_profile.subgraph_profiles.add(subgraph_index=0), profile.nodes)
    if profile.inside:
        inside = data.runtime_profile.delegate_profiles.add(delegate_name="JaxDelegate")
        _add_rows(inside, profile.inside)
    content: bytes = data.SerializeToString()
    return content


def _add_rows(message: Any, rows: Sequence[OpTime]) -> None:
    for order, row in enumerate(rows):
        added = message.per_op_profiles.add(
            node_type=row.type, name=row.name, times_called=row.times_called, run_order=order
        )
        _fill(added.inference_microseconds, row.times)
        _fill(added.mem_kb, Stat((row.bytes // 1000,) * row.times.count))


def _fill(message: Any, stat: Stat) -> None:
    message.first, message.last, message.avg = stat.first, stat.newest, int(stat.avg)
    message.min, message.max, message.sum = stat.min, stat.max, stat.sum
    message.count, message.stddev, message.variance = stat.count, stat.std, stat.std**2
