"""How a function computes: the arguments of `CallableModel.function`, checked."""

import dataclasses
from typing import Literal, get_args

from jaxdelegate.errors import OptionError
from jaxdelegate.function.forms import PLATFORMS

Io = Literal["file", "float"]
Weights = Literal["file", "fake_quantized"]
Ranges = Literal["kept", "learned"]


@dataclasses.dataclass(frozen=True)
class Mode:
    """What `function` was asked for.

    Attributes:
        io: "float": quantized inputs, outputs and states are the floats that they stand for.
        platform: the only one to lower for; None: whatever XLA compiles for.
        weights: "fake_quantized": put on their grids in every call.
        ranges: "learned": the scales are parameters.
    """

    io: Io = "file"
    platform: str | None = None
    weights: Weights = "file"
    ranges: Ranges = "kept"

    @property
    def on_grid(self) -> bool:
        """Whether weights are put on their grids."""
        return self.weights == "fake_quantized"

    @property
    def learns(self) -> bool:
        """Whether scales are parameters."""
        return self.ranges == "learned"


AS_STORED = Mode()


def checked(mode: Mode, quant_mode: str) -> Mode:
    """The same mode.

    Raises:
        OptionError: an unknown value, or one that `quant_mode` has no use for.
    """
    for field, values in ("io", Io), ("weights", Weights), ("ranges", Ranges):
        known, given = get_args(values), getattr(mode, field)
        if given not in known:
            raise OptionError(f"{field}: want {' or '.join(map(repr, known))}, got {given!r}")
    if mode.platform is not None and mode.platform not in PLATFORMS:
        raise OptionError(f"platform: want one of {', '.join(PLATFORMS)}, got {mode.platform!r}")
    if (mode.on_grid or mode.learns) and quant_mode != "float_view":
        which = f"weights={mode.weights!r}" if mode.on_grid else f"ranges={mode.ranges!r}"
        raise OptionError(
            f"{which} trains the floats that integers stand for, and this model was loaded with "
            f"quant_mode={quant_mode!r}: load it with quant_mode='float_view', the default"
        )
    return mode
