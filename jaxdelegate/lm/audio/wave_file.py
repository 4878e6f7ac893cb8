"""Files in the format WAV, with samples of integers or floats."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxdelegate.errors import GenerationError

_INTEGERS, _FLOATS, _EXTENSIBLE = 1, 3, 0xFFFE  # formats of samples
_BITS = {_INTEGERS: (8, 16, 24, 32), _FLOATS: (32, 64)}
_UNKNOWN = 0xFFFFFFFF  # the size that programs write into a pipe
_MOST_CHUNKS = 256


class WaveFile(NamedTuple):
    """The header of a file, and its samples as they are in the file.

    Attributes:
        rate: samples in a second.
        channels: how many values a frame has.
        bits: of a value.
        is_float: whether values are floats, or integers.
        content: the values of the frames.
    """

    rate: int
    channels: int
    bits: int
    is_float: bool
    content: memoryview

    @property
    def frames(self) -> int:
        """How many samples each channel has."""
        return len(self.content) * 8 // (self.bits * self.channels)

    def values(self) -> np.ndarray:
        """float32 [frames, channels]; integers are scaled to values from -1 to 1."""
        return self._floats().reshape(-1, self.channels)

    def _floats(self) -> np.ndarray:
        content = self.content
        if self.is_float:
            with np.errstate(over="ignore"):
                return np.frombuffer(content, f"<f{self.bits // 8}").astype(np.float32)
        if self.bits == 8:
            return np.frombuffer(content, np.uint8) * np.float32(2 / 255) - np.float32(1)
        if self.bits == 24:
            wide = np.zeros((len(content) // 3, 4), np.uint8)
            wide[:, 1:] = np.frombuffer(content, np.uint8).reshape(-1, 3)
            return wide.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)
        found = np.frombuffer(content, f"<i{self.bits // 8}").astype(np.float32)
        return found / np.float32(2 ** (self.bits - 1))


def is_wave(data: bytes) -> bool:
    """Whether a file begins as one in this format."""
    return data[:4] == b"RIFF" and data[8:12] == b"WAVE"


def wave_file(data: bytes) -> WaveFile | None:
    """Read a file's header. None: its samples are compressed.

    Raises:
        GenerationError: it is damaged.
    """
    header = None
    for name, begin, size in _chunks(data):
        if name == b"fmt ":
            header = data[begin : begin + size]
            if len(header) < max(size, 16):
                raise _damaged("its header ends too early")
        if name == b"data" and header is not None:
            return _read(header, data, begin, size)
    raise _damaged("it has no samples" if header is not None else "it has no header")


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The name, begin and size of each part of a file."""
    place = 12
    for _ in range(_MOST_CHUNKS):
        if place + 8 > len(data):
            return
        name, size = struct.unpack_from("<4sI", data, place)
        yield name, place + 8, size
        place += 8 + size + size % 2


def _read(header: bytes, data: bytes, begin: int, size: int) -> WaveFile | None:
    kind, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", header)
    if kind == _EXTENSIBLE and len(header) >= 26:
        (kind,) = struct.unpack_from("<H", header, 24)
    if kind not in _BITS:
        return None
    if not channels or bits not in _BITS[kind] or block * 8 != channels * bits:
        raise _damaged(f"{channels} channels of {bits} bits in frames of {block} bytes")
    rest = len(data) - begin
    if size == _UNKNOWN:
        size = rest
    if size > rest:
        raise _damaged(f"it ends after {rest} of {size} bytes of samples")
    content = memoryview(data)[begin : begin + size // block * block]
    return WaveFile(rate, channels, bits, kind == _FLOATS, content)


def _damaged(reason: str) -> GenerationError:
    return GenerationError(f"the sound is damaged: {reason}")
