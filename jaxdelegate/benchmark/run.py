"""One benchmark, with the order of steps and the log of TFLite's benchmark_model."""

import contextlib
import dataclasses
import importlib
import importlib.metadata
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import jaxdelegate.providers as registrar
from jaxdelegate.benchmark import throughput
from jaxdelegate.benchmark.applied import (
    NO_FALLBACK,
    AppliedDelegate,
    applied,
    require_full_delegation,
)
from jaxdelegate.benchmark.energy import EnergyMeter, energy_meter
from jaxdelegate.benchmark.memory import (
    DeviceMemory,
    Footprint,
    HostMemory,
    PeakMonitor,
    reset_peak,
)
from jaxdelegate.benchmark.op_profile import Profile, collect
from jaxdelegate.benchmark.options import BenchmarkOptions
from jaxdelegate.benchmark.peaks import DevicePeaks, measured_peaks
from jaxdelegate.benchmark.results import BenchmarkReport, InputRecord
from jaxdelegate.benchmark.session import ModelSource, Session
from jaxdelegate.benchmark.throughput import Throughput
from jaxdelegate.benchmark.work import OpTime
from jaxdelegate.errors import DelegationError, InterpreterError, OptionError
from jaxdelegate.measuring.inputs import InputLayer, InputSource, UniformValues, free_dimensions
from jaxdelegate.measuring.stats import Stat
from jaxdelegate.model.source import in_bundle, split_path
from jaxdelegate.providers import ProvidedDelegate
from jaxdelegate.providers.parsing import FlagValues
from jaxdelegate.simple_delegate import SimpleDelegate
from jaxdelegate.text import WIDTH, printable, wrapped
from jaxdelegate.xla.options import platform_of

Log = Callable[[str], None]
Callback = Callable[[Session], None]

_LOGGER = logging.getLogger("jaxdelegate")
_LIBRARIES = ("jaxdelegate", "jax", "jaxlib", "ai-edge-litert", "numpy")


def benchmark(
    model: ModelSource,
    options: BenchmarkOptions | None = None,
    *,
    values: FlagValues | None = None,
    log: Log = lambda _line: None,
    before: Callback | None = None,
    after: Callback | None = None,
) -> BenchmarkReport:
    """Measure a model: preparation, first inference, warm-up, timed runs, memory, energy.

    ```python
    report = benchmark("model.tflite", values=providers.flag_values(use_gpu=True))
    print(report.inference.percentile(95), "us")
    ```

    Args:
        model: a .tflite file, or its content.
        options: how to measure.
        values: the delegates and the interpreter, from `providers.flag_values`; None: JaxDelegate.
        log: called with each of TFLite's lines, without the line end.
        before: called with the session when it is ready to run.
        after: called after the last timed run.
    """
    options = options or BenchmarkOptions()
    run = _Run(model, options, values or registrar.flag_values(), log)
    return run.report(before or _nothing, after or _nothing)


def _nothing(_session: Session) -> None:
    return


def _micros() -> int:
    return time.perf_counter_ns() // 1000


@dataclasses.dataclass
class _Prepared:
    session: Session
    delegates: list[AppliedDelegate]
    init_us: int
    steps: list[OpTime]


