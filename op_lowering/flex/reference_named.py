"""What an error of a shape function begins with: the operator's name."""

import dataclasses
import functools
from collections.abc import Mapping

from jaxdelegate.op_lowering.records.flex import FlexOptions
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Kernel, Shapes


def named(kernels: Mapping[str, Kernel]) -> dict[str, Kernel]:
    return {
        name: dataclasses.replace(kernel, shapes=_named(name, kernel.shapes))
        for name, kernel in kernels.items()
    }


def _named(name: str, shapes: Shapes) -> Shapes:
    @functools.wraps(shapes)
    def run(o: FlexOptions, inputs: Specs) -> tuple[Shape | None, ...]:
        try:
            return shapes(o, inputs)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    return run
