"""The parts of a key for the code of this package that produces programs."""

import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path

from jaxdelegate.cache.key import Part
from jaxdelegate.digests import digests

PACKAGE = Path(__file__).parents[1]
_LOADED = time.time()

# The folders whose code determines the program of a partition.
_FOLDERS = (
    "compile",
    "kernels",
    "lowering",
    "model",
    "op_lowering",
    "passes",
    "quant",
    "tuning",
    "xla",
)
# The folders that determine shapes and constants inside subgraphs that operators call.
_SUBGRAPH_FOLDERS = ("reference",)


class SourceError(Exception):
    """The package's sources are missing or have changed, so nothing is stored."""


def source_parts(*, of_subgraphs: bool, more: tuple[str, ...] = ()) -> dict[str, Part]:
    """Called subgraphs add the code that determines their content; `more` are other folders.

    A SourceError if the files are missing, or newer than what this process runs.
    """
    found = _folders(of_subgraphs=of_subgraphs, more=more)
    return {part: Part.of(_digest(PACKAGE, names)) for part, names in found.items()}


def confirm(*, of_subgraphs: bool, more: tuple[str, ...] = ()) -> None:
    """Check that the modules imported since `source_parts` are those that it digested.

    Modules of operators are imported when a model needs them. A SourceError if a file has changed
    since this process started.
    """
    for names in _folders(of_subgraphs=of_subgraphs, more=more).values():
        _files(PACKAGE, names)


def _folders(*, of_subgraphs: bool, more: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {"sources": _FOLDERS}
    if of_subgraphs:
        found["subgraph_sources"] = _SUBGRAPH_FOLDERS
    return found | {"caller_sources": more} if more else found


@functools.cache
def _digest(package: Path, names: tuple[str, ...]) -> str:
    content = bytearray()
    for file in _files(package, names):
        with open(file, "rb") as stream:
            source = stream.read()
        content += f"{file[len(str(package)) :]} {len(source)}\n".encode()
        content += source
    return digests([memoryview(content)])[0]


def _files(package: Path, names: tuple[str, ...]) -> list[str]:
    try:
        found = dict(sorted(item for name in names for item in _in(f"{package}/{name}")))
    except FileNotFoundError as error:
        raise SourceError(f"{error.filename} is missing: installed without sources?") from None
    if not found:
        raise SourceError(f"{package} has no Python files: installed without sources?")
    for file, modified in found.items():
        if modified > _LOADED:
            raise SourceError(f"{file} has changed since this process loaded it")
    return list(found)


def _in(root: str) -> Iterator[tuple[str, float]]:
    """The Python files of a folder, with their modification times."""
    for folder, inner, names in os.walk(root, onerror=_raise):
        inner[:] = [name for name in inner if name != "__pycache__"]
        for name in names:
            if name.endswith(".py"):
                file = f"{folder}/{name}"
                yield file, os.stat(file).st_mtime


def _raise(error: OSError) -> None:
    raise error
