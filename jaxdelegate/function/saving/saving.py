"""Saves a model: converts leaves and scales to their stored form and edits the file."""

import dataclasses
import functools
import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import numpy as np

from jaxdelegate.errors import DelegationError, ModelError, OptionError, TensorError
from jaxdelegate.function.functions import Functions
from jaxdelegate.function.records import Place, Scale, computed_names
from jaxdelegate.function.saving.calibration import calibrated
from jaxdelegate.function.saving.part_files import part_file
from jaxdelegate.function.saving.scales import (
    NewScales,
    checked_scale,
    completed,
    fitting_blocks,
    fitting_scales,
)
from jaxdelegate.function.saving.stored_leaves import StoredLeaf, checked, encoded, stored_leaves
from jaxdelegate.function.signatures import did_you_mean
from jaxdelegate.function.training.trainable import SUFFIX, Trainable
from jaxdelegate.function.views import View
from jaxdelegate.model.bundle_writing import write_model
from jaxdelegate.model.editing import Edited, edited, read_again
from jaxdelegate.model.half import castable, with_halves
from jaxdelegate.model.io_types import Side, with_io_types
from jaxdelegate.model.merging import with_merged
from jaxdelegate.model.records import Model
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.passes.channel_folding import foldable
from jaxdelegate.passes.shared_scales import SharedScales
from jaxdelegate.quant.params import Quantization, integer_range
from jaxdelegate.text import printable

FileIo = Literal["file", "float", "float32", "int8", "uint8", "int16"]  # "float" is "float32"
_TYPES = {
    "float": TensorType.FLOAT32,
    "float32": TensorType.FLOAT32,
    "int8": TensorType.INT8,
    "uint8": TensorType.UINT8,
    "int16": TensorType.INT16,
}

_LOGGER = logging.getLogger("jaxdelegate")
_HALF_LIMIT = 65520  # rounds to infinity in float16


