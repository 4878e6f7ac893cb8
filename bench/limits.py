"""How time grows with a graph's nodes, and memory with repeated resizing.

    python bench/limits.py --nodes=1000,2000,4000 [--delegate] [--out=bench/results/limits.jsonl]
    python bench/limits.py --resizes=300 [--delegate | --function] [--out=...]

Nodes: a chain of ADD, or, with --alternating, a delegate that takes every second one (only
planned). Seconds of processor time, of all threads, to read the file, to plan (shapes, partitions),
to allocate (which compiles delegated partitions) and to invoke. Resizes: six convolutions of 128
channels, each time with another input shape; megabytes of RssAnon after every tenth of them, after
the interpreter is gone, and after the C library has returned cached memory (malloc_trim).
"""

import ctypes
import dataclasses
import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import app, flags
from harness import append, rss_anon_mb

import jaxdelegate as jd
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.options import default_options
from jaxdelegate.simple_delegate import Node
from jaxdelegate.testing.builder import ModelBuilder

FLAGS = flags.FLAGS
flags.DEFINE_list("nodes", [], "How many nodes, one measurement each.")
flags.DEFINE_integer("resizes", 0, "How many input shapes.")
flags.DEFINE_bool("delegate", False, "With a JaxDelegate instead of the reference.")
flags.DEFINE_bool("alternating", False, "Plan with a delegate that takes every second node.")
flags.DEFINE_bool("function", False, "Resize the function of jaxdelegate.load(...).function().")
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")

CHANNELS = 128


class EverySecond(jd.JaxDelegate):
    """Leaves operators of odd indices to the host."""

    def why_not(self, node: Node) -> str | None:
        return "odd" if node.index % 2 else super().why_not(node)


def chain(nodes: int) -> bytes:
    m = ModelBuilder()
    y, one = m.input((4,)), m.constant(np.ones(4, np.float32))
    for _ in range(nodes):
        x, y = y, m.tensor((4,))
        m.operator("ADD", [x, one], [y])
    m.outputs(y)
    return m.build()


def convolutions() -> bytes:
    m, rng = ModelBuilder(), np.random.default_rng(0)
    y, channels = m.input((1, 8, 8, 3), shape_signature=(-1, 8, 8, 3)), 3
    options = dataclasses.replace(default_options("CONV_2D"), stride_h=1, stride_w=1)  # type: ignore[type-var]
    for _ in range(6):
        weights = rng.normal(0, 0.1, (CHANNELS, 3, 3, channels)).astype(np.float32)
        constants = m.constant(weights), m.constant(np.zeros(CHANNELS, np.float32))
        x, y, channels = y, m.tensor((1, 8, 8, CHANNELS)), CHANNELS
        m.operator("CONV_2D", [x, *constants], [y], options)
    m.outputs(y)
    return m.build()


def delegates() -> list[jd.JaxDelegate]:
    if FLAGS.alternating:
        return [EverySecond(min_gain=0)]
    return [jd.JaxDelegate(min_gain=0)] if FLAGS.delegate else []


def seconds(call: Callable[[], Any]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def grow_nodes(nodes: int) -> dict[str, Any]:
    file = chain(nodes)
    found: dict[str, Any] = {"nodes": nodes, "file_mb": len(file) / 2**20}
    found["read_s"] = seconds(lambda: read_model(file))
    interpreter = jd.Interpreter(model_content=file, experimental_delegates=delegates())
    found["plan_s"] = seconds(interpreter._runner(0).plan)
    if not FLAGS.alternating:
        found["allocate_s"] = seconds(interpreter.allocate_tensors)
        found["invoke_s"] = seconds(interpreter.invoke)
    return {**found, "rss_anon_mb": rss_anon_mb()}


def grow_shapes(resizes: int) -> dict[str, Any]:
    run = function_runner() if FLAGS.function else interpreter_runner()
    grown = []
    for batch in range(1, resizes + 1):
        run(np.ones((batch % 64 + 1, 8, 8 + batch // 64, 3), np.float32))
        if batch == 1 or batch % max(1, resizes // 10) == 0:
            grown.append((batch, rss_anon_mb()))
    del run
    gc.collect()
    deleted = rss_anon_mb()
    ctypes.CDLL(None).malloc_trim(0)
    return {
        "resizes": resizes,
        "rss_anon_mb": grown,
        "deleted_mb": deleted,
        "trimmed_mb": rss_anon_mb(),
    }


def interpreter_runner() -> Callable[[np.ndarray], Any]:
    interpreter = jd.Interpreter(model_content=convolutions(), experimental_delegates=delegates())
    (output,) = interpreter.get_output_details()

    def run(x: np.ndarray) -> np.ndarray:
        interpreter.resize_tensor_input(0, x.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, x)
        interpreter.invoke()
        return interpreter.get_tensor(output["index"])

    return run


def function_runner() -> Callable[[np.ndarray], Any]:
    apply, params = jd.load(convolutions()).function()
    return lambda x: apply(params, x)


def main(_argv: list[str]) -> None:
    how = {n: True for n in ("delegate", "alternating", "function") if FLAGS[n].value}
    for nodes in map(int, FLAGS.nodes):
        append({"bench": "limits", **how, **grow_nodes(nodes)}, FLAGS.out)
    if FLAGS.resizes:
        append({"bench": "limits", **how, **grow_shapes(FLAGS.resizes)}, FLAGS.out)


if __name__ == "__main__":
    app.run(main)
