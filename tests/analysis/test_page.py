"""The HTML page: its tables, and that names in a file are only text in it."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from jaxdelegate.analysis.analyzer import analyze_model
from jaxdelegate.analysis.measured import with_latency
from jaxdelegate.analysis.page import html_page
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.testing.builder import ModelBuilder

Chain = Callable[..., bytes]


class Tables(HTMLParser):
    """The texts of a page's cells by table and row, and the rows that are marked."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.marked: list[int] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
            if ("class", "wrong") in attrs:
                self.marked.append(len(self.tables[-1]) - 2)  # after the heading
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_data(self, data: str) -> None:
        if self.tables and self.tables[-1] and self.tables[-1][-1]:
            self.tables[-1][-1][-1] += data


def hostile() -> bytes:
    builder = ModelBuilder("</style><script>document.body.dataset.owned = 1</script>")
    name = "a</td><img src=x onerror=\"document.body.dataset.owned='1'\"> &lt; '"
    x, y = builder.input((1, 4), name=name), builder.tensor((1, 4), name="<!--<script>")
    builder.operator("<b>Custom</b>", [x], [y])
    builder.outputs(y)
    return builder.build()


def test_the_page_loads_nothing(chain: Chain) -> None:
    page = html_page(analyze_model(chain("ADD", "Mystery")))
    assert re.findall(r"""(?:src|href)=|url\(|@import|https?:""", page) == []
    assert "default-src 'none'" in page
    assert "script" not in Tables(page).tags


def test_names_from_the_file_are_text() -> None:
    tables = Tables(html_page(analyze_model(hostile())))
    assert tables.tags.isdisjoint({"script", "img", "b"})
    operators, tensors = tables.tables
    assert operators[1][1] == "<b>Custom</b>"
    assert [row[1] for row in tensors[2:]] == ["<!--<script>"]
    assert tensors[1][1].startswith("a</td><img src=x")


def test_mobilenet() -> None:
    analysis = analyze_model(mobilenet_v1(size=32, width=0.25))
    page = html_page(analysis)
    assert "All 31 operations will run on XLA:CPU, in 1 partition." in page
    assert page.count("<li>") == len(analysis.findings) == 2
    (operators, tensors), (main,) = Tables(page).tables, analysis.subgraphs
    assert len(operators) - 1 == len(main.operators)
    assert len(tensors) - 1 == len(main.tensors)
    first = dict(zip(operators[0], operators[1], strict=True))
    assert (first["#"], first["operator"], first["runs on"]) == ("0", "CONV_2D", "partition 0")
    assert "stride_w=2, stride_h=2" in first["options"]
    assert first["outputs"] == f"T#{main.operators[0].outputs[0]}"


def test_what_stays_on_the_host_is_marked_and_measurements_are_shown(
    chain: Chain, tmp_path: Path
) -> None:
    analysis = analyze_model(chain("ADD", "Mystery", "RELU"))
    (tmp_path / "latency.json").write_text('{"#0": 0.5, "#2": 2.0}')
    tables = Tables(html_page(with_latency(analysis, tmp_path / "latency.json")))
    assert tables.marked == [1]
    head, *rows = tables.tables[0]
    assert [row[head.index("latency (ms)")] for row in rows] == ["0.5", "", "2"]
    reason = analysis.subgraphs[0].operators[1].reason
    assert rows[1][-1].startswith(str(reason))


def test_a_subgraph_without_operators_has_a_page() -> None:
    builder = ModelBuilder()
    builder.outputs(builder.input((3,)))
    operators, tensors = Tables(html_page(analyze_model(builder.build()))).tables
    assert (len(operators), len(tensors)) == (1, 2)
