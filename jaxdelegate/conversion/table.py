"""The record of a primitive: which operators it becomes, and on which condition."""

import dataclasses
from collections.abc import Callable
from typing import Any

# (emitter, *inputs, **the primitive's parameters) -> a Value, or several
Lower = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Primitive:
    """What one of JAX's primitives becomes.

    `operators` and `condition` are for people: docs/from_jax.md is generated from them.
    """

    name: str
    operators: str
    lower: Lower
    condition: str = ""
    parts: bool = False  # a movement, which moves the parts of complex arrays separately