class _Run:
    def __init__(
        self, model: ModelSource, options: BenchmarkOptions, values: FlagValues, log: Log
    ) -> None:
        self._model, self._options, self._values, self._log = model, options, values, log
        self._bytes = _size(model)
        self._name = "<bytes>" if isinstance(model, bytes) else os.fspath(model)
        self._seed = options.seed if options.seed >= 0 else secrets.randbits(32)

    def report(self, before: Callback, after: Callback) -> BenchmarkReport:
        options = self._options
        with self._peak_monitor() as monitor:
            startup = _micros()
            provided = registrar.create_delegates(self._values)
            startup = _micros() - startup
            reset_peak()
            base = HostMemory.now()
            ready = self._prepare(provided)
            session, at_init = ready.session, HostMemory.now()
            self._log_prepared(ready)
            arrays = make_inputs(session.inputs, options.layers(), self._seed)
            device = _device(provided)
            placed = session.on_device(arrays, device) if options.device_inputs else arrays
            before(session)
            with energy_meter(device, is_requested=options.energy) as meter:
                warmup = self._repeat(session, placed, warm=True)
                joules, inference = self._metered(meter, session, placed)
            overlapped = self._throughput(session, arrays, device)
        at_end = max(at_init.peak, HostMemory.now().peak)
        footprint = Footprint(
            max(at_init.peak - base.resident, 0),  # the kernel's figures are approximate
            max(at_end - base.resident, 0),
            monitor.peak_mb if monitor is not None else None,
        )
        report = BenchmarkReport(
            name=options.benchmark_name,
            model=self._name,
            model_bytes=self._bytes,
            interpreter=session.host,
            signature=session.signature,
            inputs=_input_records(session),
            seed=self._seed,
            batch=options.batch_size or _batch(session),
            delegates=tuple(ready.delegates),
            platform=None if device is None else platform_of(device.platform),
            device=None if device is None else f"{device.device_kind} ({device})",
            startup_us=startup,
            init_us=ready.init_us,
            warmup=warmup,
            inference=inference,
            input_bytes=sum(array.nbytes for array in arrays),
            footprint=footprint,
            device_memory=_device_memory(device, provided),
            throughput=overlapped,
            joules=joules,
            flags=self._values.given(),
            versions=_versions(),
        )
        self._log_results(report)
        after(session)
        return dataclasses.replace(
            report,
            profile=self._profile(ready, provided, arrays),
            precision=self._precision(session, arrays) if options.check_precision else None,
            peaks=_peaks(provided) if options.measure_peaks else None,
        )

    # ---- preparation

    def _prepare(self, provided: Sequence[ProvidedDelegate]) -> _Prepared:
        options, full = self._options, registrar.requires_full_delegation(self._values)
        start = _micros()
        before = HostMemory.now()
        delegates = [row.delegate for row in provided]
        try:
            interpreter = registrar.open_interpreter(self._values, self._model, delegates)
        except (DelegationError, InterpreterError) as error:
            if not full:
                raise
            raise DelegationError(f"{NO_FALLBACK} {error}") from error
        opened, at_opened = _micros(), HostMemory.now()
        session = Session(interpreter, options.signature_to_run_for)
        self._log(f"Loaded model {printable(self._name)}")
        for row in provided[:1]:
            self._log(f"{row.provider.name} delegate created.")
        if len(provided) > 1:
            self._log(f"Going to apply {len(provided)} delegates one after another.")
        self._resize(session)
        for line in () if self._options.input_layer else free_dimensions(session.inputs):
            self._log(line)
        session.allocate()
        allocated = _micros()
        if (reason := session.why_rebatched) is not None:
            n = self._options.batch_size
            self._log(f"Rebatched: {n} single runs in one program, because {reason}")
        rows = applied(session, provided)
        if full:
            require_full_delegation(rows)
        steps = [
            _step("ModifyGraphWithDelegate", opened - start, at_opened.peak - before.resident),
            _step("AllocateTensors", allocated - opened, HostMemory.now().peak - before.resident),
        ]
        return _Prepared(session, rows, allocated - start, steps)

    def _resize(self, session: Session) -> None:
        layers = self._options.layers()
        if layers:
            for detail, layer in zip(session.inputs, layers, strict=False):
                if detail["name"] != layer.name:
                    _LOGGER.warning(
                        "WARN: Tensor # %d is named %s but flags call it %s",
                        detail["index"],
                        printable(detail["name"]),
                        printable(layer.name),
                    )
            session.resize([layer.shape for layer in layers])
        if self._options.batch_size:
            session.resize_batch(self._options.batch_size)

    def _log_prepared(self, ready: _Prepared) -> None:
        for row in ready.delegates:
            self._log(row.line())
        self._log(f"The input model file size (MB): {self._bytes / 1e6:g}")
        self._log(f"Initialized session in {ready.init_us / 1e3:g}ms.")

    def _peak_monitor(self) -> contextlib.AbstractContextManager[PeakMonitor | None]:
        if self._options.report_peak_memory_footprint:
            return PeakMonitor(self._options.memory_footprint_check_interval_ms)
        return contextlib.nullcontext()

    # ---- runs

    def _metered(
        self, meter: EnergyMeter | None, session: Session, arrays: Sequence[Any]
    ) -> tuple[float | None, Stat]:
        """Joules per inference, and the timed runs."""
        if meter is not None:
            meter.start()
        stat = self._repeat(session, arrays, warm=False)
        if meter is None or not stat.count:
            return None, stat
        return meter.joules() / stat.count, stat

    def _repeat(self, session: Session, arrays: Sequence[Any], *, warm: bool) -> Stat:
        """Run until both the count and the seconds are reached, but at most max_secs."""
        options = self._options
        label, n_runs, seconds = "inference", options.num_runs, options.min_secs
        if warm:
            label, n_runs, seconds = "warm-up", options.warmup_runs, options.warmup_min_secs
        if options.dry_run:
            n_runs, seconds = 0, -1.0
        self._log(
            f"Running benchmark for at least {n_runs} iterations and at least {seconds:g} seconds "
            f"but terminate if exceeding {options.max_secs:g} seconds."
        )
        times: list[int] = []
        now = time.perf_counter()
        enough, most = now + seconds, now + options.max_secs
        pace = _Pace(now, options.run_delay, options.run_frequency)
        with tqdm(total=n_runs or None, desc=label, unit="run", leave=False, disable=None) as bar:
            while (len(times) < n_runs or now < enough) and now <= most:
                session.set(arrays)
                start = _micros()
                session.invoke()
                times.append(_micros() - start)
                bar.update()
                pace.wait()
                now = time.perf_counter()
        stat = Stat(tuple(times))
        self._log(f"{stat}\n")
        return stat

    def _throughput(
        self, session: Session, arrays: Sequence[np.ndarray], device: Any
    ) -> Throughput | None:
        options = self._options
        if not options.inflight or options.dry_run:
            return None
        return throughput.measured(
            lambda: session.start(arrays, device),
            in_flight=options.inflight,
            batch=options.batch_size or _batch(session),
            runs=options.num_runs,
            min_secs=options.min_secs,
            max_secs=options.max_secs,
        )

    # ---- afterwards

    def _log_results(self, report: BenchmarkReport) -> None:
        footprint = report.footprint
        self._log(
            f"Inference timings in us: Init: {report.init_us}, "
            f"First inference: {report.warmup.first}, Warmup (avg): {report.warmup.avg:g}, "
            f"Inference (avg): {report.inference.avg:g}"
        )
        self._log(
            "Note: as the benchmark tool itself affects memory footprint, the following is only "
            "APPROXIMATE to the actual memory footprint of the model at runtime. Take the "
            "information at your discretion."
        )
        self._log(
            "Memory footprint delta from the start of the tool (MB): "
            f"init={footprint.init_kb / 1024:g} overall={footprint.overall_kb / 1024:g}"
        )
        if footprint.peak_mb is not None:
            memory = HostMemory.now()
            anonymous = memory.resident - memory.shared
            self._log(
                f"Overall peak memory footprint (MB) via periodic monitoring: {footprint.peak_mb:g}"
            )
            self._log("Memory status at the end of execution:")
            self._log(f"- VmRSS              : {memory.resident // 1024} MB")
            self._log(f"+ RssAnnon           : {anonymous // 1024} MB")
            self._log(f"+ RssFile + RssShmem : {memory.shared // 1024} MB")
        for line in _our_lines(report):
            self._log(wrapped(line, WIDTH - len("INFO: ")))

    def _profile(
        self, ready: _Prepared, provided: Sequence[ProvidedDelegate], arrays: Sequence[np.ndarray]
    ) -> Profile | None:
        options = self._options
        if not options.is_profiled or options.dry_run:
            return None
        return collect(
            ready.session,
            arrays,
            [row.delegate for row in provided],
            runs=options.profile_runs,
            init=ready.steps,
            perfetto_trace=options.perfetto_trace,
        )

    def _precision(self, session: Session, arrays: Sequence[np.ndarray]) -> Any:
        if session.subgraph:
            raise OptionError(
                f"check_precision: signature {session.signature!r} is not the main subgraph's"
            )
        dtype = self._values.jax_compute_dtype
        dtype = dtype if dtype in ("float16", "bfloat16") else "auto"
        from jaxdelegate.comparison.precision_check import check_precision  # noqa: PLC0415

        return check_precision(self._model, list(arrays), dtype)


