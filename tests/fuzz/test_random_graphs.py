"""Random graphs: what they hold, and that the engines agree on them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.compiler import aot
from jaxdelegate.op_lowering.options import AddOptions, ReducerOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.testing.case import COMPILER_OPTIONS
from jaxdelegate.testing.differential import (
    Arrays,
    Disagreement,
    delegated,
    disagreement,
    intermediate,
    reference,
    why_apart,
)
from jaxdelegate.testing.graph_drawing import Drawing
from jaxdelegate.testing.graph_records import Graph
from jaxdelegate.testing.known_differences import BY_ENGINE, explanation
from jaxdelegate.testing.random_graphs import LEFT_OUT, random_graph, smallest
from jaxdelegate.testing.random_operators import NOT_IN_LITERT, OPERATORS
from jaxdelegate.testing.stock_worker import CrashedError, RefusedError, StockWorker


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
def test_an_operator_may_be_asked_for(operator: str) -> None:
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

    found = disagreement("wrong", _chain(), wrong, reference)
    assert found is not None
    assert found.operators == ("ABS",)
    assert explanation(found) is None


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

    assert why_apart(graph, [np.float32([0, 0])], reference(graph.model(), graph.feeds))
    assert disagreement("rounded", graph, rounded, reference) is None


def test_explanations_want_their_operator() -> None:
    graph = _chain()
    part = graph.part([0], {})
    for engine in BY_ENGINE:
        assert explanation(Disagreement(engine, ("ABS",), "", part)) is None


@pytest.mark.parametrize("engine", ["reference", "integer"])
def test_only_what_cancels_is_explained_by_it(engine: str) -> None:
    """Whichever of the two is the numpy reference, which cannot vouch for itself."""
    for x, is_explained in ((np.float32([1e15, 1, -1e15]), True), (np.float32([1, 2, 3]), False)):
        d = Drawing(np.random.default_rng(0))
        operands = [d.fed(x), d.const(0, np.int32)]
        graph = d.graph([d.same("SUM", operands, (), ReducerOptions(), accumulated=3)])
        right = reference(graph.model(), graph.feeds)
        wrong = [y + np.float32(1) for y in right]
        got, want = (right, wrong) if engine == "reference" else (wrong, right)
        found = Disagreement(engine, ("SUM",), "", graph, got, want)
        assert (explanation(found) == "terms_cancel") is is_explained


def test_every_explanation_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/reliability.md").read_text()
    names = {f.__name__ for functions in BY_ENGINE.values() for f in functions}
    assert not {name for name in names if f"`{name}`" not in page}


@pytest.mark.litert
@pytest.mark.parametrize("seed", range(10))
def test_reference_agrees_with_litert(seed: int, stock: StockWorker) -> None:
    graph = random_graph(seed)
    _assert_agrees_with_litert(seed, graph.graph, stock)


def _assert_agrees_with_litert(seed: int, graph: Graph, stock: StockWorker) -> None:
    try:
        found = disagreement("reference", graph, reference, stock.run)
    except (RefusedError, CrashedError):
        return  # what LiteRT does not run it cannot judge
    assert found is None or explanation(found) is not None, f"seed {seed}: {found}"


@pytest.mark.litert
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # NaN and overflow are among what is drawn
@pytest.mark.parametrize("first", range(100_000, 100_300, 50))
def test_engines_agree(first: int, stock: StockWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    options = aot.compiler_options
    monkeypatch.setattr(
        aot, "compiler_options", lambda *a, **k: {**options(*a, **k), **COMPILER_OPTIONS}
    )
    for seed in range(first, first + 50):
        graph = random_graph(seed, size=2).graph
        _assert_agrees_with_litert(seed, graph, stock)
        try:
            found = disagreement("integer", graph, delegated(quant_mode="integer"), reference)
        except RefusedError:
            continue
        assert found is None or explanation(found) is not None, f"seed {seed}: {found}"
