"""The parts of a key that say which code of this package makes a program."""

import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path

from jaxdelegate.cache.key import Part
from jaxdelegate.digests import digests

PACKAGE = Path(__file__).parents[1]
_LOADED = time.time()

# The rooms whose code decides what program a partition becomes.
_ROOMS = (
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
# What decides the shapes and constants inside of subgraphs that operators call, besides the numpy
# kernels themselves, which are in op_lowering/.
_SUBGRAPH_ROOMS = ("reference",)


class SourceError(Exception):
    """What the lowerings' sources say cannot be known; nothing is stored then."""


def source_parts(*, of_subgraphs: bool, package: Path = PACKAGE) -> dict[str, Part]:
    """The parts of a key.

    Args:
        of_subgraphs: also of what decides what is inside of subgraphs that operators call.
        package: the folder of this package.

    Raises:
        SourceError: its files are not there, or not those that this process runs.
    """
    found = _rooms(of_subgraphs=of_subgraphs)
    return {part: Part.of(_digest(package, names)) for part, names in found.items()}


def confirm(*, of_subgraphs: bool, package: Path = PACKAGE) -> None:
    """Make sure that what this process has imported since is what `source_parts` has seen.

    Modules of operators are imported when a model needs them.

    Raises:
        SourceError: a file has changed since this process began.
    """
    for names in _rooms(of_subgraphs=of_subgraphs).values():
        _files(package, names)


def _rooms(*, of_subgraphs: bool) -> dict[str, tuple[str, ...]]:
    """Folders, by the part of a key that they make up."""
    rooms: dict[str, tuple[str, ...]] = {"sources": _ROOMS}
    return rooms | {"subgraph_sources": _SUBGRAPH_ROOMS} if of_subgraphs else rooms


@functools.cache
def _digest(package: Path, names: tuple[str, ...]) -> str:
    """Of the Python files in these folders."""
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
        raise SourceError(f"{error.filename} is not there: installed without sources?") from None
    if not found:
        raise SourceError(f"{package} has no Python files: installed without sources?")
    for file, modified in found.items():
        if modified > _LOADED:
            raise SourceError(f"{file} has changed since this process loaded it")
    return list(found)


def _in(room: str) -> Iterator[tuple[str, float]]:
    """The Python files of a folder, and when they were written."""
    for folder, inner, names in os.walk(room, onerror=_raise):
        inner[:] = [name for name in inner if name != "__pycache__"]
        for name in names:
            if name.endswith(".py"):
                file = f"{folder}/{name}"
                yield file, os.stat(file).st_mtime


def _raise(error: OSError) -> None:
    raise error
