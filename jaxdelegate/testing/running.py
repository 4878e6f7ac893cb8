"""Running interpreters in tests and benches: ours and the stock ones have the same methods."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def random_inputs(details: Sequence[Mapping[str, Any]], seed: int = 0) -> list[np.ndarray]:
    """Arrays for `get_input_details()`: floats in [-1, 1], bytes over their range, others 0 or 1.

    Zero-sized and open dimensions become 1; larger integers stay small: they are often indices.
    """
    rng = np.random.default_rng(seed)
    arrays = []
    for detail in details:
        shape, dtype = np.maximum(detail["shape"], 1), np.dtype(detail["dtype"])
        if dtype.kind == "f":
            array = rng.uniform(-1, 1, shape)
        elif dtype.itemsize == 1 and dtype.kind in "iu":
            array = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape)
        else:
            array = rng.integers(0, 2, shape)
        arrays.append(array.astype(dtype))
    return arrays


def run_once(interpreter: Any, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Allocate, set the inputs (resized to the arrays' shapes), invoke, and copy the outputs."""
    details = interpreter.get_input_details()
    for detail, array in zip(details, arrays, strict=True):
        if tuple(detail["shape"]) != array.shape:
            interpreter.resize_tensor_input(detail["index"], array.shape)
    interpreter.allocate_tensors()
    return invoked(interpreter, arrays)


def invoked(interpreter: Any, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Set the inputs, invoke, and copy the outputs."""
    for detail, array in zip(interpreter.get_input_details(), arrays, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return [np.array(interpreter.get_tensor(d["index"])) for d in interpreter.get_output_details()]
