"""Where a model's bytes come from: files, mapped and not copied, or memory."""

import dataclasses
import mmap
import os
import stat
from typing import TypeAlias

from jaxdelegate.errors import ModelError
from jaxdelegate.model import wrong_files

ModelSource: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview


@dataclasses.dataclass(frozen=True)
class Source:
    """A file's content, its name for messages, and its directory (None: it came from memory)."""

    name: str
    content: memoryview
    directory: str | None


def open_source(source: ModelSource) -> Source:
    """Map the file that `source` names, or view the bytes that it is; neither is copied.

    Raises:
        ModelError: there is no such file, it is no regular file, or the memory is not contiguous.
        TypeError: neither a path nor bytes.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return Source("<bytes>", _view(source), None)
    path = os.fsdecode(source)
    return Source(path, map_file(path), os.path.dirname(os.path.abspath(path)))


def map_file(path: str) -> memoryview:
    """A file's content as read-only shared memory; views keep the mapping alive.

    Raises:
        ModelError: it cannot be opened, or is no regular file.
    """
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise ModelError(f"Could not open {path!r}: {wrong_files.folder(path)}")
        if not stat.S_ISREG(mode):  # a pipe would block
            raise ModelError(f"Could not open {path!r}: not a regular file")
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:  # nothing to map
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise ModelError(f"Could not open {path!r}: {error.strerror or error}") from error
    except ValueError as error:  # a zero byte in the path
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"Could not open {path!r}: {error}") from error


def _view(source: bytes | bytearray | memoryview) -> memoryview:
    view = memoryview(source)
    if not view.c_contiguous:
        raise ModelError("<bytes>: the memory must be contiguous, got strides")
    return view.cast("B").toreadonly()
