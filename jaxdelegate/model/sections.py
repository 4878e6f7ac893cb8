"""Parts of a bundle file: where they are, and checks that all of its formats share."""

import dataclasses
import zlib
from collections.abc import Iterable, Mapping

from jaxdelegate.errors import ModelError
from jaxdelegate.text import printable

MAGIC = b"LITERTLM"
ZIP_MEMBER, _EMPTY_ZIP = b"PK\x03\x04", b"PK\x05\x06"
BEGINNING_BYTES = 8
BLOCK_BYTES = 16 << 10  # sections move by whole blocks, so that each keeps its alignment

_MOST_SECTIONS = 4096
# Compressed parts are unpacked into memory: up to this size, or a size that such data have.
_UNPACKED_BYTES = 64 << 20
_UNPACKED_RATIO = 20

TFLITE_MODEL, TFLITE_WEIGHTS = "TFLiteModel", "TFLiteWeights"
SP_TOKENIZER, HF_TOKENIZER = "SP_Tokenizer", "HF_Tokenizer_Zlib"
LLM_METADATA, BINARY = "LlmMetadataProto", "GenericBinaryData"
EXECUTOR_METADATA, EMBEDDING_METADATA = "ExecutorMetadataProto", "EmbeddingMetadataProto"
_PREFIX = "tf_lite_"

Value = str | int | float | bool | None


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a bundle.

    Attributes:
        name: of a model its part name, which follows `!` in a path; of others their type, or their
            file name in a ZIP archive. Each is different.
        type: in LiteRT-LM's words, for example "TFLiteModel" or "SP_Tokenizer".
        model_type: of a model, or the model that it belongs to: "prefill_decode"; may be empty.
        offset: of its first byte in the file.
        size: in bytes, in the file.
        items: the key-value pairs of its header.
        unpacked_size: in bytes, of a compressed member of a ZIP archive; None: not compressed.
        crc: the CRC-32 of a compressed member.
    """

    name: str
    type: str
    model_type: str
    offset: int
    size: int
    items: Mapping[str, Value]
    unpacked_size: int | None = None
    crc: int = 0


def is_bundle(beginning: bytes | memoryview) -> bool:
    """Whether a file with these first bytes is a bundle, or a damaged one."""
    is_zip = beginning[:4] in (ZIP_MEMBER, _EMPTY_ZIP)
    return beginning == MAGIC or (is_zip and beginning[4:] != b"TFL3")


def part_name(model_type: str) -> str:
    """The name of a model in lower case, without the prefix of LiteRT-LM's model types."""
    return model_type.lower().removeprefix(_PREFIX)


def is_model_type(name: str) -> bool:
    """Whether it is a name that LiteRT-LM gives to models, for example TF_LITE_PREFILL_DECODE."""
    return name.lower().startswith(_PREFIX)


def with_different_names(sections: Iterable[Section]) -> tuple[Section, ...]:
    """The sections; a name that is repeated gets a number, for example "prefill_decode.2"."""
    found: dict[str, Section] = {}
    counts: dict[str, int] = {}
    for section in sections:
        name = section.name
        while name in found:
            counts[section.name] = counts.get(section.name, 1) + 1
            name = f"{section.name}.{counts[section.name]}"
        found[name] = dataclasses.replace(section, name=name)
    return tuple(found.values())


def check_count(count: int, file: str) -> None:
    """Check the number of sections, before they are read."""
    if count > _MOST_SECTIONS:
        raise ModelError(
            f"{printable(file)}: a bundle must have at most {_MOST_SECTIONS} sections, got {count}"
        )


def check_sections(sections: Iterable[Section], file: str, start: int, end: int) -> None:
    """Check that sections are between two offsets of the file, and do not overlap."""
    for section in sorted(sections, key=lambda s: (s.offset, s.size)):
        last = section.offset + section.size
        if section.offset < start or section.size < 0 or last > end:
            raise ModelError(
                f"{printable(file)}: section {printable(section.name)!r}: must be at least at byte "
                f"{start}, after the data before it, and end within the file's {end} bytes, got "
                f"bytes {section.offset} to {last}: the file is truncated (download or copy it "
                "again) or damaged"
            )
        start = last


def moved(size: int, room: int) -> int:
    """By how many bytes what follows a section moves: whole blocks, negative for a shorter one.

    Args:
        size: of the section's new data.
        room: the bytes from the old data's begin to what follows.
    """
    return -((room - size) // BLOCK_BYTES) * BLOCK_BYTES


def inflated(
    data: memoryview, size: int, where: str, *, wbits: int = zlib.MAX_WBITS, crc: int | None = None
) -> bytes:
    """Decompress data that declare a size.

    Args:
        data: compressed by zlib.
        size: bytes that the result must have.
        where: for messages.
        wbits: the header's format, see `zlib.decompressobj`.
        crc: the CRC-32 that the result must have; None: any.

    Raises:
        ModelError: they are damaged, or declare a size that is too large.
    """
    limit = max(_UNPACKED_BYTES, _UNPACKED_RATIO * len(data))
    if size > limit:
        raise ModelError(
            f"{printable(where)}: {len(data)} compressed bytes must unpack to at most {limit}, "
            f"got {size}; store it without compression"
        )
    unpacking = zlib.decompressobj(wbits)
    try:
        unpacked = unpacking.decompress(data, size + 1)
    except zlib.error as error:
        raise ModelError(f"{printable(where)}: damaged compressed data: {error}") from error
    if len(unpacked) != size or not unpacking.eof:
        raise ModelError(
            f"{printable(where)}: must unpack to {size} bytes, got "
            f"{'more' if len(unpacked) > size else len(unpacked)}: it is truncated or damaged"
        )
    if crc not in (None, zlib.crc32(unpacked)):
        raise ModelError(f"{printable(where)}: its checksum differs: it is damaged")
    return unpacked
