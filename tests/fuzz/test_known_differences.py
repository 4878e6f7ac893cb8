"""Each explanation of a difference between engines explains its cause, but no wrong result."""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import Pool2DOptions, ReducerOptions, ResizeBilinearOptions
from tests.support.differential import (
    FAKE_QUANTIZED,
    Arrays,
    Disagreement,
    delegated,
    disagreements,
    mismatch,
    reference,
)
from tests.support.graph_drawing import Drawing
from tests.support.graph_records import Graph
from tests.support.known_differences import BY_ENGINE, explanation
from tests.support.quantized import scaled
from tests.support.random_graphs import random_graph
from tests.support.stock_worker import StockWorker

in_floats = delegated(quant_mode="float_view")

# Seeds of graphs that show a cause; a change of what is drawn needs new seeds. If the expected
# result is known for the elements on which the engines differ, a wrong one there must stay open,
# too.
SHOWN = {
    "sum_reads_bytes": 1000083,
    "last_neighbor_is_missing": 172,
    "not_a_number_in_a_map": 122,
    "not_a_number_by_order": 1000770,
    "quotient_is_tiny": 158,
    "scale_above_one": 141,
    "states_are_overrun": 1000546,
}
MASKED = {
    "power_of_integers_overflows": 1000178,
    "least_integer_by_minus_one": 1000658,
    "out_of_the_integers": 1000859,
    "transform_of_the_infinite": 1000379,
    "index_among_not_a_number": 4604,
    "quantized_without_end": 1000520,
    "not_a_number_is_clipped": 1001122,
}
# Seeds of graphs for float views, which are compared with the reference.
IN_FLOATS = {
    "product_is_clipped": 1395,
    "activations_stay_floats": 1075,
    "is_compared_in_steps": 1625,
    "tables_are_interpolated": 1334,
    "positions_are_rounded": 893,
}
IN_XLA = {
    "order_has_no_place_for_nan": 3431,
    "body_magnifies_rounding": 3521,
    "subnormals_are_zeros": 3283,
}


@pytest.fixture(scope="module")
def stock() -> Iterator[StockWorker]:
    worker = StockWorker()
    yield worker
    worker.close()


def _altered(y: np.ndarray) -> np.ndarray:
    """A distant value for each element."""
    if y.dtype == bool:
        return ~y
    if y.dtype.kind in "iu":
        return y ^ y.dtype.type(0x55)
    return np.where(np.isfinite(y), 1 + 2 * np.abs(y), 0).astype(y.dtype)


def _same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.isclose(a, b, equal_nan=True) if a.shape == b.shape else np.zeros(a.shape, bool)


def _wrong(found: Disagreement, *, disputed: bool) -> Disagreement:
    """The disagreement with wrong results where the engines differ, or where they agree."""
    assert found.got is not None
    got: Arrays = []
    for g, w in zip(found.got, found.want, strict=True):
        where = ~_same(g, w) if disputed else _same(g, w)
        got.append(np.where(where, _altered(g), g))
    return dataclasses.replace(found, got=got)


@pytest.mark.litert
@pytest.mark.filterwarnings("ignore")  # graphs may contain NaN and overflow
@pytest.mark.parametrize("name", [*SHOWN, *MASKED])
def test_wrong_results_are_open(name: str, stock: StockWorker) -> None:
    graph = random_graph({**SHOWN, **MASKED}[name]).graph
    found = disagreements("reference", graph, reference, stock.run)
    (one,) = (f for f in found if explanation(f, stock) == name)
    assert one.got is not None
    if any(np.any(_same(g, w)) for g, w in zip(one.got, one.want, strict=True)):
        assert explanation(_wrong(one, disputed=False), stock) is None
    else:
        assert name in SHOWN
    if name in SHOWN:
        assert explanation(_wrong(one, disputed=True), stock) is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", IN_FLOATS)
def test_wrong_results_of_float_views_are_open(name: str, stock: StockWorker) -> None:
    graph = random_graph(IN_FLOATS[name]).graph
    found = disagreements("float_view", graph, in_floats, reference, FAKE_QUANTIZED)
    (one,) = (f for f in found if explanation(f, stock) == name)
    for disputed in (True, False):
        wrong = _wrong(one, disputed=disputed)
        # An altered boolean may be right, and all elements may be disputed.
        is_right = mismatch(wrong.part, wrong.got or [], wrong.want, wrong.rule) is None
        is_same = all(map(np.array_equal, wrong.got or [], one.got or []))
        assert is_right or is_same or explanation(wrong, stock) is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", IN_XLA)
