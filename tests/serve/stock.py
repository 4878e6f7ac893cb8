"""The stock interpreter's results for the networks of the examples."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

NETWORKS = Path(__file__).parents[2] / "examples/sample_tasks/networks"


def stock_outputs(name: str, steps: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The first output of each of several runs, by LiteRT's reference kernels."""
    interpreter = Interpreter(
        str(NETWORKS / f"{name}.tflite"), experimental_op_resolver_type=OpResolverType.BUILTIN_REF
    )
    interpreter.allocate_tensors()
    found = []
    for array in steps:
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], array)
        interpreter.invoke()
        found.append(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))
    return found
