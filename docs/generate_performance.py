"""Write the tables and the plots of docs/performance.md from the results of bench/.

    python docs/generate_performance.py [RESULTS.jsonl ...]

Without arguments it reads bench/results/*.jsonl: comparisons of engines (compare.py, run_all.py),
operators (operators.py), what invoke costs (invoke_overhead.py), how cost grows (scaling.py), whole
processes (startup.py) and loads without a cache (cold_loads.py).

Of several lines for the same model and settings the newest counts. The tables are between two
marks in docs/performance.md, the plots in performance.svg and scaling.svg next to it.
"""

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

DOCS = Path(__file__).parent
PAGE, RATIOS, SCALING = DOCS / "performance.md", DOCS / "performance.svg", DOCS / "scaling.svg"
BEGIN, END = "<!-- tables: docs/generate_performance.py -->", "<!-- end of tables -->"
OWN, OVER = "jaxdelegate", "litert_xnnpack"
GPU_PEERS = ("litert_gpu", "pytorch", "pytorch_compile", "pytorch_cuda_graphs")
MODES = ("jaxdelegate_integer", "jaxdelegate_float_view")  # of which quant_mode="auto" takes one
ENGINES = (
    OWN,
    *MODES,
    "jaxdelegate_in_stock",
    "jaxdelegate_function",
    "jaxdelegate_on_device",
    "openvino",
    "onnxruntime",
    *GPU_PEERS,
    *(f"{peer}_on_device" for peer in GPU_PEERS),
)
LARGE_MS = 1.0  # for faster models the call counts, not the network alone
OPERATORS = 10  # of each model, those that take longest
SLOWEST = 15  # cold loads

Record = dict[str, Any]
Settings = tuple[Any, ...]
Rows = Sequence[Record]


def read(paths: Iterable[Path]) -> dict[str, list[Record]]:
    """The newest record of each measurement, by bench."""
    newest: dict[tuple[Any, ...], Record] = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record.get("bench") in KEYS:
                newest[record["bench"], *KEYS[record["bench"]](record)] = record
    benches: dict[str, list[Record]] = {}
    for (bench, *_), record in newest.items():
        benches.setdefault(bench, []).append(record)
    return benches


def settings(record: Record) -> Settings:
    """What belongs into one table. Lines of old have no kind: they are of float32 files."""
    kind = record.get("kind", "float32")
    said = dict(record["options"])
    said.pop("platform", None)
    if kind in ("float32", "float16"):
        said.pop("quant_mode", None)  # says nothing of such files
    on_cpu = "cpu" in record["device"].lower()
    device = cpu_name(record) if on_cpu else record["device_kind"]
    return device, record["batch"], record["threads"], kind, tuple(sorted(said.items()))


def cpu_name(record: Record) -> str:
    machine = record["machine"]
    limited = " with AVX2" if machine.get("instruction_set") == "avx2" else ""
    return re.sub(r"\(R\)| Processor", "", str(machine["cpu"])) + limited


_STEP = "threads", "graph", "signature", "filled"  # what a signature's time depends on
KEYS: dict[str, Callable[[Record], tuple[Any, ...]]] = {
    "compare": lambda r: (r["graph"], settings(r)),
    "operators": lambda r: (r["graph"], r["device"], r["threads"], r["index"]),
    "invoke_overhead": lambda r: (r["device"], r["bytes"]),
    "decoders": lambda r: (cpu_name(r), r["weights"], r["rows"], r["threads"]),
    "signature_steps": lambda r: (cpu_name(r), *(r[k] for k in _STEP)),
    "scaling": lambda r: (r["graph"], r["device"], r["threads"], r["batch"], r["size"]),
    "startup": lambda r: (r["graph"], str(r["options"])),
    "cold_loads": lambda r: (r["graph"], r["mode"]),
}


def title(of: Settings, records: Rows) -> str:
    device, batch, threads, kind, options = of
    words = [f"{name}={value}" for name, value in options]
    files = [] if kind == "float32" else [f"{kind} weights" if kind == "float16" else kind]
    unit = "thread" if threads == 1 else "threads"
    size = [f"batch {batch}", f"{threads} {unit}"]
    return ", ".join([device, software(records), *size, *files, *words])


def software(records: Rows) -> str:
    """Python and jax, in the versions of which someone chooses."""
    machines = [record["machine"] for record in records]
    versions = {(_minor(m["python"]), _minor(m["versions"]["jax"])) for m in machines}
    return "; ".join(f"Python {python} and jax {jax}" for python, jax in sorted(versions))


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def ratio(record: Record, engine: str) -> float | None:
    found = record["ratio_to_litert"].get(engine)
    return None if found is None else float(found["median"])


def mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def is_counted(record: Record) -> bool:
    """Whether ours and XNNPACK ran the model."""
    return "refused" not in record


def is_large(record: Record) -> bool:
    return bool(record["ms"][OVER]["median"] > LARGE_MS)


def grouped(records: Rows) -> dict[Settings, list[Record]]:
    groups: dict[Settings, list[Record]] = {}
    for record in records:
        groups.setdefault(settings(record), []).append(record)
    return dict(sorted(groups.items(), key=lambda item: _place(item[0])))


def _place(of: Settings) -> tuple[Any, ...]:
    device, batch, threads, kind, options = of
    return device, batch, threads, kind != "float32", kind, len(options), str(options)


def comparison(records: Rows) -> list[str]:
    """A table for each setting, the plot of all of them above."""
    groups = {of: rows for of, rows in grouped(records).items() if any(map(is_counted, rows))}
    if not groups:
        return []
    counted = {of: [r for r in rows if is_counted(r)] for of, rows in groups.items()}
    plot_ratios(counted)
    lines = [*summary(counted), "", f"![ratios]({RATIOS.name})"]
    for of, rows in counted.items():
        lines += ["", f"### {title(of, rows)}", "", *table(rows), *refusals(groups[of])]
    return lines


def summary(groups: Mapping[Settings, Rows]) -> list[str]:
    """A line for each setting: geometric means of large and small models, and both ends."""
    lines = [
        "",
        row(["setting", f"over {LARGE_MS:g} ms", "smaller", "fastest", "slowest"]),
        "|---|--:|--:|---|---|",
    ]
    for of, records in groups.items():
        ordered = sorted((value, r["graph"]) for r in records if (value := ratio(r, OWN)))
        if ordered:
            sizes = [[r for r in records if is_large(r) is large] for large in (True, False)]
            ends = [f"{name} {value:.2f}" for value, name in (ordered[0], ordered[-1])]
            means = (_mean_of(size, OWN) for size in sizes)
            lines.append(row([title(of, records), *means, *ends]))
    return lines


def _mean_of(records: Rows, engine: str) -> str:
    """The geometric mean, and in brackets of how many models."""
    values = [v for r in records if (v := ratio(r, engine)) is not None]
    return f"**{mean(values):.2f}** ({len(values)})" if values else "-"


def table(records: Rows) -> list[str]:
    """Time over XNNPACK's, model by model, then the geometric mean of each column."""
    engines = [e for e in ENGINES if any(ratio(r, e) is not None for r in records)]
    extra = [name for name, value in EXTRA.items() if any(value(r) is not None for r in records)]
    ordered = sorted(records, key=lambda r: ratio(r, OWN) or 0)
    lines = [
        row(["model", "XNNPACK, ms", *engines, *extra]),
        "|---|--:|" + "--:|" * (len(engines) + len(extra)),
    ]
    for r in ordered:
        ms = f"{r['ms'][OVER]['median']:.2f}"
        cells = [ratio(r, e) for e in engines] + [EXTRA[name](r) for name in extra]
        lines.append(row([r["graph"], ms, *map(_cell, cells)]))
    for name, large in ((f"over {LARGE_MS:g} ms", True), ("smaller", False)):
        own = [r for r in records if is_large(r) is large]
        if own:
            means = [_mean_of(own, e) for e in engines]
            lines.append(row([f"**geometric mean**, {name}", "", *means, *("" for _ in extra)]))
    return lines


def _of_twin(record: Record) -> float | None:
    found = record.get("ratio_to_float_twin")
    return None if found is None else float(found["median"])


def _of_roofline(record: Record) -> float | None:
    fastest = record["ms"].get("jaxdelegate_on_device") or record["ms"][OWN]
    bound = record.get("roofline_ms")
    return None if bound is None else float(bound / fastest["median"])


def _of_peers(engine: str, peers: Sequence[str]) -> Callable[[Record], float | None]:
    """Time over that of the fastest peer there is."""

    def of_peers(record: Record) -> float | None:
        there = [v for peer in peers if (v := ratio(record, peer)) is not None]
        own = ratio(record, engine)
        return own / min(there) if there and own is not None else None

    return of_peers


