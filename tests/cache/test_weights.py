"""The file of a program's weights: what is written can be read, and damage is detected."""

import dataclasses
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.cache import weights
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.entry import Entry, EntryError, StoredWeight, pack, unpack
from jaxdelegate.cache.key import Key, Part
from jaxdelegate.cache.store import ProgramStore, stored_weights
from jaxdelegate.cache.weights import content_digest, file_content, read
from jaxdelegate.digests import BLAKE3, SHA256, array_digests

LARGE = 700_001  # float32 elements: more than a large page


def arrays() -> list[np.ndarray]:
    """Arrays of several dtypes, one of them twice; the last one is a constant of the model."""
    rng = np.random.default_rng(0)
    large = rng.normal(size=LARGE).astype(np.float32)
    small = rng.normal(size=(3, 5)).astype(ml_dtypes.bfloat16)
    return [large, small, rng.integers(-8, 8, 7, np.int8), small, np.arange(4.0)]


def records() -> tuple[StoredWeight, ...]:
    constants = {array_digests(arrays()[-1:])[0]: 3}
    return stored_weights(arrays(), constants)


def entry_of(content: np.ndarray | None) -> Entry:
    key = Key({"model": Part.of("m")})
    return Entry(
        key=key,
        inputs=(0,),
        outputs=(1,),
        states=(),
        donated=(),
        weights=records(),
        weights_digest=content_digest(content),
        code=b"code",
    )


@pytest.fixture
def stored(tmp_path: Path) -> tuple[PrivateDirectory, Entry]:
    by_digest = {w.digest: a for w, a in zip(records(), arrays(), strict=True)}
    content = file_content(records(), by_digest)
    directory = PrivateDirectory.open(tmp_path / "programs")
    entry = entry_of(content)
    ProgramStore(directory).save(entry, content)
    return directory, entry


def path_of(stored: tuple[PrivateDirectory, Entry]) -> Path:
    directory, entry = stored
    assert entry.weights_file is not None
    return directory.path / entry.weights_file


def test_what_is_written_can_be_read(stored: tuple[PrivateDirectory, Entry]) -> None:
    found = read(*stored)
    assert len(found) == 3  # without the constant and the duplicate
    for weight, array in zip(records()[:-1], arrays(), strict=False):
        got = found[weight.digest].view(weight.dtype).reshape(weight.shape)
        np.testing.assert_array_equal(got, array)


def test_weights_are_aligned_for_xla(stored: tuple[PrivateDirectory, Entry]) -> None:
    assert all(piece.ctypes.data % 64 == 0 for piece in read(*stored).values())


def test_the_same_weights_in_another_order_are_the_same_file() -> None:
    some = dict(zip((w.digest for w in records()), arrays(), strict=True))
    content, reversed_ = (file_content(r, some) for r in (records(), records()[::-1]))
    assert content_digest(content) == content_digest(reversed_) is not None


def test_constants_need_no_file() -> None:
    assert file_content(records()[-1:], {}) is None
    assert content_digest(None) is None


def test_a_truncated_file_is_refused(stored: tuple[PrivateDirectory, Entry]) -> None:
    path = path_of(stored)
    size = path.stat().st_size
    for part in reversed(range(64)):
        os.truncate(path, size * part // 64)
        with pytest.raises(EntryError, match="bytes instead of"):
            read(*stored)


@pytest.mark.parametrize("at", [0, 63, 2 << 20, 4 * LARGE - 1, -1])
def test_every_byte_counts(stored: tuple[PrivateDirectory, Entry], at: int) -> None:
    content = bytearray(path_of(stored).read_bytes())
    content[at] ^= 4
    path_of(stored).write_bytes(content)
    with pytest.raises(EntryError, match=r"the digest of .* is wrong"):
        read(*stored)


def test_a_file_that_shrinks_while_it_is_read(
    stored: tuple[PrivateDirectory, Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = weights._opened

    def shrinking(*arguments: object) -> int:
        file = opened(*arguments)
        os.truncate(path_of(stored), 100)
        return file

    monkeypatch.setattr(weights, "_opened", shrinking)
    with pytest.raises(EntryError, match=r"the digest of .* is wrong"):
        read(*stored)


def test_changes_after_the_check_change_nothing(stored: tuple[PrivateDirectory, Entry]) -> None:
    found = read(*stored)
    before = {digest: piece.copy() for digest, piece in found.items()}
    os.truncate(path_of(stored), 0)
    for digest, piece in found.items():
        np.testing.assert_array_equal(piece, before[digest])


def test_a_file_that_cannot_be_checked_is_not_read(
    stored: tuple[PrivateDirectory, Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written with BLAKE3, which is not installed."""
    directory, entry = stored
    monkeypatch.setattr(weights, "is_known", lambda algorithm: algorithm == SHA256)
    foreign = dataclasses.replace(entry, weights_digest=f"{BLAKE3}-{'0' * 64}")
    with pytest.raises(EntryError, match=r"cannot be checked: blake3 is not installed here"):
        read(directory, foreign)


def test_weights_that_contain_a_program_stay_weights() -> None:
    """The author of a model chooses its constants; under any file name they are only weights."""
    program = np.frombuffer(b"".join(pack(entry_of(None))), np.uint8)
    assert unpack(program.tobytes()).code == b"code"
    (record,) = stored_weights([program], {})
    content = file_content((record,), {record.digest: program})
    assert content is not None
    assert program.tobytes() in content.tobytes()
    with pytest.raises(EntryError, match="it is not a stored program"):
        unpack(content.tobytes())
