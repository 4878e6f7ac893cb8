"""The members of a ZIP archive of models: MediaPipe's `.task` bundles, and those of its tasks.

Members that are stored without compression are read where they are in the file. MediaPipe's
archives may contain archives, whose members have names such as `inner.task!model.tflite`.
"""

import dataclasses
import struct
import zipfile
from collections.abc import Iterator
from types import MappingProxyType

from jaxdelegate.errors import ModelError
from jaxdelegate.model import archive
from jaxdelegate.model.sections import (
    BINARY,
    LLM_METADATA,
    SP_TOKENIZER,
    TFLITE_MODEL,
    ZIP_MEMBER,
    Section,
    check_count,
    check_sections,
    is_model_type,
    part_name,
    with_different_names,
)
from jaxdelegate.text import printable

_LOCAL = struct.Struct("<4s22xHH")  # the signature, and the sizes of the name and of extra fields
_MOST_DIRECTORY_BYTES = 1 << 20
_DEEPEST = 3
_ENCRYPTED = 1  # a bit of the flags
# The names that MediaPipe's bundler of language models gives.
_TYPES = {"TOKENIZER_MODEL": SP_TOKENIZER, "METADATA": LLM_METADATA}
_MODEL_SUFFIXES = (".tflite", ".lite")
# What zipfile raises for damaged archives, in addition.
_ERRORS = (*archive.ERRORS, struct.error, zipfile.LargeZipFile)


class _Directory(archive.MemoryFile):
    """A file of which no more than a directory is read at once."""

    def read(self, size: int = -1) -> bytes:
        if size > _MOST_DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"its directory has more than {_MOST_DIRECTORY_BYTES} bytes")
        return super().read(size) or b""


def read_members(content: memoryview, file: str, deepest: int = _DEEPEST) -> tuple[Section, ...]:
    """The members of an archive, and of uncompressed archives in it.

    Args:
        content: the archive.
        file: its name, for messages.
        deepest: how many archives may be inside each other.

    Raises:
        ModelError: the archive is damaged, or a member is encrypted.
    """
    try:
        entries = zipfile.ZipFile(_Directory(content)).infolist()
        check_count(len(entries), file)
        found = [_member(content, e) for e in entries if not e.filename.endswith("/")]
    except ModelError:
        raise
    except _ERRORS as error:
        raise ModelError(
            f"{printable(file)}: ZIP archive: {error}: the file is truncated (download or copy it "
            "again) or damaged"
        ) from error
    check_sections(found, file, 0, len(content))
    return with_different_names(_with_inner(found, content, file, deepest))


def _member(content: memoryview, entry: zipfile.ZipInfo) -> Section:
    name, at, size = printable(entry.filename), entry.header_offset, entry.compress_size
    if entry.flag_bits & _ENCRYPTED:
        raise zipfile.BadZipFile(f"member {name!r} is encrypted")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise zipfile.BadZipFile(
            f"member {name!r} must be stored or deflated, got method {entry.compress_type}"
        )
    signature, *lengths = _LOCAL.unpack_from(content, at)
    if at < 0 or signature != ZIP_MEMBER:
        raise zipfile.BadZipFile(f"member {name!r} must have a header at byte {at}")
    is_stored = entry.compress_type == zipfile.ZIP_STORED
    if is_stored and size != entry.file_size:
        raise zipfile.BadZipFile(f"member {name!r} is stored but has two sizes")
    start = at + _LOCAL.size + sum(lengths)
    beginning = bytes(content[start : start + 8]) if is_stored else b""
    is_model = entry.filename.lower().endswith(_MODEL_SUFFIXES) or beginning[4:] == b"TFL3"
    model_type = part_name(entry.filename) if is_model_type(entry.filename) else ""
    other = _TYPES.get(entry.filename, BINARY)
    return Section(
        name=model_type or entry.filename,
        type=TFLITE_MODEL if is_model or model_type else other,
        model_type=model_type,
        offset=start,
        size=size,
        items=MappingProxyType({}),
        unpacked_size=None if is_stored else entry.file_size,
        crc=entry.CRC,
    )


def _with_inner(
    members: list[Section], content: memoryview, file: str, deepest: int
) -> Iterator[Section]:
    for member in members:
        yield member
        inner = content[member.offset : member.offset + member.size]
        if member.unpacked_size is None and deepest > 1 and inner[:4] == ZIP_MEMBER:
            for found in read_members(inner, f"{file}!{member.name}", deepest - 1):
                name, offset = f"{member.name}!{found.name}", member.offset + found.offset
                yield dataclasses.replace(found, name=name, offset=offset)
