"""The part of a model that a user selects, and its options. Reads no model."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxdelegate.errors import OptionError
from jaxdelegate.options import DelegateOptions
from jaxdelegate.passes.limits import Limits

# JaxDelegate's options that change a program, except those that are up to the caller here.
_KEYED = {field.name for field in dataclasses.fields(DelegateOptions) if field.metadata["keyed"]}
_OPTIONS = (_KEYED - {"donate_inputs", "device_index"}) | {"max_programs", "max_program_bytes"}


@dataclasses.dataclass(frozen=True)
class View:
    """The part of a model to compute, and how."""

    options: DelegateOptions
    limits: Limits
    inputs: tuple[str, ...] | None = None  # instead of the main subgraph's inputs; None: these
    outputs: tuple[str, ...] | None = None  # instead of its outputs; None: these
    batch: int | str | None = None  # the batch size, or a name for any size; None: the file's
    prepared: DelegateOptions | None = None  # for prepared weights; None: `options`
    follows_xnnpack: bool = False  # with prepared weights: see `ProgramTraits`

    @property
    def is_cut(self) -> bool:
        """Whether it is only a part of the graph."""
        return self.inputs is not None or self.outputs is not None


def whole(options: Mapping[str, Any] | DelegateOptions | None, limits: Limits, **more: Any) -> View:
    """The view of all of a model, with the options that `load` takes.

    Raises:
        OptionError: an option is unknown, has an invalid value, or does not apply.
    """
    asked = chosen = DelegateOptions.of(options, **more)
    if chosen.quant_mode == "auto":
        chosen = dataclasses.replace(chosen, quant_mode="float_view")
    wrong = sorted(set(chosen.changed()) - _OPTIONS)
    if wrong:
        raise OptionError(
            f"load: {wrong[0]} is an option for delegates in interpreters; "
            f"these apply here: {', '.join(sorted(_OPTIONS))}"
        )
    return View(chosen, limits, prepared=asked)
