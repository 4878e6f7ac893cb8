"""Write the tables of docs/scale.md: what 1 to 1,000 devices do and cost, by measured rates.

    python docs/generate_scale.py [--core_price=0.04 ...] [--print]

Rates of one device come from bench/results (compare, startup, scale, invoke_overhead,
compile_for_gpu); everything else is an assumption with a flag. With other values than the defaults
use --print: the page has the defaults.
"""

import argparse
import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "scale.md"
RESULTS = ROOT / "bench" / "results"
END = "<!-- end of table -->"
Row = dict[str, Any]

MODELS = ("mobilenet_v2_1.0_224", "efficientnet_b0_224", "resnet50_224", "inception_v3_299")
COUNTS = (1, 8, 64, 256, 1000)
BITS = 8e-9  # of a byte, in Gbit


def _assumed(default: float, unit: str, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"unit": unit, "help": text})


@dataclasses.dataclass(frozen=True)
class Assumptions:
    """Values that were not measured in this project."""

    items: float = _assumed(1e6, "images", "a job")
    item_bytes: float = _assumed(
        126e3, "bytes", "of a file; ImageNet's validation set is 6.3 GB of 50,000"
    )
    input_bytes: float = _assumed(
        150528, "bytes", "of a decoded image, uint8 [224, 224, 3], as sent to a GPU or a server"
    )
    cores_per_host: float = _assumed(64, "cores", "of a host for CPU inference")
    gpus_per_host: float = _assumed(8, "GPUs", "of a host")
    host_gbit: float = _assumed(25, "Gbit/s", "network of a host")
    storage_gbit: float = _assumed(400, "Gbit/s", "of the storage, for all hosts")
    core_price: float = _assumed(0.04, "USD per core-hour", "an assumption of November 2026")
    gpu_price: float = _assumed(3.0, "USD per H100-hour", "an assumption of November 2026")
    gpu_tbyte: float = _assumed(3.352, "TB/s", "memory of an H100 (bench/h100.txtpb)")
    gpu_tflop: float = _assumed(989, "TFLOP/s", "of an H100 in float16, dense (data sheet)")


@dataclasses.dataclass(frozen=True)
class Measured:
    """Figures for one core or one process, from bench/results."""

    core_ms: dict[str, float]  # an image, batch 8, one thread, float32
    gpu: dict[str, Row]  # a program for an H100, batch 128, float16, by model
    decode_ms: float
    file_bytes: float
    pipeline_us: float
    call_us: float  # of an interpreter, with copies, 8 float32 images
    ray_ms: float  # a batch
    ray_batch: int
    ray_block_mb: int
    http_us: float
    cold_s: tuple[float, float]  # a process, least and most
    warm_s: tuple[float, float]
    processor: str


