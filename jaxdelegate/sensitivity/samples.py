"""Calibration inputs: random ones, arrays, or files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdelegate.errors import OptionError, TensorError
from jaxdelegate.measuring.inputs import InputLayer, InputSource, NormalValues, load_arrays
from jaxdelegate.model.records import Tensor
from jaxdelegate.text import printable

Sample = dict[int, np.ndarray]  # by tensor


def random(inputs: Sequence[Tensor], count: int, seed: int = 0) -> list[Sample]:
    """Seeded random sets of inputs: floats are from -1 to 1, normally distributed."""
    layers = [(InputLayer(t.name, _shape(t)), t.dtype) for t in inputs]
    source = InputSource(layers, NormalValues(), seed)
    indices = [t.index for t in inputs]
    return [dict(zip(indices, source(), strict=True)) for _ in range(count)]


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(max(1, n) for n in tensor.shape)


def checked(inputs: Sequence[Tensor], samples: Sequence[Any]) -> list[Sample]:
    """Each sample is an array (for one input), arrays in order, or a mapping by name."""
    checked_samples = [_sample(inputs, sample, number) for number, sample in enumerate(samples)]
    if not checked_samples:
        raise TensorError("inputs: expected at least one sample, got none")
    for number, sample in enumerate(checked_samples):
        for tensor in inputs:
            first, shape = checked_samples[0][tensor.index].shape, sample[tensor.index].shape
            if shape != first:
                raise TensorError(
                    f"inputs: sample {number}: {tensor.name!r} is {list(shape)}, but "
                    f"{list(first)} in sample 0; all samples must have the same shape"
                )
    return checked_samples


def _sample(inputs: Sequence[Tensor], sample: Any, number: int) -> Sample:
    names = [t.name for t in inputs]
    if isinstance(sample, Mapping):
        if set(sample) != set(names):
            raise TensorError(
                f"inputs: sample {number} has {sorted(sample)}, the model's inputs are {names}"
            )
        arrays = [sample[name] for name in names]
    elif isinstance(sample, list | tuple):
        arrays = list(sample)
    else:
        arrays = [sample]
    if len(arrays) != len(inputs):
        raise TensorError(
            f"inputs: sample {number} has {len(arrays)} arrays, the model has {len(inputs)} "
            f"inputs: {printable(', '.join(names))}"
        )
    return {t.index: _fitting(t, x, number) for t, x in zip(inputs, arrays, strict=True)}


def _fitting(tensor: Tensor, x: Any, number: int) -> np.ndarray:
    array = np.asarray(x)
    if array.dtype != tensor.dtype or array.ndim != len(tensor.shape):
        raise TensorError(
            f"inputs: sample {number}: {tensor.name!r} must be {tensor.dtype} "
            f"{list(tensor.shape)}, got {array.dtype} {list(array.shape)}"
        )
    return array


# ---- files


def read(names: str, inputs: Sequence[Tensor]) -> list[Any]:
    """Samples from comma-separated files and folders, for `checked`.

    A .npz file is a sample: arrays by input names. A .npy file is for a model with one input; it
    has several samples if it is longer than the input along the first axis, or has one more axis.
    """
    paths = [path for name in names.split(",") if name for path in _files(Path(name))]
    if not paths:
        raise OptionError(f"inputs: expected .npy or .npz files, {names!r} has none")
    return [sample for path in paths for sample in _samples(path, inputs)]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(p for p in path.iterdir() if p.suffix in (".npy", ".npz"))


def _samples(path: Path, inputs: Sequence[Tensor]) -> list[Any]:
    loaded = load_arrays(path)
    if isinstance(loaded, dict):
        return [loaded]
    if len(inputs) != 1:
        raise OptionError(
            f"inputs: {printable(str(path))}: the model has {len(inputs)} inputs; use a .npz file "
            f"with {printable(', '.join(t.name for t in inputs))}"
        )
    shape = _shape(inputs[0])
    if loaded.ndim == len(shape) + 1:
        return list(loaded)
    if loaded.ndim == len(shape) > 0 and shape[0] == 1 and loaded.shape[0] > 1:
        return [loaded[n : n + 1] for n in range(loaded.shape[0])]
    return [loaded]