def test_wrong_results_of_xla_are_open(name: str, stock: StockWorker) -> None:
    graph = random_graph(IN_XLA[name]).graph
    found = disagreements("integer", graph, delegated(quant_mode="integer"), reference)
    (one,) = (f for f in found if explanation(f, stock) == name)
    assert explanation(_wrong(one, disputed=False), stock) is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_only_what_rounding_moves_is_explained_by_finer_steps(stock: StockWorker) -> None:
    (found,) = disagreements(
        "float_view", random_graph(1198).graph, in_floats, reference, FAKE_QUANTIZED
    )
    assert explanation(found, stock) == "stored_terms_cancel"
    assert found.got is not None
    cancelled = np.abs(found.want[0]) < 32000
    assert cancelled.any()
    wrong = [np.where(cancelled, y - 300, y) for y in found.got]
    assert explanation(dataclasses.replace(found, got=wrong), stock) is None


def _diagonal(d: Drawing) -> int:
    return d.same("MATRIX_DIAG", [d.fed(np.array([True, False, True]))], (3, 3))


def _sum_of_none(d: Drawing) -> int:
    x = d.fed(np.zeros((3, 0), np.int8), q=scaled(np.float32(0.1), 5))
    return d.same("SUM", [x, d.const([1], np.int32)], (3,), ReducerOptions())


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("read_as_floats", _diagonal),
        ("nothing_is_summed", _sum_of_none),
    ],
)
def test_where_litert_reads_or_leaves_memory_ours_is_right(
    name: str, draw: Callable[[Drawing], int], stock: StockWorker
) -> None:
    graph = _drawn(draw)
    right = reference(graph.model(), graph.feeds)
    memory = [_altered(y) for y in right]
    found = Disagreement("reference", tuple(graph.operators), "", graph, right, memory)
    assert explanation(found, stock) == name
    right[-1][-1] = _altered(right[-1])[-1]
    assert explanation(found, stock) is None


def _drawn(draw: Callable[[Drawing], int]) -> Graph:
    d = Drawing(np.random.default_rng(0))
    return d.graph([draw(d)])


def _judged(graph: Graph, *got: list[float], engine: str = "integer") -> Disagreement:
    results = [np.float32(y) for y in got] * 2
    want = reference(graph.model(), graph.feeds)
    results = [y.reshape(w.shape) for y, w in zip(results, want, strict=True)]
    return Disagreement(engine, tuple(graph.operators), "", graph, results, want)


@pytest.mark.filterwarnings("ignore:overflow")
def test_only_a_sum_that_overflows_is_explained_by_it(stock: StockWorker) -> None:
    def draw(d: Drawing) -> int:
        x = d.fed(np.float32([[3e38, 3e38, -3e38], [1, 2, 3]]))
        return d.same("SUM", [x, d.const([1], np.int32)], (2,), ReducerOptions(), accumulated=3)

    graph = _drawn(draw)
    assert explanation(_judged(graph, [3e38, 6]), stock) == "sum_overflows"
    assert explanation(_judged(graph, [3e38, 7]), stock) is None  # the other row's sum
    assert explanation(_judged(graph, [np.inf, 6.1]), stock) is None


@pytest.mark.filterwarnings("ignore:overflow")
def test_only_the_square_that_overflows_is_explained_by_its_root(stock: StockWorker) -> None:
    def draw(d: Drawing) -> int:
        x = d.fed(np.float32([1e30, -2]).reshape(1, 1, 2, 1))
        options = Pool2DOptions(stride_w=1, stride_h=1, filter_width=1, filter_height=1)
        return d.same("L2_POOL_2D", [x], (1, 1, 2, 1), options)

    graph = _drawn(draw)
    assert explanation(_judged(graph, [1e30, 2]), stock) == "square_root_of_a_square"
    assert explanation(_judged(graph, [1e29, 2]), stock) is None
    assert explanation(_judged(graph, [1e30, 3]), stock) is None


