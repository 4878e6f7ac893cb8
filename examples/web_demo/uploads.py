"""A .tflite file of the user: opened within limits, with inputs, and outputs as a table."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdelegate.errors import ModelError
from jaxdelegate.evaluation.images import resize_bilinear
from jaxdelegate.model.descriptions import Normalization, TensorDescription, tensor_descriptions
from jaxdelegate.model.records import read_model
from jaxdelegate.testing.running import random_inputs
from sample_tasks.annotations import Annotation, Positions, detected, detection_outputs
from web_demo.engines import REFERENCE, Engines

MAX_FILE_BYTES = 64 << 20

_IMAGE_DTYPES = tuple(np.dtype(t) for t in (np.float32, np.uint8, np.int8))
_USUAL = Normalization((127.5,), (127.5,))
_TOP = 5  # values of an output that are shown
_GRAY = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601, as TFLite's image utilities


@dataclasses.dataclass(frozen=True)
class Output:
    name: str
    type: str  # float32 [1, 1001]
    values: str


@dataclasses.dataclass(frozen=True)
class Upload:
    """A checked .tflite file, with the details of its inputs and outputs."""

    name: str
    content: bytes
    inputs: Sequence[Mapping[str, Any]]
    outputs: Sequence[Mapping[str, Any]]
    detections: Positions | None = None  # a detector's; None: it is not one
    # What the file says of its inputs and outputs, by tensor.
    described: Mapping[int, TensorDescription] = dataclasses.field(default_factory=dict)

    @property
    def takes_image(self) -> bool:
        """Whether its only input is [1, H, W, 1 or 3] of float32, uint8 or int8."""
        if len(self.inputs) != 1:
            return False
        shape, dtype = tuple(self.inputs[0]["shape"]), np.dtype(self.inputs[0]["dtype"])
        is_image = len(shape) == 4 and shape[0] == 1 and shape[3] in (1, 3)
        return is_image and min(shape[1:3]) > 1 and dtype in _IMAGE_DTYPES

    def arrays(self, image: np.ndarray, seed: int) -> list[np.ndarray]:
        """Arrays for its inputs: a resized image, uint8 [h, w, 3], or seeded random values.

        Images become float32 as the file says or from -1 to 1, int8 from -128 to 127, or uint8.
        """
        if not self.takes_image:
            return random_inputs(self.inputs, seed)
        _, height, width, channels = self.inputs[0]["shape"]
        pixels = resize_bilinear(image, int(height), int(width))
        if channels == 1:
            pixels = (pixels @ _GRAY)[..., None]
        dtype = np.dtype(self.inputs[0]["dtype"])
        return [_normalized(pixels, dtype, self._normalization)[None]]

    @property
    def _normalization(self) -> Normalization:
        described = self.described.get(int(self.inputs[0]["index"]))
        declared = None if described is None else described.normalization
        channels = int(self.inputs[0]["shape"][3])
        return _USUAL if declared is None or len(declared.mean) not in (1, channels) else declared

    def inputs_in_words(self) -> str:
        first = self.inputs[0] if self.inputs else None
        if self.takes_image and first is not None:
            scaled = {"f": _scaling(self._normalization), "i": ", minus 128", "u": ""}
            kind = np.dtype(first["dtype"]).kind
            return f"The picture as {_type(first)}{scaled[kind]}."
        return f"Random values: {', '.join(map(_type, self.inputs)) or 'no inputs'}."

    def decode(self, arrays: Sequence[np.ndarray]) -> Annotation | None:
        """The objects that a detector found in the picture; None: the outputs' meaning is unknown.

        Objects are named by the file's labels, or by the number of their class.
        """
        if self.detections is None or not self.takes_image:
            return None
        return detected(arrays, self.detections, self._classes(self.detections[1]))

    def _classes(self, output: int) -> Callable[[int], str]:
        described = self.described.get(int(self.outputs[output]["index"]))
        labels = () if described is None else described.labels
        return lambda i: labels[i] if 0 <= i < len(labels) else f"class {i}"

    def table(self, arrays: Sequence[np.ndarray]) -> list[Output]:
        """A row for each output, dequantized; [1, N] is shown as its highest scores of classes.

        A detector's classes and scores are shown in order.
        """
        listed = () if self.detections is None else self.detections[1:]
        return [
            Output(
                str(detail["name"]),
                _type(detail, array.shape),
                _values(_dequantized(detail, array), self._classes(i), is_listed=i in listed),
            )
            for i, (detail, array) in enumerate(zip(self.outputs, arrays, strict=True))
        ]


def read(path: str | os.PathLike[str], engines: Engines) -> Upload:
    """Read a file, and check that the numpy reference can run it within the limits."""
    name = Path(path).name
    try:
        if (size := os.path.getsize(path)) > MAX_FILE_BYTES:
            raise ModelError(
                f"{name} has {size >> 20} MiB; this page opens at most {MAX_FILE_BYTES >> 20} "
                "MiB. `jaxdelegate benchmark_model` runs larger ones"
            )
        content = Path(path).read_bytes()
    except OSError as error:
        raise ModelError(f"{name}: {error.strerror or error}") from error
    if not content:
        raise ModelError(f"{name}: the file is empty")
    try:
        opened = engines.open(content, REFERENCE)
    except ModelError as error:  # the model has no name here
        raise ModelError(str(error).replace("<bytes>", name, 1)) from error
    model = read_model(content)
    detections = detection_outputs(model.subgraphs[0])
    described = tensor_descriptions(model)
    return Upload(name, content, opened.inputs, opened.outputs, detections, described)


def _values(array: np.ndarray, name: Callable[[int], str], *, is_listed: bool = False) -> str:
    if not array.size:
        return "empty"
    if array.dtype.kind not in "fiu":
        return ", ".join(str(value) for value in array.reshape(-1)[:_TOP].tolist())
    if is_listed:
        return ", ".join(f"{value:.4g}" for value in array.reshape(-1)[:_TOP].tolist())
    if array.ndim == 2 and array.shape[0] == 1 and array.shape[1] > 1:
        order = np.argsort(-array[0], kind="stable")[:_TOP]
        return ", ".join(f"{name(int(i))}: {array[0, i]:.4g}" for i in order)
    low, high, mean = array.min(), array.max(), array.mean(dtype=np.float64)
    return f"{low:.4g} to {high:.4g}, mean {mean:.4g}"


def _dequantized(detail: Mapping[str, Any], array: np.ndarray) -> np.ndarray:
    scale, zero_point = detail["quantization"]
    return (array.astype(np.float32) - zero_point) * scale if scale else array


def _scaling(by: Normalization) -> str:
    if by == _USUAL:
        return ", scaled to -1 ... 1"
    mean, std = (", ".join(f"{v:g}" for v in values) for values in (by.mean, by.std))
    return f", minus {mean}, divided by {std}, as the file says"


def _normalized(pixels: np.ndarray, dtype: np.dtype, by: Normalization) -> np.ndarray:
    if dtype.kind == "f":
        mean, std = np.array(by.mean, np.float32), np.array(by.std, np.float32)
        scaled: np.ndarray = ((pixels - mean) / std).astype(dtype)
        return scaled
    return (pixels.round() - (128 if dtype.kind == "i" else 0)).astype(dtype)


def _type(detail: Mapping[str, Any], shape: Sequence[int] | None = None) -> str:
    sizes = detail["shape"] if shape is None else shape
    return f"{np.dtype(detail['dtype']).name} {[int(n) for n in sizes]}"
