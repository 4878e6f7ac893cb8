"""How to draw operators that select boxes or generate random numbers."""

import numpy as np

from jaxdelegate.op_lowering.options import RandomOptions
from tests.support.graph_drawing import Drawing
from tests.support.random_operators.elementwise import Draw


def _suppression(name: str) -> Draw:
    def draw(d: Drawing) -> None:
        n, limit = d.between(1, 12), d.between(1, 8)
        corners = d.rng.uniform(0, 1, (n, 2))
        boxes = np.float32(np.concatenate([corners, corners + d.rng.uniform(0, 1, (n, 2))], 1))
        scores = np.float32(d.rng.permutation(n) / n)  # no ties
        operands = [d.fed(boxes), d.fed(scores), d.const(limit, np.int32)]
        operands += [d.const(v, np.float32) for v in (d.one_of((0.3, 0.5, 1.0)), 0.1)]
        outputs = [d.add((limit,), np.int32), d.add((), np.int32)]
        if name.endswith("V5"):
            operands.append(d.const(d.one_of((0.0, 0.5)), np.float32))
            outputs.insert(1, d.add((limit,), np.float32))
        d.node(name, operands, outputs, live=False)

    return draw


def _random(name: str) -> Draw:
    def draw(d: Drawing) -> None:
        shape = d.shape(1, 3)
        seeds = RandomOptions(d.between(1, 999), d.between(0, 999))
        d.result(name, [d.const(shape, np.int32)], shape, "float32", seeds)

    return draw


def _multinomial(d: Drawing) -> None:
    b, classes, n = d.between(1, 3), d.between(1, 6), d.between(1, 9)
    logits = d.new("float32", (b, classes))
    kind = d.one_of(("int32", "int64"))
    seeds = RandomOptions(d.between(1, 999), d.between(0, 999))
    d.result("MULTINOMIAL", [logits, d.const(n, np.int32)], (b, n), kind, seeds)


OPERATORS: dict[str, Draw] = {
    "NON_MAX_SUPPRESSION_V4": _suppression("NON_MAX_SUPPRESSION_V4"),
    "NON_MAX_SUPPRESSION_V5": _suppression("NON_MAX_SUPPRESSION_V5"),
    "RANDOM_UNIFORM": _random("RANDOM_UNIFORM"),
    "RANDOM_STANDARD_NORMAL": _random("RANDOM_STANDARD_NORMAL"),
    "MULTINOMIAL": _multinomial,
}
