"""Compiled programs across processes: what JaxDelegate asks before it compiles, and tells after.

Whatever is wrong with the cache costs time only: the program is compiled, and a CacheWarning says
what was found.
"""

import contextlib
import dataclasses
import logging
import os
import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxdelegate import jax_private
from jaxdelegate.cache.background import Background
from jaxdelegate.cache.choices import ChoiceStore
from jaxdelegate.cache.constants import FileDigests
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.entry import Entry, EntryError
from jaxdelegate.cache.environment import environment_parts
from jaxdelegate.cache.hints import Hint
from jaxdelegate.cache.key import Key
from jaxdelegate.cache.loading import Loading, weight_name
from jaxdelegate.cache.partition_key import (
    KnownModel,
    calls_subgraphs,
    foreign_rule,
    model_part,
    read_constants,
)
from jaxdelegate.cache.slot import Slot, setting_parts
from jaxdelegate.cache.sources import SourceError, Sources
from jaxdelegate.cache.store import ProgramStore, stored_weights
from jaxdelegate.cache.weights import content_digest, file_content
from jaxdelegate.compiler import Program, ResidentWeights
from jaxdelegate.errors import CacheWarning
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.simple_delegate import DelegateParams, Node

_LOGGER = logging.getLogger("jaxdelegate")

