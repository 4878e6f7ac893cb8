"""Models of a bundle on a device: their programs, from memory, from the disk, or compiled.

jax is imported when a program must be compiled, or the device is not the CPU.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import math
import os
import threading
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from jaxdelegate.cache.directory import default_folder
from jaxdelegate.cache.loading import ModelData, ResultSpec
from jaxdelegate.cache.program_key import ProgramKey
from jaxdelegate.cache.programs import ProgramCache
from jaxdelegate.compile.compiler import Compiler
from jaxdelegate.compile.programs import ModelPrograms, programs_of, programs_of_content
from jaxdelegate.compile.target import compilation_module
from jaxdelegate.device_weights import DeviceWeights, on_device
from jaxdelegate.function.records import Signature
from jaxdelegate.function.views import View, whole
from jaxdelegate.lm.model_file import FOLDERS, Constants, ModelFile
from jaxdelegate.lm.program_spec import Array
from jaxdelegate.lru_cache import LruCache, give_back
from jaxdelegate.model.source import open_source
from jaxdelegate.passes.limits import Limits
from jaxdelegate.pjrt import client
from jaxdelegate.pjrt.client import Runtime
from jaxdelegate.program import Program
from jaxdelegate.waiting import waiting
from jaxdelegate.whole_imports import whole_imports

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from jaxdelegate.model.records import Model

_MOST_PROGRAMS = 64
_NO_CACHE = ":nocache"  # LiteRT-LM's
_MOST_BYTES = 10 << 30  # in the default folder

T = TypeVar("T", bound="DataclassInstance")  # what a program does
R = TypeVar("R")


class BundleModels(NamedTuple):
    """Models of a bundle, and what compiles them.

    Attributes:
        view: of the models.
        compiler: for the device.
        files: by part; the main one first, called "".
    """

    view: View
    compiler: Compiler
    files: Mapping[str, ModelFile]

    @property
    def signatures(self) -> dict[str, dict[str, Signature]]:
        """The signatures of each part."""
        return {
            part: {key: record.signature for key, record in file.records.items()}
            for part, file in self.files.items()
        }


def open_models(
    source: Any, others: Mapping[str, Any], options: Mapping[str, Any], cache_dir: str | None
) -> BundleModels:
    """Open a bundle's models.

    Args:
        source: the main model, whose part is called "".
        others: by part.
        options: of JaxDelegate.
        cache_dir: see `Engine`.

    Raises:
        ModelError: a model is damaged.
        OptionError: an option is unknown, or does not apply.
    """
    # As XNNPACK, which is what runs bundles in LiteRT-LM.
    view = dataclasses.replace(whole(options, Limits()), follows_xnnpack=True)
    folder = None if cache_dir == _NO_CACHE else cache_dir or default_folder()
    prepared = view.prepared or view.options
    compiler = Compiler(dataclasses.replace(prepared, serialization_dir=folder))
    if compiler.cache is not None and not cache_dir:
        compiler.cache.most_bytes = _MOST_BYTES
    device = compiler.target.runtime.device
    files = {
        part: ModelFile(open_source(model), compiler.cache, device)
        for part, model in {"": source, **others}.items()
    }
    return BundleModels(view, compiler, files)


class DeviceModel(abc.ABC, Generic[T]):
    """Models of a bundle, and their programs."""

    def __init__(
        self,
        models: BundleModels,
        parts: Collection[str],
        name: str,
        declared: Mapping[str, Any] = types.MappingProxyType({}),
    ) -> None:
        """Compile nothing yet.

        Args:
            models: of the bundle.
            parts: of those that programs need.
            name: of the main one, for messages.
            declared: what programs depend on besides models, options and specs.
        """
        self._files = {part: models.files[part] for part in parts}
        self._name, self._view, self._compiler = name, models.view, models.compiler
        self._key_settings = {**self._compiler.file_settings(), **declared}
        self._settings = repr(self._key_settings)
        self._programs: LruCache[Any, Program] = LruCache(_MOST_PROGRAMS)
        self._weights = on_device(self._compiler.target.runtime)
        self._compiling: Any = None
        self._lock = threading.Lock()

    # ---- for each kind of models

    @abc.abstractmethod
    def _keys(self, spec: T) -> Mapping[str, str]:
        """The signatures that a program runs, by part; the main one is ""."""

    @abc.abstractmethod
    def _results(self, spec: T) -> Sequence[Array]:
        """What its program returns."""

    @abc.abstractmethod
    def _description(self, spec: T) -> str:
        """What `jaxdelegate cache list` says about its program."""

    @abc.abstractmethod
    def _new_computation(self, weights: DeviceWeights) -> Any:
        """Import jax, and return what compiles: it has `program(spec)`."""

    def _check(self, spec: T) -> None:
        """Raise an error for what cannot be compiled."""

    # ---- for all kinds

    @property
    def platform(self) -> str:
        """One of "cpu", "gpu" and "tpu"."""
        return self._compiler.platform

    @property
    def is_reduced(self) -> bool:
        """Whether it computes float32 in reduced precision."""
        policy = self._compiler.context.precision
        return policy.is_reduced or policy.dot_precision != "highest"

    @property
    def runtime(self) -> Runtime:
        """Where the next program runs: without jax, until one has to be compiled."""
        return self._weights.runtime

    @property
    def programs(self) -> ProgramCache | None:
        """The folder of compiled programs; None: they are not stored."""
        return self._compiler.cache

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights on the device, of all programs in memory; each counts once."""
        arrays = {id(a): a for p in self._programs.values() for a in p.weights}
        return sum(map(client.nbytes, arrays.values()))

    def close(self) -> None:
        """Free programs and weights; those that are needed again are loaded again."""
        with self._lock:
            self._programs.clear()
            self._compiling = None

    def run(
        self, spec: T, arguments: Callable[[Runtime], Sequence[Any]]
    ) -> tuple[list[Any], Runtime]:
        """Run a program.

        Args:
            spec: what it does.
            arguments: its arrays, where it runs.

        Returns:
            Its results, and where it ran.
        """
        return self._tried(lambda: self._started(spec, arguments))

    def result(
        self, spec: T, arrays: Sequence[np.ndarray], threads: int | None = None
    ) -> np.ndarray:
        """What a program returns, if it is one array: on the host, for reading.

        `threads`: that share a CPU's work, see `Program`.
        """

        def run() -> np.ndarray:
            program, _ = self.program(spec)
            (found,) = program(arrays, threads)
            return np.asarray(found)

        return self._tried(run)

    def _tried(self, run: Callable[[], R]) -> R:
        try:
            return run()
        except client.NeedsJaxError:  # this jaxlib cannot run it alone
            self._switch_to_jax()
            return run()

    def _started(
        self, spec: T, arguments: Callable[[Runtime], Sequence[Any]]
    ) -> tuple[list[Any], Runtime]:
        client.check_process()
        program, runtime = self.program(spec)
        return [*program.executable.start(program.weights, [*arguments(runtime)])], runtime

    def program(self, spec: T) -> tuple[Program, Runtime]:
        """A program, and where it runs; several threads compile it once."""

        def found() -> tuple[Program, Runtime]:
            weights, programs = self._current()
            return self._program(spec, weights, programs), weights.runtime

        return self._tried(found)

    def has_program(self, spec: T) -> bool:
        """Whether a program is in memory."""
        return spec in self._programs

    def prepare(self, spec: T, *, is_optional: bool = False) -> None:
        """Load or compile a program, while other threads run those in memory.

        If it `is_optional`, nothing else is loaded again for it.
        """
        weights, programs = self._current()
        try:
            self._program(spec, weights, programs)
        except client.NeedsJaxError:
            if is_optional:
                return
            self._switch_to_jax(is_running=True)
            self._program(spec, *self._current())

    def _current(self) -> tuple[DeviceWeights, LruCache[Any, Program]]:
        with self._lock:
            return self._weights, self._programs

    @property
    def has_programs(self) -> bool:
        """Whether any program is in memory."""
        return len(self._programs) > 0

    def load(self, specs: Collection[T]) -> None:
        """Load stored programs in parallel, if nothing was compiled yet."""
        weights, programs = self._current()
        if weights.runtime.has_jax or self.programs is None:
            return

        def load(spec: T) -> None:
            with contextlib.suppress(client.NeedsJaxError):
                self._program(spec, weights, programs)

        with ThreadPoolExecutor(len(specs)) as pool:  # each waits for the others: see `adding`
            for loading in [pool.submit(load, spec) for spec in specs]:
                loading.result()

    def _program(
        self, spec: T, weights: DeviceWeights, programs: LruCache[Any, Program]
    ) -> Program:
        group = "lm", self._settings, weights.runtime
        load = functools.partial(self._load_or_compile, spec, weights)
        return self._shared.get(group, spec, programs, math.inf, load)

    @functools.cached_property
    def _models(self) -> Mapping[str, Model]:
        """The models, read as a whole, by part."""
        return {part: file.model for part, file in self._files.items()}

    @functools.cached_property
    def _shared(self) -> ModelPrograms:
        """The programs of the models that this process has in memory."""
        if self.programs is None or not self._is_stored_by_digest:
            return programs_of(self._models[""])
        return programs_of_content(self._digest)

    @property
    def _is_stored_by_digest(self) -> bool:
        return all(file.is_in_one_file for file in self._files.values())

    def _load_or_compile(self, spec: T, weights: DeviceWeights) -> Program:
        """Load a program, or compile and store it; a NeedsJaxError: the runtime has no jax."""
        cache, key = self._compiler.cache, self._key(spec, weights.runtime)
        give_back()  # loading a program needs more memory than keeping it
        program = None if cache is None or key is None else cache.load(key, weights)
        if program is not None:
            self._store_files()
            self._return_memory()
            return program
        self._check(spec)
        if not weights.runtime.has_jax:
            raise client.NeedsJaxError("the program is not stored")
        what = f"{self._name} ({self._description(spec)}) for {weights.runtime.device}"
        next_time = "" if cache is None else "; the next start loads the program"
        with waiting(f"compiling {what}{next_time}"):
            if cache is None or key is None:
                program = self._computation(weights).program(spec)
            else:
                program = self._compile_and_store(spec, weights, cache, key)
        self._return_memory()
        return program

    def _compile_and_store(
        self, spec: T, weights: DeviceWeights, cache: ProgramCache, key: ProgramKey
    ) -> Program:
        """Compile a program and store it, unless another process has done so meanwhile."""
        with cache.compile_lock(key) as may_be_stored:
            program = cache.load(key, weights) if may_be_stored else None
            if program is None:
                program = cache.save(key, self._computation(weights).program(spec))
                self._store_files()
        return program

    def _store_files(self) -> None:
        """Store what the next start needs of the models, unless it is stored."""
        for file in self._files.values():
            file.store()

    def _return_memory(self) -> None:
        """Return the memory that loading or compiling a program needed."""
        self._drop_pages()
        give_back()

    def _drop_pages(self) -> None:
        """Drop the file's pages, which were read once."""
        for file in self._files.values():
            file.drop_pages()

    def _switch_to_jax(self, *, is_running: bool = False) -> None:
        """Use jax from now on, which compiles; what was loaded without it is loaded again.

        That takes twice the memory if it `is_running`: others use the old programs meanwhile.
        """
        compilation_module()
        weights, old = self._current()
        if weights.runtime.has_jax:
            return
        weights = on_device(client.of_jax(self._compiler.device))
        programs: LruCache[Any, Program] = LruCache(_MOST_PROGRAMS)
        if not is_running:
            old.clear()
        for spec in old.known():
            self._program(spec, weights, programs)
        with self._lock:
            if not self._weights.runtime.has_jax:
                self._weights, self._programs = weights, programs

    def _computation(self, weights: DeviceWeights) -> Any:
        with self._lock:
            if self._compiling is None:
                with whole_imports():
                    self._compiling = self._new_computation(weights)
            return self._compiling

    @property
    def _digest(self) -> str:
        return " ".join(file.digest for file in self._files.values())

    def _key(self, spec: T, runtime: Runtime) -> ProgramKey | None:
        """The key of a stored program; None: it is not stored."""
        cache = self._compiler.cache
        if cache is None or not self._is_stored_by_digest:
            return None
        keys = self._keys(spec)
        constants = Constants([(f, keys[part]) for part, f in self._files.items() if part in keys])
        specs = {n: ResultSpec(*array) for n, array in enumerate(self._results(spec))}
        return cache.file_program_key(
            self._digest,
            ModelData(specs, constants, {}, self._drop_pages),
            {**self._key_settings, "program": dataclasses.asdict(spec)},
            runtime.device,
            folders=FOLDERS,
            model_name=os.path.basename(self._name),
            operators=self._description(spec),
        )
