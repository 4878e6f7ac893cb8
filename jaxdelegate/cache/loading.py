"""From a stored entry to a program on the device: machine code and weights."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxdelegate.cache.entry import Entry, EntryError, StoredWeight
from jaxdelegate.cache.store import ProgramStore
from jaxdelegate.xla.program import Program, stored_states
from jaxdelegate.xla.weights import DeviceWeights, ModelWeights, weight_name


class Ends(NamedTuple):
    """Shape and dtype of a result."""

    shape: tuple[int, ...]
    dtype: np.dtype


class Wanted(NamedTuple):
    """What loading has to know of a model: a slot does, too.

    Attributes:
        specs: shapes and dtypes of results, by tensor.
        constants: the elements of constants, by tensor.
        digests: of the constants.
    """

    specs: Mapping[int, Any]
    constants: Mapping[int, np.ndarray]
    digests: Mapping[int, str]


def loaded(
    entry: Entry, store: ProgramStore, slot: Any, weights: DeviceWeights | ModelWeights
) -> Program:
    """The program, its weights on the device.

    Args:
        entry: of the slot.
        store: where the files of weights are.
        slot: of the entry's key, or a Wanted.
        weights: what the device has; takes in what is missing.

    Raises:
        EntryError: a weight is damaged or gone.
        OSError: somebody else could have written it.
        LOAD_ERRORS: as `Runtime.load`.
    """
    runtime = weights.runtime
    results = [slot.specs[i] for i in (*entry.outputs, *entry.states)]
    executable = runtime.load(
        entry.code,
        sum(map(len, (entry.call_lists, entry.weights, entry.inputs, entry.states))),
        [(spec.shape, spec.dtype) for spec in results],
    )
    named = {_name(weight): weight for weight in entry.weights}
    resident: dict[str, Any] = {name: weights.find(name) for name in named}
    missing = {name: w for name, w in named.items() if resident[name] is None}
    elements = _elements(list(missing.values()), entry, store, slot)
    for name, array in zip(missing, elements, strict=True):
        resident[name] = weights.share(name, runtime.put(array))
    return Program(
        executable,
        tuple(resident[_name(w)] for w in entry.weights),
        entry.inputs,
        entry.outputs,
        stored_states(entry.states, slot.specs.__getitem__),
        entry.donated,
        call_lists=tuple(
            runtime.put(np.frombuffer(call_list, np.uint8)) for call_list in entry.call_lists
        ),
    )


def _elements(
    weights: Sequence[StoredWeight], entry: Entry, store: ProgramStore, slot: Any
) -> list[np.ndarray]:
    """The host array of each argument, from the file of weights or from the model."""
    is_in_file = any(weight.tensor is None for weight in weights)
    read = store.weights(entry) if is_in_file else {}
    return [
        _constant(w, slot) if w.digest not in read else _shaped(read[w.digest], w) for w in weights
    ]


def _name(weight: StoredWeight) -> str:
    return weight_name(weight.digest, weight.dtype, weight.shape)


def _constant(weight: StoredWeight, slot: Any) -> np.ndarray:
    """An argument whose elements are those of a constant, in another shape perhaps."""
    index = -1 if weight.tensor is None else weight.tensor
    if index not in slot.constants or slot.digests.get(index) != weight.digest:
        raise EntryError(f"its weight, tensor {index}, differs from this model's")
    return _shaped(slot.constants[index].reshape(-1), weight)


def _shaped(elements: np.ndarray, weight: StoredWeight) -> np.ndarray:
    return elements.view(weight.dtype).reshape(weight.shape)
