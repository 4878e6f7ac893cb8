"""The file of a program's weights whose layout differs from that of the model's constants.

It begins with a head of 64 bytes, so that weights never pass for a stored program, whatever the
file is called. The weights follow in the order of their digests, each at a multiple of 64 bytes.
Programs with the same weights share the file. It is one file, not one per weight: each system call
while loading may have to wait for Python's global lock.
"""

import contextlib
import itertools
import math
import mmap
import os
from collections.abc import Mapping, Sequence

import numpy as np

from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.entry import Entry, EntryError, StoredWeight
from jaxdelegate.digests import algorithm_of, array_bytes, digests, is_known, read_into

_HEAD = np.frombuffer(b"weights of jaxdelegate".ljust(64), np.uint8)
_ALIGNMENT = 64  # bytes; XLA:CPU uses host arrays with this alignment without a copy
_LARGE_PAGE = 2 << 20  # bytes; of x86, and of ARM with base pages of 4 KiB


def file_content(
    weights: Sequence[StoredWeight], arrays: Mapping[str, np.ndarray]
) -> np.ndarray | None:
    """The content to write, uint8 [n]; None: every weight is a constant of the model."""
    places = _places(weights)
    if not places:
        return None
    content = np.zeros(_size(places), np.uint8)
    content[: _HEAD.size] = _HEAD
    for digest, place in places.items():
        content[place] = array_bytes(arrays[digest])
    return content


def content_digest(content: np.ndarray | None) -> str | None:
    """The digest that names the file; None: there is no file."""
    return None if content is None else digests([content.data])[0]


def read(directory: PrivateDirectory, entry: Entry) -> dict[str, np.ndarray]:
    """The bytes of each weight by its digest, uint8 [n], aligned for XLA:CPU.

    The file is read, not mapped, so that it cannot change after the check. An EntryError if it is
    damaged or missing, or cannot be checked, an OSError if another user could have written it.
    """
    name, digest = entry.weights_file, entry.weights_digest
    if name is None or digest is None:
        return {}
    algorithm = algorithm_of(digest)
    if not is_known(algorithm):
        raise EntryError(f"{name} cannot be checked: {algorithm} is not installed here")
    places = _places(entry.weights)
    content = _memory(_size(places))
    file = _opened(directory, name, content.nbytes)
    try:
        (found,) = read_into([file], [content.data], algorithm)
    finally:
        os.close(file)
    if found != digest:
        raise EntryError(f"the digest of {name} is wrong")
    return {digest: content[place] for digest, place in places.items()}


def _places(weights: Sequence[StoredWeight]) -> dict[str, slice]:
    laid_out = {w.digest: w.nbytes for w in weights if w.tensor is None}
    sizes = dict(sorted(laid_out.items()))
    padded = (-(-nbytes // _ALIGNMENT) * _ALIGNMENT for nbytes in sizes.values())
    starts = itertools.accumulate(padded, initial=_HEAD.size)
    found = zip(sizes.items(), starts, strict=False)
    return {digest: slice(start, start + nbytes) for (digest, nbytes), start in found}


def _size(places: Mapping[str, slice]) -> int:
    return int(max(place.stop for place in places.values()))


def _opened(directory: PrivateDirectory, name: str, nbytes: int) -> int:
    try:
        file = directory.descriptor(name)
    except FileNotFoundError:
        raise EntryError(f"the file of its weights, {name}, is missing") from None
    if (size := os.fstat(file).st_size) != nbytes:
        os.close(file)
        raise EntryError(f"{name} has {size} bytes instead of {nbytes}")
    return file


def _memory(nbytes: int) -> np.ndarray:
    """Bytes that begin at a multiple of 64, in large pages if the system supports them.

    Page faults of 4 KiB pages take longer than reading the file.
    """
    unit = _ALIGNMENT if nbytes < _LARGE_PAGE else _LARGE_PAGE
    size = math.ceil(nbytes / unit) * unit
    pages = mmap.mmap(-1, size + unit, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if unit == _LARGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(pages, np.uint8)
    first = -raw.ctypes.data % unit
    return raw[first : first + nbytes]
