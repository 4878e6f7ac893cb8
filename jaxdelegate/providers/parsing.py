"""Declared flags and their values, without any command-line library."""

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from jaxdelegate.errors import OptionError
from jaxdelegate.text import either


@dataclasses.dataclass(frozen=True)
class Flag:
    """One flag: `--name=value`.

    Attributes:
        name: without dashes.
        type: bool, int, float or str.
        default: the value of a flag that is not given; None: no value.
        help: one or two sentences.
        choices: the only allowed values; empty: any.
        lower: the smallest allowed number; None: any.
        upper: the largest allowed number; None: any.
        label: what TFLite's tool calls the flag in its log; empty: it does not log it.
        is_required: whether a tool cannot run without it.
        is_output: whether it names a file that the tool writes.
        short: a letter for `-p value`; empty: none.
        repeats: whether it may be given several times; its value is then a list.
    """

    name: str
    type: type
    default: Any = None
    help: str = ""
    choices: tuple[str, ...] = ()
    _: dataclasses.KW_ONLY
    lower: float | None = None
    upper: float | None = None
    label: str = ""
    is_required: bool = False
    is_output: bool = False
    short: str = ""
    repeats: bool = False

    def __post_init__(self) -> None:
        if self.type not in (bool, int, float, str):
            raise OptionError(
                f"flag {self.name!r}: expected bool, int, float or str, got {self.type}"
            )
        if not self.name.isidentifier():
            raise OptionError(f"flag {self.name!r}: letters, digits and _ only")

    def checked(self, value: Any) -> Any:
        """Return a value that the flag accepts."""
        accepted = (int, float) if self.type is float else self.type
        is_valid = isinstance(value, accepted) and (
            self.type is bool or not isinstance(value, bool)
        )
        if self.choices and value not in self.choices:
            is_valid = False
        if value is not None and not is_valid:
            expected = either(map(repr, self.choices)) or self.type.__name__
            raise OptionError(f"flag {self.name!r}: expected {expected}, got {value!r}")
        return value


def flags_of(record: type, prefix: str = "") -> Iterator[Flag]:
    """The flags of a dataclass: its fields whose metadata has a help.

    The metadata may have other attributes of the flag too, which replace those of the field.
    """
    hints = get_type_hints(record)
    attributes = {attribute.name for attribute in dataclasses.fields(Flag)}
    for field in dataclasses.fields(record):
        if "help" in field.metadata:
            kind, choices = _type_and_choices(hints[field.name])
            flag = Flag(prefix + field.name, kind, field.default, choices=choices)
            given = {name: field.metadata[name] for name in attributes & field.metadata.keys()}
            yield dataclasses.replace(flag, **given)


def _type_and_choices(hint: Any) -> tuple[type, tuple[str, ...]]:
    """The type and the choices of a flag for an option with a type hint such as `int | None`."""
    alternatives = (hint,) if get_origin(hint) is Literal else get_args(hint) or (hint,)
    types = [a for a in alternatives if a in (bool, int, float)]
    literals = [get_args(a) for a in alternatives if get_origin(a) is Literal]
    return (types or [str])[0], (literals or [()])[0]


class FlagValues:
    """Values by name, as attributes; which of them were given, and in which order.

    Code that only reads values accepts any object with these attributes.
    """

    def __init__(self, values: Mapping[str, Any], positions: Mapping[str, int]) -> None:
        """Positions are the places of given flags on the command line, from 1."""
        self._values = dict(values)
        self._positions = dict(positions)

    @classmethod
    def of(cls, flags: Iterable[Flag], values: Mapping[str, Any] | None = None) -> "FlagValues":
        """`values` replace the command line, in their order.

        An OptionError for an unknown flag, or a value of another type.
        """
        declared = {flag.name: flag for flag in flags}
        every = {name: flag.default for name, flag in declared.items()}
        for name, value in (values or {}).items():
            if name not in declared:
                close = difflib.get_close_matches(name, declared, n=3)
                hint = f"; did you mean: {', '.join(close)}" if close else ""
                raise OptionError(f"unknown flag {name!r}{hint}")
            every[name] = declared[name].checked(value)
        return cls(every, {name: i for i, name in enumerate(values or {}, 1)})

    def replaced(self, **more: Any) -> "FlagValues":
        """A copy with other values for some flags, which then count as given last."""
        last = max(self._positions.values(), default=0)
        positions = {name: last + i for i, name in enumerate(more, 1)}
        return FlagValues({**self._values, **more}, {**self._positions, **positions})

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"no flag {name!r} is declared") from None

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def is_set(self, name: str) -> bool:
        """Whether the flag was given, even with its default value."""
        return name in self._positions

    def position(self, name: str) -> int:
        """The flag's place on the command line, from 1; 0 if it was not given."""
        return self._positions.get(name, 0)

    def given(self) -> dict[str, Any]:
        return {name: self._values[name] for name in sorted(self._positions, key=self.position)}
