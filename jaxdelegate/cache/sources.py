"""The parts of a key that say which code of this package makes a program.

To read it all takes longer than to look at some two hundred files, so its digest is kept beside the
programs with what the file system said of the files: their sizes, times and inodes, as git's index
does. Who copies a package gets other times, and the same digest.
"""

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.key import Part
from jaxdelegate.digests import digests

SUFFIX = ".sources"

_PACKAGE = Path(__file__).parents[1]
_LOADED = time.time()
_LINE = re.compile(r"([0-9a-f]{64}) (\S+) ([0-9a-f]{64})\n")

# A file that changes twice within a tick of the file system's clock keeps its time: what is as
# young as this is not remembered.
_UNSETTLED_SECONDS = 2.0

# What has no say in what an operator becomes. Whatever is not named here counts.
_UNRELATED = (
    "analysis",
    "benchmark",
    "comparison",
    "evaluation",
    "litert",
    "reading",
    "reference",
    "report",
    "testing",
    "tools",
)
# What decides the shapes and constants inside of subgraphs that operators call.
_SUBGRAPH_SOURCES = ("reading", "reference")

_States = dict[str, os.stat_result]  # by the file's name in the package


class SourceError(Exception):
    """What the lowerings' sources say cannot be known; nothing is stored then."""


class Sources:
    """This package's files as they lie on disk."""

    def __init__(self, directory: PrivateDirectory | None = None, package: Path = _PACKAGE) -> None:
        """Look at nothing yet.

        Args:
            directory: where digests are remembered; None: nowhere.
            package: its folder.
        """
        self._directory = directory
        self._package = str(package)
        self._known: dict[tuple[str, ...], str] = {}

    def parts(self, *, of_subgraphs: bool) -> dict[str, Part]:
        """The parts of a key.

        Args:
            of_subgraphs: also of what decides what is inside of subgraphs that operators call.

        Raises:
            SourceError: as `digest`.
        """
        names = self._names(of_subgraphs=of_subgraphs)
        return {name: Part.of(self.digest(files)) for name, files in names.items()}

    def confirm(self, *, of_subgraphs: bool) -> None:
        """Make sure that what this process has imported since is what `parts` has seen.

        Modules of operators are imported when a model needs them.

        Raises:
            SourceError: a file has changed since this process began.
        """
        for names in self._names(of_subgraphs=of_subgraphs).values():
            self._states(names)

    def digest(self, names: tuple[str, ...]) -> str:
        """A digest of the Python files among these files and in these folders.

        Raises:
            SourceError: they are not there, or not those that this process runs.
        """
        if names not in self._known:
            self._known[names] = self._digest(names)
        return self._known[names]

    def _names(self, *, of_subgraphs: bool) -> dict[str, tuple[str, ...]]:
        """Files and folders, by the part of a key that they make up."""
        there = sorted(os.listdir(self._package))
        related = [n for n in there if n not in _UNRELATED and not n.startswith(("_", "."))]
        names = {"sources": tuple(related)}
        return names | {"subgraph_sources": _SUBGRAPH_SOURCES} if of_subgraphs else names

    def _digest(self, names: tuple[str, ...]) -> str:
        states = self._states(names)
        if self._directory is None:
            return self._read(states)
        return _remembered(
            self._directory, _name(self._package, names), states, lambda: self._read(states)
        )

    def _states(self, names: tuple[str, ...]) -> _States:
        try:
            found = dict(sorted(item for name in names for item in self._files(name)))
        except FileNotFoundError as error:
            raise SourceError(
                f"{error.filename} is not there: installed without sources?"
            ) from None
        if not found:
            raise SourceError(f"{self._package} has no Python files: installed without sources?")
        for name, state in found.items():
            if state.st_mtime > _LOADED:
                raise SourceError(
                    f"{self._package}/{name} has changed since this process loaded it"
                )
        return found

    def _files(self, name: str) -> Iterator[tuple[str, os.stat_result]]:
        """A file, or those of a folder and its folders."""
        path = f"{self._package}/{name}"
        if name.endswith(".py"):
            yield name, os.stat(path)
        elif os.path.isdir(path):
            yield from _in_folder(path, name)

    def _read(self, states: _States) -> str:
        content = bytearray()
        for name, state in states.items():
            source = self._content(name, state)
            content += f"{name} {len(source)}\n".encode()
            content += source
        return digests([memoryview(content)])[0]

    def _content(self, name: str, state: os.stat_result) -> bytes:
        with open(f"{self._package}/{name}", "rb") as file:
            if _line(name, os.fstat(file.fileno())) != _line(name, state):
                raise SourceError(f"{self._package}/{name} is being changed")
            return file.read()


def _in_folder(path: str, name: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(path) as found:
        for inner in found:
            if inner.name.endswith(".py"):
                yield f"{name}/{inner.name}", inner.stat()
            elif inner.name != "__pycache__" and inner.is_dir():
                yield from _in_folder(inner.path, f"{name}/{inner.name}")


def _remembered(
    directory: PrivateDirectory, file: str, states: _States, read: Callable[[], str]
) -> str:
    """The digest that stands in a file for these states; else what `read` answers, noted there."""
    seen = _signature(states)
    with contextlib.suppress(OSError, UnicodeDecodeError):
        line = _LINE.fullmatch(directory.read(file).decode())
        if line is not None and line[1] == seen and line[3] == _check(seen, line[2]):
            return line[2]
    digest = read()
    youngest = max(max(state.st_mtime, state.st_ctime) for state in states.values())
    if youngest < time.time() - _UNSETTLED_SECONDS:
        with contextlib.suppress(OSError):
            directory.write(file, [f"{seen} {digest} {_check(seen, digest)}\n".encode()])
    return digest


def _name(package: str, names: tuple[str, ...]) -> str:
    return Part.of([package, names]).digest + SUFFIX


def _signature(states: _States) -> str:
    return _check(*(_line(name, state) for name, state in states.items()))


def _line(name: str, state: os.stat_result) -> str:
    times = f"{state.st_mtime_ns} {state.st_ctime_ns}"
    return f"{name} {state.st_size} {times} {state.st_ino} {state.st_dev}"


def _check(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
