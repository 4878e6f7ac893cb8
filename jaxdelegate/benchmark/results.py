"""The results of a benchmark and their file formats."""

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import Any

from jaxdelegate import protos
from jaxdelegate.benchmark.applied import AppliedDelegate
from jaxdelegate.benchmark.memory import DeviceMemory, Footprint, HostMemory
from jaxdelegate.benchmark.op_profile import Profile
from jaxdelegate.benchmark.peaks import DevicePeaks
from jaxdelegate.benchmark.timing import Throughput
from jaxdelegate.measuring.stats import Stat
from jaxdelegate.report.json_records import plain
from jaxdelegate.text import WIDTH, wrapped

_MS = 1000.0  # microseconds
# Fields of the JSON record with the names that they have here.
_AS_THEY_ARE = (
    *("model", "interpreter", "signature", "inputs", "seed", "batch", "delegates"),
    *("platform", "device"),
)


@dataclasses.dataclass(frozen=True)
class InputRecord:
    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkReport:
    """One benchmark. Times are in microseconds. None: not requested, or without JaxDelegate."""

    name: str
    model: str  # the path, or "<bytes>"
    model_bytes: int  # the file's size
    interpreter: str  # "jaxdelegate" or "litert"
    signature: str  # its key, or empty
    inputs: tuple[InputRecord, ...]  # the shapes that ran
    seed: int  # draws the random inputs
    batch: int  # the first dimension of the first input, or 1
    delegates: tuple[AppliedDelegate, ...]  # in their order of application
    platform: str | None  # "gpu", "tpu" or "cpu" runs the partitions; None: no JaxDelegate
    device: str | None  # its name; None without JaxDelegate
    startup_us: int  # creating the delegates, and starting jax's devices
    init_us: int  # reading, partitioning, compiling, moving weights, allocating tensors
    input_bytes: int  # the size of all inputs together
    warmup: Stat  # the untimed runs; the first one is the first inference
    inference: Stat  # the timed runs
    throughput: Throughput | None  # several runs in flight; None: not requested
    footprint: Footprint  # growth of the process
    device_memory: DeviceMemory | None = None
    profile: Profile | None = None
    precision: Any = None
    peaks: DevicePeaks | None = None
    # The delegate flags that the user set.
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)  # the libraries' versions

    @property
    def inferences_per_second(self) -> float:
        """Batch elements per second in the timed runs; 0 without runs."""
        total = self.inference.sum
        return 1e6 * self.batch * self.inference.count / total if total else 0.0

    @property
    def megabytes_per_second(self) -> float:
        """Input MiB per second in the timed runs, TFLite's measure of throughput."""
        total = self.inference.sum
        bytes_per_second = 1e6 * self.input_bytes * self.inference.count / total if total else 0.0
        return bytes_per_second / 2**20

    def metrics(self) -> dict[str, Any]:
        """The fields of TFLite's BenchmarkResult (tools/benchmark/proto), by their names."""
        stat = self.inference
        memory: dict[str, Any] = {
            "init_footprint_kb": self.footprint.init_kb,
            "overall_footprint_kb": self.footprint.overall_kb,
        }
        if self.footprint.peak_mb is not None:
            memory["peak_mem_mb"] = self.footprint.peak_mb
        return {
            "name": self.name,
            "latency_metrics": {
                "avg_ms": stat.avg / _MS,
                "min_ms": stat.min / _MS,
                "max_ms": stat.max / _MS,
                "stddev_ms": stat.std / _MS,
                "median_ms": stat.percentile(50) / _MS,
                "p5_ms": stat.percentile(5) / _MS,
                "p95_ms": stat.percentile(95) / _MS,
                "init_ms": self.init_us / _MS,
                "first_inference_ms": self.warmup.first / _MS,
                "average_warm_up_ms": self.warmup.avg / _MS,
            },
            "memory_metrics": memory,
            "misc_metrics": {
                "model_size_mb": self.model_bytes / 1e6,
                "num_runs": stat.count,
                "num_warmup_runs": self.warmup.count,
                "model_throughput_in_mb_per_sec": self.megabytes_per_second,
            },
        }

    def as_dict(self) -> dict[str, Any]:
        record = {
            **self.metrics(),
            **{name: plain(getattr(self, name)) for name in _AS_THEY_ARE},
            "startup_ms": self.startup_us / _MS,
            "warmup_ms": self.warmup.as_dict(_MS),
            "inference_ms": {
                **self.inference.as_dict(_MS),
                "values": [us / _MS for us in self.inference.values],
            },
            "inferences_per_second": self.inferences_per_second,
            "throughput": plain(self.throughput),
            "device_memory": plain(self.device_memory),
            "flags": dict(self.flags),
            "versions": dict(self.versions),
        }
        if self.profile is not None:
            record["op_profile"] = self.profile.as_dict()
            record["operators"] = plain(self.profile.work)
        if self.precision is not None:
            record["precision"] = plain(self.precision)
        if self.peaks is not None:
            record["peaks"] = self.peaks.as_dict()
        return record


