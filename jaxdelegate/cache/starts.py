"""All that a model needs to start, where its main subgraph is one stored program: no file is read.

A record stands under the digest of the whole model file, the delegate's options and all else that
the program depends on. It names the program, describes the inputs and outputs, and says where in
the model file those weights lie that the program takes as they are there.
"""

import dataclasses
import json
from typing import Any

import ml_dtypes  # noqa: F401  (np.dtype("bfloat16") and its like)
import numpy as np

from jaxdelegate.cache import records
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.key import Key

SUFFIX = ".start"


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
        """As `details.tensor_details`."""
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
class Start:
    """One record.

    Attributes:
        program: the name of the file that holds it.
        inputs: of the main subgraph.
        outputs: of the main subgraph.
        constants: by tensor, where in the model file its bytes begin, and how many they are.
        nodes: index, operator, its code and version, of each operator that the program runs.
    """

    program: str
    inputs: tuple[StoredTensor, ...]
    outputs: tuple[StoredTensor, ...]
    constants: dict[int, tuple[int, int]]
    nodes: tuple[tuple[int, str, int, int], ...]


def read(directory: PrivateDirectory, key: Key) -> Start | None:
    """The record of a key; None: there is none.

    Raises:
        ValueError: the file is damaged.
        OSError: it cannot be read, or somebody else could have written it.
    """
    text = records.read(directory, key, SUFFIX)
    if text is None:
        return None
    row = json.loads(text)
    return Start(
        row["program"],
        tuple(map(_tensor, row["inputs"])),
        tuple(map(_tensor, row["outputs"])),
        {int(i): (start, nbytes) for i, start, nbytes in row["constants"]},
        tuple((index, op, code, version) for index, op, code, version in row["nodes"]),
    )


def write(directory: PrivateDirectory, key: Key, start: Start) -> None:
    """Keep a record.

    Raises:
        OSError: the disk is full, or the directory cannot be written to.
    """
    row = dataclasses.asdict(start)
    row["constants"] = [[i, *place] for i, place in start.constants.items()]
    records.write(directory, key, SUFFIX, json.dumps(row).encode())


def _tensor(row: dict[str, Any]) -> StoredTensor:
    values: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    return StoredTensor(**values)
