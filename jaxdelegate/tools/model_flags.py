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


def take(values: flags.FlagValues, rest: Sequence[str]) -> list[str]:
    """Read a first argument that is no flag as the model; answers the others.

    Raises:
        OptionError: a flag names a model, too.
    """
    name = next((name for name in NAMES if name in values), None)
    if not rest or name is None:
        return list(rest)
    if any(values[n].present for n in NAMES if n in values):
        raise OptionError(f"{rest[0]!r}: --{name} names the model already; give one")
    values[name].parse(rest[0])
    values[name].using_default_value = False
    return list(rest[1:])


def check(values: flags.FlagValues) -> None:
    """Refuse two models.

    Raises:
        OptionError: both names are given.
    """
    given = [values[name].present for name in NAMES if name in values]
    if all(given) and len(set(given)) > 1:  # what the alias was given, the other was given, too
        raise OptionError("--graph (or --model_file): give one .tflite file, got 2")
