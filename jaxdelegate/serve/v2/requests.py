"""Requests for inference, and the tensors that a model expects and returns."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxdelegate.serve.clients import NO_CLIENT, Client

Parameter = bool | int | float | str  # the value of a parameter


@dataclasses.dataclass(frozen=True)
class TensorMetadata:
    name: str
    dtype: np.dtype  # object: BYTES
    shape: tuple[int, ...]  # -1: any size; the batch dimension comes first
    # What the file says of it: "content", "mean", "std", "labels".
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class InferRequest:
    """A request with each input of the model once, of the model's datatype and shape.

    Known parameters are `sequence_id` (not 0, not ""), `sequence_start`, `sequence_end` and
    `timeout` (microseconds). A model without states refuses sequences. The response has the `id`
    and the `outputs`: by name, whether they are binary data after the JSON.
    """

    inputs: Mapping[str, np.ndarray]
    parameters: Mapping[str, Parameter] = dataclasses.field(default_factory=dict)
    client: Client = NO_CLIENT
    outputs: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    id: str = ""
