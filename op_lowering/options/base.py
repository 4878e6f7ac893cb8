"""What every options table shares, and the tables of custom operators."""

import dataclasses
from typing import ClassVar, Self

from flatbuffers import flexbuffers


@dataclasses.dataclass(frozen=True)
class Options:
    """An operator's parameters. `operators` names the builtin operators that carry the table."""

    operators: ClassVar[tuple[str, ...]] = ()


@dataclasses.dataclass(frozen=True)
class NoOptions(Options):
    """The operator has no table in schema.fbs (RELU, TANH, FLOOR...)."""


@dataclasses.dataclass(frozen=True)
class CustomOptions(Options):
    """A custom operator's parameters; this class keeps those of unknown operators as bytes."""

    data: bytes = b""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Keep the bytes as they are."""
        return cls(data)


@dataclasses.dataclass(frozen=True)
class FlexbufferOptions(CustomOptions):
    """Parameters in a flexbuffer map; the dataclass's field names are the map's keys."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the map; a key that is absent keeps the field's default.

        Raises:
            ValueError: the bytes are not a flexbuffer map.
        """
        values = flexbuffers.Loads(data) if data else {}
        if not isinstance(values, dict):
            raise ValueError(f"custom options: want a flexbuffer map, got {type(values).__name__}")
        known: dict[str, type] = {
            f.name: type(f.default) for f in dataclasses.fields(cls) if f.name != "data"
        }
        return cls(
            data, **{key: known[key](value) for key, value in values.items() if key in known}
        )
