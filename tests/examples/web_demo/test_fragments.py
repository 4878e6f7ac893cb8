"""Parts of HTML: their content, and that text of the user is never markup."""

import numpy as np
import pytest

from sample_tasks.annotations import Annotation, Box, KeyPoint, Label
from web_demo import fragments
from web_demo.comparison import Row
from web_demo.engines import LITERT, REFERENCE, Engine
from web_demo.uploads import Output

EVIL = "<script>alert(1)</script>"


def test_a_row_for_each_engine() -> None:
    rows = [
        Row(REFERENCE, ready_milliseconds=1234.5, milliseconds=20.0, difference=0.0),
        Row(LITERT, ready_milliseconds=7.0, milliseconds=0.25, difference=2.5e-7),
        Row(Engine("broken"), error="it cannot"),
    ]
    page = fragments.comparison(rows, ["next", "last"])
    assert page.count("<tr") == 1 + 5
    for text in ("1,234", ">20.0<", "50.0", ">0<", ">0.25<", "4,000", "2.5e-07"):
        assert text in page, text
    assert "<tr class='error'><th scope='row'>broken</th><td colspan='4'>it cannot</td>" in page
    assert page.index("running ...") < page.index("last") < page.index(">waiting<")
    assert "width:100.0%" in page  # the fastest
    assert "width:1.2%" in page  # 80 times slower


@pytest.mark.parametrize(
    ("difference", "text"), [(None, "&ndash;"), (float("nan"), "nan"), (float("inf"), "inf")]
)
def test_differences_that_are_not_numbers(difference: float | None, text: str) -> None:
    row = Row(REFERENCE, milliseconds=1.0, difference=difference)
    assert f"<td>{text}</td>" in fragments.comparison([row])


@pytest.mark.parametrize(
    ("annotation", "texts"),
    [
        (Annotation(labels=(Label("cat", 0.75), Label("dog", 0.2))), ["cat", "75.0 %", "dog"]),
        (Annotation(boxes=(Box(Label("cup", 0.5), 0, 0, 1, 1),)), ["cup", "50.0 %"]),
        (Annotation(key_points=(KeyPoint("knee", 0, 0, 1.0),)), ["knee", "100.0 %"]),
        (
            Annotation(mask=np.array([[0, 0], [0, 2]]), mask_names=("ground", "sky", "tree")),
            ["ground", "75.0 %", "tree", "25.0 %", "pixels"],
        ),
        (Annotation(), ["Nothing was found"]),
    ],
)
def test_annotations(annotation: Annotation, texts: list[str]) -> None:
    page = fragments.annotation(annotation)
    positions = [page.find(text) for text in texts]
    assert -1 not in positions
    assert positions == sorted(positions)
    assert "sky" not in page  # no pixel of it


def test_reports_have_remarks_and_a_table() -> None:
    page = fragments.report("All run.\nNative kernels.\n\n#  operator\n0  ADD")
    assert page.count("<p class='note'>") == 2
    assert "<pre class='report' tabindex='0'>#  operator\n0  ADD</pre>" in page
    assert "<pre" not in fragments.report("The numpy reference.")


@pytest.mark.parametrize(
    "page",
    [
        fragments.comparison([Row(Engine(EVIL), milliseconds=1.0)], [EVIL]),
        fragments.comparison([Row(Engine(EVIL), error=EVIL)]),
        fragments.annotation(Annotation(labels=(Label(EVIL, 1.0),))),
        fragments.annotation(Annotation(mask=np.zeros((1, 1)), mask_names=(EVIL,))),
        fragments.outputs([Output(EVIL, EVIL, EVIL)], EVIL),
        fragments.report(f"{EVIL}\n\n{EVIL}"),
        fragments.message(EVIL) + fragments.hint(EVIL) + fragments.error(EVIL),
    ],
)
def test_text_is_escaped(page: str) -> None:
    assert "<script" not in page
    assert "&lt;script&gt;" in page
