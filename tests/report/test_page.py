"""Pages of tables: what is escaped, how numbers are written, which rows are marked."""

from jaxdelegate.report import page as pages
from jaxdelegate.report.page import Markup, element


def test_texts_are_escaped_and_markup_is_not() -> None:
    assert element("p", "<b>", "ok") == '<p class="ok">&lt;b&gt;</p>'
    assert element("p", element("b", "a & b")) == "<p><b>a &amp; b</b></p>"
    assert pages.with_small("<a>", "<b>") == "<td>&lt;a&gt;<small>&lt;b&gt;</small></td>"
    assert "<title>&lt;x&gt;</title>" in pages.page("<x>", [])


def test_cells() -> None:
    table = pages.table(("a", "b"), [("x", 1234.5678), (None, pages.bar(0.25))])
    assert "<th>a</th><th>b</th>" in table
    assert '<tr><td>x</td><td class="n">1235</td></tr>' in table
    assert '<tr><td></td><td class="bars"><span class="bar" style="width:25.0%">' in table
    assert pages.number("1.2 kB") == '<td class="n">1.2 kB</td>'


def test_rows_are_marked() -> None:
    table = pages.table((), [("good",), ("bad",)], (False, True))
    assert '<tr><td>good</td></tr>\n<tr class="wrong"><td>bad</td></tr>' in table


def test_a_page_is_one_file_without_scripts() -> None:
    page = pages.page("t", [Markup("<p>x</p>")], "healthy")
    assert page.startswith("<!DOCTYPE html>")
    assert "default-src 'none'" in page
    assert page.endswith('<body class="healthy"><p>x</p></body></html>\n')