EXTRA: dict[str, Callable[[Record], float | None]] = {
    "over the fastest GPU peer": _of_peers(OWN, GPU_PEERS),
    "the same on the device": _of_peers(
        "jaxdelegate_on_device", [f"{peer}_on_device" for peer in GPU_PEERS]
    ),
    "over the better mode": _of_peers(OWN, MODES),
    "over its float32 network": _of_twin,
    "of the roofline": _of_roofline,
}


def refusals(records: Rows) -> list[str]:
    """Which models did not run, and why."""
    found = [f"{r['graph']} ({r['refused']})" for r in records if "refused" in r]
    return ["", f"Not run: {'; '.join(found)}."] if found else []


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def plot_ratios(groups: Mapping[Settings, Rows]) -> None:
    """Each model's ratio in each setting, as dots; the line at 1 is XNNPACK."""
    figure = Figure(figsize=(9, 0.6 + 0.9 * len(groups)), layout="constrained")
    axes = figure.subplots()
    for place, records in enumerate(groups.values()):
        values = [v for r in records if (v := ratio(r, OWN)) is not None]
        axes.scatter(values, [place] * len(values), s=28, alpha=0.6, color="tab:blue")
        axes.scatter([mean(values)], [place], marker="|", s=400, color="tab:red")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(groups)), [title(*group) for group in groups.items()])
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlabel("time / XNNPACK's; dots: models, red: geometric mean")
    figure.savefig(RATIOS, metadata={"Date": None})


def operators(records: Rows) -> list[str]:
    """Where the time goes: the operators of each model that take ours longest."""
    lines: list[str] = []
    timed = [r for r in records if "refused" not in r]
    for graph, device, threads in sorted({(r["graph"], r["device"], r["threads"]) for r in timed}):
        own = [
            r for r in timed if (r["graph"], r["device"], r["threads"]) == (graph, device, threads)
        ]
        own.sort(key=lambda r: -_all_us(r, OWN))
        lines += ["", f"### Operators of {graph}, {device.split(':')[0]}, threads: {threads}", ""]
        lines += [
            row(["operator", "input, filter", "count", "XNNPACK, us", f"{OWN}, us", "ratio",
                 "XNNPACK, of roofline", f"{OWN}, of roofline"]),
            "|---|---|--:|--:|--:|--:|--:|--:|",
        ]  # fmt: skip
        lines += [_operator(r) for r in own[:OPERATORS]]
        ours, theirs = (sum(_all_us(r, e) for r in own) for e in (OWN, OVER))
        lines.append(row([f"**all {len(own)}**", "", "", f"{theirs:.0f}", f"{ours:.0f}",
                          f"**{ours / theirs:.2f}**", "", ""]))  # fmt: skip
    return lines and [*_OPERATORS_HEAD, _machines(timed), *lines]


_OPERATORS_HEAD = (
    "",
    "## Where the time goes: operators against XNNPACK and the roofline",
    "",
    "Each operator is timed as a separate model; in whole models XLA fuses element-wise ones.",
    "The roofline is the larger of two times: FLOPs at the measured peak, bytes at the measured",
    "bandwidth of arrays of that size. The last line counts each operator as often as it occurs",
    "in the model.",
)


def _all_us(record: Record, engine: str) -> float:
    return float(1e3 * record["count"] * record["ms"][engine]["median"])


def _operator(record: Record) -> str:
    shapes = ["x".join(map(str, shape)) for shape in record["shapes"][:-1] if len(shape) > 1]
    us = [f"{1e3 * record['ms'][e]['median']:.0f}" for e in (OVER, OWN)]
    shares = [f"{record['reached'][e]['of_roofline']:.0%}" for e in (OVER, OWN)]
    name, count = record["operator"], str(record["count"])
    return row([name, ", ".join(shapes), count, *us, _cell(ratio(record, OWN)), *shares])


def overhead(records: Rows) -> list[str]:
    """What invoke costs, compared with LiteRT."""
    records = [r for r in records if "litert" in r["us"]]  # lines of old have no peer
    if not records:
        return []
    lines = [
        "",
        "## What `invoke` costs",
        "",
        "A model of one ADD, in microseconds. *By XLA*: a call of its executable by XLA's runtime,",
        "which `invoke` does without if a program is small",
        "([direct calls](design/xla_cpu.md#direct-calls)). *Whole*: `set_tensor`, `invoke` and",
        "`get_tensor`.",
        f"In brackets the ratio to LiteRT. {_machines(records)}",
        "",
        row(["bytes", "LiteRT", "by XLA", "invoke", "LiteRT, whole", "whole"]),
        "|--:|" + "--:|" * 5,
    ]
    return lines + [
        row([f"{r['bytes']:,}", *_costs(r["us"])])
        for r in sorted(records, key=lambda r: r["bytes"])
    ]


