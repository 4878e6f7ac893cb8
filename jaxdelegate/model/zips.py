"""The members of a ZIP archive of models: MediaPipe's `.task` bundles, and those of its tasks.

Members that are stored without compression are read where they are in the file. MediaPipe's
archives may contain archives, whose members have names such as `inner.task!model.tflite`.
"""

import dataclasses
import io
import itertools
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import BinaryIO

from jaxdelegate.errors import ModelError
from jaxdelegate.model import archive, sections
from jaxdelegate.text import printable

_LOCAL = struct.Struct("<4s22xHH")  # the signature, and the sizes of the name and of extra fields
_MOST_DIRECTORY_BYTES = 1 << 20
_DEEPEST = 3
_ENCRYPTED, _SIZES_FOLLOW, _UTF8 = 1, 8, 0x800  # bits of the flags
_MOST_MEMBER_BYTES = 0xFFFFFFFE  # whose size has a place in every header
# The names that MediaPipe's bundler of language models gives.
_TYPES = {"TOKENIZER_MODEL": sections.SP_TOKENIZER, "METADATA": sections.LLM_METADATA}
_MODEL_SUFFIXES = (".tflite", ".lite")
# What zipfile raises for damaged archives, in addition.
_ERRORS = (*archive.ERRORS, struct.error, zipfile.LargeZipFile)


class _Directory(archive.MemoryFile):
    """A file of which no more than a directory is read at once."""

    def read(self, size: int = -1) -> bytes:
        if size > _MOST_DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"its directory has more than {_MOST_DIRECTORY_BYTES} bytes")
        return super().read(size) or b""


def read_members(
    content: memoryview, file: str, deepest: int = _DEEPEST
) -> tuple[sections.Section, ...]:
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
        sections.check_count(len(entries), file)
        found = [_member(content, e) for e in entries if not e.filename.endswith("/")]
    except ModelError:
        raise
    except _ERRORS as error:
        raise ModelError(
            f"{printable(file)}: ZIP archive: {error}: the file is truncated (download or copy it "
            "again) or damaged"
        ) from error
    sections.check_sections(found, file, 0, len(content))
    return sections.with_different_names(_with_inner(found, content, file, deepest))


def _member(content: memoryview, entry: zipfile.ZipInfo) -> sections.Section:
    name, size = printable(entry.filename), entry.compress_size
    if entry.flag_bits & _ENCRYPTED:
        raise zipfile.BadZipFile(f"member {name!r} is encrypted")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise zipfile.BadZipFile(
            f"member {name!r} must be stored or deflated, got method {entry.compress_type}"
        )
    start = _data_start(content, entry)
    is_stored = entry.compress_type == zipfile.ZIP_STORED
    if is_stored and size != entry.file_size:
        raise zipfile.BadZipFile(f"member {name!r} is stored but has two sizes")
    beginning = bytes(content[start : start + 8]) if is_stored else b""
    is_model = entry.filename.lower().endswith(_MODEL_SUFFIXES) or beginning[4:] == b"TFL3"
    model_type = (
        sections.part_name(entry.filename) if sections.is_model_type(entry.filename) else ""
    )
    other = _TYPES.get(entry.filename, sections.BINARY)
    return sections.Section(
        name=model_type or entry.filename,
        type=sections.TFLITE_MODEL if is_model or model_type else other,
        model_type=model_type,
        offset=start,
        size=size,
        items=MappingProxyType({}),
        unpacked_size=None if is_stored else entry.file_size,
        crc=entry.CRC,
    )


def _data_start(content: memoryview, entry: zipfile.ZipInfo) -> int:
    at = entry.header_offset
    signature, *lengths = _LOCAL.unpack_from(content, at)
    if at < 0 or signature != sections.ZIP_MEMBER:
        name = printable(entry.filename)
        raise zipfile.BadZipFile(f"member {name!r} must have a header at byte {at}")
    return int(at + _LOCAL.size + sum(lengths))


