"""The model's two names: --graph, as in TFLite's benchmark, --model_file, as in its evaluation."""

from collections.abc import Sequence

from absl import flags

from jaxdelegate.errors import OptionError

NAMES = ("graph", "model_file")


def define_alias(values: flags.FlagValues) -> None:
    """Declare the other name where a tool has declared one of them."""
    for name, other in (NAMES, NAMES[::-1]):
        if name in values and other not in values:
            module = values.find_module_defining_flag(name)
            flags.DEFINE_alias(other, name, flag_values=values, module_name=module)
            return


def with_flag(values: flags.FlagValues, arguments: Sequence[str]) -> list[str]:
    """The arguments with `--graph=` before a first one that is no flag: the model.

    Raises:
        OptionError: a flag names a model, too.
    """
    if not arguments or arguments[0].startswith("-") or NAMES[0] not in values:
        return list(arguments)
    if any(a.lstrip("-").partition("=")[0] in NAMES for a in arguments[1:]):
        raise OptionError(f"{arguments[0]!r} and --{NAMES[0]}: give one .tflite file, got 2")
    return [f"--{NAMES[0]}={arguments[0]}", *arguments[1:]]


def check(values: flags.FlagValues) -> None:
    """Refuse two models.

    Raises:
        OptionError: both names are given.
    """
    given = [values[name].present for name in NAMES if name in values]
    if all(given) and len(set(given)) > 1:  # what the alias was given, the other was given, too
        raise OptionError("--graph (or --model_file): give one .tflite file, got 2")
