"""A bundle's language model on a device."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from jaxdelegate.errors import JaxDelegateError
from jaxdelegate.function.views import planned, signatures_of, whole
from jaxdelegate.lm.device_model import DeviceModel, signature_of
from jaxdelegate.lm.graph import language_graph
from jaxdelegate.lm.tasks import Array, Task, results
from jaxdelegate.model.open_models import open_model
from jaxdelegate.passes.limits import Limits
from jaxdelegate.xla.weights import DeviceWeights

_LOGGER = logging.getLogger("jaxdelegate")


class LengthError(Exception):
    """A signature cannot be computed with caches of this length."""


class LanguageModel(DeviceModel[Task]):
    """A model that generates text, and its programs.

    Attributes:
        graph: its signatures.
    """

    def __init__(
        self,
        source: Any,
        name: str,
        embedders: Mapping[str, Any],
        options: Mapping[str, Any],
        most_tokens: int | None,
        cache_dir: str | None,
    ) -> None:
        """Read the model; nothing is compiled yet.

        Args:
            source: the model in its bundle.
            name: for messages.
            embedders: the bundle's models that may compute inputs of this one, by part.
            options: of JaxDelegate.
            most_tokens: see `language_graph`.
            cache_dir: see `Engine`.

        Raises:
            ModelError: it is not a model that generates text.
            OptionError: an option is unknown, or does not apply.
        """
        view = whole(options, Limits())
        opened = {part: open_model(model) for part, model in {"": source, **embedders}.items()}
        signatures = {part: signatures_of(m, view.limits) for part, m in opened.items()}
        self.graph = language_graph(signatures.pop(""), name, most_tokens, signatures)
        used = sorted({embedder.part for embedder in self.graph.embedders.values()})
        super().__init__({part: opened[part] for part in ("", *used)}, name, view, cache_dir)
        self._lengths: dict[tuple[str, int], bool] = {}  # what is computable

    def _keys(self, task: Task) -> Mapping[str, str]:
        return self.graph.keys(task.step)

    def _results(self, task: Task) -> Sequence[Array]:
        return results(self.graph, task)

    def _description(self, task: Task) -> str:
        return f"{task.kind} {task.step}, slots: {task.slots}, caches: {task.length}"

    def _new_computation(self, weights: DeviceWeights) -> Any:
        from jaxdelegate.lm.computation import Computation  # noqa: PLC0415 (imports jax)

        return Computation(self._models, self._view, self.graph, weights)

    def _check(self, task: Task) -> None:
        """Whether the graph, which was made for the longest caches, is one of shorter ones, too.

        Raises:
            LengthError: it is not.
        """
        if task.length == self.graph.capacity:
            return
        key = task.step, task.length
        if key not in self._lengths:
            self._lengths[key] = self._is_computable(task)
        if not self._lengths[key]:
            raise LengthError

    def _is_computable(self, task: Task) -> bool:
        graph, model = self.graph, self._models[""]
        signature = signature_of(model, task.step)
        step = graph.step(task.step)
        tensors = model.subgraphs[signature.subgraph].tensors
        shapes = {name: tensors[i].shape for name, i in signature.inputs.items()}
        shapes.update((name, graph.shape(name, task.length)) for name in step.states)
        if step.mask is not None:
            shapes[step.mask] = (*shapes[step.mask][:-1], task.length)
        try:
            specs = planned(model, signature, shapes, self._view.limits)
        except JaxDelegateError as error:
            _LOGGER.debug("%s: caches of %d: %s", self._name, task.length, error)
            return False
        wanted = {name: graph.shape(name, task.length) for name in step.states}
        if step.has_logits:
            wanted["logits"] = tensors[signature.outputs["logits"]].shape
        return all(specs[signature.outputs[name]].shape == s for name, s in wanted.items())
