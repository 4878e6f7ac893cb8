"""A bundle's language model on a device."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxdelegate.errors import JaxDelegateError, ModelError, OptionError
from jaxdelegate.lm.device_model import DeviceModel, open_models
from jaxdelegate.lm.hidden_states import with_hidden_states
from jaxdelegate.lm.magic_numbers import is_magic, with_number
from jaxdelegate.lm.model_file import signature_of
from jaxdelegate.lm.places import Attention
from jaxdelegate.lm.program_spec import Array, ProgramSpec, results, signatures
from jaxdelegate.lm.signatures import language_graph
from jaxdelegate.op_lowering.dtypes import DTYPES, HALVES
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.options import checked_kv_cache_dtype
from jaxdelegate.text import printable
from jaxdelegate.xla import loops

if TYPE_CHECKING:
    import numpy as np

    from jaxdelegate.compile.compiler import Compiler
    from jaxdelegate.device_weights import DeviceWeights
    from jaxdelegate.function.records import TensorInfo
    from jaxdelegate.model.records import Model
    from jaxdelegate.op_lowering.spec import Shape

_LOGGER = logging.getLogger("jaxdelegate")


class LengthError(Exception):
    """A signature cannot be computed with caches of this length."""


def cache_dtype(compiler: Compiler, asked: str = "auto") -> np.dtype | None:
    """The dtype in which programs have float32 caches; None: float32. `asked`: see `Engine`.

    On a GPU "auto" is that in which they compute: a step reads all of its caches, and products
    would round them nevertheless. An automatic choice of that dtype does not measure this.
    """
    if checked_kv_cache_dtype(asked) != "auto":
        return DTYPES[TensorType[asked.partition("_")[0].upper()]]
    if compiler.platform != "gpu" or compiler.checks_precision:
        return None
    storage = compiler.context.precision.storage
    return storage if storage in HALVES else None


class LanguageModel(DeviceModel[ProgramSpec]):
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
        soft_size: int = 0,
        lora_rank: int = 0,
        kv_cache_dtype: str = "auto",
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
            soft_size: see `LanguageGraph`.
            lora_rank: see `language_graph`.
            kv_cache_dtype: see `Engine`.

        Raises:
            ModelError: it is not a model that generates text, or takes no such embeddings.
            OptionError: an option is unknown, or does not apply.
        """
        models = open_models(source, others, options, cache_dir)
        signatures = models.signatures
        own = signatures.pop("")
        graph = language_graph(own, name, most_tokens, signatures, attention, lora_rank)
        decode = models.files[""].records[graph.decode.key]
        self.graph = dataclasses.replace(
            graph,
            hidden_size=decode.hidden_size,
            updates_caches=decode.updates_states,
            cache_dtype=cache_dtype(models.compiler, kv_cache_dtype),
            soft_size=soft_size,
        )
        self._check_soft_size(name)
        if kv_cache_dtype != "auto":
            self._check_caches(name, kv_cache_dtype)
        drafter = self.graph.drafter
        steps = [self.graph.decode.key, *([] if drafter is None else [drafter.verify.key])]
        used = sorted({part for step in steps for part in self.graph.keys(step)})
        super().__init__(
            models,
            used,
            name,
            {
                "attention": dataclasses.asdict(attention),
                "has drafter": drafter is not None,
                **({"soft size": soft_size} if soft_size else {}),
                **({"LoRA rank": lora_rank} if lora_rank else {}),
                **({"KV caches": kv_cache_dtype} if kv_cache_dtype != "auto" else {}),
                "loops": loops.form_on(models.compiler.target.runtime.device),
            },
        )
        self._lengths: dict[tuple[str, int], bool] = {}  # what is computable
        self._resized: dict[int, Mapping[str, Model]] = {}
        self._with_hidden_states: dict[int, Model] = {}

    def _check_soft_size(self, name: str) -> None:
        embeddings = self.graph.decode.inputs.get("embeddings")
        size = 0 if embeddings is None else embeddings.shape[-1]
        if self.graph.soft_size not in (0, size):
            raise ModelError(
                f"{printable(name)}: expected a model that takes embeddings of "
                f"{self.graph.soft_size} elements, as encoders return, got {size or 'none'}"
            )

    def _check_caches(self, name: str, kv_cache_dtype: str) -> None:
        graph = self.graph
        if all(graph.dtype(cache) != graph.cache_dtype for cache in graph.states):
            raise OptionError(
                f"kv_cache_dtype: {printable(name)} has no caches that could be {kv_cache_dtype}; "
                "leave it out"
            )

    def _keys(self, spec: ProgramSpec) -> Mapping[str, str]:
        return signatures(self.graph, spec)

    def _results(self, spec: ProgramSpec) -> Sequence[Array]:
        return results(self.graph, spec)

    def _description(self, spec: ProgramSpec) -> str:
        what = f"{spec.kind} {spec.step}, slots: {spec.slots}, caches: {spec.length}"
        what += f", prompts: {spec.prompts}" if spec.prompts > 1 else ""
        return f"{what}, {spec.variant}" if spec.kind == "decode" else what

    def _new_computation(self, weights: DeviceWeights) -> Any:
        from jaxdelegate.lm.computation import Computation  # noqa: PLC0415 (imports jax)

        return Computation(self._models_of, self._view, self.graph, weights)

    def _check(self, spec: ProgramSpec) -> None:
        """Whether the graph, which was made for the longest caches, is one of shorter ones, too.

        Raises:
            LengthError: it is not.
        """
        if spec.length == self.graph.capacity:
            return
        key = spec.step, spec.length
        if key not in self._lengths:
            self._lengths[key] = self._is_computable(spec)
        if not self._lengths[key]:
            raise LengthError

    def _is_computable(self, spec: ProgramSpec) -> bool:
        graph, drafter = self.graph, self.graph.drafter
        step = graph.step(spec.step)
        states = {name: graph.shape(name, spec.length) for name in step.states}
        is_computable = self._keeps("", step.key, step.inputs, spec.length, states)
        if drafter is not None and graph.is_speculative(spec.step):
            is_computable &= self._keeps(drafter.part, drafter.key, drafter.inputs, spec.length, {})
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
        signature = signature_of(model, key)
        tensors = model.subgraphs[signature.subgraph].tensors
        shapes = {name: info.shape for name, info in self.graph.resized(inputs, length).items()}
        from jaxdelegate.function.signatures import planned  # noqa: PLC0415 (only to compile)

        try:
            specs = planned(model, signature, shapes, self._view.limits)
        except JaxDelegateError as error:
            _LOGGER.debug("%s: caches of %d: %s", self._name, length, error)
            return False
        wanted = {name: tensors[i].shape for name, i in signature.outputs.items()} | dict(states)
        return all(specs[signature.outputs[name]].shape == s for name, s in wanted.items())

    def _models_of(self, spec: ProgramSpec) -> Mapping[str, Model]:
        models = self._models_for(spec.length)
        if not spec.variant.has_hidden_state:
            return models
        if spec.length not in self._with_hidden_states:
            own = models[""]
            more = with_hidden_states(own, signature_of(own, spec.step))
            self._with_hidden_states[spec.length] = more
        return {**models, "": self._with_hidden_states[spec.length]}

    def _models_for(self, length: int) -> Mapping[str, Model]:
        capacity = self.graph.capacity
        if length == capacity or not is_magic(capacity):
            return self._models
        if length not in self._resized:
            self._resized[length] = {
                part: with_number(model, capacity, length) for part, model in self._models.items()
            }
        return self._resized[length]
