"""The transfer cost of a partition against what it saves: where delegation starts to pay off.

    python bench/handover.py [--platform=gpu] [--out=bench/results/handover.jsonl]

A chain of operators of one kind, then a NEG that the delegate leaves. Both interpreters run each
model without a delegate and with the chain delegated, in turn. `gain_us` is the difference;
`is_declined` and `reason` are the decision of jaxdelegate/plan/gain.py.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from absl import app, flags
from ai_edge_litert.interpreter import Interpreter as StockInterpreter
from harness import append, interleaved, repeated, spread

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import FullyConnectedOptions
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import random_inputs

FLAGS = flags.FLAGS
flags.DEFINE_integer("rounds", 15, "Timed rounds.", 3)
flags.DEFINE_string("platform", None, "Of the delegate; unset: JAX's default.")
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")

HOSTS: dict[str, Callable[..., Any]] = {"jaxdelegate": jd.Interpreter, "litert": StockInterpreter}


class AllButNeg(jd.JaxDelegate):
    def why_not(self, node):
        return "for the host" if node.name == "NEG" else super().why_not(node)


def chains() -> Iterator[tuple[str, int, int]]:
    """The operator, its length and the elements of each tensor."""
    for length in (1, 4, 16, 64):
        yield "ADD", length, 16
    for elements in (10_000, 100_000, 1_000_000):
        yield "ADD", 1, elements
        yield "TANH", 1, elements
    for elements in (64, 256, 1024, 2048):
        yield "FULLY_CONNECTED", 1, elements


def chain(name: str, length: int, elements: int) -> bytes:
    builder = ModelBuilder()
    x = builder.input((1, elements), np.float32, "x")
    for _ in range(length):
        y = builder.tensor((1, elements))
        if name == "FULLY_CONNECTED":
            w = builder.constant(np.eye(elements, dtype=np.float32), "w")
            builder.operator(name, [x, w, -1], [y], FullyConnectedOptions())
        elif name == "ADD":
            builder.operator(name, [x, builder.constant(np.float32(1), "one")], [y])
        else:
            builder.operator(name, [x], [y])
        x = y
    y = builder.tensor((1, elements))
    builder.operator("NEG", [x], [y])
    builder.outputs(y)
    return builder.build()


def opened(host: str, content: bytes, delegates: list[Any] | None) -> Any:
    more = {} if delegates is None else {"experimental_delegates": delegates}
    interpreter = HOSTS[host](model_content=content, **more)
    interpreter.allocate_tensors()
    (x,) = random_inputs(interpreter.get_input_details())
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return interpreter


def measure(host: str, name: str, length: int, elements: int) -> dict[str, Any]:
    content = chain(name, length, elements)
    default = AllButNeg(platform=FLAGS.platform)
    opened(host, content, [default])
    alone = opened(host, content, None)
    delegated = opened(host, content, [AllButNeg(platform=FLAGS.platform, min_gain=0)])
    got, want = (i.get_tensor(i.get_output_details()[0]["index"]) for i in (delegated, alone))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    calls = max(3, 20_000 // max(elements, 200))
    times = interleaved(
        {
            "alone": repeated(alone.invoke, calls),
            "delegated": repeated(delegated.invoke, calls),
        },
        rounds=FLAGS.rounds,
    )
    us = {key: [1e6 * t / calls for t in own] for key, own in times.items()}
    gain = [a - d for a, d in zip(us["alone"], us["delegated"], strict=True)]
    return {
        "us": {key: spread(own) for key, own in us.items()},
        "gain_us": spread(gain),
        "is_declined": not default.report().delegated,
        "reason": default.report().nodes[0].reason,
    }


def main(_argv: list[str]) -> None:
    for host in HOSTS:
        for name, length, elements in chains():
            row = {"host": host, "operator": name, "length": length, "elements": elements}
            append({"bench": "handover", **row, **measure(host, name, length, elements)}, FLAGS.out)


if __name__ == "__main__":
    app.run(main)
