"""The HTML page: its content, and how headless Chromium shows it."""

import html
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxdelegate.analysis.analyzer import analyze_model
from jaxdelegate.analysis.measured import with_latency
from jaxdelegate.analysis.page import html_page
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.testing.builder import ModelBuilder

Chain = Callable[..., bytes]
Opened = Callable[..., str]


def body(dom: str) -> dict[str, str]:
    """The attributes that the page's scripts set on the body."""
    (tag,) = re.findall(r"<body([^>]*)>", dom)
    return {key: html.unescape(value) for key, value in re.findall(r'data-(\w+)="([^"]*)"', tag)}


def hostile() -> bytes:
    builder = ModelBuilder("</script><script>document.body.dataset.owned = 1</script>")
    name = "a</script><img src=x onerror=\"document.body.dataset.owned='1'\">@SCRIPT@ \u2028 &lt; '"
    x, y = builder.input((1, 4), name=name), builder.tensor((1, 4), name="<!--<script>")
    builder.operator("<b>Custom</b>", [x], [y])
    builder.outputs(y)
    return builder.build()


def test_the_page_loads_nothing(chain: Chain) -> None:
    page = html_page(analyze_model(chain("ADD", "Mystery")))
    outside = re.findall(r"""(?:src|href)=|url\(|@import|\bimport\(|fetch\(|XMLHttp""", page)
    assert outside == []
    assert "default-src 'none'" in page
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}
    assert "@DATA@" not in page
    assert "@SCRIPT@" not in page


def test_data_is_unchanged_and_closes_no_script() -> None:
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


# Run in one page, one after the other; each writes what it saw to the body's data.
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


def test_mobilenet_in_a_browser(opened: Opened) -> None:
    analysis = analyze_model(mobilenet_v1(size=32, width=0.25))
    page = html_page(analysis).replace("</body>", f"{ACTIONS}</body>")
    dom = opened(page, "graph,flops,29")
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


def test_partitions_and_measurements_color_the_nodes(
    chain: Chain, opened: Opened, tmp_path: Path
) -> None:
    analysis = analyze_model(chain("ADD", "Mystery", "RELU"))
    (tmp_path / "latency.json").write_text('{"#0": 0.5, "#2": 2.0}')
    page = html_page(with_latency(analysis, tmp_path / "latency.json"))
    dom = opened(page.replace("</body>", f"{COLORS}</body>"), "graph,latency")
    seen = body(dom)
    assert "error" not in seen
    assert len(set(seen["partition"].split())) == 3
    drawn = dict(re.findall(r'data-index="(\d)"[^>]*><rect[^>]* fill="([^"]*)"', dom))
    assert seen["latency"].split() == [drawn[i] for i in "012"]  # from the link, and from the list
    assert drawn["2"] == "rgb(110,24,104)"  # the end of the scale
    assert drawn["1"] == "#b9c0ca"  # not measured
    assert dom.count("edge crossing") == 2
    assert re.search(r'<option value="latency">', dom)
    assert not re.search(r'<option value="error">', dom)


def test_names_from_the_file_are_text(opened: Opened) -> None:
    dom = opened(html_page(analyze_model(hostile())), "tensors")
    assert set(body(dom)) == {"nodes", "edges", "ready"}
    assert "<img" not in dom.split("</script>")[0]
    assert "&lt;b&gt;Custom&lt;/b&gt;" in dom


@pytest.mark.slow
def test_two_thousand_operators(tower: Callable[[int], bytes], opened: Opened) -> None:
    dom = opened(html_page(analyze_model(tower(2000))), "operators")
    assert body(dom)["nodes"] == "2000"
    assert body(dom)["ready"] == "true"
    rows = dom.count('class="row"')
    assert 20 < rows < 100  # the list has only the visible rows
    assert re.search(r'<section id="operators"[^>]*data-rows="2000"', dom)


def test_a_subgraph_without_operators_has_a_page(opened: Opened) -> None:
    builder = ModelBuilder()
    builder.outputs(builder.input((3,)))
    analysis = analyze_model(builder.build())
    assert body(opened(html_page(analysis)))["nodes"] == "0"


# ---- what the page shows first


