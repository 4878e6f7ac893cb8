"""The search for the operators that make an output wrong."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdelegate as jd
from jaxdelegate.comparison.bisect import Bisection, bisect, ddmin, minimal_range
from jaxdelegate.comparison.serialized import record
from jaxdelegate.comparison.sides import Test, delegated
from jaxdelegate.comparison.text import bisection
from jaxdelegate.op_lowering.options import CastOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.reference import KERNELS
from jaxdelegate.simple_delegate import SimpleDelegateOptions
from jaxdelegate.testing import ModelBuilder
from tests.support.ranges import ranged

DEEPLAB = Path(__file__).parents[3] / "shared/models/networks/image_segmenter__deeplabv3.tflite"

culprit_sets = st.lists(st.sets(st.integers(0, 19), min_size=1, max_size=3), min_size=1, max_size=3)


@given(culprit_sets)
def test_minimal_range(culprits: list[set[int]]) -> None:
    """A range is wrong if it includes all of one set; without either end, it is right."""

    def is_wrong(first: int, last: int) -> bool:
        return any(culprit <= set(range(first, last + 1)) for culprit in culprits)

    first, last = minimal_range(is_wrong, 0, 19)
    assert is_wrong(first, last)
    assert not is_wrong(first + 1, last)
    assert not is_wrong(first, last - 1)


@given(st.sets(st.integers(0, 19), min_size=1))
def test_minimal_range_where_errors_cancel(wrong_ends: set[int]) -> None:
    """Wrongness is not monotonic: a range is wrong by its last operator, or if it is the whole."""

    def is_wrong(first: int, last: int) -> bool:
        return (first, last) == (0, 19) or (first <= last and last in wrong_ends)

    first, last = minimal_range(is_wrong, 0, 19)
    assert is_wrong(first, last)
    assert not is_wrong(first + 1, last) or first == last
    assert not is_wrong(first, last - 1) or first == last


@given(culprit_sets)
def test_ddmin(culprits: list[set[int]]) -> None:
    def is_wrong(some: Sequence[int]) -> bool:
        return any(culprit <= set(some) for culprit in culprits)

    found = ddmin(range(20), is_wrong)
    assert is_wrong(found)
    assert set(found) in [set(culprit) for culprit in culprits]
    assert all(not is_wrong([i for i in found if i != left]) for left in found)


def search(model: Any, reference: str = "numpy", **options: Any) -> Bisection:
    return bisect(model, ranged(model, jd.JaxDelegate()), reference=reference, **options)


@pytest.mark.parametrize("reference", ["numpy", "litert_ref"])
def test_nothing_is_wrong(network: bytes, reference: str) -> None:
    found = search(network, reference)
    assert (found.verdict, found.culprits, found.probes) == ("agrees", (), 1)
    assert bisection(found, reference).startswith(
        f"Nothing is wrong: fully delegated, all outputs agree with {reference}."
    )


@pytest.mark.parametrize(
    ("reference", "operator", "tensor", "node"),
    [
        ("numpy", "CONV_2D", "conv_1", 0),
        ("litert_xnnpack", "CONV_2D", "conv_3", 2),
        pytest.param("numpy", "SOFTMAX", "probabilities", 4, marks=pytest.mark.slow),
    ],
)
def test_one_culprit(
    network: bytes, break_rule: Any, reference: str, operator: str, tensor: str, node: int
) -> None:
    break_rule(operator, lambda y: y * 1.2, tensor)
    found = search(network, reference)
    assert found.verdict == "found"
    (culprit,) = found.culprits
    assert (culprit.first, culprit.last) == (node, node)
    assert [str(name) for name in culprit.nodes] == [f"#{node} {operator} -> {tensor!r}"]
    assert culprit.probe.is_wrong
    assert not culprit.probe.outputs[0].agrees
    text = bisection(found, reference)
    assert f"Culprit: node #{node} {operator} -> {tensor!r}" in text
    assert f"--first_delegate_node_index={node} --last_delegate_node_index={node}" in text
    assert record(found)["culprits"][0]["nodes"][0]["outputs"] == [tensor]


def test_two_independent_culprits(network: bytes, break_rule: Any) -> None:
    break_rule("CONV_2D", lambda y: y * 1.2, "conv_1")
    break_rule("AVERAGE_POOL_2D", lambda y: y * 1.2)
    found = search(network)
    assert [(c.first, c.last) for c in found.culprits] == [(0, 0), (3, 3)]


def marked_chain() -> bytes:
    """CAST, RELU, ABS, ABS, NEG, ABS of small integers."""
    builder = ModelBuilder()
    last = builder.input((16,), np.int32, "x")
    for i, name in enumerate(("CAST", "RELU", "ABS", "ABS", "NEG", "ABS")):
        y = builder.tensor((16,), np.float32, f"y{i}")
        builder.operator(name, [last], [y], CastOptions() if name == "CAST" else None)
        last = y
    builder.outputs(last)
    return builder.build()


def test_two_culprits_that_are_wrong_only_together(break_rule: Any) -> None:
    """RELU's error is within the bounds; NEG amplifies it, and is right without it."""
    break_rule("RELU", lambda y: y + np.float32(2**-16))
    break_rule("NEG", lambda y: y + (y - y.round()) * np.float32(2**20))
    found = search(marked_chain())
    (culprit,) = found.culprits
    assert (culprit.first, culprit.last) == (1, 4)
    assert [name.operator for name in culprit.nodes] == ["RELU", "NEG"]
    text = bisection(found, "numpy")
    assert "Culprit: nodes 1 .. 4, wrong together:" in text
    assert "  #1 RELU -> 'y1'\n  #4 NEG -> 'y4'" in text


