"""Start records: what an interpreter needs to run one stored program without reading the model.

A model has one if its main subgraph is a single stored program. The key covers the whole model
file, the delegate's options and everything else that the program depends on.
"""

import dataclasses
import json
from typing import Any

import ml_dtypes  # noqa: F401  (np.dtype("bfloat16") and others)
import numpy as np

from jaxdelegate.cache.records import Kind


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """An input or output, as interpreters describe it."""

    index: int
    name: str
    shape: tuple[int, ...]
    shape_signature: tuple[int, ...]
    dtype: str
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    quantized_dimension: int

    def details(self) -> dict[str, Any]:
        """The result of `tensor_details.tensor_details` for the model's tensor."""
        one = len(self.scales) == 1
        return {
            "name": self.name,
            "index": self.index,
            "shape": np.array(self.shape, np.int32),
            "shape_signature": np.array(self.shape_signature, np.int32),
            "dtype": np.dtype(self.dtype).type,
            "quantization": (self.scales[0], self.zero_points[0]) if one else (0.0, 0),
            "quantization_parameters": {
                "scales": np.array(self.scales, np.float32),
                "zero_points": np.array(self.zero_points, np.int32),
                "quantized_dimension": self.quantized_dimension,
                "block_size": 0,
            },
            "sparsity_parameters": {},
        }


@dataclasses.dataclass(frozen=True)
class StartRecord:
    """Inputs and outputs are those of the main subgraph."""

    program: str  # its file's name
    inputs: tuple[StoredTensor, ...]
    outputs: tuple[StoredTensor, ...]
    constants: dict[int, tuple[int, int]]  # offset and bytes in the model file, by tensor
    nodes: tuple[tuple[int, str, int, int], ...]  # index, operator, its code and version


def _decoded(text: bytes) -> StartRecord:
    row = json.loads(text)
    return StartRecord(
        program=row["program"],
        inputs=tuple(map(_tensor, row["inputs"])),
        outputs=tuple(map(_tensor, row["outputs"])),
        constants={int(i): (start, nbytes) for i, start, nbytes in row["constants"]},
        nodes=tuple((index, op, code, version) for index, op, code, version in row["nodes"]),
    )


def _encoded(record: StartRecord) -> bytes:
    row = dataclasses.asdict(record)
    row["constants"] = [[i, *place] for i, place in record.constants.items()]
    return json.dumps(row).encode()


def _tensor(row: dict[str, Any]) -> StoredTensor:
    values: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    return StoredTensor(**values)


STARTS = Kind("start record", ".start", _encoded, _decoded)
