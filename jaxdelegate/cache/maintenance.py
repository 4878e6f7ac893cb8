"""What lies in a cache directory, whether it is sound, and keeping it within a size."""

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence

from jaxdelegate.cache import answers, choices, settings, starts
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.entry import Entry, EntryError, UncheckedError
from jaxdelegate.cache.key import Part
from jaxdelegate.cache.store import ProgramStore

_CLOCKS_DIFFER = 86400.0  # seconds
_MEMORIES = (answers.SUFFIX, settings.SUFFIX, starts.SUFFIX)

PathLike = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class EntryReport:
    """One stored program.

    Attributes:
        name: of its file.
        model: the name of the model that it was compiled for; empty: not known, as in stock
            interpreters.
        operators: what it computes, in words.
        nbytes: of that file.
        weight_bytes: of the file that holds its weights; other entries may share it.
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
    """What `prune` did: the files it removed, and the bytes that were there and that are left."""

    removed: tuple[str, ...]
    before: int
    after: int


def list_entries(directory: PathLike) -> list[EntryReport]:
    """Every stored program, the latest used first. Weights are not read; `verify` does that.

    Raises:
        OSError: there is no such directory, or others can write to it.
    """
    store = _store(directory)
    rows = [_row(store, name, entry) for name, entry in store.entries()]
    return sorted(rows, key=lambda row: _recency(row.unused), reverse=True)


def verify(directory: PathLike) -> list[EntryReport]:
    """The same, each with all of its bytes read and compared with their digests.

    Raises:
        OSError: there is no such directory, or others can write to it.
    """
    store = _store(directory)
    return [
        _row(store, name, _damage(store, entry) or entry if isinstance(entry, Entry) else entry)
        for name, entry in store.entries()
    ]


def foreign_files(directory: PathLike) -> list[str]:
    """Files that belong to no cache: nothing reads or removes them.

    Raises:
        OSError: there is no such directory, or others can write to it.
    """
    names = _store(directory).directory.names()
    own = (".program", ".weights", choices.SUFFIX, *_MEMORIES)
    return [name for name in names if not name.endswith(own)]


def prune(directory: PathLike, max_bytes: int) -> Pruned:
    """Remove what cannot be used, then the programs that were not used for longest.

    Args:
        directory: of the cache.
        max_bytes: how large what is left may be at most.

    Raises:
        OSError: there is no such directory, others can write to it, or it cannot be written to.
    """
    store = _store(directory)
    files = store.directory
    before = _nbytes(files)
    removed = [*files.abandoned()]
    there = files.names()  # what others write from now on is not looked at
    entries: list[Entry] = []
    are_all_known = True
    for name, entry in store.entries(there):
        if isinstance(entry, Entry):
            entries.append(entry)
        elif isinstance(entry, UncheckedError):
            are_all_known = False
        else:
            removed.append(name)
    now = time.time()
    entries.sort(key=lambda entry: _recency(now - files.modified(entry.file)), reverse=True)
    while entries and _kept_bytes(files, entries) > max_bytes:
        removed.append(entries.pop().file)
    if are_all_known and not _has_programs_besides(files, there):  # else one may name them
        removed += _orphans(there, entries)
    for name in removed:
        files.remove(name)
    return Pruned(tuple(removed), before, _nbytes(files))


def _recency(unused: float) -> tuple[bool, float]:
    """What sorts files by their last use, `unused` seconds ago.

    What was used in the future, but for clocks that differ a little, was so under a clock that was
    wrong then or is wrong now. It counts as older than the rest: else it would be the latest for
    ever, or hide what is used now.
    """
    return unused > -_CLOCKS_DIFFER, -unused


def _has_programs_besides(files: PrivateDirectory, names: Sequence[str]) -> bool:
    return any(name.endswith(".program") for name in set(files.names()).difference(names))


def _orphans(names: Sequence[str], kept: Sequence[Entry]) -> Iterator[str]:
    """Weights that no program names, and with the last program what rules have answered."""
    weights = {entry.weights_file for entry in kept}
    for name in names:
        is_weight = name.endswith(".weights") and name not in weights
        if is_weight or (name.endswith(_MEMORIES) and not kept):
            yield name


def _store(directory: PathLike) -> ProgramStore:
    return ProgramStore(PrivateDirectory.open(directory, create=False))


def _row(store: ProgramStore, name: str, entry: Entry | EntryError) -> EntryReport:
    files, now = store.directory, time.time()
    modified = files.modified(name)
    if not isinstance(entry, Entry):
        unused = now - modified
        return EntryReport(name, "", "", files.size(name), 0, unused, unused, {}, str(entry))
    return EntryReport(
        name,
        entry.model_name,
        entry.operators,
        files.size(name),
        files.size(entry.weights_file) if entry.weights_file else 0,
        now - entry.created,
        now - modified,
        dict(entry.key.parts),
        None,
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
