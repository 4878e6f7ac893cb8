"""The inputs of a benchmark."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.measuring.inputs import InputLayer, InputSource, UniformValues


def make_inputs(
    details: Sequence[Mapping[str, Any]], layers: Sequence[InputLayer], seed: int
) -> list[np.ndarray]:
    """One array for each input: a file's values, or random ones as TFLite draws them."""
    inputs = []
    for position, detail in enumerate(details):
        shape = tuple(int(n) for n in detail["shape"])
        layer = layers[position] if layers else InputLayer(str(detail["name"]), shape)
        inputs.append((InputLayer(layer.name, shape, layer.range, layer.path), detail["dtype"]))
    return InputSource(inputs, UniformValues(), seed)()
