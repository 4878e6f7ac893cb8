"""Strings, which are object arrays of bytes (core/kernels/string_*_op.cc and others)."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.flex.reference_kernels import kernels
from jaxdelegate.op_lowering.flex.reference_reductions import reduced_shape
from jaxdelegate.op_lowering.lookup.reference_farmhash import fingerprint64
from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.optional import optional_module
from jaxdelegate.reference.kernel import (
    Array,
    Function,
    Kernel,
    ResultShapes,
    broadcast_shape,
    same_shape,
)
from jaxdelegate.reference.movement import ints, resolved_axis

_WIDEST = 1 << 16  # a damaged file asks for any number
_SPACES = b" \t\n\v\f\r"  # ASCII only
_CHARACTER = re.compile(rb"[^\x80-\xbf]")  # where a character of UTF-8 begins


def mapped(function: Callable[..., Any], dtype: Any, *arrays: Array) -> Array:
    """The function of each value; the arrays broadcast."""
    arrays = tuple(np.broadcast_arrays(*arrays))
    y = np.empty(arrays[0].shape, dtype)
    for place in np.ndindex(y.shape):
        y[place] = function(*(a[place] for a in arrays))
    return y


def strings(texts: Sequence[bytes]) -> Array:
    """A vector, also of strings of one length, which numpy would make another array of."""
    return np.array([*texts, None], object)[:-1]


# ---- StringLower, StringUpper, StringStrip, StringLength, Substr


def _cased(name: str) -> Function:
    def run(o: FlexOptions, x: Array) -> Array:
        """Without an encoding, letters of ASCII only."""
        if o.encoding not in ("", "utf-8"):
            raise ValueError(f"the encoding {o.encoding!r}: expected '' or 'utf-8'")

        def case(text: bytes) -> Any:
            if o.encoding:
                return getattr(text.decode(errors="replace"), name)().encode()
            return getattr(text, name)()

        return mapped(case, object, x)

    return run


def strip(_o: FlexOptions, x: Array) -> Array:
    return mapped(lambda text: text.strip(_SPACES), object, x)


def _starts(unit: str, text: bytes) -> list[int]:
    """Where each byte, or each character, begins; and the end."""
    if unit not in ("BYTE", "UTF8_CHAR"):
        raise ValueError(f"the unit {unit!r}: expected 'BYTE' or 'UTF8_CHAR'")
    if unit == "BYTE":
        return list(range(len(text) + 1))
    return [*(character.start() for character in _CHARACTER.finditer(text)), len(text)]


def length(o: FlexOptions, x: Array) -> Array:
    return mapped(lambda text: len(_starts(o.unit, text)) - 1, np.int32, x)


def substr(o: FlexOptions, x: Array, pos: Array, n: Array) -> Array:
    """A negative position counts from the end; a negative length takes the rest."""

    def part(text: bytes, first: int, count: int) -> bytes:
        starts = _starts(o.unit, text)
        size = len(starts) - 1
        if not -size <= first <= size:
            raise ValueError(f"position {first} is outside a string of {size}: {text!r}")
        first = first + size if first < 0 else first
        last = size if count < 0 else min(first + count, size)
        return text[starts[first] : starts[last]]

    return mapped(part, object, x, pos, n)


# ---- StringJoin, ReduceJoin, StringSplitV2


def joined_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    shapes = {spec.shape for spec in inputs if spec.shape}
    if len(shapes) > 1:
        raise ValueError(f"StringJoin of {sorted(map(list, shapes))}: expected one shape, or none")
    return (next(iter(shapes), ()),)


def join(o: FlexOptions, *arrays: Array) -> Array:
    return mapped(lambda *texts: o.separator.encode().join(texts), object, *arrays)


def reduce_join(o: FlexOptions, x: Array, axes: Array) -> Array:
    """The last of the axes varies slowest."""
    gone = [resolved_axis(axis, x.ndim, "ReduceJoin") for axis in ints(axes)]
    if len(set(gone)) < len(gone):
        raise ValueError(f"ReduceJoin along {gone}: an axis comes twice")
    kept = [i for i in range(x.ndim) if i not in gone]
    shape = [x.shape[i] for i in kept]
    rows = np.transpose(x, [*kept, *reversed(gone)]).reshape(*shape, -1 if x.size else 0)
    y = np.empty(shape, object)
    for place in np.ndindex(y.shape):
        y[place] = o.separator.encode().join(rows[place].tolist())
    return np.expand_dims(y, tuple(gone)) if o.keep_dims else y


def split_shape(_o: FlexOptions, inputs: Specs) -> ResultShapes:
    if len(inputs[0].shape) != 1:
        raise ValueError(f"strings {list(inputs[0].shape)}: expected a vector")
    return None, None, (2,)


def split(o: FlexOptions, x: Array, sep: Array) -> tuple[Array, ...]:
    """The place of each part, the parts, and the shape that holds the longest row."""
    return split_result([list(_parts(text, sep.item(), o.maxsplit)) for text in x])


def split_result(rows: Sequence[Sequence[bytes]]) -> tuple[Array, ...]:
    places = [(i, j) for i, row in enumerate(rows) for j in range(len(row))]
    shape = (len(rows), max(map(len, rows), default=0))
    indices = np.array(places, np.int64).reshape(-1, 2)
    return indices, strings([part for row in rows for part in row]), np.array(shape)


def _parts(text: bytes, separator: bytes, most: int) -> Iterator[bytes]:
    if separator:
        yield from text.split(separator, most)
        return
    text = text.lstrip(_SPACES)
    while text:
        if most == 0:
            yield text
            return
        word = re.split(rb"[ \t\n\v\f\r]", text, maxsplit=1)[0]
        yield word
        text, most = text[len(word) :].lstrip(_SPACES), most - 1
        if most == 0:
            yield text
            return


# ---- StringToHashBucketFast


def hash_bucket(o: FlexOptions, x: Array) -> Array:
    if o.num_buckets < 1:
        raise ValueError(f"StringToHashBucketFast: {o.num_buckets} buckets")

    def bucket(text: bytes) -> int:
        return int(fingerprint64(np.frombuffer(text, np.uint8))) % int(o.num_buckets)

    return mapped(bucket, np.int64, x)


# ---- AsString, StringToNumber


def as_string(o: FlexOptions, x: Array) -> Array:
    """Each value as printf writes it."""
    kind = x.dtype.kind
    is_float = kind in "fcV"
    if len(o.fill) > 1 or o.fill not in " +-0#":
        raise ValueError(f"AsString: the fill {o.fill!r}: expected one of ' ', '+', '-', '0', '#'")
    if max(o.width, o.precision) > _WIDEST:
        wide = f"width {o.width}, precision {o.precision}"
        raise ValueError(f"AsString: {wide}: expected at most {_WIDEST}")
    if o.scientific and o.shortest:
        raise ValueError("AsString: scientific and shortest exclude each other")
    if not is_float and (o.precision >= 0 or o.scientific or o.shortest):
        raise ValueError(f"AsString: the values are {x.dtype}, which has no precision")
    form = "e" if o.scientific else "g" if o.shortest else "f" if is_float else "d"
    width = str(o.width) if o.width > 0 else ""
    digits = f".{o.precision}" if o.precision >= 0 else ""

    def number(value: Any) -> str:
        fill = "" if is_float and not np.isfinite(value) and o.fill == "0" else o.fill
        written: str = f"%{fill}{width}{digits}{form}" % value
        return written

    def text(value: Any) -> bytes:
        if kind == "O":
            padded: bytes = f"%{'-' if o.fill == '-' else ''}{width}s".encode() % value
            return padded
        if kind == "b":
            return b"true" if value else b"false"
        if kind == "c":
            return f"({number(value.real)},{number(value.imag)})".encode()
        return number(float(value) if is_float else int(value)).encode()

    return mapped(text, object, x)


_FLOAT = re.compile(rb"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|inf|nan)", re.IGNORECASE)
_HEXADECIMAL = re.compile(rb"[+-]?0[xX][0-9a-fA-F]+")
_INTEGER = re.compile(rb"-?\d+")


def to_number(_o: FlexOptions, _inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    dtype = outputs[0].dtype

    def number(text: bytes) -> float:
        digits = text.strip(_SPACES)
        if dtype.kind == "i" and _INTEGER.fullmatch(digits):
            integer = int(digits)
            if np.iinfo(dtype).min <= integer <= np.iinfo(dtype).max:
                return integer
        if dtype.kind == "f" and _FLOAT.fullmatch(digits):
            return float(digits)
        if dtype.kind == "f" and _HEXADECIMAL.fullmatch(digits):
            return float(int(digits, 16))
        raise ValueError(f"StringToNumber: {text!r} is not {dtype}")

    with np.errstate(over="ignore"):
        return (mapped(number, dtype, x),)


# ---- RegexReplace, RegexFullMatch, and with patterns that are attributes
# RE2's expressions (github.com/google/re2/wiki/Syntax), by its own package: their time is linear in
# the text, where Python's module re takes exponential time for some.


def _compiled(pattern: bytes) -> Any:
    """The pattern as the package's object, for texts of bytes."""
    re2 = optional_module("re2", "text")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        said = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise ValueError(
            f"the regular expression {pattern.decode(errors='replace')!r}: {said}"
        ) from error


