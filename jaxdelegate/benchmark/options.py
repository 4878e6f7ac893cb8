"""The options of a benchmark, as Python arguments and as command-line flags."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxdelegate.errors import OptionError, check_least
from jaxdelegate.measuring.inputs import InputLayer, parse_input_layers
from jaxdelegate.providers.parsing import Flag, flags_of
from jaxdelegate.text import listed


def _option(
    default: Any, label: str, text: str, least: int | None = None, *, is_output: bool = False
) -> Any:
    """A field with TFLite's label for it in the log, the flag's help, and the least value."""
    metadata = {"label": label, "help": text, "least": least, "is_output": is_output}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    num_runs: int = _option(
        50, "Min num runs", "Minimum of timed runs; see min_secs and max_secs.", least=0
    )
    min_secs: float = _option(
        1.0,
        "Min runs duration (seconds)",
        "Continue for at least this many seconds, even beyond num_runs.",
    )
    max_secs: float = _option(
        150.0,
        "Max runs duration (seconds)",
        "Start no run after this many seconds, even before num_runs.",
    )
    run_delay: float = _option(-1.0, "Inter-run delay (seconds)", "Seconds to wait between runs.")
    run_frequency: float = _option(
        -1.0,
        "Number of prorated runs per second",
        "Start this many runs per second, instead of a fixed delay; late runs start at once.",
    )
    benchmark_name: str = _option("", "Benchmark name", "A name for the result.")
    output_prefix: str = _option("", "Output prefix", "Accepted, without effect, as in TFLite.")
    warmup_runs: int = _option(
        1, "Min warmup runs", "Minimum of untimed runs before them.", least=0
    )
    warmup_min_secs: float = _option(
        0.5, "Min warmup runs duration (seconds)", "Warm up for at least this many seconds."
    )
    dry_run: bool = _option(
        False, "Run w/o invoking kernels", "Load, delegate, compile and allocate, but run nothing."
    )
    report_peak_memory_footprint: bool = _option(
        False,
        "Report the peak memory footprint",
        "Sample the memory of the process in a thread; may affect the timing.",
    )
    memory_footprint_check_interval_ms: int = _option(
        50, "Memory footprint check interval (ms)", "How often to sample it.", least=1
    )
    inflight: int = _option(
        0,
        "Runs in flight",
        "After the timed runs, also measure throughput from host arrays to host arrays with this "
        "many runs in flight: with 2 the next input is copied while the device computes; 0: do "
        "not. For JaxDelegate in jaxdelegate's interpreter.",
        least=0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputOptions:
    signature_to_run_for: str = _option(
        "", "Signature to run", "The signature to run; needed if the model has several."
    )
    input_layer: str = _option("", "Input layers", "Names of all inputs in their order: a,b.")
    input_layer_shape: str = _option(
        "", "Input shapes", "Their shapes: 1,224,224,3:1,10. Needs input_layer."
    )
    input_layer_value_range: str = _option(
        "",
        "Input value ranges",
        "Smallest and largest random value of integer inputs: a,low,high:b,low,high.",
    )
    input_layer_value_files: str = _option(
        "",
        "Input value files",
        "Files with the inputs' raw bytes, or null-separated strings: a:path,b:path; '::' is a "
        "colon in a name or path.",
    )
    batch_size: int = _option(
        0, "Batch size", "Resize the first dimension of every input to this; 0: unchanged.", least=0
    )
    device_inputs: bool = _option(
        False,
        "Inputs on the device",
        "Copy the inputs to the delegate's device once, before the runs, so that no copy to it is "
        "timed. For JaxDelegate in jaxdelegate's interpreter.",
    )
    seed: int = _option(
        -1, "Seed", "Seed of the random inputs; -1: a random one (reported).", least=-1
    )

    def layers(self) -> tuple[InputLayer, ...]:
        return parse_input_layers(
            self.input_layer,
            self.input_layer_shape,
            self.input_layer_value_range,
            self.input_layer_value_files,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkOptions(InputOptions, RunOptions):
    """Options of one benchmark; names, defaults and meaning are those of TFLite's benchmark_model.

    TFLite has no `batch_size`, `device_inputs`, `inflight`, `seed`, `profile_runs`,
    `perfetto_trace`, `check_precision` and `measure_peaks`.
    """

    enable_op_profiling: bool = _option(
        False, "Enable op profiling", "Report the time of every operator, in extra runs at the end."
    )
    profile_runs: int = _option(
        10, "Profiled runs", "The number of runs in the operator profile.", least=1
    )
    perfetto_trace: str = _option(
        "",
        "Perfetto trace file",
        "Write the profiled runs as a trace for ui.perfetto.dev (.json.gz); implies "
        "enable_op_profiling.",
        is_output=True,
    )
    check_precision: bool = _option(
        False,
        "Check precision",
        "Compare the model in --jax_compute_dtype (default: float16) with float32 on the same "
        "inputs, and name the operators that go wrong.",
    )
    measure_peaks: bool = _option(
        False,
        "Measure peaks",
        "Measure the device's peak FLOP/s and bytes/s, for a roofline plot. Takes some seconds.",
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.metadata["least"] is not None:
                check_least(field.metadata["least"], **{field.name: getattr(self, field.name)})
        self.layers()

    @property
    def is_profiled(self) -> bool:
        return self.enable_op_profiling or bool(self.perfetto_trace)


BENCHMARK_FLAGS: tuple[Flag, ...] = tuple(flags_of(BenchmarkOptions))


def parse_names(flag: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    names = listed(text)
    if not names or not set(names) <= set(known):
        raise OptionError(f"{flag}: expected some of {', '.join(known)}, got {text!r}")
    return names


def parse_counts(flag: str, text: str) -> tuple[int, ...]:
    items = listed(text)
    if not items or not all(item.isdigit() and int(item) for item in items):
        raise OptionError(f"{flag}: expected positive integers, such as 1,2,4, got {text!r}")
    return tuple(int(item) for item in items)
