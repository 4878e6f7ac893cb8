"""Compare engines on one graph: where they disagree, and at which operator."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.errors import JaxDelegateError
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.measuring.tolerance import EXACT, Tolerance, assert_close, tolerance_for
from tests.support.graph_records import Graph
from tests.support.stock_worker import INVOKES, CrashedError, RefusedError, run_repeatedly

Arrays = list[np.ndarray]
Engine = Callable[[bytes, Sequence[np.ndarray]], Arrays]

STEP = 1  # of a quantized result, for fake-quantized execution: docs/quantization.md
_ON_THE_FLY = 0.03  # of the largest value, for dynamic range in floats: docs/quantization.md
_NUDGE = 2.0**-22  # relative: a few roundings of float32
_HUGE = 1e6
_TIMES = 16  # a difference by rounding, over the largest one that nudges caused


def reference(content: bytes, inputs: Sequence[np.ndarray]) -> Arrays:
    """Run the numpy reference; raises RefusedError like the other engines."""
    return _ours(content, inputs, [])


def delegated(**options: object) -> Engine:
    def run(content: bytes, inputs: Sequence[np.ndarray]) -> Arrays:
        delegate = JaxDelegate(platform="cpu", min_gain=0.0, **options)  # type: ignore[arg-type]
        return _ours(content, inputs, [delegate])

    return run


def _ours(content: bytes, inputs: Sequence[np.ndarray], delegates: list[JaxDelegate]) -> Arrays:
    try:
        interpreter = Interpreter(model_content=content, experimental_delegates=delegates)
        return run_repeatedly(interpreter, inputs)
    except (JaxDelegateError, RuntimeError, ValueError) as error:
        raise RefusedError(str(error)) from error


# ---- how far apart two engines may be


@dataclasses.dataclass(frozen=True)
class Rule:
    """What is allowed in addition to the tolerance table.

    Attributes:
        steps: how far quantized integers may be off.
        on_the_fly: a share of the largest value, where activations are quantized at run time.
    """

    steps: int = 0
    on_the_fly: float = 0.0


EXACTLY = Rule()
FAKE_QUANTIZED = Rule(STEP, _ON_THE_FLY)


@dataclasses.dataclass(frozen=True)
class Disagreement:
    """Two engines, and how they differ.

    Attributes:
        engine: the one that is tested.
        operators: those of the smallest part of the graph that still disagrees.
        difference: what differs, where and by how much.
        part: that part.
        got: the engine's outputs of each invoke; None if it refuses the part.
        want: the expected outputs; empty if the engine that is trusted refuses the part.
        rule: by which they differ.
    """

    engine: str
    operators: tuple[str, ...]
    difference: str
    part: Graph = dataclasses.field(repr=False)
    got: Arrays | None = dataclasses.field(default=None, repr=False)
    want: Arrays = dataclasses.field(default_factory=list, repr=False)
    rule: Rule = EXACTLY


def mismatch(graph: Graph, got: Arrays, want: Arrays, rule: Rule = EXACTLY) -> str | None:
    """How the outputs of a graph differ, in any invoke; None if they are close enough."""
    try:
        assert len(got) == len(want), f"{len(got)} outputs, expected {len(want)}"
        for i, pair in enumerate(zip(got, want, strict=True)):
            invoke, output = divmod(i, len(graph.outputs))
            g, w = (_as_floats(graph, graph.outputs[output], np.asarray(y)) for y in pair)
            tolerance = _tolerance(graph, graph.outputs[output], w, rule)
            try:
                _assert_near(g, w, tolerance)
            except AssertionError as error:
                again = ", invoked again" if invoke else ""
                return f"output {output}{again}: {str(error).removeprefix('output 0: ')}"
    except AssertionError as error:
        return str(error)
    return None


def _as_floats(graph: Graph, output: int, y: np.ndarray) -> np.ndarray:
    """Compare the bits of computed floats as floats."""
    computed = {t for node in graph.nodes for t in node.outputs}
    for node in graph.nodes:
        if node.name == "BITCAST" and output in node.outputs and node.inputs[0] in computed:
            cast = graph.tensors[node.inputs[0]].dtype
            if cast.kind == "f" and cast.itemsize == y.dtype.itemsize:
                return y.view(cast)
    return y


def _assert_near(got: np.ndarray, want: np.ndarray, tolerance: Tolerance) -> None:
    if want.dtype.kind in "iu" and tolerance != EXACT:
        assert got.dtype == want.dtype, f"dtype {got.dtype}, expected {want.dtype}"
        got, want = got.astype(np.float64), want.astype(np.float64)
    assert_close([got], [want], tolerance=tolerance, because="the rule of the engine")


def _tolerance(graph: Graph, output: int, want: np.ndarray, rule: Rule) -> Tolerance:
    if want.dtype.kind in "iu":
        quantized = graph.tensors[output].quantization is not None
        return Tolerance(atol=rule.steps) if quantized and rule.steps else EXACT
    accumulated = sum(node.accumulated for node in graph.nodes)
    tolerance = tolerance_for(want.dtype, max(1, accumulated))
    if want.dtype.kind == "f" and any(t.quantization is not None for t in graph.tensors):
        return dataclasses.replace(tolerance, of_largest=rule.on_the_fly)
    return tolerance


# ---- which operator it is


def intermediate(graph: Graph, engine: Engine) -> dict[int, np.ndarray]:
    """By tensor, the results of each operator run alone on the engine's earlier results.

    Raises:
        RefusedError: the engine does not run an operator.
    """
    values = _fed(graph)
    for unit in graph.units:
        part = graph.part(unit, values)
        _record(graph, unit, engine(part.model(), part.feeds), values)
    return values


def results_of(graph: Graph, values: Mapping[int, np.ndarray]) -> Arrays:
    """The outputs of each invoke from the values of tensors; states are as in the first one."""
    outputs = [values[t] if t in values else graph.tensors[t].value for t in graph.outputs]
    return outputs * INVOKES  # type: ignore[return-value]


def _fed(graph: Graph) -> dict[int, np.ndarray]:
    return {i: v for i in graph.inputs if (v := graph.tensors[i].value) is not None}


def _record(
    graph: Graph, unit: tuple[int, ...], results: Arrays, values: dict[int, np.ndarray]
) -> None:
    """Store the results of the first invoke of `graph.part(unit, ...)` by this graph's tensors."""
    read = {t for i in unit for t in graph.nodes[i].inputs}
    made = [t for i in unit for t in graph.nodes[i].outputs]
    made = [t for t in made if t not in read or t in graph.outputs]
    values.update(zip(made, results[: len(made)], strict=True))


