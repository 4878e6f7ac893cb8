"""Texts under keys: what is written can be read, and everything else is refused."""

from pathlib import Path

import pytest

from jaxdelegate.cache import records
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.key import Key, Part

ONE, OTHER = (Key({"model": Part.of(name)}) for name in ("one", "other"))


@pytest.fixture
def directory(tmp_path: Path) -> PrivateDirectory:
    return PrivateDirectory.open(tmp_path / "programs")


def test_what_is_written_can_be_read(directory: PrivateDirectory) -> None:
    assert records.read(directory, ONE, ".start") is None
    records.write(directory, ONE, ".start", b"text")
    assert records.read(directory, ONE, ".start") == b"text"
    assert records.read(directory, ONE, ".support") is None


@pytest.mark.parametrize("at", [0, 31, 32, -1])
def test_every_byte_counts(directory: PrivateDirectory, at: int) -> None:
    records.write(directory, ONE, ".start", b"text")
    (path,) = directory.path.iterdir()
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)
    with pytest.raises(ValueError, match="its SHA-256 is wrong"):
        records.read(directory, ONE, ".start")


def test_another_keys_text_is_refused(directory: PrivateDirectory) -> None:
    records.write(directory, ONE, ".start", b"text")
    (path,) = directory.path.iterdir()
    path.rename(path.with_name(f"{OTHER.digest}.start"))
    with pytest.raises(ValueError, match="its SHA-256 is wrong"):
        records.read(directory, OTHER, ".start")


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "folder/file", "", "."])
def test_a_name_does_not_lead_out_of_the_directory(directory: PrivateDirectory, name: str) -> None:
    (directory.path / "folder").mkdir()
    (directory.path / "folder" / "file").touch()
    (directory.path.parent / "outside").touch()
    with pytest.raises(OSError, match=r"not a file name|is not a regular file|No such file"):
        directory.read(name)
