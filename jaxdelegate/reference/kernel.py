"""The reference record: one numpy kernel, the shapes it yields, and when it may be run ahead of time."""

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.spec import Shape, Specs

Array = np.ndarray
Run = Callable[..., tuple[Array, ...]]  # (options, inputs, outputs, *arrays) -> outputs, new states
InitialState = Callable[[Any], tuple[Array, ...]]
Shapes = Callable[[Any, Specs], tuple[Shape | None, ...]]


class Folds(enum.Enum):
    """What must be known for the graph passes to run the kernel before the first invoke."""

    CONSTANTS = "every input is constant"
    SHAPES = "every input's shape is known: the values do not matter"
    NEVER = "random, stateful or with a side effect"


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One operator in numpy.

    `run(options, inputs, outputs, *arrays)` takes the arrays of the inputs (None where absent) and returns the
    outputs in the operator's order, then the new values of its variable inputs. dtypes follow `outputs`.
    `shapes(options, inputs)` gives each output's shape, None for one that depends on data.
    `initial_state(options)` gives the first values of a state that no tensor of the file holds (a random
    counter). Hosts append such states to the inputs, as variables; the kernel returns their new values last.
    """

    run: Run
    shapes: Shapes
    folds: Folds = Folds.CONSTANTS
    initial_state: InitialState | None = None

    def __call__(
        self, options: Any, inputs: Specs, outputs: Specs, *arrays: Array
    ) -> tuple[Array, ...]:
        """Run the kernel."""
        return self.run(options, inputs, outputs, *arrays)


def same_shape(_options: Any, inputs: Specs) -> tuple[Shape | None, ...]:
    """The one output has the first input's shape."""
    return (inputs[0].shape,)


def broadcast_shape(_options: Any, inputs: Specs) -> tuple[Shape | None, ...]:
    """The one output has the shape that all inputs broadcast to.

    Raises:
        ValueError: they do not broadcast.
    """
    return (np.broadcast_shapes(*(spec.shape for spec in inputs)),)
