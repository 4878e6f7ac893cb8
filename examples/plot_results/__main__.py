"""Draw the JSON files of `inference_diff`, `benchmark_model`, `benchmark_performance_options`.

    pip install '.[report]'
    python examples/plot_results RESULT.json... [--kind=KIND] [--output=FIGURE.svg]

Kinds, by default the first one that the files have figures for:

    layers    the error of each layer: `inference_diff --per_layer`; without it, of each output
    latency   the distribution of the latencies of one or several benchmarks
    batch     samples per second and latency by batch: `--batch_sizes`
    roofline  operators under the device's limits: `--enable_op_profiling --measure_peaks`

The figure's name ends in .png, .svg or .pdf; by default it is a .png named as the first file.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from plot_results import figures
from plot_results.results import kind_of, read

KINDS = {
    "layers": figures.layers,
    "latency": figures.latency,
    "batch": figures.batch,
    "roofline": figures.roofline,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="RESULT.json")
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--peak_flops", type=float, help="of the device, for roofline")
    parser.add_argument("--peak_bandwidth", type=float, help="bytes/s of its memory, the same")
    args = parser.parse_args()
    if (args.peak_flops is None) != (args.peak_bandwidth is None):
        parser.error("--peak_flops and --peak_bandwidth: give both or neither")
    try:
        results = [result for path in args.files for result in read(path)]
        kind = args.kind or kind_of(results)
        if args.peak_flops is not None:
            peaks = {"flops_per_second": args.peak_flops, "bytes_per_second": args.peak_bandwidth}
            results = [result.with_peaks(peaks, "given") for result in results]
        output = args.output or Path(args.files[0].stem + ".png")
        KINDS[kind](results).savefig(output)
    except (OSError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        why = f"there is no {error}" if isinstance(error, KeyError) else error
        sys.exit(f"plot_results: {', '.join(map(str, args.files))}: {why}")
    print(f"{kind} plot of {', '.join(map(str, args.files))} written to {output}")


if __name__ == "__main__":
    main()
