"""Files of a model: their content, and the folder that no name in a model can leave.

Files cannot be swapped between a check and their use: folders are kept open, and each part of a
name is looked up in them without following links.
"""

import contextlib
import errno
import itertools
import mmap
import os
import re
import stat
import unicodedata
import weakref
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from jaxdelegate.errors import ModelError
from jaxdelegate.text import printable

READ_BYTES = 64 << 20  # larger files are mapped instead of read
_CHUNK = 1 << 30  # bytes that one call reads
_MAX_NAME_BYTES = 1024
# Saving a model in the folder of a cache must not write machine code from the model into it.
_CACHE_SUFFIXES = (".program", ".start", ".support", ".signatures", ".settings", ".choices")
_DRIVE = re.compile("[A-Za-z]:")


class NotRegularError(OSError):
    """A folder, a pipe or a device instead of a file."""


class FileContent:
    """A file's content as it was when the file was opened; changes are detected.

    Up to `READ_BYTES` it is a copy. A larger file is mapped, so that processes share it and the
    system may drop its pages. A process that writes to such a file changes the content, and one
    that shortens it kills processes that continue to read (SIGBUS). `check_unchanged` detects both
    if it is called before. A file that is replaced by renaming, or removed, keeps its content.

    Attributes:
        content: all bytes, read-only; views keep it alive.
    """

    def __init__(self, file: int, name: str, limit: int | None = None) -> None:
        """Read or map an open file, whose descriptor is closed.

        A file larger than `limit` (None: `READ_BYTES`) is mapped. A ModelError if it was changed
        while it was read, a ValueError if it was shortened before it was mapped.
        """
        self._name = name
        try:
            state = os.fstat(file)
            if not stat.S_ISREG(state.st_mode):
                raise NotRegularError("not a regular file")
            self._state, size = version(state), state.st_size
            # Unlike the time of its last write, that of its last change cannot be set.
            self._identity = (state.st_dev, state.st_ino, *self._state, state.st_ctime_ns)
            self._mapped: int | None = None
            if size <= (READ_BYTES if limit is None else limit):
                self.content = self._read(file, size)
            else:
                self.content = memoryview(mmap.mmap(file, size, access=mmap.ACCESS_READ))
                self._mapped = os.dup(file)
                weakref.finalize(self, os.close, self._mapped)
        finally:
            os.close(file)

    @property
    def is_mapped(self) -> bool:
        return self._mapped is not None

    @property
    def identity(self) -> tuple[int, ...]:
        """Device, inode, size and times of change: equal for the same content of the same file."""
        return self._identity

    def check_unchanged(self) -> None:
        """A ModelError if a mapped file was changed or shortened in place since it was opened."""
        if self._mapped is not None and version(os.fstat(self._mapped)) != self._state:
            self._fail("changed in place while this process had it open: open it again")

    def drop_pages(self, part: memoryview | None = None) -> None:
        """Let go of a mapped file's pages, which count as this process's memory until then.

        `part`: only those of this view of the content; None: all.
        """
        if self._mapped is None or not isinstance(self.content.obj, mmap.mmap):
            return
        if part is None:
            self.content.obj.madvise(mmap.MADV_DONTNEED)
        elif len(part) > 0:
            begin = _address(part) - _address(self.content)
            page = begin // mmap.PAGESIZE * mmap.PAGESIZE
            self.content.obj.madvise(mmap.MADV_DONTNEED, page, begin + len(part) - page)

    def _read(self, file: int, size: int) -> memoryview:
        if size == 0:  # nothing to map
            return memoryview(b"")
        content = memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        done = 0
        while done < size:
            count = os.preadv(file, [content[done : done + _CHUNK]], done)
            if count == 0:
                break
            done += count
        if done < size or version(os.fstat(file)) != self._state:
            self._fail("changed while it was read: read it again")
        return content.toreadonly()

    def _fail(self, what: str) -> None:
        raise ModelError(
            f"{printable(self._name)}: the file was {what}; to replace a file that is in use, "
            "write the new one next to it and rename it (`mv`, os.replace)"
        )


def version(state: os.stat_result) -> tuple[int, int]:
    """Values that change when a file is written."""
    return state.st_size, state.st_mtime_ns


