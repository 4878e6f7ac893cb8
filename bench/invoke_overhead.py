"""What `invoke` costs beyond its program: on one input of growing size, batch by batch.

    NPROC=1 taskset -c 0 python bench/invoke_overhead.py [--out=bench/results/invoke_overhead.jsonl]

A model of one ADD is invoked by the interpreter, which blocks until results are there, and its
executable is called directly on the same host arrays, waited for, and its result copied out.
Microseconds a call; `overhead` is the difference, round by round; below 10 is wanted. `set_and_get`
is what set_tensor and get_tensor, which copy, cost on top.
"""

import jax
import numpy as np
from absl import app, flags
from harness import append, interleaved, spread

import jaxdelegate as jd
from jaxdelegate.host import aligned_zeros
from jaxdelegate.testing import ModelBuilder

FLAGS = flags.FLAGS
flags.DEFINE_integer("rounds", 30, "Timed rounds.", 3)
flags.DEFINE_integer("calls", 500, "Calls in a round.", 1)
flags.DEFINE_list("values", ["4", "1024", "50176", "150528"], "Elements of one image.")
flags.DEFINE_list("batches", ["1", "8"], "Images at a time.")
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")


def add(values: int) -> bytes:
    builder = ModelBuilder()
    x = builder.input((1, values), np.float32)
    y = builder.tensor((1, values))
    builder.operator("ADD", [x, builder.constant(np.float32(1), "one")], [y])
    builder.outputs(y)
    return builder.build()


def measure(values: int, batch: int) -> dict[str, dict[str, float]]:
    delegate = jd.JaxDelegate()
    interpreter = jd.Interpreter(model_content=add(values), experimental_delegates=[delegate])
    interpreter.resize_tensor_input(0, [batch, values])
    interpreter.allocate_tensors()
    array = aligned_zeros((batch, values), np.dtype(np.float32))
    array[...] = np.random.default_rng(0).normal(size=array.shape)
    interpreter.set_tensor(0, array)
    output = interpreter.get_output_details()[0]["index"]
    program = delegate.partitions()[0].program

    def direct() -> None:
        with jax.enable_x64(True):
            for _ in range(FLAGS.calls):
                results = program.executable(*program.weights, array)
                for result in results:
                    result.block_until_ready()
                    np.array(result)

    def invoke() -> None:
        for _ in range(FLAGS.calls):
            interpreter.invoke()

    def all_three() -> None:
        for _ in range(FLAGS.calls):
            interpreter.set_tensor(0, array)
            interpreter.invoke()
            interpreter.get_tensor(output)

    candidates = {"direct": direct, "invoke": invoke, "set_invoke_get": all_three}
    times = interleaved(candidates, rounds=FLAGS.rounds)
    np.testing.assert_array_equal(interpreter.get_tensor(output), array + np.float32(1))
    us = {name: [1e6 * t / FLAGS.calls for t in own] for name, own in times.items()}
    us["overhead"] = [a - b for a, b in zip(us["invoke"], us["direct"], strict=True)]
    us["set_and_get"] = [a - b for a, b in zip(us["set_invoke_get"], us["invoke"], strict=True)]
    return {name: spread(own) for name, own in us.items()}


def main(_argv: list[str]) -> None:
    for values in map(int, FLAGS.values):
        for batch in map(int, FLAGS.batches):
            append(
                {
                    "bench": "invoke_overhead",
                    "bytes": 4 * values * batch,
                    "batch": batch,
                    "device": str(jax.devices()[0]),
                    "us": measure(values, batch),
                },
                FLAGS.out,
            )


if __name__ == "__main__":
    app.run(main)