class _Pace:
    """Waits between runs: a fixed delay, or until the next one is due."""

    def __init__(self, start: float, delay: float, frequency: float) -> None:
        self._delay, self._gap = delay, 1 / frequency if frequency > 0 else 0.0
        self._due = start + self._gap

    def wait(self) -> None:
        delay = self._delay
        if self._gap:
            delay = self._due - time.perf_counter()
            self._due += self._gap
        if delay > 0:
            time.sleep(delay)


def _step(kind: str, us: int, kilobytes: int) -> OpTime:
    return OpTime(kind, f"{kind}/0", Stat((us,)), max(0, kilobytes) * 1000)


def _our_lines(report: BenchmarkReport) -> list[str]:
    """Lines that TFLite's tool does not have."""
    lines = [
        f"Throughput: {report.inferences_per_second:g} inferences/s "
        f"({report.megabytes_per_second:g} MB/s), batch {report.batch}, seed {report.seed}"
    ]
    if report.throughput is not None:
        lines.append(str(report.throughput))
    lines += [row.remark for row in report.delegates if row.remark]
    memory = report.device_memory
    if memory is not None:
        line = f"Device memory (MB) of {report.device}: programs={memory.programs_bytes / 2**20:g}"
        if memory.peak_bytes is not None:
            line += f" in_use={(memory.in_use_bytes or 0) / 2**20:g}"
            line += f" peak={memory.peak_bytes / 2**20:g}"
        lines.append(line)
    if report.joules is not None:
        lines.append(
            f"Energy: {report.joules:g} J/inference, {report.joules_per_sample:g} J/sample"
        )
    return lines


