"""The kernels of TensorFlow's operators, from functions of their options and arrays."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.reference.kernel import Array, Kernel, Run, Shapes
from jaxdelegate.reference.movement import ints

# (options, *arrays) -> a result, or several, in any dtype.
Function = Callable[..., Any]


def kernels(rows: Mapping[str, Kernel | tuple[Function, Shapes]]) -> dict[str, Kernel]:
    """Kernels by TensorFlow's names; an error of a shape begins with the operator's name."""
    table = {}
    for name, row in rows.items():
        kernel = row if isinstance(row, Kernel) else Kernel(as_run(row[0]), row[1])
        shapes = _named(f"{FLEX}{name}", kernel.shapes)
        table[f"{FLEX}{name}"] = dataclasses.replace(kernel, shapes=shapes)
    return table


def as_run(function: Function) -> Run:
    """A kernel's `run` that stores the function's results in the dtypes of the outputs."""

    def run(o: FlexOptions, _inputs: Specs, outputs: Specs, *arrays: Array) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):  # overflow, NaN and division by zero are valid results
            y = function(o, *arrays)
            results = y if isinstance(y, tuple) else (y,)
            return tuple(
                np.asarray(result).astype(spec.dtype, copy=False)
                for result, spec in zip(results, outputs, strict=False)
            )

    # A Kernel counts the parameters.
    parameters = [*inspect.signature(run).parameters.values()][:3]
    parameters += [*inspect.signature(function).parameters.values()][1:]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _named(name: str, shapes: Shapes) -> Shapes:
    @functools.wraps(shapes)
    def run(o: FlexOptions, inputs: Specs) -> tuple[Shape | None, ...]:
        try:
            return shapes(o, inputs)
        except ValueError as error:
            said = str(error)
            raise ValueError(said if said.startswith(name) else f"{name}: {said}") from error

    return run


def constant(spec: TensorSpec) -> Shape | None:
    """The integers of a tensor; None if they are computed at run time."""
    return None if spec.const is None else tuple(ints(np.asarray(spec.const)))