def _replaced(o: FlexOptions, pattern: bytes, rewrite: bytes, x: Array) -> Array:
    compiled = _compiled(pattern)
    return mapped(lambda text: replaced(compiled, rewrite, text, all_=o.replace_global), object, x)


def replaced(pattern: Any, rewrite: bytes, text: bytes, *, all_: bool) -> bytes:
    """The text with the rewrite, in which a backslash and 1 stand for the first group.

    As RE2::GlobalReplace: an empty match does not follow another one directly. With a group that
    the pattern does not have, the text stays as it is.
    """
    parts = re.findall(rb"\\[0-9\\]|[^\\]+|\\", rewrite)
    if b"\\" in parts:
        raise ValueError(f"the rewrite {rewrite!r}: expected a digit or a backslash after each one")
    groups = [int(p[1:]) for p in parts if p[:1] == b"\\" and p != b"\\\\"]
    if max(groups, default=0) > pattern.groups:
        return text
    pieces: list[bytes] = []
    place, end = 0, -1
    while place <= len(text) and (match := pattern.search(text, place)):
        pieces.append(text[place : match.start()])
        if match.start() == match.end() == end:
            following = place + _width(text[place : place + 4])
            pieces.append(text[place:following])
            place = following
            continue
        pieces += (_part(match, part) for part in parts)
        place = end = match.end()
        if not all_:
            break
    return b"".join([*pieces, text[place:]])


