"""One inference: the delegate beside stock LiteRT and the numpy reference.

    python bench/latency.py [--graph=model.tflite] [--rounds=30] [--out=bench/results/latency.jsonl]

Without --graph: MobileNet v1 1.0 224, as in the demo. For one thread run with NPROC=1 and
`taskset -c 0`.
Outputs are compared before anything is timed. Milliseconds; ratios are taken round by round.
"""

import time
from pathlib import Path

from absl import app, flags
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from ai_edge_litert.interpreter import OpResolverType
from harness import append, interleaved, ratios, spread, threads

import jaxdelegate as jd
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.measuring.tolerance import NETWORK, assert_close
from jaxdelegate.testing.running import random_inputs, run_once

FLAGS = flags.FLAGS
flags.DEFINE_string("graph", None, "A float .tflite; unset: MobileNet v1 1.0 224, built in memory.")
flags.DEFINE_integer("rounds", 30, "Timed rounds.", 3)
flags.DEFINE_string("out", None, "A file to append the JSON line to.")


def main(_argv: list[str]) -> None:
    content = Path(FLAGS.graph).read_bytes() if FLAGS.graph else mobilenet_v1()
    delegate = jd.JaxDelegate()
    engines = {
        "litert_xnnpack": StockInterpreter(model_content=content, num_threads=threads()),
        "jaxdelegate": jd.Interpreter(model_content=content, experimental_delegates=[delegate]),
        "numpy_reference": jd.Interpreter(model_content=content),
    }
    arrays = random_inputs(engines["litert_xnnpack"].get_input_details())
    results = {name: run_once(engine, arrays) for name, engine in engines.items()}
    kernels = OpResolverType.BUILTIN_REF
    want = run_once(
        StockInterpreter(model_content=content, experimental_op_resolver_type=kernels), arrays
    )
    for result in results.values():
        assert_close(result, want, tolerance=NETWORK)
    start = time.perf_counter()
    engines["numpy_reference"].invoke()
    reference_ms = 1e3 * (time.perf_counter() - start)
    timed = {name: engines[name].invoke for name in ("litert_xnnpack", "jaxdelegate")}
    times = interleaved(timed, rounds=FLAGS.rounds)
    append(
        {
            "bench": "latency",
            "graph": Path(FLAGS.graph).name if FLAGS.graph else "mobilenet_v1_1.0_224",
            "threads": threads(),
            "device": str(delegate.device),
            "delegation": delegate.report().summary(),
            "ms": {name: spread([1e3 * t for t in own]) for name, own in times.items()},
            "numpy_reference_ms": reference_ms,
            "ratio_to_litert": ratios(times, "litert_xnnpack"),
        },
        FLAGS.out,
    )


if __name__ == "__main__":
    app.run(main)
