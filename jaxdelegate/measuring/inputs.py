"""Inputs of models in tools: TFLite's --input_layer flags, random values, files."""

import dataclasses
import math
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxdelegate.errors import OptionError
from jaxdelegate.text import printable

Shape = tuple[int, ...]
Range = tuple[int, int]

_TEXT = b"we're have some friends over saturday to hang out in the yard"  # as in TFLite
# Smallest and largest random value by kind and bytes (tools/utils.cc, GetDataRangesForType).
_INTEGERS = {
    ("i", 1): (-127, 127),
    ("u", 1): (0, 254),
    ("i", 2): (-32767, 32767),
    ("u", 2): (0, 65534),
}
_INDICES = (0, 99)  # integers with 4 and 8 bytes
_MEAN, _DEVIATION = 0.5, 1 / 3  # TFLite's inference_diff, truncated to [0, 1)


class InputFlags(NamedTuple):
    names: tuple[str, ...]  # in the order of `--input_layer`
    shapes: Mapping[str, Shape]  # one for each name, or empty
    ranges: Mapping[str, Range]  # smallest and largest value of integer inputs
    files: Mapping[str, str]  # paths of files with an input's values


def parse_input_flags(
    names: str = "", shapes: str = "", ranges: str = "", files: str = ""
) -> InputFlags:
    """Parse `--input_layer`, `..._shape`, `..._value_range` and `..._value_files`.

    For example `a,b`, `1,224,224,3:1,10`, `a,low,high:b,low,high` (both inclusive), and
    `a:path,b:path`. In ranges and files, `::` stands for a colon in a name or path.
    """
    listed = tuple(name for name in names.split(",") if name)
    sizes = [_parse_shape(shape) for shape in shapes.split(":") if shape]
    if sizes and len(sizes) != len(listed):
        raise _wrong_count(names, len(listed), shapes, len(sizes))
    return InputFlags(
        listed,
        dict(zip(listed, sizes, strict=False)),
        dict(map(_parse_range, _items(ranges, ":"))),
        dict(map(_parse_file, _items(files, ","))),
    )


