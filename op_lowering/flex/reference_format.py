"""StringFormat: tensors as text (core/kernels/string_format_op.cc, core/framework/tensor.cc)."""

import re
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.flex.options import FlexFormatOptions
from jaxdelegate.op_lowering.flex.reference_named import named
from jaxdelegate.op_lowering.records.flex import FLEX
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel

_ESCAPED = {b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t", b'"': b'\\"', b"'": b"\\'", b"\\": b"\\\\"}
_SPECIAL = re.compile(rb"[\x00-\x1f\x7f\"'\\]")


def text_shape(_o: FlexFormatOptions, _inputs: Specs) -> tuple[Shape | None, ...]:
    return ((),)


def string_format(
    o: FlexFormatOptions, _inputs: Specs, _outputs: Specs, *arrays: Array
) -> tuple[Array]:
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
    return (np.array(text, object),)


def _summary(array: Array, ends: int, rank: int) -> bytes:
    """The first and the last elements along each dimension, `ends` of both."""
    if array.ndim == 0:
        return _text(array[()])
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


def _text(value: Any) -> bytes:
    if isinstance(value, bytes):
        return b'"' + _SPECIAL.sub(_escaped, value) + b'"'
    if np.issubdtype(type(value), np.complexfloating):
        raise ValueError(f"StringFormat of {type(value).__name__}: expected real numbers or text")
    if isinstance(value, np.integer | np.bool_):
        return b"%d" % int(value)
    wide = np.float64(value) if isinstance(value, np.float64) else np.float32(value)
    digits = 15 if isinstance(value, np.float64) else 6
    short = f"{wide:.{digits}g}"
    is_exact = type(wide)(short) == wide or np.isnan(wide)
    return (short if is_exact else f"{wide:.{digits + (2 if digits == 15 else 3)}g}").encode()


def _escaped(found: re.Match[bytes]) -> bytes:
    return _ESCAPED.get(found[0], b"\\%03o" % found[0][0])


KERNELS = named({f"{FLEX}StringFormat": Kernel(string_format, text_shape)})
