"""Advice on a model: rules, most of which look at one planned subgraph."""

from collections.abc import Callable, Iterable, Sequence

from jaxdelegate.analysis import (
    advice_layout,
    advice_numbers,
    advice_partitions,
    advice_storage,
)
from jaxdelegate.analysis.graph import Graph
from jaxdelegate.analysis.records import Finding, SubgraphAnalysis
from jaxdelegate.model.records import Model

_GRAPH_RULES: Sequence[Callable[[Graph], Iterable[Finding]]] = (
    advice_partitions.unplannable,
    advice_partitions.partition_splits,
    advice_partitions.dynamic_shapes,
    advice_partitions.free_dimensions,
    advice_numbers.float16_constants,
    advice_numbers.float16_sums,
    advice_numbers.float16_growth,
    advice_numbers.tensor_core_channels,
    advice_layout.space_to_batch,
    advice_layout.movement_chains,
    advice_storage.large_tables,
    advice_storage.unused_tensors,
    advice_partitions.wrong_shapes,
)


def findings(
    model: Model, graphs: Sequence[Graph], subgraphs: Sequence[SubgraphAnalysis]
) -> tuple[Finding, ...]:
    found = [f for rule in _GRAPH_RULES for graph in graphs for f in rule(graph)]
    found += [f for subgraph in subgraphs for f in advice_partitions.quantized_modes(subgraph)]
    found += advice_storage.duplicates(model)
    found += advice_storage.unused_buffers(model)
    return tuple(found)
