"""What both sides are fed: reproducible random arrays, or files."""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdelegate.errors import OptionError

Details = Sequence[Mapping[str, Any]]

# Integers of 32 and 64 bits are often indices or lengths: what fits the model must be tried. The
# first range is that of TFLite's benchmark tool.
INDEX_RANGES = ((0, 99), (0, 9), (0, 1))
_MEAN, _DEVIATION = 0.5, 1 / 3  # of TFLite's inference_diff, cut to [0, 1)


@dataclasses.dataclass(frozen=True)
class InputChoice:
    """Where the inputs come from; the mappings go by input name, all may be left out.

    Attributes:
        seed: of the random values.
        shapes: shapes other than the file's; open dimensions are 1 otherwise.
        ranges: smallest and largest value of an integer input.
        files: raw bytes in the tensor's dtype and C order, or a .npy file, used in every run.
        index_range: of all other integer inputs of 32 and 64 bits; None: the first of INDEX_RANGES
            that the model can run with.
    """

    seed: int = 0
    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    ranges: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    files: Mapping[str, str | os.PathLike[str]] = dataclasses.field(default_factory=dict)
    index_range: tuple[int, int] | None = None


def parse_inputs(
    *, seed: int = 0, names: str = "", shapes: str = "", ranges: str = "", files: str = ""
) -> InputChoice:
    """A choice from flags as TFLite's benchmark tool writes them.

    Args:
        seed: of the random values.
        names: `input_layer`: `a,b`; what `shapes` belong to, in this order.
        shapes: `input_layer_shape`: `1,224,224,3:1,10`.
        ranges: `input_layer_value_range`: `a,low,high:b,low,high`.
        files: `input_layer_value_files`: `a:path,b:path`. In both, `::` is a colon in a name.

    Raises:
        OptionError: a text that does not read as such.
    """
    layers = [name for name in names.split(",") if name]
    sizes = [_integers("input_layer_shape", text) for text in shapes.split(":") if text]
    if sizes and len(sizes) != len(layers):
        raise OptionError(
            f"input_layer_shape: wants one shape for each input_layer, {len(layers)}, "
            f"got {len(sizes)}"
        )
    return InputChoice(
        seed,
        dict(zip(layers, sizes, strict=False)),
        dict(map(_named_range, _split(ranges, ":"))),
        dict(map(_named_file, _split(files, ","))),
    )


def _split(text: str, separator: str) -> list[str]:
    """The items of a list, with every `::` as a colon that separates nothing: NUL."""
    return [item for item in text.replace("::", "\0").split(separator) if item]


def _named_range(item: str) -> tuple[str, tuple[int, int]]:
    name, *bounds = item.replace("\0", ":").rsplit(",", 2)
    if not name or len(bounds) != 2:
        raise OptionError(f"input_layer_value_range: wants name,low,high, got {item!r}")
    low, high = _integers("input_layer_value_range", ",".join(bounds))
    return name, (low, high)


def _named_file(item: str) -> tuple[str, str]:
    name, colon, path = (part.replace("\0", ":") for part in item.partition(":"))
    if not (name and colon and path):
        raise OptionError(f"input_layer_value_files: wants name:path, got {item!r}")
    return name, path


def _integers(flag: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(n) for n in text.split(","))
    except ValueError:
        raise OptionError(f"{flag}: wants integers with commas between, got {text!r}") from None