class Saving:
    """The changes for one saving of a model."""

    def __init__(self, functions: Functions, *, rescale: bool) -> None:
        self._functions, self._rescale = functions, rescale
        self._file = file = functions.file
        self._as_floats = functions.view.options.quant_mode == "float_view"
        self._leaves = stored_leaves(file, as_floats=self._as_floats)
        self._leaf_at = {p: leaf for leaf in self._leaves.values() for p in leaf.places}
        self._computed = computed_names(file.subgraphs[0])
        self._shared = SharedScales(file.subgraphs, [leaf.places for leaf in self._leaves.values()])
        self._arrays: dict[str, np.ndarray] = {}
        self._given: NewScales = {}
        self._points: dict[Place, np.ndarray] = {}
        self._data: dict[Place, np.ndarray] = {}
        self._blocks: dict[str, Quantization] = {}
        self._clamped: list[str] = []

    def take(self, params: Mapping[str, Any]) -> None:
        """Add leaves and scales by name."""
        for name, value in params.items():
            if name in self._leaves:
                self._take_leaf(self._leaves[name], value)
            elif name.endswith(SUFFIX) and self._scaled_by(name):
                self._take_scale(name, self._scaled_by(name), value)
            else:
                self._check_folded(name, value)

    def calibrate(self, batches: Iterable[Any]) -> None:
        """Add scales and zero points of activations, calibrated on inputs."""
        if not self._as_floats:
            raise OptionError(
                'calibrate: expected quant_mode="float_view", the default, got "integer"'
            )
        ranges = calibrated(self._functions, self._shared, self._leaves, self._arrays, batches)
        for place, scale, point in ranges:
            if place not in self._given:
                self._given[place], self._points[place] = scale, point

    def _take_leaf(self, leaf: StoredLeaf, value: Any) -> None:
        array = checked(leaf, value)
        if not np.array_equal(array, leaf.value):
            self._arrays[leaf.name] = array

    @functools.cached_property
    def _learned(self) -> Mapping[str, Scale]:
        return Trainable(self._file.subgraphs).scales if self._as_floats else {}

    def _scaled_by(self, key: str) -> tuple[Place, ...]:
        """Tensors whose scale has this key; those of others follow."""
        if key in self._learned:
            return self._learned[key].tensors[:1]
        return self._places(key.removesuffix(SUFFIX))

    def _places(self, name: str) -> tuple[Place, ...]:
        if name in self._leaves:
            return self._leaves[name].places
        return ((0, self._computed[name]),) if name in self._computed else ()

    def _take_scale(self, key: str, places: tuple[Place, ...], value: Any) -> None:
        q = self._shared.quantization(places[0])
        if q is None:
            name = self._shared.tensor(places[0]).name
            raise TensorError(f"save: params[{key!r}]: tensor {name!r} is not quantized")
        if q.blockwise is not None:
            self._take_block_scale(key, places, q, value)
            return
        new = checked_scale(key, value, q.scale)
        self._given.update(dict.fromkeys(places, new))

    def _take_block_scale(
        self, key: str, places: tuple[Place, ...], q: Quantization, value: Any
    ) -> None:
        """Add blockwise scales, which are stored in another tensor."""
        assert q.blockwise is not None
        holders = [(subgraph, q.blockwise.scales) for subgraph, _ in places]
        holder = self._leaf_at.get(holders[0])
        if holder is None:
            raise TensorError(f"save: params[{key!r}]: the file has no scales for this tensor")
        for leaf in self._leaves.values():
            if leaf.places != places and _scale_tensors(leaf) & set(holder.places):
                raise TensorError(
                    f"save: params[{key!r}]: {leaf.name!r} has the same scales, in the tensor "
                    f"{holder.name!r}; keep the stored scales"
                )
        new = checked(holder, checked_scale(key, value, holder.value))
        for place in holder.places:
            self._data[place] = encoded(holder, new).data
        stored = new.astype(holder.spec.dtype)
        blocks = dataclasses.replace(q.blockwise, scale=stored)
        name = key.removesuffix(SUFFIX)
        self._blocks[name] = dataclasses.replace(q, blockwise=blocks)

    def _check_folded(self, name: str, value: Any) -> None:
        """Check that a leaf without a tensor in the file did not change."""
        try:
            folded = self._functions.leaves()
        except DelegationError:  # XLA cannot run the model, so there are no folded leaves
            folded = {}
        if name not in folded:
            known = [*folded, *self._leaves, *(f"{n}{SUFFIX}" for n in self._scaled())]
            raise TensorError(
                f"save: params[{name!r}]: the model has no such leaf{did_you_mean(name, known)}; "
                "model.params lists them, '<tensor name>/scale' is the scale of a quantized tensor"
            )
        if not np.array_equal(np.asarray(folded[name]), np.asarray(value), equal_nan=True):
            raise TensorError(
                f"save: params[{name!r}] follows from other constants when the model is loaded, so "
                "no tensor of the file holds it; train with it frozen: model.partition(lambda "
                "parameter: parameter.tensors)"
            )

    def _scaled(self) -> Iterable[str]:
        names = [*self._leaves, *self._computed]
        return (n for n in names if self._shared.quantization(self._places(n)[0]) is not None)

    # ---- the stored form

    def edited(self) -> Edited:
        """The file with all changes."""
        if self._rescale:
            self._choose_scales()
        scales = completed(self._shared, self._given, self._moved())
        for leaf in self._leaves.values():
            self._store(leaf, scales)
        if self._clamped:
            _LOGGER.warning(
                "save: values beyond the range of their stored scales were clamped: %s; "
                "rescale=True chooses new scales for changed weights",
                ", ".join(self._clamped),
            )
        return edited(self._file, self._data, self._numbers(scales))

    def _moved(self) -> dict[Place, bool]:
        """Biases with new values, or with zeros, and whether any new value is not zero."""
        moved = {}
        for place in self._shared.by_bias():
            leaf = self._leaf_at.get(place)
            new = None if leaf is None else self._arrays.get(leaf.name)
            if leaf is not None and (new is not None or not leaf.raw.any()):
                moved[place] = new is not None and bool(new.any())
        return moved

    def _store(self, leaf: StoredLeaf, scales: NewScales) -> None:
        """Add a leaf's bytes if its values or their quantization changes."""
        values = self._arrays.get(leaf.name)
        for place in leaf.places:
            new = self._new_quantization(leaf, place, scales)
            if values is None and (new is None or self._stays(place)):
                continue
            if values is None and not self._as_floats:
                leaf = dataclasses.replace(leaf, as_floats=True)
            result = encoded(leaf, leaf.exact if values is None else values, new)
            self._data[place] = result.data
            is_given = place in self._given  # a scale that was trained together with the values
            if result.clamped and place == leaf.places[0] and not is_given:
                self._clamped.append(
                    f"{printable(leaf.name)} ({result.clamped} of {leaf.raw.size})"
                )

    def _stays(self, place: Place) -> bool:
        """Whether the leaves are integers, which do not change with the scale."""
        return not self._as_floats and place in self._given

    def _new_quantization(
        self, leaf: StoredLeaf, place: Place, scales: NewScales
    ) -> Quantization | None:
        """The quantization that replaces the file's, if any."""
        if leaf.name in self._blocks:
            return self._blocks[leaf.name]
        q = leaf.spec.quantization
        if q is None or (place not in scales and place not in self._points):
            return None
        scale = scales.get(place, q.scale).reshape(-1)
        return dataclasses.replace(q, scale=scale, zero_point=self._points.get(place, q.zero_point))

    def _numbers(self, scales: NewScales) -> dict[Place, dict[str, np.ndarray]]:
        """The changed fields of tensors' quantization, including recorded ranges."""
        numbers: dict[Place, dict[str, np.ndarray]] = {}
        for place in {**scales, **self._points}:
            tensor = self._shared.tensor(place)
            q = tensor.quantization
            assert q is not None
            scale = scales.get(place, q.scale)
            point = self._points.get(place, q.zero_point)
            fields = {"scale": scale.reshape(-1)}
            if not np.array_equal(point, q.zero_point):
                fields["zero_point"] = point
            ends = zip(
                ("min", "max"), (q.minimum, q.maximum), integer_range(tensor.dtype), strict=True
            )
            for field, old, end in ends:
                if old is not None and old.size == scale.size:
                    fields[field] = (fields["scale"] * (end - point)).astype(np.float32)
            numbers[place] = fields
        return numbers

    # ---- new scales for changed weights

    def _choose_scales(self) -> None:
        derived = {bias.place for bias in self._shared.biases}
        for name, array in self._arrays.items():
            leaf = self._leaves[name]
            q = leaf.quantization
            if q is None or leaf.spec.dtype.itemsize > 2:
                continue
            if not derived.isdisjoint(leaf.places) or not self._is_alone(leaf.places):
                continue
            if leaf.places[0] in self._given or name in self._blocks:
                continue
            if q.blockwise is not None:
                self._take_block_scale(name + SUFFIX, leaf.places, q, fitting_blocks(leaf, array))
            else:
                self._given.update(dict.fromkeys(leaf.places, fitting_scales(leaf, array)))

    def _is_alone(self, places: tuple[Place, ...]) -> bool:
        """Whether no other tensor and no operator depends on a constant's scale."""
        groups = [self._shared.group(place) for place in places]
        return all(g.fixed_by is None and set(places).issuperset(g.tensors) for g in groups)


