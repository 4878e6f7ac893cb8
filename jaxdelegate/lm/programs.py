"""The programs of a language model for a number of slots: they read prompts, and continue them."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdelegate.lm.choices import Choice, Variant
from jaxdelegate.lm.graph import LanguageGraph
from jaxdelegate.lm.language_model import LanguageModel, LengthError
from jaxdelegate.lm.tasks import STEPS, Array, Generated, Sequences, Task, caches
from jaxdelegate.pjrt.client import NeedsJaxError, Runtime, viewed


class Caches:
    """The caches of all slots, on a device, for some number of tokens; programs replace them."""

    def __init__(self, runtime: Runtime, length: int, arrays: Sequence[Any]) -> None:
        self.runtime, self.length, self.arrays = runtime, length, list(arrays)

    def on(self, runtime: Runtime, shapes: Sequence[Array]) -> list[Any]:
        """The arrays, moved if a program runs elsewhere, and longer if it takes longer ones."""
        if self.runtime is runtime and [a.aval.shape for a in self.arrays] == [
            s for s, _ in shapes
        ]:
            return self.arrays
        return [
            runtime.put(_longer(viewed(array), shape))
            for array, (shape, _) in zip(self.arrays, shapes, strict=True)
        ]


def _longer(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    ends = zip(array.shape, shape, strict=True)
    return np.pad(array, [(0, new - old) for old, new in ends])


class Programs:
    """Runs a model's programs for a number of slots."""

    def __init__(self, model: LanguageModel, slots: int, stops: tuple[int, ...]) -> None:
        """`stops` are the tokens that end an answer."""
        self._model, self.slots, self._stops = model, slots, stops
        graph = model.graph
        # A decode step reads a token, too: its logits are not computed then.
        steps = (graph.decode, *graph.prefill)
        self._prefill = {step.length: Task("read", step.key, slots, 0) for step in steps}
        self._score = Task("score", graph.decode.key, slots, 0)

    @property
    def graph(self) -> LanguageGraph:
        """The model's signatures."""
        return self._model.graph

    def new_caches(self) -> Caches:
        """Empty caches, of the shortest length."""
        runtime, length = self._model.runtime, self.graph.cache_lengths[0]
        empty = (np.zeros(*array) for array in caches(self.graph, self.slots, length))
        return Caches(runtime, length, [runtime.put(array) for array in empty])

    def generator(self, variant: Variant, length: int) -> Task:
        """What a program that generates tokens with caches of a length does."""
        return Task("generate", self.graph.decode.key, self.slots, length, self._stops, variant)

    def read(self, caches: Caches, slot: int, tokens: np.ndarray, start: int, count: int) -> None:
        """Fill a slot's caches with `count` tokens from `start` on.

        `tokens` are as many as a prefill step processes, with zeros after those that count.
        """
        values = np.int32(slot), tokens.astype(np.int32), np.int32(start), np.int32(count)
        self._run(self._prefill[len(tokens)], caches, values, start + len(tokens))

    def generate(
        self, variant: Variant, caches: Caches, sequences: Sequences, choice: Choice, limit: int
    ) -> Generated:
        """Generate up to `limit` tokens in each slot that does not rest; ends when all rest."""
        limit = min(limit, STEPS)
        steps = np.minimum(sequences.left, limit)
        values = (*sequences, *choice, np.int32(limit))
        needed = int((sequences.position + np.maximum(steps, 1)).max())
        return Generated(*self._run(self.generator(variant, 0), caches, values, needed))

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
        needed = int((position + np.maximum(lengths, 1)).max())
        (scores,) = self._run(self._score, caches, (token, position, targets, lengths), needed)
        return scores

    def _run(
        self, task: Task, caches: Caches, values: Sequence[Any], needed: int
    ) -> list[np.ndarray]:
        """Run a program, which replaces the caches; returns its other results.

        Args:
            task: with any length.
            caches: for at least as many tokens as before.
            values: the other arguments.
            needed: for how many tokens.
        """
        least = max(needed, caches.length)
        for length in self.graph.cache_lengths:
            if length >= least:
                with contextlib.suppress(LengthError):
                    return self._tried(dataclasses.replace(task, length=length), caches, values)
        raise ValueError(f"expected at most {self.graph.capacity} tokens, got {needed}")

    def _tried(self, task: Task, caches: Caches, values: Sequence[Any]) -> list[np.ndarray]:
        try:
            return self._started(task, caches, values)
        except NeedsJaxError:  # this jaxlib cannot run it alone
            self._model.go_on_with_jax()
            return self._started(task, caches, values)

    def _started(self, task: Task, own: Caches, values: Sequence[Any]) -> list[np.ndarray]:
        program, runtime = self._model.program(task)
        arrays = own.on(runtime, caches(self.graph, self.slots, task.length))
        found = program.executable.start(program.weights, [*arrays, *map(np.asarray, values)])
        own.runtime, own.length, own.arrays = runtime, task.length, list(found[: len(arrays)])
        return [viewed(array) for array in found[len(arrays) :]]
