"""Delegates from the command line, for every tool: `define` declares, `delegates` makes them.

```python
def define(values: flags.FlagValues) -> None:
    delegate_flags.define(values)

def run(values: flags.FlagValues) -> int:
    interpreter = delegate_flags.interpreter(values, values.graph)
```
"""

import dataclasses
import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any

from absl import flags

from jaxdelegate import providers
from jaxdelegate.options import DelegateOptions
from jaxdelegate.providers import Flag, FlagValues, ProvidedDelegate
from jaxdelegate.providers.builtin import aliases, jax_options
from jaxdelegate.providers.devices import open_on_devices
from jaxdelegate.tools import help_text


def define(values: flags.FlagValues) -> None:
    """Declare the flags of every registered provider."""
    define_all(_declared(), values, help_text.DELEGATES)


def define_options(values: flags.FlagValues, *names: str) -> None:
    """Declare the flags of some options of JaxDelegate, for tools that take no other delegate."""
    wanted = {f"jax_{name}" for name in names} | {a for name in names for a in aliases(name)}
    define_all([f for f in _declared() if f.name in wanted], values, help_text.DELEGATES)


def options(values: flags.FlagValues) -> DelegateOptions:
    """JaxDelegate's options, of the flags that a tool has declared.

    Raises:
        OptionError: an impossible value or combination, or two names with different values.
    """
    declared = [providers.as_flag(flag) for flag in _declared()]
    names = [flag.name for flag in declared if flag.name in values and values[flag.name].present]
    return jax_options(FlagValues.of(declared, {name: values[name].value for name in names}))


def given_options(values: flags.FlagValues) -> dict[str, Any]:
    """Those of JaxDelegate's options that the command line names, by whichever name.

    Raises:
        OptionError: an impossible value or combination, or two names with different values.
    """
    every = options(values)
    return {
        field.name: getattr(every, field.name)
        for field in dataclasses.fields(DelegateOptions)
        if any(
            values[n].present for n in (f"jax_{field.name}", *aliases(field.name)) if n in values
        )
    }


def define_all(declared: Iterable[Any], values: flags.FlagValues, module: str) -> None:
    """Declare flags from records, for tools that keep theirs in a table.

    Args:
        declared: Flag records, or absl flags.
        values: where to.
        module: whose flags they are, for `--help`.
    """
    counter = itertools.count(1)
    for flag in declared:
        flags.DEFINE_flag(_ordered(flag, counter), values, module)


def delegates(values: flags.FlagValues) -> list[Any]:
    """The delegates that the flags ask for, in command-line order.

    JaxDelegate if nobody asks for any; an empty list with `--use_jax=false` or `--use_xnnpack`.

    Raises:
        OptionError: an impossible value or combination.
    """
    return [row.delegate for row in provided(values)]


def provided(values: flags.FlagValues) -> list[ProvidedDelegate]:
    """The same, with their providers.

    Raises:
        OptionError: an impossible value or combination.
    """
    return providers.create_delegates(read(values))


def interpreter(
    values: flags.FlagValues,
    model: str | os.PathLike[str] | bytes,
    chosen: Sequence[Any] | None = None,
    *,
    preserve_all_tensors: bool = False,
) -> Any:
    """The interpreter that `--interpreter` asks for, with delegates applied, not yet allocated.

    Args:
        values: parsed flags.
        model: a path, or the file's content.
        chosen: delegates; None: those that the flags ask for.
        preserve_all_tensors: keep every intermediate tensor readable.

    Returns:
        A jaxdelegate.Interpreter, or the stock one: methods and dictionaries are the same.

    Raises:
        ModelError: the file is no model.
        OptionError: an impossible value or combination.
        DelegationError: with `--require_full_delegation`, if an operator would stay on the host.
    """
    chosen = delegates(values) if chosen is None else chosen
    return providers.open_interpreter(
        read(values), model, chosen, preserve_all_tensors=preserve_all_tensors
    )


def on_devices(values: flags.FlagValues, model: str | os.PathLike[str], count: int) -> list[Any]:
    """As `interpreter`, on each of the first `count` devices; 0: on all.

    Raises:
        ModelError: the file is no model.
        OptionError: fewer devices, or an impossible value or combination.
    """
    return open_on_devices(read(values), model, count)


def read(values: flags.FlagValues) -> FlagValues:
    """The parsed values of the providers' flags, without absl, for what stands outside of tools."""
    names = [flag.name for flag in _declared()]
    positions = {name: values[name].position for name in names if values[name].present}
    return FlagValues({name: values[name].value for name in names}, positions)


def as_dict(values: flags.FlagValues) -> dict[str, Any]:
    """The providers' flags that were given, in their order, for reports."""
    return read(values).given()


def _declared() -> list[Any]:
    return [flag for p in providers.registered() for flag in providers.declared(p)]


class _OrderedFlag(flags.Flag):  # type: ignore[misc]  # absl comes without types
    """A flag that knows its place on the command line: `position`, from 1 on; 0: not given."""

    def __init__(self, counter: itertools.count, *arguments: Any, **more: Any) -> None:
        self._counter = counter
        self.position = 0
        super().__init__(*arguments, **more)

    def parse(self, argument: Any) -> None:
        super().parse(argument)
        self.position = next(self._counter)


def _ordered(flag: Any, counter: itertools.count) -> _OrderedFlag:
    """A declared flag, or an absl flag that a provider brought, as one that knows its place."""
    if isinstance(flag, Flag):
        is_boolean, text = flag.type is bool, _help(flag)
        parser = _parser(flag)
        serializer = None if is_boolean else flags.ArgumentSerializer()  # None: true, not True
    else:
        parser, serializer = flag.parser, flag.serializer
        is_boolean, text = flag.boolean, flag.help
    return _OrderedFlag(
        counter, parser, serializer, flag.name, flag.default, text, boolean=is_boolean
    )


def _help(flag: Flag) -> str:
    """With the values allowed in front, as absl has it."""
    values = "|".join(filter(None, flag.choices))
    return f"<{values}>: {flag.help}" if values else flag.help


def _parser(flag: Flag) -> Any:
    if flag.choices:
        return flags.EnumParser(list(flag.choices))
    kinds = {bool: flags.BooleanParser, int: flags.IntegerParser, float: flags.FloatParser}
    return kinds.get(flag.type, flags.ArgumentParser)()
