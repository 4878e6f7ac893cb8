"""What `invoke` costs beyond its program, for one input of growing size.

    NPROC=1 taskset -c 0 python bench/invoke_overhead.py [--out=bench/results/invoke_overhead.jsonl]

The interpreter invokes a model of one ADD and waits for its results; the model's executable is also
called directly, on an array with the interpreter's alignment. Results stay in place, or are copied
into new arrays as by `get_tensor`. Microseconds a call; `overhead` and `overhead_copied` are the
differences, round by round. The target is below 10. `set_tensor` is what copying the input costs on
top.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import app, flags
from harness import append, interleaved, repeated, spread

import jaxdelegate as jd
from jaxdelegate.runtime.buffers import aligned_zeros
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
    delegate = jd.JaxDelegate(platform=FLAGS.platform)
    interpreter = jd.Interpreter(model_content=add(values), experimental_delegates=[delegate])
    interpreter.resize_tensor_input(0, [batch, values])
    interpreter.allocate_tensors()
    given = np.random.default_rng(0).normal(size=(batch, values)).astype(np.float32)
    interpreter.set_tensor(0, given)
    output = interpreter.get_output_details()[0]["index"]
    program = delegate.partitions()[0].program
    array = aligned_zeros(
        given.shape, given.dtype
    )  # aligned as the interpreter's: JAX would copy others
    array[...] = given

    def called() -> jax.Array:
        (result,) = program.executable.run(program.constants, [array])
        return result.block_until_ready()

    def invoke_and_get() -> None:
        interpreter.invoke()
        interpreter.get_tensor(output)

    def set_invoke_get() -> None:
        interpreter.set_tensor(0, given)
        invoke_and_get()

    candidates: dict[str, Callable[[], Any]] = {
        "direct": called,
        "direct_copied": lambda: np.array(called()),
        "invoke": interpreter.invoke,
        "invoke_get": invoke_and_get,
        "set_invoke_get": set_invoke_get,
    }
    with jax.enable_x64(True):  # as the executable was compiled
        np.testing.assert_array_equal(np.asarray(called()), given + np.float32(1))
        calls = {name: repeated(call, FLAGS.calls) for name, call in candidates.items()}
        times = interleaved(calls, rounds=FLAGS.rounds)
    np.testing.assert_array_equal(interpreter.get_tensor(output), given + np.float32(1))
    us = {name: [1e6 * t / FLAGS.calls for t in own] for name, own in times.items()}
    us["overhead"] = difference(us["invoke"], us["direct"])
    us["overhead_copied"] = difference(us["invoke_get"], us["direct_copied"])
    us["set_tensor"] = difference(us["set_invoke_get"], us["invoke_get"])
    return {name: spread(own) for name, own in us.items()}


def difference(a: list[float], b: list[float]) -> list[float]:
    return [x - y for x, y in zip(a, b, strict=True)]


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
                    "wanted_us": 10,
                },
                FLAGS.out,
            )


if __name__ == "__main__":
    app.run(main)
