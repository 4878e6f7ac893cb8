"""Files that appear whole or not at all: written under another name, flushed, renamed."""

import filecmp
import os
import uuid
from contextlib import suppress

from jaxdelegate.errors import ModelError
from jaxdelegate.model.editing import Edited, directory_of
from jaxdelegate.model.records import Model
from jaxdelegate.model.source import map_file


def write_files(path: str | os.PathLike[str], model: Model, edited: Edited) -> None:
    """Write a model, and the files that belong next to it.

    What was mapped stays as it was: it lives on without a name.

    Args:
        path: where to; a link is followed.
        model: from which the content was made.
        edited: the content.

    Raises:
        ModelError: files next to it belong to another model.
        OSError: there is no such directory, it cannot be written to, or the disk is full.
    """
    target = os.path.realpath(os.fsdecode(path))
    if not os.path.isdir(os.path.dirname(target)):
        raise FileNotFoundError(f"save: {os.path.dirname(target)!r}: no such folder; make it first")
    for source, group, content in _groups(model, edited, target):
        os.makedirs(os.path.dirname(group), exist_ok=True)  # a group's name may have folders
        _write(group, map_file(source) if content is None else content)
    _write(target, edited.content)


def _groups(model: Model, edited: Edited, target: str) -> list[tuple[str, str, bytes | None]]:
    """Files to be written next to the model: source, target, and the content if it changes."""
    before = directory_of(model)
    if before is None:
        return []
    after = os.path.dirname(target)
    is_own = os.path.realpath(model.source) == target
    found = []
    for name in model.external_buffer_groups:
        source, group = os.path.join(before, name), os.path.join(after, name)
        content = edited.groups.get(name)
        if content is None and (not os.path.exists(source) or _is_same(source, group)):
            continue
        if os.path.exists(group) and not is_own and not os.path.exists(target):
            _refuse(group)
        if (
            os.path.exists(group)
            and os.path.realpath(source) == os.path.realpath(group)
            and not is_own
        ):
            _refuse(group)
        found.append((source, group, content))
    return found


def _is_same(a: str, b: str) -> bool:
    return os.path.exists(b) and filecmp.cmp(a, b, shallow=False)


def _refuse(group: str) -> None:
    raise ModelError(
        f"save: {group!r} holds the weights of another model, and this one has a file of the same "
        "name; save it in another directory"
    )


def _write(path: str, content: bytes | memoryview) -> None:
    temporary = f"{path}.writing-{uuid.uuid4().hex[:8]}"
    try:
        with open(temporary, "xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        with suppress(OSError):
            os.chmod(temporary, os.stat(path).st_mode)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