class Folder:
    """The files next to a model. Each is opened once; `READ_BYTES` is the limit for all of them."""

    def __init__(self, path: str) -> None:
        """Nothing is opened yet. Links in `path` are followed."""
        self.path = path
        self._files: dict[str, FileContent] = {}
        self._limit = READ_BYTES

    def content(self, name: str) -> memoryview:
        """The content of a file for whose name `why_not_below` returns None.

        A ModelError if it cannot be opened, is not a regular file, or is reached through a link.
        """
        if name not in self._files:
            self._files[name] = self._opened(name)
        return self._files[name].content

    @property
    def is_mapped(self) -> bool:
        return any(file.is_mapped for file in self._files.values())

    def check_unchanged(self) -> None:
        """See `FileContent.check_unchanged`."""
        for file in self._files.values():
            file.check_unchanged()

    def _opened(self, name: str) -> FileContent:
        path = os.path.join(self.path, name)
        try:
            with opened_folder(self.path) as top, below(top, name) as (folder, last):
                file = FileContent(open_file(folder, last), path, self._limit)
        except ModelError:
            raise
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise ModelError(f"Could not open {path!r}: {why}") from error
        self._limit -= 0 if file.is_mapped else len(file.content)
        return file


class BundledFiles(Folder):
    """The files next to a model in a bundle, which are sections of the bundle."""

    def __init__(self, path: str, contents: Mapping[str, memoryview]) -> None:
        super().__init__(path)
        self._contents = contents

    def content(self, name: str) -> memoryview:
        """The content of a file; a ModelError if the bundle does not contain it."""
        if name not in self._contents:
            there = ", ".join(self._contents) or "none"
            raise ModelError(
                f"{printable(self.path)}: the model has weights in {name!r}, which its bundle must "
                f"contain, got {there}: open the model from a folder with that file"
            )
        return self._contents[name]


def why_not_below(name: str) -> str | None:
    """The rule that the name of a file next to a model violates; None: it is valid."""
    if not 0 < len(os.fsencode(name)) <= _MAX_NAME_BYTES:
        return f"must be 1 to {_MAX_NAME_BYTES} bytes long"
    if "\\" in name or "\0" in name or _DRIVE.match(name):
        return "must have no backslash, no zero byte and no drive"
    if any(not part or part[0] == "." for part in name.split("/")):
        return "must be a path below the model's folder whose parts do not start with a dot"
    if name.casefold().endswith(_CACHE_SUFFIXES):
        return "must not be the name of a file in a cache of compiled programs"
    return None


def first_clash(names: Sequence[str]) -> tuple[int, int] | None:
    """The first two names that may be the same file, or of which one is the other's folder.

    Some file systems ignore case, or the composition of Unicode characters.
    """
    keys = [unicodedata.normalize("NFC", name).casefold().split("/") for name in names]
    order = sorted(range(len(names)), key=keys.__getitem__)
    for i, j in itertools.pairwise(order):  # names that start with a key follow it
        if keys[j][: len(keys[i])] == keys[i]:
            return min(i, j), max(i, j)
    return None


@contextlib.contextmanager
def opened_folder(path: str) -> Iterator[int]:
    """The descriptor of a folder; links are followed."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


@contextlib.contextmanager
def below(top: int, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """The folder that contains a path below an open folder, and the last part of the path.

    `top` and the result are descriptors; `why_not_below` returns None for `name`. An OSError if a
    part is missing, is not a folder, or is a link.
    """
    *parts, last = name.split("/")
    folder = os.dup(top)
    try:
        for part in parts:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=folder)
            inner = _open(folder, part, os.O_RDONLY | os.O_DIRECTORY)
            os.close(folder)
            folder = inner
        yield folder, last
    finally:
        os.close(folder)


def open_file(folder: int, name: str) -> int:
    """The descriptor, which the caller closes."""
    return _open(folder, name, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not block


def _open(folder: int, name: str, flags: int) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR) or not is_link(folder, name):
            raise
        raise OSError(
            errno.ELOOP,
            f"{name!r} is a symbolic link, which could lead anywhere and is not followed; copy the "
            "folder with `cp -rL` (of a Hugging Face cache: `hf download --local-dir`)",
        ) from error


def is_link(folder: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _address(view: memoryview) -> int:
    found: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return found
