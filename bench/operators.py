"""Every operator of a model separately: the delegate, XNNPACK and the roofline.

    NPROC=1 taskset -c 0 python bench/operators.py --graph=a.tflite,b.tflite [--rounds=20]
        [--top=30] [--platform=gpu] [--out=bench/results/operators.jsonl]

Each distinct operator (name, options, shapes) becomes a model with random inputs. The roofline
(bench/roofline.py) bounds its time: the larger of FLOPs by the measured peak and bytes by
the measured bandwidth. Prints a table, the operators that take ours longest first; the file gets
all numbers. In whole models XLA fuses elementwise operators into their neighbors; here they pay for
their own reads and writes, and each for one call.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags
from agreement import inputs, judge
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from harness import AbsentError, append, interleaved, last_line, ratios, spread, threads
from roofline import least_seconds, peaks_record
from tqdm import tqdm

import jaxdelegate as jd
from jaxdelegate.benchmark.peaks import DevicePeaks, measured_peaks
from jaxdelegate.costs import Cost, operator_cost
from jaxdelegate.model.records import Operator, Subgraph, read_model
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.passes.propagation import declared_specs, gather, is_constant, propagate
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import run_once

FLAGS = flags.FLAGS
flags.DEFINE_list("graph", None, "One or more float .tflite files.", required=True)
flags.DEFINE_integer("rounds", 20, "Timed rounds.", 3)
flags.DEFINE_integer("top", 30, "Only the operators with the most work.", 1)
flags.DEFINE_string("platform", None, "Of the delegate; unset: JAX's default.")
flags.DEFINE_string("out", None, "A file to append JSON lines to.")


def distinct(subgraph: Subgraph) -> Iterator[tuple[Operator, Specs, Specs, int]]:
    """Operators that differ in more than their values, and how often each occurs in the graph."""
    specs = propagate(subgraph.operators, declared_specs(subgraph))
    seen: dict[Any, list[Any]] = collections.OrderedDict()
    for operator in subgraph.operators:
        inputs, outputs = gather(specs, operator.inputs), gather(specs, operator.outputs)
        present = [s for s in (*inputs, *outputs) if s is not None]
        if is_constant(outputs) or any(s.is_dynamic or s.is_variable for s in present):
            continue
        shapes = tuple(s and (s.shape, s.dtype) for s in (*inputs, *outputs))
        row = seen.setdefault(
            (operator.name, operator.options, shapes), [operator, inputs, outputs, 0]
        )
        row[3] += 1
    return (tuple(row) for row in seen.values())  # type: ignore[return-value]


def alone(operator: Operator, inputs: Specs, outputs: Specs) -> bytes:
    """A model of this one operator."""
    builder = ModelBuilder()

    def tensor(spec: TensorSpec | None) -> int:
        if spec is None:
            return -1
        if spec.const is not None:
            return builder.constant(spec.const, spec.name, quantization=spec.quantization)
        return builder.input(spec.shape, spec.dtype, spec.name, quantization=spec.quantization)

    sources = [tensor(spec) for spec in inputs]
    targets = [builder.tensor(s.shape, s.dtype, quantization=s.quantization) for s in outputs if s]
    builder.operator(operator.name, sources, targets, operator.options, version=operator.version)
    builder.outputs(*targets)
    return builder.build()


def measured(content: bytes) -> dict[str, list[float]]:
    """Seconds of each round of `invoke`, after checking both against the reference kernels.

    Raises:
        AbsentError: one of them disagrees, or cannot run the operator.
    """
    delegate = jd.JaxDelegate(platform=FLAGS.platform)
    engines = {
        "litert_xnnpack": StockInterpreter(model_content=content, num_threads=threads()),
        "jaxdelegate": jd.Interpreter(model_content=content, experimental_delegates=[delegate]),
    }
    arrays = inputs(engines["litert_xnnpack"].get_input_details(), 1)
    rule = judge(content, arrays, None)
    for name, engine in engines.items():
        try:
            why = rule.why_not(run_once(engine, arrays))
        except RuntimeError as error:
            why = last_line(error)
        if why is not None:
            raise AbsentError(f"{name}: {why}")
    calls = {name: engine.invoke for name, engine in engines.items()}
    return interleaved(calls, rounds=FLAGS.rounds, settle=1)


def reached(work: Cost, seconds: float, peaks: DevicePeaks) -> dict[str, float]:
    """The rate that a time means, and its share of the machine's."""
    flops, moved = work.flops or 0, work.bytes or 0
    return {
        "gflops": flops / seconds / 1e9,
        "gbytes": moved / seconds / 1e9,
        "of_roofline": least_seconds(peaks, flops, moved) / seconds,
    }


