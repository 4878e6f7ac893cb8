"""Work of operators, some of which share instructions."""

import jaxdelegate as jd
from jaxdelegate.benchmark.work import OpTime, work_of
from jaxdelegate.measuring.stats import Stat
from jaxdelegate.simple_delegate import Node
from tests.benchmark.test_run import two_adds


def nodes() -> list[Node]:
    interpreter = jd.Interpreter(model_content=two_adds())
    interpreter.allocate_tensors()
    return [step.node for step in interpreter._runner(0)._steps]


def row(*indices: int, us: int, traffic: int) -> OpTime:
    return OpTime("ADD", "x", Stat((us, us)), nodes=indices, traffic=traffic)


def test_operators_that_share_an_instruction_are_one() -> None:
    rows = [row(1, us=4, traffic=10), row(0, 1, us=2, traffic=20), row(us=9, traffic=90)]
    (work,) = work_of(rows, nodes())
    assert (work.name, work.nodes, work.flops) == ("ADD 0+1", (0, 1), 8)
    assert (work.seconds, work.bytes) == (6e-6, 30)


def test_others_are_apart_in_the_order_of_the_model() -> None:
    first, second = work_of([row(1, us=4, traffic=1), row(0, us=2, traffic=2)], nodes())
    assert (first.nodes, second.nodes) == ((0,), (1,))
    assert (first.flops, second.seconds) == (4, 4e-6)
