"""Records as JSON: dataclasses become objects by field name."""

import dataclasses
import enum
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Derived = Mapping[type[Any], tuple[str, ...]]


def plain(
    value: Any,
    *,
    derived: Derived | None = None,
    non_finite: Callable[[float], Any] = lambda _: None,
) -> Any:
    """A value as dictionaries, lists, strings and numbers; values of other types become strings.

    `derived` are properties to add to the fields of a dataclass; `non_finite` converts NaN and
    infinities.
    """
    derived = derived or {}

    def convert(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [f.name for f in dataclasses.fields(value)]
            names += derived.get(type(value), ())
            return {name: convert(getattr(value, name)) for name in names}
        if isinstance(value, Mapping):
            return {str(key): convert(item) for key, item in value.items()}
        if isinstance(value, tuple | list | frozenset | set):
            return [convert(item) for item in value]
        return _scalar(value, non_finite)

    return convert(value)


def _scalar(value: Any, non_finite: Callable[[float], Any]) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, bytes):
        return value.hex()
    if value is not None and not isinstance(value, bool | int | float | str):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return non_finite(value)
    return value


def write_json(path: str | os.PathLike[str], record: Any) -> None:
    """NaN and infinities are null."""
    text = json.dumps(plain(record), indent=1, allow_nan=False)
    Path(path).write_text(f"{text}\n", "utf-8")
