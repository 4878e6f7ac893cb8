"""From a stored entry to a program on the device: machine code and weights, side by side."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import jax
import jax.experimental.multihost_utils  # device_put would import it at its first call
import numpy as np

from jaxdelegate import jax_private
from jaxdelegate.cache.background import Start, in_background
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
        self._read: Future[dict[str, np.ndarray]] | None = None

    def _load(self) -> Callable[..., Any]:
        entry = self.entry
        taken = (entry.plans, entry.weights, entry.inputs, entry.states)
        n_in = sum(map(len, taken))
        n_out = len(entry.outputs) + len(entry.states)
        with jax.enable_x64(True):
            return jax_private.load_executable(entry.code, self._device, n_in, n_out)

    def read_weights(self, store: ProgramStore, start: Start = in_background) -> None:
        """Begin to read the file of its weights."""
        if self._read is None:
            self._read = start(store.weights, self.entry)

    def lacks(self, weights: ResidentWeights) -> bool:
        """Whether that file is needed: the device has not got all that is in it."""
        names = (weight_name(w) for w in self.entry.weights if w.tensor is None)
        return any(weights.find(name) is None for name in names)

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
        named = {weight_name(weight): weight for weight in entry.weights}
        resident = {name: weights.find(name) for name in named}
        missing = {name: w for name, w in named.items() if resident[name] is None}
        elements = self._elements(list(missing.values()), store, slot)
        with jax.enable_x64(True):
            arrays, plans = jax.device_put((elements, self._plans()), self._device)
        for name, array in zip(missing, arrays, strict=True):
            resident[name] = weights.share(name, array)
        arguments: Any = tuple(resident[weight_name(w)] for w in entry.weights)
        states = stored_states(entry.states, slot.specs.__getitem__)
        code = self._code.result()
        inputs, outputs = entry.inputs, entry.outputs
        return Program(code, arguments, inputs, outputs, states, entry.donated, plans=plans)

    def _plans(self) -> tuple[np.ndarray, ...]:
        return tuple(np.frombuffer(plan, np.uint8) for plan in self.entry.plans)

    def _elements(
        self, weights: Sequence[StoredWeight], store: ProgramStore, slot: Slot
    ) -> list[np.ndarray]:
        """The host array of each argument, from the file of weights or from the model."""
        if self._read is None and any(weight.tensor is None for weight in weights):
            self.read_weights(store)
        read = {} if self._read is None else self._read.result()
        return [
            _constant(w, slot) if w.digest not in read else _shaped(read[w.digest], w)
            for w in weights
        ]


def weight_name(weight: StoredWeight) -> str:
    """What a weight goes by on the device: elements, dtype and shape."""
    return f"{weight.digest} {weight.dtype} {weight.shape}"


def _constant(weight: StoredWeight, slot: Slot) -> np.ndarray:
    """An argument whose elements are those of a constant, in another shape perhaps."""
    index = -1 if weight.tensor is None else weight.tensor
    if index not in slot.digests or slot.digests[index] != weight.digest:
        raise EntryError(f"its weight is constant {index}, which is another one here")
    return _shaped(slot.constants[index].reshape(-1), weight)


def _shaped(elements: np.ndarray, weight: StoredWeight) -> np.ndarray:
    return elements.view(weight.dtype).reshape(weight.shape)
