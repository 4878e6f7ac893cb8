"""One inference: the delegate beside stock LiteRT and the numpy reference.

    python bench/latency.py [--graph=model.tflite] [--rounds=30] [--out=bench/results/latency.jsonl]

Without --graph: MobileNet v1 1.0 224 from jaxdelegate.testing. For one thread run with NPROC=1 and
`taskset -c 0`.
Outputs are compared before anything is timed. Milliseconds; ratios are taken round by round.
"""

import os
import time
from pathlib import Path

import numpy as np
from absl import app, flags
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from ai_edge_litert.interpreter import OpResolverType
from harness import append, interleaved, ratios, spread

import jaxdelegate as jd
from jaxdelegate.testing.networks import mobilenet_v1
from jaxdelegate.testing.tolerance import NETWORK, assert_close

FLAGS = flags.FLAGS
flags.DEFINE_string("graph", None, "A float .tflite; unset: MobileNet v1 1.0 224, built in memory.")
flags.DEFINE_integer("rounds", 30, "Timed rounds.", 3)
flags.DEFINE_string("out", None, "A file to append the JSON line to.")


def inputs_of(interpreter) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    details = interpreter.get_input_details()
    return [rng.uniform(-1, 1, d["shape"]).astype(d["dtype"]) for d in details]


def prepared(interpreter, arrays: list[np.ndarray]):
    interpreter.allocate_tensors()
    for detail, array in zip(interpreter.get_input_details(), arrays, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return interpreter


def outputs(interpreter) -> list[np.ndarray]:
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


def main(_argv: list[str]) -> None:
    content = Path(FLAGS.graph).read_bytes() if FLAGS.graph else mobilenet_v1()
    threads = int(os.environ.get("NPROC", len(os.sched_getaffinity(0))))
    delegate = jd.JaxDelegate()
    engines = {
        "litert_xnnpack": StockInterpreter(model_content=content, num_threads=threads),
        "jaxdelegate": jd.Interpreter(model_content=content, experimental_delegates=[delegate]),
        "numpy_reference": jd.Interpreter(model_content=content),
    }
    arrays = inputs_of(engines["litert_xnnpack"])
    for engine in engines.values():
        prepared(engine, arrays)
    kernels = OpResolverType.BUILTIN_REF
    want = outputs(
        prepared(
            StockInterpreter(model_content=content, experimental_op_resolver_type=kernels), arrays
        )
    )
    for engine in engines.values():
        assert_close(outputs(engine), want, tolerance=NETWORK)
    start = time.perf_counter()
    engines["numpy_reference"].invoke()
    reference_ms = 1e3 * (time.perf_counter() - start)
    timed = {name: engines[name].invoke for name in ("litert_xnnpack", "jaxdelegate")}
    times = interleaved(timed, rounds=FLAGS.rounds)
    append(
        {
            "bench": "latency",
            "graph": FLAGS.graph or "mobilenet_v1_1.0_224",
            "threads": threads,
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
