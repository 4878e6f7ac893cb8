"""Decoder layers with weights of few bits: time and memory of XNNPACK, a delegate, and `jax.jit`.

    NPROC=1 taskset -c 0 python bench/decoders.py [--weights=int8,int4,int4_block32]
        [--rows=1,128] [--layers=4] [--width=1024] [--rounds=40]
        [--out=bench/results/decoders.jsonl]

One row is a step of decoding, 128 rows are the start of a prompt. The layers have no attention, so
that only products count (tests/support/decoders.py). Engines run in turn, in one process:

litert_xnnpack    the stock interpreter
jaxdelegate       our interpreter with JaxDelegate and its defaults
prepared          `jax.jit` of `function(weights="prepared")`, with its input on the device

Before, their results are compared with the numpy reference (`error`, of the largest value). They
may differ by 0.5%: where LOGISTIC rounds another way, a value may move by a step of int8. `peak_mb`
is the largest resident memory of a process that runs one engine alone, less that of the same
process with one small layer.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from harness import append, interleaved, ratios, spread, threads

import jaxdelegate as jd
from tests.support.decoders import INT4, INT8, chain

FLAGS = flags.FLAGS
flags.DEFINE_list("weights", ["int8", "int4", "int4_block32"], "Of the filters.")
flags.DEFINE_list("rows", ["1", "128"], "Rows at a time.")
flags.DEFINE_integer("layers", 4, "How many.", 1)
flags.DEFINE_integer("width", 1024, "Of the rows.", 32)
flags.DEFINE_integer("rounds", 40, "Timed rounds.", 3)
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")
flags.DEFINE_string("child", None, "For the script itself: the engine of a process.")
flags.DEFINE_string("graph", None, "For the script itself: the model of a process.")

_WEIGHTS = {"int8": (INT8, 0), "int4": (INT4, 0), "int4_block32": (INT4, 32)}
_MOST = 5e-3  # of the largest value


def engines(graph: str, x: np.ndarray) -> dict[str, Callable[[], Callable[[], Any]]]:
    """By name, what makes an engine; it returns the result, and waits for it."""

    def of_interpreter(interpreter: Any) -> Callable[[], Any]:
        interpreter.allocate_tensors()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
        output = interpreter.get_output_details()[0]["index"]

        def run() -> Any:
            interpreter.invoke()
            return interpreter.get_tensor(output)

        return run

    def stock() -> Callable[[], Any]:
        return of_interpreter(StockInterpreter(graph, num_threads=threads()))

    def delegated() -> Callable[[], Any]:
        return of_interpreter(jd.Interpreter(graph, experimental_delegates=[jd.JaxDelegate()]))

    def prepared() -> Callable[[], Any]:
        apply, params = jd.load(graph).function(weights="prepared")
        run, given = jax.jit(apply), jax.device_put(x)
        return lambda: jax.block_until_ready(run(params, given))[0]

    return {"litert_xnnpack": stock, "jaxdelegate": delegated, "prepared": prepared}


def checked(graph: str, x: np.ndarray, runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The largest difference of each engine from the reference, of the largest value.

    Raises:
        AssertionError: an engine is wrong.
    """
    (want,) = (jd.Interpreter(graph).get_signature_runner("decode")(x=x)).values()
    size = float(np.abs(want).max())
    found = {name: float(np.abs(run() - want).max()) / size for name, run in runs.items()}
    for name, error in found.items():
        assert error <= _MOST, (name, error)
    return found


def peak_mb(engine: str, graph: Path) -> float:
    """The largest resident memory of a process that runs an engine once."""
    command = [sys.executable, __file__, f"--child={engine}", f"--graph={graph}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def in_child() -> None:
    shape = StockInterpreter(FLAGS.graph).get_input_details()[0]["shape"]
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    engines(FLAGS.graph, x)[FLAGS.child]()()
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    # Not getrusage: there the memory of the process that started this one counts too.
    print(next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM:")))


def measure(folder: Path, weights: str, rows: int) -> dict[str, Any]:
    dtype, block = _WEIGHTS[weights]
    graph, small = folder / f"{weights}_{rows}.tflite", folder / f"small_{weights}_{rows}.tflite"
    graph.write_bytes(chain(rows, dtype, block, layers=FLAGS.layers, width=FLAGS.width))
    small.write_bytes(chain(rows, dtype, block, layers=1, width=32))
    x = np.random.default_rng(0).normal(size=(rows, FLAGS.width)).astype(np.float32)
    runs = {name: make() for name, make in engines(str(graph), x).items()}
    errors = checked(str(graph), x, runs)
    times = interleaved(runs, rounds=FLAGS.rounds)
    return {
        "file_mb": graph.stat().st_size / 1e6,
        "error": errors,
        "ms": {name: spread([1e3 * t for t in own]) for name, own in times.items()},
        "ratio_to_litert": ratios(times, "litert_xnnpack"),
        "peak_mb": {name: peak_mb(name, graph) - peak_mb(name, small) for name in runs},
    }


def main(_argv: list[str]) -> None:
    if FLAGS.child:
        in_child()
        return
    with tempfile.TemporaryDirectory() as folder:
        for weights in FLAGS.weights:
            for rows in map(int, FLAGS.rows):
                head = {"bench": "decoders", "weights": weights, "rows": rows}
                sizes = {"layers": FLAGS.layers, "width": FLAGS.width, "threads": threads()}
                append({**head, **sizes, **measure(Path(folder), weights, rows)}, FLAGS.out)


if __name__ == "__main__":
    app.run(main)