def _costs(us: Mapping[str, Mapping[str, float]]) -> list[str]:
    times = {name: f"{spread['median']:.1f}" for name, spread in us.items()}
    ratios = {name: f" ({us[name]['median']:.2f})" for name in ("over_litert", "whole_over_litert")}
    return [
        times["litert"],
        times["by_xla"],
        times["invoke"] + ratios["over_litert"],
        times["litert_set_invoke_get"],
        times["set_invoke_get"] + ratios["whole_over_litert"],
    ]


_DECODERS = ("weights", "file, MB", "rows", "threads", "XNNPACK")


def decoders(records: Rows) -> list[str]:
    """Layers of a decoder with weights of few bits: times, ratios and memory."""
    if not records:
        return []
    ours = {"jaxdelegate": "jaxdelegate", "prepared": "under `jit`"}
    lines = [
        "",
        "## Weights of few bits",
        "",
        "Layers of a language model without attention, in LiteRT's dynamic range",
        "(`bench/decoders.py`): milliseconds for one row (a decoding step) and for 128 rows (a",
        "prompt), and in brackets the ratio to XNNPACK. *Under `jit`*:",
        '`model.function(weights="prepared")`. Peak memory is beyond',
        f"that of the same process with a tiny model. {_machines(records)}",
        "",
        row([*_DECODERS, *ours.values(), "peak MB, XNNPACK", "peak MB, jaxdelegate"]),
        "|---|" + "--:|" * (len(_DECODERS) + 3),
    ]
    for r in sorted(records, key=lambda r: (r["threads"], r["rows"], r["weights"])):
        ms, peak = r["ms"], r["peak_mb"]
        cells = [f"{ms[n]['median']:.2f} ({r['ratio_to_litert'][n]['median']:.2f})" for n in ours]
        head = [r["weights"], f"{r['file_mb']:.0f}", str(r["rows"]), str(r["threads"])]
        memory = (f"{peak[n]:.0f}" for n in ("litert_xnnpack", "jaxdelegate"))
        lines.append(row([*head, f"{ms['litert_xnnpack']['median']:.2f}", *cells, *memory]))
    return lines


def signature_steps(records: Rows) -> list[str]:
    """Signatures of whole language models: times and ratios."""
    if not records:
        return []
    names = {
        "litert_call": "LiteRT's call",
        "on_device": "on device",
        "jit": "under `jit`",
    }
    lines = [
        "",
        "## Signatures of language models",
        "",
        "Whole models with caches, one run of a signature (`bench/signature_steps.py`):",
        "milliseconds, and in brackets the ratio to LiteRT's invoke, whose inputs are set already.",
        "*At*: where in the caches the tokens are. Our attention reads no places after them, which",
        "the mask hides.",
        "*LiteRT's call*: a SignatureRunner, which copies the caches in and out. *On device*:",
        "`on_device` of ours, whose caches are arrays of jax. *Under `jit`*:",
        '`function(weights="prepared")` with donated caches.',
        _machines(records),
        "",
        row(["model", "signature", "at", "threads", "LiteRT", *names.values()]),
        "|---|---|---|" + "--:|" * (2 + len(names)),
    ]
    places = {0.0: "the start", 1.0: "the end"}
    for r in sorted(records, key=lambda r: [r[k] for k in _STEP]):
        ms, ratios = r["ms"], r["ratio_to_litert"]
        own = [f"{ms[n]['median']:.1f} ({ratios[n]['median']:.2f})" for n in names]
        graph = r["graph"].partition(".")[0]
        at = places.get(r["filled"], f"{r['filled']:.0%}")
        head = [graph, r["signature"], at, str(r["threads"]), f"{ms['litert']['median']:.1f}"]
        lines.append(row([*head, *own]))
    return lines


def scaling(records: Rows) -> list[str]:
    """The plot of cost by batch and by size of image."""
    if not records:
        return []
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    images, pixels = figure.subplots(1, 2)
    _draw(images, [r for r in records if r["size"] == 224], lambda r: r["batch"])
    _draw(pixels, [r for r in records if r["batch"] == 1], lambda r: r["size"] ** 2 / 1000)
    images.set_xlabel("images at a time")
    pixels.set_xlabel("thousand pixels of one image")
    images.set_ylabel("ms")
    images.legend()
    figure.savefig(SCALING, metadata={"Date": None})
    plot = f"![scaling]({SCALING.name})"
    return ["", "## Cost against batch and size", "", plot, "", f"{_NOTE} {_machines(records)}"]


