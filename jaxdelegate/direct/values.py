"""Values of a graph's tensors."""

from typing import Any, Protocol


class Values(Protocol):
    """Values by tensor, as in a dictionary."""

    def get(self, index: int, /) -> Any:
        """A tensor's value; None: it has none."""
        ...

    def __setitem__(self, index: int, value: Any, /) -> None: ...
