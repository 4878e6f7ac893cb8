"""Extras that pages, docstrings and errors name are in pyproject.toml."""

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
MODULES = sorted((*ROOT.glob("jaxdelegate/**/*.py"), *ROOT.glob("examples/**/*.py")))
_NAMED = re.compile(r"(?:\.|jaxdelegate)\[([a-z0-9,-]+)\]|\bextras? `\[?([a-z0-9-]+)\]?`")
_INSTALLERS = ("install", "needs", "optional_module")  # of optional.py; the extra is the last one


def named(text: str) -> Iterator[str]:
    for several, one in _NAMED.findall(text):
        yield from (several or one).split(",")


def installed(text: str) -> Iterator[str]:
    """Those that a module's errors would install."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_EXTRA":
            yield ast.literal_eval(node.value)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _INSTALLERS:
            yield from (a.value for a in node.args[-1:] if isinstance(a, ast.Constant))


@pytest.mark.parametrize(("paths", "found"), [(PAGES, named), (MODULES, installed)])
def test_the_named_extras_exist(paths: list[Path], found: Callable[[str], Iterator[str]]) -> None:
    names = {(name, p.name) for p in paths for name in found(p.read_text(encoding="utf-8"))}
    assert len(names) > 8
    assert not [(name, page) for name, page in names if name not in EXTRAS]


def test_the_default_reference_of_bundles_is_an_extra() -> None:
    assert EXTRAS["litert-lm"][0].startswith("litert-lm-api")
