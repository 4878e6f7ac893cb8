"""The table and the plot of bench/accept_gpu.py, from its JSON lines."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Records = Sequence[Mapping[str, Any]]
OURS, OVER, STAYS = "jaxdelegate", "litert_xnnpack", "_on_device"
_HEAD = (
    "network",
    "batch",
    "dtype",
    "arrays",
    "ours, ms",
    "fastest peer",
    "its ms",
    "ours / peer (p10 to p90)",
    "XNNPACK / ours",
    "of the roofline",
)


def table(records: Records) -> str:
    """Markdown: the machine, the tests, a row for each measurement, and absent engines."""
    measured = [r for r in records if r["bench"] == "compare"]
    rows = [row for r in measured for row in _rows(r)]
    parts = [
        "# Acceptance run",
        *(f"* {line}" for line in _machines(measured)),
        *(f"* {_tests(r)}" for r in _last_tests(records)),
        *(f"* {line}" for r in _served(records) for line in _server(r)),
        *(f"* {_switch(r)}" for r in records if r["bench"] == "gpu_switches"),
        "",
        "Medians of interleaved rounds. A peer is another engine on the same kind of device, with",
        "arrays in the same place; XNNPACK is on the CPU, with all its cores.",
        "",
        *_markdown(_HEAD, rows),
        "",
        "Not measured:",
        "",
        *_markdown(("engine", "why", "for"), _absent(measured)),
    ]
    return "\n".join(parts) + "\n"


def failures(records: Records) -> list[str]:
    """The reasons to reject the machine; none if it is accepted."""
    tests = _last_tests(records)
    found = [_tests(r) for r in tests if "not_run" in r or r["failed"]]
    for r in _served(records):
        if "refused" in r or any(r["wrong"].values()):
            found += _server(r)
    for r in (r for r in records if r["bench"] == "compare"):
        if "refused" in r:
            found.append(f"{_case(r)}: {r['refused']}")
        absent = r.get("absent", {})
        found += [
            f"{_case(r)}: {name} is absent: {why}"
            for name, why in absent.items()
            if name in (OURS, f"{OURS}{STAYS}")
        ]
    return found


def plot(records: Records, path: Path) -> bool:
    """Plot the times, a panel for each batch and dtype; False without matplotlib or times."""
    try:
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        return False
    panels: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for r in records:
        if r["bench"] == "compare" and "ms" in r:
            panels.setdefault((_dtype(r), r["batch"]), []).append(r)
    if not panels:
        return False
    names = sorted({name for own in panels.values() for r in own for name in r["ms"]})
    figure, axes = pyplot.subplots(
        len(panels), 1, figsize=(10, 3.2 * len(panels)), squeeze=False, layout="constrained"
    )
    for (axis,), ((dtype, batch), own) in zip(axes, sorted(panels.items()), strict=True):
        networks = list(dict.fromkeys(r["graph"] for r in own))
        for i, name in enumerate(names):
            points = [(networks.index(r["graph"]), r["ms"][name]) for r in own if name in r["ms"]]
            x = [place + (i / max(1, len(names) - 1) - 0.5) * 0.7 for place, _ in points]
            axis.plot(x, [ms["median"] for _, ms in points], **_marker(name, i))
        axis.set(yscale="log", ylabel="ms", title=f"{dtype}, batch {batch}")
        axis.set_xticks(range(len(networks)), networks)
    figure.legend(*_labels(axes), loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True


def _marker(name: str, i: int) -> dict[str, Any]:
    """Ours are black; markers are filled where arrays stay on the device."""
    color = "black" if name.startswith(OURS) else f"C{i % 10}"
    fill = "full" if name.endswith(STAYS) else "none"
    return {
        "linestyle": "none", "marker": "o" if i % 2 else "s", "color": color, "fillstyle": fill,
        "label": name,
    }  # fmt: skip


def _labels(axes: Any) -> tuple[list[Any], list[str]]:
    found = {}
    for (axis,) in axes:
        handles, labels = axis.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    return list(found.values()), list(found)


def _rows(r: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for where, own in (("host", OURS), ("device", f"{OURS}{STAYS}")):
        ms = r.get("ms", {})
        if own not in ms:
            continue
        peer, bound = r["ratio_to_peer"].get(where), r.get("roofline_ms")
        over = r["ratio_to_litert"][own]["median"]
        yield (
            r["graph"],
            str(r["batch"]),
            _dtype(r),
            where,
            f"{ms[own]['median']:.3f}",
            peer["peer"].removesuffix(STAYS) if peer else "none",
            f"{ms[peer['peer']]['median']:.3f}" if peer else "",
            f"{peer['median']:.2f} ({peer['p10']:.2f} to {peer['p90']:.2f})" if peer else "",
            f"{1 / over:.1f}",
            f"{bound / ms[own]['median']:.2f}" if bound and where == "device" else "",
        )


def _absent(measured: Records) -> list[tuple[str, str, str]]:
    where: dict[tuple[str, str], list[str]] = {}
    for r in measured:
        if "refused" in r:
            where.setdefault(("all", r["refused"]), []).append(_case(r))
        for name, why in r.get("absent", {}).items():
            where.setdefault((name, why), []).append(_case(r))
    times = sum("absent" in r for r in measured)
    return [
        (name, why, "all" if len(own) == times > 1 else "; ".join(own))
        for (name, why), own in sorted(where.items())
    ]


def _machines(measured: Records) -> list[str]:
    """The devices, drivers and versions of the lines, usually a single machine."""
    found = []
    for r in measured:
        kind = r.get("device_kind", r["device"])
        facts = "; ".join(f"{k} {v}" for gpu in r.get("gpu") or () for k, v in _steady(gpu))
        machine = r["machine"]
        versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items() if v)
        found.append(f"{r['device']}: {kind}{f' ({facts})' if facts else ''}")
        found.append(f"{machine['cpu']}, {machine['cores']} cores; {versions}")
        found.append(f"commit {machine['commit']}")
    return list(dict.fromkeys(found))


def _steady(gpu: Mapping[str, str]) -> list[tuple[str, str]]:
    """Facts that do not change from minute to minute."""
    return [(k, v) for k, v in gpu.items() if k not in ("clocks.current.sm", "temperature.gpu")]


def _last_tests(records: Records) -> Records:
    return [r for r in records if r["bench"] == "accept_tests"][-1:]


def _served(records: Records) -> Records:
    return [r for r in records if r["bench"] == "serve_language_models"]


def _server(r: Mapping[str, Any]) -> list[str]:
    if "refused" in r:
        return [f"the server of a language model did not run: {r['refused']}"]
    rates = {key: each[OURS]["median"] for key, each in r.items() if key.startswith("clients_")}
    each = ", ".join(f"{rate:,.0f} ({n.removeprefix('clients_')})" for n, rate in rates.items())
    wrong = f"{r['wrong'][OURS]} wrong texts"
    return [f"{r['bundle']} served, {r['compute_dtype']}: tokens/s (clients): {each}; {wrong}"]


def _switch(r: Mapping[str, Any]) -> str:
    """What a switch changed, and the default that it deserves here."""
    advice = f"recommended: {r['variable']}={r['recommended']}"
    if "refused" in r:
        return f"{r['switch']} did not run ({r['refused']}); {advice}"
    off, on = (each["median"] for each in r["ms"].values())
    equal = "equal results" if r["equal"] else "other results"
    return f"{r['switch']}: {off:.3f} ms without, {on:.3f} with it, {equal}; {advice}"


def _tests(r: Mapping[str, Any]) -> str:
    if "not_run" in r:
        return f"tests/gpu did not run: {r['not_run']}"
    passed = r["tests"] - r["failed"] - r["skipped"]
    bad = f" ({', '.join(r['failures'])})" if r["failed"] else ""
    return f"tests/gpu: {passed} passed, {r['failed']} failed{bad}, {r['skipped']} skipped"


def _case(r: Mapping[str, Any]) -> str:
    return f"{r['graph']}, batch {r['batch']}, {_dtype(r)}"


def _dtype(r: Mapping[str, Any]) -> str:
    options = r["options"]
    if "quant_mode" in options:
        return f"int8, {options['quant_mode']}"
    found: str = options.get("compute_dtype", "float32")
    return found


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return ["(nothing)"]
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]