def make_inputs(
    details: Sequence[Mapping[str, Any]], layers: Sequence[InputLayer], seed: int
) -> list[np.ndarray]:
    """One array for each input: a file's values, or random ones as TFLite draws them."""
    inputs = []
    for position, detail in enumerate(details):
        shape = tuple(int(n) for n in detail["shape"])
        layer = layers[position] if layers else InputLayer(str(detail["name"]), shape)
        inputs.append((dataclasses.replace(layer, shape=shape), detail["dtype"]))
    return InputSource(inputs, UniformValues(), seed)()


def _input_records(session: Session) -> tuple[InputRecord, ...]:
    return tuple(
        InputRecord(d["name"], tuple(int(n) for n in d["shape"]), np.dtype(d["dtype"]).name)
        for d in session.inputs
    )


def _batch(session: Session) -> int:
    shapes = [d["shape"] for d in session.inputs if len(d["shape"])]
    return int(shapes[0][0]) if shapes else 1


def _device(provided: Sequence[ProvidedDelegate]) -> Any:
    targets = [getattr(row.delegate, "target", None) for row in provided]
    devices = [target.runtime.device for target in targets if target is not None]
    return devices[0] if devices else None


def _peaks(provided: Sequence[ProvidedDelegate]) -> DevicePeaks | None:
    """The peaks of the device of the first JaxDelegate, in the dtype of its products."""
    ours = [row.delegate for row in provided if hasattr(row.delegate, "lowering_context")]
    if not ours:
        return None
    return measured_peaks(ours[0].device, ours[0].lowering_context.precision.operand)


def _device_memory(device: Any, provided: Sequence[ProvidedDelegate]) -> DeviceMemory | None:
    if device is None:
        return None
    ours = [row.delegate for row in provided if isinstance(row.delegate, SimpleDelegate)]
    partitions = [p for d in ours if hasattr(d, "partitions") for p in d.partitions()]
    return DeviceMemory.of(device, [p.program.executable for p in partitions])


def _versions() -> dict[str, str]:
    versions = {}
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _size(model: ModelSource) -> int:
    if isinstance(model, bytes):
        return len(model)
    inside = in_bundle(model)
    return Path(model).stat().st_size if inside is None else len(inside.content)


def graph_source(graph: str) -> ModelSource:
    """The model that `--graph` names: a path, or `fd:<descriptor>:<offset>:<size>` as in TFLite."""
    if not graph:
        raise OptionError("graph: name the .tflite file to run: --graph=model.tflite")
    if not graph.startswith("fd:"):
        if not Path(split_path(graph)[0]).exists():
            raise FileNotFoundError(f"graph: {graph}: no such file")
        return graph
    parts = graph.split(":")
    if len(parts) != 4 or not all(p.isdigit() for p in parts[1:]):
        raise OptionError(f"graph: expected fd:<descriptor>:<offset>:<size>, got {graph!r}")
    descriptor, offset, size = map(int, parts[1:])
    return os.pread(descriptor, size, offset)
