"""Device time by XLA instruction, from a trace of jax.profiler."""

import dataclasses
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_END = "end: "  # XLA:CPU marks so where an instruction that ran on several threads is done
_MODULE_ID = re.compile(r"\(\d+\)$")


@dataclasses.dataclass(frozen=True)
class Event:
    """An instruction of a program that ran once. Times in nanoseconds."""

    module: str
    instruction: str
    start: float
    duration: float


def newest_file(folder: Path, pattern: str) -> Path | None:
    """The trace's file of that kind."""
    return max(folder.rglob(pattern), key=lambda path: path.stat().st_mtime, default=None)


def read_events(folder: Path) -> list[Event]:
    """Every instruction that ran while the trace was taken, in the order of their starts.

    Args:
        folder: what `jax.profiler.start_trace` was given.
    """
    path = newest_file(folder, "*.xplane.pb")
    if path is None:
        return []
    profiler = importlib.import_module("jax.profiler")
    planes = profiler.ProfileData.from_file(str(path)).planes
    by_plane = {plane.name: list(_plane_events(plane)) for plane in planes}
    # A device's plane has the truth; the host's then only says when work was handed over.
    devices = {name: found for name, found in by_plane.items() if name.startswith("/device:")}
    chosen = devices if any(devices.values()) else by_plane
    events = [event for found in chosen.values() for event in found]
    return sorted(events, key=lambda event: event.start)


def _plane_events(plane: Any) -> Iterator[Event]:
    found: list[tuple[Any, dict[str, Any]]] = []
    ends: dict[Any, float] = {}
    for line in plane.lines:
        for event in line.events:
            stats = dict(event.stats)
            if "hlo_op" in stats:
                found.append((event, stats))
            elif event.name.startswith(_END) and "_c" in stats:
                ends[stats["_c"]] = event.start_ns
            elif line.name == "XLA Ops":  # TPU: the event's name is the instruction's text
                found.append((event, {**stats, "hlo_op": event.name}))
    for event, stats in found:
        end = max(ends.get(stats.get("_p"), 0.0), event.start_ns + event.duration_ns)
        yield Event(
            _MODULE_ID.sub("", str(stats.get("hlo_module", ""))),
            str(stats["hlo_op"]).split(" = ")[0].lstrip("%"),
            event.start_ns,
            end - event.start_ns,
        )
