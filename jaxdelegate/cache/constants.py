"""Digests of a model's constants, which the keys of its programs are made of.

To hash a hundred arrays takes a hundred turns at the interpreter's lock, each of them a wait while
the model is being planned; to hash the file that they lie in takes one. So the digests of what lies
in a file are kept beside the programs under the digest of the whole, of which they stay true.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import Future

import numpy as np

from jaxdelegate.cache.background import Start, in_background
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.key import array_digests
from jaxdelegate.digests import algorithm_of, digests

SUFFIX = ".constants"

_Place = tuple[int, int]  # where in the file, and how many bytes


class FileDigests:
    """What is known of the bytes of one model's file. Whatever is wrong with it costs time only."""

    def __init__(
        self, directory: PrivateDirectory, content: memoryview, start: Start = in_background
    ) -> None:
        """Begin to hash the whole.

        Args:
            directory: where digests are remembered.
            content: of the file.
            start: starts the call that hashes.
        """
        self._directory = directory
        self._bytes = np.frombuffer(content, np.uint8) if content else np.empty(0, np.uint8)
        self._start = _address(self._bytes)
        self._name = start(lambda: digests([content])[0] + SUFFIX)

    @property
    def is_hashed(self) -> bool:
        """Whether `of` has nothing to wait for."""
        return self._name.done()

    def of(self, arrays: Iterable[np.ndarray]) -> list[str | None]:
        """The digest of each array's elements, in C order; None: nothing is known of it."""
        known = self._remembered()
        places = map(self._place, arrays)
        return [None if place is None else known.get(place) for place in places]

    def keep(self, arrays: Iterable[np.ndarray], found: Iterable[str]) -> None:
        """Remember digests of those arrays that lie in the file, where that can be noted."""
        rows = {
            place: digest
            for place, digest in zip(map(self._place, arrays), found, strict=True)
            if place is not None
        }
        if rows:
            with contextlib.suppress(OSError):
                self._directory.write(self._name.result(), [_packed(self._remembered() | rows)])

    def _remembered(self) -> dict[_Place, str]:
        try:
            return _unpacked(self._directory.read(self._name.result()))
        except (OSError, ValueError, TypeError):
            return {}

    def _place(self, array: np.ndarray) -> _Place | None:
        if array.dtype.hasobject or not array.flags.c_contiguous or not array.nbytes:
            return None
        start = _address(array) - self._start
        is_inside = 0 <= start <= self._bytes.nbytes - array.nbytes
        return (start, array.nbytes) if is_inside else None


class ConstantDigests:
    """Digests of an open model's constants, each made once, in threads."""

    def __init__(self) -> None:
        """Begin empty."""
        self._made: dict[int, tuple[np.ndarray, Future[dict[int, str]]]] = {}

    def begin(self, constants: Mapping[int, np.ndarray], file: FileDigests | None = None) -> None:
        """Begin to hash those that are not known yet.

        Args:
            constants: by tensor.
            file: that some of them lie in.
        """
        new = {i: a for i, a in constants.items() if not self._has(i, a)}
        known = _known_of(new, file) if file is not None and file.is_hashed else {}
        if known:
            found = Future[dict[int, str]]()
            found.set_result(known)
            self._made.update((i, (new.pop(i), found)) for i in known)
        if new:
            made = in_background(_digests_of, new, file)
            self._made.update((i, (array, made)) for i, array in new.items())

    def are_made(self, constants: Mapping[int, np.ndarray]) -> bool:
        """Whether `of` has nothing to wait for."""
        return all(self._has(i, a) and self._made[i][1].done() for i, a in constants.items())

    def of(self, constants: Mapping[int, np.ndarray]) -> dict[int, str]:
        """The digest of each array, by tensor."""
        self.begin(constants)
        made = {i: self._made[i][1] for i in constants}
        found = {future: future.result() for future in made.values()}
        return {i: found[future][i] for i, future in made.items()}

    def _has(self, index: int, array: np.ndarray) -> bool:
        return index in self._made and self._made[index][0] is array


def _known_of(constants: Mapping[int, np.ndarray], file: FileDigests) -> dict[int, str]:
    found = zip(constants, file.of(constants.values()), strict=True)
    return {i: digest for i, digest in found if digest is not None}


def _digests_of(constants: Mapping[int, np.ndarray], file: FileDigests | None) -> dict[int, str]:
    found = {} if file is None else _known_of(constants, file)
    rest = {i: a for i, a in constants.items() if i not in found}
    made = array_digests(list(rest.values()))
    if file is not None:
        file.keep(rest.values(), made)
    return found | dict(zip(rest, made, strict=True))


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _packed(rows: Mapping[_Place, str]) -> bytes:
    text = json.dumps([[*place, digest] for place, digest in sorted(rows.items())]).encode()
    return hashlib.sha256(text).digest() + text


def _unpacked(content: bytes) -> dict[_Place, str]:
    check, text = content[:32], content[32:]
    if hashlib.sha256(text).digest() != check:
        raise ValueError("its SHA-256 is wrong")
    rows = {(int(start), int(nbytes)): str(digest) for start, nbytes, digest in json.loads(text)}
    for digest in rows.values():
        algorithm_of(digest)
    return rows
