"""Damaged and hostile bundles are refused with what, where and what was expected."""

import re
import struct
from pathlib import Path

import pytest

import jaxdelegate as jd
from jaxdelegate.errors import ModelError
from tests.support.bundles import (
    BLOCK,
    TYPES,
    compressed,
    hugging_face_json,
    litertlm,
    model_part,
    multiplier,
    parts,
    zipped,
)

BUNDLE = litertlm(parts())


def patched(content: bytes, at: int, data: bytes) -> bytes:
    return content[:at] + data + content[at + len(data) :]


def spans(*declared: tuple[int, int]) -> bytes:
    return litertlm([(TYPES.GenericBinaryData, {}, b"12345678")] * len(declared), spans=declared)


def with_directory(content: bytes, **fields: int) -> bytes:
    """An archive with other values in the directory entry of its first member."""
    places = {"flags": (8, "<H"), "method": (10, "<H"), "packed": (20, "<I"), "size": (24, "<I")}
    places |= {"crc": (16, "<I"), "offset": (42, "<I")}
    start = content.index(b"PK\x01\x02")
    for name, value in fields.items():
        at, code = places[name]
        content = patched(content, start + at, struct.pack(code, value))
    return content


STORED = zipped({"m.tflite": multiplier()})
DEFLATED = zipped({"m.tflite": multiplier()}, compress=["m.tflite"])
BOMB = zipped({"m.tflite": bytes(100 << 20)}, compress=["m.tflite"])
TWO = zipped({"a.tflite": multiplier(), "b.tflite": multiplier()})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (BUNDLE[:20], "header: a LiteRT-LM bundle has at least 40 bytes, got 20"),
        (BUNDLE[:100], "header: must end between bytes 40 and 100, got"),
        (BUNDLE[:-1], "section 'prefill_decode': must be at least at byte"),
        (patched(BUNDLE, 8, b"\x02"), "reads LiteRT-LM bundles of version 1, got 2.7.0"),
        (patched(BUNDLE, 24, b"\xff" * 8), "got 18446744073709551615"),
        (patched(BUNDLE, 24, bytes(8)), "header: must end between bytes 40 and"),
        (patched(BUNDLE, 32, b"\xff" * 4), "header: LiteRTLMMetaData: must start within"),
        (spans((0, 8)), "must be at least at byte"),
        (spans((BLOCK + 8, BLOCK)), "must be at least at byte"),
        (spans((BLOCK, 1 << 63)), f"bytes {BLOCK} to {1 << 63}: the file is truncated"),
        (spans((BLOCK, 2 * BLOCK), (BLOCK + 8, BLOCK + 16)), "after the data before it"),
        (STORED[:-30], "ZIP archive: File is not a zip file: the file is truncated"),
        (with_directory(STORED, flags=1), "member 'm.tflite' is encrypted"),
        (with_directory(STORED, method=12), "member 'm.tflite' must be stored or deflated, got me"),
        (with_directory(STORED, size=9), "member 'm.tflite' is stored but has two sizes"),
        (with_directory(STORED, size=1 << 30, packed=1 << 30), "section 'm.tflite': must be at "),
        (with_directory(STORED, offset=1), "member 'm.tflite' must have a header at byte 1"),
        (with_directory(STORED, offset=1 << 30), "ZIP archive: "),
        (with_directory(TWO, size=900, packed=900), "after the data before it"),
        (with_directory(DEFLATED, size=99), "m.tflite: must unpack to 99 bytes, got more"),
        (with_directory(DEFLATED, size=9999), "m.tflite: must unpack to 9999 bytes, got "),
        (with_directory(DEFLATED, crc=1), "m.tflite: its checksum differs"),
        (patched(DEFLATED, 50, b"\xff" * 20), "m.tflite: damaged compressed data: "),
        (BOMB, "compressed bytes must unpack to at most 67108864, got 104857600"),
        (zipped({"m.task": STORED[:200], "n.tflite": b""}), "m.task: ZIP archive: "),
    ],
)
def test_a_damaged_bundle_is_refused(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        jd.Interpreter(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_bundle_has_a_limited_number_of_sections() -> None:
    sections = [(TYPES.GenericBinaryData, {}, b"")] * 4097
    with pytest.raises(ModelError, match="must have at most 4096 sections, got 4097"):
        jd.open_bundle(litertlm(sections, spans=[(1 << 19, 1 << 19)] * 4097) + bytes(1 << 19))
    with pytest.raises(ModelError, match="must have at most 4096 sections, got 4097"):
        jd.open_bundle(zipped({str(i): b"" for i in range(4097)}))
    with pytest.raises(ModelError, match="its directory has more than 1048576 bytes"):
        jd.open_bundle(zipped({f"{i:0500d}": b"" for i in range(2100)}))


def test_archives_are_read_to_a_limited_depth() -> None:
    content = multiplier()
    for i in range(5):
        content = zipped({f"{i}.task": content, "m.tflite": multiplier()})
    assert max(name.count("!") for name in jd.open_bundle(content).models) == 2


def sections(kind: int, content: bytes) -> bytes:
    return litertlm([(kind, {}, content)])


@pytest.mark.parametrize(
    ("content", "read", "says"),
    [
        (sections(TYPES.LlmMetadataProto, b"\xff"), "metadata", "expected a message LlmMetadata"),
        (sections(TYPES.LlmMetadataProto, b"\x3a\x01\xff"), "metadata", "damaged data"),  # UTF-8
        (
            sections(TYPES.LlmMetadataProto, bytes((16 << 20) + 1)),
            "metadata",
            "LlmMetadata must have at most 16777216 bytes",
        ),
        (
            sections(TYPES.ExecutorMetadataProto, b"\xff"),
            "executor_metadata",
            "expected a message ExecutorMetadata, got damaged data",
        ),
        (sections(TYPES.SP_Tokenizer, b"\xff"), "tokenizer", "expected a SentencePiece model, got"),
        (sections(TYPES.HF_Tokenizer_Zlib, b"\1"), "tokenizer", "must unpack to 1 bytes, got 0"),
        (sections(TYPES.HF_Tokenizer_Zlib, compressed(b"{}")), "tokenizer", "the JSON of a Hugg"),
        (
            sections(TYPES.HF_Tokenizer_Zlib, compressed(hugging_face_json())[:-9]),
            "tokenizer",
            "it is truncated or damaged",
        ),
    ],
)
def test_a_damaged_section_is_refused_when_it_is_read(content: bytes, read: str, says: str) -> None:
    bundle = jd.open_bundle(content)
    reader = (lambda: bundle.metadata) if read == "metadata" else getattr(bundle, read)
    with pytest.raises(ModelError, match=re.escape(says)):
        reader()


def test_text_in_a_header_need_not_be_utf_8(tmp_path: Path) -> None:
    content = litertlm([model_part("tf_lite_embedder")])
    content = content.replace(b"tf_lite_embedder", b"tf_lite_\xff\nbedder")
    (name,) = jd.open_bundle(content).models
    assert name == "\ufffd\nbedder"
    path = tmp_path / "b.litertlm"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"its models: .\\nbedder$"):
        jd.Interpreter(f"{path}!x")
