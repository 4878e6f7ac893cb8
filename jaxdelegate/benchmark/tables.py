"""Operator profiles as TFLite prints them: text and CSV tables, and its profiling proto.

The layout is that of tsl/util/stats_calculator.cc and profiling/profile_summary_formatter.cc, at
any width: scripts that read TFLite's tables read these.
"""

import importlib
from collections.abc import Sequence
from typing import Any

from jaxdelegate.benchmark.op_profile import OpTime, Profile, totals
from jaxdelegate.measuring.stats import Stat
from jaxdelegate.text import printable

_RULE = "=" * 30
_INIT = "Profiling Info for Benchmark Initialization:"
_RUNS = "Operator-wise Profiling Info for Regular Benchmark Runs:"
_TYPE_WIDTH = 40
_TOP = 10  # rows of the table by time


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


def _fields(values: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(f"\t{value:>{width}}" for value, width in zip(values, widths, strict=True))


_WIDTHS = (_TYPE_WIDTH, 9, 9, 8, 8, 10, 9)
_HEADER = ("[node type]", "[first]", "[avg ms]", "[%]", "[cdf%]", "[mem KB]", "[times called]")


def _table(title: str, rows: Sequence[OpTime], total: Stat, as_csv: bool) -> str:
    header = "node type, first, avg_ms, %, cdf%, mem KB, times called, name"
    if not as_csv:
        header = f"{_fields(_HEADER, _WIDTHS)}\t[Name]"
    lines, so_far = [f"{_RULE} {title} {_RULE}", header], 0.0
    for row in rows:
        so_far += row.times.sum
        shares = _share(row.times.sum, total.sum), _share(so_far, total.sum)
        lines.append(_line(row, *shares, as_csv))
    return "\n".join(lines) + "\n\n"


def _share(part: float, whole: float) -> float:
    return 100 * part / whole if whole else 0.0


def _line(row: OpTime, share: float, cumulated: float, as_csv: bool) -> str:
    first, avg, kilobytes = row.times.first / 1e3, row.times.avg / 1e3, row.bytes / 1e3
    if as_csv:
        # As in TFLite: the name must not break the columns.
        name = printable(row.name).replace(",", "\t")
        return (
            f"{printable(row.type)}, {first:g}, {avg:g}, {share:g}%, {cumulated:g}%, "
            f"{kilobytes:g}, {row.times_called}, {name}"
        )
    values = (
        printable(row.type),
        f"{first:.3f}",
        f"{avg:.3f}",
        f"{share:.3f}%",
        f"{cumulated:.3f}%",
        f"{kilobytes:.3f}",
        f"{row.times_called}",
    )
    return f"{_fields(values, _WIDTHS)}\t{printable(row.name)}"


_TYPE_WIDTHS = (_TYPE_WIDTH, 9, 10, 11, 11, 10, 10)
_TYPE_HEADER = (
    "[Node type]",
    "[count]",
    "[avg ms]",
    "[avg %]",
    "[cdf %]",
    "[mem KB]",
    "[times called]",
)


def _by_type(rows: Sequence[OpTime], as_csv: bool) -> str:
    groups: dict[str, list[OpTime]] = {}
    for row in rows:
        groups.setdefault(row.type, []).append(row)
    spent = {kind: sum(int(row.times.avg) for row in group) for kind, group in groups.items()}
    header = "node type, count, avg_ms, avg %, cdf %, mem KB, times called"
    if not as_csv:
        header = _fields(_TYPE_HEADER, _TYPE_WIDTHS)
    lines = [f"Number of nodes executed: {len(rows)}"]
    lines += [f"{_RULE} Summary by node type {_RULE}", header]
    cumulated, whole = 0.0, sum(spent.values())
    for kind in sorted(groups, key=lambda kind: -spent[kind]):
        share = _share(spent[kind], whole)
        cumulated += share
        lines.append(_type_line(kind, groups[kind], spent[kind], share, cumulated, as_csv))
    return "\n".join(lines) + "\n\n"


def _type_line(
    kind: str, group: Sequence[OpTime], us: int, share: float, cumulated: float, as_csv: bool
) -> str:
    kilobytes = sum(row.bytes for row in group) / 1e3
    calls = sum(row.times_called for row in group)
    if as_csv:
        shares = f"{share:g}%, {cumulated:g}%"
        return f"{printable(kind)}, {len(group)}, {us / 1e3:g}, {shares}, {kilobytes:g}, {calls}"
    values = (
        printable(kind),
        f"{len(group)}",
        f"{us / 1e3:.3f}",
        f"{share:.3f}%",
        f"{cumulated:.3f}%",
        f"{kilobytes:.3f}",
        f"{calls}",
    )
    return _fields(values, _TYPE_WIDTHS)


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
