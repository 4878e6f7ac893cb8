"""The programs of a language model for a number of slots: they read prompts, and continue them."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxdelegate.errors import DeviceMemoryError, GenerationError
from jaxdelegate.lm.choices import Choice, Variant
from jaxdelegate.lm.graph import LanguageGraph, prefill_plan
from jaxdelegate.lm.language_model import LanguageModel, LengthError
from jaxdelegate.lm.tasks import STEPS, Array, Generated, Sequences, Task, caches
from jaxdelegate.pjrt.client import Runtime, viewed
from jaxdelegate.pjrt.out_of_memory import is_out_of_memory


class Caches:
    """The caches of all slots, on a device, for some number of tokens; programs replace them."""

    def __init__(self, runtime: Runtime, length: int, arrays: Sequence[Any]) -> None:
        self.runtime, self.length, self.arrays = runtime, length, list(arrays)

    def on(self, runtime: Runtime, shapes: Sequence[Array]) -> list[Any]:
        """The arrays, moved if a program runs elsewhere, cut or filled with zeros to its length."""
        fits = [a.aval.shape for a in self.arrays] == [shape for shape, _ in shapes]
        if self.runtime is runtime and fits:
            return self.arrays
        return [
            runtime.put(_resized(viewed(array), shape))
            for array, (shape, _) in zip(self.arrays, shapes, strict=True)
        ]


def _resized(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    kept = array[tuple(map(slice, shape))]
    ends = zip(kept.shape, shape, strict=True)
    return np.pad(kept, [(0, new - old) for old, new in ends])


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
        self._excluded: set[int] = set()  # lengths that the model cannot have
        self.least = 0  # the length of caches that the next program has, at least

    @property
    def graph(self) -> LanguageGraph:
        """The model's signatures."""
        return self._model.graph

    def new_caches(self) -> Caches:
        """Empty caches, of the shortest length. A DeviceMemoryError: they do not fit."""
        runtime, length = self._model.runtime, self.graph.cache_lengths[0]
        shapes = caches(self.graph, self.slots, length)
        try:
            return Caches(runtime, length, [runtime.put(np.zeros(*shape)) for shape in shapes])
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes)
            raise DeviceMemoryError(
                f"the caches of {length} tokens for {self.slots} sequences take {size / 1e6:,.1f} "
                f"MB, which {runtime.device} does not have: use a smaller max_batch"
            ) from error

    @property
    def gains_alone(self) -> bool:
        """Whether a program of one slot takes less time than that of all, if the others rest.

        On a CPU products of one row do; other devices read weights for as long as they compute.
        """
        return self.slots > 1 and self._model.platform == "cpu"

    def generator(
        self, variant: Variant, length: int, step: str | None = None, *, is_alone: bool = False
    ) -> Task:
        """What a program that generates tokens with caches of a length does, by decode steps."""
        key = step or self.graph.decode.key
        return Task("generate", key, self.slots, length, self._stops, variant, is_alone=is_alone)

    def read(
        self, caches: Caches, slot: int, tokens: np.ndarray, start: int, count: int, held: int
    ) -> None:
        """Fill a slot's caches with `count` tokens from `start` on.

        Args:
            caches: of all slots.
            slot: which.
            tokens: as many as a prefill step processes, pad tokens after those that count.
            start: the place of the first one.
            count: how many.
            held: how many tokens the longest sequence in the other slots has.
        """
        values = np.int32(slot), tokens.astype(np.int32), np.int32(start), np.int32(count)
        needed = max(start + len(tokens), held)
        self._run(self._prefill[len(tokens)], caches, lambda _: values, needed)

    def length(self, needed: int) -> int:
        """That of the shortest caches for a number of tokens."""
        lengths = (n for n in self.graph.cache_lengths if n not in self._excluded)
        return next(n for n in lengths if n >= needed)

    def exclude(self, length: int) -> None:
        """Not all of the model's steps can be computed with caches of this length."""
        self._excluded.add(length)

    def tasks(self, length: int, variant: Variant | None, step: int | None = None) -> list[Task]:
        """What sequences may need while caches have a length.

        Args:
            length: of caches.
            variant: of those that generate; None: none does.
            step: that reads a prompt now.
        """
        steps = {one.length for one in self.graph.prefill if one.length <= length}
        steps |= set() if step is None else {step}
        found = [dataclasses.replace(self._prefill[n], length=length) for n in sorted(steps)]
        return found if variant is None else [*found, self.generator(variant, length)]

    def load(self, variant: Variant, count: int) -> None:
        """Load the program that will continue sequences of `count` tokens, if it is stored.

        If it is the first one, load those that will read them at the same time.
        """
        graph, end = self.graph, 0
        length = next((n for n in graph.cache_lengths if n > count), graph.capacity)
        tasks = [self.generator(variant, length)]
        if not self._model.has_programs:
            for step in prefill_plan(count - 1, 0, graph.lengths, graph.capacity):
                end += step
                tasks.append(dataclasses.replace(self._prefill[step], length=self.length(end)))
        self._model.load(dict.fromkeys(tasks))

    def generate(
        self,
        variant: Variant,
        caches: Caches,
        sequences: Sequences,
        choice: Choice,
        limit: int,
        *,
        drafts: bool = False,
        slot: int | None = None,
    ) -> Generated:
        """Run up to `limit` steps for the slots that do not rest; ends when all rest.

        It ends before a sequence needs longer caches. So their length follows from the places of
        tokens, not from the number of steps, and answers are the same however they are divided.

        Args:
            variant: what the choice of tokens needs.
            caches: of all slots.
            sequences: in the slots.
            choice: how their tokens are chosen.
            limit: how many steps.
            drafts: use the drafter, as long as its steps end within the caches.
            slot: the only one that `sequences` and `choice` have; None: they have all.
        """
        step, drafter, last = self.graph.decode, self.graph.drafter, int(sequences.position.max())
        drafts = drafts and not variant.has_hidden_state
        if drafts and drafter is not None and last + drafter.verify.length <= self.graph.capacity:
            step = drafter.verify

        def values(length: int) -> tuple[Any, ...]:
            # Slots that rest write entries, too: several may not begin at the caches' last place.
            counted = sequences.left > 0 if step.length == 1 else slice(None)
            room = (length - int(sequences.position[counted].max())) // step.length
            end = () if slot is None else (np.int32(slot),)
            return (*sequences, *choice, np.int32(min(limit, STEPS, room)), *end)

        task = self.generator(variant, 0, step.key, is_alone=slot is not None)
        # A full sequence that rests is beyond the last place.
        needed = min(last + step.length, self.graph.capacity)
        return Generated(*self._run(task, caches, values, needed))

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
        values = token, position, targets, lengths
        (scores,) = self._run(self._score, caches, lambda _: values, needed)
        return scores

    def _run(
        self, task: Task, caches: Caches, values: Callable[[int], Sequence[Any]], needed: int
    ) -> list[np.ndarray]:
        """Run a program, which replaces the caches; returns its other results.

        Args:
            task: with any length.
            caches: of all slots.
            values: the other arguments, for caches of a length.
            needed: for how many tokens; the caches have the shortest length that holds them.
        """
        for length in self.graph.cache_lengths:
            if length >= max(needed, self.least):
                with contextlib.suppress(LengthError):
                    chosen = dataclasses.replace(task, length=length)
                    return self._started(chosen, caches, values(length))
        raise GenerationError(f"expected at most {self.graph.capacity} tokens, got {needed}")

    def _started(self, task: Task, own: Caches, values: Sequence[Any]) -> list[np.ndarray]:
        shapes = caches(self.graph, self.slots, task.length)

        def arguments(runtime: Runtime) -> list[Any]:
            return [*own.on(runtime, shapes), *map(np.asarray, values)]

        found, runtime = self._model.run(task, arguments)
        own.runtime, own.length, own.arrays = runtime, task.length, found[: len(shapes)]
        return [viewed(array) for array in found[len(shapes) :]]
