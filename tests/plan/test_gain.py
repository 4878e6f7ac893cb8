"""Partitions that gain too little stay on the host; min_gain=0 takes them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import FullyConnectedOptions, RandomOptions
from jaxdelegate.options import DelegateOptions
from jaxdelegate.plan.gain import LITERT, REFERENCE, HostSpeed, why_not_gaining
from jaxdelegate.simple_delegate import Node, TransferCost
from jaxdelegate.testing import ModelBuilder, assert_close

FREE = HostSpeed(0, 0, 0, 0)
SLOW = HostSpeed(1, 1, 1, 1)


def chain(n: int, size: int = 4) -> bytes:
    """`n` ADDs, then WHERE, which no partition of ours holds."""
    builder = ModelBuilder()
    x = builder.input((size,), np.float32, "x")
    one = builder.constant(np.float32(1), "one")
    for _ in range(n):
        y = builder.tensor((size,))
        builder.operator("ADD", [x, one], [y])
        x = y
    mask = builder.tensor((size,), np.bool_)
    builder.operator("GREATER", [x, one], [mask])
    found = builder.tensor((size, 1), np.int64, "found", shape_signature=(-1, 1))
    builder.operator("WHERE", [mask], [found])
    builder.outputs(found)
    return builder.build()


def nodes_of(content: bytes) -> tuple[Node, ...]:
    class Asked(jd.SimpleDelegate):
        def initialize(self, context: Any) -> None:
            self.nodes = tuple(context.nodes())

        def is_node_supported(self, node: Node) -> bool:  # noqa: ARG002
            return False

        def create_kernel(self) -> Any:
            raise NotImplementedError

    asked = Asked()
    jd.Interpreter(model_content=content, experimental_delegates=[asked])
    return asked.nodes


def adds(n: int) -> tuple[Node, ...]:
    return tuple(node for node in nodes_of(chain(n)) if node.name == "ADD")


def run(interpreter: Any, x: np.ndarray) -> np.ndarray:
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


HOSTS = {"jaxdelegate": jd.Interpreter, "litert": StockInterpreter}
X = np.array([-1, 0, 1, 2], np.float32)


@pytest.mark.parametrize(("size", "is_taken"), [(4, False), (400_000, True)])
def test_a_stock_interpreter_keeps_what_is_small(size: int, is_taken: bool) -> None:
    delegate = jd.JaxDelegate(platform="cpu")
    model = chain(10, size)
    x = np.resize(X, size) - 10
    got = run(StockInterpreter(model_content=model, experimental_delegates=[delegate]), x)
    assert_close([got], [np.argwhere(x + 10 > 1)])
    assert bool(delegate.report().delegated) == is_taken


def test_each_operator_has_its_cost() -> None:
    speed, cost = HostSpeed(3e-6, 0, 0, 0), TransferCost(call=20e-6, operator=2e-6)
    assert why_not_gaining(adds(19), (), speed, cost, 1.0) is not None  # 57 us by 58 us
    assert why_not_gaining(adds(21), (), speed, cost, 1.0) is None  # 63 us by 62 us


def test_small_operators_do_not_hide_a_large_one() -> None:
    """The large one, a random number, which stays with the host, and 200 small ones after it."""
    builder = ModelBuilder()
    x = builder.input((64, 300), np.float32, "x")
    w = builder.constant(np.ones((1, 300), np.float32))
    wide = builder.constant(np.ones((300, 300), np.float32))
    h, y, noise = (builder.tensor(shape) for shape in ((64, 300), (64, 1), (1,)))
    builder.operator("FULLY_CONNECTED", [x, wide, None], [h], FullyConnectedOptions())
    builder.operator("FULLY_CONNECTED", [h, w, None], [y], FullyConnectedOptions())
    shape = builder.constant(np.array([1], np.int32))
    builder.operator("RANDOM_UNIFORM", [shape], [noise], RandomOptions(seed=1))
    last = noise
    for _ in range(200):
        z = builder.tensor((1,))
        builder.operator("NEG", [last], [z])
        last = z
    builder.outputs(y, last)
    delegate = jd.JaxDelegate(platform="cpu")
    StockInterpreter(model_content=builder.build(), experimental_delegates=[delegate])
    assert {node.op for node in delegate.report().delegated} == {"FULLY_CONNECTED"}


def test_ours_keeps_a_single_operator() -> None:
    delegate = jd.JaxDelegate(platform="cpu")
    jd.Interpreter(model_content=chain(0), experimental_delegates=[delegate])
    assert not delegate.report().delegated


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("options", [{"min_gain": 0}, {"min_gain": 1e-9}])
def test_min_gain_takes_them(host: str, options: Mapping[str, float]) -> None:
    delegate = jd.JaxDelegate(options, platform="cpu")
    got = run(HOSTS[host](model_content=chain(0), experimental_delegates=[delegate]), X)
    assert_close([got], [np.argwhere(X > 1)])
    assert [node.op for node in delegate.report().delegated] == ["GREATER"]


@pytest.mark.parametrize("host", HOSTS)
def test_a_higher_min_gain_declines_more(host: str) -> None:
    delegate = jd.JaxDelegate(platform="cpu", min_gain=1e6)
    HOSTS[host](model_content=chain(10, 400_000), experimental_delegates=[delegate])
    assert not delegate.report().delegated


@pytest.mark.parametrize("host", HOSTS)
def test_a_whole_graph_is_taken_however_small(host: str) -> None:
    builder = ModelBuilder()
    x, y = builder.input((4,), np.float32, "x"), builder.tensor((4,))
    builder.operator("NEG", [x], [y])
    builder.outputs(y)
    delegate = jd.JaxDelegate(platform="cpu", min_gain=1e6)
    got = run(HOSTS[host](model_content=builder.build(), experimental_delegates=[delegate]), X)
    assert_close([got], [-X])
    assert len(delegate.report().delegated) == 1


def test_the_report_names_the_estimate_and_the_remedy() -> None:
    delegate = jd.JaxDelegate(platform="cpu")
    StockInterpreter(model_content=chain(2), experimental_delegates=[delegate])
    reasons = {node.op: node.reason for node in delegate.report().left}
    assert reasons["ADD"] == (
        "its partition gains too little (about 1 us on the CPU, 26 us of overhead); "
        "min_gain=0 delegates it"
    )
    causes = delegate.report().causes()
    assert any(
        "gains too little; min_gain=0 delegates it (3 operators" in cause for cause in causes
    )


def test_who_insists_on_all_hears_only_of_what_is_not_supported() -> None:
    delegate = jd.JaxDelegate(platform="cpu", require_full_delegation=True)
    with pytest.raises(jd.DelegationError, match=r"^1 of 2 operators.*\nWHERE") as raised:
        jd.Interpreter(model_content=chain(0), experimental_delegates=[delegate])
    assert "min_gain" not in str(raised.value)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_wrong_values(value: float) -> None:
    with pytest.raises(jd.OptionError, match="min_gain: must be >= 0"):
        DelegateOptions(min_gain=value)


def test_values_as_text() -> None:
    assert DelegateOptions.from_strings({"min_gain": "0.5"}).min_gain == 0.5
    with pytest.raises(jd.OptionError, match="min_gain: expected float, got 'much'"):
        DelegateOptions.from_strings({"min_gain": "much"})


# ---- the decision alone


def test_what_is_compared() -> None:
    nodes = adds(3)
    assert why_not_gaining(nodes, (), REFERENCE, TransferCost(call=20e-6), 1) is None
    assert why_not_gaining(nodes, (), REFERENCE, TransferCost(call=20e-6), 10) is not None
    assert why_not_gaining(nodes, (), LITERT, TransferCost(call=20e-6), 1) is not None


def test_what_crosses_costs() -> None:
    nodes = adds(1)  # 36 bytes, 4 operations: 41 seconds
    crossing = (nodes[0].inputs[0], nodes[0].outputs[0])  # 32 bytes
    assert why_not_gaining(nodes, crossing, SLOW, TransferCost(byte=1), 1) is None
    assert why_not_gaining(nodes, crossing, SLOW, TransferCost(byte=2), 1) is not None
    assert why_not_gaining(nodes, (), SLOW, TransferCost(byte=2), 1) is None


def test_a_delegate_whose_handover_costs_nothing_takes_all() -> None:
    assert why_not_gaining(adds(1), (), FREE, TransferCost(), 1) is None


def test_what_the_host_may_not_have_is_never_left_to_it() -> None:
    builder = ModelBuilder()
    x, y = builder.input((4,), np.float16, "x"), builder.tensor((4,), np.float16)
    builder.operator("NEG", [x], [y])
    builder.outputs(y)
    assert why_not_gaining(nodes_of(builder.build()), (), FREE, TransferCost(call=1), 1) is None
