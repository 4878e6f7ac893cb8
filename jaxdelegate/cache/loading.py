"""From a stored entry to a program on the device: machine code and weights, side by side."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxdelegate import jax_private
from jaxdelegate.cache.background import in_background
from jaxdelegate.cache.entry import Entry, EntryError, StoredWeight
from jaxdelegate.cache.slot import Slot
from jaxdelegate.cache.store import ProgramStore
from jaxdelegate.compiler import Program, ResidentWeights, stored_states


class Loading:
    """An entry whose machine code is being loaded; nobody has to want it in the end."""

    def __init__(self, entry: Entry, device: jax.Device) -> None:
        """Begin to load it for `device`."""
        self.entry = entry
        self._device = device
        self._code = in_background(self._load)

    def _load(self) -> Callable[..., Any]:
        entry = self.entry
        n_in = len(entry.weights) + len(entry.inputs) + len(entry.states)
        n_out = len(entry.outputs) + len(entry.states)
        with jax.enable_x64(True):
            return jax_private.load_executable(entry.code, self._device, n_in, n_out)

    def program(self, store: ProgramStore, slot: Slot, weights: ResidentWeights) -> Program:
        """The program, its weights on the device.

        Args:
            store: where the files of weights are.
            slot: of the entry's key.
            weights: what the device has; takes in what is missing.

        Raises:
            EntryError: a weight is damaged or gone.
            OSError: somebody else could have written it.
            LOAD_ERRORS: as `jax_private.load_executable`.
        """
        entry = self.entry
        resident = {weight_name(w): weights.find(weight_name(w)) for w in entry.weights}
        missing = {weight_name(w): w for w in entry.weights if resident[weight_name(w)] is None}
        elements = _elements(store, slot, list(missing.values()))
        with jax.enable_x64(True):
            arrays = jax.device_put(elements, self._device)
        for name, array in zip(missing, arrays, strict=True):
            resident[name] = weights.share(name, array)
        arguments: Any = tuple(resident[weight_name(w)] for w in entry.weights)
        states = stored_states(entry.states, slot.specs.__getitem__)
        code = self._code.result()
        return Program(code, arguments, entry.inputs, entry.outputs, states, entry.donated)


def weight_name(weight: StoredWeight) -> str:
    """What a weight goes by on the device: elements, dtype and shape."""
    return f"{weight.digest} {weight.dtype} {weight.shape}"


def _elements(store: ProgramStore, slot: Slot, records: Sequence[StoredWeight]) -> list[np.ndarray]:
    """The host array of each argument, from its file or from the model."""
    read = iter(store.weights([w for w in records if w.tensor is None]))
    return [next(read) if w.tensor is None else _constant(w, slot) for w in records]


def _constant(weight: StoredWeight, slot: Slot) -> np.ndarray:
    """An argument whose elements are those of a constant, in another shape perhaps."""
    index = -1 if weight.tensor is None else weight.tensor
    if index not in slot.digests or slot.digests[index] != weight.digest:
        raise EntryError(f"its weight is constant {index}, which is another one here")
    return slot.constants[index].reshape(-1).view(weight.dtype).reshape(weight.shape)
