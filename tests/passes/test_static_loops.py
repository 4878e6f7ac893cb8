"""Loops whose number of iterations is known beforehand."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from jaxdelegate.model.records import Subgraph, read_model
from jaxdelegate.op_lowering.options import CallOptions
from jaxdelegate.op_lowering.rule import StaticLoop
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.passes.static_loops import static_loop
from jaxdelegate.testing import ModelBuilder, SubgraphBuilder

Part = Callable[[SubgraphBuilder, Sequence[int]], Sequence[int]]  # values -> results


def subgraphs(values: Sequence[TensorSpec], *parts: Part) -> tuple[Subgraph, ...]:
    """The subgraphs after an empty main one, each a function of the loop's values."""
    builder = ModelBuilder()
    builder.outputs(builder.input((1,)))
    for part in parts:
        graph = builder.subgraph(part.__name__)
        graph.outputs(*part(graph, [graph.input(v.shape, v.dtype) for v in values]))
    return read_model(builder.build()).subgraphs[1:]


def value(initial: object, dtype: object = np.int32, shape: tuple[int, ...] = ()) -> TensorSpec:
    """An initial value of a loop; None: it depends on data."""
    const = None if initial is None else np.broadcast_to(np.asarray(initial, dtype), shape)
    return TensorSpec("v", shape, np.dtype(dtype), const=const)


def found(values: Sequence[TensorSpec], condition: Part, body: Part) -> StaticLoop | None:
    return static_loop(*subgraphs(values, condition, body), tuple(values))


def apply(g: SubgraphBuilder, name: str, *inputs: int, dtype: object = np.int32) -> int:
    y = g.tensor((), dtype)
    g.operator(name, list(inputs), [y])
    return y


def below(limit: object, position: int = 0) -> Part:
    def condition(g: SubgraphBuilder, values: Sequence[int]) -> Sequence[int]:
        end = values[limit.position] if isinstance(limit, At) else g.constant(np.asarray(limit))
        return [apply(g, "LESS", values[position], end, dtype=np.bool_)]

    return condition


@dataclasses.dataclass(frozen=True)
class At:
    position: int


def adding(step: object = np.int32(1), name: str = "ADD") -> Part:
    """Steps the first value; the others stay."""

    def body(g: SubgraphBuilder, values: Sequence[int]) -> Sequence[int]:
        one = g.constant(np.asarray(step))
        return [apply(g, name, values[0], one, dtype=np.asarray(step).dtype), *values[1:]]

    return body


@pytest.mark.parametrize(
    ("first", "end", "step", "trips"),
    [(0, 5, 1, 5), (2, 11, 3, 3), (5, 5, 1, 0), (9, 5, 1, 0), (-3, 10_000 - 3, 1, 10_000)],
)
def test_a_counter(first: int, end: int, step: int, trips: int) -> None:
    loop = found([value(first)], below(np.int32(end)), adding(np.int32(step)))
    assert loop == StaticLoop(trips, ())


def test_an_end_that_the_caller_knows() -> None:
    weights = value(None, np.float32, (3, 3))
    loop = found([value(0), weights, value(7)], below(At(2)), adding())
    assert loop == StaticLoop(7, (1, 2))
    assert found([value(0), weights, value(None)], below(At(2)), adding()) is None
    assert found([value(None), weights, value(7)], below(At(2)), adding()) is None


def test_only_what_the_condition_needs_has_to_be_known() -> None:
    """Two counters depend on each other, but not on the third value."""

    def fibonacci(g: SubgraphBuilder, values: Sequence[int]) -> Sequence[int]:
        a, b, x = values
        return [b, apply(g, "ADD", a, b), apply(g, "EXP", x, dtype=np.float32)]

    values = [value(0), value(1), value(None, np.float32)]
    assert found(values, below(np.int32(50)), fibonacci) == StaticLoop(10, ())
    assert found([values[0], value(None), values[2]], below(np.int32(50)), fibonacci) is None


def test_floats_do_not_count() -> None:
    """Another implementation may round sums differently, and run once more."""
    assert found([value(0, np.float32)], below(np.float32(1)), adding(np.float32(0.1))) is None


def test_a_condition_of_the_data() -> None:
    def until_positive(g: SubgraphBuilder, values: Sequence[int]) -> Sequence[int]:
        zero = g.constant(np.float32(0))
        positive = apply(g, "GREATER", values[1], zero, dtype=np.bool_)
        counted = apply(g, "LESS", values[0], g.constant(np.int32(5)), dtype=np.bool_)
        return [apply(g, "LOGICAL_AND", counted, positive, dtype=np.bool_)]

    assert found([value(0), value(None, np.float32)], until_positive, adding()) is None


def test_a_loop_without_end_and_one_that_fails_are_unknown() -> None:
    assert found([value(0)], below(np.int32(5)), adding(np.int32(0))) is None
    assert found([value(1)], below(np.int32(5)), adding(np.int32(0), "FLOOR_MOD")) is None


def test_random_numbers_and_calls_are_unknown() -> None:
    def drawn(g: SubgraphBuilder, values: Sequence[int]) -> Sequence[int]:
        y = g.tensor((1,), np.int32)
        shape = g.constant(np.array([1], np.int32))
        g.operator("RANDOM_UNIFORM", [shape], [y])
        return [apply(g, "ADD", values[0], y)]

    def called(g: SubgraphBuilder, values: Sequence[int]) -> Sequence[int]:
        y = g.tensor((), np.int32)
        g.operator("CALL", [values[0]], [y], CallOptions(1))
        return [y]

    assert found([value(0)], below(np.int32(5)), drawn) is None
    assert found([value(0)], below(np.int32(5)), called) is None


def test_subgraphs_that_do_not_fit_are_unknown() -> None:
    condition, body = subgraphs([value(0)], below(np.int32(5)), adding())
    assert static_loop(condition, body, (value(0), value(0))) is None
    assert static_loop(condition, body, (value(0, np.int64),)) is None
