"""Runs one signature of a model, as tf.lite's SignatureRunner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jaxdelegate.interpreter import Interpreter
    from jaxdelegate.model import SignatureDef


class SignatureRunner:
    """Runs one signature: keyword arrays in, a dictionary of arrays out."""

    def __init__(self, interpreter: Interpreter, signature: SignatureDef) -> None:
        """Made by `Interpreter.get_signature_runner`."""
        self._interpreter = interpreter
        self._signature = signature

    def __call__(self, **inputs: Any) -> dict[str, np.ndarray]:
        """Resize to the given arrays' shapes, run, and return a copy of every output by name.

        Raises:
            ValueError: too few, too many or unknown names; a wrong dtype (TensorError).
        """
        expected, index = self._signature.inputs, self._signature.subgraph
        if len(inputs) != len(expected):
            raise ValueError(
                "Invalid number of inputs provided for running a SignatureDef, "
                f"expected {len(expected)} vs provided {len(inputs)}"
            )
        arrays = {name: np.asarray(value) for name, value in inputs.items()}
        interpreter = self._interpreter
        for name, array in arrays.items():
            if name not in expected:
                raise ValueError(f"Invalid Input name ({name}) for SignatureDef")
            interpreter._resize(index, expected[name], array.shape, strict=False)
        host = interpreter._host(index)
        if not host.is_allocated:
            host.allocate()
        for name, array in arrays.items():
            interpreter._set(index, expected[name], array)
        interpreter._invoke(index)
        outputs: Mapping[str, int] = self._signature.outputs
        return {name: interpreter.get_tensor(tensor, index) for name, tensor in outputs.items()}

    def get_input_details(self) -> dict[str, dict[str, Any]]:
        """Tensor details by input name."""
        return self._details(self._signature.inputs)

    def get_output_details(self) -> dict[str, dict[str, Any]]:
        """Tensor details by output name."""
        return self._details(self._signature.outputs)

    def _details(self, names: Mapping[str, int]) -> dict[str, dict[str, Any]]:
        get = self._interpreter._get_tensor_details
        return {name: get(tensor, self._signature.subgraph) for name, tensor in names.items()}
