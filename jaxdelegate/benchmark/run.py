"""One benchmark, with the order of steps and the log of TFLite's benchmark_model."""

import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import jaxdelegate.providers as registrar
from jaxdelegate.benchmark.applied import (
    NO_FALLBACK,
    AppliedDelegate,
    applied,
    require_full_delegation,
)
from jaxdelegate.benchmark.memory import (
    DeviceMemory,
    Footprint,
    HostMemory,
    PeakMonitor,
    reset_peak,
)
from jaxdelegate.benchmark.op_profile import Profile, collect
from jaxdelegate.benchmark.options import BenchmarkOptions, InputOptions
from jaxdelegate.benchmark.peaks import DevicePeaks, measured_peaks
from jaxdelegate.benchmark.results import BenchmarkReport, InputRecord, result_lines
from jaxdelegate.benchmark.session import Session
from jaxdelegate.benchmark.timing import Log, Throughput, micros, overlapping_runs, timed_runs
from jaxdelegate.benchmark.work import OpTime
from jaxdelegate.errors import DelegationError, InterpreterError, OptionError
from jaxdelegate.measuring.inputs import InputLayer, InputSource, UniformValues, free_dimensions
from jaxdelegate.measuring.stats import Stat
from jaxdelegate.model.source import in_bundle, split_path
from jaxdelegate.providers import ProvidedDelegate
from jaxdelegate.providers.parsing import FlagValues
from jaxdelegate.text import printable
from jaxdelegate.xla.options import platform_of

Source = str | os.PathLike[str] | bytes  # a .tflite file, or its content
Callback = Callable[[Session], None]

_LOGGER = logging.getLogger("jaxdelegate")
_LIBRARIES = ("jaxdelegate", "jax", "jaxlib", "ai-edge-litert", "numpy")


