"""Compiled programs across processes: what JaxDelegate asks before it compiles, and tells after.

Whatever is wrong with the cache costs time only: the program is compiled, and a CacheWarning says
what was found.
"""

import dataclasses
import logging
import os
import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from jaxdelegate import jax_private
from jaxdelegate.cache.choices import ChoiceStore
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.entry import Entry, EntryError, StoredWeight
from jaxdelegate.cache.environment import (
    SUBGRAPH_SOURCES,
    SourceError,
    environment_parts,
    source_digest,
)
from jaxdelegate.cache.key import Key, Part
from jaxdelegate.cache.partition_key import (
    ConstantDigests,
    calls_subgraphs,
    foreign_rule,
    partition_parts,
    read_constants,
)
from jaxdelegate.cache.store import ProgramStore, stored_weights
from jaxdelegate.compiler import Program, ResidentWeights, stored_states
from jaxdelegate.errors import CacheWarning
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.simple_delegate import DelegateParams

_LOGGER = logging.getLogger("jaxdelegate")


@dataclasses.dataclass(frozen=True)
class Slot:
    """Where the program of one partition, for the current shapes, belongs."""

    key: Key
    specs: Mapping[int, TensorSpec]
    constants: Mapping[int, np.ndarray]
    digests: Mapping[int, str]  # of the constants


@dataclasses.dataclass(frozen=True)
class Statistics:
    """How many programs were loaded, and how many compiled ones stored."""

    loaded: int = 0
    stored: int = 0