def lines(name: str) -> list[Row]:
    """The lines of a file of bench/results."""
    text = (RESULTS / f"{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines() if line]


def measured() -> Measured:
    """The figures, the latest of each.

    Raises:
        KeyError: bench/scale.py has not measured one of them.
    """
    compared = [
        row
        for row in lines("compare")
        if (row["batch"], row["threads"], row["kind"]) == (8, 1, "float32")
    ]
    scale = {row["what"]: row for row in lines("scale")}
    gpus = {
        row["graph"].removesuffix(".tflite"): row
        for row in lines("compile_for_gpu")
        if (row["batch"], row["compute_dtype"]) == (128, "float16")
        and "decoder_layers" not in row["graph"]  # their rows are tokens, not images
        and "H100" in row["compiled_for"]
        and row["moved_mb"] is not None
        and row["gflop"] is not None
    }
    starts = [row["ms"] for row in lines("startup")]
    cold = [row["cold"]["process"] / 1000 for row in starts]
    warm = [row["warm"]["process"] / 1000 for row in starts]
    (call,) = (r for r in lines("invoke_overhead") if (r["bytes"], r["batch"]) == (4816896, 8))
    return Measured(
        core_ms={row["graph"]: row["ms"]["jaxdelegate"]["median"] / 8 for row in compared},
        gpu=gpus,
        decode_ms=scale["decode"]["cpu_ms_per_image"]["median"],
        file_bytes=scale["decode"]["file_bytes"],
        pipeline_us=scale["pipeline"]["cpu_us_per_image"]["median"],
        call_us=call["us"]["set_invoke_get"]["median"],
        ray_ms=scale["ray"]["wall_ms_per_batch"]["median"],
        ray_batch=scale["ray"]["batch"],
        ray_block_mb=scale["ray"]["block_mb"],
        http_us=scale["http"]["cpu_us_per_request"]["median"],
        cold_s=(min(cold), max(cold)),
        warm_s=(min(warm), max(warm)),
        processor=compared[-1]["machine"]["cpu"],
    )


# ---- the model


@dataclasses.dataclass(frozen=True)
class Cluster:
    """What some devices do.

    Attributes:
        rate: images a second.
        limit: what it is limited by.
        gbit: that all hosts read.
    """

    rate: float
    limit: str
    gbit: float


def on_cores(m: Measured, a: Assumptions, model: str, cores: int) -> Cluster:
    """A job on CPU cores that decode, too."""
    seconds = (m.core_ms[model] + m.decode_ms) / 1000 + m.pipeline_us / 1e6
    hosts = math.ceil(cores / a.cores_per_host)
    candidates = {
        "cores": cores / seconds,
        "hosts' network": hosts * a.host_gbit / (a.item_bytes * BITS),
        "storage": a.storage_gbit / (a.item_bytes * BITS),
    }
    limit = min(candidates, key=lambda name: candidates[name])
    rate = candidates[limit]
    return Cluster(rate, limit, rate * a.item_bytes * BITS)


def gpu_at_peaks(m: Measured, a: Assumptions, model: str) -> float:
    """Images per second of a GPU whose kernels reach its peaks and have no launch cost."""
    row = m.gpu[model]
    by_memory = row["moved_mb"] * 1e6 / (a.gpu_tbyte * 1e12)
    by_products = row["gflop"] / (a.gpu_tflop * 1e3)
    return float(row["batch"]) / max(by_memory, by_products)


# ---- the tables


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """In Markdown: the first column is text, the others are numbers."""
    cells = [f"| {' | '.join(head)} |", "|---" + "|--:" * (len(head) - 1) + "|"]
    return "\n".join([*cells, *(f"| {' | '.join(map(_text, row))} |" for row in rows)])


def _text(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    if value >= 100:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.2g}" if value < 1 else f"{value:.3g}"


def assumptions(a: Assumptions) -> str:
    """The assumptions, each with its flag."""
    rows = (
        (f"`--{f.name}`", getattr(a, f.name), f.metadata["unit"], f.metadata["help"])
        for f in dataclasses.fields(a)
    )
    head = "| flag | value | unit | meaning |\n|---|--:|---|---|\n"
    return head + "\n".join(
        f"| {flag} | {_number(value)} | {unit} | {text} |" for flag, value, unit, text in rows
    )


def figures(m: Measured) -> str:
    """The measured figures and their sources."""
    head = "| measured | value | unit | by |\n|---|--:|---|---|\n"
    rows = [
        *((f"{name}, an image", m.core_ms[name], "ms of a core", "compare") for name in MODELS),
        (
            f"reading, decoding and resizing a JPEG of {m.file_bytes / 1e3:.0f} kB",
            m.decode_ms,
            "ms of a core",
            "scale",
        ),
        ("`evaluation`'s pipeline, an image", m.pipeline_us, "us of a core", "scale"),
        (
            "interpreter: set, invoke, get, 8 float32 images, one ADD",
            m.call_us,
            "us",
            "invoke_overhead",
        ),
        (
            f"Ray Data, a batch of {m.ray_batch} images in and out, in blocks of "
            f"{m.ray_block_mb} MiB, on two cores",
            m.ray_ms,
            "ms",
            "scale",
        ),
        ("uvicorn, a request with one image", m.http_us, "us of a core", "scale"),
        ("a whole process that compiles", f"{_range(m.cold_s)}", "s", "startup"),
        ("a whole process that loads its program", f"{_range(m.warm_s)}", "s", "startup"),
    ]
    return head + "\n".join(f"| {a} | {_text(b)} | {c} | `{d}.jsonl` |" for a, b, c, d in rows)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


def _range(values: tuple[float, float]) -> str:
    return f"{values[0]:.2g} to {values[1]:.2g}"


def cores(m: Measured, a: Assumptions) -> str:
    """A job on 1 to 1,000 cores."""
    rows = []
    for model in MODELS:
        for count in COUNTS:
            found = on_cores(m, a, model, count)
            seconds = a.items / found.rate
            rows.append(
                (
                    model if count == COUNTS[0] else "",
                    f"{count:,}",
                    found.rate,
                    found.gbit,
                    found.limit,
                    _duration(seconds),
                    count * seconds / 3600 * a.core_price,
                    f"{_text(100 * max(m.cold_s) / seconds)}%",
                )
            )
    head = ("model", "cores", "images/s", "Gbit/s", "limit", "job", "USD", "start / job")
    return table(head, rows)


def _duration(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:.3g} h"
    return f"{seconds / 60:.3g} min" if seconds >= 120 else f"{seconds:.3g} s"


def gpus(m: Measured, a: Assumptions) -> str:
    """Rates of an H100 at its peaks, and the resources to feed it."""
    rows = []
    for model in sorted(m.gpu, key=lambda name: -gpu_at_peaks(m, a, name)):
        rate = gpu_at_peaks(m, a, model)
        fed = a.host_gbit / (a.item_bytes * BITS) / a.gpus_per_host
        rows.append(
            (
                model,
                rate,
                rate * m.decode_ms / 1000,
                rate * a.item_bytes * BITS,
                rate * a.input_bytes / 1e9,
                fed,
                a.items / rate / 3600 * a.gpu_price,
                a.items / min(rate, fed) / 3600 * a.gpu_price,
            )
        )
    head = (
        "program, float16, batch 128",
        "images/s, optimistic",
        "cores to decode",
        "Gbit/s of files",
        "GB/s to the GPU",
        "images/s that the network can feed",
        "USD per job at that rate",
        "USD per job, fed by the network",
    )
    return table(head, rows)


def engines(m: Measured, a: Assumptions) -> str:
    """The limit of each engine, with a model that takes no time."""
    batch = 8
    ray = m.ray_batch / m.ray_ms * 1000
    http = 1e6 / m.http_us
    rows = [
        (
            "threads of one process (`--num_devices`, `Interpreter`s)",
            f"{_text(1e6 / m.pipeline_us)} images/s",
            "the lock of one Python interpreter, which the pipeline holds while it handles an "
            "image; decoding and programs release it",
        ),
        (
            "one `Interpreter`, one thread",
            f"{_text(batch / m.call_us * 1e6)} images/s",
            "copies of 8 float32 images and their results",
        ),
        (
            "several processes",
            f"{_text(1e6 / m.pipeline_us)} images/s each",
            "cores, memory bandwidth, and a copy of the weights in each process",
        ),
        (
            "Ray Data, one node of two cores",
            f"{_text(ray)} images/s",
            "copies in the object store; grows with the number of nodes (not measured); smaller "
            "blocks cost more, because the driver schedules all tasks",
        ),
        (
            "uvicorn, Ray Serve: one worker",
            f"{_text(http)} requests/s",
            f"its event loop: {_text(http * a.input_bytes * BITS)} Gbit/s of images; more workers, "
            "or more images in a request",
        ),
        (
            "`Model.sharded`, a mesh",
            "not measured",
            "one call for all devices, which waits for the slowest one; each host's process "
            "must prepare its part of the batch",
        ),
    ]
    head = "| engine | limit | reason |\n|---|--:|---|\n"
    return head + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def filled(text: str, a: Assumptions | None = None) -> str:
    """The page with its tables as the results and the assumptions say."""
    m, a = measured(), a or Assumptions()
    tables = {
        "assumptions": assumptions(a),
        "figures": figures(m),
        "cores": cores(m, a),
        "gpus": gpus(m, a),
        "engines": engines(m, a),
    }
    for name, content in tables.items():
        before, mark, rest = text.partition(f"<!-- table: {name} -->\n")
        if not mark:
            raise ValueError(f"docs/scale.md has no mark <!-- table: {name} -->")
        _, _, after = rest.partition(END)
        text = f"{before}{mark}\n{content}\n\n{END}{after}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description="Tables of docs/scale.md.")
    for field in dataclasses.fields(Assumptions):
        unit, text = field.metadata["unit"], field.metadata["help"]
        parser.add_argument(
            f"--{field.name}", type=float, default=field.default, help=f"{text}; {unit}"
        )
    parser.add_argument("--print", action="store_true", help="Print; leave the page as it is.")
    given = vars(parser.parse_args())
    only_print = given.pop("print")
    a = Assumptions(**given)
    if a != Assumptions() and not only_print:
        parser.error("the page has the defaults; with other values use --print")
    text = filled(PAGE.read_text(), a)
    if only_print:
        print(text)
    else:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
