"""Planning and running take time by a graph's size, not its square: with bounds of ten times."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from jaxdelegate.lowering.rewrites.registry import rewritten
from jaxdelegate.model.graph_checks import check_order
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.dtypes import DTYPES
from jaxdelegate.op_lowering.options import TensorType, VarHandleOptions
from jaxdelegate.passes.explicit_state import with_explicit_states
from jaxdelegate.passes.propagation import declared_specs
from jaxdelegate.runtime.subgraph import SubgraphRunner
from jaxdelegate.testing import ModelBuilder


def seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def test_resource_variables() -> None:
    builder = ModelBuilder()
    x = builder.input((2,))
    for i in range(5000):
        handle = builder.tensor((1,), DTYPES[TensorType.RESOURCE])
        builder.operator("VAR_HANDLE", [], [handle], VarHandleOptions(shared_name=f"v{i}"))
        builder.operator("ASSIGN_VARIABLE", [handle, x], [])
    builder.outputs(x)
    (subgraph,) = read_model(builder.build()).subgraphs
    assert seconds(lambda: with_explicit_states(subgraph)) < 0.5


def test_results_that_are_views_of_inputs() -> None:
    count = 5000
    inputs, outputs = range(count), range(count, 2 * count)
    values: dict[int, Any] = {i: np.zeros(4) for i in inputs}
    values.update({i: (values[i - count] if i % 2 else np.zeros(4))[1:] for i in outputs})
    views = {i: values[i] for i in outputs}
    graph = SimpleNamespace(inputs=inputs, outputs=outputs)
    host: Any = SimpleNamespace(subgraph=graph, _own=outputs, _values=values)
    assert seconds(lambda: SubgraphRunner._own_results(host)) < 0.5
    assert [i for i in outputs if values[i] is not views[i]] == list(range(count + 1, 2 * count, 2))


class Wide:
    """An operator."""

    name, custom = "CONCATENATION", False
    inputs, outputs = tuple(range(30_000)), tuple(range(30_000, 60_000))


def test_inputs_and_outputs_of_one_operator() -> None:
    def check() -> None:
        check_order([Wide], range(30_000), (), (), lambda _: None)  # type: ignore[list-item, arg-type, return-value]

    assert seconds(check) < 1


def test_rewrites() -> None:
    builder = ModelBuilder()
    x, weights = builder.input((1, 2)), builder.constant(np.eye(2, dtype=np.float32))
    for _ in range(2500):
        y, z = builder.tensor((1, 2)), builder.tensor((1, 2))
        builder.operator("FULLY_CONNECTED", [x, weights, None], [y])
        builder.operator("RELU", [y], [z])
        x = z
    builder.outputs(x)
    (subgraph,) = read_model(builder.build()).subgraphs
    specs = dict(enumerate(declared_specs(subgraph)))
    found: list[Any] = []

    def rewrite() -> None:
        found.append(rewritten(subgraph.operators, specs, subgraph.outputs, lambda *_: True))

    assert seconds(rewrite) < 2
    assert len(found[0].operators) == 2500
