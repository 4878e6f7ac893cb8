"""The compiled-program cache: JaxDelegate looks here before it compiles, and stores the result.

A faulty cache costs time only: the program is compiled, and a CacheWarning reports the problem.
Nothing here imports jax.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from jaxdelegate.cache import locks, records
from jaxdelegate.cache.directory import PrivateDirectory
from jaxdelegate.cache.entry import Entry, EntryError, unpack
from jaxdelegate.cache.environment import settings_part
from jaxdelegate.cache.key import Key, Part
from jaxdelegate.cache.loading import ModelData, ResultSpec, loaded
from jaxdelegate.cache.maintenance import prune
from jaxdelegate.cache.partition_key import (
    KnownModel,
    calls_subgraphs,
    foreign_rule,
    model_part,
    read_constants,
)
from jaxdelegate.cache.program_key import ProgramKey, file_parts, process_parts
from jaxdelegate.cache.records import Kind, StartRecord
from jaxdelegate.cache.sources import SourceError, source_parts
from jaxdelegate.cache.store import ProgramStore, stored_weights
from jaxdelegate.cache.weights import content_digest, file_content
from jaxdelegate.device_weights import DeviceWeights, ModelWeights
from jaxdelegate.errors import CacheWarning
from jaxdelegate.pjrt.client import LOAD_ERRORS
from jaxdelegate.program import Program
from jaxdelegate.text import plural

if TYPE_CHECKING:
    from jaxdelegate.cache.choices import ChoiceStore
    from jaxdelegate.op_lowering.spec import TensorSpec
    from jaxdelegate.simple_delegate import DelegateParams, Node

_LOGGER = logging.getLogger("jaxdelegate")

K = TypeVar("K", bound=Key)
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Statistics:
    loaded: int = 0
    stored: int = 0


class ProgramCache:
    """A delegate's view of a cache directory."""

    def __init__(self, directory: PrivateDirectory) -> None:
        self._store = ProgramStore(directory)
        self.compiles_once = False  # wait for a process that compiles the same program
        self.most_bytes: int | None = None  # in all files: the least recently used are removed
        self.statistics = Statistics()
        self._counting = threading.Lock()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> ProgramCache | None:
        """The cache in a directory; None, and a CacheWarning, if that cannot be used or trusted."""
        try:
            directory = PrivateDirectory.open(path)
        except OSError as error:
            _warn(f"compiled programs are not stored: {error}")
            return None
        if directory.remark is not None:
            _warn(directory.remark)
        return cls(directory)

    def choices(self, device: Any) -> ChoiceStore:
        """The measured choices for a device."""
        from jaxdelegate.cache.choices import ChoiceStore  # noqa: PLC0415 (rarely used)

        return ChoiceStore(self._store.directory, device)

    # ---- which operators are supported

    def graph_key(
        self,
        nodes: Sequence[Node],
        specs: Mapping[int, TensorSpec],
        model: KnownModel,
        settings: Mapping[str, Any],
        device: Any,
    ) -> Key | None:
        """The key of a graph's support verdicts; None: they are not stored.

        `specs` has every tensor that the nodes, in order, use.
        """
        if not nodes or foreign_rule(nodes) is not None:
            return None
        try:
            return Key(
                {
                    **process_parts(settings, device),
                    **model.operators(nodes, specs),
                    **source_parts(of_subgraphs=calls_subgraphs(nodes)),
                    **model_part(model.constants.of(read_constants(nodes, (), specs))),
                }
            )
        except (TypeError, SourceError) as error:  # `program_key` warns of it
            _LOGGER.debug("cache: no key: %s", error)
            return None

    # ---- records

    def file_key(
        self, file: str, settings: Mapping[str, Any], device: Any, folders: tuple[str, ...] = ()
    ) -> Key | None:
        """The key of what depends on all of a file, by its digest; None: it is not stored."""
        return self._key(
            lambda config: Key(file_parts(file, settings, config, device, folders)), _LOGGER.debug
        )

    def record(self, kind: Kind[T], key: Key) -> T | None:
        """The record that is stored under a key; None: none that can be used."""
        try:
            text = records.read(self._store.directory, key, kind.suffix)
            return None if text is None else kind.decoded(text)
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            _warn(f"stored {kind.name} {key.digest[:12]} is not used: {error}")
            return None

    def save_record(self, kind: Kind[T], key: Key, record: T) -> None:
        try:
            records.write(self._store.directory, key, kind.suffix, kind.encoded(record))
        except OSError as error:  # storing the program has warned of it
            _LOGGER.debug("cache: the %s is not stored: %s", kind.name, error)

    def load_started(
        self, record: StartRecord, content: memoryview, weights: DeviceWeights
    ) -> Program:
        """The program that a start record names, its weights on the device; raises LOAD_ERRORS."""
        entry = unpack(self._store.directory.read(record.program))
        if entry.file != record.program:
            raise EntryError(f"it belongs under the name {entry.file}")
        bytes_of_file = np.frombuffer(content, np.uint8)
        model = ModelData(
            {t.index: ResultSpec(t.shape, np.dtype(t.dtype)) for t in record.outputs},
            {i: bytes_of_file[at : at + nbytes] for i, (at, nbytes) in record.constants.items()},
            {w.tensor: w.digest for w in entry.weights if w.tensor is not None},
        )
        program = loaded(entry, self._store, model, weights)
        self._loaded(entry)
        return program

    # ---- programs

    def program_key(
        self,
        params: DelegateParams,
        specs: Mapping[int, TensorSpec],
        model: KnownModel,
        settings: Mapping[str, Any],
        device: Any,
    ) -> ProgramKey | None:
        """The key of a partition's program.

        `specs` has every tensor that the partition uses; `settings` are further parts of the key:
        options, model token. None: the program cannot be stored, and a warning or the debug log
        says why.
        """
        if (name := foreign_rule(params.nodes)) is not None:
            _LOGGER.debug("cache: %s has a custom rule, whose source keys do not cover", name)
            return None
        try:
            return self._key(
                lambda config: ProgramKey.of_partition(
                    params, specs, model, settings, config, device
                )
            )
        except TypeError as error:
            _LOGGER.debug("cache: no key: %s", error)
            return None

    def file_program_key(
        self,
        file: str,
        data: ModelData,
        settings: Mapping[str, Any],
        device: Any,
        folders: tuple[str, ...] = (),
        **for_people: Any,
    ) -> ProgramKey | None:
        """The key of a program that may depend on all of a model's file, by its digest.

        None: the program cannot be stored.
        """
        return self._key(
            lambda config: ProgramKey(
                file_parts(file, settings, config, device, folders),
                data,
                is_of_file=True,
                folders=folders,
                **for_people,
            )
        )

    def _key(
        self, key: Callable[[Part], K], report: Callable[[str], None] | None = None
    ) -> K | None:
        """What `key` returns for JAX's settings; None: these or the sources are not known.

        `report` receives the message if sources are missing; None: it is a warning.
        """
        part = settings_part(self._store.directory)
        if part is None:
            _LOGGER.debug("cache: JAX's settings are not known in this process")
            return None
        try:
            return key(part)
        except SourceError as error:
            (report or _warn)(f"compiled programs are not stored: {error}")
            return None

    def load(self, key: ProgramKey, weights: DeviceWeights | ModelWeights) -> Program | None:
        """The stored program, its weights on the device; None: it must be compiled."""
        for name, part in key.parts.items():
            _LOGGER.debug("cache key %.12s: %s %s %s", key.digest, name, part.digest, part.text)
        try:
            entry = self._store.find(key)
            if entry is None:
                self._log_miss(key)
                _warn_of_other_versions(self._store)
                return None
            program = loaded(entry, self._store, key.data_for(entry.weights), weights)
        except (EntryError, *LOAD_ERRORS) as error:
            if weights.runtime.has_jax:
                _warn(f"stored program {key.digest[:12]} is not used: {error}")
            else:  # loading it through jax may work
                _LOGGER.debug("cache: program %.12s: %s", key.digest, error)
            return None
        self._loaded(entry)
        return dataclasses.replace(program, file=entry.file)

    @contextlib.contextmanager
    def compile_lock(self, key: ProgramKey) -> Iterator[bool]:
        """Held while a program is compiled and stored; with `compiles_once`, by one process.

        Yields whether another process may have stored the program meanwhile.
        """
        if not self.compiles_once:
            yield False
            return
        with locks.program_lock(self._store.directory, key.digest):
            yield True

    def save(self, key: ProgramKey, program: Program) -> Program:
        """Store a compiled program; returns it with the name of its file."""
        if program.was_read:
            _warn(
                f"program {key.digest[:12]} is not stored: it was read from JAX's own "
                "compilation cache, and XLA cannot serialize such a program"
            )
            return program
        constants = {digest: index for index, digest in key.constant_digests().items()}
        arrays = [np.asarray(array) for array in program.weights]
        records = stored_weights(arrays, constants)
        by_digest = {w.digest: a for w, a in zip(records, arrays, strict=True)}
        content = file_content(records, by_digest)
        try:
            key.confirm()
            entry = Entry(
                key=key,
                inputs=program.inputs,
                outputs=program.outputs,
                states=tuple(program.states),
                donated=program.donated,
                weights=records,
                weights_digest=content_digest(content),
                code=program.executable.serialized(),
                call_lists=tuple(np.asarray(calls).tobytes() for calls in program.call_lists),
                model_name=key.model_name,
                operators=key.operators,
            )
            self._store.save(entry, content)
            self._count(stored=1)
            if self.most_bytes is not None and self._store.nbytes > self.most_bytes:
                prune(self._store.directory.path, self.most_bytes)
        except (SourceError, *LOAD_ERRORS) as error:
            _warn(f"program {key.digest[:12]} is not stored: {error}")
            return program
        return dataclasses.replace(program, file=entry.file)

    def _loaded(self, entry: Entry) -> None:
        _LOGGER.debug("cache: program %.12s was loaded", entry.key.digest)
        self._store.directory.touch(entry.file)
        self._count(loaded=1)

    def _count(self, *, loaded: int = 0, stored: int = 0) -> None:
        with self._counting:
            now = self.statistics
            self.statistics = Statistics(now.loaded + loaded, now.stored + stored)

    def _log_miss(self, key: Key) -> None:
        if not _LOGGER.isEnabledFor(logging.DEBUG):
            return
        parts = self._store.nearest(key)
        why = "nothing is stored yet" if parts is None else f"changed: {', '.join(parts)}"
        _LOGGER.debug("cache: program %.12s is not stored; %s", key.digest, why)


_checked: set[str] = set()  # directories that were searched for programs of other versions


def _warn_of_other_versions(store: ProgramStore) -> None:
    """Warn once per process and directory."""
    path = str(store.directory.path)
    if path in _checked:
        return
    _checked.add(path)
    if count := store.outdated():
        _warn(
            f"{path} has {plural(count, 'program')} of another version of jaxdelegate, without "
            "use: models are compiled again. To remove old programs: jaxdelegate cache prune "
            f"--jax_serialization_dir={path} --max_size=10G"
        )


def _warn(message: str) -> None:
    warnings.warn(message, CacheWarning, stacklevel=2)
