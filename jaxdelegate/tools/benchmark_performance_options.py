"""`jaxdelegate benchmark_performance_options`: one model, every configuration, ranked."""

from pathlib import Path

from absl import flags

from jaxdelegate.benchmark import performance_options
from jaxdelegate.benchmark.options import parse_counts, parse_names
from jaxdelegate.errors import OptionError
from jaxdelegate.providers.parsing import Flag
from jaxdelegate.report.json_records import write_json
from jaxdelegate.tools import benchmark_model

_OWN_FLAGS = (
    Flag(
        "perf_options_list", str, "all",
        "Platforms to compare: some of all, cpu, gpu, tpu; none: only the flags as they are.",
    ),
    Flag("option_benchmark_run_delay", float, -1.0, "Seconds to wait between two configurations."),
    Flag("random_shuffle_benchmark_runs", bool, True, "Run the configurations in random order."),
    Flag("threads", str, "1,2,4", "Thread counts to compare on the CPU."),
    Flag(
        "jax_compute_dtypes", str, "float32,float16,bfloat16",
        "Values of --jax_compute_dtype to compare.",
    ),
    Flag("batch_sizes", str, "", "Values of --batch_size to compare; unset: one: 1,8,32."),
)  # fmt: skip
# The flags of benchmark_model hold for every configuration; here --result_json is a list, and
# --result_csv has a line for each configuration, the fastest first.
DELEGATES = True
FLAGS = (*_OWN_FLAGS, *benchmark_model.FLAGS)
# Flags that the tool varies, and the flags that have their values.
_VARIED = {
    "jax_platform": "perf_options_list",
    "num_threads": "threads",
    "jax_compute_dtype": "jax_compute_dtypes",
}


def run(values: flags.FlagValues) -> int:
    """Print the ranked table; returns 1 if a configuration failed."""
    chosen = performance_options.parse_options(values.perf_options_list)
    threads = parse_counts("threads", values.threads)
    known = performance_options.DTYPES
    dtypes = parse_names("jax_compute_dtypes", values.jax_compute_dtypes, known)
    sizes = parse_counts("batch_sizes", values.batch_sizes) if values.batch_sizes else ()
    if sizes and values.batch_size:
        raise OptionError("--batch_size: --batch_sizes has several values; give one of them")
    for name, other in _VARIED.items():
        if values[name].present and chosen != ("none",):
            raise OptionError(
                f"--{name}: the tool compares several values, those of --{other}; "
                "--perf_options_list=none runs the flags as they are"
            )
    benchmark_model.options_of(values)  # refuses bad values here, not in every process
    if not Path(values.graph).exists():
        raise OptionError(f"graph: {values.graph}: no such file")
    print(f"INFO: The list of TFLite runtime options to be benchmarked: [{','.join(chosen)}]")
    platforms = performance_options.find_platforms() if set(chosen) - {"cpu", "none"} else ("cpu",)
    rows = performance_options.configurations(chosen, platforms, threads, dtypes, sizes)
    outcomes = performance_options.run_all(
        rows,
        _forwarded(values),
        delay=values.option_benchmark_run_delay,
        shuffle=values.random_shuffle_benchmark_runs,
    )
    print(f"INFO: \n{performance_options.summary(outcomes)}")
    if values.result_json:
        write_json(values.result_json, outcomes)
    if values.result_csv:
        Path(values.result_csv).write_text(performance_options.to_csv(outcomes))
    return 0 if all(outcome.result is not None for outcome in outcomes) else 1


def _forwarded(values: flags.FlagValues) -> list[str]:
    ours = {flag.name for flag in _OWN_FLAGS} | {"help", "model_file", "result_json", "result_csv"}
    names = [name for name in values if values[name].present and name not in ours]
    return [f"--{name}={values[name].value}" for name in names]
