"""Damaged models by number: the same content and seed give the same damage, on every machine.

Some of the damage is done to bytes, as by disks and networks. The rest is done to fields, through
the schema's objects, as by an author who knows the format.
"""

import random

from tests.fuzz.field_edits import UNPACKABLE, edit, packed, unpacked

_WORDS = (0, 1, 2, 3, 7, 127, 255, 2**15, 2**16, 2**20, 2**31 - 1, 2**31, 2**32 - 1)


def mutated(content: bytes, seed: int, other: bytes = b"") -> tuple[bytes, str]:
    """A damaged model, and a description of the damage.

    Args:
        content: a .tflite file.
        seed: the number of the damage.
        other: a file whose parts may be put into the first one.
    """
    rng = random.Random(seed)
    if rng.random() < 0.4:
        return changed_bytes(content, rng, other)
    try:
        model = unpacked(content)
        notes = edit(model, rng)
        return packed(model), "; ".join(notes)
    except UNPACKABLE as error:
        changed, note = changed_bytes(content, rng, other)
        return changed, f"{note} (no fields: {type(error).__name__})"


# ---- bytes


def changed_bytes(content: bytes, rng: random.Random, other: bytes) -> tuple[bytes, str]:
    """A file of any format with one to eight changes, and their description."""
    data, notes = bytearray(content), []
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        if not data:
            break
        notes.append(rng.choice(_BYTE_EDITS)(data, rng, other))
    return bytes(data), "; ".join(notes)


def _place(data: bytearray, rng: random.Random) -> int:
    """A position: tables are at both ends of a file, weights between them."""
    size = len(data)
    near = rng.randrange(min(size, 2048))
    return rng.choice((near, size - 1 - near, rng.randrange(size)))


def _flip(data: bytearray, rng: random.Random, _other: bytes) -> str:
    at, bit = _place(data, rng), rng.randrange(8)
    data[at] ^= 1 << bit
    return f"bit {bit} of byte {at} flipped"


def _set_byte(data: bytearray, rng: random.Random, _other: bytes) -> str:
    at, value = _place(data, rng), rng.randrange(256)
    data[at] = value
    return f"byte {at} = {value}"


def _set_word(data: bytearray, rng: random.Random, _other: bytes) -> str:
    at, value = _place(data, rng) & ~3, rng.choice(_WORDS)
    data[at : at + 4] = value.to_bytes(4, "little")
    return f"word at {at} = {value}"


def _move(data: bytearray, rng: random.Random, _other: bytes) -> str:
    at, start, size = _place(data, rng) & ~3, _place(data, rng) & ~3, rng.choice((4, 8, 32))
    data[at : at + size] = data[start : start + size]
    return f"{size} bytes of {start} at {at}"


def _cut(data: bytearray, rng: random.Random, _other: bytes) -> str:
    at = rng.randrange(len(data))
    del data[at:]
    return f"cut at {at}"


def _delete(data: bytearray, rng: random.Random, _other: bytes) -> str:
    at, size = _place(data, rng), rng.randint(1, 16)
    del data[at : at + size]
    return f"{size} bytes deleted at {at}"


def _splice(data: bytearray, rng: random.Random, other: bytes) -> str:
    if not other:
        return _delete(data, rng, other)
    at = rng.randrange(len(data))
    if rng.random() < 0.5:
        data[at:] = other[at:]
        return f"another file from {at} on"
    size, start = rng.choice((16, 64, 256)), rng.randrange(len(other))
    data[at : at + size] = other[start : start + size]
    return f"{size} bytes of another file's {start} at {at}"


_BYTE_EDITS = (
    _flip,
    _flip,
    _set_byte,
    _set_word,
    _set_word,
    _set_word,
    _move,
    _cut,
    _delete,
    _splice,
)
