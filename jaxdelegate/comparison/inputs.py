"""The inputs of both sides: reproducible random arrays, or files."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.comparison.sides import ModelPath, Reference
from jaxdelegate.errors import InterpreterError, OptionError
from jaxdelegate.measuring.inputs import (
    InputLayer,
    InputSource,
    NormalValues,
    Range,
    Shape,
    parse_input_flags,
)
from jaxdelegate.text import printable

Details = Sequence[Mapping[str, Any]]

# Integers of 32 and 64 bits are often indices or lengths, whose valid range is known only by trial.
# The first range is that of TFLite's benchmark tool.
INDEX_RANGES = ((0, 99), (0, 9), (0, 1))


@dataclasses.dataclass(frozen=True)
class InputSettings:
    """Where the inputs come from. The mappings are by input name; every entry is optional."""

    seed: int = 0  # of the random values
    # Shapes that replace those of the file, whose free dimensions are 1.
    shapes: Mapping[str, Shape] = dataclasses.field(default_factory=dict)
    # Smallest and largest value of an integer input.
    ranges: Mapping[str, Range] = dataclasses.field(default_factory=dict)
    # Raw bytes in the tensor's dtype and C order, or a .npy file, used in every run.
    files: Mapping[str, str | os.PathLike[str]] = dataclasses.field(default_factory=dict)
    # The range of other integer inputs of 32 and 64 bits; None: the first of INDEX_RANGES with
    # which the model runs.
    index_range: Range | None = None

    def source(self, details: Details) -> InputSource:
        names = [str(detail["name"]) for detail in details]
        for name in (*self.shapes, *self.ranges, *self.files):
            if name not in names:
                raise OptionError(
                    f"input {name!r}: the model has no such input; it has: "
                    f"{printable(', '.join(names))}"
                )
        values = NormalValues(self.index_range or INDEX_RANGES[0])
        return InputSource([(self._layer(d), d["dtype"]) for d in details], values, self.seed)

    def draws_indices(self, details: Details) -> bool:
        fixed = {*self.ranges, *self.files}
        dtypes = [np.dtype(d["dtype"]) for d in details if d["name"] not in fixed]
        return any(dtype.kind in "iu" and dtype.itemsize > 2 for dtype in dtypes)

    def _layer(self, detail: Mapping[str, Any]) -> InputLayer:
        name = str(detail["name"])
        shape = self.shapes.get(name)
        if shape is None:
            shape = tuple(int(n) for n in np.maximum(detail["shape"], 1))
        elif min(shape, default=1) < 0 or 0 < len(detail["shape"]) != len(shape):
            raise OptionError(
                f"input {name!r}: expected {len(detail['shape'])} dimensions, "
                f"none of them negative, got {list(shape)}"
            )
        return InputLayer(name, tuple(shape), self.ranges.get(name), self.files.get(name))


def parse_inputs(
    *, seed: int = 0, names: str = "", shapes: str = "", ranges: str = "", files: str = ""
) -> InputSettings:
    flags = parse_input_flags(names, shapes, ranges, files)
    return InputSettings(seed, flags.shapes, flags.ranges, flags.files)


def with_usable_indices(settings: InputSettings, model: ModelPath, reference: str) -> InputSettings:
    """The settings with a range of integer inputs, which may be indices, that the model can run."""
    side = Reference(reference, model)
    details = side.runner().interpreter.get_input_details()
    if settings.index_range is not None or not settings.draws_indices(details):
        return settings
    for index_range in INDEX_RANGES:
        settled = dataclasses.replace(settings, index_range=index_range)
        try:
            side.runner()(settled.source(details)())
        except InterpreterError as error:
            failure = error
        else:
            return settled
    raise InterpreterError(f"{failure}; set the range of integer inputs: --input_layer_value_range")
