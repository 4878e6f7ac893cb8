"""One benchmark for several batch sizes."""

import dataclasses
from collections.abc import Sequence

from jaxdelegate.benchmark.options import BenchmarkOptions
from jaxdelegate.benchmark.results import BenchmarkReport
from jaxdelegate.benchmark.run import Source, benchmark
from jaxdelegate.benchmark.timing import Log
from jaxdelegate.errors import InterpreterError, LoweringError, OptionError
from jaxdelegate.providers.parsing import FlagValues


@dataclasses.dataclass(frozen=True)
class BatchResult:
    """The report of one batch size, or the reason why it cannot be run."""

    batch: int
    report: BenchmarkReport | None = None
    error: str = ""


def batch_sweep(
    model: Source,
    sizes: Sequence[int],
    options: BenchmarkOptions,
    values: FlagValues,
    log: Log,
) -> list[BatchResult]:
    """Benchmark each batch size in a new interpreter, smallest first.

    A size that the model rejects, or that does not fit in the device's memory, is reported with its
    error; the sweep continues with the next one.
    """
    results = []
    for size in sorted(set(sizes)):
        log(f"Batch size: [{size}]")
        sized = dataclasses.replace(options, batch_size=size)
        try:
            results.append(BatchResult(size, benchmark(model, sized, values=values, log=log)))
        except (InterpreterError, LoweringError) as error:
            results.append(BatchResult(size, error=str(error).splitlines()[0]))
    if not any(result.report for result in results):
        raise OptionError(f"batch_sizes: no batch size can be run: {results[0].error}")
    return results


def sweep_table(results: Sequence[BatchResult]) -> str:
    """A table with a line for each batch size: times in milliseconds, memory in MiB."""
    header = (
        f"{'batch':>6} {'init':>10} {'first':>10} {'avg':>10} {'median':>10} {'p95':>10} "
        f"{'ms/sample':>10} {'samples/s':>11} {'memory':>9} {'J/sample':>9}"
    )
    return "\n".join([header, *map(_line, results)])


def _line(result: BatchResult) -> str:
    report = result.report
    if report is None:
        return f"{result.batch:>6} failed: {result.error}"
    stat = report.inference
    times = (
        report.init_us,
        report.warmup.first,
        stat.avg,
        stat.percentile(50),
        stat.percentile(95),
        stat.avg / result.batch,
    )
    figures = " ".join(f"{us / 1e3:>10.3f}" for us in times)
    joules = "" if report.joules_per_sample is None else f"{report.joules_per_sample:.3g}"
    memory = report.device_memory
    used = 0 if memory is None else (memory.peak_bytes or memory.programs_bytes)
    return (
        f"{result.batch:>6} {figures} {report.inferences_per_second:>11.1f} "
        f"{used / 2**20:>9.1f} {joules:>9}"
    )
