"""The source of a model's bytes: its file and the files next to it, or memory."""

import dataclasses
import os
from typing import TypeAlias

from jaxdelegate.errors import ModelError
from jaxdelegate.model import wrong_files
from jaxdelegate.model.files import FileContent, Folder, NotRegularError

ModelSource: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview


@dataclasses.dataclass(frozen=True)
class Source:
    """A model's bytes and where they come from."""

    name: str  # for messages: its path, or "<bytes>"
    content: memoryview  # read-only
    folder: Folder | None = None  # the files next to it; None: it is from memory
    file: FileContent | None = None  # of `content`; None: it is from memory

    @property
    def is_mapped(self) -> bool:
        """Whether any of its files is mapped and can change."""
        return any(part is not None and part.is_mapped for part in (self.file, self.folder))

    def check_unchanged(self) -> None:
        """A ModelError if mapped files have changed since they were opened."""
        if self.file is not None:
            self.file.check_unchanged()
        if self.folder is not None:
            self.folder.check_unchanged()


def open_source(source: ModelSource) -> Source:
    """Open a file, or view bytes.

    A link is followed, but the folder is that of the link. A ModelError if the file is missing or
    not a regular file, or the memory is not contiguous; a TypeError for another object.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return Source("<bytes>", _view(source))
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            "expected the path of a .tflite file, or its content as bytes, got "
            f"{type(source).__name__}{_remedy(source)}"
        )
    path = os.fsdecode(source)
    file = _opened(path)
    return Source(path, file.content, Folder(os.path.dirname(os.path.abspath(path))), file)


def _remedy(source: object) -> str:
    remedies = {"read": "pass its .read()", "tobytes": "pass its .tobytes()"}
    found = [what for name, what in remedies.items() if hasattr(source, name)]
    return f"; {found[0]}" if found else ""


def _opened(path: str) -> FileContent:
    try:
        # O_NONBLOCK: opening a pipe must not block.
        return FileContent(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), path)
    except NotRegularError as error:
        why = wrong_files.folder(path) if os.path.isdir(path) else str(error)
        raise ModelError(f"Could not open {path!r}: {why}") from error
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
