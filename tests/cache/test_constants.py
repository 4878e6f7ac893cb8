"""Digests of constants that are remembered by the digest of their model's file."""

import threading
from pathlib import Path

import numpy as np
import pytest

from jaxdelegate.cache import constants
from jaxdelegate.cache.background import Background
from jaxdelegate.cache.constants import SUFFIX, ConstantDigests, FileDigests
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.key import array_digests

FILE = np.random.default_rng(0).integers(0, 256, 4096, np.uint8)


@pytest.fixture
def directory(tmp_path: Path) -> PrivateDirectory:
    return PrivateDirectory.open(tmp_path / "cache")


def arrays(file: np.ndarray = FILE) -> dict[int, np.ndarray]:
    """Some that lie in the file, by tensor, and some that do not."""
    return {
        0: file[:100],
        2: file[256:512].view(np.float32).reshape(8, 8),
        3: file[256:512].view(np.int16),
        5: file[4000:],
        6: np.arange(7),
        7: file[256:512].view(np.float32).reshape(8, 8).T,
        8: np.empty(0, np.float32),
        9: np.array([b"a", b"text"], object),
    }


INSIDE = (0, 2, 3, 5)


def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many arrays are hashed one by one from now on, call by call."""
    counts = []

    def counted(some: list[np.ndarray]) -> list[str]:
        counts.append(len(some))
        return array_digests(some)

    monkeypatch.setattr(constants, "array_digests", counted)
    return counts


def digests(directory: PrivateDirectory, file: np.ndarray = FILE) -> dict[int, str]:
    """Of all arrays, as a start makes them."""
    made, given = ConstantDigests(), arrays(file)
    made.begin(given, FileDigests(directory, file.data))
    return made.of(given)


def test_what_lies_in_a_known_file_is_not_hashed_again(
    directory: PrivateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = hashed(monkeypatch)
    first = digests(directory)
    assert digests(directory) == first
    assert first == dict(zip(arrays(), array_digests(list(arrays().values())), strict=True))
    assert counts == [len(arrays()), len(arrays()) - len(INSIDE)]
    assert [name.endswith(SUFFIX) for name in directory.names()] == [True]


def test_another_file_is_hashed(directory: PrivateDirectory) -> None:
    first = digests(directory)
    other = FILE.copy()
    other[300] ^= 1
    second = digests(directory, other)
    assert {i for i in first if first[i] != second[i]} == {2, 3, 7}
    assert len(directory.names()) == 2


def test_a_copy_of_the_file_is_known(
    directory: PrivateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = digests(directory)
    counts = hashed(monkeypatch)
    assert digests(directory, FILE.copy()) == first
    assert counts == [len(arrays()) - len(INSIDE)]


def test_arrays_of_another_file_are_hashed(directory: PrivateDirectory) -> None:
    """One delegate may be told of two files before it sees the first one's graph."""
    digests(directory)
    other, made = FILE[::-1].copy(), ConstantDigests()
    made.begin(arrays(other), FileDigests(directory, FILE.data))
    assert made.of(arrays(other))[0] == array_digests([other[:100]])[0]


@pytest.mark.parametrize("position", [0, 40, -3])
def test_flipped_bits_are_found(directory: PrivateDirectory, position: int) -> None:
    right = digests(directory)
    (path,) = directory.path.iterdir()
    content = bytearray(sound := path.read_bytes())
    content[position] ^= 1
    path.write_bytes(bytes(content))
    assert digests(directory) == right
    assert path.read_bytes() == sound


@pytest.mark.parametrize("content", [b"", b"short", b"\0" * 32 + b"[]"])
def test_what_is_no_list_of_digests(directory: PrivateDirectory, content: bytes) -> None:
    right = digests(directory)
    (path,) = directory.path.iterdir()
    path.write_bytes(content)
    assert digests(directory) == right


def test_a_list_that_others_may_write_is_not_read(directory: PrivateDirectory) -> None:
    right = digests(directory)
    (path,) = directory.path.iterdir()
    path.chmod(0o666)
    assert digests(directory) == right


def test_nothing_to_hash(directory: PrivateDirectory) -> None:
    file = FileDigests(directory, memoryview(b""))
    assert file.of([FILE]) == [None]
    assert ConstantDigests().of({}) == {}


def test_each_array_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, made, given = hashed(monkeypatch), ConstantDigests(), arrays()
    made.begin(given)
    assert made.of(given) == made.of(given)
    assert made.of(given | {0: FILE[:50]})[0] == array_digests([FILE[:50]])[0]
    assert counts == [len(given), 1]


def test_calls_keep_their_order_and_leave_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    start, seen, first = Background(), list[int](), threading.Event()

    def call(number: int) -> int:
        assert first.wait(timeout=60)
        seen.append(number)
        return number

    futures = [start(call, number) for number in range(5)]
    start.close()
    first.set()
    assert [future.result() for future in futures] == seen == list(range(5))
    with pytest.raises(RuntimeError, match="after shutdown"):
        start(call, 5)
