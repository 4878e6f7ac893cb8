"""Characters, numbers and base64 in strings (core/kernels/{unicode_ops,decode_raw_op,...}.cc)."""

import base64
import binascii
import codecs
import itertools
import re
from collections.abc import Iterator

import numpy as np

from jaxdelegate.op_lowering.flex.reference_kernels import kernels
from jaxdelegate.op_lowering.flex.reference_text import mapped, strings
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.reference.kernel import Array, Kernel, ResultShapes, same_shape

_BROKEN = 0xDC00
_CODECS = {"UTF-8": "utf-8", "UTF-16-BE": "utf-16-be", "UTF-32-BE": "utf-32-be"}


def _codec(name: str) -> str:
    if name not in _CODECS:
        raise ValueError(f"the encoding {name!r}: expected one of {', '.join(_CODECS)}")
    return _CODECS[name]


# ---- UnicodeDecode, UnicodeDecodeWithOffsets, UnicodeEncode, UnicodeTranscode


def _width(error: UnicodeError) -> tuple[str, int]:
    """A surrogate, which no text has, that counts the bytes that are no character."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return chr(_BROKEN + error.end - error.start), error.end


codecs.register_error("jaxdelegate.width", _width)


def _characters(text: bytes, codec: str) -> Iterator[tuple[int, int]]:
    """Each code point and where it begins; -1 for bytes that are none."""
    start = 0
    for character in text.decode(codec, "jaxdelegate.width"):
        broken = ord(character) - _BROKEN
        is_broken = 0 < broken < 16
        yield -1 if is_broken else ord(character), start
        start += broken if is_broken else len(character.encode(codec))


def _kept(o: FlexOptions, characters: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for character, start in characters:
        if character >= 0 and not (o.replace_control_characters and character < 0x20):
            yield character, start
        elif o.errors == "replace":
            yield o.replacement_char, start
        elif o.errors == "strict":
            raise ValueError(f"the byte {start} of a string is not {o.input_encoding}")
        elif o.errors != "ignore":
            raise ValueError(f"errors={o.errors!r}: expected 'strict', 'replace' or 'ignore'")


def decoded_shapes(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    n = int(np.prod(inputs[0].shape))
    return (n + 1,), None


def offset_shapes(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    return *decoded_shapes(_o, inputs), None


def decode_with_offsets(o: FlexOptions, x: Array) -> tuple[Array, Array, Array]:
    """Where the characters of each string begin and end, the characters, and their bytes."""
    codec = _codec(o.input_encoding)
    rows = [list(_kept(o, _characters(text, codec))) for text in x.reshape(-1)]
    pairs = np.array([pair for row in rows for pair in row], np.int64).reshape(-1, 2)
    return np.cumsum([0, *map(len, rows)]), pairs[:, 0], pairs[:, 1]


def decode(o: FlexOptions, x: Array) -> tuple[Array, ...]:
    return decode_with_offsets(o, x)[:2]


def encoded_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    (n,) = inputs[1].shape
    return ((max(n - 1, 0),),)


def encode(o: FlexOptions, x: Array, splits: Array) -> Array:
    """A string of the characters between two splits."""
    codec, ends = _codec(o.output_encoding), splits.tolist()
    if not ends or ends[0] != 0 or ends[-1] != len(x) or (np.diff(splits) < 0).any():
        raise ValueError(f"splits {ends} of {len(x)} characters: expected to rise from 0 to that")
    return strings([_joined(o, x[a:b].tolist(), codec) for a, b in itertools.pairwise(ends)])


def _joined(o: FlexOptions, characters: list[int], codec: str) -> bytes:
    pairs = ((c if _is_character(c, o.errors) else -1, i) for i, c in enumerate(characters))
    return "".join(chr(c) for c, _ in _kept(o, pairs)).encode(codec)


def _is_character(c: int, errors: str) -> bool:
    """Noncharacters are left as they are if nothing replaces them."""
    is_known = 0 <= c < 0xD800 or 0xDFFF < c <= 0x10FFFF
    is_none = 0xFDD0 <= c <= 0xFDEF or c & 0xFFFE == 0xFFFE
    return is_known and not (is_none and errors != "ignore")


def transcode(o: FlexOptions, x: Array) -> Array:
    source, codec = _codec(o.input_encoding), _codec(o.output_encoding)

    def text(stored: bytes) -> bytes:
        kept = (chr(c) for c, _ in _kept(o, _characters(stored, source)))
        return "".join(kept).encode(codec)

    return mapped(text, object, x)


# ---- DecodeRaw


def raw_shape(_o: FlexOptions, _inputs: Specs) -> ResultShapes:
    return (None,)


def decode_raw(o: FlexOptions, _inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    """The numbers in each string; all strings have as many."""
    dtype, lengths = outputs[0].dtype, {len(text) for text in x.reshape(-1)}
    if len(lengths) > 1 or any(length % dtype.itemsize for length in lengths):
        raise ValueError(
            f"DecodeRaw: strings of {sorted(lengths)} bytes: expected one multiple of "
            f"{dtype.itemsize}, the size of {dtype}"
        )
    stored = dtype.newbyteorder("<" if o.little_endian else ">")
    numbers = np.frombuffer(b"".join(x.reshape(-1)), stored).astype(dtype)
    return (numbers.reshape(*x.shape, max(lengths, default=0) // dtype.itemsize),)


# ---- EncodeBase64, DecodeBase64: the alphabet for URLs


def encode_base64(o: FlexOptions, x: Array) -> Array:
    def text(stored: bytes) -> bytes:
        encoded = base64.urlsafe_b64encode(stored)
        return encoded if o.pad else encoded.rstrip(b"=")

    return mapped(text, object, x)


def decode_base64(_o: FlexOptions, x: Array) -> Array:
    def text(stored: bytes) -> bytes:
        digits = stored.rstrip(b"=")
        if not re.fullmatch(rb"[A-Za-z0-9_-]*={0,2}", stored) or len(digits) % 4 == 1:
            raise ValueError(f"DecodeBase64: {stored!r} is not base64 for URLs")
        return binascii.a2b_base64(digits.translate(_FROM_URLS) + b"==")

    return mapped(text, object, x)


_FROM_URLS = bytes.maketrans(b"-_", b"+/")

KERNELS = kernels(
    {
        "DecodeBase64": (decode_base64, same_shape),
        "DecodeRaw": Kernel(decode_raw, raw_shape),
        "EncodeBase64": (encode_base64, same_shape),
        "UnicodeDecode": (decode, decoded_shapes),
        "UnicodeDecodeWithOffsets": (decode_with_offsets, offset_shapes),
        "UnicodeEncode": (encode, encoded_shape),
        "UnicodeTranscode": (transcode, same_shape),
    }
)
