"""Digests of content."""

import dataclasses
import hashlib
import mmap
from pathlib import Path

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate import digests as module
from jaxdelegate.digests import (
    BLAKE3,
    SHA256,
    algorithm_of,
    digests,
    is_known,
    read_into,
    source_digest,
)
from jaxdelegate.model import files
from jaxdelegate.model.source import open_source

CHUNK = 4 << 20


def test_a_file_and_its_bytes_have_the_same(tmp_path: Path) -> None:
    content = bytes(range(256)) * 1000
    path = tmp_path / "model.tflite"
    path.write_bytes(content)
    assert jd.fingerprint(path) == jd.fingerprint(str(path)) == jd.fingerprint(content)
    assert jd.fingerprint(memoryview(content)) == jd.fingerprint(bytearray(content))
    assert len(jd.fingerprint(content)) == 64


def test_it_never_changes() -> None:
    part = hashlib.sha256(b"TFL3").digest()
    assert jd.fingerprint(b"TFL3") == hashlib.sha256((4).to_bytes(8, "little") + part).hexdigest()


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_every_byte_counts(size: int) -> None:
    content = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    own = jd.fingerprint(content.tobytes())
    assert own != jd.fingerprint(content.tobytes() + b"\0")
    for at in {0, size // 2, size - 1} if size else ():
        other = content.copy()
        other[at] ^= 1
        assert jd.fingerprint(other.tobytes()) != own


KNOWN = [algorithm for algorithm in (SHA256, BLAKE3) if is_known(algorithm)]


@pytest.mark.parametrize("algorithm", KNOWN)
def test_several_at_once_equal_one_by_one(algorithm: str) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.integers(0, 256, n, np.uint8) for n in (5, 0, CHUNK + 3, 900_000, 2 * CHUNK, 7)]
    one_by_one = [digests([a.data], algorithm)[0] for a in arrays]
    assert digests([a.data for a in arrays], algorithm) == one_by_one
    assert len(set(one_by_one)) == len(arrays)


@pytest.mark.parametrize("algorithm", KNOWN)
def test_reading_digests_what_was_read(tmp_path: Path, algorithm: str) -> None:
    content = np.random.default_rng(2).integers(0, 256, CHUNK + 100, np.uint8)
    (tmp_path / "a").write_bytes(content.tobytes())
    (tmp_path / "b").write_bytes(content[:50].tobytes())
    whole, short = np.zeros(content.size, np.uint8), np.zeros(100, np.uint8)
    with open(tmp_path / "a", "rb") as a, open(tmp_path / "b", "rb") as b:
        found = read_into([a.fileno(), b.fileno()], [whole.data, short.data], algorithm)
    np.testing.assert_array_equal(whole, content)
    np.testing.assert_array_equal(short[:50], content[:50])
    assert found[0] == digests([content.data], algorithm)[0]
    assert found[1] != digests([content[:100].data], algorithm)[0]


def test_fingerprints_are_the_same_on_every_machine() -> None:
    content = np.arange(1000, dtype=np.uint8)
    assert digests([content.data], SHA256) == [jd.fingerprint(content.tobytes())]


@pytest.mark.parametrize("algorithm", KNOWN)
def test_a_digest_names_its_algorithm(algorithm: str) -> None:
    (digest,) = digests([memoryview(b"TFL3")], algorithm)
    assert algorithm_of(digest) == algorithm


def test_blake3_is_blake3() -> None:
    blake3 = pytest.importorskip("blake3").blake3
    part = blake3(b"TFL3").digest()
    want = blake3((4).to_bytes(8, "little") + part).hexdigest()
    assert digests([memoryview(b"TFL3")], BLAKE3) == [f"blake3-{want}"]


@pytest.mark.parametrize("text", ["", "0" * 63, "0" * 65, "md5-" + "0" * 64, "../" + "0" * 64])
def test_other_texts_are_not_digests(text: str) -> None:
    with pytest.raises(ValueError, match="is not a digest"):
        algorithm_of(text)


def test_no_such_file() -> None:
    with pytest.raises(jd.ModelError, match="Could not open '/nowhere'"):
        jd.fingerprint("/nowhere")


def test_the_digest_of_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = np.random.default_rng(0).bytes(3 * mmap.PAGESIZE + 100)
    path = tmp_path / "model.tflite"
    path.write_bytes(content)
    wanted = digests([memoryview(content)])[0]
    assert source_digest(open_source(content)) == wanted
    assert source_digest(open_source(path)) == wanted
    monkeypatch.setattr(files, "READ_BYTES", 0)  # mapped
    monkeypatch.setitem(module._CHUNKS, module.PREFERRED, mmap.PAGESIZE)
    mapped = open_source(path)
    assert mapped.is_mapped
    parts = [mapped.content, mapped.content[100:], mapped.content[mmap.PAGESIZE + 7 : -9]]
    for part in parts:
        source = dataclasses.replace(mapped, content=part)
        assert source_digest(source) == digests([part])[0]
    assert mapped.content == content
    assert source_digest(open_source(b"")) == digests([memoryview(b"")])[0]