# In pixels of the window; a text's size on the screen.
MEASURES = """
<script>
  const rect = (e) => {
    const r = e.getBoundingClientRect();
    return [r.left, r.top, r.right, r.bottom];
  };
  const size = (e) => parseFloat(getComputedStyle(e).fontSize);
  const parts = "header h1, header p, .card, nav button, nav label, #legend, #search, "
    + "#side, #drawing, aside";
  document.body.dataset.seen = JSON.stringify({
    drawing: rect(document.getElementById("drawing")),
    nodes: [...document.querySelectorAll(".node")].map((n) => rect(n.firstChild)),
    texts: [...document.querySelectorAll(".node text")].map((t) =>
      [rect(t), rect(t.parentNode.firstChild), t.textContent, size(t) * view.scale]),
    parts: [...document.querySelectorAll(parts)].filter((e) => e.clientWidth || e.id)
      .map((e) => [e.id || e.textContent, rect(e)]),
    overflow: document.documentElement.scrollWidth - innerWidth,
  });
</script>
"""
Rectangle = list[float]


def seen(opened: Opened, model: bytes, width: int) -> dict[str, Any]:
    page = html_page(analyze_model(model)).replace("</body>", f"{MEASURES}</body>")
    found: dict[str, Any] = json.loads(body(opened(page, width=width, height=1000))["seen"])
    return found


def is_within(inner: Rectangle, outer: Rectangle, slack: float = 0.5) -> bool:
    sides = zip(inner[:2] + outer[2:], outer[:2] + inner[2:], strict=True)
    return all(a >= b - slack for a, b in sides)


def overlap(a: Rectangle, b: Rectangle) -> bool:
    return min(a[2], b[2]) - max(a[0], b[0]) > 0.5 and min(a[3], b[3]) - max(a[1], b[1]) > 0.5


def assert_centered_and_readable(found: dict[str, Any]) -> None:
    drawing, nodes = found["drawing"], found["nodes"]
    shown = [node for node in nodes if overlap(node, drawing)]
    left, right = min(n[0] for n in shown), max(n[2] for n in shown)
    assert (left + right) / 2 == pytest.approx((drawing[0] + drawing[2]) / 2, abs=2)
    assert all(is_within(node, drawing) for node in nodes[:3])
    assert len(shown) >= min(len(nodes), 7)
    if len(nodes) < 6:  # all of it, in the middle
        top, bottom = min(n[1] for n in nodes), max(n[3] for n in nodes)
        assert (top + bottom) / 2 == pytest.approx((drawing[1] + drawing[3]) / 2, abs=2)
    assert min(pixels for *_, pixels in found["texts"]) >= 9
    assert [text for box, around, text, _ in found["texts"] if not is_within(box, around)] == []


@pytest.mark.parametrize(
    ("length", "width"), [pytest.param(3, 1400, marks=pytest.mark.exhaustive), (1000, 800)]
)
def test_the_graph_opens_centered_and_readable(
    length: int, width: int, tower: Callable[[int], bytes], opened: Opened
) -> None:
    assert_centered_and_readable(seen(opened, tower(length), width))


def test_what_prepares_weights_leaves_the_graph_centered(
    half_weights: Callable[[int], bytes], opened: Opened
) -> None:
    assert_centered_and_readable(seen(opened, half_weights(50), 1400))


@pytest.mark.parametrize("width", [1400, 800])
def test_no_part_of_the_page_covers_another(width: int, opened: Opened) -> None:
    found = seen(opened, mobilenet_v1(size=32, width=0.25), width)
    assert_centered_and_readable(found)
    parts = found["parts"]
    assert {"drawing", "side", "details", "search"} <= {name for name, _ in parts}
    pairs = itertools.combinations(parts, 2)
    assert [(a, b) for (a, first), (b, second) in pairs if overlap(first, second)] == []
    assert all(is_within(box, [0, 0, width, 1000]) for _, box in parts)
    assert found["overflow"] == 0


RESIZED = """
<script>
  const saw = (name) => { document.body.dataset[name] = `${view.x} ${view.y} ${view.scale}`; };
  saw("before");
  tab("operators");
  open(0);  // while it is not in sight
  tab("graph");
  saw("again");
  zoom(2, 100, 100);
  saw("zoomed");
  tab("operators");
  tab("graph");
  window.dispatchEvent(new Event("resize"));
  saw("kept");
</script>
"""


def test_the_view_is_fitted_until_the_user_moves_it(
    half_weights: Callable[[int], bytes], opened: Opened
) -> None:
    page = html_page(analyze_model(half_weights(20))).replace("</body>", f"{RESIZED}</body>")
    found = body(opened(page))
    assert found["before"] == found["again"] != found["zoomed"] == found["kept"]
