"""What a graph is, for everything that is shared in a process."""

import dataclasses
from collections.abc import Hashable
from typing import Any


@dataclasses.dataclass(frozen=True)
class GraphKey:
    """A graph of an open model. Equal keys stand for equal operators and constants.

    Attributes:
        model: an object that stands for the model, by identity; what is shared lives as long.
        entry: which of the model's graphs, and what passes made of it.
        name: of the file, for people.
    """

    model: Any
    entry: Hashable
    name: str = dataclasses.field(default="", compare=False)