def disagreements(
    name: str, graph: Graph, engine: Engine, trusted: Engine, rule: Rule = EXACTLY
) -> list[Disagreement]:
    """Where an engine differs from a trusted one: single operators, or else the smallest part.

    If all operators agree one by one, on the same operands, the graph magnifies their rounding.
    This does not count if roundings of `_NUDGE` in the trusted engine move its outputs as far.
    Each operator reads the tested engine's earlier results, since the trusted engine may leave
    memory unwritten.

    Raises:
        RefusedError: the trusted engine does not run the graph.
    """
    want = trusted(graph.model(), graph.feeds)
    difference, got = _difference(graph, engine, want, rule)
    if difference is None:
        return []
    whole = Disagreement(
        name, tuple(graph.operators), difference, graph, got=got, want=want, rule=rule
    )
    found: list[Disagreement] = []
    values = _fed(graph)
    for unit in graph.units:
        part = graph.part(unit, values)
        try:
            one, results = _run_alone(whole, part, engine, trusted)
        except RefusedError:  # by both, so there are no values to continue with
            return [*found, whole]
        found += one
        _record(graph, unit, results, values)
    if found or (got is not None and is_rounding(graph, got, trusted, want, rule)):
        # An operator that the trusted engine does not run alone counts only if no other disagrees.
        return [one for one in found if one.want] or found
    return [_smallest(whole, values, engine, trusted)]


def _run_alone(
    whole: Disagreement, part: Graph, engine: Engine, trusted: Engine
) -> tuple[list[Disagreement], Arrays]:
    """Whether an operator run alone disagrees, and its results, preferably the tested engine's."""
    operators = tuple(part.operators)
    try:
        want = trusted(part.model(), part.feeds)
    except (RefusedError, CrashedError) as error:  # it runs the graph, but not its parts
        results = engine(part.model(), part.feeds)
        text = f"{whole.difference}; alone: {error}"
        return [Disagreement(whole.engine, operators, text, part, got=results)], results
    difference, got = _difference(part, engine, want, whole.rule)
    if difference is None:
        return [], got or want
    one = Disagreement(
        whole.engine, operators, difference, part, got=got, want=want, rule=whole.rule
    )
    return [one], got or want


def _smallest(
    whole: Disagreement, values: Mapping[int, np.ndarray], engine: Engine, trusted: Engine
) -> Disagreement:
    """The disagreement of the fewest operators, each of which agrees alone."""
    best = whole

    def disagrees(part: Graph) -> bool:
        nonlocal best
        try:
            want = trusted(part.model(), part.feeds)
            apart, got = _difference(part, engine, want, whole.rule)
            if apart is None or (
                got is not None and is_rounding(part, got, trusted, want, whole.rule)
            ):
                return False
        except (RefusedError, CrashedError):
            return False
        operators = tuple(part.operators)
        best = dataclasses.replace(
            whole, operators=operators, difference=apart, part=part, got=got, want=want
        )
        return True

    smallest(whole.part, values, disagrees)
    return best