# What keeps a program from being stored, and costs time only.
_SAVE_ERRORS = (SourceError, ValueError, NotImplementedError, pickle.PickleError, OSError)


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
        self._sources = Sources()
        self.choices: ChoiceStore | None = None
        self._hint: Hint | None = None
        self._file: FileDigests | None = None
        self._expected: Loading | None = None
        self.statistics = Statistics()
        try:
            directory = PrivateDirectory.open(path)
            self._store = ProgramStore(directory)
            self._sources = Sources(directory)
            self.choices = ChoiceStore(directory, device, self._sources)
        except OSError as error:
            _warn(f"programs are not kept: {error}")

    def expect(self, content: memoryview, settings: Mapping[str, Any]) -> None:
        """Begin to load the program that a model ran last, while the model is read.

        Args:
            content: of the model's file.
            settings: as of `slot`.
        """
        self._hint = self._expected = None
        if self._store is None:
            return
        start = Background()
        self._file = FileDigests(self._store.directory, content, start)
        with contextlib.suppress(TypeError):  # no keys then: `slot` says so
            self._hint = Hint(self._store, content, settings)
            entry = self._hint.entry(environment_parts(self._device))
            if entry is not None:
                loading = Loading(entry, self._device)
                loading.read_weights(self._store, start)
                self._expected = loading
        start.close()

    def foresees(
        self,
        nodes: Sequence[Node],
        specs: Mapping[int, TensorSpec],
        model: KnownModel,
        settings: Mapping[str, Any],
    ) -> bool:
        """Whether the program that was expected is known to be made of just these operators.

        All of them are supported then: it was compiled for the same settings by the same sources.
        Constants begin to be hashed here, and are not waited for.

        Args:
            nodes: in order.
            specs: of every tensor that they touch.
            model: what is known of the open model.
            settings: as of `slot`.
        """
        expected, read = self._expected, read_constants(nodes, (), specs)
        file, self._file = self._file, None
        model.constants.begin(read, file)
        if expected is None or not model.constants.are_made(read):
            return False
        if foreign_rule(nodes) is not None:
            return False
        key = expected.entry.key
        try:
            return (
                key.has(setting_parts(settings))
                and key.has(environment_parts(self._device))
                and key.has(model_part(model.constants.of(read)))
                and key.has(model.operators.of(nodes, specs))
                and key.has(self._sources.parts(of_subgraphs=calls_subgraphs(nodes)))
            )
        except (TypeError, SourceError):  # no key: `slot` and `get` say so
            return False

    def slot(
        self,
        params: DelegateParams,
        specs: Mapping[int, TensorSpec],
        model: KnownModel,
        settings: Mapping[str, Any],
    ) -> Slot | None:
        """The place of a partition's program.

        Args:
            params: the partition.
            specs: of every tensor that it touches.
            model: what is known of the open model.
            settings: further parts of the key: options, model token.

        Returns:
            None: it is not to be stored; a warning or the debug log says why.
        """
        if self._store is None or all(node.is_constant for node in params.nodes):
            return None
        if (name := foreign_rule(params.nodes)) is not None:
            _LOGGER.debug("cache: %s has a rule of its own, whose source is no part of keys", name)
            return None
        try:
            return Slot(params, specs, model, settings, self._device, self._sources)
        except TypeError as error:
            _LOGGER.debug("cache: no key: %s", error)
            return None

    def _count(self, *, loaded: int = 0, stored: int = 0) -> None:
        now = self.statistics
        self.statistics = Statistics(now.loaded + loaded, now.stored + stored)

    def get(
        self, slot: Slot, weights: ResidentWeights, compile_program: Callable[[], Program]
    ) -> Program:
        """The stored program, its weights on the device; or a compiled one, which is stored."""
        try:
            program = self._load(slot, weights)
        except SourceError as error:
            _warn(f"programs are not kept: {error}")
            return compile_program()
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
        loading = self._guessed(self._store, slot, weights)
        _log_key(slot.key)
        try:
            if loading is None or loading.entry.key.moved(slot.key):
                entry = self._store.find(slot.key)
                if entry is None:
                    self._log_miss(slot.key)
                    return None
                loading = Loading(entry, self._device)
            program = loading.program(self._store, slot, weights)
        except (EntryError, *jax_private.LOAD_ERRORS) as error:
            _warn(f"stored program {slot.key.digest[:12]} is not used: {error}")
            return None
        _LOGGER.debug("cache: program %.12s was loaded", slot.key.digest)
        self._store.directory.touch(loading.entry.file)
        self._count(loaded=1)
        self._remember(loading.entry)
        return program

    def _guessed(self, store: ProgramStore, slot: Slot, weights: ResidentWeights) -> Loading | None:
        """What is probably meant, begun to be loaded while the constants are still hashed."""
        loading = self._begun(store, slot)
        if loading is not None and loading.lacks(weights):
            loading.read_weights(store)
        return loading

    def _begun(self, store: ProgramStore, slot: Slot) -> Loading | None:
        """What was expected, if it is of the slot's family; else what was used last of that."""
        expected, self._expected = self._expected, None
        if expected is not None and expected.entry.key.family == slot.family:
            return expected
        entry = store.latest(slot.family)
        return None if entry is None else Loading(entry, self._device)

    def _remember(self, entry: Entry) -> None:
        """The first program that a model needs is the one to begin with next time."""
        hint, self._hint = self._hint, None
        if hint is not None:
            hint.keep(entry.file)

    def _save(self, slot: Slot, program: Program, weights: ResidentWeights) -> Program:
        """Store a program that was compiled for the slot; answers it with shared weights."""
        if self._store is None:
            return program
        constants = {digest: index for index, digest in slot.digests.items()}
        arrays = [np.asarray(array) for array in program.weights]
        records = stored_weights(arrays, constants)
        by_digest = {w.digest: a for w, a in zip(records, arrays, strict=True)}
        content = file_content(records, by_digest)
        try:
            slot.confirm()
            entry = Entry(
                slot.key,
                program.inputs,
                program.outputs,
                tuple(program.states),
                program.donated,
                records,
                content_digest(content),
                jax_private.dump_executable(program.executable),
                tuple(np.asarray(plan).tobytes() for plan in program.plans),
            )
            self._store.save(entry, content)
            self._count(stored=1)
            self._remember(entry)
        except _SAVE_ERRORS as error:
            _warn(f"program {slot.key.digest[:12]} is not stored: {error}")
        shared = [
            weights.share(weight_name(w), array)
            for w, array in zip(records, program.weights, strict=True)
        ]
        return dataclasses.replace(program, weights=tuple(shared))

    def _log_miss(self, key: Key) -> None:
        if self._store is None or not _LOGGER.isEnabledFor(logging.DEBUG):
            return
        moved = self._store.nearest(key)
        why = "nothing is stored yet" if moved is None else f"moved: {', '.join(moved)}"
        _LOGGER.debug("cache: program %.12s is not there; %s", key.digest, why)


def _log_key(key: Key) -> None:
    for name, part in key.parts.items():
        _LOGGER.debug("cache key %.12s: %s %s %s", key.digest, name, part.digest, part.text)


def _warn(message: str) -> None:
    warnings.warn(message, CacheWarning, stacklevel=2)
