"""The analysis as one HTML file of tables, like that of TFLite's visualize.py.

Model Explorer draws the graph (model_explorer.py).
"""

from collections.abc import Iterator

from jaxdelegate.analysis.records import (
    ModelAnalysis,
    SubgraphAnalysis,
    TensorAnalysis,
    conclusions,
    cost_cells,
    notes,
    place,
    refs,
)
from jaxdelegate.analysis.units import data
from jaxdelegate.report import page as pages
from jaxdelegate.report.page import Cell, Markup, element, number

_OPERATORS = (
    "#", "operator", "version", "inputs", "outputs", "options", "runs on", "FLOP", "bytes",
    "FLOP/B", "latency (ms)", "error", "why not delegated, notes",
)  # fmt: skip
_TENSORS = (
    "T#", "name", "kind", "type", "shape", "bytes", "in the file", "quantization", "data",
)  # fmt: skip


def html_page(analysis: ModelAnalysis) -> str:
    parts = [
        element("h1", analysis.source),
        element("p", f"{analysis.delegate} of jaxdelegate {analysis.version}, {analysis.device}"),
        element("h2", f"Advice ({len(analysis.findings)})"),
        element("ul", Markup("".join(_advice(analysis)))),
    ]
    for subgraph in analysis.subgraphs:
        parts += _subgraph(subgraph)
    return pages.page(f"{analysis.source} - jaxdelegate analyze", parts)


def _advice(analysis: ModelAnalysis) -> Iterator[Markup]:
    for finding in analysis.findings:
        where = f"Subgraph#{finding.subgraph}: " if len(analysis.subgraphs) > 1 else ""
        yield element("li", f"[{finding.kind}] {where}{finding.message} -> {finding.remedy}")


def _subgraph(subgraph: SubgraphAnalysis) -> Iterator[Markup]:
    i = subgraph.index
    yield element("h2", f"Subgraph#{i} {subgraph.name}")
    yield element("p", f"({refs(subgraph.inputs, i)}) -> [{refs(subgraph.outputs, i)}]")
    yield from (element("p", sentence) for sentence in conclusions(subgraph))
    yield element("h3", "Operators")
    is_left = (not op.delegated for op in subgraph.operators)
    yield pages.table(_OPERATORS, _operators(subgraph), is_left)
    yield element("h3", "Tensors")
    yield pages.table(_TENSORS, map(_tensor, subgraph.tensors))


def _operators(subgraph: SubgraphAnalysis) -> Iterator[tuple[Cell, ...]]:
    for op in subgraph.operators:
        options = [f"{name}={value}" for name, value in op.options.items()]
        options += [f"{name}: Subgraph#{index}" for name, index in op.subgraphs]
        yield (
            number(str(op.index)),
            op.name,
            number(str(op.version)),
            refs(op.inputs, subgraph.index),
            refs(op.outputs, subgraph.index),
            ", ".join(options),
            place(op),
            *map(number, cost_cells(op)),
            op.latency_ms,
            op.error,
            notes(op),
        )


def _tensor(tensor: TensorAnalysis) -> tuple[Cell, ...]:
    return (
        number(str(tensor.index)),
        tensor.name,
        tensor.kind,
        tensor.type,
        "depends on data" if tensor.is_dynamic else str(list(tensor.shape)),
        number(data(tensor.nbytes)),
        number(data(tensor.stored_bytes) if tensor.stored_bytes else ""),
        tensor.quantization,
        tensor.data,
    )
