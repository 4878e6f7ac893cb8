"""Delegates and interpreters from a tool's flags."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from absl import flags

from jaxdelegate import providers
from jaxdelegate.errors import OptionError
from jaxdelegate.options import DelegateOptions
from jaxdelegate.providers import FlagValues
from jaxdelegate.providers.builtin import aliases, jax_options
from jaxdelegate.providers.parsing import Flag

# --delegate -> the delegate's own flag.
_DELEGATES = {"jax": "use_jax", "gpu": "use_gpu", "xnnpack": "use_xnnpack"}
_ABSENT = ("nnapi", "hexagon", "coreml")
# The names that TFLite's evaluation tools have for delegates and threads.
SHORT_NAMES = (
    Flag(
        "num_interpreter_threads", int, None,
        "The name of --num_threads in TFLite's evaluation tools.", lower=1,
    ),
    Flag(
        "delegate", str, None,
        "Short for --use_jax, --use_gpu or --use_xnnpack; the others are not available here.",
        (*_DELEGATES, *_ABSENT),
    ),
)  # fmt: skip


def apply_short_names(values: flags.FlagValues) -> None:
    """Set the delegates' flags from SHORT_NAMES; call it once, before they are read."""
    if values.delegate in _ABSENT:
        raise OptionError(
            f"--delegate: {values.delegate!r} is not available here; choose one of "
            f"{', '.join(_DELEGATES)}"
        )
    if values.delegate:
        _set(values, "delegate", _DELEGATES[values.delegate], "true")
    if values.num_interpreter_threads is not None:
        _set(values, "num_interpreter_threads", "num_threads", values.num_interpreter_threads)


def _set(values: flags.FlagValues, name: str, other: str, value: object) -> None:
    flag = values[other]
    before, is_given = flag.value, flag.present
    flag.parse(str(value))
    if is_given and flag.value != before:
        raise OptionError(
            f"--{name}={values[name].value} and --{other}={before} contradict each other; give one"
        )


def read(values: flags.FlagValues) -> FlagValues:
    """The values of the providers' flags, for code outside of tools.

    Flags that the tool does not have are as if they were not given.
    """
    declared = {flag.name: flag for flag in providers.all_flags()}
    ours = [name for name in declared if name in values]
    positions = {name: values[name].position for name in ours if values[name].present}
    defaults = {name: flag.default for name, flag in declared.items()}
    return FlagValues(defaults | {name: values[name].value for name in ours}, positions)


def options(values: flags.FlagValues) -> DelegateOptions:
    return jax_options(read(values))


def given_options(values: flags.FlagValues) -> dict[str, Any]:
    """The options of JaxDelegate that the command line sets, by either name."""
    all_options = options(values)
    return {
        field.name: getattr(all_options, field.name)
        for field in dataclasses.fields(DelegateOptions)
        if any(
            values[n].present for n in (f"jax_{field.name}", *aliases(field.name)) if n in values
        )
    }


def delegates(values: flags.FlagValues) -> list[Any]:
    """The delegates that the flags request, as `providers.create_delegates` orders them."""
    return [row.delegate for row in providers.create_delegates(read(values))]


def interpreter(
    values: flags.FlagValues,
    model: str | os.PathLike[str] | bytes,
    chosen: Sequence[Any] | None = None,
    *,
    preserve_all_tensors: bool = False,
) -> Any:
    """The interpreter that `--interpreter` names, with delegates applied, not yet allocated.

    The delegates of None are those that the flags request. The result is a jaxdelegate.Interpreter,
    or the stock one: both have the same methods.
    """
    chosen = delegates(values) if chosen is None else chosen
    return providers.open_interpreter(
        read(values), model, chosen, preserve_all_tensors=preserve_all_tensors
    )
