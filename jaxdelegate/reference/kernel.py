"""The reference record: a numpy kernel, its output shapes, and when it can be folded."""

import dataclasses
import enum
import functools
import inspect
from collections.abc import Callable, MutableMapping
from typing import Any, Protocol

import numpy as np

from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.spec import Shape, Specs

Array = np.ndarray
# `Any` options are those of the operator's record; tests/test_registry.py compares the two.
Run = Callable[..., tuple[Array, ...]]  # (options, inputs, outputs, *arrays) -> outputs, new states
# (options, *arrays) -> a result, or several, in any dtype.
Function = Callable[..., Any]
InitialState = Callable[[Any], tuple[Array, ...]]
ResultShapes = tuple[Shape | None, ...]  # None: it depends on data
Shapes = Callable[[Any, Specs], ResultShapes]


class Folds(enum.Enum):
    """The condition under which the graph passes run the kernel before the first invoke."""

    CONSTANTS = "every input is constant"
    SHAPES = "every input's shape is known; the values do not matter"
    NEVER = "random, stateful or with a side effect"


class Services(Protocol):
    """The host's services for kernels that need more than their arrays."""

    resources: MutableMapping[Any, Any]  # variables and tables of the model, by their handles
    paths: MutableMapping[Any, bytes]  # files that kernels may open, by strings that the user set

    def __call__(self, subgraph: int, *arrays: Array) -> tuple[Array, ...]: ...


Infer = Callable[[int, Specs], Specs]  # (subgraph, specs of its inputs) -> specs of its outputs
InferredShapes = Callable[[Infer, Any, Specs, Specs], ResultShapes]


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One operator in numpy.

    `run(options, inputs, outputs, *arrays)` takes the arrays of the inputs (None if absent) and
    returns the outputs in the operator's order, then the new values of its variable inputs. dtypes
    are those of `outputs`. With `calls`, `run` has the host's Services as its first parameter.
    `shapes(options, inputs)` returns each output's shape, None if it depends on data;
    `inferred_shapes(infer, options, inputs, outputs)` replaces it where shapes are those of
    subgraphs or follow from the outputs' dtypes.
    `settled(options, inputs)` returns the shapes that are known although the shape of some input
    depends on data (RESHAPE to a constant shape), None for other outputs. Without it, no output
    shape is known in that case.
    `initial_state(options)` returns the initial values of a state that no tensor of the file holds
    (a random counter). Hosts append such states to the inputs, as variables; the kernel returns
    their new values last.
    `takes_intermediates`: `run` has the keyword `intermediates`, the specs of the operator's
    intermediate tensors (integer LSTM: the scales between its gates).
    `takes_handle`: the first input is a variable's handle. If the variable is known before the
    model runs, hosts append it to the inputs, so that delegates can keep it on the device.
    `takes_packed`: `run` reads a few rows of a large constant; it gets a `PackedConstant` as it is,
    of which others get the whole array.
    """

    run: Run
    shapes: Shapes
    folds: Folds = Folds.CONSTANTS
    initial_state: InitialState | None = None
    calls: bool = False
    takes_handle: bool = False
    takes_intermediates: bool = False
    takes_packed: bool = False
    inferred_shapes: InferredShapes | None = None
    settled: Shapes | None = None

    @functools.cached_property
    def most_inputs(self) -> int | None:
        """How many inputs `run` takes; None: any number."""
        parameters = inspect.signature(self.run).parameters.values()
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            return None
        return sum(p.kind is not p.KEYWORD_ONLY for p in parameters) - 3 - self.calls

    @functools.cached_property
    def least_inputs(self) -> int:
        """How many inputs `run` needs, including absent ones; 0 if states follow them."""
        if self.initial_state is not None:
            return 0
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(self.run).parameters.values()
        needed = sum(p.kind in kinds and p.default is p.empty for p in parameters)
        return needed - 3 - self.calls

    def __call__(
        self, options: Options, inputs: Specs, outputs: Specs, *arrays: Array
    ) -> tuple[Array, ...]:
        """Run the kernel."""
        return self.run(options, inputs, outputs, *arrays)


def without_specs(function: Function) -> Run:
    """A kernel's `run` from a function of the options and the arrays."""

    def run(o: Options, _inputs: Specs, _outputs: Specs, *arrays: Array) -> tuple[Array, ...]:
        y = function(o, *arrays)
        return y if isinstance(y, tuple) else (y,)

    return _counted(run, function)


def as_run(function: Function) -> Run:
    """A kernel's `run` that stores the function's results in the dtypes of the outputs."""

    def run(o: Options, _inputs: Specs, outputs: Specs, *arrays: Array) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):  # overflow, NaN and division by zero are valid results
            y = function(o, *arrays)
            results = y if isinstance(y, tuple) else (y,)
            return tuple(
                np.asarray(result).astype(spec.dtype, copy=False)
                for result, spec in zip(results, outputs, strict=False)
            )

    return _counted(run, function)


def _counted(run: Callable[..., tuple[Array, ...]], function: Function) -> Run:
    # A Kernel counts the parameters.
    options, *arrays = inspect.signature(function).parameters.values()
    _, *specs, _ = inspect.signature(run).parameters.values()
    run.__signature__ = inspect.Signature([options, *specs, *arrays])  # type: ignore[attr-defined]
    return run


def same_shape(_options: Options, inputs: Specs) -> ResultShapes:
    return (inputs[0].shape,)


def undeclared_shapes(_options: object, _inputs: Specs) -> ResultShapes:
    """Unknown without the declared outputs: in StableHLO, shapes are part of the type."""
    return ()


def broadcast_shape(_options: Options, inputs: Specs) -> ResultShapes:
    return (np.broadcast_shapes(*(spec.shape for spec in inputs)),)
