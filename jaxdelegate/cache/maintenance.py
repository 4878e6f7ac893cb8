"""List, verify and prune the files of a cache directory."""

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence

from jaxdelegate.cache import choices
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.entry import Entry, EntryError, UncheckedError
from jaxdelegate.cache.environment import SETTINGS
from jaxdelegate.cache.key import Part
from jaxdelegate.cache.records import SIGNATURES, STARTS, VERDICTS
from jaxdelegate.cache.store import ProgramStore

_CLOCKS_DIFFER = 86400.0  # seconds
# Files that are useless without programs.
_RECORDS = (VERDICTS.suffix, SETTINGS, STARTS.suffix, SIGNATURES)

PathLike = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class EntryReport:
    """One stored program.

    Attributes:
        name: of its file.
        model: the name of the model that it was compiled for; empty: unknown, as in stock
            interpreters.
        operators: what it computes, in words.
        nbytes: size of its file.
        weight_bytes: size of the file that holds its weights; other entries may share it.
        age: seconds since it was compiled.
        unused: seconds since it was last loaded.
        parts: of its key, by name.
        problem: why it cannot be used; None: it can.
    """

    name: str
    model: str
    operators: str
    nbytes: int
    weight_bytes: int
    age: float
    unused: float
    parts: dict[str, Part]
    problem: str | None


@dataclasses.dataclass(frozen=True)
class Pruned:
    """The files that `prune` removed, and the total size before and after, in bytes."""

    removed: tuple[str, ...]
    before: int
    after: int


def list_entries(directory: PathLike) -> list[EntryReport]:
    """Every stored program, the most recently used first, without reading weights.

    Raises:
        OSError: the directory does not exist, or others can write to it.
    """
    store = _store(directory)
    rows = [_row(store, name, entry) for name, entry in store.entries()]
    return sorted(rows, key=lambda row: _recency(row.unused), reverse=True)


def verify(directory: PathLike) -> list[EntryReport]:
    """Every stored program, after a check of all its bytes against their digests.

    Raises:
        OSError: the directory does not exist, or others can write to it.
    """
    store = _store(directory)
    return [
        _row(store, name, _damage(store, entry) or entry if isinstance(entry, Entry) else entry)
        for name, entry in store.entries()
    ]


def foreign_files(directory: PathLike) -> list[str]:
    """Files in the directory that are not the cache's, and that it neither reads nor removes.

    Raises:
        OSError: the directory does not exist, or others can write to it.
    """
    names = _store(directory).directory.names()
    suffixes = (".program", ".weights", choices.SUFFIX, *_RECORDS)
    return [name for name in names if not name.endswith(suffixes)]


def prune(directory: PathLike, max_bytes: int) -> Pruned:
    """Remove what cannot be used, then the least recently used programs.

    Args:
        directory: of the cache.
        max_bytes: the largest total size of the remaining programs and weights.

    Raises:
        OSError: the directory does not exist, others can write to it, or it is read-only.
    """
    store = _store(directory)
    files = store.directory
    before = _nbytes(files)
    removed = [*files.abandoned()]
    names = files.names()  # ignores what other processes write from now on
    entries: list[Entry] = []
    are_all_checked = True
    for name, entry in store.entries(names):
        if isinstance(entry, Entry):
            entries.append(entry)
        elif isinstance(entry, UncheckedError):
            are_all_checked = False
        else:
            removed.append(name)
    now = time.time()
    entries.sort(key=lambda entry: _recency(now - files.modified(entry.file)), reverse=True)
    while entries and _kept_bytes(files, entries) > max_bytes:
        removed.append(entries.pop().file)
    new = set(files.names()).difference(names)
    # New programs may refer to any weights.
    if are_all_checked and not any(name.endswith(".program") for name in new):
        removed += _orphans(names, entries)
    for name in removed:
        files.remove(name)
    return Pruned(tuple(removed), before, _nbytes(files))


def _recency(unused: float) -> tuple[bool, float]:
    """A sort key for files that were last used `unused` seconds ago.

    A time in the future, beyond small differences between clocks, comes from a clock that was wrong
    then or is wrong now. Such a file counts as the oldest: otherwise it would stay the latest
    forever, or hide what is used now.
    """
    return unused > -_CLOCKS_DIFFER, -unused


def _orphans(names: Sequence[str], kept: Sequence[Entry]) -> Iterator[str]:
    """Weights that no program uses and, if no program is left, all records."""
    weights = {entry.weights_file for entry in kept}
    for name in names:
        is_weight = name.endswith(".weights") and name not in weights
        if is_weight or (name.endswith(_RECORDS) and not kept):
            yield name


def _store(directory: PathLike) -> ProgramStore:
    return ProgramStore(PrivateDirectory.open(directory, create=False))


def _row(store: ProgramStore, name: str, entry: Entry | EntryError) -> EntryReport:
    files, now = store.directory, time.time()
    unused = now - files.modified(name)
    sound = entry if isinstance(entry, Entry) else None
    weights_file = sound and sound.weights_file
    return EntryReport(
        name=name,
        model=sound.model_name if sound else "",
        operators=sound.operators if sound else "",
        nbytes=files.size(name),
        weight_bytes=files.size(weights_file) if weights_file else 0,
        age=now - sound.created if sound else unused,
        unused=unused,
        parts=dict(sound.key.parts) if sound else {},
        problem=None if sound else str(entry),
    )


def _damage(store: ProgramStore, entry: Entry) -> EntryError | None:
    try:
        store.weights(entry)
    except EntryError as error:
        return error
    except OSError as error:
        return EntryError(str(error))
    return None


def _kept_bytes(files: PrivateDirectory, entries: list[Entry]) -> int:
    weights = {entry.weights_file for entry in entries if entry.weights_file}
    return sum(map(files.size, [*weights, *(entry.file for entry in entries)]))


def _nbytes(files: PrivateDirectory) -> int:
    names = files.names()
    return sum(map(files.size, (n for n in names if n.endswith((".program", ".weights")))))
