"""Values and models in a shorter dtype: what reduced precision costs, however it is computed."""

import dataclasses

import numpy as np
from numpy.lib.array_utils import byte_bounds

from jaxdelegate.model.records import Tensor, read_model


def round_to(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Round floats to `dtype` and back, into an array of their own dtype; others stay.

    float16 represents every float16 that was rounded to bfloat16.
    """
    if values.dtype.kind != "f":
        return values
    rounded: np.ndarray = values.astype(dtype).astype(values.dtype)
    return rounded


def rounded_tensor(tensor: Tensor, dtype: np.dtype) -> Tensor:
    """A tensor whose constant, if it is a factor of a product, is rounded to `dtype`."""
    factor = _factor(tensor)
    if factor is None:
        return tensor
    stored = np.ascontiguousarray(round_to(factor, dtype)).reshape(-1).view(np.uint8)
    return dataclasses.replace(tensor, stored=stored)


def rounded_file(content: bytes, dtype: np.dtype) -> bytes:
    """A .tflite whose constant factors of products are rounded to `dtype`; sparse ones stay."""
    copy = bytearray(content)
    start, end = byte_bounds(np.frombuffer(content, np.uint8))
    for tensor in (t for s in read_model(content).subgraphs for t in s.tensors):
        factor = _factor(tensor)
        if factor is None:
            continue
        first, last = byte_bounds(factor)
        if start <= first and last <= end:
            copy[first - start : last - start] = round_to(factor, dtype).tobytes()
    return bytes(copy)


def _factor(tensor: Tensor) -> np.ndarray | None:
    """A constant of floats with several dimensions, as filters and matrices are; biases stay."""
    data = tensor.data
    if data is None or tensor.sparsity is not None:
        return None
    return data if data.dtype.kind == "f" and data.ndim >= 2 else None
