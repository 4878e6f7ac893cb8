"""New scales for a file: those that hold changed weights, and those that follow from others."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxdelegate.errors import TensorError
from jaxdelegate.function.saving.stored_leaves import StoredLeaf, parameters
from jaxdelegate.passes.shared_scales import NEAR, Bias, Place, ScaleGroup, SharedScales
from jaxdelegate.quant import affine

NewScales = dict[Place, np.ndarray]


def checked_scale(key: str, value: Any, old: np.ndarray) -> np.ndarray:
    """A given scale, checked, as float32 in the stored shape: its absolute value, as trained."""
    new: np.ndarray = np.abs(np.asarray(value))
    what = None
    if new.shape != old.shape and not (new.shape == () and old.shape == (1,)):
        what = f"expected the shape {list(old.shape)} of the stored scale, got {list(new.shape)}"
    elif new.dtype.kind not in "fV":
        what = f"expected float32, got {new.dtype}"
    elif not (is_good := _is_scale(new)).all():
        bad = new[~is_good].reshape(-1)[0]
        what = f"a scale must be finite and not zero, got {bad:g}: save earlier params"
    if what is not None:
        raise TensorError(f"save: params[{key!r}]: {what}")
    stored: np.ndarray = new.astype(np.float32).reshape(old.shape)
    return stored


def _is_scale(values: np.ndarray) -> np.ndarray:
    """Whether each value is a positive normal float32."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    return np.isfinite(single) & (single >= np.finfo(np.float32).tiny)


def fitting_scales(leaf: StoredLeaf, array: np.ndarray) -> np.ndarray:
    """The smallest scales, float32, that hold a weight's values; the file's for equal channels."""
    q = leaf.quantization
    assert q is not None
    axes = tuple(
        i for i in range(array.ndim) if not (q.is_per_channel and i == q.quantized_dimension)
    )
    _, point = parameters(q, leaf.shape)
    fitting = _fitting(leaf, array, point, axes).reshape(-1)
    changed = (array != leaf.value).any(axis=axes).reshape(-1)
    return np.where(changed & (fitting > 0), fitting, q.scale).astype(np.float32)


def _fitting(
    leaf: StoredLeaf, array: np.ndarray, point: np.ndarray, axes: tuple[int, ...]
) -> np.ndarray:
    """The smallest scale with which all values are within the integers' range."""
    low, high = leaf.range
    wide = array.astype(np.float64)
    with np.errstate(all="ignore"):
        needed = np.where(
            wide >= 0, wide / np.maximum(high - point, 0), wide / np.minimum(low - point, 0)
        )
    needed = np.where(wide == 0, 0, needed)
    return np.asarray(np.where(np.isfinite(needed), needed, 0).max(axis=axes, initial=0))


def fitting_blocks(leaf: StoredLeaf, array: np.ndarray) -> np.ndarray:
    """The smallest blockwise scales that hold a weight's values, in the shape of their tensor."""
    q = leaf.quantization
    assert q is not None
    assert q.blockwise is not None
    assert q.blockwise.scale is not None
    old = q.blockwise.scale
    numbers = np.arange(old.size).reshape(old.shape)
    block = affine.spread(affine.block_scales(numbers, leaf.shape, q.blockwise), leaf.shape)
    _, point = parameters(q, leaf.shape)
    needed, changed = np.zeros(old.size), np.zeros(old.size, bool)
    np.maximum.at(needed, block, _fitting(leaf, array, point, ()))
    np.logical_or.at(changed, block, array != leaf.value)
    chosen = np.where(changed & (needed > 0), needed, old.reshape(-1).astype(np.float64))
    return chosen.astype(np.float32).reshape(old.shape)


def completed(
    shared: SharedScales, chosen: Mapping[Place, np.ndarray], moved: Mapping[Place, bool]
) -> NewScales:
    """New scales, and those of tied tensors and biases, which follow from them.

    Converters share biases of zeros between operators with different scales; those do not change.

    Args:
        shared: the relations of the file's scales.
        chosen: scales in the file's shapes.
        moved: constants with new values, or with zeros, and whether any new value is not zero.

    Raises:
        TensorError: an operator fixes a scale, or tied tensors are given different ones.
    """
    scales = {p: new for p, new in chosen.items() if not _same(shared, p, new)}
    biases = {bias.place for bias in shared.biases}
    for place in list(scales):
        if place in biases:
            raise _error(shared, place, "follows from the scales of the input and of the weights")
        group = shared.group(place)
        if group.fixed_by is not None:
            raise _error(shared, place, f"is part of {group.fixed_by}, which fixes it")
        _check_one_scale(shared, group, chosen)
        scales.update(dict.fromkeys(group.tensors, scales[place]))
    for place, users in shared.by_bias().items():
        is_moved = any(b.data in scales or b.weights in scales for b in users)
        if not is_moved and (place not in moved or len(users) == 1):
            continue
        new = [_bias_scale(shared, bias, scales) for bias in users]
        if all(np.allclose(new[0], other, rtol=NEAR) for other in new):
            scales.update({place: new[0]} if is_moved else {})
        elif moved.get(place, True) or new[0].size == 1:  # kernels check a single scale
            labels = ", ".join(bias.operator for bias in users)
            what = f"is input x weights, which differs between its operators: {labels}"
            raise _error(
                shared, place, what, "keep its values zero: leave it out of what is trained"
            )
    return scales


def _check_one_scale(
    shared: SharedScales, group: ScaleGroup, chosen: Mapping[Place, np.ndarray]
) -> None:
    """Check that the tensors of a group are not given different scales."""
    named = [place for place in group.tensors if place in chosen]
    if any(not np.array_equal(chosen[named[0]], chosen[place]) for place in named):
        listed = ", ".join(repr(shared.tensor(place).name) for place in named)
        raise TensorError(
            f"save: {group.tied_by} passes integers on unchanged, so {listed} must have one scale; "
            "give it for all of them or for one: the others follow"
        )


def _bias_scale(shared: SharedScales, bias: Bias, scales: NewScales) -> np.ndarray:
    old, data, weights = map(shared.quantization, (bias.place, bias.data, bias.weights))
    if old is None or data is None or weights is None or shared.tensor(bias.place).stored is None:
        raise _error(shared, bias.place, f"of {bias.operator} is not stored and cannot follow")
    product = np.asarray(scales.get(bias.data, data.scale), np.float64) * np.asarray(
        scales.get(bias.weights, weights.scale), np.float64
    )
    if product.size != old.scale.size:
        what = f"has {old.scale.size} scales, {bias.operator} needs {product.size}"
        raise _error(shared, bias.place, what)
    return product.astype(np.float32)


def _same(shared: SharedScales, place: Place, new: np.ndarray) -> bool:
    q = shared.quantization(place)
    return q is not None and np.array_equal(q.scale, new.reshape(-1))


def _error(shared: SharedScales, place: Place, what: str, remedy: str | None = None) -> TensorError:
    name = shared.tensor(place).name
    remedy = remedy or f"leave '{name}/scale' out"
    return TensorError(f"save: the scale of {name!r} {what}; {remedy}")
