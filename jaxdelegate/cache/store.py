"""Entries and weights in a private directory. Knows no jax: the files, not what they run on."""

import errno
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from jaxdelegate.cache import weights
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.entry import (
    Entry,
    EntryError,
    StoredWeight,
    UncheckedError,
    file_of,
    is_of_another_version,
    pack,
    unpack,
)
from jaxdelegate.cache.key import Key
from jaxdelegate.digests import array_digests


class ProgramStore:
    """What is stored, by key. Weights have files of their own, which shapes of a model share."""

    def __init__(self, directory: PrivateDirectory) -> None:
        """Look into an opened directory."""
        self.directory = directory

    def find(self, key: Key) -> Entry | None:
        """The entry of a key; None if there is none.

        Raises:
            EntryError: there is a file, but no entry of this key in it.
            OSError: the file cannot be read, or somebody else could have written it.
        """
        try:
            entry = unpack(self.directory.read(file_of(key)))
        except FileNotFoundError:
            return None
        if moved := entry.key.moved(key):
            raise EntryError(f"the file holds another program: {', '.join(moved)} differ")
        return entry

    def nearest(self, key: Key) -> list[str] | None:
        """Which parts differ from the entry that shares most of them; None: nothing is stored."""
        moved = (entry.key.moved(key) for _, entry in self.entries() if isinstance(entry, Entry))
        return min(moved, key=len, default=None)

    def entries(
        self, names: Sequence[str] | None = None
    ) -> Iterator[tuple[str, Entry | EntryError]]:
        """Every file of programs by name: its entry, or why it has none.

        Args:
            names: of the files to look at; None: of all.
        """
        for name in self.directory.names() if names is None else names:
            if name.endswith(".program"):
                try:
                    entry = unpack(self.directory.read(name))
                    right = EntryError(f"it belongs under the name {entry.file}")
                    yield name, entry if entry.file == name else right
                except EntryError as error:
                    yield name, error
                except FileNotFoundError:
                    continue  # somebody has removed it
                except OSError as error:
                    yield name, _refused(error)

    def outdated(self) -> int:
        """How many programs are of other versions of the format."""
        return sum(map(self._is_outdated, self.directory.names()))

    def _is_outdated(self, name: str) -> bool:
        if not name.endswith(".program"):
            return False
        try:
            with open(self.directory.descriptor(name), "rb") as file:
                return is_of_another_version(file.read(1024))
        except OSError:
            return False

    def save(self, entry: Entry, content: np.ndarray | None) -> None:
        """Write an entry, and the file of its weights if that is not there yet.

        Args:
            entry: the entry.
            content: of that file.

        Raises:
            OSError: the disk is full, or the directory cannot be written to.
        """
        if entry.weights_file is None or content is None:
            self.directory.write(entry.file, pack(entry))
            return
        if not self._holds(entry):
            self.directory.write(entry.weights_file, [content.data])
        self.directory.write(entry.file, pack(entry))
        if self.directory.size(entry.weights_file) != content.nbytes:
            # Somebody pruned while no program named them.
            self.directory.write(entry.weights_file, [content.data])

    def _holds(self, entry: Entry) -> bool:
        try:
            self.weights(entry)
        except (EntryError, OSError):
            return False
        return True

    def weights(self, entry: Entry) -> dict[str, np.ndarray]:
        """The bytes of each weight that has a place in the entry's file, by digest.

        Raises:
            EntryError: the file is damaged or gone, or cannot be checked.
            OSError: somebody else could have written it.
        """
        return weights.read(self.directory, entry)


def _refused(error: OSError) -> EntryError:
    """Of a file that is none, or of others, for ever; of a disk that does not answer, for now."""
    is_for_ever = error.errno in (None, errno.ELOOP, errno.ENXIO)
    return EntryError(str(error)) if is_for_ever else UncheckedError(str(error))


def stored_weights(
    arrays: Sequence[np.ndarray], constants: Mapping[str, int]
) -> tuple[StoredWeight, ...]:
    """The records of a program's arguments.

    Args:
        arrays: their elements.
        constants: tensors of the model by the digests of their elements: those need no file.
    """
    found = zip(array_digests(arrays), arrays, strict=True)
    return tuple(StoredWeight(d, a.dtype, a.shape, constants.get(d)) for d, a in found)