def benchmark(
    model: Source,
    options: BenchmarkOptions | None = None,
    *,
    values: FlagValues | None = None,
    log: Log = lambda _line: None,
    before: Callback | None = None,
    after: Callback | None = None,
) -> BenchmarkReport:
    """Measure a model: preparation, first inference, warm-up, timed runs, memory.

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
    with run.peak_monitor() as monitor:
        ready = run.prepare()
        arrays = run.inputs(ready.session)
        if before is not None:
            before(ready.session)
        report = run.report(ready, arrays, monitor)
    for line in result_lines(report):
        log(line)
    if after is not None:
        after(ready.session)
    return dataclasses.replace(
        report,
        profile=run.profile(ready, arrays),
        precision=run.precision(ready.session, arrays),
        peaks=ready.peaks() if options.measure_peaks else None,
    )


@dataclasses.dataclass(frozen=True)
class _Prepared:
    session: Session
    provided: Sequence[ProvidedDelegate]
    delegates: tuple[AppliedDelegate, ...]
    startup_us: int
    init_us: int
    steps: tuple[OpTime, ...]  # the preparation in parts
    resident: int  # KiB of the process before the preparation
    peak: int  # KiB at most until it ended

    @property
    def device(self) -> Any:
        """The jax.Device of the first JaxDelegate; None without one."""
        targets = (getattr(row.delegate, "target", None) for row in self.provided)
        return next((target.runtime.device for target in targets if target is not None), None)

    @property
    def partitions(self) -> list[Any]:
        delegates = [row.delegate for row in self.provided]
        return [p for d in delegates if hasattr(d, "partitions") for p in d.partitions()]

    @property
    def batch(self) -> int:
        """The first dimension of the first input that has one, or 1."""
        shapes = [d["shape"] for d in self.session.inputs if len(d["shape"])]
        return int(shapes[0][0]) if shapes else 1

    def footprint(self, sampled_mb: float | None) -> Footprint:
        peak = max(self.peak, HostMemory.now().peak)
        # The kernel's figures are approximate, so that differences may be negative.
        at_init, overall = (max(kb - self.resident, 0) for kb in (self.peak, peak))
        return Footprint(at_init, overall, sampled_mb)

    def device_memory(self) -> DeviceMemory | None:
        if self.device is None:
            return None
        return DeviceMemory.of(self.device, [p.program.executable for p in self.partitions])

    def peaks(self) -> DevicePeaks | None:
        delegates = [row.delegate for row in self.provided]
        ours = next((d for d in delegates if hasattr(d, "lowering_context")), None)
        if ours is None:
            return None
        return measured_peaks(ours.device, ours.lowering_context.precision.operand)


class _Run:
    def __init__(
        self, model: Source, options: BenchmarkOptions, values: FlagValues, log: Log
    ) -> None:
        self._model, self._options, self._values, self._log = model, options, values, log
        self._bytes = _size(model)
        self._name = "<bytes>" if isinstance(model, bytes) else os.fspath(model)
        self._seed = options.seed if options.seed >= 0 else secrets.randbits(32)

    def peak_monitor(self) -> contextlib.AbstractContextManager[PeakMonitor | None]:
        if self._options.report_peak_memory_footprint:
            return PeakMonitor(self._options.memory_footprint_check_interval_ms)
        return contextlib.nullcontext()

    def prepare(self) -> _Prepared:
        start = micros()
        provided = registrar.create_delegates(self._values)
        startup = micros() - start
        reset_peak()
        base, begin = HostMemory.now(), micros()
        interpreter = self._open([row.delegate for row in provided])
        opened, at_opened = micros(), HostMemory.now()
        session = Session(interpreter, self._options.signature_to_run_for)
        self._log_opened(provided)
        self._allocate(session)
        allocated, at_allocated = micros(), HostMemory.now()
        delegates = tuple(applied(session, provided))
        if registrar.requires_full_delegation(self._values):
            require_full_delegation(delegates)
        for row in delegates:
            self._log(row.line())
        self._log(f"The input model file size (MB): {self._bytes / 1e6:g}")
        self._log(f"Initialized session in {(allocated - begin) / 1e3:g}ms.")
        return _Prepared(
            session,
            provided,
            delegates,
            startup_us=startup,
            init_us=allocated - begin,
            steps=(
                _step("ModifyGraphWithDelegate", opened - begin, base, at_opened),
                _step("AllocateTensors", allocated - opened, base, at_allocated),
            ),
            resident=base.resident,
            peak=HostMemory.now().peak,
        )

    def _open(self, delegates: Sequence[Any]) -> Any:
        try:
            return registrar.open_interpreter(self._values, self._model, delegates)
        except (DelegationError, InterpreterError) as error:
            if not registrar.requires_full_delegation(self._values):
                raise
            raise DelegationError(f"{NO_FALLBACK} {error}") from error

    def _log_opened(self, provided: Sequence[ProvidedDelegate]) -> None:
        self._log(f"Loaded model {printable(self._name)}")
        for row in provided[:1]:
            self._log(f"{row.provider.name} delegate created.")
        if len(provided) > 1:
            self._log(f"Going to apply {len(provided)} delegates one after another.")

    def _allocate(self, session: Session) -> None:
        options = self._options
        _resize(session, options)
        for line in () if options.input_layer else free_dimensions(session.inputs):
            self._log(line)
        session.allocate()
        if (reason := session.why_rebatched) is not None:
            n = options.batch_size
            self._log(f"Rebatched: {n} single runs in one program, because {reason}")

    def inputs(self, session: Session) -> list[np.ndarray]:
        return make_inputs(session.inputs, self._options.layers(), self._seed)

    def report(
        self, ready: _Prepared, arrays: Sequence[np.ndarray], monitor: PeakMonitor | None
    ) -> BenchmarkReport:
        session, options, device = ready.session, self._options, ready.device
        placed = session.on_device(arrays, device) if options.device_inputs else arrays
        warmup = timed_runs(session, placed, options, warm=True, log=self._log)
        inference = timed_runs(session, placed, options, warm=False, log=self._log)
        throughput = self._throughput(ready, arrays)
        return BenchmarkReport(
            name=options.benchmark_name,
            model=self._name,
            model_bytes=self._bytes,
            interpreter=session.host,
            signature=session.signature,
            inputs=tuple(map(_input_record, session.inputs)),
            seed=self._seed,
            batch=options.batch_size or ready.batch,
            delegates=ready.delegates,
            platform=None if device is None else platform_of(device.platform),
            device=None if device is None else f"{device.device_kind} ({device})",
            startup_us=ready.startup_us,
            init_us=ready.init_us,
            input_bytes=sum(array.nbytes for array in arrays),
            warmup=warmup,
            inference=inference,
            throughput=throughput,
            footprint=ready.footprint(None if monitor is None else monitor.peak_mb),
            device_memory=ready.device_memory(),
            flags=self._values.given(),
            versions=_versions(),
        )

    def _throughput(self, ready: _Prepared, arrays: Sequence[np.ndarray]) -> Throughput | None:
        options = self._options
        if not options.inflight or options.dry_run:
            return None
        start = functools.partial(ready.session.start, arrays, ready.device)
        return overlapping_runs(start, options, batch=options.batch_size or ready.batch)

    def profile(self, ready: _Prepared, arrays: Sequence[np.ndarray]) -> Profile | None:
        options = self._options
        if not options.is_profiled or options.dry_run:
            return None
        return collect(
            ready.session,
            arrays,
            ready.partitions,
            runs=options.profile_runs,
            init=ready.steps,
            perfetto_trace=options.perfetto_trace,
        )

    def precision(self, session: Session, arrays: Sequence[np.ndarray]) -> Any:
        if not self._options.check_precision:
            return None
        if session.subgraph:
            raise OptionError(
                f"check_precision: signature {session.signature!r} is not the main subgraph's"
            )
        dtype = self._values.jax_compute_dtype
        dtype = dtype if dtype in ("float16", "bfloat16") else "auto"
        from jaxdelegate.comparison.precision_check import check_precision  # noqa: PLC0415

        return check_precision(self._model, list(arrays), dtype)


def _step(kind: str, us: int, before: HostMemory, after: HostMemory) -> OpTime:
    kilobytes = max(0, after.peak - before.resident)
    return OpTime(kind, f"{kind}/0", Stat((us,)), kilobytes * 1000)


def _resize(session: Session, options: InputOptions) -> None:
    layers = options.layers()
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
    if options.batch_size:
        session.resize_batch(options.batch_size)


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


def _input_record(d: Mapping[str, Any]) -> InputRecord:
    return InputRecord(d["name"], tuple(int(n) for n in d["shape"]), np.dtype(d["dtype"]).name)


def _versions() -> dict[str, str]:
    versions = {}
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _size(model: Source) -> int:
    if isinstance(model, bytes):
        return len(model)
    inside = in_bundle(model)
    return Path(model).stat().st_size if inside is None else len(inside.content)


def graph_source(graph: str) -> Source:
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