@pytest.mark.filterwarnings("ignore")
def test_only_factors_that_leave_the_floats_explain_a_product(stock: StockWorker) -> None:
    def draw(d: Drawing) -> int:
        x = d.fed(np.float32([[3e38, 1e-30, 3e20], [1, 2, 3]]))
        return d.same("REDUCE_PROD", [x, d.const([1], np.int32)], (2,), ReducerOptions())

    graph = _drawn(draw)
    assert explanation(_judged(graph, [np.inf, 6]), stock) == "product_leaves_the_floats"
    assert explanation(_judged(graph, [9e29, 6]), stock) is None
    assert explanation(_judged(graph, [np.inf, 0]), stock) is None


def test_floats_between_pixels_are_as_numpy_interpolates(stock: StockWorker) -> None:
    def draw(d: Drawing) -> int:
        x = d.fed(d.rng.integers(-32768, 32768, (1, 4, 3, 2)), np.int16, scaled(np.float32(1e-3)))
        size = d.const([7, 5], np.int32)
        return d.same("RESIZE_BILINEAR", [x, size], (1, 7, 5, 2), ResizeBilinearOptions())

    (found,) = disagreements("float_view", _drawn(draw), in_floats, reference, FAKE_QUANTIZED)
    assert explanation(found, stock) == "positions_are_rounded"
    assert found.got is not None
    found.got[0].flat[7] += 3
    assert explanation(found, stock) is None


def test_logarithms_of_floats_are_as_numpys(stock: StockWorker) -> None:
    def draw(d: Drawing) -> int:
        x = d.fed(np.int16([1, 40, 700, 30000]), q=scaled(np.float32(1e-3)))
        return d.result("LOG", [x], (4,), "qint16", q=scaled(np.float32(3e-4)))

    (found,) = disagreements("float_view", _drawn(draw), in_floats, reference, FAKE_QUANTIZED)
    assert explanation(found, stock) == "tables_are_interpolated"
    assert found.got is not None
    found.got[0][2] += 3
    assert explanation(found, stock) is None


def test_hyperbolic_tangents_of_floats_are_as_numpys(stock: StockWorker) -> None:
    def draw(d: Drawing) -> int:
        x = d.fed(values, q=scaled(np.float32(2.9e-4)))
        return d.result("TANH", [x], values.shape, "qint16", q=scaled(np.float32(1 / 32768)))

    values = np.arange(-9000, 9000, 37, dtype=np.int16)
    (found,) = disagreements("float_view", _drawn(draw), in_floats, reference, FAKE_QUANTIZED)
    assert explanation(found, stock) == "tables_are_interpolated"
    assert found.got is not None
    found.got[0][2] += 3
    assert explanation(found, stock) is None


def test_only_what_a_subnormal_divides_is_explained_by_it(stock: StockWorker) -> None:
    def draw(d: Drawing) -> int:
        operands = [d.fed(np.float32([0, 7])), d.fed(np.float32([-1e-40, 2]))]
        return d.same("FLOOR_DIV", operands, (2,))

    (found,) = disagreements("integer", _drawn(draw), delegated(), reference)
    assert explanation(found, stock) == "subnormals_are_divided"
    assert found.got is not None
    found.got[0][1] += 1
    assert explanation(found, stock) is None


def test_explanations_want_their_operator(stock: StockWorker) -> None:
    graph = _drawn(lambda d: d.same("ABS", [d.fed(np.float32([1, np.inf]))], (2,)))
    for engine in BY_ENGINE:
        assert explanation(_judged(graph, [1, 2], engine=engine), stock) is None


@pytest.mark.parametrize("engine", ["reference", "integer"])
def test_only_what_cancels_is_explained_by_it(engine: str, stock: StockWorker) -> None:
    """This holds whichever of the two is the numpy reference."""
    for x, is_explained in ((np.float32([1e15, 1, -1e15]), True), (np.float32([1, 2, 3]), False)):
        d = Drawing(np.random.default_rng(0))
        operands = [d.fed(x), d.const(0, np.int32)]
        graph = d.graph([d.same("SUM", operands, (), ReducerOptions(), accumulated=3)])
        right = reference(graph.model(), graph.feeds)
        wrong = [y + np.float32(1) for y in right]
        got, want = (right, wrong) if engine == "reference" else (wrong, right)
        found = Disagreement(engine, ("SUM",), "", graph, got, want)
        assert (explanation(found, stock) == "terms_cancel") is is_explained
