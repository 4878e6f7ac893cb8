"""Every operator of a model by itself: the delegate beside XNNPACK, and both beside the roofline.

    NPROC=1 taskset -c 0 python bench/operators.py --graph=model.tflite [--rounds=20] [--top=30]
        [--out=bench/results/operators.jsonl]

Each distinct operator (name, options, shapes) becomes a model of its own with random inputs. What
bounds it is the roofline: the larger of FLOPs by the measured peak and bytes by the measured
bandwidth. In whole models XLA fuses elementwise operators into their neighbors; here they pay for
their own reads and writes.
"""

import collections
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from harness import append, interleaved, ratios, spread
from tqdm import tqdm

import jaxdelegate as jd
from jaxdelegate.analysis.costs import Cost, operator_cost
from jaxdelegate.model import Operator, Subgraph, read_model
from jaxdelegate.op_lowering.spec import Specs, TensorSpec
from jaxdelegate.passes import declared_specs, gather, is_constant, propagate
from jaxdelegate.testing import ModelBuilder, assert_close
from jaxdelegate.testing.running import random_inputs, run_once
from jaxdelegate.testing.tolerance import NETWORK

FLAGS = flags.FLAGS
flags.DEFINE_string("graph", None, "A float .tflite.", required=True)
flags.DEFINE_integer("rounds", 20, "Timed rounds.", 3)
flags.DEFINE_integer("top", 30, "Only the operators with the most work.", 1)
flags.DEFINE_string("platform", None, "Of the delegate; unset: JAX's default.")
flags.DEFINE_string("out", None, "A file to append JSON lines to.")


def distinct(subgraph: Subgraph) -> Iterator[tuple[Operator, Specs, Specs, int]]:
    """Operators that differ in more than their values, and how often each stands in the graph."""
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


def peaks(device: jax.Device) -> dict[str, float]:
    """GFLOP/s of a large float32 product and GB/s of a large addition, best of ten."""
    n = 2048 if device.platform == "cpu" else 8192
    a = jax.device_put(np.ones((n, n), np.float32), device)
    long = jax.device_put(np.ones(1 << 26, np.float32), device)
    dot = jax.jit(lambda x: jnp.dot(x, x, precision="highest"))
    add = jax.jit(lambda x: x + 1)
    return {
        "gflops": 2 * n**3 / _best(lambda: dot(a).block_until_ready()) / 1e9,
        "gbytes": 2 * long.nbytes / _best(lambda: add(long).block_until_ready()) / 1e9,
    }


def _best(call: Any) -> float:
    call()
    times = []
    for _ in range(10):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def measured(content: bytes, threads: int) -> dict[str, list[float]]:
    """Seconds of each round, once both agree."""
    delegate = jd.JaxDelegate(platform=FLAGS.platform)
    engines = {
        "litert_xnnpack": StockInterpreter(model_content=content, num_threads=threads),
        "jaxdelegate": jd.Interpreter(model_content=content, experimental_delegates=[delegate]),
    }
    arrays = random_inputs(engines["litert_xnnpack"].get_input_details())
    want, got = (run_once(engine, arrays) for engine in engines.values())
    assert_close(got, want, tolerance=NETWORK)
    return interleaved({n: e.invoke for n, e in engines.items()}, rounds=FLAGS.rounds)


def roofline(cost: Cost, seconds: float, peak: dict[str, float]) -> dict[str, float]:
    """What a time comes to, and its share of what the machine could do."""
    flops, moved = cost.flops or 0, cost.bytes or 0
    bound = max(flops / peak["gflops"], moved / peak["gbytes"]) / 1e9
    return {
        "gflops": flops / seconds / 1e9,
        "gbytes": moved / seconds / 1e9,
        "of_roofline": bound / seconds,
    }


def main(_argv: list[str]) -> None:
    threads = int(os.environ.get("NPROC", len(os.sched_getaffinity(0))))
    device = jax.devices(FLAGS.platform)[0]
    peak = peaks(device)
    rows = [
        (operator_cost(op.name, op.options, inputs, outputs), op, inputs, outputs, count)
        for op, inputs, outputs, count in distinct(read_model(FLAGS.graph).subgraphs[0])
    ]
    rows.sort(key=lambda row: -row[4] * ((row[0].flops or 0) + (row[0].bytes or 0)))
    for cost, operator, inputs, outputs, count in tqdm(rows[: FLAGS.top], disable=None):
        times = measured(alone(operator, inputs, outputs), threads)
        median = {name: spread(own)["median"] for name, own in times.items()}
        append(
            {
                "bench": "operators",
                "graph": Path(FLAGS.graph).stem,
                "operator": operator.name,
                "index": operator.index,
                "count": count,
                "shapes": [list(s.shape) for s in (*inputs, *outputs) if s is not None],
                "threads": threads,
                "device": str(device),
                "peak": peak,
                "ms": {name: spread([1e3 * t for t in own]) for name, own in times.items()},
                "ratio_to_litert": ratios(times, "litert_xnnpack"),
                "reached": {name: roofline(cost, t, peak) for name, t in median.items()},
            },
            FLAGS.out,
        )


if __name__ == "__main__":
    app.run(main)
