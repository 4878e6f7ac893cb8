"""Delegates that a search limits to ranges of operators."""

import dataclasses
from collections.abc import Callable
from typing import Any, cast

from jaxdelegate.comparison.sides import ModelPath, Restricted, Test, delegated
from jaxdelegate.simple_delegate import SimpleDelegate


def ranged(model: ModelPath, delegate: SimpleDelegate) -> Callable[[int, int], Test]:
    """Opens our interpreter with the first to the last operator delegated to `delegate`."""

    def open_range(first: int, last: int) -> Test:
        limited, options = Restricted(delegate), cast("Any", delegate.options)
        limited.options = dataclasses.replace(
            options, first_delegate_node_index=first, last_delegate_node_index=last
        )
        return delegated(model, [limited])

    return open_range
