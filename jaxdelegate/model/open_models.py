"""Models that are open in this process: equal files are one Model, which is read once."""

import os
import threading
import weakref
from collections.abc import Hashable, MutableMapping

import numpy as np

from jaxdelegate.model.files import READ_BYTES
from jaxdelegate.model.records import Model, read_model
from jaxdelegate.model.source import ModelSource, Source, open_source
from jaxdelegate.op_lowering.options import custom_options_version

_LOCK = threading.Lock()
_OPEN: MutableMapping[Hashable, Model] = weakref.WeakValueDictionary()


def open_model(source: ModelSource | Source) -> Model:
    """The Model of a file or of its content: the open one if there is one, else read now.

    What the process keeps with a model (plans, programs, weights) is shared by all that open it. A
    file counts as equal if its path and its content are; of one that is mapped, its path, inode,
    size and times of change.
    """
    opened = source if isinstance(source, Source) else open_source(source)
    key = _key(opened)
    known = None if key is None else _OPEN.get(key)
    if known is not None and _is_equal(known.content, opened.content):
        return known
    model = read_model(opened)
    if key is None or model.external_buffer_groups:  # those files may change
        return model
    with _LOCK:  # two threads may have read it at the same time
        known = _OPEN.get(key)
        if known is None or not _is_equal(known.content, model.content):
            known = _OPEN[key] = model
    return known


def _in_child() -> None:
    global _LOCK  # noqa: PLW0603 (a thread of the parent may have held it)
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_in_child)


def _key(source: Source) -> Hashable | None:
    """None: the content can change without notice."""
    where = source.name, custom_options_version()
    if source.file is not None and source.file.is_mapped:
        return *where, source.file.identity
    view = source.content
    if source.file is None and not isinstance(view.obj, bytes):
        return None
    return *where, hash(view)


def _is_equal(content: memoryview, other: memoryview) -> bool:
    """Whether the bytes are equal; those of a mapped file are if its key is."""
    if len(content) > READ_BYTES:
        return len(content) == len(other)
    return np.array_equal(np.frombuffer(content, np.uint8), np.frombuffer(other, np.uint8))