def _width(text: bytes) -> int:
    """Bytes of the first character; 1 if they are not UTF-8, and at the end."""
    first = text.decode(errors="surrogateescape")[:1]
    return max(len(first.encode(errors="surrogateescape")), 1)


def _part(match: Any, part: bytes) -> bytes:
    if part[:1] != b"\\":
        return part
    return b"\\" if part == b"\\\\" else match[int(part[1:])] or b""


def static_replace(o: FlexOptions, x: Array) -> Array:
    return _replaced(o, o.pattern.encode(), o.rewrite.encode(), x)


def replace(o: FlexOptions, x: Array, pattern: Array, rewrite: Array) -> Array:
    return _replaced(o, pattern.item(), rewrite.item(), x)


def _matches(pattern: bytes, x: Array) -> Array:
    compiled = _compiled(pattern)
    return mapped(lambda text: compiled.fullmatch(text) is not None, np.bool_, x)


def static_match(o: FlexOptions, x: Array) -> Array:
    return _matches(o.pattern.encode(), x)


def match(_o: FlexOptions, x: Array, pattern: Array) -> Array:
    return _matches(pattern.item(), x)


# ---- StringFormat: tensors as text (core/framework/tensor.cc)

_ESCAPED = {b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t", b'"': b'\\"', b"'": b"\\'", b"\\": b"\\\\"}
_UNPRINTED = re.compile(rb"[\x00-\x1f\x7f\"'\\]")


def scalar(_o: FlexOptions, _inputs: Specs) -> ResultShapes:
    return ((),)


def string_format(o: FlexOptions, *arrays: Array) -> Array:
    """The template with a tensor in place of each placeholder."""
    parts = o.template.split(o.placeholder) if o.placeholder else [o.template]
    if len(parts) != len(arrays) + 1:
        raise ValueError(
            f"StringFormat: the template {o.template!r} has {len(parts) - 1} places "
            f"{o.placeholder!r} for {len(arrays)} tensors"
        )
    text = parts[0].encode()
    for array, part in zip(arrays, parts[1:], strict=True):
        ends = array.size if o.summarize < 0 else min(o.summarize, array.size)
        text += _summary(array, ends, array.ndim) + part.encode()
    return np.array(text, object)


def _summary(array: Array, ends: int, rank: int) -> bytes:
    """The first and the last elements along each dimension, `ends` of both."""
    if array.ndim == 0:
        return _printed(array[()])
    n = len(array)
    shown = [_summary(array[i, ...], ends, rank) for i in range(min(ends, n))]
    if n > 2 * ends:
        shown.append(b"...")
    shown += [_summary(array[i, ...], ends, rank) for i in range(max(ends, n - ends), n)]
    lines = array.ndim - 1
    space = b"\n" * lines + b" " * (rank - lines) if lines else b" "
    if not ends and n:
        shown.insert(0, b"")
    return b"[" + space.join(shown) + b"]"


def _printed(value: Any) -> bytes:
    if isinstance(value, bytes):
        return b'"' + _UNPRINTED.sub(_escaped, value) + b'"'
    if np.issubdtype(type(value), np.complexfloating):
        raise ValueError(f"StringFormat of {type(value).__name__}: expected real numbers or text")
    if isinstance(value, np.integer | np.bool_):
        return b"%d" % int(value)
    wide = np.float64(value) if isinstance(value, np.float64) else np.float32(value)
    digits = 15 if isinstance(value, np.float64) else 6
    short = f"{wide:.{digits}g}"
    is_exact = type(wide)(short) == wide or np.isnan(wide)
    return (short if is_exact else f"{wide:.{digits + (2 if digits == 15 else 3)}g}").encode()


def _escaped(special: re.Match[bytes]) -> bytes:
    return _ESCAPED.get(special[0], b"\\%03o" % special[0][0])


KERNELS = kernels(
    {
        "AsString": (as_string, same_shape),
        "ReduceJoin": (reduce_join, reduced_shape),
        "RegexFullMatch": (match, same_shape),
        "RegexReplace": (replace, same_shape),
        "StaticRegexFullMatch": (static_match, same_shape),
        "StaticRegexReplace": (static_replace, same_shape),
        "StringFormat": (string_format, scalar),
        "StringJoin": (join, joined_shape),
        "StringLength": (length, same_shape),
        "StringLower": (_cased("lower"), same_shape),
        "StringSplitV2": (split, split_shape),
        "StringStrip": (strip, same_shape),
        "StringToHashBucketFast": (hash_bucket, same_shape),
        "StringToNumber": Kernel(to_number, same_shape),
        "StringUpper": (_cased("upper"), same_shape),
        "Substr": (substr, broadcast_shape),
    }
)
