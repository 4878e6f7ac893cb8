"""Entries and weights in a private directory. Handles files only, without jax."""

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
    has_another_version,
    pack,
    unpack,
)
from jaxdelegate.cache.key import Key
from jaxdelegate.digests import array_digests


class ProgramStore:
    """Weights are in separate files, which programs for several shapes share."""

    def __init__(self, directory: PrivateDirectory) -> None:
        self.directory = directory

    @property
    def nbytes(self) -> int:
        """Bytes of all files in the directory."""
        return sum(map(self.directory.size, self.directory.names()))

    def find(self, key: Key) -> Entry | None:
        """The entry of a key; None if nothing is stored under it.

        An EntryError if the file holds no entry of this key, an OSError if it cannot be read, or
        another user could have written it.
        """
        try:
            entry = unpack(self.directory.read(file_of(key)))
        except FileNotFoundError:
            return None
        if parts := entry.key.differing_parts(key):
            raise EntryError(f"the file holds another program: {', '.join(parts)} differ")
        return entry

    def nearest(self, key: Key) -> list[str] | None:
        """The parts that differ from the most similar entry; None: nothing is stored."""
        entries = (entry for _, entry in self.entries() if isinstance(entry, Entry))
        return min((e.key.differing_parts(key) for e in entries), key=len, default=None)

    def entries(
        self, names: Sequence[str] | None = None
    ) -> Iterator[tuple[str, Entry | EntryError]]:
        """Name and entry, or error, of every program's file, or of those with `names`."""
        for name in self.directory.names() if names is None else names:
            if name.endswith(".program"):
                try:
                    entry = unpack(self.directory.read(name))
                    misnamed = EntryError(f"it belongs under the name {entry.file}")
                    yield name, entry if entry.file == name else misnamed
                except EntryError as error:
                    yield name, error
                except FileNotFoundError:
                    continue  # another process has removed it
                except OSError as error:
                    yield name, _refused(error)

    def outdated(self) -> int:
        return sum(map(self._is_outdated, self.directory.names()))

    def _is_outdated(self, name: str) -> bool:
        if not name.endswith(".program"):
            return False
        try:
            with open(self.directory.descriptor(name), "rb") as file:
                return has_another_version(file.read(1024))
        except OSError:
            return False

    def save(self, entry: Entry, content: np.ndarray | None) -> None:
        """Write an entry, and `content`, its file of weights, unless that is stored already."""
        if entry.weights_file is None or content is None:
            self.directory.write(entry.file, pack(entry))
            return
        if not self._holds(entry):
            self.directory.write(entry.weights_file, [content.data])
        self.directory.write(entry.file, pack(entry))
        if self.directory.size(entry.weights_file) != content.nbytes:
            # Another process pruned it while no stored program referred to it.
            self.directory.write(entry.weights_file, [content.data])

    def _holds(self, entry: Entry) -> bool:
        try:
            self.weights(entry)
        except (EntryError, OSError):
            return False
        return True

    def weights(self, entry: Entry) -> dict[str, np.ndarray]:
        """The bytes of each weight in the entry's file of weights, by digest."""
        return weights.read(self.directory, entry)


def _refused(error: OSError) -> EntryError:
    """Permanent for links, special files and other users' files; temporary for disk errors."""
    is_permanent = error.errno in (None, errno.ELOOP, errno.ENXIO)
    return EntryError(str(error)) if is_permanent else UncheckedError(str(error))


def stored_weights(
    arrays: Sequence[np.ndarray], constants: Mapping[str, int]
) -> tuple[StoredWeight, ...]:
    """The records of a program's arguments, from their elements.

    `constants` are tensors of the model by the digests of their elements; these are not written.
    """
    found = zip(array_digests(arrays), arrays, strict=True)
    return tuple(StoredWeight(d, a.dtype, a.shape, constants.get(d)) for d, a in found)
