"""The base classes of options: records that are dataclasses, and fast to define."""

import dataclasses
import typing
from typing import Any, ClassVar, Protocol

from jaxdelegate.op_lowering.records.enums import ActivationFunctionType, Padding


class Options:
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


@typing.dataclass_transform(frozen_default=True)
class Record(Options):
    """Options whose subclasses are frozen dataclasses without being decorated.

    A table of schema.fbs is one subclass, whose fields have the schema's names; every field has a
    default. `dataclasses.dataclass` would write six methods for each class and compile them, which
    takes 0.4 ms: too long for 90 tables at start. Here one set of methods serves all tables.
    """

    _defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, *, frozen: bool = False) -> None:
        """`frozen`: another base class is a frozen dataclass, which requires it."""
        dataclasses.dataclass(init=False, repr=False, eq=False, frozen=frozen)(cls)
        cls._defaults = {field.name: field.default for field in dataclasses.fields(cls)}

    def __init__(self, *values: Any, **named: Any) -> None:
        placed = dict(zip(self._defaults, values, strict=False))
        fields = {**self._defaults, **placed, **named}
        if len(values) > len(placed) or placed.keys() & named or len(fields) > len(self._defaults):
            known = ", ".join(self._defaults)
            raise TypeError(f"{type(self).__name__}({known}): got {values} and {named}")
        self.__dict__.update(fields)

    def __setattr__(self, name: str, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__.values()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__qualname__}({fields})"


class NoOptions(Record):
    """The operator has no table in schema.fbs (RELU, FLOOR), or one without fields (ABS, PAD)."""


class Activated(Protocol):
    @property
    def fused_activation_function(self) -> ActivationFunctionType: ...


class QuantizesInputs(Protocol):
    """Dynamic range kernels quantize the activations, symmetrically or not."""

    @property
    def asymmetric_quantize_inputs(self) -> bool: ...


class Pool2D(Protocol):
    @property
    def padding(self) -> Padding: ...

    @property
    def stride_h(self) -> int: ...

    @property
    def stride_w(self) -> int: ...

    @property
    def filter_height(self) -> int: ...

    @property
    def filter_width(self) -> int: ...
