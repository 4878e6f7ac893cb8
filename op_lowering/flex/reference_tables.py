"""The files that tf.raw_ops.Save writes: a sorted table of bytes by key, with checksums.

Sources: core/lib/io/{format,block,block_builder,table_builder}.cc, core/lib/hash/crc32c.h. A block
is: entries (three numbers: bytes shared with the key before, further bytes of the key, bytes of the
value; then both), the positions of entries that share nothing, their count. After each block comes
a byte for its compression and the checksum of both. The index has an entry for each block, whose
key is at least the block's last, and whose value is its position and size. A footer of 48 bytes
ends the file.
"""

import functools
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

import numpy as np

from jaxdelegate.wire import varint

_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER = 48
_BLOCK = 1 << 18  # bytes of entries after which a block ends
_SHARING = 16  # the first of each 16 entries shares nothing with the key before
_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reversed
_ROW = 128  # bytes for which a checksum is computed in one piece


def encoded(*numbers: int) -> bytes:
    """Numbers of 64 bits, seven of them in each byte, two's complement."""
    parts = bytearray()
    for number in numbers:
        rest = number % 2**64
        while rest > 0x7F:
            parts.append(rest & 0x7F | 0x80)
            rest >>= 7
        parts.append(rest)
    return bytes(parts)


def write(file: BinaryIO, entries: Mapping[bytes, bytes]) -> None:
    """Write a table of these entries."""
    index, at = {}, 0
    for last, block in _blocks(sorted(entries.items())):
        index[last] = encoded(at, len(block))
        at += file.write(_sealed(block))
    handles = b""
    for block in (_block([]), _block(index.items(), 1)):  # no statistics; index
        handles += encoded(at, len(block))
        at += file.write(_sealed(block))
    file.write(handles.ljust(_FOOTER - len(_MAGIC), b"\0") + _MAGIC)


def _blocks(entries: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The key in the index, and the content, of each block."""
    held: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in entries:
        if size >= _BLOCK:
            yield _between(held[-1][0], key), _block(held)
            held, size = [], 0
        held.append((key, value))
        size += len(key) + len(value)
    if held:
        yield _between(held[-1][0], b"\xff"), _block(held)


def _between(last: bytes, following: bytes) -> bytes:
    """A short key that is at least the last one, and below the following one."""
    n = _shared(last, following)
    if n < len(last) and last[n] + 1 < following[n]:
        return last[:n] + bytes([last[n] + 1])
    return last


def _block(entries: Iterable[tuple[bytes, bytes]], sharing: int = _SHARING) -> bytes:
    content, starts, last = bytearray(), [0], b""
    for i, (key, value) in enumerate(entries):
        if i and i % sharing == 0:
            starts.append(len(content))
        n = 0 if i % sharing == 0 else _shared(last, key)
        content += encoded(n, len(key) - n, len(value)) + key[n:] + value
        last = key
    return bytes(content) + struct.pack(f"<{len(starts) + 1}I", *starts, len(starts))


def _shared(a: bytes, b: bytes) -> int:
    differing = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(differing, min(len(a), len(b)))


def _sealed(block: bytes) -> bytes:
    return block + b"\0" + struct.pack("<I", _masked_checksum(block + b"\0"))


def find(file: BinaryIO, key: bytes) -> bytes | None:
    """The value of a key; None: the table has not that key.

    Raises:
        ValueError: the file is not a table, or is damaged.
    """
    size = file.seek(0, 2)
    file.seek(max(size - _FOOTER, 0))
    footer = file.read(_FOOTER)
    if len(footer) < _FOOTER or not footer.endswith(_MAGIC):
        raise ValueError("it is not a checkpoint that tf.raw_ops.Save wrote")
    at = _handle(footer)[2]  # after the block of statistics
    index = _read(file, _handle(footer, at), size)
    for last, handle in _entries(index):
        if key <= last:
            entries = _entries(_read(file, _handle(handle), size))
            return next((value for there, value in entries if there == key), None)
    return None


def _handle(data: bytes, at: int = 0) -> tuple[int, int, int]:
    """A block's position and size, and where the handle ends."""
    position, at = varint(data, at)
    size, at = varint(data, at)
    return position, size, at


def _read(file: BinaryIO, handle: tuple[int, int, int], file_size: int) -> bytes:
    position, size, _ = handle
    if position + size + 5 > file_size:
        raise ValueError("it is damaged: a block is outside the file")
    file.seek(position)
    data = file.read(size + 5)
    if struct.unpack("<I", data[-4:])[0] != _masked_checksum(data[:-4]):
        raise ValueError("it is damaged: a block's checksum is wrong")
    if data[-5]:
        raise ValueError("its blocks are compressed, which tf.raw_ops.Save does not do")
    return data[:-5]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    count = struct.unpack("<I", block[-4:])[0] if len(block) >= 4 else 0
    end, at, key = len(block) - 4 - 4 * count, 0, b""
    while at < end:
        shared, at = varint(block, at)
        rest, at = varint(block, at)
        size, at = varint(block, at)
        if shared > len(key) or at + rest + size > end:
            raise ValueError("it is damaged: a block ends within an entry")
        key = key[:shared] + block[at : at + rest]
        yield key, block[at + rest : at + rest + size]
        at += rest + size


def _masked_checksum(data: bytes) -> int:
    """The checksum as it is stored: data that holds plain checksums would have poor ones."""
    crc = checksum(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def checksum(data: bytes) -> int:
    """CRC-32C of four bytes or more: many rows at a time, joined in pairs."""
    values = np.frombuffer(data, np.uint8).copy()
    values[:4] ^= 0xFF  # as if it began with a state of ones; zeros in front then change nothing
    n_rows = 1 << (len(values) // _ROW).bit_length()
    rows = np.pad(values, (-len(values) % n_rows, 0)).reshape(n_rows, -1)
    state, bits = np.zeros(n_rows, np.uint32), np.uint32(1) << np.arange(32, dtype=np.uint32)
    for column in rows.T:
        state = _step(state ^ column)
        bits = _step(bits)  # what a row of zeros does to each bit
    while len(state) > 1:
        state = _mapped(bits, state[::2]) ^ state[1::2]
        bits = _mapped(bits, bits)
    return int(state[0]) ^ 0xFFFFFFFF


def _step(state: np.ndarray) -> np.ndarray:
    """The state after a zero byte."""
    return np.asarray(_table()[state & 0xFF] ^ (state >> np.uint32(8)))


def _mapped(bits: np.ndarray, states: np.ndarray) -> np.ndarray:
    """A linear map, given by its values for single bits."""
    is_set = states[:, None] >> np.arange(32, dtype=np.uint32) & 1
    return np.asarray(np.bitwise_xor.reduce(np.where(is_set, bits, np.uint32(0)), axis=1))


@functools.cache
def _table() -> np.ndarray:
    state: np.ndarray = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        state = state >> 1 ^ np.where(state & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    return state
