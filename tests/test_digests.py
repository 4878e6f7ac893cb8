"""Digests of content."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.digests import digests, read_into

CHUNK = 4 << 20


def test_a_file_and_its_bytes_have_the_same(tmp_path: Path) -> None:
    content = bytes(range(256)) * 1000
    path = tmp_path / "model.tflite"
    path.write_bytes(content)
    assert jd.fingerprint(path) == jd.fingerprint(str(path)) == jd.fingerprint(content)
    assert jd.fingerprint(memoryview(content)) == jd.fingerprint(bytearray(content))
    assert len(jd.fingerprint(content)) == 64


def test_it_is_the_same_for_ever() -> None:
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


def test_several_at_once_are_as_one_by_one() -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.integers(0, 256, n, np.uint8) for n in (5, 0, CHUNK + 3, 900_000, 2 * CHUNK, 7)]
    assert digests([a.data for a in arrays]) == [jd.fingerprint(a.tobytes()) for a in arrays]


def test_reading_digests_what_was_read(tmp_path: Path) -> None:
    content = np.random.default_rng(2).integers(0, 256, CHUNK + 100, np.uint8)
    (tmp_path / "a").write_bytes(content.tobytes())
    (tmp_path / "b").write_bytes(content[:50].tobytes())
    whole, short = np.zeros(content.size, np.uint8), np.zeros(100, np.uint8)
    with open(tmp_path / "a", "rb") as a, open(tmp_path / "b", "rb") as b:
        found = read_into([a.fileno(), b.fileno()], [whole.data, short.data])
    np.testing.assert_array_equal(whole, content)
    np.testing.assert_array_equal(short[:50], content[:50])
    assert found[0] == jd.fingerprint(content.tobytes())
    assert found[1] != jd.fingerprint(content[:100].tobytes())


def test_no_such_file() -> None:
    with pytest.raises(jd.ModelError, match="Could not open '/nowhere'"):
        jd.fingerprint("/nowhere")
