"""Compiled programs across processes: what JaxDelegate asks before it compiles, and tells after.

Whatever is wrong with the cache costs time only: the program is compiled, and a CacheWarning says
what was found. Nothing here imports jax.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxdelegate.cache import answers, starts, turns
from jaxdelegate.cache.answers import Answers
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.entry import Entry, EntryError, unpack
from jaxdelegate.cache.key import Key, Part
from jaxdelegate.cache.loading import Ends, Wanted, loaded
from jaxdelegate.cache.partition_key import (
    KnownModel,
    calls_subgraphs,
    foreign_rule,
    model_part,
    read_constants,
)
from jaxdelegate.cache.settings import settings_part
from jaxdelegate.cache.slot import Slot, process_parts
from jaxdelegate.cache.sources import SourceError, source_parts
from jaxdelegate.cache.starts import Start
from jaxdelegate.cache.store import ProgramStore, stored_weights
from jaxdelegate.cache.weights import content_digest, file_content
from jaxdelegate.digests import digests
from jaxdelegate.errors import CacheWarning
from jaxdelegate.pjrt.client import LOAD_ERRORS
from jaxdelegate.xla.program import Program
from jaxdelegate.xla.weights import DeviceWeights, ModelWeights

if TYPE_CHECKING:
    from jaxdelegate.cache.choices import ChoiceStore
    from jaxdelegate.op_lowering.spec import TensorSpec
    from jaxdelegate.simple_delegate import DelegateParams, Node

_LOGGER = logging.getLogger("jaxdelegate")


@dataclasses.dataclass(frozen=True)
class Statistics:
    """How many programs were loaded, and how many compiled ones stored."""

    loaded: int = 0
    stored: int = 0


class ProgramCache:
    """A delegate's view of a cache directory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the directory; one that cannot be trusted is left alone, with a CacheWarning.

        Args:
            path: made if it is not there.
        """
        self._store: ProgramStore | None = None
        self.compiles_once = False  # wait for a process that compiles the same program
        self.statistics = Statistics()
        self._counting = threading.Lock()
        try:
            self._store = ProgramStore(PrivateDirectory.open(path))
        except OSError as error:
            _warn(f"compiled programs are not stored: {error}")
            return
        if self._store.directory.remark is not None:
            _warn(self._store.directory.remark)

    def choices(self, device: Any) -> ChoiceStore | None:
        """The measured choices for a device; None: the directory is not used."""
        from jaxdelegate.cache.choices import ChoiceStore  # noqa: PLC0415 (few have any)

        return None if self._store is None else ChoiceStore(self._store.directory, device)

    # ---- which operators are supported

    def graph_key(
        self,
        nodes: Sequence[Node],
        specs: Mapping[int, TensorSpec],
        model: KnownModel,
        settings: Mapping[str, Any],
        device: Any,
    ) -> Key | None:
        """What the rules' answers of a graph are kept under; None: they are not.

        Args:
            nodes: in order.
            specs: of every tensor that they touch.
            model: what is known of the open model.
            settings: as of `slot`.
            device: where programs run.
        """
        if self._store is None or not nodes or foreign_rule(nodes) is not None:
            return None
        try:
            return Key(
                {
                    **process_parts(settings, device),
                    **model.operators.of(nodes, specs),
                    **source_parts(of_subgraphs=calls_subgraphs(nodes)),
                    **model_part(model.constants.of(read_constants(nodes, (), specs))),
                }
            )
        except (TypeError, SourceError) as error:  # `slot` says so
            _LOGGER.debug("cache: no key: %s", error)
            return None

    def answers(self, key: Key) -> Answers | None:
        """What the rules answered of a graph; None: nothing is stored that can be used."""
        if self._store is None:
            return None
        try:
            return answers.read(self._store.directory, key)
        except (OSError, ValueError, TypeError) as error:
            _warn(f"stored answers {key.digest[:12]} are not used: {error}")
            return None

    def keep_answers(self, key: Key, given: Answers) -> None:
        """Keep what the rules answered."""
        if self._store is None:
            return
        try:
            answers.write(self._store.directory, key, given)
        except OSError as error:  # as storing the program will say
            _LOGGER.debug("cache: answers are not stored: %s", error)

    # ---- starts

    def start_key(
        self, content: memoryview, settings: Mapping[str, Any], device: Any
    ) -> Key | None:
        """What a model's start is kept under; None: it is not.

        Args:
            content: of the model's file.
            settings: of the delegate.
            device: where programs run.
        """
        if self._store is None:
            return None
        jax_config = settings_part(self._store.directory)
        if jax_config is None:
            return None
        try:
            return Key(
                {
                    **process_parts(settings, device),
                    "jax_config": jax_config,
                    "file": Part.of(digests([content])),
                    **source_parts(of_subgraphs=True),
                }
            )
        except SourceError as error:
            _LOGGER.debug("cache: no key: %s", error)
            return None

    def start(self, key: Key) -> Start | None:
        """What is stored of a model; None: nothing that can be used."""
        if self._store is None:
            return None
        try:
            return starts.read(self._store.directory, key)
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            _warn(f"stored start {key.digest[:12]} is not used: {error}")
            return None

    def keep_start(self, key: Key, start: Start) -> None:
        """Keep it."""
        if self._store is None:
            return
        try:
            starts.write(self._store.directory, key, start)
        except OSError as error:  # as storing the program has said
            _LOGGER.debug("cache: the start is not stored: %s", error)

    def load_start(self, start: Start, content: memoryview, weights: DeviceWeights) -> Program:
        """The program of a start, its weights on the device.

        Raises:
            LOAD_ERRORS: it cannot be loaded.
        """
        if self._store is None:
            raise LookupError("no programs are kept")
        entry = unpack(self._store.directory.read(start.program))
        if entry.file != start.program:
            raise EntryError(f"it belongs under the name {entry.file}")
        bytes_of_file = np.frombuffer(content, np.uint8)
        wanted = Wanted(
            {t.index: Ends(t.shape, np.dtype(t.dtype)) for t in start.outputs},
            {i: bytes_of_file[at : at + nbytes] for i, (at, nbytes) in start.constants.items()},
            {w.tensor: w.digest for w in entry.weights if w.tensor is not None},
        )
        program = loaded(entry, self._store, wanted, weights)
        self._loaded(entry)
        return program

    # ---- programs

    def slot(
        self,
        params: DelegateParams,
        specs: Mapping[int, TensorSpec],
        model: KnownModel,
        settings: Mapping[str, Any],
        device: Any,
    ) -> Slot | None:
        """The place of a partition's program.

        Args:
            params: the partition.
            specs: of every tensor that it touches.
            model: what is known of the open model.
            settings: further parts of the key: options, model token.
            device: where the program runs.

        Returns:
            None: it is not to be stored; a warning or the debug log says why.
        """
        if self._store is None:
            return None
        if (name := foreign_rule(params.nodes)) is not None:
            _LOGGER.debug("cache: %s has a rule of its own, whose source is no part of keys", name)
            return None
        jax_config = settings_part(self._store.directory)
        if jax_config is None:
            _LOGGER.debug("cache: JAX's settings are not known here")
            return None
        try:
            return Slot(params, specs, model, settings, jax_config, device)
        except TypeError as error:
            _LOGGER.debug("cache: no key: %s", error)
        except SourceError as error:
            _warn(f"compiled programs are not stored: {error}")
        return None

    def load(self, slot: Slot, weights: ModelWeights) -> Program | None:
        """The stored program, its weights on the device; None: it has to be compiled."""
        if self._store is None:
            return None
        _log_key(slot.key)
        try:
            entry = self._store.find(slot.key)
            if entry is None:
                self._log_miss(slot.key)
                _warn_of_other_versions(self._store)
                return None
            program = loaded(entry, self._store, slot, weights)
        except (EntryError, *LOAD_ERRORS) as error:
            if weights.runtime.has_jax:
                _warn(f"stored program {slot.key.digest[:12]} is not used: {error}")
            else:  # with jax it may go
                _LOGGER.debug("cache: program %.12s: %s", slot.key.digest, error)
            return None
        self._loaded(entry)
        return dataclasses.replace(program, file=entry.file)

    @contextlib.contextmanager
    def turn(self, slot: Slot) -> Iterator[bool]:
        """Around compiling and storing a program: with `compiles_once`, no two processes at once.

        Yields:
            Whether another process may have stored it meanwhile: look again.
        """
        if self._store is None or not self.compiles_once:
            yield False
            return
        with turns.turn(self._store.directory, slot.key.digest):
            yield True

    def save(self, slot: Slot, program: Program) -> Program:
        """Store a program that was compiled for the slot; returns it with its file's name."""
        if self._store is None:
            return program
        if program.was_read:
            _warn(
                f"program {slot.key.digest[:12]} is not stored: it came out of JAX's own "
                "compilation cache, and XLA cannot write out what it has read"
            )
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
                program.executable.serialized(),
                tuple(np.asarray(call_list).tobytes() for call_list in program.call_lists),
                slot.model_name,
                slot.operators,
            )
            self._store.save(entry, content)
            self._count(stored=1)
        except (SourceError, *LOAD_ERRORS) as error:
            _warn(f"program {slot.key.digest[:12]} is not stored: {error}")
            return program
        return dataclasses.replace(program, file=entry.file)

    def _loaded(self, entry: Entry) -> None:
        _LOGGER.debug("cache: program %.12s was loaded", entry.key.digest)
        if self._store is not None:
            self._store.directory.touch(entry.file)
        self._count(loaded=1)

    def _count(self, *, loaded: int = 0, stored: int = 0) -> None:
        with self._counting:
            now = self.statistics
            self.statistics = Statistics(now.loaded + loaded, now.stored + stored)

    def _log_miss(self, key: Key) -> None:
        if self._store is None or not _LOGGER.isEnabledFor(logging.DEBUG):
            return
        moved = self._store.nearest(key)
        why = "nothing is stored yet" if moved is None else f"moved: {', '.join(moved)}"
        _LOGGER.debug("cache: program %.12s is not there; %s", key.digest, why)


_seen: set[str] = set()  # directories that were looked through


def _warn_of_other_versions(store: ProgramStore) -> None:
    """Once in a process for each directory."""
    path = str(store.directory.path)
    if path in _seen:
        return
    _seen.add(path)
    if count := store.outdated():
        _warn(
            f"{count} programs in {path} were stored by another version of jaxdelegate and are not "
            "used; models are compiled again. To remove old programs: jaxdelegate cache prune "
            f"--jax_serialization_dir={path} --max_size=10G"
        )


def _log_key(key: Key) -> None:
    for name, part in key.parts.items():
        _LOGGER.debug("cache key %.12s: %s %s %s", key.digest, name, part.digest, part.text)


def _warn(message: str) -> None:
    warnings.warn(message, CacheWarning, stacklevel=2)
