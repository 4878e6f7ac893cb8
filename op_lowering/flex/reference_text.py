"""Strings, which are object arrays of bytes (core/kernels/string_*_op.cc and others)."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.flex.options import FlexNumberTextOptions, FlexTextOptions
from jaxdelegate.op_lowering.flex.reference_named import named
from jaxdelegate.op_lowering.flex.reference_regex import compiled, replaced
from jaxdelegate.op_lowering.lookup.reference_farmhash import fingerprint64
from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel, broadcast_shape, same_shape
from jaxdelegate.reference.movement import ints, resolved_axis

_O = FlexTextOptions
_Shapes = tuple[Shape | None, ...]
_WIDEST = 1 << 16  # a damaged file asks for any number
_SPACES = b" \t\n\v\f\r"  # of ASCII
_CHARACTER = re.compile(rb"[^\x80-\xbf]")  # where a character of UTF-8 begins


def mapped(function: Callable[..., Any], dtype: Any, *arrays: Array) -> tuple[Array]:
    """The function of each value; the arrays broadcast."""
    arrays = tuple(np.broadcast_arrays(*arrays))
    y = np.empty(arrays[0].shape, dtype)
    for place in np.ndindex(y.shape):
        y[place] = function(*(a[place] for a in arrays))
    return (y,)


# ---- StringLower, StringUpper, StringStrip, StringLength, Substr


def _cased(name: str) -> Kernel:
    def run(o: _O, _inputs: Specs, _outputs: Specs, x: Array) -> tuple[Array]:
        """Without an encoding, letters of ASCII only."""
        if o.encoding not in ("", "utf-8"):
            raise ValueError(f"the encoding {o.encoding!r}: expected '' or 'utf-8'")

        def case(text: bytes) -> bytes:
            whole: Any = text.decode(errors="replace") if o.encoding else text
            found = getattr(whole, name)()
            cased: bytes = found.encode() if o.encoding else found
            return cased

        return mapped(case, object, x)

    return Kernel(run, same_shape)


def strip(_o: _O, _inputs: Specs, _outputs: Specs, x: Array) -> tuple[Array]:
    return mapped(lambda text: text.strip(_SPACES), object, x)


def _starts(unit: str, text: bytes) -> list[int]:
    """Where each byte, or each character, begins; and the end."""
    if unit not in ("BYTE", "UTF8_CHAR"):
        raise ValueError(f"the unit {unit!r}: expected 'BYTE' or 'UTF8_CHAR'")
    if unit == "BYTE":
        return list(range(len(text) + 1))
    return [*(found.start() for found in _CHARACTER.finditer(text)), len(text)]


def length(o: _O, _inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    return mapped(lambda text: len(_starts(o.unit, text)) - 1, outputs[0].dtype, x)


def substr(o: _O, _inputs: Specs, _outputs: Specs, x: Array, pos: Array, n: Array) -> tuple[Array]:
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


def joined_shape(_o: _O, inputs: Specs) -> _Shapes:
    shapes = {spec.shape for spec in inputs if spec.shape}
    if len(shapes) > 1:
        raise ValueError(f"StringJoin of {sorted(map(list, shapes))}: expected one shape, or none")
    return (next(iter(shapes), ()),)


def join(o: _O, _inputs: Specs, _outputs: Specs, *arrays: Array) -> tuple[Array]:
    return mapped(lambda *texts: o.separator.encode().join(texts), object, *arrays)


def reduced_shape(o: _O, inputs: Specs) -> _Shapes:
    x, axes = inputs[:2]
    if axes.const is None:
        return (None,)
    gone = _axes(np.asarray(axes.const), len(x.shape))
    kept = ((i, n) for i, n in enumerate(x.shape) if o.keep_dims or i not in gone)
    return (tuple(1 if i in gone else n for i, n in kept),)


def _axes(axes: Array, rank: int) -> list[int]:
    found = [resolved_axis(axis, rank, "ReduceJoin") for axis in ints(axes)]
    if len(set(found)) < len(found):
        raise ValueError(f"ReduceJoin along {found}: an axis comes twice")
    return found


def reduce_join(o: _O, _inputs: Specs, outputs: Specs, x: Array, axes: Array) -> tuple[Array]:
    """The last of the axes varies slowest."""
    gone = _axes(axes, x.ndim)
    kept = [i for i in range(x.ndim) if i not in gone]
    shape = [x.shape[i] for i in kept]
    rows = np.transpose(x, [*kept, *reversed(gone)]).reshape(*shape, -1 if x.size else 0)
    y = np.empty(shape, object)
    for place in np.ndindex(y.shape):
        y[place] = o.separator.encode().join(rows[place].tolist())
    return (y.reshape(outputs[0].shape),)


def split_shape(_o: _O, inputs: Specs) -> _Shapes:
    if len(inputs[0].shape) != 1:
        raise ValueError(f"strings {list(inputs[0].shape)}: expected a vector")
    return None, None, (2,)


def split(o: _O, _inputs: Specs, _outputs: Specs, x: Array, sep: Array) -> tuple[Array, ...]:
    """The place of each part, the parts, and the shape that holds the longest row."""
    separator = sep.item()
    return split_result([list(_parts(text, separator, o.maxsplit)) for text in x])


def split_result(rows: Sequence[Sequence[bytes]]) -> tuple[Array, ...]:
    values = np.array([*(part for row in rows for part in row), None], object)[:-1]
    places = [(i, j) for i, row in enumerate(rows) for j in range(len(row))]
    shape = (len(rows), max(map(len, rows), default=0))
    indices = np.array(places, np.int64).reshape(-1, 2)
    return indices, values, np.array(shape, np.int64)


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


def hash_bucket(o: _O, _inputs: Specs, outputs: Specs, x: Array) -> tuple[Array]:
    if o.num_buckets < 1:
        raise ValueError(f"StringToHashBucketFast: {o.num_buckets} buckets")

    def bucket(text: bytes) -> int:
        return int(fingerprint64(np.frombuffer(text, np.uint8))) % o.num_buckets

    return mapped(bucket, outputs[0].dtype, x)


# ---- AsString, StringToNumber


def as_string(o: FlexNumberTextOptions, inputs: Specs, _outputs: Specs, x: Array) -> tuple[Array]:
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
        raise ValueError(f"AsString: {inputs[0].name!r} is {x.dtype}, which has no precision")
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
            found = int(digits)
            if np.iinfo(dtype).min <= found <= np.iinfo(dtype).max:
                return found
        if dtype.kind == "f" and _FLOAT.fullmatch(digits):
            return float(digits)
        if dtype.kind == "f" and _HEXADECIMAL.fullmatch(digits):
            return float(int(digits, 16))
        raise ValueError(f"StringToNumber: {text!r} is not {dtype}")

    with np.errstate(over="ignore"):
        return mapped(number, dtype, x)


# ---- RegexReplace, RegexFullMatch, and with patterns that are attributes


def static_replace(o: _O, _inputs: Specs, _outputs: Specs, x: Array) -> tuple[Array]:
    pattern, rewrite = compiled(o.pattern.encode()), o.rewrite.encode()
    return mapped(lambda t: replaced(pattern, rewrite, t, all_=o.replace_global), object, x)


def replace(
    o: _O, _inputs: Specs, _outputs: Specs, x: Array, pattern: Array, rewrite: Array
) -> tuple[Array]:
    found, text = compiled(pattern.item()), rewrite.item()
    return mapped(lambda t: replaced(found, text, t, all_=o.replace_global), object, x)


def _matches(pattern: bytes, x: Array) -> tuple[Array]:
    found = compiled(pattern)
    return mapped(lambda text: found.fullmatch(text) is not None, np.bool_, x)


def static_match(o: _O, _inputs: Specs, _outputs: Specs, x: Array) -> tuple[Array]:
    return _matches(o.pattern.encode(), x)


def match(_o: _O, _inputs: Specs, _outputs: Specs, x: Array, pattern: Array) -> tuple[Array]:
    return _matches(pattern.item(), x)


KERNELS = named(
    {
        f"{FLEX}AsString": Kernel(as_string, same_shape),
        f"{FLEX}ReduceJoin": Kernel(reduce_join, reduced_shape),
        f"{FLEX}RegexFullMatch": Kernel(match, same_shape),
        f"{FLEX}RegexReplace": Kernel(replace, same_shape),
        f"{FLEX}StaticRegexFullMatch": Kernel(static_match, same_shape),
        f"{FLEX}StaticRegexReplace": Kernel(static_replace, same_shape),
        f"{FLEX}StringJoin": Kernel(join, joined_shape),
        f"{FLEX}StringLength": Kernel(length, same_shape),
        f"{FLEX}StringLower": _cased("lower"),
        f"{FLEX}StringSplitV2": Kernel(split, split_shape),
        f"{FLEX}StringStrip": Kernel(strip, same_shape),
        f"{FLEX}StringToHashBucketFast": Kernel(hash_bucket, same_shape),
        f"{FLEX}StringToNumber": Kernel(to_number, same_shape),
        f"{FLEX}StringUpper": _cased("upper"),
        f"{FLEX}Substr": Kernel(substr, broadcast_shape),
    }
)
