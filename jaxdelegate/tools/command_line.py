"""A tool's command line: flags declared from tables, and the checks that need no tool.

A tool is a module of this package with `FLAGS` and `run(values)`, and where it needs them:
`DELEGATES = True` (it has the flags of all delegates), `OPTIONS` (it has the flags of these options
of JaxDelegate) and `ACTIONS` (words of which one must be given; `run` gets it).
"""

import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from absl import flags

from jaxdelegate import providers
from jaxdelegate.errors import OptionError
from jaxdelegate.providers.builtin import aliases
from jaxdelegate.providers.parsing import Flag
from jaxdelegate.tools import delegate_flags

DELEGATES = "delegates"  # the module name under which --help lists the delegates' flags
COMMON = "common"  # the module name of the flags that every tool has
# Flags of several tools.
GRAPH = Flag("graph", str, None, "The .tflite file, or BUNDLE!PART.", is_required=True)
INPUT_LAYER = Flag("input_layer", str, "", "Names of the inputs to resize: a,b.")
INPUT_LAYER_SHAPE = Flag("input_layer_shape", str, "", "Their shapes: 1,224,224,3:1,10.")
RESULT_JSON = Flag("result_json", str, "", "Write the result here as JSON.", is_output=True)

# The model is --graph in TFLite's benchmark, --model_file in its evaluation.
_MODEL = ("graph", "model_file")
_OTHER_NAMES = (_MODEL, _MODEL[::-1], ("denylist_file_path", "blacklist_file_path"))


def declared(tool: ModuleType) -> flags.FlagValues:
    values = flags.FlagValues()
    flags.DEFINE_bool("help", False, "Show the common flags.", values, COMMON, short_name="h")
    flags.DEFINE_bool("helpfull", False, "Show all of the tool's flags.", values, COMMON)
    define(tool.FLAGS, values, tool.__name__)
    options = getattr(tool, "OPTIONS", ())
    names = {name for o in options for name in (f"jax_{o}", *aliases(o))}
    has_all = getattr(tool, "DELEGATES", False)
    define((f for f in providers.all_flags() if has_all or f.name in names), values, DELEGATES)
    for name, other in _OTHER_NAMES:
        if name in values and other not in values:
            flags.DEFINE_alias(other, name, values, values.find_module_defining_flag(name))
    return values


def define(declared: Iterable[Any], values: flags.FlagValues, module: str) -> None:
    """Declare Flag records or absl flags in `values`; `--help` lists them under `module`."""
    counter = itertools.count(1)
    for flag in declared:
        flags.DEFINE_flag(_ordered(flag, counter), values, module)


def with_model(values: flags.FlagValues, arguments: Sequence[str]) -> Sequence[str]:
    """Take the model from arguments that are no flags; returns the others."""
    if not arguments or _MODEL[0] not in values:
        return arguments
    if any(values[name].present for name in _MODEL if name in values):
        raise OptionError(f"{arguments[0]!r} and --{_MODEL[0]}: give one .tflite file, got 2")
    values(["", f"--{_MODEL[0]}={arguments[0]}"])
    return arguments[1:]


def check(tool: ModuleType, values: flags.FlagValues) -> None:
    """Refuse what cannot work, before the work starts; resolve the delegates' short names."""
    present = [values[name].present for name in _MODEL if name in values]
    if all(present) and len(set(present)) > 1:  # an alias on the command line counts for both names
        raise OptionError("--graph (or --model_file): give one .tflite file, got 2")
    for flag in tool.FLAGS:
        if flag.is_required and not values[flag.name].value:
            raise OptionError(f"--{flag.name} is required: {_help(flag).rstrip('.')}")
    if "delegate" in values:
        delegate_flags.apply_short_names(values)
    for flag in tool.FLAGS:
        if flag.is_output and values[flag.name].value:
            _check_output(flag.name, Path(values[flag.name].value))


def _check_output(name: str, path: Path) -> None:
    folder = path.absolute().parent
    if not folder.is_dir():
        raise OptionError(f"{name}: {path}: no such folder")
    if path.is_dir() or not os.access(folder, os.W_OK):
        raise OptionError(f"{name}: {path}: cannot be written")


def with_underscores(arguments: Iterable[str]) -> list[str]:
    """The arguments with flags as declared: `--top-k=4`, as in `litert-lm`, is `--top_k=4`."""
    spelled = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        is_flag = name.startswith("--")
        spelled.append("--" + name[2:].replace("-", "_") + equals + value if is_flag else argument)
    return spelled


class _OrderedFlag(flags.Flag):  # type: ignore[misc]  # absl has no types
    """`position` is the flag's place on the command line, from 1; 0: nowhere."""

    def __init__(self, counter: itertools.count, *arguments: Any, **more: Any) -> None:
        self._counter = counter
        self.position = 0
        super().__init__(*arguments, **more)

    def parse(self, argument: Any) -> None:
        super().parse(argument)
        self.position = next(self._counter)


class _RepeatedFlag(_OrderedFlag):
    """Its value is a list of all values on the command line."""

    value: Any

    def parse(self, argument: Any) -> None:
        before = self.value or []
        super().parse(argument)
        self.value = [*before, self.value]


def _ordered(flag: Any, counter: itertools.count) -> _OrderedFlag:
    if isinstance(flag, Flag):
        is_boolean, text = flag.type is bool, _help(flag)
        parser = _parser(flag)
        serializer = None if is_boolean else flags.ArgumentSerializer()  # None: true, not True
    else:
        parser, serializer = flag.parser, flag.serializer
        is_boolean, text = flag.boolean, flag.help
    kind = _RepeatedFlag if getattr(flag, "repeats", False) else _OrderedFlag
    return kind(
        counter,
        parser,
        serializer,
        flag.name,
        flag.default,
        text,
        short_name=getattr(flag, "short", None) or None,
        boolean=is_boolean,
    )


def _help(flag: Flag) -> str:
    values = "|".join(filter(None, flag.choices))
    return f"<{values}>: {flag.help}" if values else flag.help


def _parser(flag: Flag) -> Any:
    if flag.choices:
        return flags.EnumParser(list(flag.choices))
    if flag.type in (int, float):
        parser = flags.IntegerParser if flag.type is int else flags.FloatParser
        return parser(flag.lower, flag.upper)
    return flags.BooleanParser() if flag.type is bool else flags.ArgumentParser()