_NOTE = "MobileNet v1, one call. The dotted lines are linear in their first point."


def _draw(axes: Any, records: Rows, place: Callable[[Record], float]) -> None:
    ordered = sorted(records, key=place)
    places = [place(r) for r in ordered]
    for engine, color in ((OWN, "tab:blue"), (OVER, "tab:orange")):
        ms = [r["ms"][engine]["median"] for r in ordered]
        axes.plot(places, ms, marker="o", markersize=4, color=color, label=engine)
        line = [ms[0] * at / places[0] for at in places]
        axes.plot(places, line, linestyle=":", linewidth=0.8, color=color)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)


STAGES = ("start", "imports", "ready", "first", "exit", "process")


def startup(records: Rows) -> list[str]:
    """Whole processes, stage by stage."""
    if not records:
        return []
    lines = [
        "",
        "## Start-up",
        "",
        "Whole processes that run one inference, from exec to exit (bench/startup.py): median",
        "milliseconds of interleaved runs. The stages are: start of Python, imports, model ready,",
        "first result, exit. `warm` loads its program from the cache directory, `cold` compiles",
        "and stores it. The last column is the ratio of whole processes to LiteRT's, run by run.",
        _machines(records),
        "",
        row(["model", "process", *STAGES[:-1], "whole", "over LiteRT"]),
        "|---|---|" + "--:|" * (len(STAGES) + 1),
    ]
    for record in sorted(records, key=lambda r: str(r["graph"])):
        options = "".join(f", {name}={value}" for name, value in record["options"].items())
        for kind in ("litert", "warm", "cold"):
            ms = record["ms"][kind]
            ratio = record["over_litert"].get(kind, [None])[0]
            name = f"{Path(record['graph']).stem}{options}"
            lines.append(row([name, kind, *(f"{ms[s]:.0f}" for s in STAGES), _cell(ratio)]))
    return lines


def cold_loads(records: Rows) -> list[str]:
    """Loads without a cache: how many there are, and the slowest."""
    loads = [r for r in records if "error" not in r]
    if not loads:
        return []
    by_graph: dict[str, dict[str, Record]] = {}
    for record in loads:
        by_graph.setdefault(record["graph"], {})[record["mode"]] = record
    modes = sorted({r["mode"] for r in loads})
    slowest = sorted(by_graph, key=lambda g: -max(r["wall"] for r in by_graph[g].values()))
    lines = [
        "",
        "## Cold loads",
        "",
        "Seconds of wall clock from reading the file until the model is ready, without imports and",
        "without a cache (bench/cold_loads.py), and in brackets XLA's part, for the slowest",
        f"{min(SLOWEST, len(by_graph))} of {len(by_graph)} models. `load` in",
        f"bench/results/cold_loads.jsonl is the machine's other load. {_machines(records)}",
        "",
        row(["model", *modes]),
        "|---|" + "--:|" * len(modes),
    ]
    for graph in slowest[:SLOWEST]:
        own = (by_graph[graph].get(mode) for mode in modes)
        lines.append(row([graph, *("-" if r is None else _seconds(r) for r in own)]))
    return lines


def _seconds(record: Record) -> str:
    return f"{record['wall']:.2f} ({record['xla']:.2f})"


def _machines(records: Rows) -> str:
    processors = "; ".join(sorted({cpu_name(r) for r in records}))
    return f"Measured on {processors}, with {software(records)}."


def main(arguments: Sequence[str]) -> None:
    mpl.rcParams["svg.hashsalt"] = "performance"
    paths = [Path(a) for a in arguments] or sorted(DOCS.parent.glob("bench/results/*.jsonl"))
    benches = read(paths)
    sections = (
        *comparison(benches.get("compare", [])),
        *operators(benches.get("operators", [])),
        *decoders(benches.get("decoders", [])),
        *signature_steps(benches.get("signature_steps", [])),
        *overhead(benches.get("invoke_overhead", [])),
        *scaling(benches.get("scaling", [])),
        *startup(benches.get("startup", [])),
        *cold_loads(benches.get("cold_loads", [])),
    )
    if not sections:
        raise SystemExit(f"no results in {', '.join(map(str, paths)) or 'bench/results'}")
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    text = f"{before}{BEGIN}\n\n" + "\n".join(sections) + f"\n\n{END}{after}"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
