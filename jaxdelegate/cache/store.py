"""Entries and weights in a private directory. Knows no jax: the files, not what they run on."""

import contextlib
import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.entry import Entry, EntryError, StoredWeight, file_of, pack, unpack
from jaxdelegate.cache.key import Key, array_bytes, array_digests
from jaxdelegate.digests import read_into

_ALIGNMENT = 64  # bytes; XLA:CPU takes over host arrays that begin at multiples of them


class ProgramStore:
    """What is stored, by key. Weights have files of their own: shapes of a model share them."""

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
            raise EntryError(f"it is another program's: {', '.join(moved)} differ")
        return entry

    def latest(self, family: str) -> Entry | None:
        """The entry of a family of keys that was used last; None: none is there that is sound."""
        try:
            names = [n for n in self.directory.names() if n.startswith(family)]
            name = max(names, key=self.directory.modified, default=None)
            return None if name is None else unpack(self.directory.read(name))
        except (EntryError, OSError):
            return None

    def nearest(self, key: Key) -> list[str] | None:
        """Which parts differ from the entry that shares most of them; None: nothing is stored."""
        moved = (entry.key.moved(key) for _, entry in self.entries() if isinstance(entry, Entry))
        return min(moved, key=len, default=None)

    def entries(self) -> Iterator[tuple[str, Entry | EntryError]]:
        """Every file of programs by name: its entry, or why it has none."""
        for name in self.directory.names():
            if name.endswith(".program"):
                try:
                    entry = unpack(self.directory.read(name))
                    right = EntryError(f"it belongs under the name {entry.file}")
                    yield name, entry if entry.file == name else right
                except EntryError as error:
                    yield name, error
                except OSError as error:
                    yield name, EntryError(str(error))

    def save(self, entry: Entry, arrays: Mapping[str, np.ndarray]) -> None:
        """Write an entry, and those arrays, by digest, that are not there yet.

        Raises:
            OSError: the disk is full, or the directory cannot be written to.
        """
        for weight in entry.weights:
            if weight.tensor is None and not self._holds(weight):
                self.directory.write(weight.file, [array_bytes(arrays[weight.digest])])
        self.directory.write(entry.file, pack(entry))

    def _holds(self, weight: StoredWeight) -> bool:
        try:
            self.weights([weight])
        except (EntryError, OSError):
            return False
        return True

    def weights(self, weights: Sequence[StoredWeight]) -> list[np.ndarray]:
        """Read files of weights, together, into memory that XLA:CPU can use as it is.

        They are not mapped: what was checked must be what is used.

        Raises:
            EntryError: one of them is damaged or gone; names it.
            OSError: somebody else could have written it.
        """
        buffers = _aligned([math.prod(w.shape) * w.dtype.itemsize for w in weights])
        with contextlib.ExitStack() as stack:
            files = [
                self._opened(w, b.nbytes, stack) for w, b in zip(weights, buffers, strict=True)
            ]
            digests = read_into(files, [buffer.data for buffer in buffers])
        for weight, digest in zip(weights, digests, strict=True):
            if weight.digest != digest:
                raise EntryError(f"the SHA-256 of {weight.file} is wrong")
        return [
            buffer.view(weight.dtype).reshape(weight.shape)
            for weight, buffer in zip(weights, buffers, strict=True)
        ]

    def _opened(self, weight: StoredWeight, nbytes: int, stack: contextlib.ExitStack) -> int:
        try:
            file = self.directory.descriptor(weight.file)
        except FileNotFoundError:
            raise EntryError(f"{weight.file} is gone") from None
        stack.callback(os.close, file)
        if (size := os.fstat(file).st_size) != nbytes:
            raise EntryError(f"{weight.file} has {size} bytes instead of {nbytes}")
        return file


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


def _aligned(sizes: Sequence[int]) -> list[np.ndarray]:
    """Pieces of one allocation, which the kernel provides in large pages where it has them."""
    padded = [-(-nbytes // _ALIGNMENT) * _ALIGNMENT for nbytes in sizes]
    raw = np.empty(sum(padded) + _ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % _ALIGNMENT
    starts = itertools.accumulate(padded, initial=first)
    return [raw[start : start + nbytes] for start, nbytes in zip(starts, sizes, strict=False)]
