"""A bundle's language model on a device: its programs, from memory, from the disk, or compiled.

jax is imported when a program must be compiled, or the device is not the CPU.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxdelegate.cache.loading import ModelData, ResultSpec
from jaxdelegate.cache.program_key import FileProgramKey
from jaxdelegate.compile.compiler import Compiler
from jaxdelegate.compile.programs import programs_of
from jaxdelegate.compile.target import compilation_module
from jaxdelegate.digests import digests
from jaxdelegate.errors import JaxDelegateError
from jaxdelegate.function.records import TensorInfo
from jaxdelegate.function.views import planned, signatures_of, whole
from jaxdelegate.lm.magic_numbers import is_magic, with_number
from jaxdelegate.lm.places import Attention
from jaxdelegate.lm.signatures import language_graph
from jaxdelegate.lm.tasks import Task, results
from jaxdelegate.lru_cache import LruCache, give_back
from jaxdelegate.model.open_models import open_model
from jaxdelegate.model.records import Model, SignatureDef, Tensor
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.passes.limits import Limits
from jaxdelegate.pjrt import client
from jaxdelegate.pjrt.client import Runtime
from jaxdelegate.waiting import waiting
from jaxdelegate.whole_imports import whole_imports
from jaxdelegate.xla.program import Program
from jaxdelegate.xla.weights import DeviceWeights, on_device

if TYPE_CHECKING:
    from jaxdelegate.lm.computation import Computation

_LOGGER = logging.getLogger("jaxdelegate")
_MOST_PROGRAMS = 64
_NO_CACHE = ":nocache"  # LiteRT-LM's
_MOST_BYTES = 10 << 30  # of the default folder
_FOLDERS = ("function", "lm", "plan", "runtime")  # whose code determines programs, besides others


class LengthError(Exception):
    """A signature cannot be computed with caches of this length."""


class LanguageModel:
    """A model that generates text, and its programs.

    Attributes:
        graph: its signatures.
    """

    def __init__(
        self,
        source: Any,
        name: str,
        others: Mapping[str, Any],
        options: Mapping[str, Any],
        most_tokens: int | None,
        cache_dir: str | None,
        attention: Attention = Attention(),  # noqa: B008 (immutable)
    ) -> None:
        """Read the model; nothing is compiled yet.

        Args:
            source: the model in its bundle.
            name: for messages.
            others: the bundle's models that this one may need, by part: embedders and a drafter.
            options: of JaxDelegate.
            most_tokens: see `language_graph`.
            cache_dir: see `Engine`.
            attention: what the bundle declares.

        Raises:
            ModelError: it is not a model that generates text.
            OptionError: an option is unknown, or does not apply.
        """
        self._view = whole(options, Limits())
        prepared = self._view.prepared or self._view.options
        self._model, self._name = open_model(source), name
        opened = {part: open_model(model) for part, model in others.items()}
        limits = self._view.limits
        self.graph = language_graph(
            signatures_of(self._model, limits),
            name,
            most_tokens,
            {part: signatures_of(model, limits) for part, model in opened.items()},
            attention,
        )
        drafter = self.graph.drafter
        steps = [self.graph.decode.key, *([] if drafter is None else [drafter.verify.key])]
        used = {part for step in steps for part in self.graph.keys(step) if part}
        self._models = {"": self._model} | {part: opened[part] for part in sorted(used)}
        folder = None if cache_dir == _NO_CACHE else cache_dir or _default_folder()
        self._compiler = Compiler(dataclasses.replace(prepared, serialization_dir=folder))
        if self._compiler.cache is not None and not cache_dir:
            self._compiler.cache.most_bytes = _MOST_BYTES
        given = {"attention": dataclasses.asdict(attention), "has drafter": drafter is not None}
        self._given = {**self._compiler.file_settings(), **given}
        self._settings = repr(self._given)
        self._programs: LruCache[Task, Program] = LruCache(_MOST_PROGRAMS)
        self._weights = on_device(self._compiler.target.runtime)
        self._compiling: Computation | None = None
        self._lengths: dict[tuple[str, int], bool] = {}  # what is computable
        self._resized: dict[int, Mapping[str, Model]] = {}
        self._lock = threading.Lock()

    @property
    def platform(self) -> str:
        """One of "cpu", "gpu" and "tpu"."""
        return self._compiler.platform

    @property
    def runtime(self) -> Runtime:
        """Where the next program runs: without jax, until one has to be compiled."""
        return self._weights.runtime

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

    def program(self, task: Task) -> tuple[Program, Runtime]:
        """The program of a task, and where it runs; threads that ask at once compile it once.

        Raises:
            LengthError: the model is for caches of another length.
        """
        weights = self._weights
        try:
            return self._program(task, weights), weights.runtime
        except client.NeedsJaxError:
            weights = self.go_on_with_jax()
            return self._program(task, weights), weights.runtime

    def _program(self, task: Task, weights: DeviceWeights) -> Program:
        group = "lm", self._settings, weights.runtime
        made = functools.partial(self._made, task, weights)
        return programs_of(self._model).get(group, task, self._programs, math.inf, made)

    def _made(self, task: Task, weights: DeviceWeights) -> Program:
        """Load a program, or compile and store it; a NeedsJaxError: the runtime has no jax."""
        cache, key = self._compiler.cache, self._key(task, weights.runtime)
        program = None if cache is None or key is None else cache.load(key, weights)
        if program is not None:
            self._give_back()
            return program
        if task.length != self.graph.capacity:
            self._check_length(task)
        if not weights.runtime.has_jax:
            raise client.NeedsJaxError("the program is not stored")
        where = f"{self._name}, signature {task.step!r}, for {weights.runtime.device}"
        next_time = "" if cache is None else "; the next start loads the program"
        with waiting(f"compiling {where}{next_time}"):
            program = self._computation(weights).program(task)
        if cache is not None and key is not None:
            program = cache.save(key, program)
        self._give_back()
        return program

    def _give_back(self) -> None:
        """Let go of what loading or compiling a program needed."""
        self._drop_pages()
        give_back()

    def _drop_pages(self) -> None:
        """Let go of the file's pages, which were read once."""
        for model in self._models.values():
            if model.origin.file is not None:
                model.origin.file.drop_pages()

    def _check_length(self, task: Task) -> None:
        """Whether the graph, which was made for the longest caches, is one of shorter ones, too."""
        key = task.step, task.length
        if key not in self._lengths:
            self._lengths[key] = self._is_computable(task)
        if not self._lengths[key]:
            raise LengthError

    def _is_computable(self, task: Task) -> bool:
        graph, drafter = self.graph, self.graph.drafter
        step = graph.step(task.step)
        states = {name: graph.shape(name, task.length) for name in step.states}
        is_computable = self._keeps("", step.key, step.inputs, task.length, states)
        if drafter is not None and graph.is_speculative(task.step):
            is_computable &= self._keeps(drafter.part, drafter.key, drafter.inputs, task.length, {})
        return is_computable

    def _keeps(
        self,
        part: str,
        key: str,
        inputs: Mapping[str, TensorInfo],
        length: int,
        states: Mapping[str, Shape],
    ) -> bool:
        """Whether a signature, for caches of a length, has outputs of the same shapes but these."""
        model = self._models_for(length)[part]
        signature = _signature(model, key)
        tensors = model.subgraphs[signature.subgraph].tensors
        shapes = {name: info.shape for name, info in self.graph.resized(inputs, length).items()}
        try:
            specs = planned(model, signature, shapes, self._view.limits)
        except JaxDelegateError as error:
            _LOGGER.debug("%s: caches of %d: %s", self._name, length, error)
            return False
        wanted = {name: tensors[i].shape for name, i in signature.outputs.items()} | dict(states)
        return all(specs[signature.outputs[name]].shape == s for name, s in wanted.items())

    def _models_for(self, length: int) -> Mapping[str, Model]:
        """The models for caches of a length, by part."""
        capacity = self.graph.capacity
        if length == capacity or not is_magic(capacity):
            return self._models
        if length not in self._resized:
            self._resized[length] = {
                part: with_number(model, capacity, length) for part, model in self._models.items()
            }
        return self._resized[length]

    def _tensors(self, task: Task) -> list[Tensor]:
        """Those of the task's signature, then those of other parts."""
        keys = self.graph.keys(task.step)
        subgraphs = (
            model.subgraphs[_signature(model, keys[part]).subgraph]
            for part, model in self._models.items()
            if part in keys
        )
        return [tensor for subgraph in subgraphs for tensor in subgraph.tensors]

    def go_on_with_jax(self) -> DeviceWeights:
        """Use jax from now on, which compiles; what was loaded without it is loaded again."""
        compilation_module()
        with self._lock:
            if not self._weights.runtime.has_jax:
                self._programs.clear()
                self._weights = on_device(client.of_jax(self._compiler.device))
            return self._weights

    def _computation(self, weights: DeviceWeights) -> Computation:
        with self._lock:
            if self._compiling is None:
                with whole_imports():
                    from jaxdelegate.lm.computation import Computation  # noqa: PLC0415 (see above)

                self._compiling = Computation(self._models_for, self._view, self.graph, weights)
            return self._compiling

    @functools.cached_property
    def _digest(self) -> str:
        found = digests([model.content for model in self._models.values()])
        self._drop_pages()
        return " ".join(found)

    def _key(self, task: Task, runtime: Runtime) -> FileProgramKey | None:
        """The key of a stored program; None: it is not stored."""
        cache = self._compiler.cache
        if cache is None or any(m.external_buffer_groups for m in self._models.values()):
            return None
        constants = {
            number: tensor.constant
            for number, tensor in enumerate(self._tensors(task))
            if tensor.constant is not None and not tensor.constant.dtype.hasobject
        }
        specs = {n: ResultSpec(*array) for n, array in enumerate(results(self.graph, task))}
        return cache.file_program_key(
            self._digest,
            ModelData(specs, constants, {}),
            {**self._given, "task": dataclasses.asdict(task)},
            runtime.device,
            folders=_FOLDERS,
            model_name=os.path.basename(self._name),
            operators=f"{task.kind} {task.step}, slots: {task.slots}, caches: {task.length}",
        )


def _signature(model: Model, key: str) -> SignatureDef:
    return next(s for s in model.signatures if s.key == key)


def _default_folder() -> str:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(root, "jaxdelegate")
