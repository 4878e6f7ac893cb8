"""Declared flags and their values, without any command-line library."""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxdelegate.errors import OptionError


@dataclasses.dataclass(frozen=True)
class Flag:
    """One flag: `--name=value`.

    Attributes:
        name: without dashes.
        type: bool, int, float or str.
        default: its value if it is not given; None: no value.
        help: one or two sentences.
        choices: the only values allowed; empty: any.
    """

    name: str
    type: type
    default: Any = None
    help: str = ""
    choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that a command line can hold it.

        Raises:
            OptionError: another type, or a name that cannot stand after two dashes.
        """
        if self.type not in (bool, int, float, str):
            raise OptionError(f"flag {self.name!r}: want bool, int, float or str, got {self.type}")
        if not self.name.isidentifier():
            raise OptionError(f"flag {self.name!r}: letters, digits and _ only")


class FlagValues:
    """Values by name, as attributes; which of them were given, and in which order.

    Any object with these attributes will do where only values are read.
    """

    def __init__(self, values: Mapping[str, Any], positions: Mapping[str, int]) -> None:
        """Hold the values.

        Args:
            values: every declared flag's.
            positions: of those that were given, where on the command line, from 1 on.
        """
        self._values = dict(values)
        self._positions = dict(positions)

    @classmethod
    def of(cls, flags: Iterable[Flag], given: Mapping[str, Any] | None = None) -> "FlagValues":
        """The values of `flags` where `given` stands for the command line, in its order.

        Raises:
            OptionError: an unknown flag, or a value that is not of the flag's type.
        """
        declared = {flag.name: flag for flag in flags}
        values = {name: flag.default for name, flag in declared.items()}
        for name, value in (given or {}).items():
            if name not in declared:
                raise OptionError(f"unknown flag {name!r}{_hint(name, list(declared))}")
            values[name] = _checked(declared[name], value)
        return cls(values, {name: i for i, name in enumerate(given or {}, 1)})

    def replaced(self, **more: Any) -> "FlagValues":
        """The same with other values for some flags, which then count as given last."""
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
        """Whether the flag was given, be it with its default value."""
        return name in self._positions

    def position(self, name: str) -> int:
        """Where the flag stood on the command line, from 1 on; 0 if it was not given."""
        return self._positions.get(name, 0)

    def given(self) -> dict[str, Any]:
        """The flags that were given, in their order."""
        return {name: self._values[name] for name in sorted(self._positions, key=self.position)}

    def as_dict(self) -> dict[str, Any]:
        """Every value by name."""
        return dict(self._values)


def _checked(flag: Flag, value: Any) -> Any:
    accepted = (int, float) if flag.type is float else flag.type
    is_right = isinstance(value, accepted) and (flag.type is bool or not isinstance(value, bool))
    if flag.choices and value not in flag.choices:
        is_right = False
    if value is not None and not is_right:
        want = " or ".join(map(repr, flag.choices)) or flag.type.__name__
        raise OptionError(f"flag {flag.name!r}: want {want}, got {value!r}")
    return value


def _hint(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    return f"; did you mean: {', '.join(close)}" if close else ""
