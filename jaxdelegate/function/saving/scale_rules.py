"""Completes new scales for a file by those that follow: of other tensors, and of biases."""

from collections.abc import Mapping

import numpy as np

from jaxdelegate.errors import TensorError
from jaxdelegate.passes.shared_scales import NEAR, Bias, Place, ScaleGroup, SharedScales

NewScales = dict[Place, np.ndarray]


def completed(
    rules: SharedScales, given: Mapping[Place, np.ndarray], moved: Mapping[Place, bool]
) -> NewScales:
    """New scales, with those that follow from them: of tied tensors, and of biases.

    Converters share biases of zeros between operators with different scales; those do not change.

    Args:
        rules: the relations of the file's scales.
        given: scales in the file's shapes.
        moved: constants with new values, or with zeros, and whether any new value is not zero.

    Raises:
        TensorError: an operator fixes a scale, or tied tensors are given different ones.
    """
    scales = {p: new for p, new in given.items() if not _same(rules, p, new)}
    biases = {bias.place for bias in rules.biases}
    for place in list(scales):
        if place in biases:
            raise _error(rules, place, "follows from the scales of the input and of the weights")
        group = rules.group(place)
        if group.fixed_by is not None:
            raise _error(rules, place, f"is part of {group.fixed_by}, which fixes it")
        _check_one_scale(rules, group, given)
        scales.update(dict.fromkeys(group.tensors, scales[place]))
    for place, users in rules.by_bias().items():
        is_moved = any(b.data in scales or b.weights in scales for b in users)
        if not is_moved and (place not in moved or len(users) == 1):
            continue
        new = [_bias_scale(rules, bias, scales) for bias in users]
        if all(np.allclose(new[0], other, rtol=NEAR) for other in new):
            scales.update({place: new[0]} if is_moved else {})
        elif moved.get(place, True) or new[0].size == 1:  # kernels check a single scale
            labels = ", ".join(bias.operator for bias in users)
            what = f"is input x weights, which differs between its operators: {labels}"
            raise _error(
                rules, place, what, "keep its values zero: leave it out of what is trained"
            )
    return scales


def _check_one_scale(
    rules: SharedScales, group: ScaleGroup, given: Mapping[Place, np.ndarray]
) -> None:
    """Check that the tensors of a group are not given different scales."""
    named = [place for place in group.tensors if place in given]
    if any(not np.array_equal(given[named[0]], given[place]) for place in named):
        listed = ", ".join(repr(rules.tensor(place).name) for place in named)
        raise TensorError(
            f"save: {group.tied_by} passes integers on unchanged, so {listed} must have one scale; "
            "give it for all of them or for one: the others follow"
        )


def _bias_scale(rules: SharedScales, bias: Bias, scales: NewScales) -> np.ndarray:
    old, given, weights = map(rules.quantization, (bias.place, bias.data, bias.weights))
    if old is None or given is None or weights is None or rules.tensor(bias.place).stored is None:
        raise _error(rules, bias.place, f"of {bias.operator} is not stored and cannot follow")
    product = np.asarray(scales.get(bias.data, given.scale), np.float64) * np.asarray(
        scales.get(bias.weights, weights.scale), np.float64
    )
    if product.size != old.scale.size:
        what = f"has {old.scale.size} scales, {bias.operator} needs {product.size}"
        raise _error(rules, bias.place, what)
    return product.astype(np.float32)


def _same(rules: SharedScales, place: Place, new: np.ndarray) -> bool:
    q = rules.quantization(place)
    return q is not None and np.array_equal(q.scale, new.reshape(-1))


def _error(rules: SharedScales, place: Place, what: str, remedy: str | None = None) -> TensorError:
    name = rules.tensor(place).name
    remedy = remedy or f"leave '{name}/scale' out"
    return TensorError(f"save: the scale of {name!r} {what}; {remedy}")
