"""Random graphs: what they contain, and that the engines agree on them."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.op_lowering.options import AddOptions
from jaxdelegate.op_lowering.registry import RULES
from tests.support.differential import (
    Arrays,
    delegated,
    disagreements,
    intermediate,
    mismatch,
    reference,
    smallest,
)
from tests.support.graph_drawing import Drawing
from tests.support.graph_records import Graph
from tests.support.known_differences import explanation
from tests.support.random_graphs import LEFT_OUT, random_graph
from tests.support.random_operators import NOT_IN_LITERT, OPERATORS
from tests.support.stock_worker import CrashedError, RefusedError, StockWorker


@pytest.fixture(scope="module")
def stock() -> Iterator[StockWorker]:
    worker = StockWorker()
    yield worker
    worker.close()


def test_every_builtin_operator_is_drawn_or_left_out_for_a_reason() -> None:
    builtin = {name for name in RULES if hasattr(schema.BuiltinOperator, name)}
    assert builtin == OPERATORS.keys() | LEFT_OUT.keys()
    assert not OPERATORS.keys() & LEFT_OUT.keys()
    assert OPERATORS.keys() >= NOT_IN_LITERT


def test_a_seed_is_a_graph() -> None:
    one, again, other = (random_graph(seed) for seed in (4, 4, 5))
    assert one.content == again.content != other.content
    for a, b in zip(one.inputs, again.inputs, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("operator", ["CONV_2D", "WHILE", "STABLEHLO_SORT", "LSTM"])
def test_an_operator_may_be_requested(operator: str) -> None:
    graph = random_graph(3, operator=operator, size=2).graph
    assert operator in graph.operators


def _chain() -> Graph:
    """ABS, NEG, ADD with itself, FLOOR."""
    d = Drawing(np.random.default_rng(0))
    x = d.fed(np.float32([-1.5, 2, 0.25]))
    for name in ("ABS", "NEG"):
        x = d.same(name, [x], (3,))
    x = d.same("ADD", [x, x], (3,), AddOptions())
    return d.graph([d.same("FLOOR", [x], (3,))])


def test_a_part_is_fed_with_what_the_graph_computed() -> None:
    graph = _chain()
    part = graph.part([2], intermediate(graph, reference))
    np.testing.assert_array_equal(part.feeds[0], np.float32([-1.5, -2, -0.25]))
    np.testing.assert_array_equal(reference(part.model(), part.feeds)[0], 2 * part.feeds[0])


def test_a_disagreement_shrinks_to_its_operators() -> None:
    graph = _chain()
    left = smallest(graph, intermediate(graph, reference), lambda g: "ADD" in g.operators)
    assert left.operators == ["ADD"]


def test_an_operator_that_is_wrong_is_found() -> None:
    def wrong(content: bytes, inputs: list[np.ndarray]) -> Arrays:
        del content
        return [np.abs(y) for y in reference(_chain().model(), _chain().feeds)] if inputs else []

    found = disagreements("wrong", _chain(), wrong, reference)
    assert [f.operators for f in found] == [("ABS",), ("NEG",), ("ADD",)]  # FLOOR is right


def test_operators_that_are_wrong_only_together_are_found() -> None:
    """Two of four operators cause the difference, as in a fused program; these are left."""
    together = {schema.BuiltinOperator.NEG, schema.BuiltinOperator.ADD}

    def wrong(content: bytes, inputs: Sequence[np.ndarray]) -> Arrays:
        model = schema.Model.GetRootAs(content, 0)
        codes = {model.OperatorCodes(i).BuiltinCode() for i in range(model.OperatorCodesLength())}
        return [y + 100 if codes >= together else y for y in reference(content, inputs)]

    found = disagreements("wrong", _chain(), wrong, reference)
    assert [f.operators for f in found] == [("NEG", "ADD")]


def test_bits_of_computed_floats_are_as_near_as_the_floats() -> None:
    values = np.float32([1.5, -3])
    near, far = (np.nextafter(values, np.inf), values + np.float32(1e-3))
    for computed in (True, False):
        d = Drawing(np.random.default_rng(0))
        x = d.fed(values)
        x = d.same("NEG", [d.same("NEG", [x], (2,))], (2,)) if computed else x
        graph = d.graph([d.result("BITCAST", [x], (2,), "uint32")])
        bits = [y.view(np.uint32) for y in (values, near, far)]
        assert (mismatch(graph, [bits[1]], [bits[0]]) is None) is computed
        assert mismatch(graph, [bits[2]], [bits[0]])


def test_what_only_the_second_invoke_shows_is_found() -> None:
    """An engine that loses its state between invokes."""
    graph = random_graph(0, operator="RNN", size=1).graph
    inputs = graph.feeds
    again = reference(graph.model(), inputs)
    n = len(graph.outputs)
    assert mismatch(graph, again[:n], again[n:])  # the state matters

    def forgets(content: bytes, inputs: Sequence[np.ndarray]) -> Arrays:
        first = reference(content, inputs)[: len(reference(content, inputs)) // 2]
        return first * 2

    (found,) = disagreements("forgets", graph, forgets, reference)
    assert "invoked again" in found.difference


def test_roundings_that_later_operators_magnify_are_no_disagreement() -> None:
    d = Drawing(np.random.default_rng(0))
    x = d.fed(np.float32([0.1, 0.7]))
    y = d.same("EXP", [x], (2,))
    z = d.same("EXP", [y], (2,))
    far = d.const(np.float32(1e6))
    graph = d.graph([d.same("FLOOR", [d.same("MUL", [z, far], (2,))], (2,))])

    def rounded(content: bytes, inputs: list[np.ndarray]) -> Arrays:
        results = reference(content, inputs)
        return [np.nextafter(y, np.float32(9e9)) for y in results]

    assert mismatch(graph, [np.float32([0, 0])], reference(graph.model(), graph.feeds))
    assert not disagreements("rounded", graph, rounded, reference)


@pytest.mark.litert
@pytest.mark.parametrize("seed", range(10))
def test_reference_agrees_with_litert(seed: int, stock: StockWorker) -> None:
    graph = random_graph(seed)
    _assert_agrees_with_litert(seed, graph.graph, stock)


def _assert_agrees_with_litert(seed: int, graph: Graph, stock: StockWorker) -> None:
    try:
        found = disagreements("reference", graph, reference, stock.run)
    except (RefusedError, CrashedError):
        return  # what LiteRT does not run it cannot judge
    assert not [f for f in found if explanation(f, stock) is None], f"seed {seed}"


@pytest.mark.litert
@pytest.mark.filterwarnings("ignore")  # graphs may contain NaN and overflow
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(100_000, marks=pytest.mark.slow),
        pytest.param(100_050, marks=pytest.mark.exhaustive),
        pytest.param(100_100, marks=pytest.mark.exhaustive),
    ],
)
def test_engines_agree(first: int, stock: StockWorker, optimize: Callable[[bool], None]) -> None:
    optimize(False)
    for seed in range(first, first + 50):
        graph = random_graph(seed, size=2).graph
        _assert_agrees_with_litert(seed, graph, stock)
        try:
            found = disagreements("integer", graph, delegated(quant_mode="integer"), reference)
        except RefusedError:
            continue
        assert not [f for f in found if explanation(f, stock) is None], f"seed {seed}"
