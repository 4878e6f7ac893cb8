"""Events of a profile of XLA."""

from pathlib import Path
from typing import Any

from jaxdelegate.benchmark.trace import Event, read_events
from jaxdelegate.protos import message


def plane(space: Any, name: str, kinds: dict[int, str], names: dict[int, str]) -> Any:
    plane = space.planes.add(name=name.encode())
    for table, entries in ((plane.stat_metadata, kinds), (plane.event_metadata, names)):
        for key, text in entries.items():
            table.add(key=key).value.name = text.encode()
    return plane


def add(line: Any, kind: int, start_ns: int, ns: int, *stats: tuple[int, str, Any]) -> None:
    event = line.events.add(metadata_id=kind, offset_ps=1000 * start_ns, duration_ps=1000 * ns)
    for key, field, value in stats:
        event.stats.add(metadata_id=key, **{field: value})


def on_a_cpu() -> Any:
    """One instruction ends on another thread; its module is a reference."""
    space = message("tensorflow.profiler.XSpace")
    kinds = {1: "hlo_op", 2: "hlo_module", 3: "jit_f(7)", 4: "_p", 5: "_c"}
    host = plane(space, "/host:CPU", kinds, {1: "dot.1", 2: "end: dot.1", 3: "python"})
    first = host.lines.add(name=b"thread 1", timestamp_ns=100)
    add(first, 1, 50, 10, (1, "str_value", b"dot.1"), (2, "ref_value", 3), (4, "uint64_value", 9))
    add(first, 1, 0, 5, (1, "str_value", b"dot.1"), (2, "ref_value", 3))
    add(first, 3, 0, 99)
    second = host.lines.add(name=b"thread 2", timestamp_ns=100)
    add(second, 2, 90, 0, (5, "uint64_value", 9))
    return space


def read(space: Any, folder: Path) -> list[Event]:
    (folder / "plugins").mkdir()
    (folder / "plugins" / "host.xplane.pb").write_bytes(space.SerializeToString())
    return read_events(folder)


def test_instructions_of_a_cpu_in_their_order(tmp_path: Path) -> None:
    assert read(on_a_cpu(), tmp_path) == [
        Event("jit_f", "dot.1", 100, 5),
        Event("jit_f", "dot.1", 150, 40),  # until the other thread ended it
    ]


def test_a_device_counts_instead_of_the_host(tmp_path: Path) -> None:
    space = on_a_cpu()
    device = plane(space, "/device:TPU:0", {}, {1: "%fusion.3 = f32[8] fusion(%x)"})
    add(device.lines.add(name=b"XLA Ops", timestamp_ns=7), 1, 1, 2)
    assert read(space, tmp_path) == [Event("", "fusion.3", 8, 2)]


def test_no_trace(tmp_path: Path) -> None:
    assert read_events(tmp_path) == []
