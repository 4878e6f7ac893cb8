"""The analysis as one HTML file, which needs neither network nor server."""

import html
import importlib.resources
import json

from jaxdelegate.analysis.layout import NODE_HEIGHT, NODE_WIDTH, layout
from jaxdelegate.analysis.records import ModelAnalysis


def html_page(analysis: ModelAnalysis) -> str:
    """The page: graph, operators, tensors and advice, with all data and scripts inside."""
    record = analysis.to_dict()
    record["layouts"] = [layout(subgraph)._asdict() for subgraph in analysis.subgraphs]
    record["node_size"] = [NODE_WIDTH, NODE_HEIGHT]
    parts = {
        "@TITLE@": html.escape(f"{analysis.source} - jaxdelegate analyze"),
        "@STYLE@": _part("page.css"),
        "@DATA_SCRIPT@": _part("page_data.js"),
        "@GRAPH_SCRIPT@": _part("page_graph.js"),
        "@LISTS_SCRIPT@": _part("page_lists.js"),
        "@SCRIPT@": _part("page.js"),
        "@DATA@": script_json(record),
    }
    page = _part("page.html")
    for i, mark in enumerate(parts):  # the parts may contain what looks like a mark
        page = page.replace(mark, f"\0{i}\0")
    for i, text in enumerate(parts.values()):
        page = page.replace(f"\0{i}\0", text)
    return page


def script_json(record: object) -> str:
    """JSON for a script element: nothing in it closes the element."""
    text = json.dumps(record, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _part(name: str) -> str:
    return importlib.resources.files("jaxdelegate.analysis").joinpath(name).read_text("utf-8")
