"""Node data for Model Explorer: where operators run, their costs, and measurements.

There is one file per quantity, in the format of ai-edge-model-explorer's node_data_builder.py:
graphs by id, nodes by id. Its TFLite adapter uses an operator's index as id, and a subgraph's name,
or if that is empty the first signature's key, "main" or "subgraph_<index>".
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxdelegate.analysis.records import ModelAnalysis, OperatorAnalysis, SubgraphAnalysis
from jaxdelegate.report.json_records import write_json

NodeData = dict[str, dict[str, Any]]
_Value = Callable[[OperatorAnalysis], float | None]

_CPU_COLOR = "#e9a23b"
_PARTITION_COLORS = ("#3f7fd6", "#2f9e72", "#8a63c9", "#c2558f", "#2a93a5", "#7c8b2f")
_GRADIENT = [
    {"stop": 0, "bgColor": "#fff7de"},
    {"stop": 0.5, "bgColor": "#f3874f"},
    {"stop": 1, "bgColor": "#6e1868", "textColor": "#ffffff"},
]

# File -> title, and the value of an operator; operators without a value are left out.
_QUANTITIES: dict[str, tuple[str, _Value]] = {
    "flops": ("FLOP", lambda op: op.cost.flops),
    "bytes": ("bytes read and written", lambda op: op.cost.bytes),
    "latency": ("latency in ms", lambda op: op.latency_ms),
    "error": ("error", lambda op: op.error),
}


def node_data(analysis: ModelAnalysis) -> dict[str, NodeData]:
    """Node data by quantity: "partition", "flops", "bytes", and if measured "latency", "error"."""
    graphs: dict[str, SubgraphAnalysis] = {}
    for subgraph in analysis.subgraphs:  # the first of those with the same name is shown
        graphs.setdefault(graph_id(analysis, subgraph), subgraph)
    quantities = {"partition": {name: _partitions(graph) for name, graph in graphs.items()}}
    for quantity, (title, value) in _QUANTITIES.items():
        values = {name: _values(graph, title, value) for name, graph in graphs.items()}
        if any(graph["results"] for graph in values.values()):
            quantities[quantity] = values
    return quantities


def write(analysis: ModelAnalysis, folder: str | Path) -> tuple[Path, ...]:
    """Write one JSON file per quantity, `<model>.<quantity>.json`, and create the folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stem = Path(analysis.source).stem.strip("<>") or "model"
    paths = []
    for name, graphs in node_data(analysis).items():
        paths.append(folder / f"{stem}.{name}.json")
        write_json(paths[-1], graphs)
    return tuple(paths)


def graph_id(analysis: ModelAnalysis, subgraph: SubgraphAnalysis) -> str:
    """The id of a subgraph in Model Explorer's TFLite adapter."""
    if subgraph.name:
        return subgraph.name
    keys = [s.key for s in analysis.signatures if s.subgraph == subgraph.index and s.key]
    return keys[0] if keys else "main" if subgraph.index == 0 else f"subgraph_{subgraph.index}"


def _values(subgraph: SubgraphAnalysis, title: str, value: _Value) -> dict[str, Any]:
    values = ((op.index, value(op)) for op in subgraph.operators)
    results = {str(i): {"value": v} for i, v in values if v is not None and abs(v) < math.inf}
    return {"results": results, "name": title, "gradient": _GRADIENT}


def _partitions(subgraph: SubgraphAnalysis) -> dict[str, Any]:
    return {
        "results": dict(map(_place, subgraph.operators)),
        "name": "runs on",
        "showExpandedSummaryOnGroupNode": True,
        "showLabelCountColumnsInChildrenStatsTable": True,
    }


def _place(op: OperatorAnalysis) -> tuple[str, dict[str, str]]:
    if op.partition is None:
        return str(op.index), {"value": "CPU", "bgColor": _CPU_COLOR}
    color = _PARTITION_COLORS[op.partition % len(_PARTITION_COLORS)]
    place = {"value": f"partition {op.partition}", "bgColor": color, "textColor": "#ffffff"}
    return str(op.index), place
