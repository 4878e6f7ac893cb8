"""Load a stored entry as a program: its machine code and weights on the device."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxdelegate.cache.entry import Entry, EntryError, StoredWeight
from jaxdelegate.cache.store import ProgramStore
from jaxdelegate.device_weights import DeviceWeights, ModelWeights, put_constant, weight_name
from jaxdelegate.lru_cache import give_back
from jaxdelegate.pjrt import cudnn
from jaxdelegate.program import Program, stored_states
from jaxdelegate.quant.packing import in_memory
from jaxdelegate.xla.options import platform_of


class ResultSpec(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype


# Bytes of constants that are copied before their pages are let go of.
_COPIED = 32 << 20


class ModelData(NamedTuple):
    """What storing and loading a program need of a model, by tensor."""

    specs: Mapping[int, Any]  # at least the shapes and dtypes of the program's results
    constants: Mapping[int, np.ndarray]  # the elements of those that the program depends on
    digests: Mapping[int, str]
    drop_pages: Callable[[], None] = lambda: None  # those of the constants, which were read


def loaded(
    entry: Entry, store: ProgramStore, model: ModelData, weights: DeviceWeights | ModelWeights
) -> Program:
    """The program, its weights on the device; those that are missing are added to `weights`.

    An EntryError if a weight is damaged or missing, an OSError if another user could have written
    the weights, LOAD_ERRORS as `Runtime.load`.
    """
    runtime = weights.runtime
    if platform_of(runtime.device.platform) == "gpu" and cudnn.is_called(entry.code):
        cudnn.start(runtime.device)
    results = [model.specs[i] for i in (*entry.outputs, *entry.states)]
    with weights.loading():
        executable = runtime.load(
            entry.code,
            sum(map(len, (entry.call_lists, entry.weights, entry.inputs, entry.states))),
            [(spec.shape, spec.dtype) for spec in results],
        )
    with weights.adding():
        resident = _resident(entry, store, model, weights)
    return Program(
        executable=executable,
        weights=tuple(resident[_name(w)] for w in entry.weights),
        inputs=entry.inputs,
        outputs=entry.outputs,
        states=stored_states(entry.states, model.specs.__getitem__),
        donated=entry.donated,
        call_lists=tuple(
            runtime.put(np.frombuffer(call_list, np.uint8)) for call_list in entry.call_lists
        ),
        is_on_cpu=platform_of(runtime.device.platform) == "cpu",
    )


def _resident(
    entry: Entry, store: ProgramStore, model: ModelData, weights: DeviceWeights | ModelWeights
) -> dict[str, Any]:
    """The entry's weights on the device by name; those that are missing are put there."""
    runtime = weights.runtime
    named = {_name(weight): weight for weight in entry.weights}
    resident: dict[str, Any] = {name: weights.find(name) for name in named}
    missing = {name: w for name, w in named.items() if resident[name] is None}
    is_in_file = any(weight.tensor is None for weight in missing.values())
    read = store.weights(entry) if is_in_file else {}
    sizes = {name: math.prod(w.shape) * w.dtype.itemsize for name, w in missing.items()}
    if sum(sizes.values()) > _COPIED:
        give_back()  # what XLA needed to load the executable
    copied = 0
    for name, weight in missing.items():
        if weight.digest in read:
            array = runtime.put(_shaped(read[weight.digest], weight))
        else:
            array = put_constant(runtime, _constant(weight, model))
        resident[name] = weights.share(name, array)
        copied += sizes[name]
        if copied > _COPIED:
            model.drop_pages()
            copied = 0
    return resident


def _name(weight: StoredWeight) -> str:
    return weight_name(weight.digest, weight.dtype, weight.shape)


def _constant(weight: StoredWeight, model: ModelData) -> np.ndarray:
    """A weight with the elements of a constant, whose shape may differ."""
    index = -1 if weight.tensor is None else weight.tensor
    if index not in model.constants or model.digests.get(index) != weight.digest:
        raise EntryError(f"its weight, tensor {index}, differs from this model's")
    return _shaped(in_memory(model.constants[index]).reshape(-1), weight)


def _shaped(elements: np.ndarray, weight: StoredWeight) -> np.ndarray:
    return elements.view(weight.dtype).reshape(weight.shape)
