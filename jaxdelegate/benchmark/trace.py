"""Device time per XLA instruction, from a trace of jax.profiler."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxdelegate.protos import message

_END = "end: "  # XLA:CPU's prefix for the end of an instruction that ran on several threads
_MODULE_ID = re.compile(r"\(\d+\)$")


@dataclasses.dataclass(frozen=True)
class Event:
    """One execution of an instruction. Times are in nanoseconds."""

    module: str
    instruction: str
    start: float
    duration: float


def newest_file(folder: Path, pattern: str) -> Path | None:
    return max(folder.rglob(pattern), key=lambda path: path.stat().st_mtime, default=None)


def read_events(folder: Path) -> list[Event]:
    """All executions of instructions in `jax.profiler`'s trace in a folder, ordered by start."""
    path = newest_file(folder, "*.xplane.pb")
    if path is None:
        return []
    # Not jax.profiler.ProfileData, which aborts the process in jax 0.12.
    space = message("tensorflow.profiler.XSpace")
    space.ParseFromString(path.read_bytes())
    by_plane = {_text(plane.name): list(_plane_events(plane)) for plane in space.planes}
    # A device's plane has the actual times; the host's plane then only has the dispatches.
    devices = {name: rows for name, rows in by_plane.items() if name.startswith("/device:")}
    chosen = devices if any(devices.values()) else by_plane
    events = [event for rows in chosen.values() for event in rows]
    return sorted(events, key=lambda event: event.start)


def _plane_events(plane: Any) -> Iterator[Event]:
    names = {entry.key: _text(entry.value.name) for entry in plane.event_metadata}
    kinds = {entry.key: _text(entry.value.name) for entry in plane.stat_metadata}
    executions: list[tuple[float, float, dict[str, Any]]] = []  # start, end, statistics
    ends: dict[Any, float] = {}
    for line in plane.lines:
        is_all_work = _text(line.name) == "XLA Ops"  # TPU: the names are the instructions' texts
        for event in line.events:
            name, stats = names.get(event.metadata_id, ""), _stats(event, kinds)
            start = line.timestamp_ns + event.offset_ps / 1000
            if "hlo_op" in stats or is_all_work:
                end = start + event.duration_ps / 1000
                executions.append((start, end, {"hlo_op": name, **stats}))
            elif name.startswith(_END) and "_c" in stats:
                ends[stats["_c"]] = start
    for start, end, stats in executions:
        yield Event(
            _MODULE_ID.sub("", str(stats.get("hlo_module", ""))),
            str(stats["hlo_op"]).split(" = ")[0].lstrip("%"),
            start,
            max(ends.get(stats.get("_p"), 0.0), end) - start,
        )


def _stats(event: Any, kinds: Mapping[int, str]) -> dict[str, Any]:
    """The statistics of an event by name, with references resolved to their text."""
    stats: dict[str, Any] = {}
    for stat in event.stats:
        for field, value in stat.ListFields():
            if field.name == "ref_value":
                stats[kinds.get(stat.metadata_id, "")] = kinds.get(value, "")
            elif field.name != "metadata_id":
                is_text = isinstance(value, bytes)
                stats[kinds.get(stat.metadata_id, "")] = _text(value) if is_text else value
    return stats


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
