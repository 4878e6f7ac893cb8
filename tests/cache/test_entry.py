"""The file of one program: what is packed can be unpacked, and everything else is refused."""

import hashlib
import json
import struct

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.cache import entry
from jaxdelegate.cache.entry import Entry, EntryError, StoredWeight, file_of, pack, unpack
from jaxdelegate.cache.key import Key, Part
from jaxdelegate.digests import digests

ENTRY = Entry(
    key=Key({"model": Part.of("m"), "device": Part.of(["cpu", 0])}),
    inputs=(3, 0),
    outputs=(9,),
    states=(4,),
    donated=(1,),
    weights=(
        StoredWeight("a" * 64, np.dtype(np.float32), (2, 3), None),
        StoredWeight("b" * 64, np.dtype(ml_dtypes.bfloat16), (), 7),
        StoredWeight("c" * 64, np.dtype(ml_dtypes.int4), (5,), None),
    ),
    weights_digest="d" * 64,
    code=bytes(range(256)) * 20,
    call_lists=(b"first", b"second call list"),
)
CONTENT = b"".join(pack(ENTRY))
DESCRIPTION = json.loads(CONTENT[56 : 56 + struct.unpack_from("<I", CONTENT, 12)[0]])


def test_an_entry_survives_packing() -> None:
    assert unpack(CONTENT) == ENTRY
    assert ENTRY.file == file_of(ENTRY.key) == f"{ENTRY.key.digest}.program"
    assert ENTRY.weights_file == f"{'d' * 64}.weights"
    assert [weight.nbytes for weight in ENTRY.weights] == [24, 2, 5]


@pytest.mark.parametrize("part", range(64))
def test_a_truncated_file_is_refused(part: int) -> None:
    with pytest.raises(EntryError, match=r"the file is (truncated|damaged)"):
        unpack(CONTENT[: len(CONTENT) * part // 64])


def test_extra_bytes_are_refused() -> None:
    with pytest.raises(EntryError, match=f"its header says {len(CONTENT)}$"):
        unpack(CONTENT + b"\0")


def test_every_flipped_bit_is_detected() -> None:
    for at in range(0, len(CONTENT), 7):
        for bit in (1, 128):
            damaged = bytearray(CONTENT)
            damaged[at] ^= bit
            with pytest.raises(EntryError):
                unpack(bytes(damaged))


def test_another_format_is_named() -> None:
    older = CONTENT[:8] + struct.pack("<I", 1) + CONTENT[12:]
    with pytest.raises(EntryError, match="its format version is 1, this is version 7"):
        unpack(older)
    with pytest.raises(EntryError, match="not a stored program"):
        unpack(b"#!/bin/sh" + bytes(100))


def forged(description: object, rest: bytes = b"") -> bytes:
    text = json.dumps(description).encode()
    digest = hashlib.sha256(text).digest()
    return struct.pack("<8sIIQ32s", b"JAXDLGT\0", 7, len(text), len(rest), digest) + text + rest


@pytest.mark.parametrize(
    "change",
    [
        {"call_lists": [1]},
        {"call_lists": [-1, 1]},
        {"call_lists": None},
        {"call_lists": ["many"]},
        {"weights": [["../../etc/passwd", "float32", [1], None]]},
        {"weights": [["a" * 64, "no dtype", [1], None]]},
        {"weights": [["a" * 64, "float32", None, None]]},
        {"weights": [[]]},
        {"weights_digest": "../../etc/passwd"},
        {"weights_digest": 1},
        {"inputs": ["x"]},
        {"inputs": None},
        {"key": []},
        {"key": {"model": "x"}},
        {"created": None},
        {"digest": None},
        {"digest": "no digest"},
    ],
)
def test_invalid_descriptions_are_refused(change: dict[str, object]) -> None:
    right = DESCRIPTION | {"call_lists": [], "digest": digests([memoryview(b"")])[0]}
    assert unpack(forged(right)).key == ENTRY.key
    with pytest.raises(EntryError, match="its description cannot be read"):
        unpack(forged({**right, **change}))


@pytest.mark.parametrize("description", [None, [], 3, "text", {}])
def test_other_json_values_are_not_descriptions(description: object) -> None:
    with pytest.raises(EntryError, match="its description cannot be read"):
        unpack(forged(description))


def test_code_that_cannot_be_checked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "is_known", lambda _: False)
    with pytest.raises(EntryError, match="it cannot be checked: "):
        unpack(CONTENT)


def test_other_code_is_refused() -> None:
    rest = CONTENT[-(len(ENTRY.code) + sum(map(len, ENTRY.call_lists))) :]
    assert unpack(forged(DESCRIPTION, rest)) == ENTRY
    with pytest.raises(EntryError, match="the digest of its code is wrong"):
        unpack(forged(DESCRIPTION, rest[:-1] + b"?"))
