"""What a delegate costs in a stock interpreter beyond its kernel, for a four-element ADD.

    python bench/bridge.py [--out=bench/results/bridge.jsonl]

The stock interpreter's `invoke` runs a trivial Python kernel, which is also called directly; the
difference is the cost of the bridge, in microseconds a call. The target is below 5. For comparison,
`jax_delegate` is JaxDelegate's ADD and `no_delegate` LiteRT's own.
"""

import numpy as np
from absl import app, flags
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from harness import append, interleaved, repeated, spread

import jaxdelegate as jd
from jaxdelegate.testing import ModelBuilder

FLAGS = flags.FLAGS
flags.DEFINE_integer("rounds", 30, "Timed rounds.", 3)
flags.DEFINE_integer("calls", 2000, "Calls in a round.", 1)
flags.DEFINE_string("out", None, "A file to append the JSON line to.")


class AddKernel(jd.SimpleDelegateKernel):
    """The least that an ADD takes: two values in, one out."""

    def init(self, context, params):  # noqa: ARG002
        operator = params.nodes[0].operator
        (self.a, self.b), (self.y,) = operator.inputs, operator.outputs

    def prepare(self, context, node):
        self.context, self.node = context, node  # for the direct call

    def eval(self, context, node):  # noqa: ARG002
        context.assign(self.y, context.value(self.a) + context.value(self.b))


class AddDelegate(jd.SimpleDelegate):
    name = "AddDelegate"

    def __init__(self):
        super().__init__()
        self.kernel = AddKernel()

    def is_node_supported(self, node):
        return node.name == "ADD"

    def create_kernel(self):
        return self.kernel


def add() -> bytes:
    builder = ModelBuilder()
    a, b = builder.input((4,), np.float32), builder.input((4,), np.float32)
    y = builder.tensor((4,))
    builder.operator("ADD", [a, b], [y])
    builder.outputs(y)
    return builder.build()


def ready(*delegates) -> Interpreter:
    interpreter = Interpreter(
        model_content=add(),
        experimental_delegates=list(delegates),
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    interpreter.allocate_tensors()
    for index in (0, 1):
        interpreter.set_tensor(index, np.arange(4, dtype=np.float32))
    interpreter.invoke()
    result = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_array_equal(result, 2 * np.arange(4))
    return interpreter


def main(_argv: list[str]) -> None:
    mine = AddDelegate()
    python, jax, plain = ready(mine), ready(jd.JaxDelegate()), ready()
    kernel = mine.kernel
    calls = {
        "direct": lambda: kernel.eval(kernel.context, kernel.node),
        "python_delegate": python._interpreter.Invoke,
        "jax_delegate": jax._interpreter.Invoke,
        "no_delegate": plain._interpreter.Invoke,
    }
    times = interleaved(
        {k: repeated(v, FLAGS.calls) for k, v in calls.items()}, rounds=FLAGS.rounds
    )
    us = {name: [1e6 * t / FLAGS.calls for t in own] for name, own in times.items()}
    bridge = [t - d for t, d in zip(us["python_delegate"], us["direct"], strict=True)]
    append(
        {
            "bench": "bridge",
            "us": {name: spread(own) for name, own in us.items()},
            "bridge_us": spread(bridge),
            "wanted_us": 5,
        },
        FLAGS.out,
    )


if __name__ == "__main__":
    app.run(main)
