"""The programs of a language model for a number of slots: they read prompts, and continue them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdelegate.lm.choices import Choice, Variant
from jaxdelegate.lm.graph import LanguageGraph
from jaxdelegate.lm.language_model import LanguageModel
from jaxdelegate.lm.tasks import STEPS, Generated, Sequences, Task, caches
from jaxdelegate.pjrt.client import NeedsJaxError, Runtime, viewed


class Caches:
    """The caches of all slots, on a device; programs replace them."""

    def __init__(self, runtime: Runtime, arrays: Sequence[Any]) -> None:
        self.runtime, self.arrays = runtime, list(arrays)

    def on(self, runtime: Runtime) -> list[Any]:
        """The arrays, moved if a program runs elsewhere."""
        if self.runtime is runtime:
            return self.arrays
        return [runtime.put(viewed(array)) for array in self.arrays]


class Programs:
    """Runs a model's programs for a number of slots."""

    def __init__(self, model: LanguageModel, slots: int, stops: tuple[int, ...]) -> None:
        """`stops` are the tokens that end an answer."""
        self._model, self.slots, self._stops = model, slots, stops
        graph = model.graph
        # A decode step reads a token, too: its logits are not computed then.
        steps = (graph.decode, *graph.prefill)
        self._prefill = {step.length: Task("read", step.key, slots) for step in steps}
        self._score = Task("score", graph.decode.key, slots)

    @property
    def graph(self) -> LanguageGraph:
        """The model's signatures."""
        return self._model.graph

    def new_caches(self) -> Caches:
        """Empty caches."""
        runtime = self._model.runtime
        empty = (np.zeros(*array) for array in caches(self.graph, self.slots))
        return Caches(runtime, [runtime.put(array) for array in empty])

    def generator(self, variant: Variant) -> Task:
        """What a program that generates tokens does."""
        return Task("generate", self.graph.decode.key, self.slots, self._stops, variant)

    def read(self, caches: Caches, slot: int, tokens: np.ndarray, start: int) -> None:
        """Fill a slot's caches with as many tokens as a prefill step processes, from `start` on."""
        values = np.int32(slot), tokens.astype(np.int32), np.int32(start)
        self._run(self._prefill[len(tokens)], caches, values)

    def generate(
        self, variant: Variant, caches: Caches, sequences: Sequences, choice: Choice, limit: int
    ) -> Generated:
        """Generate up to `limit` tokens in each slot that does not rest; ends when all rest."""
        values = (*sequences, *choice, np.int32(min(limit, STEPS)))
        return Generated(*self._run(self.generator(variant), caches, values))

    def score(
        self,
        caches: Caches,
        token: np.ndarray,
        position: np.ndarray,
        targets: np.ndarray,
        lengths: np.ndarray,
    ) -> np.ndarray:
        """float32 [slots, STEPS]: the logarithms of the probabilities of the next tokens.

        Args:
            caches: of the sequences.
            token: int32 [slots]: their last tokens, before the targets.
            position: int32 [slots]: the places of these.
            targets: int32 [slots, STEPS].
            lengths: int32 [slots]: how many of them each slot has.
        """
        (scores,) = self._run(self._score, caches, (token, position, targets, lengths))
        return scores

    def _run(self, task: Task, caches: Caches, values: Sequence[Any]) -> list[np.ndarray]:
        """Run a program, which replaces the caches; returns its other results."""
        try:
            return self._started(task, caches, values)
        except NeedsJaxError:  # this jaxlib cannot run it alone
            self._model.go_on_with_jax()
            return self._started(task, caches, values)

    def _started(self, task: Task, caches: Caches, values: Sequence[Any]) -> list[np.ndarray]:
        program, runtime = self._model.program(task)
        arrays = caches.on(runtime)
        found = program.executable.start(program.weights, [*arrays, *map(np.asarray, values)])
        caches.runtime, caches.arrays = runtime, list(found[: len(arrays)])
        return [viewed(array) for array in found[len(arrays) :]]
