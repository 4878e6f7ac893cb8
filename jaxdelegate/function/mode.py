"""The mode of a function: the arguments of `CallableModel.function`, checked."""

import dataclasses
from typing import Literal, get_args

from jaxdelegate.errors import OptionError
from jaxdelegate.function.forms import PLATFORMS
from jaxdelegate.model.io_types import Side
from jaxdelegate.op_lowering.records.enums import TensorType

Io = Literal["file", "float"]
FileIo = Literal["file", "float", "float32", "int8", "uint8", "int16"]  # "float" is "float32"
_TYPES = {
    "float": TensorType.FLOAT32,
    "float32": TensorType.FLOAT32,
    "int8": TensorType.INT8,
    "uint8": TensorType.UINT8,
    "int16": TensorType.INT16,
}
Weights = Literal["file", "fake_quantized", "prepared"]
Ranges = Literal["kept", "learned"]


@dataclasses.dataclass(frozen=True)
class Mode:
    """How a function computes.

    Attributes:
        io: "float": quantized inputs, outputs and states are float32.
        platform: the only platform to lower for; None: any that XLA may compile for.
        weights: "fake_quantized": every call rounds quantized weights to their grids; "prepared":
            the parameters are laid out for a device.
        ranges: "learned": the scales are parameters.
    """

    io: Io = "file"
    platform: str | None = None
    weights: Weights = "file"
    ranges: Ranges = "kept"

    @property
    def on_grid(self) -> bool:
        return self.weights == "fake_quantized"

    @property
    def is_prepared(self) -> bool:
        return self.weights == "prepared"

    @property
    def learns(self) -> bool:
        return self.ranges == "learned"


AS_STORED = Mode()


def checked(mode: Mode, quant_mode: str) -> Mode:
    """Check a mode's values, and that `quant_mode` supports them; return the mode."""
    for field, values in ("io", Io), ("weights", Weights), ("ranges", Ranges):
        known, given = get_args(values), getattr(mode, field)
        if given not in known:
            raise OptionError(f"{field}: expected {' or '.join(map(repr, known))}, got {given!r}")
    if mode.platform is not None and mode.platform not in PLATFORMS:
        platforms = ", ".join(PLATFORMS)
        raise OptionError(f"platform: expected one of {platforms}, got {mode.platform!r}")
    if mode.is_prepared and mode.learns:
        raise OptionError(
            "weights='prepared' is for inference: expected ranges='kept', got 'learned'"
        )
    if (mode.on_grid or mode.learns) and quant_mode != "float_view":
        which = f"weights={mode.weights!r}" if mode.on_grid else f"ranges={mode.ranges!r}"
        raise OptionError(
            f"{which} trains quantized weights as floats, but this model was loaded with "
            f"quant_mode={quant_mode!r}: load it with quant_mode='float_view', the default"
        )
    return mode


def io_types(io: FileIo | tuple[FileIo, FileIo]) -> dict[Side, TensorType]:
    """The types of a file's quantized inputs and outputs to which `io` of `save` changes them."""
    pair = io if isinstance(io, tuple) else (io, io)
    known = get_args(FileIo)
    if len(pair) != 2 or any(name not in known for name in pair):
        raise OptionError(
            f"save: io: expected one of {', '.join(map(repr, known))}, or a pair for inputs and "
            f"outputs, got {io!r}"
        )
    named = zip(get_args(Side), pair, strict=True)
    return {side: _TYPES[name] for side, name in named if name != "file"}
