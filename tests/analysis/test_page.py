"""The HTML page: what is in it, and what headless Chromium makes of it."""

import html
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxdelegate.analysis.analyzer import analyze_model
from jaxdelegate.analysis.layout import INPUTS, NODE_HEIGHT, NODE_WIDTH, OUTPUTS, Layout, layout
from jaxdelegate.analysis.measured import with_latency
from jaxdelegate.analysis.page import html_page
from jaxdelegate.testing.builder import ModelBuilder
from jaxdelegate.testing.networks import mobilenet_v1

Chain = Callable[..., bytes]
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
browser = pytest.mark.skipif(not BROWSER, reason="no Chromium is installed")


def opened(page: str, folder: Path, fragment: str = "") -> str:
    """The DOM after the page's scripts ran."""
    path = folder / "page.html"
    path.write_text(page, "utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command = [
        BROWSER,
        *flags,
        "--window-size=1400,900",
        "--virtual-time-budget=3000",
        "--dump-dom",
    ]
    run = subprocess.run(
        [*command, f"file://{path}#{fragment}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return run.stdout


def body(dom: str) -> dict[str, str]:
    """The attributes that the page's scripts leave on the body."""
    (tag,) = re.findall(r"<body([^>]*)>", dom)
    return {key: html.unescape(value) for key, value in re.findall(r'data-(\w+)="([^"]*)"', tag)}


def hostile() -> bytes:
    builder = ModelBuilder("</script><script>document.body.dataset.owned = 1</script>")
    name = "a</script><img src=x onerror=\"document.body.dataset.owned='1'\">@SCRIPT@ \u2028 &lt; '"
    x, y = builder.input((1, 4), name=name), builder.tensor((1, 4), name="<!--<script>")
    builder.operator("<b>Custom</b>", [x], [y])
    builder.outputs(y)
    return builder.build()


def test_the_page_stands_alone(chain: Chain) -> None:
    page = html_page(analyze_model(chain("ADD", "Mystery")))
    outside = re.findall(r"""(?:src|href)=|url\(|@import|\bimport\(|fetch\(|XMLHttp""", page)
    assert outside == []
    assert "default-src 'none'" in page
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}
    assert "@DATA@" not in page
    assert "@SCRIPT@" not in page


def test_data_comes_back_as_it_was_and_closes_no_script() -> None:
    analysis = analyze_model(hostile())
    page = html_page(analysis)
    (data,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL
    )
    record = json.loads(data)
    assert record["subgraphs"][0]["tensors"][0]["name"].startswith("a</script><img")
    assert {k: v for k, v in record.items() if k in analysis.to_dict()} == analysis.to_dict()
    assert page.count("</script>") == 5
    assert page.count("<script") == 5


# Run in one page, one after the other; each leaves in the body's data what it saw.
ACTIONS = """
<script>
  const saw = document.body.dataset;
  saw.linked = document.querySelector("#details h2").textContent;
  const section = document.getElementById("operators");
  saw.operators = section.dataset.rows;
  saw.tensors = document.getElementById("tensors").dataset.rows;
  const rows = () => [...section.querySelectorAll(".row")];
  document.querySelector('[data-tab="operators"]').click();
  section.querySelectorAll(".head span")[3].click();
  saw.first = rows()[0].children[0].textContent;
  const search = document.getElementById("search");
  search.value = "softmax";
  search.dispatchEvent(new Event("input"));
  saw.found = rows().map((row) => row.children[1].title).join(",");
  saw.faded = document.querySelectorAll(".node.faded").length;
  rows()[0].click();
  saw.chosen = document.querySelector("#details h2").textContent;
</script>
"""


@browser
def test_mobilenet_in_a_browser(tmp_path: Path) -> None:
    analysis = analyze_model(mobilenet_v1(size=32, width=0.25))
    page = html_page(analysis).replace("</body>", f"{ACTIONS}</body>")
    dom = opened(page, tmp_path, "graph,flops,29")
    found = body(dom)
    assert (found["nodes"], found["edges"], found["ready"]) == ("31", "32", "true")
    assert "error" not in found
    assert len(re.findall(r'<g class="node[^"]*"[^>]*data-index="\d+"', dom)) == 31
    assert len(re.findall(r'<path class="edge', dom)) == 32
    assert "All 31 operations will run on XLA:CPU, in 1 partition." in dom
    assert (found["operators"], found["tensors"]) == ("31", "89")
    assert dom.count("<article>") == len(analysis.findings) == 2
    # a link leads to an operator
    assert found["linked"] == "#29 RESHAPE"
    # sorting, finding and choosing
    dearest = max(analysis.subgraphs[0].operators, key=lambda op: op.cost.flops or 0)
    assert found["first"] == str(dearest.index) == "28"
    assert (found["found"], found["faded"], found["chosen"]) == ("SOFTMAX", "30", "#30 SOFTMAX")
    assert re.search(r'<section id="operators"[^>]*data-rows="1"', dom)
    assert re.search(r'class="node chosen"[^>]*data-index="30"', dom)


COLORS = """
<script>
  const fills = () => [...document.querySelectorAll("[data-index] > rect")];
  const names = (rects) => rects.map((rect) => rect.getAttribute("fill")).join(" ");
  document.body.dataset.latency = names(fills());
  const choice = document.getElementById("color");
  for (const color of ["partition", "latency"]) {
    choice.value = color;
    choice.dispatchEvent(new Event("change"));
    if (color === "partition") document.body.dataset.partition = names(fills());
  }
</script>
"""


@browser
def test_partitions_and_measurements_color_the_nodes(chain: Chain, tmp_path: Path) -> None:
    analysis = analyze_model(chain("ADD", "Mystery", "RELU"))
    (tmp_path / "latency.json").write_text('{"#0": 0.5, "#2": 2.0}')
    page = html_page(with_latency(analysis, tmp_path / "latency.json"))
    dom = opened(page.replace("</body>", f"{COLORS}</body>"), tmp_path, "graph,latency")
    seen = body(dom)
    assert "error" not in seen
    assert len(set(seen["partition"].split())) == 3
    drawn = dict(re.findall(r'data-index="(\d)"[^>]*><rect[^>]* fill="([^"]*)"', dom))
    assert seen["latency"].split() == [drawn[i] for i in "012"]  # as the link asks, and again
    assert drawn["2"] == "rgb(110,24,104)"  # the end of the scale
    assert drawn["1"] == "#b9c0ca"  # not measured
    assert dom.count("edge crossing") == 2
    assert re.search(r'<option value="latency">', dom)
    assert not re.search(r'<option value="error">', dom)


@browser
def test_names_from_the_file_are_text(tmp_path: Path) -> None:
    dom = opened(html_page(analyze_model(hostile())), tmp_path, "tensors")
    assert set(body(dom)) == {"nodes", "edges", "ready"}
    assert "<img" not in dom.split("</script>")[0]
    assert "&lt;b&gt;Custom&lt;/b&gt;" in dom


@browser
@pytest.mark.slow
def test_two_thousand_operators(tower: Callable[[int], bytes], tmp_path: Path) -> None:
    dom = opened(html_page(analyze_model(tower(2000))), tmp_path, "operators")
    assert body(dom)["nodes"] == "2000"
    assert body(dom)["ready"] == "true"
    rows = dom.count('class="row"')
    assert 20 < rows < 100  # the list holds what is in sight
    assert re.search(r'<section id="operators"[^>]*data-rows="2000"', dom)


# ---- layout


def boxes(drawn: Layout) -> dict[int, tuple[float, float]]:
    return {box.node: (box.x, box.y) for box in drawn.boxes}


def test_a_chain_is_a_column(chain: Chain) -> None:
    drawn = layout(analyze_model(chain("RELU", "RELU")).subgraphs[0])
    at = boxes(drawn)
    assert [node for node, _ in sorted(at.items(), key=lambda item: item[1][1])] == [
        INPUTS,
        0,
        1,
        OUTPUTS,
    ]
    assert {x for x, _ in at.values()} == {NODE_WIDTH / 2}
    assert drawn.width == NODE_WIDTH
    assert [(e.source, e.target, e.tensor) for e in drawn.edges] == [
        (INPUTS, 0, 0),
        (0, 1, 1),
        (1, OUTPUTS, 2),
    ]


@pytest.mark.parametrize("length", [5, 60])
def test_nodes_do_not_overlap_and_lie_on_the_page(
    tower: Callable[[int], bytes], length: int
) -> None:
    drawn = layout(analyze_model(tower(length)).subgraphs[0])
    at = boxes(drawn)
    assert len(at) == length + 2
    places = sorted(at.values(), key=lambda place: (place[1], place[0]))
    for (x1, y1), (x2, y2) in itertools.pairwise(places):
        assert y1 != y2 or x2 - x1 >= NODE_WIDTH
    assert all(NODE_WIDTH / 2 - 0.1 <= x <= drawn.width - NODE_WIDTH / 2 + 0.1 for x, _ in places)
    assert all(0 <= y - NODE_HEIGHT / 2 <= drawn.height - NODE_HEIGHT for _, y in places)
    for edge in drawn.edges:
        assert (edge.points[0], edge.points[-1]) == (at[edge.source], at[edge.target])
        assert [y for _, y in edge.points] == sorted(y for _, y in edge.points)


def test_skips_run_beside_the_nodes(tower: Callable[[int], bytes]) -> None:
    drawn = layout(analyze_model(tower(5)).subgraphs[0])
    at = boxes(drawn)
    (skip,) = (edge for edge in drawn.edges if len(edge.points) > 2)
    for x, y in skip.points[1:-1]:
        assert all(abs(x - bx) > NODE_WIDTH / 2 for bx, by in at.values() if by == y)


def test_a_subgraph_without_operators_has_a_page(tmp_path: Path) -> None:
    builder = ModelBuilder()
    builder.outputs(builder.input((3,)))
    analysis = analyze_model(builder.build())
    drawn = layout(analysis.subgraphs[0])
    assert set(boxes(drawn)) == {INPUTS, OUTPUTS}
    if BROWSER:
        assert body(opened(html_page(analysis), tmp_path))["nodes"] == "0"