def test_outputs_that_are_wrong_without_the_delegate(
    network: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = KERNELS["AVERAGE_POOL_2D"]

    def doubled(*arguments: Any) -> tuple[np.ndarray, ...]:
        return tuple(2 * y for y in kernel.run(*arguments))

    monkeypatch.setitem(KERNELS, "AVERAGE_POOL_2D", dataclasses.replace(kernel, run=doubled))
    # The delegate is wrong, too: otherwise delegating everything would hide the host's error.
    rule = RULES["SOFTMAX"]

    def lower(*arguments: Any) -> Any:
        right = rule.lower(*arguments)
        return lambda *arrays: tuple(2 * y for y in right(*arrays))

    monkeypatch.setitem(RULES, "SOFTMAX", dataclasses.replace(rule, lower=lower))
    found = search(network, "litert_ref")
    assert (found.verdict, found.probes) == ("wrong_without_delegate", 2)
    assert "differ from litert_ref even without a delegate" in bisection(found, "litert_ref")


def test_a_range_that_cannot_be_compiled_is_wrong(
    network: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = RULES["AVERAGE_POOL_2D"]

    def crash(*_: Any) -> Any:
        raise ValueError("no such window")

    monkeypatch.setitem(RULES, "AVERAGE_POOL_2D", dataclasses.replace(rule, lower=crash))
    (culprit,) = search(network).culprits
    assert (culprit.first, culprit.last) == (3, 3)
    assert culprit.probe.error is not None
    assert "no such window" in culprit.probe.error


def test_a_limited_range(network: bytes, break_rule: Any) -> None:
    break_rule("CONV_2D", lambda y: y * 1.2, "conv_1")
    assert search(network, first=1).verdict == "agrees"
    (culprit,) = search(network, last=2).culprits
    assert culprit.first == 0
    with pytest.raises(jd.OptionError, match=r"0 <= first <= last <= 4, got 7 \.\. 4"):
        search(network, first=7)


class WrongNegation(jd.SimpleDelegate):
    """A third-party delegate that takes NEG and ignores the sign."""

    name = "WrongNegation"

    def __init__(self, options: Any = None) -> None:
        super().__init__()
        self.options = options or SimpleDelegateOptions()

    def is_node_supported(self, node: Any) -> bool:
        return node.name == "NEG"

    def create_kernel(self) -> jd.SimpleDelegateKernel:
        return _Copy()


class _Copy(jd.SimpleDelegateKernel):
    def init(self, context: Any, params: Any) -> None:  # noqa: ARG002 (the API's)
        self.nodes = params.nodes

    def prepare(self, context: Any, node: Any) -> None:
        pass

    def eval(self, context: Any, node: Any) -> None:  # noqa: ARG002 (the API's)
        for n in self.nodes:
            context.assign(n.operator.outputs[0], context.array(n.operator.inputs[0]))


def negations() -> bytes:
    builder = ModelBuilder()
    last = builder.input((4,), np.float32, "x")
    for i, name in enumerate(("EXP", "NEG", "EXP")):
        y = builder.tensor((4,), np.float32, f"y{i}")
        builder.operator(name, [last], [y])
        last = y
    builder.outputs(last)
    return builder.build()


def test_any_delegate_with_such_options() -> None:
    model = negations()
    (culprit,) = bisect(model, ranged(model, WrongNegation())).culprits
    assert (culprit.first, culprit.last, culprit.nodes[0].operator) == (1, 1, "NEG")


def test_a_delegate_that_ignores_the_range() -> None:
    model = negations()

    def open_range(_first: int, _last: int) -> Test:
        return delegated(model, [WrongNegation()])

    with pytest.raises(jd.OptionError, match="ignores first_delegate_node_index"):
        bisect(model, open_range)


def test_jaxdelegate_in_the_stock_interpreter(network: bytes, break_rule: Any) -> None:
    from ai_edge_litert.interpreter import Interpreter

    break_rule("AVERAGE_POOL_2D", lambda y: y * 1.2)

    def opened(delegates: Any, *, preserve_all_tensors: bool = False) -> Any:
        assert not preserve_all_tensors
        return Interpreter(model_content=network, experimental_delegates=delegates)

    def open_range(first: int, last: int) -> Test:
        delegate = jd.JaxDelegate(first_delegate_node_index=first, last_delegate_node_index=last)
        return Test(opened, [delegate]).restricted()

    found = bisect(network, open_range, reference="litert_ref")
    assert [(c.first, c.last) for c in found.culprits] == [(3, 3)]


@pytest.mark.slow
@pytest.mark.skipif(not DEEPLAB.exists(), reason="the real models are not here")
def test_a_real_network(break_rule: Any) -> None:
    break_rule("RESIZE_BILINEAR", lambda y: y * 1.01, "ResizeBilinear_1")
    (culprit,) = search(DEEPLAB, first=58).culprits  # the others would take long
    assert str(culprit.nodes[0]) == "#63 RESIZE_BILINEAR -> 'ResizeBilinear_1'"
    assert (culprit.first, culprit.last) == (63, 63)
