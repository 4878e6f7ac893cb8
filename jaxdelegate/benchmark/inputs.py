"""What the model is fed: TFLite's --input_layer flags, random values, files."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdelegate.errors import OptionError

_TEXT = b"we're have some friends over saturday to hang out in the yard"  # TFLite's
# Smallest and largest random value by kind and bytes (tools/utils.cc, GetDataRangesForType).
_INTEGERS = {
    ("i", 1): (-127, 127),
    ("u", 1): (0, 254),
    ("i", 2): (-32767, 32767),
    ("u", 2): (0, 65534),
    ("i", 4): (0, 99),
    ("u", 4): (0, 99),
    ("i", 8): (0, 99),
    ("u", 8): (0, 99),
}


@dataclasses.dataclass(frozen=True)
class InputLayer:
    """What the flags say of one input.

    Attributes:
        name: need not be the model's; inputs go by their order, as in TFLite.
        shape: its shape.
        range: smallest and largest value of an integer input.
        path: a file with its bytes.
    """

    name: str
    shape: tuple[int, ...]
    range: tuple[int, int] | None = None
    path: str | None = None


def parse_input_layers(
    names: str, shapes: str, ranges: str = "", files: str = ""
) -> tuple[InputLayer, ...]:
    """The layers of `--input_layer`, `..._shape`, `..._value_range` and `..._value_files`.

    Args:
        names: `a,b`.
        shapes: `1,224,224,3:1,10`.
        ranges: `a,low,high:b,low,high`, both inclusive.
        files: `a:path,b:path`; `::` stands for a colon in a name or path.

    Raises:
        OptionError: they do not read as such, or contradict each other.
    """
    listed = [name for name in names.split(",") if name]
    sizes = [shape for shape in shapes.split(":") if shape]
    if len(listed) != len(sizes):
        raise OptionError(
            f"input_layer_shape: want one shape for each of {len(listed)} names in --input_layer "
            f"({names!r}), got {len(sizes)} in {shapes!r}"
        )
    layers = {
        name: InputLayer(name, _parse_shape(shape))
        for name, shape in zip(listed, sizes, strict=True)
    }
    for item in filter(None, ranges.split(":")):
        name, limits = _parse_range(item)
        layers[name] = dataclasses.replace(_layer(layers, name, "range"), range=limits)
    for item in filter(None, files.split(",")):
        name, path = _parse_file(item)
        layers[name] = dataclasses.replace(_layer(layers, name, "files"), path=path)
    return tuple(layers.values())


def _layer(layers: Mapping[str, InputLayer], name: str, what: str) -> InputLayer:
    if name not in layers:
        known = ", ".join(layers) or "no input"
        raise OptionError(f"input_layer_value_{what}: {name!r} is not in --input_layer: {known}")
    return layers[name]


def _parse_shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(size) for size in text.split(","))
    except ValueError:
        raise OptionError(f"input_layer_shape: want sizes like 1,224,224,3, got {text!r}") from None
    if any(size < 0 for size in shape):
        raise OptionError(
            f"input_layer_shape: sizes that the model leaves open need a number, got {text!r}"
        )
    return shape


def _parse_range(item: str) -> tuple[str, tuple[int, int]]:
    try:
        name, low, high = item.rsplit(",", 2)
        limits = int(low), int(high)
    except ValueError:
        limits = (1, 0)
    if limits[0] > limits[1]:
        raise OptionError(f"input_layer_value_range: want name,low,high, got {item!r}")
    return name, limits


def _parse_file(item: str) -> tuple[str, str]:
    parts = [part.replace("\0", ":") for part in item.replace("::", "\0").split(":")]
    if len(parts) != 2 or not all(parts):
        raise OptionError(
            f"input_layer_value_files: want name:path ('::' for a colon inside), got {item!r}"
        )
    return parts[0], parts[1]


def make_inputs(
    details: Sequence[Mapping[str, Any]], layers: Sequence[InputLayer], seed: int
) -> list[np.ndarray]:
    """One array for each input: a file's bytes, or random values as TFLite draws them.

    Args:
        details: the inputs as the interpreter describes them, after allocation.
        layers: what the flags say of them, in the same order; may be empty.
        seed: of the random values.

    Raises:
        OptionError: a file or a range that does not fit.
        OSError: a file cannot be read.
    """
    rng = np.random.default_rng(seed)
    made = []
    for position, detail in enumerate(details):
        layer = layers[position] if layers else None
        shape, dtype = tuple(int(n) for n in detail["shape"]), np.dtype(detail["dtype"])
        if layer is not None and layer.path is not None:
            made.append(_from_file(layer.path, shape, dtype))
        else:
            made.append(_random(rng, shape, dtype, layer))
    return made


def _random(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, layer: InputLayer | None
) -> np.ndarray:
    if dtype.kind in "OSU":
        return np.full(shape, _TEXT, object)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        low, high = _integer_range(dtype, layer)
        return rng.integers(low, high, shape, dtype, endpoint=True)
    values = rng.uniform(-0.5, 0.5, shape)
    if dtype.kind == "c":
        return (values + 1j * rng.uniform(-0.5, 0.5, shape)).astype(dtype)
    return values.astype(dtype)


def _integer_range(dtype: np.dtype, layer: InputLayer | None) -> tuple[int, int]:
    if layer is None or layer.range is None:
        return _INTEGERS[dtype.kind, dtype.itemsize]
    low, high = layer.range
    limits = np.iinfo(dtype)
    if low < limits.min or high > limits.max:
        raise OptionError(
            f"input_layer_value_range: {layer.name!r} is {dtype}, which does not hold {low},{high}"
        )
    return low, high


def _from_file(path: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    content = Path(path).read_bytes()
    if dtype.kind in "OSU":
        return _strings(path, content, shape)
    expected = math.prod(shape) * dtype.itemsize
    if len(content) != expected:
        raise OptionError(
            f"{path}: the input is {dtype} {list(shape)}, which takes {expected} bytes, "
            f"got {len(content)}"
        )
    return np.frombuffer(content, dtype).reshape(shape).copy()


def _strings(path: str, content: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """Null-separated strings; a .pb file is one string."""
    items = [content] if path.endswith(".pb") else content.removesuffix(b"\0").split(b"\0")
    if len(items) != math.prod(shape):
        raise OptionError(
            f"{path}: the input is {math.prod(shape)} strings {list(shape)}, got {len(items)}"
        )
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)
