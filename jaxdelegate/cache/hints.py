"""Which program a model ran last: where loading begins before the model is read.

A guess that costs time only. Models are told apart by their size and by how they begin and end;
what is loaded is run only if the whole key is its own.
"""

import contextlib
import re
from collections.abc import Mapping
from typing import Any

from jaxdelegate.cache.entry import Entry, EntryError, unpack
from jaxdelegate.cache.key import Part
from jaxdelegate.cache.store import ProgramStore

SUFFIX = ".hint"
_SAMPLE = 4096  # bytes
_ENTRY = re.compile(r"[0-9a-f]{64}\.program")


class Hint:
    """The file that names a model's program. Whatever is wrong with it goes unnoticed."""

    def __init__(
        self, store: ProgramStore, content: memoryview, settings: Mapping[str, Any]
    ) -> None:
        """Find out the file's name.

        Args:
            store: what the hint belongs to.
            content: of the model's file.
            settings: of the delegate.

        Raises:
            TypeError: settings of a kind that is not known to be the same in every process.
        """
        ends = [bytes(content[:_SAMPLE]), bytes(content[-_SAMPLE:])]
        self._store = store
        self._file = Part.of([len(content), ends, settings]).digest + SUFFIX
        self._named: str | None = None

    def entry(self, parts: Mapping[str, Part]) -> Entry | None:
        """The entry that it names, if that is sound and these are among the parts of its key."""
        with contextlib.suppress(EntryError, OSError, UnicodeDecodeError):
            self._named = self._store.directory.read(self._file).decode()
            if _ENTRY.fullmatch(self._named):
                entry = unpack(self._store.directory.read(self._named))
                return entry if entry.key.has(parts) else None
        return None

    def keep(self, entry_file: str) -> None:
        """Name this entry from now on, where that can be noted."""
        if entry_file != self._named:
            with contextlib.suppress(OSError):
                self._store.directory.write(self._file, [entry_file.encode()])


def named_by(store: ProgramStore, file: str) -> str | None:
    """The entry that a hint's file names; None: it cannot be read."""
    try:
        return store.directory.read(file).decode()
    except (OSError, UnicodeDecodeError):
        return None