class InputSource:
    """Arrays for one model, a new set for each run."""

    def __init__(self, details: Details, choice: InputChoice) -> None:
        """Check the choice against the model's inputs and read the files.

        Args:
            details: of `get_input_details()`.
            choice: what the user asked for.

        Raises:
            OptionError: a name that the model has not, or a file or shape that does not fit.
            OSError: a file cannot be read.
        """
        self._details = details
        self._choice = choice
        self._rng = np.random.default_rng(choice.seed)
        names = [str(detail["name"]) for detail in details]
        for what in ("shapes", "ranges", "files"):
            for name in getattr(choice, what):
                if name not in names:
                    raise OptionError(
                        f"input {name!r}: the model has no such input; it has: {', '.join(names)}"
                    )
        self._stored = {
            str(d["name"]): _read(choice.files[d["name"]], d["name"], self._shape(d), d["dtype"])
            for d in details
            if d["name"] in choice.files
        }

    def __call__(self) -> list[np.ndarray]:
        """The arrays of the next run, in the order of the inputs."""
        return [
            self._stored[d["name"]] if d["name"] in self._stored else np.asarray(self._random(d))
            for d in self._details
        ]

    @property
    def draws_indices(self) -> bool:
        """Whether an input is drawn from `index_range`."""
        given = {*self._choice.ranges, *self._choice.files}
        dtypes = [np.dtype(d["dtype"]) for d in self._details if d["name"] not in given]
        return any(dtype.kind in "iu" and dtype.itemsize > 2 for dtype in dtypes)

    def _shape(self, detail: Mapping[str, Any]) -> tuple[int, ...]:
        given = self._choice.shapes.get(detail["name"])
        if given is None:
            return tuple(int(n) for n in np.maximum(detail["shape"], 1))
        if min(given, default=1) < 0 or 0 < len(detail["shape"]) != len(given):
            raise OptionError(
                f"input {detail['name']!r}: wants {len(detail['shape'])} dimensions, "
                f"none of them negative, got {list(given)}"
            )
        return tuple(given)

    def _random(self, detail: Mapping[str, Any]) -> np.ndarray:
        name, shape, dtype = detail["name"], self._shape(detail), np.dtype(detail["dtype"])
        if dtype.kind in "OSU":
            letters = self._rng.integers(ord("a"), ord("z") + 1, (*shape, 8), np.uint8)
            return np.ascontiguousarray(letters).view("S8")[..., 0].astype(object)
        if dtype.kind == "b":
            return self._rng.integers(0, 2, shape).astype(bool)
        if dtype.kind in "iu":
            return self._integers(name, shape, dtype)
        real = self._normal(shape) * 2 - 1
        if dtype.kind == "c":
            real = real + 1j * (self._normal(shape) * 2 - 1)
        return real.astype(dtype)

    def _integers(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        info = np.iinfo(dtype)
        if name in self._choice.ranges:
            low, high = self._choice.ranges[name]
            if not info.min <= low <= high <= info.max:
                raise OptionError(
                    f"input {name!r}: the range must be low,high within {dtype}, got {low},{high}"
                )
            return self._rng.integers(low, high, shape, dtype, endpoint=True)
        if dtype.itemsize > 2:
            low, high = self._choice.index_range or INDEX_RANGES[0]
            return self._rng.integers(low, high, shape, dtype, endpoint=True)
        steps = self._normal(shape) * (int(info.max) - int(info.min) + 1)
        values: np.ndarray = np.floor(steps) + info.min
        return values.astype(dtype)

    def _normal(self, shape: tuple[int, ...]) -> np.ndarray:
        """A normal distribution around 1/2, cut to [0, 1) by drawing again."""
        values = np.asarray(self._rng.normal(_MEAN, _DEVIATION, shape))
        while (outside := (values < 0) | (values >= 1)).any():
            values[outside] = self._rng.normal(_MEAN, _DEVIATION, int(outside.sum()))
        return values


def _read(
    path: str | os.PathLike[str], name: str, shape: tuple[int, ...], dtype: Any
) -> np.ndarray:
    dtype = np.dtype(dtype)
    if dtype.kind in "OSU":
        return _read_strings(path, name, shape)
    if Path(path).suffix == ".npy":
        try:
            array: np.ndarray = np.load(path, allow_pickle=False)
        except ValueError as error:
            raise OptionError(f"{path}: not a .npy file: {error}") from error
        if array.shape != shape or array.dtype != dtype:
            raise OptionError(
                f"{path}: input {name!r} wants {dtype} {list(shape)}, "
                f"got {array.dtype} {list(array.shape)}"
            )
        return array
    content = Path(path).read_bytes()
    n = math.prod(shape) * dtype.itemsize
    if len(content) != n:
        raise OptionError(
            f"{path}: input {name!r} wants {dtype} {list(shape)}, {n} bytes, got {len(content)}"
        )
    return np.frombuffer(content, dtype).reshape(shape).copy()


def _read_strings(path: str | os.PathLike[str], name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Strings with null characters between; a .pb file is one string, as for TFLite's tools."""
    content = Path(path).read_bytes()
    is_one = Path(path).suffix == ".pb"
    items = [content] if is_one else content.removesuffix(b"\0").split(b"\0")
    if len(items) != math.prod(shape):
        raise OptionError(
            f"{path}: input {name!r} wants {math.prod(shape)} strings {list(shape)}, "
            f"got {len(items)}"
        )
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)
