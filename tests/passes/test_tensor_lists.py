"""Tensor lists that a loop's body writes by slices of run-time size."""

import dataclasses

import jax
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.analysis.analyzer import analyze_model
from jaxdelegate.errors import InterpreterError
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.options import (
    AddOptions,
    CastOptions,
    ConcatenationOptions,
    MulOptions,
    ReducerOptions,
    ReshapeOptions,
    ShapeOptions,
    TensorType,
    WhileOptions,
)
from jaxdelegate.passes.propagation import declared_specs, gather, propagate, subgraph_specs
from jaxdelegate.passes.tensor_lists import with_list_updates
from jaxdelegate.testing import ModelBuilder, SubgraphBuilder

STEPS, WIDTH = 5, 3
UNKNOWN = (-1, -1, -1)


@dataclasses.dataclass(frozen=True)
class Scan:
    """state = 2 * state + x[i]; list[i] = state, as the converter writes recurrent layers.

    The list is as long as the time and holds states of the input's batch. In the loop, its shape is
    declared as the converter does: nothing is known.

    Attributes:
        step: what the loop's counter and the second slice's start add.
        start: where the first slice starts.
        axis: of the concatenation.
        last: the first slice's size along the other dimensions.
        batch: of the list and the state; None: the input's.
        is_scalar: the list holds the sums of the states instead, and has one dimension.
        layers: how many loops there are; each but the first takes the list before it, reversed.
    """

    step: int = 1
    start: int = 0
    axis: int = 0
    last: int = -1
    batch: int | None = None
    is_scalar: bool = False
    layers: int = 1

    def build(self) -> bytes:
        builder = ModelBuilder()
        x = builder.input((STEPS, 1, WIDTH), name="x", shape_signature=(-1, -1, WIDTH))
        zero, nothing = builder.constant(np.int32(0)), builder.constant(np.float32(0))
        sizes = builder.tensor((3,), np.int32)
        builder.operator("SHAPE", [x], [sizes], ShapeOptions(TensorType.INT32))
        length = self._part(builder, sizes, 0, 1)
        batch = self._part(builder, sizes, 1, 1)
        if self.batch is not None:
            batch = builder.constant(np.array([self.batch], np.int32))
        width = self._part(builder, sizes, 2, 1)
        of_state = self._joined(builder, batch, width)
        of_items = length if self.is_scalar else self._joined(builder, length, of_state, size=3)
        items, state = self._items(builder), self._free(builder, 2)
        builder.operator("FILL", [of_items, nothing], [items])
        builder.operator("FILL", [of_state, nothing], [state])
        count = builder.tensor((), np.int32)
        builder.operator("RESHAPE", [length, builder.constant(np.zeros(0, np.int32))], [count])
        initial = [zero, items, state, count]
        results = self._loop(builder, [*initial, x])
        for _ in range(1, self.layers):
            results = self._loop(builder, [*initial, self._reversed(builder, results[1])])
        builder.outputs(*results[1:3])
        self._condition(builder)
        self._body(builder)
        return builder.build()

    def _loop(self, builder: ModelBuilder, initial: list[int]) -> list[int]:
        ranks = (1 if self.is_scalar else 3, 2)
        results = [builder.tensor((), np.int32), *(self._free(builder, rank) for rank in ranks)]
        results += [builder.tensor((), np.int32), self._free(builder, 3)]
        builder.operator("WHILE", initial, results, WhileOptions(1, 2))
        return results

    def _reversed(self, builder: ModelBuilder, items: int) -> int:
        y = self._free(builder, 3)
        builder.operator("REVERSE_V2", [items, builder.constant(np.array([0], np.int32))], [y])
        return y

    def _items(self, graph: SubgraphBuilder) -> int:
        return self._free(graph, 1 if self.is_scalar else 3)

    def _free(self, graph: SubgraphBuilder, rank: int) -> int:
        return graph.tensor((1,) * rank, shape_signature=UNKNOWN[:rank])

    def _part(self, graph: SubgraphBuilder, vector: int, start: int, size: int) -> int:
        part = graph.tensor((size,), np.int32)
        at = [graph.constant(np.array([n], np.int32)) for n in (start, size)]
        graph.operator("SLICE", [vector, *at], [part])
        return part

    def _joined(self, graph: SubgraphBuilder, *parts: int, size: int = 2) -> int:
        whole = graph.tensor((size,), np.int32)
        graph.operator("CONCATENATION", list(parts), [whole], ConcatenationOptions())
        return whole

    def _inputs(self, graph: SubgraphBuilder) -> list[int]:
        rank = 1 if self.is_scalar else 3
        items = graph.input((1,) * rank, shape_signature=UNKNOWN[:rank])
        state = graph.input((1, WIDTH), shape_signature=(-1, WIDTH))
        count = graph.input((), np.int32)
        x = graph.input((STEPS, 1, WIDTH), shape_signature=(-1, -1, WIDTH))
        return [items, state, count, x]

    def _condition(self, builder: ModelBuilder) -> None:
        graph = builder.subgraph("condition")
        i = graph.input((), np.int32)
        count = self._inputs(graph)[2]
        goes_on = graph.tensor((), np.bool_)
        graph.operator("LESS", [i, count], [goes_on])
        graph.outputs(goes_on)

    def _body(self, builder: ModelBuilder) -> None:
        graph = builder.subgraph("body")
        i = graph.input((), np.int32)
        items, state, count, x = self._inputs(graph)
        following = graph.tensor((), np.int32)
        row, doubled, new = (graph.tensor((1, WIDTH), shape_signature=(-1, WIDTH)) for _ in "123")
        step = graph.constant(np.int32(self.step))
        graph.operator("ADD", [i, step], [following], AddOptions())
        graph.operator("GATHER", [x, i], [row])
        two = graph.constant(np.float32(2))
        graph.operator("MUL", [state, two], [doubled], MulOptions())
        graph.operator("ADD", [doubled, row], [new], AddOptions())
        written = self._write(graph, items, i, following, self._element(graph, new))
        cast = self._items(graph)  # the converter changes the declared shape so
        graph.operator("CAST", [written], [cast], CastOptions())
        graph.outputs(following, cast, new, count, x)

    def _element(self, graph: SubgraphBuilder, new: int) -> int:
        if self.is_scalar:
            axes = graph.constant(np.array([0, 1], np.int32))
            total, element = graph.tensor(()), graph.tensor((1,))
            graph.operator("SUM", [new, axes], [total], ReducerOptions())
            graph.operator("RESHAPE", [total, graph.constant(np.array([1], np.int32))], [element])
            return element
        element = graph.tensor((1, 1, WIDTH), shape_signature=(1, -1, WIDTH))
        graph.operator("EXPAND_DIMS", [new, graph.constant(np.int32(0))], [element])
        return element

    def _write(
        self, graph: SubgraphBuilder, items: int, i: int, following: int, element: int
    ) -> int:
        rank = 1 if self.is_scalar else 3
        rest = graph.constant(np.full(rank, -1, np.int32))
        first = graph.constant(np.full(rank, self.start, np.int32))
        before = self._slice(graph, items, first, self._vector(graph, i, self.last))
        after = self._slice(graph, items, self._vector(graph, following, 0), rest)
        written = self._items(graph)
        options = ConcatenationOptions(self.axis)
        graph.operator("CONCATENATION", [before, element, after], [written], options)
        return written

    def _vector(self, graph: SubgraphBuilder, scalar: int, rest: int) -> int:
        first = graph.tensor((1,), np.int32)
        one = graph.constant(np.array([1], np.int32))
        graph.operator("RESHAPE", [scalar, one], [first], ReshapeOptions())
        others = graph.constant(np.full(2, rest, np.int32))
        return first if self.is_scalar else self._joined(graph, first, others, size=3)

    def _slice(self, graph: SubgraphBuilder, items: int, begin: int, size: int) -> int:
        part = self._items(graph)
        graph.operator("SLICE", [items, begin, size], [part])
        return part