def free_dimensions(details: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """What to say about inputs whose free dimensions, but the batch, have the size 1."""
    for detail in details:
        declared, shape = (detail[key].tolist() for key in ("shape_signature", "shape"))
        pairs = zip(declared[1:], shape[1:], strict=False)
        if any(n == -1 and size == 1 for n, size in pairs):
            sizes = ["SIZE" if n == -1 else str(n) for n in declared]
            yield (
                f"input {printable(str(detail['name']))!r} is {declared}: free dimensions count as "
                "1; --input_layer and --input_layer_shape set them, here to "
                f"{','.join([str(shape[0]), *sizes[1:]])}"
            )


@dataclasses.dataclass(frozen=True)
class InputLayer:
    # May differ from the model's if inputs are matched by order, as in TFLite's benchmark.
    name: str
    shape: Shape
    range: Range | None = None  # smallest and largest value of an integer input
    path: str | os.PathLike[str] | None = None  # a file with its values


def parse_input_layers(
    names: str, shapes: str, ranges: str = "", files: str = ""
) -> tuple[InputLayer, ...]:
    """`parse_input_flags` for tools that need all inputs in the model's order, with shapes."""
    flags = parse_input_flags(names, shapes, ranges, files)
    if len(flags.shapes) != len(flags.names):
        raise _wrong_count(names, len(flags.names), shapes, len(flags.shapes))
    _check_listed(flags.names, flags.ranges, "range")
    _check_listed(flags.names, flags.files, "files")
    return tuple(
        InputLayer(name, flags.shapes[name], flags.ranges.get(name), flags.files.get(name))
        for name in flags.names
    )


def _wrong_count(names: str, n_names: int, shapes: str, n_shapes: int) -> OptionError:
    return OptionError(
        f"input_layer_shape: expected one shape for each of {n_names} names in --input_layer "
        f"({names!r}), got {n_shapes} in {shapes!r}"
    )


def _check_listed(listed: Sequence[str], names: Iterable[str], what: str) -> None:
    for name in names:
        if name not in listed:
            known = ", ".join(listed) or "no input"
            raise OptionError(
                f"input_layer_value_{what}: {name!r} is not in --input_layer: {known}"
            )


def _items(text: str, separator: str) -> list[str]:
    """The items of a list; every `::`, a colon that is not a separator, becomes NUL."""
    return [item for item in text.replace("::", "\0").split(separator) if item]


def _plain(item: str) -> str:
    return item.replace("\0", ":")


def _parse_shape(text: str) -> Shape:
    try:
        shape = tuple(int(size) for size in text.split(","))
    except ValueError:
        raise OptionError(
            f"input_layer_shape: expected sizes like 1,224,224,3, got {text!r}"
        ) from None
    if any(size < 0 for size in shape):
        raise OptionError(f"input_layer_shape: free dimensions need a size, got {text!r}")
    return shape


def _parse_range(item: str) -> tuple[str, Range]:
    item = _plain(item)
    try:
        name, low, high = item.rsplit(",", 2)
        limits = int(low), int(high)
    except ValueError:
        limits = (1, 0)
    if limits[0] > limits[1]:
        raise OptionError(f"input_layer_value_range: expected name,low,high, got {item!r}")
    return name, limits


def _parse_file(item: str) -> tuple[str, str]:
    parts = [_plain(part) for part in item.split(":")]
    if len(parts) != 2 or not all(parts):
        raise OptionError(
            "input_layer_value_files: expected name:path ('::' for a colon inside), "
            f"got {item.replace(chr(0), '::')!r}"
        )
    return parts[0], parts[1]


class UniformValues:
    """The values of TFLite's benchmark_model: uniform, floats from -0.5 to 0.5."""

    def real(self, rng: np.random.Generator, shape: Shape) -> np.ndarray:
        return np.asarray(rng.uniform(-0.5, 0.5, shape))

    def integers(self, rng: np.random.Generator, shape: Shape, dtype: np.dtype) -> np.ndarray:
        """Almost all of the dtype's range, or 0 to 99 if it may be an index."""
        limits = _INTEGERS.get((dtype.kind, dtype.itemsize), _INDICES)
        return _integers(rng, limits, shape, dtype)

    def strings(self, rng: np.random.Generator, shape: Shape) -> np.ndarray:  # noqa: ARG002
        return np.full(shape, _TEXT, object)


@dataclasses.dataclass(frozen=True)
class NormalValues:
    """The values of TFLite's inference_diff: a truncated normal distribution, from -1 to 1."""

    index_range: Range = _INDICES  # integers with 4 and 8 bytes, which may be indices

    def real(self, rng: np.random.Generator, shape: Shape) -> np.ndarray:
        return _normal(rng, shape) * 2 - 1

    def integers(self, rng: np.random.Generator, shape: Shape, dtype: np.dtype) -> np.ndarray:
        """The dtype's range for 8 and 16 bits, `index_range` for more."""
        if dtype.itemsize > 2:
            return _integers(rng, self.index_range, shape, dtype)
        info = np.iinfo(dtype)
        steps = _normal(rng, shape) * (int(info.max) - int(info.min) + 1)
        values: np.ndarray = np.floor(steps) + info.min
        return values.astype(dtype)

    def strings(self, rng: np.random.Generator, shape: Shape) -> np.ndarray:
        letters = rng.integers(ord("a"), ord("z") + 1, (*shape, 8), np.uint8)
        return np.ascontiguousarray(letters).view("S8")[..., 0].astype(object)


def _integers(rng: np.random.Generator, limits: Range, shape: Shape, dtype: np.dtype) -> np.ndarray:
    return np.asarray(rng.integers(*limits, shape, dtype, endpoint=True))


def _normal(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    values = np.asarray(rng.normal(_MEAN, _DEVIATION, shape))
    while (outside := (values < 0) | (values >= 1)).any():
        values[outside] = rng.normal(_MEAN, _DEVIATION, int(outside.sum()))
    return values


class InputSource:
    """Draws a new set of input arrays for each run; values from files are the same in all."""

    def __init__(
        self,
        inputs: Iterable[tuple[InputLayer, np.dtype]],
        distribution: UniformValues | NormalValues,
        seed: int,
    ) -> None:
        self._inputs = [(layer, np.dtype(dtype)) for layer, dtype in inputs]
        self._distribution = distribution
        self._rng = np.random.default_rng(seed)
        for layer, dtype in self._inputs:
            _check_range(layer, dtype)
        self._stored = [
            None if layer.path is None else read_input(layer.path, layer.name, layer.shape, dtype)
            for layer, dtype in self._inputs
        ]

    def __call__(self) -> list[np.ndarray]:
        return [
            self._random(*row) if stored is None else stored
            for row, stored in zip(self._inputs, self._stored, strict=True)
        ]

    def _random(self, layer: InputLayer, dtype: np.dtype) -> np.ndarray:
        rng, draw, shape = self._rng, self._distribution, layer.shape
        if dtype.kind in "OSU":
            return draw.strings(rng, shape)
        if dtype.kind == "b":
            return np.asarray(rng.integers(0, 2, shape)).astype(bool)
        if dtype.kind in "iu":
            if layer.range is not None:
                return _integers(rng, layer.range, shape, dtype)
            return draw.integers(rng, shape, dtype)
        values = draw.real(rng, shape)
        if dtype.kind == "c":
            values = values + 1j * draw.real(rng, shape)
        return values.astype(dtype)


def _check_range(layer: InputLayer, dtype: np.dtype) -> None:
    if layer.range is None or dtype.kind not in "iu":
        return
    (low, high), info = layer.range, np.iinfo(dtype)
    if not info.min <= low <= high <= info.max:
        raise OptionError(
            f"input_layer_value_range: {layer.name!r} is {dtype}: expected low,high from "
            f"{info.min} to {info.max}, got {low},{high}"
        )


def read_input(
    path: str | os.PathLike[str], name: str, shape: Shape, dtype: np.dtype
) -> np.ndarray:
    """Read an input's values: raw in C order, null-separated strings, or a .npy file."""
    if dtype.kind in "OSU":
        return _read_strings(path, name, shape)
    if Path(path).suffix == ".npy":
        return _read_npy(path, name, shape, dtype)
    content = Path(path).read_bytes()
    expected = math.prod(shape) * dtype.itemsize
    if len(content) != expected:
        raise OptionError(
            f"{path}: input {name!r} is {dtype} {list(shape)}, which takes {expected} bytes, "
            f"got {len(content)}"
        )
    return np.frombuffer(content, dtype).reshape(shape).copy()


def load_array(path: str | os.PathLike[str]) -> np.ndarray:
    array = load_arrays(path, ".npy file")
    if isinstance(array, dict):
        raise OptionError(f"{os.fspath(path)} is not a .npy file: it is an archive")
    return array


def load_arrays(
    path: str | os.PathLike[str], kind: str = ".npy or .npz file"
) -> np.ndarray | dict[str, np.ndarray]:
    """The array of a .npy file, or those of a .npz file by name; errors name the kind of file."""
    try:
        if zipfile.is_zipfile(path):
            with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as archive:
                return dict(archive)
        # A memory map checks the declared shape against the file's size before an allocation.
        return np.array(np.lib.format.open_memmap(path, mode="r"))
    except (ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise OptionError(f"{os.fspath(path)} is not a {kind}: {error}") from error


def _read_npy(path: str | os.PathLike[str], name: str, shape: Shape, dtype: np.dtype) -> np.ndarray:
    array = load_array(path)
    if array.shape != shape or array.dtype != dtype:
        raise OptionError(
            f"{path}: input {name!r} is {dtype} {list(shape)}, "
            f"got {array.dtype} {list(array.shape)}"
        )
    return array


def _read_strings(path: str | os.PathLike[str], name: str, shape: Shape) -> np.ndarray:
    """Read null-separated strings; a .pb file is one string, as in TFLite's tools."""
    content = Path(path).read_bytes()
    is_one = Path(path).suffix == ".pb"
    items = [content] if is_one else content.removesuffix(b"\0").split(b"\0")
    if len(items) != math.prod(shape):
        raise OptionError(
            f"{path}: input {name!r} is {math.prod(shape)} strings {list(shape)}, got {len(items)}"
        )
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)
