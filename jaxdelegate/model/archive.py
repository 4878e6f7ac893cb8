"""The ZIP archive behind a model, in which metadata writers store label files and vocabularies."""

import io
import zipfile
import zlib

# What zipfile raises for archives that are damaged, encrypted or compressed in another way.
ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError)


class MemoryFile(io.RawIOBase):
    """A read-only file of bytes in memory, without a copy of them."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        part = self._data[self._at : self._at + len(target)]
        target[: len(part)] = part
        self._at += len(part)
        return len(part)