def _scale_tensors(leaf: StoredLeaf) -> set[Place]:
    """The tensors that contain a leaf's blockwise scales."""
    q = leaf.tensor.quantization
    if q is None or q.blockwise is None:
        return set()
    return {(subgraph, q.blockwise.scales) for subgraph, _ in leaf.places}


def save(
    functions: Functions,
    path: str | os.PathLike[str],
    params: Mapping[str, Any] | None,
    **how: Any,
) -> None:
    """See `CallableModel.save`, and `saved` for `how`."""
    write_model(path, functions.file, saved(functions, params, **how))


def saved(
    functions: Functions,
    params: Mapping[str, Any] | None,
    *,
    rescale: bool = False,
    calibrate: Iterable[Any] | None = None,
    fold: bool = False,
    half: bool = False,
    io: FileIo | tuple[FileIo, FileIo] = "file",
) -> Edited:
    """What is saved: see `CallableModel.save`, and `jaxdelegate.save` for `fold` and `half`."""
    types = _io_types(io)
    file, view = functions.file, functions.view
    result = _edited(functions, params, rescale=rescale, calibrate=calibrate)
    if view.is_cut or view.batch is not None:
        result = Edited(part_file(read_again(file, result.content), view), {})
    if fold:
        result = _folded(file, result)
    if half:
        result = _with_halves(file, result)
    if types:
        result = Edited(with_io_types(read_again(file, result.content), types), {})
    return result


