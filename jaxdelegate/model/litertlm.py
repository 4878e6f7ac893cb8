"""The header of a `.litertlm` bundle: where its models, tokenizers and metadata are.

Format: schema/core/litertlm_header_schema.fbs of LiteRT-LM. The magic number and three uint32 of
the version are followed by the header's end (uint64 at byte 24) and a flatbuffer at byte 32.
Sections start at multiples of 16 KiB.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import BinaryIO

from jaxdelegate.errors import ModelError
from jaxdelegate.model.flatbuffer import UINT8, UINT64, Flatbuffer, Table, layout
from jaxdelegate.model.sections import (
    BINARY,
    EMBEDDING_METADATA,
    EXECUTOR_METADATA,
    HF_TOKENIZER,
    LLM_METADATA,
    MAGIC,
    SP_TOKENIZER,
    TFLITE_MODEL,
    TFLITE_WEIGHTS,
    Section,
    Value,
    check_count,
    check_sections,
    moved,
    part_name,
    with_different_names,
)
from jaxdelegate.text import printable

_MAJOR_VERSION = 1
_START = 32  # of the flatbuffer
_MOST_HEADER_BYTES = 1 << 20
_DEFAULT_MODEL = "prefill_decode"  # LiteRT-LM's meaning of a model without a type

_LAYOUT = layout(
    {
        "LiteRTLMMetaData": "system_metadata section_metadata",
        "SystemMetadata": "entries",
        "SectionMetadata": "objects",
        "SectionObject": "items begin_offset end_offset data_type",
        "KeyValuePair": "key value_type value",
        "Value": "value",
    }
)
_TYPES = {
    1: BINARY,
    3: TFLITE_MODEL,
    4: SP_TOKENIZER,
    5: LLM_METADATA,
    6: HF_TOKENIZER,
    7: TFLITE_WEIGHTS,
    8: EMBEDDING_METADATA,
    9: EXECUTOR_METADATA,
    10: "TtsMetadataProto",
    11: "AsrMetadataProto",
}
# Members of the union VData.
_BOOL, _STRING = 8, 9
_NUMBERS = {
    n: struct.Struct(f"<{code}")
    for n, code in {
        1: "B", 2: "b", 3: "H", 4: "h", 5: "I", 6: "i", 7: "f", 8: "B", 10: "Q", 11: "q", 12: "d",
    }.items()
}  # fmt: skip


def version(content: memoryview) -> str:
    """The format's version, for example "1.7.0"."""
    return ".".join(map(str, struct.unpack_from("<III", content, len(MAGIC))))


def read_header(content: memoryview, file: str) -> tuple[tuple[Section, ...], Mapping[str, Value]]:
    """The sections, and the key-value pairs of the whole bundle.

    Args:
        content: the file, which starts with `MAGIC`.
        file: its name, for messages.

    Raises:
        ModelError: the header is damaged, or a section is not within the file.
    """
    end = _header_end(content, file)
    root = _root(content[_START:end], file)
    objects = _objects(root)
    check_count(len(objects), file)
    sections = with_different_names(map(_section, objects))
    check_sections(sections, file, end, len(content))
    system = root.table("system_metadata", "SystemMetadata")
    entries = [] if system is None else system.tables("entries", "KeyValuePair")
    return sections, _items(entries)


def write(
    file: BinaryIO,
    content: memoryview,
    name: str,
    sections: Sequence[Section],
    new: Mapping[str, memoryview],
) -> None:
    """Write a bundle with other data in some sections.

    Its header differs in the places of sections only.

    Args:
        file: to which it is written.
        content: the bundle.
        name: its name, for messages.
        sections: of `read_header`.
        new: data by the name of their section.
    """
    start = _header_end(content, name)
    header, pieces, shift = bytearray(content[:start]), list[bytes | memoryview](), 0
    objects = _objects(_root(content[_START:start], name))
    pairs = zip(sections, objects, strict=True)
    order = sorted(pairs, key=lambda pair: (pair[0].offset, pair[0].size))
    begins = [*(section.offset for section, _ in order), len(content)]
    pieces.append(content[start : begins[0]])
    for (section, table), following in zip(order, begins[1:], strict=True):
        begin, old_end = section.offset, section.offset + section.size
        data = new.get(section.name, content[begin:old_end])
        places = {"begin_offset": begin + shift, "end_offset": begin + shift + len(data)}
        for field, value in places.items():
            UINT64.pack_into(header, _START + table.place(field), value)
        filler: bytes | memoryview = content[old_end:following]
        if section.name in new and following < len(content):
            more = moved(len(data), following - begin)
            filler = bytes(following - begin + more - len(data))
            shift += more
        pieces += [data, filler]
    file.writelines([header, *pieces])


def _root(header: memoryview, file: str) -> Table:
    return Flatbuffer(header, f"{file}, header", _LAYOUT).root("LiteRTLMMetaData")


def _objects(root: Table) -> list[Table]:
    table = root.table("section_metadata", "SectionMetadata")
    return [] if table is None else table.tables("objects", "SectionObject")


def _header_end(content: memoryview, file: str) -> int:
    if len(content) < _START + 8:
        raise ModelError(
            f"{printable(file)}: header: a LiteRT-LM bundle has at least {_START + 8} bytes, got "
            f"{len(content)}: the file is truncated (download or copy it again)"
        )
    if version(content).split(".")[0] != str(_MAJOR_VERSION):
        raise ModelError(
            f"{printable(file)}: header: this version reads LiteRT-LM bundles of version "
            f"{_MAJOR_VERSION}, got {version(content)}"
        )
    end: int = UINT64.unpack_from(content, 24)[0]
    most = min(len(content), _START + _MOST_HEADER_BYTES)
    if not _START + 8 <= end <= most:
        raise ModelError(
            f"{printable(file)}: header: must end between bytes {_START + 8} and {most}, got "
            f"{end}: the file is truncated (download or copy it again) or damaged"
        )
    return end


def _section(table: Table) -> Section:
    number = table.scalar("data_type", UINT8)
    kind = _TYPES.get(number, f"type {number}")
    items = _items(table.tables("items", "KeyValuePair"))
    # LiteRT-LM compares this key in lower case.
    given = next((v for key, v in items.items() if key.lower() == "model_type"), None)
    model_type = part_name(given) if isinstance(given, str) else ""
    if kind == TFLITE_MODEL:
        model_type = name = model_type or _DEFAULT_MODEL
    else:
        name = f"{kind}.{model_type}" if model_type else kind
    begin, end = (table.scalar(f, UINT64) for f in ("begin_offset", "end_offset"))
    return Section(name, kind, model_type, begin, end - begin, items)


def _items(tables: Iterable[Table]) -> Mapping[str, Value]:
    return MappingProxyType({table.string("key") or "": _value(table) for table in tables})


def _value(pair: Table) -> Value:
    kind, value = pair.scalar("value_type", UINT8), pair.table("value", "Value")
    if value is None:
        return None
    if kind == _STRING:
        return value.string("value")
    if kind not in _NUMBERS:
        return None
    number: Value = value.scalar("value", _NUMBERS[kind])
    return bool(number) if kind == _BOOL else number
