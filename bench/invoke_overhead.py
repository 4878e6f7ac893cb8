"""What `invoke` costs: a model of one ADD, for one input of growing size, compared with LiteRT.

    NPROC=1 taskset -c 0 python bench/invoke_overhead.py [--out=bench/results/invoke_overhead.jsonl]

`by_xla` is a call of the model's executable by XLA's runtime, on an array with the interpreter's
alignment. Small programs on a CPU are called without that runtime (jaxdelegate/thunks), so `invoke`
may take less. Microseconds a call; `set_invoke_get` also sets the input and copies the output.
Ratios, round by round, are those of `invoke` and of all three calls.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import app, flags
from ai_edge_litert.interpreter import Interpreter as LiteRT
from harness import append, interleaved, repeated, spread

import jaxdelegate as jd
from jaxdelegate.host_memory import aligned_zeros
from jaxdelegate.testing import ModelBuilder

FLAGS = flags.FLAGS
flags.DEFINE_integer("rounds", 30, "Timed rounds.", 3)
flags.DEFINE_integer("calls", 500, "Calls in a round.", 1)
flags.DEFINE_list("values", ["4", "1024", "50176", "150528"], "Elements of one image.")
flags.DEFINE_list("batches", ["1", "8"], "Images at a time.")
flags.DEFINE_string("platform", None, "Of the delegate; unset: JAX's default.")
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")


def add(values: int) -> bytes:
    builder = ModelBuilder()
    x = builder.input((1, values), np.float32)
    y = builder.tensor((1, values))
    builder.operator("ADD", [x, builder.constant(np.float32(1), "one")], [y])
    builder.outputs(y)
    return builder.build()


def measure(values: int, batch: int) -> dict[str, dict[str, float]]:
    given = np.random.default_rng(0).normal(size=(batch, values)).astype(np.float32)
    delegate = jd.JaxDelegate(platform=FLAGS.platform)
    own = ready(jd.Interpreter(model_content=add(values), experimental_delegates=[delegate]), given)
    stock = ready(LiteRT(model_content=add(values), num_threads=1), given)
    output = own.get_output_details()[0]["index"]
    program = delegate.partitions()[0].program
    array = aligned_zeros(
        given.shape, given.dtype
    )  # aligned as the interpreter's: JAX would copy others
    array[...] = given

    def by_xla() -> jax.Array:
        (result,) = program.executable.run(program.constants, [array])
        return result.block_until_ready()

    def whole(interpreter: Any) -> Callable[[], None]:
        def set_invoke_get() -> None:
            interpreter.set_tensor(0, given)
            interpreter.invoke()
            interpreter.get_tensor(output)

        return set_invoke_get

    candidates: dict[str, Callable[[], Any]] = {
        "litert": stock.invoke,
        "litert_set_invoke_get": whole(stock),
        "by_xla": by_xla,
        "invoke": own.invoke,
        "set_invoke_get": whole(own),
    }
    with jax.enable_x64(True):  # as the executable was compiled
        np.testing.assert_array_equal(np.asarray(by_xla()), given + np.float32(1))
        calls = {name: repeated(call, FLAGS.calls) for name, call in candidates.items()}
        times = interleaved(calls, rounds=FLAGS.rounds)
    np.testing.assert_array_equal(own.get_tensor(output), given + np.float32(1))
    us = {name: [1e6 * t / FLAGS.calls for t in found] for name, found in times.items()}
    ratios = {
        "over_litert": ("invoke", "litert"),
        "whole_over_litert": ("set_invoke_get", "litert_set_invoke_get"),
    }
    for name, (a, b) in ratios.items():
        us[name] = [x / y for x, y in zip(us[a], us[b], strict=True)]
    return {name: spread(found) for name, found in us.items()}


def ready(interpreter: Any, given: np.ndarray) -> Any:
    interpreter.resize_tensor_input(0, given.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, given)
    return interpreter


def main(_argv: list[str]) -> None:
    for values in map(int, FLAGS.values):
        for batch in map(int, FLAGS.batches):
            append(
                {
                    "bench": "invoke_overhead",
                    "bytes": 4 * values * batch,
                    "batch": batch,
                    "device": str(jax.devices(FLAGS.platform)[0]),
                    "us": measure(values, batch),
                },
                FLAGS.out,
            )


if __name__ == "__main__":
    app.run(main)