class ProgramCache:
    """A delegate's view of a cache directory."""

    def __init__(self, path: str | os.PathLike[str], device: jax.Device) -> None:
        """Open the directory; one that cannot be trusted is left alone, with a CacheWarning.

        Args:
            path: made if it is not there.
            device: where programs run.
        """
        self._device = device
        self._store: ProgramStore | None = None
        self.choices: ChoiceStore | None = None
        self.statistics = Statistics()
        try:
            directory = PrivateDirectory.open(path)
            self._store = ProgramStore(directory)
            self.choices = ChoiceStore(directory, device)
        except OSError as error:
            _warn(f"programs are not kept: {error}")

    def slot(
        self,
        params: DelegateParams,
        specs: Mapping[int, TensorSpec],
        constants: ConstantDigests,
        settings: Mapping[str, Any],
    ) -> Slot | None:
        """The place of a partition's program.

        Args:
            params: the partition.
            specs: of every tensor that it touches.
            constants: digests that are known of the open model.
            settings: further parts of the key: options, model token.

        Returns:
            None: it is not to be stored; a warning or the debug log says why.
        """
        if self._store is None or all(node.is_constant for node in params.nodes):
            return None
        if (name := foreign_rule(params.nodes)) is not None:
            _LOGGER.debug("cache: %s has a rule of its own, whose source is no part of keys", name)
            return None
        arrays = read_constants(params.nodes, params.outputs, specs)
        try:
            with ThreadPoolExecutor(1) as executor:  # hashing needs no interpreter lock
                hashing = executor.submit(constants.of, arrays)
                parts = self._surroundings(params, settings)
                digests = hashing.result()
            parts |= partition_parts(params, specs, digests)
        except TypeError as error:
            _LOGGER.debug("cache: no key: %s", error)
            return None
        except SourceError as error:
            _warn(f"programs are not kept: {error}")
            return None
        key = Key(parts)
        for name, part in parts.items():
            _LOGGER.debug("cache key %.12s: %s %s %s", key.digest, name, part.digest, part.text)
        return Slot(key, specs, arrays, digests)

    def _count(self, *, loaded: int = 0, stored: int = 0) -> None:
        now = self.statistics
        self.statistics = Statistics(now.loaded + loaded, now.stored + stored)

    def _surroundings(self, params: DelegateParams, settings: Mapping[str, Any]) -> dict[str, Part]:
        """The parts that do not come from the model."""
        own = dict(settings)
        if calls_subgraphs(params.nodes):
            own["subgraph_sources"] = source_digest(SUBGRAPH_SOURCES)
        parts = {name: Part.of(value) for name, value in own.items()}
        return parts | environment_parts(self._device)

    def get(
        self, slot: Slot, weights: ResidentWeights, compile_program: Callable[[], Program]
    ) -> Program:
        """The stored program, its weights on the device; or a compiled one, which is stored."""
        program = self._load(slot, weights)
        if program is not None:
            return program
        program = compile_program()
        if program.was_read:
            _warn(
                f"program {slot.key.digest[:12]} is not stored: it came out of JAX's own "
                "compilation cache, and XLA cannot write out what it has read"
            )
            return program
        return self._save(slot, program, weights)

    def _load(self, slot: Slot, weights: ResidentWeights) -> Program | None:
        if self._store is None:
            return None
        try:
            entry = self._store.find(slot.key)
            if entry is None:
                self._log_miss(slot.key)
                return None
            program = self._program(self._store, entry, slot, weights)
        except (EntryError, *jax_private.LOAD_ERRORS) as error:
            _warn(f"stored program {slot.key.digest[:12]} is not used: {error}")
            return None
        _LOGGER.debug("cache: program %.12s was loaded", slot.key.digest)
        self._count(loaded=1)
        return program

    def _save(self, slot: Slot, program: Program, weights: ResidentWeights) -> Program:
        """Store a program that was compiled for the slot; answers it with shared weights."""
        if self._store is None:
            return program
        constants = {digest: index for index, digest in slot.digests.items()}
        arrays = [np.asarray(array) for array in program.weights]
        records = stored_weights(arrays, constants)
        try:
            entry = Entry(
                slot.key,
                program.inputs,
                program.outputs,
                tuple(program.states),
                program.donated,
                records,
                jax_private.dump_executable(program.executable),
            )
            by_digest = {w.digest: a for w, a in zip(records, arrays, strict=True)}
            self._store.save(entry, by_digest)
            self._count(stored=1)
        except (ValueError, NotImplementedError, pickle.PickleError, OSError) as error:
            _warn(f"program {slot.key.digest[:12]} is not stored: {error}")
        shared = [
            weights.share(_name(w), array)
            for w, array in zip(records, program.weights, strict=True)
        ]
        return dataclasses.replace(program, weights=tuple(shared))

    def _program(
        self, store: ProgramStore, entry: Entry, slot: Slot, weights: ResidentWeights
    ) -> Program:
        n_in = len(entry.weights) + len(entry.inputs) + len(entry.states)
        n_out = len(entry.outputs) + len(entry.states)
        resident = {_name(w): weights.find(_name(w)) for w in entry.weights}
        missing = {_name(w): w for w in entry.weights if resident[_name(w)] is None}
        with ThreadPoolExecutor(1) as executor, jax.enable_x64(True):
            reading = executor.submit(_elements, store, slot, list(missing.values()))
            code = jax_private.load_executable(entry.code, self._device, n_in, n_out)
            for name, array in zip(missing, reading.result(), strict=True):
                resident[name] = weights.share(name, jax.device_put(array, self._device))
        arguments: Any = tuple(resident[_name(w)] for w in entry.weights)
        states = stored_states(entry.states, slot.specs.__getitem__)
        return Program(code, arguments, entry.inputs, entry.outputs, states, entry.donated)

    def _log_miss(self, key: Key) -> None:
        if self._store is None or not _LOGGER.isEnabledFor(logging.DEBUG):
            return
        moved = self._store.nearest(key)
        why = "nothing is stored yet" if moved is None else f"moved: {', '.join(moved)}"
        _LOGGER.debug("cache: program %.12s is not there; %s", key.digest, why)


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


def _name(weight: StoredWeight) -> str:
    return f"{weight.digest} {weight.dtype} {weight.shape}"


def _warn(message: str) -> None:
    warnings.warn(message, CacheWarning, stacklevel=2)
