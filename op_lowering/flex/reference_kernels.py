"""The kernels of TensorFlow's operators, from functions of their options and arrays."""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

from jaxdelegate.op_lowering.records.flex import FLEX, FlexOptions
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.reference.kernel import Function, Kernel, ResultShapes, Shapes, as_run
from jaxdelegate.reference.movement import ints


def kernels(rows: Mapping[str, Kernel | tuple[Function, Shapes]]) -> dict[str, Kernel]:
    """Kernels by TensorFlow's names; an error of a shape begins with the operator's name."""
    table = {}
    for name, row in rows.items():
        kernel = row if isinstance(row, Kernel) else Kernel(as_run(row[0]), row[1])
        shapes = _named(f"{FLEX}{name}", kernel.shapes)
        table[f"{FLEX}{name}"] = dataclasses.replace(kernel, shapes=shapes)
    return table


def _named(name: str, shapes: Shapes) -> Shapes:
    @functools.wraps(shapes)
    def run(o: FlexOptions, inputs: Specs) -> ResultShapes:
        try:
            return shapes(o, inputs)
        except ValueError as error:
            said = str(error)
            raise ValueError(said if said.startswith(name) else f"{name}: {said}") from error

    return run


def constant(spec: TensorSpec) -> Shape | None:
    """The integers of a tensor; None if they are computed at run time."""
    return None if spec.const is None else tuple(ints(np.asarray(spec.const)))
