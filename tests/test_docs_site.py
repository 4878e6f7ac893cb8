"""What the site shows: docstrings, and pages that name their readers; see also built_site.py."""

import inspect
import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


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


def test_the_first_sentence_of_a_page_names_its_readers() -> None:
    silent = []
    for path in DOCS.rglob("*.md"):
        paragraphs = path.read_text().split("\n\n")
        if not re.match("For ", paragraphs[1]):
            silent.append(path.relative_to(DOCS).as_posix())
    assert silent == []
