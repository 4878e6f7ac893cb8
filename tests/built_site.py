"""The site that `make docs` has built loads nothing from other hosts and has all public names.

`make check-docs` runs it, which knows that the site is new.
"""

import html.parser
import re
from pathlib import Path

import jaxdelegate as jd

SITE = Path(__file__).parents[1] / "site"
# Public names that are modules, described on a page.
MODULES = ("litert", "reference", "testing")


class _Loaded(html.parser.HTMLParser):
    """Addresses that a browser loads with a page: scripts, styles, fonts, images."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        names = ("src", "srcset") if tag != "link" else ("href",)
        if tag == "link" and given.get("rel") in ("canonical", "next", "prev"):
            return
        self.addresses += [given[name] or "" for name in names if name in given]


def test_the_site_loads_nothing_from_other_hosts() -> None:
    found = []
    assert (SITE / "index.html").exists()
    for page in SITE.rglob("*.html"):
        loaded = _Loaded()
        loaded.feed(page.read_text())
        found += [a for a in loaded.addresses if re.match(r"(\w+:)?//", a)]
    for style in SITE.rglob("*.css"):
        found += re.findall(r"(?:url\(|@import )['\"]?((?:https?:)?//[^)'\"]+)", style.read_text())
    assert found == []


def test_all_pages_show_the_version() -> None:
    pages = [page for page in SITE.rglob("*.html") if page.name != "404.html"]
    assert len(pages) > 10
    assert [p for p in pages if f"jaxdelegate {jd.__version__}" not in p.read_text()] == []


def test_the_site_has_every_public_name() -> None:
    written = "\n".join(path.read_text() for path in (SITE / "api").rglob("*.html"))
    missing = [
        name
        for name in jd.__all__
        if name not in (*MODULES, "__version__") and f'id="jaxdelegate.{name}"' not in written
    ]
    assert missing == []