def _with_inner(
    members: list[sections.Section], content: memoryview, file: str, deepest: int
) -> Iterator[sections.Section]:
    for member in members:
        yield member
        inner = content[member.offset : member.offset + member.size]
        if member.unpacked_size is None and deepest > 1 and inner[:4] == sections.ZIP_MEMBER:
            for found in read_members(inner, f"{file}!{member.name}", deepest - 1):
                name, offset = f"{member.name}!{found.name}", member.offset + found.offset
                yield dataclasses.replace(found, name=name, offset=offset)


def write(file: BinaryIO, content: memoryview, name: str, new: Mapping[int, memoryview]) -> None:
    """Write an archive with other data of some members, which are stored without compression.

    All other members are copied with their headers; a member that is an archive is written in the
    same way.

    Args:
        file: to which it is written.
        content: the archive.
        name: its name, for messages.
        new: data by the place of the old data in `content`.

    Raises:
        ModelError: a member cannot be written.
    """
    source = zipfile.ZipFile(_Directory(content))
    entries = sorted(source.infolist(), key=lambda entry: entry.header_offset)
    begins = [*(entry.header_offset for entry in entries), source.start_dir]
    with zipfile.ZipFile(file, "w") as result:
        result.comment = source.comment
        file.write(content[: begins[0]])
        shift = 0
        for entry, (begin, following) in zip(entries, itertools.pairwise(begins), strict=True):
            _check_name(entry, name)
            start = _data_start(content, entry)
            if start + entry.compress_size > following:
                raise ModelError(
                    f"save: {printable(name)}: member {printable(entry.filename)!r} must end where "
                    "the next one or the directory begins: the archive is damaged"
                )
            data = _new_data(content, entry, start, new, name)
            entry.header_offset = begin + shift
            if data is None:
                file.write(content[begin:following])
                continue
            more = sections.moved(len(data), following - start)
            filler = bytes(following - start + more - len(data))
            file.writelines([_stored(content[begin:start], entry, data, name), data, filler])
            shift += more
        result.filelist[:] = source.infolist()
        result.start_dir = file.tell()


def _check_name(entry: zipfile.ZipInfo, file: str) -> None:
    if not entry.filename.isascii() and not entry.flag_bits & _UTF8:
        raise ModelError(
            f"save: {printable(file)}: member {printable(entry.filename)!r}: expected a name in "
            "UTF-8, got one in another encoding: write the archive again"
        )


def _new_data(
    content: memoryview,
    entry: zipfile.ZipInfo,
    start: int,
    new: Mapping[int, memoryview],
    file: str,
) -> memoryview | None:
    """A member's new data; None: it does not change."""
    end = start + entry.compress_size
    inside = {at - start: data for at, data in new.items() if start < at < end}
    if not inside:
        return new.get(start)
    if start in new:
        raise ModelError(
            f"save: {printable(file)}: expected new data for the archive "
            f"{printable(entry.filename)!r} or for its members, got both"
        )
    inner = io.BytesIO()
    write(inner, content[start:end], f"{file}!{entry.filename}", inside)
    return inner.getbuffer()


def _stored(header: memoryview, entry: zipfile.ZipInfo, data: memoryview, file: str) -> bytearray:
    """A member's header, as long as before, for data without compression."""
    if len(data) > _MOST_MEMBER_BYTES:
        raise ModelError(
            f"save: {printable(file)}: member {printable(entry.filename)!r} must have at most "
            f"{_MOST_MEMBER_BYTES} bytes, got {len(data)}"
        )
    entry.flag_bits &= ~_SIZES_FOLLOW
    entry.compress_type, entry.CRC = zipfile.ZIP_STORED, zlib.crc32(data)
    entry.compress_size = entry.file_size = len(data)
    changed = bytearray(header)
    struct.pack_into("<HH", changed, 6, entry.flag_bits, entry.compress_type)
    struct.pack_into("<III", changed, 14, entry.CRC, entry.compress_size, entry.file_size)
    return changed