def exact(functions: Functions, params: Mapping[str, Any] | None) -> Functions:
    """See `CallableModel.exact`."""
    options = dataclasses.replace(functions.view.options, quant_mode="integer")
    return changed(functions, params, dataclasses.replace(functions.view, options=options))


def changed(functions: Functions, params: Mapping[str, Any] | None, view: View) -> Functions:
    """The functions of the file that is saved with these params."""
    result = _edited(functions, params)
    if result.groups:
        raise ModelError(
            "the model's weights are in files next to it: save it to a path, and load that file"
        )
    return Functions(read_again(functions.file, result.content), view, bytes(result.content))


def _edited(
    functions: Functions,
    params: Mapping[str, Any] | None,
    *,
    rescale: bool = False,
    calibrate: Iterable[Any] | None = None,
) -> Edited:
    job = Saving(functions, rescale=rescale)
    job.take(params or {})
    if calibrate is not None:
        job.calibrate(calibrate)
    return job.edited()


def _folded(file: Model, result: Edited) -> Edited:
    """The content with arithmetic by constants folded into products."""
    model = read_again(file, result.content)
    merged = foldable(model)
    if not merged:
        _LOGGER.warning("save: %s: no operator can be folded", file.source)
        return result
    for m in merged:
        names = ", ".join(operator.scope for operator in m.others)
        _LOGGER.info("save: %s: folded %s into %s", file.source, names, m.operator.scope)
    return Edited(with_merged(model, merged, "folding"), {})


def _with_halves(file: Model, result: Edited) -> Edited:
    new = read_again(file, result.content)
    places = list(castable(new))
    for subgraph, i in places:
        tensor = new.subgraphs[subgraph].tensors[i]
        assert tensor.data is not None
        largest = np.abs(tensor.data[np.isfinite(tensor.data)]).max(initial=0)
        if largest >= _HALF_LIMIT:
            raise TensorError(
                f"save: dtype='float16': tensor {tensor.name!r} contains {largest:.6g}, float16's "
                f"largest value is {np.finfo(np.float16).max}; make its values smaller, or save "
                "float32"
            )
    return Edited(with_halves(new, places), {}) if places else result


def _io_types(io: FileIo | tuple[FileIo, FileIo]) -> dict[Side, TensorType]:
    """The types of a file's quantized inputs and outputs to which `io` of `save` changes them."""
    pair = io if isinstance(io, tuple) else (io, io)
    known = get_args(FileIo)
    if len(pair) != 2 or any(name not in known for name in pair):
        raise OptionError(
            f"save: io: expected one of {', '.join(map(repr, known))}, or a pair for inputs and "
            f"outputs, got {io!r}"
        )
    named = zip(get_args(Side), pair, strict=True)
    return {side: _TYPES[name] for side, name in named if name != "file"}