def result_lines(report: BenchmarkReport) -> list[str]:
    footprint = report.footprint
    return [
        f"Inference timings in us: Init: {report.init_us}, "
        f"First inference: {report.warmup.first}, Warmup (avg): {report.warmup.avg:g}, "
        f"Inference (avg): {report.inference.avg:g}",
        "Note: as the benchmark tool itself affects memory footprint, the following is only "
        "APPROXIMATE to the actual memory footprint of the model at runtime. Take the "
        "information at your discretion.",
        "Memory footprint delta from the start of the tool (MB): "
        f"init={footprint.init_kb / 1024:g} overall={footprint.overall_kb / 1024:g}",
        *([] if footprint.peak_mb is None else _peak_lines(footprint.peak_mb)),
        *(wrapped(line, WIDTH - len("INFO: ")) for line in _our_lines(report)),
    ]


def _peak_lines(peak_mb: float) -> list[str]:
    memory = HostMemory.now()
    return [
        f"Overall peak memory footprint (MB) via periodic monitoring: {peak_mb:g}",
        "Memory status at the end of execution:",
        f"- VmRSS              : {memory.resident // 1024} MB",
        f"+ RssAnnon           : {(memory.resident - memory.shared) // 1024} MB",
        f"+ RssFile + RssShmem : {memory.shared // 1024} MB",
    ]


def _our_lines(report: BenchmarkReport) -> list[str]:
    lines = [
        f"Throughput: {report.inferences_per_second:g} inferences/s "
        f"({report.megabytes_per_second:g} MB/s), batch {report.batch}, seed {report.seed}"
    ]
    if report.throughput is not None:
        lines.append(str(report.throughput))
    lines += [row.remark for row in report.delegates if row.remark]
    if report.device_memory is not None:
        lines.append(f"Device memory (MB) of {report.device}: {report.device_memory}")
    return lines


def row_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a table row, from the result of `BenchmarkReport.as_dict`."""
    row = {name: record[name] for name in ("name", "model", "batch", "interpreter")}
    row["platform"] = record["platform"] or ""
    for group in ("latency_metrics", "memory_metrics", "misc_metrics"):
        row |= record[group]
    row["inferences_per_second"] = record["inferences_per_second"]
    memory = record["device_memory"]
    row["device_peak_bytes"] = "" if memory is None else (memory["peak_bytes"] or "")
    return row


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def to_proto(report: BenchmarkReport) -> bytes:
    """The bytes of a tflite.tools.benchmark.BenchmarkResult."""
    message = protos.message("tflite.tools.benchmark.BenchmarkResult")
    for name, value in report.metrics().items():
        if isinstance(value, Mapping):
            for field, number in value.items():
                setattr(getattr(message, name), field, number)
        elif value:
            setattr(message, name, value)
    content: bytes = message.SerializeToString()
    return content
