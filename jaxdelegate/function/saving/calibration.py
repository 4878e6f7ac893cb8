"""Calibration: new scales and zero points from the ranges of activations on given inputs.

The graph runs in float32, without rounding or clamping: every quantized tensor becomes float32.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from jaxdelegate.errors import OptionError, TensorError
from jaxdelegate.function.functions import Functions
from jaxdelegate.function.records import Place, computed_names
from jaxdelegate.function.saving.stored_leaves import StoredLeaf
from jaxdelegate.lowering.fake_quantization import options_of, without_values
from jaxdelegate.model.records import Model, Subgraph, Tensor
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.passes.shared_scales import SharedScales
from jaxdelegate.quant import affine
from jaxdelegate.quant.params import integer_range

Range = tuple[float, float]
_MAX_BYTES = 2  # the widest integers of activations


def calibrated(
    functions: Functions,
    shared: SharedScales,
    leaves: Mapping[str, StoredLeaf],
    values: Mapping[str, np.ndarray],
    batches: Iterable[Any],
) -> Iterator[tuple[Place, np.ndarray, np.ndarray]]:
    """New scale (float32 [1]) and zero point (int64 [1]) of each activation that can change.

    Tensors that must share a scale get the same one.
    """
    seen = _ranges(functions, leaves, values, batches)
    for leaf in leaves.values():
        array = values.get(leaf.name, leaf.value)
        if array.size and leaf.quantization is not None:
            seen.update(dict.fromkeys(leaf.places, (float(array.min()), float(array.max()))))
    constants = {place for leaf in leaves.values() for place in leaf.places}
    for group in shared.groups:
        places = group.tensors
        known = [seen[p] for p in places if p in seen]
        is_weight = constants.issuperset(places)
        can_change = group.fixed_by is None and all(_is_activation(shared, p) for p in places)
        if not known or is_weight or not can_change:
            continue
        ends = min(low for low, _ in known), max(high for _, high in known)
        new = _chosen(shared.tensor(places[0]).dtype, *ends)
        if new is not None:
            yield from ((place, *new) for place in places)


def _is_activation(shared: SharedScales, place: Place) -> bool:
    q = shared.quantization(place)
    return q is not None and q.scale.size == 1 and shared.tensor(place).dtype.itemsize <= _MAX_BYTES


def _chosen(dtype: np.dtype, low: float, high: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Scale and zero point for a range and zero; int16 is symmetric. None if the range is empty."""
    first, last = integer_range(dtype)
    low, high = min(low, 0.0), max(high, 0.0)
    if dtype == np.int16:
        scale, point = max(-low, high) / last, 0
    else:
        scale = (high - low) / (last - first)
        point = 0 if scale == 0 else int(np.clip(np.round(first - low / scale), first, last))
    if not np.float32(scale) > 0:
        return None
    return np.array([scale], np.float32), np.array([point], np.int64)


def _ranges(
    functions: Functions,
    leaves: Mapping[str, StoredLeaf],
    values: Mapping[str, np.ndarray],
    batches: Iterable[Any],
) -> dict[Place, Range]:
    file = functions.file
    names = {n: i for n, i in computed_names(file.subgraphs[0]).items() if _is_quantized(file, i)}
    if not names:
        raise OptionError("calibrate: the model has no quantized activations; leave it out")
    view = dataclasses.replace(functions.view, outputs=tuple(names), inputs=None, batch=None)
    run = Functions(_floats(file, leaves, values), view).function_of(None)
    inputs = list(functions.main.inputs)
    ranges: dict[Place, Range] = {}
    for batch in batches:
        results = run.call(run.params, run.checked(_as_floats(file, inputs, batch)))[0]
        for (name, i), result in zip(names.items(), results, strict=True):
            low, high = float(np.min(result, initial=0)), float(np.max(result, initial=0))
            if not np.isfinite((low, high)).all():
                raise TensorError(f"calibrate: {name!r} becomes NaN or infinite with these inputs")
            before = ranges.get((0, i), (low, high))
            ranges[0, i] = min(low, before[0]), max(high, before[1])
    if not ranges:
        raise OptionError("calibrate: expected at least one set of inputs, got none")
    return ranges


def _is_quantized(file: Model, index: int) -> bool:
    return file.subgraphs[0].tensors[index].spec().is_quantized


def _as_floats(file: Model, names: list[str], batch: Any) -> list[Any]:
    """Inputs in order, dequantized."""
    if isinstance(batch, Mapping):
        missing = [name for name in names if name not in batch]
        if missing:
            raise TensorError(f"calibrate: the inputs have no {missing[0]!r}; expected {names}")
        batch = [batch[name] for name in names]
    arrays = list(batch) if isinstance(batch, tuple | list) else [batch]
    main = file.subgraphs[0]
    if len(arrays) != len(main.inputs):
        raise TensorError(
            f"calibrate: expected {len(main.inputs)} inputs in each set, got {len(arrays)}"
        )
    return [_as_float(main.tensors[i], a) for i, a in zip(main.inputs, arrays, strict=True)]


def _as_float(tensor: Tensor, array: Any) -> Any:
    is_stored = tensor.spec().is_quantized and np.asarray(array).dtype == tensor.dtype
    if not is_stored or tensor.quantization is None:
        return array
    return affine.dequantize(np.asarray(array), tensor.quantization)


def _floats(
    file: Model, leaves: Mapping[str, StoredLeaf], values: Mapping[str, np.ndarray]
) -> Model:
    """The model with float32 instead of quantized integers, and with new values."""
    arrays = {
        place: values.get(leaf.name, leaf.value)
        for leaf in leaves.values()
        for place in leaf.places
    }
    return dataclasses.replace(
        file, subgraphs=tuple(_float_subgraph(subgraph, arrays) for subgraph in file.subgraphs)
    )


def _float_subgraph(subgraph: Subgraph, arrays: Mapping[Place, np.ndarray]) -> Subgraph:
    specs = [tensor.spec() for tensor in subgraph.tensors]
    kept = without_values(subgraph.operators)
    return dataclasses.replace(
        subgraph,
        tensors=tuple(
            tensor
            if tensor.index in kept
            else _float(tensor, arrays.get((subgraph.index, tensor.index)))
            for tensor in subgraph.tensors
        ),
        operators=tuple(
            dataclasses.replace(
                op,
                options=options_of(op.options, [specs[i] if i >= 0 else None for i in op.inputs]),
            )
            for op in subgraph.operators
        ),
    )


def _float(tensor: Tensor, array: np.ndarray | None) -> Tensor:
    is_float = array is not None and array.dtype == np.float32
    if not tensor.spec().is_quantized and not is_float:
        return tensor
    stored = None if array is None else np.ascontiguousarray(array, np.float32).reshape(-1)
    return dataclasses.replace(
        tensor,
        type=TensorType.FLOAT32,
        quantization=None,
        sparsity=None,
        stored=None if stored is None else stored.view(np.uint8),
        stored_shape=tensor.shape,
        buffer=0,
    )
