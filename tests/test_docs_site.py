"""The site builds without warnings, loads nothing from other hosts, and has all public names."""

import html.parser
import inspect
import logging
import pkgutil
import re
from pathlib import Path

import pytest

import jaxdelegate as jd

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the site needs the extra `docs`")
    pytest.importorskip("mkdocstrings", reason="the site needs the extra `docs`")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        config = load_config("mkdocs.yml", strict=True, site_dir=str(folder))
        heard = _Heard()
        logging.getLogger("mkdocs").addHandler(heard)
        try:
            build(config)
        finally:
            logging.getLogger("mkdocs").removeHandler(heard)
    assert heard.messages == []
    return folder


def _documented() -> list[str]:
    pages = (page.read_text() for page in sorted((DOCS / "api").glob("*.md")))
    return [name for page in pages for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)]


@pytest.mark.parametrize("name", _documented())
def test_the_public_api_has_docstrings(name: str) -> None:
    shown = pkgutil.resolve_name(name)
    assert inspect.getdoc(shown), name
    if not inspect.isclass(shown) and not inspect.ismodule(shown):
        return
    module = shown.__name__ if inspect.ismodule(shown) else shown.__module__
    for member, value in inspect.getmembers(shown):
        own = getattr(value, "fget", None) or getattr(value, "func", None) or value
        is_ours = getattr(own, "__module__", None) == module
        if not member.startswith("_") and callable(own) and is_ours:
            assert inspect.getdoc(own), f"{name}.{member}"


class _Heard(logging.Handler):
    """Records the warnings of the build."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.mark.slow
def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    found = []
    for page in site.rglob("*.html"):
        loaded = _Loaded()
        loaded.feed(page.read_text())
        found += [a for a in loaded.addresses if re.match(r"(\w+:)?//", a)]
    for style in site.rglob("*.css"):
        found += re.findall(r"(?:url\(|@import )['\"]?((?:https?:)?//[^)'\"]+)", style.read_text())
    assert found == []


@pytest.mark.slow
def test_the_site_has_every_public_name(site: Path) -> None:
    written = "\n".join(path.read_text() for path in (site / "api").rglob("*.html"))
    missing = [
        name
        for name in jd.__all__
        if name not in (*MODULES, "__version__") and f'id="jaxdelegate.{name}"' not in written
    ]
    assert missing == []


def test_the_first_sentence_of_a_page_names_its_readers() -> None:
    silent = []
    for path in DOCS.rglob("*.md"):
        paragraphs = path.read_text().split("\n\n")
        if not re.match("For ", paragraphs[1]):
            silent.append(path.relative_to(DOCS).as_posix())
    assert silent == []