def smallest(
    graph: Graph, values: Mapping[int, np.ndarray], disagrees: Callable[[Graph], bool]
) -> Graph:
    """The graph without the operators that the disagreement does not need.

    Args:
        graph: a graph that disagrees.
        values: what it computed, by tensor; they feed the inputs of a part.
        disagrees: whether a part still does.
    """
    kept, best = graph.units, graph
    step = max(1, len(kept) // 2)
    while step:
        start = 0
        while start < len(kept) and len(kept) > 1:
            tried = kept[:start] + kept[start + step :]
            part = graph.part([i for unit in tried for i in unit], values) if tried else None
            if part is not None and disagrees(part):
                kept, best = tried, part
            else:
                start += step
        step //= 2
    return best


def _difference(
    graph: Graph, engine: Engine, want: Arrays, rule: Rule
) -> tuple[str | None, Arrays | None]:
    try:
        got = engine(graph.model(), graph.feeds)
    except RefusedError as error:
        return f"refused: {error}", None
    return mismatch(graph, got, want, rule), got


def is_rounding(graph: Graph, got: Arrays, trusted: Engine, want: Arrays, rule: Rule) -> bool:
    """Whether nudging each operator's results moves the trusted engine's outputs as far."""
    moved = [np.zeros(w.shape) for w in want]
    for seed in range(6):
        for m, n, w in zip(moved, _nudged(graph, trusted, seed, rule), want, strict=True):
            if n.shape != w.shape:
                return True  # a shape that depends on values
            np.maximum(m, _distance(n, w), out=m)
    return all(
        bool(np.all(_distance(g, w) <= _times(w, rule) * float(m.max(initial=0))))
        for g, w, m in zip(got, want, moved, strict=True)
        if g.shape == w.shape
    )


def _times(want: np.ndarray, rule: Rule) -> int:
    """How much further than nudges rounding may move a result.

    Nudges of floats are a few of many roundings; those of integers are the largest allowed ones.
    """
    return 1 if rule.steps and want.dtype.kind in "iu" else _TIMES


def is_exact_for_rounded_operands(part: Graph, got: Arrays, trusted: Engine) -> bool:
    """Whether rounding the operands differently moves the results as far, value by value.

    Sums whose terms cancel are not more exact than that in any order.
    """
    want = trusted(part.model(), part.feeds)
    return all(
        g.shape == w.shape and bool(np.all(_distance(g, w) <= _allowed(w) + m))
        for g, w, m in zip(got, want, moved_by_rounding(part, trusted, want), strict=True)
    )


def moved_by_rounding(part: Graph, trusted: Engine, want: Arrays) -> Arrays:
    """How far other roundings of float operands may move each expected value."""
    moved = [np.zeros(w.shape) for w in want]
    for seed in range(8):
        rng = np.random.default_rng(seed)
        near = trusted(part.model(), [_rounded(x, rng) for x in part.feeds])
        for m, n, w in zip(moved, near, want, strict=True):
            np.maximum(m, _distance(n, w), out=m)
    return [_TIMES * m for m in moved]


def _allowed(want: np.ndarray) -> np.ndarray:
    tolerance = tolerance_for(want.dtype)
    sizes = np.where(np.isfinite(want), np.abs(want), 0)
    return np.asarray(tolerance.atol + tolerance.rtol * sizes)


def _rounded(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if x.dtype.kind != "f":
        return x
    with np.errstate(over="ignore"):
        return np.asarray(x * (1 + _NUDGE * rng.uniform(-1, 1, x.shape)), x.dtype)


def _nudged(graph: Graph, trusted: Engine, seed: int, rule: Rule) -> Arrays:
    rng = np.random.default_rng(seed)
    values: dict[int, np.ndarray] = _fed(graph)
    for unit in graph.units:
        part = graph.part(unit, values)
        made = [part.tensors[t] for t in part.outputs]
        results = trusted(part.model(), part.feeds)
        _record(
            graph,
            unit,
            [
                _step(y, rng, rule.steps) if t.quantization is not None else _nudge(y, rng)
                for y, t in zip(results, made * INVOKES, strict=True)
            ],
            values,
        )
    return results_of(graph, values)


def _step(y: np.ndarray, rng: np.random.Generator, steps: int) -> np.ndarray:
    """Quantized integers, moved as far as the rule allows."""
    if y.dtype.kind not in "iu" or not steps:
        return y
    ends = np.iinfo(y.dtype)
    moved = y.astype(np.int64) + rng.integers(-steps, steps, y.shape, endpoint=True)
    return np.asarray(np.clip(moved, ends.min, ends.max), y.dtype)


def _nudge(y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Round each float differently, by its own size and by a millionth of the largest.

    Sums are as exact as their largest term, not as what is left of it.
    """
    if y.dtype.kind not in "fc":
        return y
    finite = np.abs(y[np.isfinite(y)])
    largest = finite.max(initial=0) if finite.size and finite.max() < _HUGE else 0
    noise = _NUDGE * rng.uniform(-1, 1, (2, *y.shape))
    with np.errstate(over="ignore"):
        return np.asarray(y * (1 + noise[0]) + noise[1] * largest / 4, y.dtype)


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The difference; infinite where only one is NaN or infinite."""
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):
        x, y = a.astype(wide), b.astype(wide)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        far = np.abs(x - y)
    return np.where(same, 0.0, np.where(np.isfinite(far), far, np.inf))