def expected(x: np.ndarray) -> np.ndarray:
    states, state = [], np.zeros(x.shape[1:], np.float32)
    for row in x:
        state = 2 * state + row
        states.append(state)
    return np.stack(states)


def inputs(steps: int = STEPS, batch: int = 1) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(steps, batch, WIDTH)).astype(np.float32)


def run(model: bytes, x: np.ndarray, *delegates: jd.JaxDelegate) -> np.ndarray:
    interpreter = jd.Interpreter(model_content=model, experimental_delegates=list(delegates))
    interpreter.resize_tensor_input(0, x.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("steps", [STEPS, 1, 8])
def test_the_loop_is_delegated_whole_for_any_time_and_batch(steps: int, batch: int) -> None:
    x, delegate = inputs(steps, batch), jd.JaxDelegate(min_gain=0)
    y = run(Scan().build(), x, delegate)
    np.testing.assert_allclose(y, expected(x), rtol=1e-6)
    np.testing.assert_allclose(y, run(Scan().build(), x), rtol=1e-6)
    assert not delegate.report().left


def test_one_interpreter_takes_one_shape_after_another() -> None:
    delegate = jd.JaxDelegate(min_gain=0)
    interpreter = jd.Interpreter(model_content=Scan().build(), experimental_delegates=[delegate])
    for steps, batch in ((STEPS, 3), (2, 1), (STEPS, 3)):
        x = inputs(steps, batch)
        interpreter.resize_tensor_input(0, x.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, x)
        interpreter.invoke()
        y = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        np.testing.assert_allclose(y, expected(x), rtol=1e-6)
        assert not delegate.report().left


def test_a_layer_after_another_and_backwards() -> None:
    x, delegate, model = inputs(batch=3), jd.JaxDelegate(min_gain=0), Scan(layers=2).build()
    y = expected(expected(x)[::-1])
    np.testing.assert_allclose(run(model, x, delegate), y, rtol=1e-5)
    np.testing.assert_allclose(jd.load(model)(x)[0], y, rtol=1e-5)
    assert not delegate.report().left


def test_a_list_of_scalars() -> None:
    x, delegate = inputs(batch=3), jd.JaxDelegate(min_gain=0)
    y = run(Scan(is_scalar=True).build(), x, delegate)
    np.testing.assert_allclose(y, expected(x).sum(axis=(1, 2)), rtol=1e-5)
    assert not delegate.report().left


def test_as_a_function() -> None:
    model = jd.load(Scan().build())
    for x in (inputs(batch=3), inputs(7)):
        np.testing.assert_allclose(model(x)[0], expected(x), rtol=1e-6)


def test_as_a_function_it_has_a_gradient() -> None:
    apply, params = jd.load(Scan().build()).function()

    def last(x: jax.Array) -> jax.Array:
        return apply(params, x)[0][-1].sum()

    gradient = jax.grad(last)(inputs(batch=2))
    powers = 2.0 ** np.arange(STEPS)[::-1]
    np.testing.assert_allclose(gradient, np.broadcast_to(powers[:, None, None], gradient.shape))


def test_a_list_of_another_batch_is_refused_before_the_run() -> None:
    fixed = Scan(batch=1).build()
    x = inputs(batch=1)
    np.testing.assert_allclose(run(fixed, x, jd.JaxDelegate(min_gain=0)), expected(x), rtol=1e-6)
    interpreter = jd.Interpreter(model_content=fixed)
    interpreter.resize_tensor_input(0, (STEPS, 3, WIDTH))
    with pytest.raises(InterpreterError, match=r"a list of tensors \[1, 3\] cannot hold \[3, 3\]"):
        interpreter.allocate_tensors()


def body(scan: Scan, steps: int = STEPS, batch: int = 3) -> list[str]:
    """The operators of the loop's body, planned for this input."""
    model = read_model(scan.build())
    main = declared_specs(model.subgraphs[0])
    main[0] = dataclasses.replace(main[0], shape=(steps, batch, WIDTH))
    specs = propagate(model.subgraphs[0].operators, main, model.subgraphs)
    (loop,) = (o for o in model.subgraphs[0].operators if o.name == "WHILE")
    started = tuple(dataclasses.replace(spec, const=None) for spec in gather(specs, loop.inputs))
    subgraph = model.subgraphs[2]
    found = subgraph_specs(subgraph, started, model.subgraphs)
    return [o.name for o in with_list_updates(subgraph, found).operators]


def test_only_the_update_is_left() -> None:
    assert body(Scan()) == [
        "ADD", "GATHER", "MUL", "ADD", "EXPAND_DIMS", "RESHAPE", "CONCATENATION",
        "DYNAMIC_UPDATE_SLICE", "CAST",
    ]  # fmt: skip


@pytest.mark.parametrize("scan", [Scan(step=2), Scan(start=1), Scan(axis=1), Scan(last=1)], ids=str)
def test_other_slices_stay_as_they_are(scan: Scan) -> None:
    assert "DYNAMIC_UPDATE_SLICE" not in body(scan)


def test_a_graph_without_lists_is_itself() -> None:
    subgraph = read_model(Scan().build()).subgraphs[1]
    assert with_list_updates(subgraph, declared_specs(subgraph)) is subgraph


def test_the_analysis_shows_the_operators_of_the_file() -> None:
    body = analyze_model(Scan().build()).subgraphs[2]
    in_file = read_model(Scan().build()).subgraphs[2].operators
    assert [o.name for o in body.operators] == [o.name for o in in_file]
    assert {o.partition for o in body.operators} == {0}
    assert body.partitions[0].operators == tuple(o.index for o in in_file)
    slices = [o.cost for o in body.operators if o.name == "SLICE"]
    assert [(c.bytes, c.note) for c in slices] == [(0, "part of a list update")] * 2
