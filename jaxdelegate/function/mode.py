"""The mode of a function: the arguments of `CallableModel.function`, checked."""

import dataclasses
from typing import Literal, get_args

from jaxdelegate.errors import OptionError

# jax's names of platforms, which exports accept, and those that rules use.
PLATFORMS = {"cpu": "cpu", "cuda": "gpu", "rocm": "gpu", "gpu": "gpu", "tpu": "tpu"}
Io = Literal["file", "float"]
Weights = Literal["file", "fake_quantized", "prepared"]
Ranges = Literal["kept", "learned"]


@dataclasses.dataclass(frozen=True)
class Mode:
    """How a function computes."""

    # "float": quantized inputs, outputs and states are float32; "reduced", which is not for users:
    # float32 inputs may be float16 or bfloat16, and then outputs that are such an input, changed in
    # part, are likewise.
    io: Io | Literal["reduced"] = "file"
    # The only platform to lower for; None: any that XLA may compile for.
    platform: str | None = None
    # "fake_quantized": every call rounds quantized weights to their grids; "prepared": the
    # parameters are laid out for a device.
    weights: Weights = "file"
    ranges: Ranges = "kept"  # "learned": the scales are parameters

    @property
    def device(self) -> str | None:
        """The only platform by the name that rules and options use."""
        return None if self.platform is None else PLATFORMS[self.platform]

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
        known, value = get_args(values), getattr(mode, field)
        if value not in known:
            raise OptionError(f"{field}: expected {' or '.join(map(repr, known))}, got {value!r}")
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
