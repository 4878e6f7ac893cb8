"""Writes files atomically: under a temporary name, flushed, then renamed."""

import os
import stat
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import BinaryIO, NoReturn

from jaxdelegate.errors import ModelError
from jaxdelegate.model.editing import Edited
from jaxdelegate.model.files import below, first_clash, open_file, opened_folder
from jaxdelegate.model.records import Model, declared_groups
from jaxdelegate.model.source import open_source

_CHUNK = 1 << 20
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_files(path: str | os.PathLike[str], model: Model, edited: Edited) -> None:
    """Write a model, and the files next to it that it uses.

    Files that are open or mapped do not change, since new files replace them, also a link at
    `path`, whose target stays as it is. `edited` is a version of `model`. A ModelError if files
    next to it belong to another model, or are links.
    """
    target = os.path.abspath(os.fsdecode(path))
    model.origin.check_unchanged()
    with _folder_of(target) as folder:
        external = _ExternalFiles(folder, target, model)
        groups = {name: external.content(name, edited) for name in model.external_buffer_groups}
        for name, content in groups.items():
            if content is not None:
                with below(folder, name, make=True) as (inner, last):
                    _write(inner, last, content)
        _write(folder, os.path.basename(target), edited.content)


class _ExternalFiles:
    def __init__(self, folder: int, path: str, model: Model) -> None:
        self._folder, self._path, self._model = folder, path, model
        self._directory, own = os.path.split(path)
        origin = model.origin.folder
        self._is_same = origin is not None and _is_same_path(origin.path, self._directory)
        self._is_own = self._is_same and _is_same_path(model.source, path)
        clash = first_clash([*model.external_buffer_groups, own])
        if clash is not None:
            group = model.external_buffer_groups[clash[0]]
            raise ModelError(
                f"save: {path!r}: the model has weights in a file {group!r} next to it; save it "
                "under another name"
            )

    def content(self, group: str, edited: Edited) -> memoryview | bytes | None:
        """The content of a file to be written next to the model; None: it has this content."""
        origin = self._model.origin.folder
        assert origin is not None
        content = edited.groups.get(group, origin.content(group))
        try:
            with below(self._folder, group) as (folder, last):
                file = open_file(folder, last)
        except FileNotFoundError:
            return content
        except OSError as error:
            self._refuse(group, error.strerror or str(error))
        if _has_content(file, content):
            return None
        if not self._is_own and (self._is_same or not self._has_declared(group)):
            self._refuse(
                group,
                "the model has weights in a file of this name, but that file exists and belongs to "
                "another model or to none; save it in another directory",
            )
        return content

    def _has_declared(self, group: str) -> bool:
        """Whether the file to be replaced is a model that declares a file of this name."""
        try:
            return group in declared_groups(open_source(self._path))
        except ModelError:
            return False

    def _refuse(self, group: str, why: str) -> NoReturn:
        raise ModelError(f"save: {os.path.join(self._directory, group)!r}: {why}")


def _is_same_path(a: str, b: str) -> bool:
    return os.path.realpath(a) == os.path.realpath(b)


def _has_content(file: int, content: bytes | memoryview) -> bool:
    view = memoryview(content)
    with open(file, "rb") as stream:
        state = os.fstat(file)
        if not stat.S_ISREG(state.st_mode) or state.st_size != len(view):
            return False
        at = 0
        while part := stream.read(_CHUNK):
            if part != view[at : at + len(part)]:
                return False
            at += len(part)
    return at == len(view)


def write_file(path: str, write: Callable[[BinaryIO], object]) -> None:
    """Write one file, which replaces the one at `path`, also a link.

    Args:
        path: the file.
        write: writes its content to a file that is open for reading, too.
    """
    with _folder_of(os.path.abspath(path)) as folder:
        _write_by(folder, os.path.basename(path), write)


def _folder_of(path: str) -> AbstractContextManager[int]:
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        raise FileNotFoundError(f"save: {parent!r}: no such folder; create it first")
    return opened_folder(parent)


def _write(folder: int, name: str, content: bytes | memoryview) -> None:
    _write_by(folder, name, lambda file: file.write(content))


def _write_by(folder: int, name: str, write: Callable[[BinaryIO], object]) -> None:
    temporary = f".writing-{uuid.uuid4().hex}"
    file = os.open(temporary, _NEW_FILE, 0o666, dir_fd=folder)
    try:
        with open(file, "w+b") as stream:
            write(stream)
            stream.flush()
            with suppress(OSError):
                before = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if not stat.S_ISLNK(before.st_mode):  # a link has no permissions of its own
                    os.fchmod(file, stat.S_IMODE(before.st_mode) & 0o777)
            os.fsync(file)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
