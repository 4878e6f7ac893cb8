"""Writes models and other sections into bundles; everything else stays byte for byte.

The new bundle is written next to its place under a temporary name, read again, and renamed. Nothing
is unpacked.
"""

import mmap
import os
from collections.abc import Mapping
from typing import BinaryIO

from jaxdelegate.errors import ModelError
from jaxdelegate.model.containers import Container, read_container
from jaxdelegate.model.editing import Edited
from jaxdelegate.model.files import BundledFiles
from jaxdelegate.model.records import Model, declared_groups, read_model
from jaxdelegate.model.sections import Section
from jaxdelegate.model.source import (
    PART,
    Source,
    begins_as_a_bundle,
    container,
    open_file,
    split_path,
)
from jaxdelegate.model.writing import write_file, write_files
from jaxdelegate.text import printable

_SUFFIXES = (".litertlm", ".task")


def write_model(path: str | os.PathLike[str], model: Model, edited: Edited) -> None:
    """Write a version of a model: to a file, or into the bundle that is at the path.

    As in reading, the path may end with `!` and the name of a model in the bundle, and a bundle
    without a name is its only model. Errors as `write_files` and `save_bundle`.
    """
    if not begins_as_a_bundle(split_path(os.fsdecode(path))[0]):
        _check_new_file(os.fsdecode(path))
        write_files(path, model, edited)
        return
    file, part = open_file(path)
    bundle = container(file)
    model.origin.check_unchanged()
    groups = {name: _group(model, edited, name) for name in model.external_buffer_groups}
    content = memoryview(edited.content)
    source = Source(model.source, content, BundledFiles(model.source, groups))
    save_bundle(file.name, file, bundle, new_model(bundle, bundle.model(part), source))


def _check_new_file(path: str) -> None:
    """A ModelError if a path means a bundle that does not exist, or a model in one."""
    file, is_part, _ = path.partition(PART)
    if file.endswith(_SUFFIXES) and not (is_part and os.path.exists(path)):
        raise ModelError(
            f"save: {printable(file)!r}: expected a bundle that exists: "
            "jaxdelegate.open_bundle(...).save(path, {part: model}) writes a new one"
        )


def _group(model: Model, edited: Edited, name: str) -> memoryview:
    folder = model.origin.folder
    assert folder is not None
    return memoryview(edited.groups[name]) if name in edited.groups else folder.content(name)


def new_model(bundle: Container, section: Section, model: Source) -> dict[str, memoryview]:
    """The new data of sections, by name, for another model: its own, and that of its weights.

    Raises:
        ModelError: it is not a `.tflite`, or has weights for which the bundle has no section.
    """
    read_model(model)
    new = {section.name: model.content}
    sections = bundle.weights_of(section)
    for group in declared_groups(model):
        if group not in sections:
            raise ModelError(
                f"save: {printable(bundle.name)}: the model has weights in a file "
                f"{printable(group)!r}, for which the bundle has no section"
            )
        assert model.folder is not None
        new[sections[group].name] = model.folder.content(group)
    return new


def save_bundle(path: str, file: Source, bundle: Container, new: Mapping[str, memoryview]) -> None:
    """Write a bundle with other data in some sections.

    Args:
        path: the file to write; it may be the bundle's, whose open content does not change.
        file: the bundle's file.
        bundle: its sections.
        new: data by the name of their section.

    Raises:
        ModelError: the bundle's file has changed, or cannot be written with these data.
        OSError: the file cannot be written.
    """
    file.check_unchanged()

    def write(stream: BinaryIO) -> None:
        bundle.write(stream, new)
        stream.flush()
        file.check_unchanged()
        written = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        _confirm(bundle, memoryview(written), new)

    write_file(path, write)


def _confirm(bundle: Container, written: memoryview, new: Mapping[str, memoryview]) -> None:
    """Check that the written bundle has the same sections, and those of the new data their size."""
    sizes: dict[str, int | None] = {name: len(data) for name, data in new.items()}
    for name in new:  # in an archive: the archives around it have any size
        parts = name.split(PART)
        sizes.update(dict.fromkeys((PART.join(parts[:i]) for i in range(1, len(parts))), None))
    again = read_container(written, bundle.name).sections
    pairs = zip(bundle.sections, again, strict=False)
    if len(again) != len(bundle.sections) or not all(_is_as_written(*p, sizes) for p in pairs):
        raise ModelError(
            f"save: {printable(bundle.name)}: the sections of the bundle cannot be changed: their "
            "records are shared, or the new data are an archive"
        )


def _is_as_written(before: Section, after: Section, sizes: Mapping[str, int | None]) -> bool:
    kept = [(s.name, s.type, s.model_type, dict(s.items)) for s in (before, after)]
    if before.name in sizes:
        is_good = sizes[before.name] in (None, after.size)
    else:
        old, new = ((s.size, s.unpacked_size, s.crc) for s in (before, after))
        is_good = old == new
    return is_good and kept[0] == kept[1]