def times_of(content: bytes, work: Cost, peaks: DevicePeaks) -> dict[str, Any]:
    """The fields of one operator's time; "refused" if it could not be measured."""
    try:
        times = measured(content)
    except AbsentError as error:
        return {"refused": str(error)}
    ms = {name: spread([1e3 * t for t in own]) for name, own in times.items()}
    return {
        "ms": ms,
        "ratio_to_litert": ratios(times, "litert_xnnpack"),
        "reached": {n: reached(work, of["median"] / 1e3, peaks) for n, of in ms.items()},
    }


def table(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The records as a table, the operators that take ours longest in the whole model first."""
    yield (
        f"{'operator':<20}{'times':>6}{'XNNPACK us':>12}{'ours us':>10}{'ratio':>7}"
        f"{'GFLOP/s':>9}{'GB/s':>7}{'roofline':>10}  shapes"
    )
    timed = [r for r in records if "ms" in r]
    for r in sorted(timed, key=lambda r: -r["count"] * r["ms"]["jaxdelegate"]["median"]):
        theirs, ours = (1e3 * r["ms"][n]["median"] for n in ("litert_xnnpack", "jaxdelegate"))
        own = r["reached"]["jaxdelegate"]
        shapes = " ".join("x".join(map(str, shape)) for shape in r["shapes"] if len(shape) > 1)
        yield (
            f"{r['operator']:<20}{r['count']:>6}{theirs:>12.1f}{ours:>10.1f}"
            f"{r['ratio_to_litert']['jaxdelegate']['median']:>7.2f}{own['gflops']:>9.1f}"
            f"{own['gbytes']:>7.1f}{own['of_roofline']:>10.0%}  {shapes}"
        )
    for r in records:
        if "refused" in r:
            yield f"{r['operator']:<20}{r['refused']}"


def records_of(graph: Path, device: jax.Device, peaks: DevicePeaks) -> Iterator[dict[str, Any]]:
    """A record of each distinct operator, the one with the most work first."""
    rows = [
        (operator_cost(op.name, op.options, read, written), op, read, written, count)
        for op, read, written, count in distinct(read_model(graph).subgraphs[0])
    ]
    rows.sort(key=lambda row: -row[4] * least_seconds(peaks, row[0].flops or 0, row[0].bytes or 0))
    for work, operator, read, written, count in tqdm(rows[: FLAGS.top], disable=None):
        yield {
            "bench": "operators",
            "graph": graph.stem,
            "operator": operator.name,
            "index": operator.index,
            "count": count,
            "shapes": [list(s.shape) for s in (*read, *written) if s is not None],
            "threads": threads(),
            "device": str(device),
            "peaks": peaks_record(peaks),
            **times_of(alone(operator, read, written), work, peaks),
        }


def main(_argv: list[str]) -> None:
    device = jax.devices(FLAGS.platform)[0]
    peaks = measured_peaks(device, np.dtype(np.float32))
    for graph in map(Path, FLAGS.graph):
        records = []
        for record in records_of(graph, device, peaks):
            records.append(record)
            if FLAGS.out:
                append(record, FLAGS.out, echo=False)
        print(graph.stem, *table(records), sep="\n")


if __name__ == "__main__":
    app.run(main)
