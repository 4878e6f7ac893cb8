"""Runs the programs of a language model for the sequences in its slots."""

import collections
import contextlib
import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxdelegate.errors import GenerationError
from jaxdelegate.lm.adapters import SlotAdapters
from jaxdelegate.lm.cache_memory import fetched
from jaxdelegate.lm.graph import Drafter, LanguageGraph
from jaxdelegate.lm.kv_cache import KVCache
from jaxdelegate.lm.language_model import LanguageModel, LengthError
from jaxdelegate.lm.program_spec import (
    MAX_DECODE_STEPS,
    DecodeOutput,
    ProgramSpec,
    ProgramSpecs,
    ScoreOutput,
    SlotArrays,
    host_outputs,
    packed,
    unpacked,
)
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.sampling_params import SamplingArrays, SamplingParams, Variant, common_variant
from jaxdelegate.lm.scores import TokenScore, Top, agreeing, tops
from jaxdelegate.lm.soft_tokens import as_tokens, fill_embeddings
from jaxdelegate.pjrt.client import Runtime


@dataclasses.dataclass(frozen=True)
class StepOutput:
    """What a sequence got in a run of decode steps.

    Attributes:
        tokens: a stop token that ends the answer included.
        scores: the logarithms of their probabilities, if requested.
        is_stopped: the last token is a stop token.
        is_resting: nothing more is decoded: after a stop token, or at the limit.
        hidden_state: float32, before the last token, if requested.
        tops: the most likely tokens at the place of each, if requested.
    """

    tokens: list[int]
    scores: list[float]
    is_stopped: bool
    is_resting: bool
    hidden_state: np.ndarray | None
    tops: list[Top]


class PrefillStep(NamedTuple):
    """A step of a prompt.

    Attributes:
        slot: of the prompt.
        ids: its tokens after the step, the next one included.
        start: how many had cache entries before.
        length: how many the step processes at most; the rest is padding.
    """

    slot: int
    ids: Sequence[int]
    start: int
    length: int

    @property
    def end(self) -> int:
        """The place after the step."""
        return self.start + self.length


def grouped_steps(steps: Sequence[PrefillStep], prompts: int) -> list[list[PrefillStep]]:
    """Groups that run at once: of different slots, at most `prompts`, those of a slot in order."""
    by_slot = collections.defaultdict[int, list[PrefillStep]](list)
    for step in steps:
        by_slot[step.slot].append(step)
    found = []
    for column in itertools.zip_longest(*by_slot.values()):
        rows = [step for step in column if step is not None]
        found += [rows[i : i + prompts] for i in range(0, len(rows), prompts)]
    return found


@dataclasses.dataclass
class _Slot:
    request: Request = dataclasses.field(default_factory=lambda: Request((), 0, SamplingParams()))
    begin: int = 0  # where the answer begins in the sequence's tokens
    left: int = 0  # how many tokens may follow

    @property
    def steps(self) -> int:
        """The most tokens of a run."""
        most = self.request.most_steps
        return self.left if most is None else min(self.left, most)


class ModelRunner:
    """Prefills and decodes sequences, each in a slot. Not for several threads at once.

    Attributes:
        cache: the entries of all slots.
        adapters: which the sequences are computed with.
        specs: the programs that it may run.
        least_length: of the caches that the next program takes.
    """

    def __init__(
        self,
        model: LanguageModel,
        slots: int,
        stops: frozenset[int],
        *,
        drafts: bool = False,
        pad: int = 0,
        is_invariant: bool = False,
    ) -> None:
        """No sequences.

        Args:
            model: whose programs it runs.
            slots: how many sequences it has at once.
            stops: the tokens that end an answer.
            drafts: whether to use the model's drafter.
            pad: the token that fills the rest of a prefill step.
            is_invariant: whether programs follow from a request alone, whatever other slots do
                and the caches have.
        """
        self._model, self._stops, self._drafts, self._pad = model, stops, drafts, pad
        self._is_invariant = is_invariant
        self.specs = ProgramSpecs(
            model.graph,
            slots,
            stops,
            model.platform,
            drafts=drafts,
            is_invariant=is_invariant,
        )
        plan = self.specs.plan if is_invariant else None
        self.cache = KVCache(model.graph, slots, model.runtime, plan)
        self.adapters = SlotAdapters(model.graph.adapters, slots)
        self.least_length = 0
        self._host_outputs = functools.cache(functools.partial(host_outputs, model.graph))
        self._slots = [_Slot() for _ in range(slots)]
        self._stacked: tuple[Variant, list[Request], SamplingArrays] | None = None

    @property
    def slots(self) -> int:
        """How many sequences it has at once."""
        return self.cache.slots

    @property
    def graph(self) -> LanguageGraph:
        """The model's signatures."""
        return self._model.graph

    @property
    def gains_alone(self) -> bool:
        """Whether a program of one slot takes less time than that of all, if the others rest.

        On a CPU products of one row do; other devices read weights for as long as they compute. The
        drafter gains more, and has no such program. Some of its sums are rounded otherwise.
        """
        is_free = self._drafter is None and not self._is_invariant
        return self.slots > 1 and self._model.platform == "cpu" and is_free

    def ids(self, slot: int) -> Sequence[int]:
        """All tokens of a sequence, the prompt included."""
        return self.cache.ids(slot)

    def is_resting(self, slot: int) -> bool:
        """Whether nothing is decoded in a slot."""
        return self._slots[slot].left == 0

    def variant(self, slot: int) -> Variant:
        """What the next `decode` needs for the sequence of a slot."""
        return self._slots[slot].request.variant(self.graph.vocabulary)

    def load(self, count: int, variant: Variant) -> None:
        """Load the program that will continue a sequence of `count` tokens, if it is stored.

        If it is the first one, load those that will prefill it at the same time. A sequence that is
        too long has no program: `check` says so later.
        """
        if not self._drafts and count <= self.graph.capacity:
            prefills = not self._model.has_programs
            with contextlib.suppress(LengthError):  # those of longer caches are loaded later
                self._model.load(self.specs.to_start(count, variant, prefills=prefills))

    # ---- prefill

    def prefix(self, slot: int, ids: Sequence[int]) -> int:
        """How many of the tokens have entries in a slot. Errors as `prefill`."""
        self.graph.check(ids)
        return self.cache.prefix(slot, ids)

    def prefill(self, slot: int, ids: Sequence[int]) -> int:
        """Prefill a slot with these tokens, reusing the prefix that its cache has.

        Returns:
            How many tokens the cache had.

        Raises:
            GenerationError: as `LanguageGraph.check`.
        """
        reused = self.prefix(slot, ids)
        steps = self.prefill_steps(slot, ids)
        for length, same in itertools.groupby(steps, operator.attrgetter("length")):
            rest, most = [*same], self.specs.steps(length, prompts=1)
            for first in range(0, len(rest), most):
                self.run_prefill(rest[first : first + most])
        return reused

    def prefill_steps(self, slot: int, ids: Sequence[int]) -> list[PrefillStep]:
        """The steps that prefill a slot; between them other slots may run.

        A sequence whose prefill was not finished has the tokens so far. Errors as `prefill`.
        """
        start = self.prefix(slot, ids)
        self._slots[slot].left = 0
        self.cache.hold(slot, ids, start)
        steps = []
        for length in self.specs.plan(len(ids) - 1 - start, start):
            end = min(start + length, len(ids) - 1)
            steps.append(PrefillStep(slot, ids[: end + 1], start, length))
            start = end
        return steps

    def length_for(self, step: PrefillStep) -> int:
        """The length of the caches with which a step runs."""
        return self.specs.length(max(step.end, self.cache.entries, self.least_length))

    def run_prefill(self, steps: Sequence[PrefillStep]) -> None:
        """Run steps of the same length, of one slot or several, by one program."""
        length = steps[0].length
        is_one = all(step.slot == steps[0].slot for step in steps)
        prompts = 1 if is_one else self.specs.prompts(length)
        needed = max(self.cache.entries, *(step.end for step in steps))
        for step in steps:  # an error may end this: then the cache has nothing for certain
            self.cache.set(step.slot, ())
        values = self._prefill_arrays(steps, length, prompts)
        self._run(lambda cache: (self.specs.prefill(length, cache, prompts), values), needed)
        for step in steps:
            self.cache.read(step.slot, step.ids, length)

    def _prefill_arrays(
        self, steps: Sequence[PrefillStep], length: int, prompts: int
    ) -> tuple[np.ndarray, ...]:
        """See `host_inputs`; rows without a prompt have no slots."""
        most = self.specs.steps(length, prompts)
        shape = most, prompts
        slot = np.empty(shape, np.int32)
        slot[:] = np.arange(self.slots, self.slots + prompts)
        tokens = np.full((*shape, length), self._pad, np.int32)
        start, count = np.zeros((2, *shape), np.int32)
        soft = np.zeros((*shape, length, self.graph.soft_size), np.float32)
        groups = grouped_steps(steps, prompts)
        for i, together in enumerate(groups):
            for row, step in enumerate(together):
                place, own = (i, row), step.ids[step.start : -1]
                slot[place], start[place], count[place] = step.slot, step.start, len(own)
                tokens[place][: len(own)] = as_tokens(own)
                fill_embeddings(soft[place], own)
        arrays = slot, tokens, start, count, *([soft] if self.graph.soft_size else [])
        return *arrays, *([np.array(len(groups), np.int32)] if most > 1 else [])

    def copy(self, source: int, target: int, count: int) -> None:
        """Let a slot have the first `count` entries of another one, in place of its own."""
        self.clear(target)
        values = np.int32(source), np.int32(target), np.int32(count)
        self._run(lambda length: (self.specs.copy(length), values), self.cache.length)
        self.cache.copy(source, target, count)

    # ---- decode

    def begin(self, slot: int, request: Request) -> None:
        """Decode the answer to a request, whose prompt a slot has, from the next `decode` on."""
        self._restore(slot)
        # The token after a hidden state is not part of an answer.
        room = self.graph.limit - len(self.ids(slot)) + request.has_hidden_state
        limit = room if request.limit is None else min(request.limit, room)
        self._slots[slot] = _Slot(request, len(self.ids(slot)), max(limit, 0))

    def rest(self, slot: int) -> None:
        """Decode nothing more in a slot."""
        self._slots[slot].left = 0

    def clear(self, slot: int) -> None:
        """Let a slot have no tokens."""
        self.rest(slot)
        self.cache.set(slot, ())

    def truncate(self, slot: int, length: int) -> None:
        """Forget the tokens of a sequence after the first `length`, at least one; it rests."""
        self.rest(slot)
        self.cache.truncate(slot, length)

    def decode(
        self,
        steps: int = MAX_DECODE_STEPS,
        slots: Collection[int] | None = None,
        variant: Variant | None = None,
        *,
        allowed: Mapping[int, np.ndarray] | None = None,
        is_alone: bool = False,
    ) -> Mapping[int, StepOutput]:
        """Run up to `steps` decode steps; returns what each slot got that did not rest.

        Args:
            steps: the most.
            slots: others rest in this run; None: none does.
            variant: of the program; None: the one that the sequences need.
            allowed: the tokens that may come next, of slots with a constraint: a bit each.
            is_alone: by the program of one slot, which `slots` has.
        """
        active = [i for i, s in enumerate(self._slots) if s.left and (slots is None or i in slots)]
        if not active:
            return {}
        variant = variant or common_variant([self.variant(slot) for slot in active])
        sampling = self._sampling(variant, allowed or {})
        placed = self._slot_arrays(variant, active)
        rows = active if is_alone else [*range(self.slots)]
        found = self._decode(
            variant,
            SlotArrays(*(array[rows] for array in placed)),
            SamplingArrays(*(array[rows] for array in sampling)),
            steps,
            rows[0] if is_alone else None,
        )
        return {
            slot: self._output(slot, found, row) for row, slot in enumerate(rows) if slot in active
        }

    def _sampling(self, variant: Variant, allowed: Mapping[int, np.ndarray]) -> SamplingArrays:
        sampling = self._stacked_sampling(variant)
        if allowed:
            sampling = sampling._replace(allowed=sampling.allowed.copy())
        for slot, words in allowed.items():
            sampling.allowed[slot] = words
        return sampling

    def _stacked_sampling(self, variant: Variant) -> SamplingArrays:
        """Those of all slots, kept as long as the slots have the same requests."""
        requests = [slot.request for slot in self._slots]
        if self._stacked is not None:
            last, before, sampling = self._stacked
            if variant == last and all(map(operator.is_, requests, before)):
                return sampling
        rows = [request.params.arrays(variant, self.graph.vocabulary) for request in requests]
        sampling = SamplingArrays(*map(np.stack, zip(*rows, strict=True)))
        self._stacked = variant, requests, sampling
        return sampling

    def _slot_arrays(self, variant: Variant, active: Container[int]) -> SlotArrays:
        answers = [self.ids(i)[slot.begin :] for i, slot in enumerate(self._slots)]
        capacity = self.graph.capacity if variant.has_logits_processors else 0
        answer = np.zeros((self.slots, capacity), np.int32)
        if variant.has_logits_processors:
            for row, ids in zip(answer, answers, strict=True):
                row[: len(ids)] = ids
        left = [slot.steps if i in active else 0 for i, slot in enumerate(self._slots)]
        return SlotArrays(
            *self.cache.last_tokens(self.least_length or self.graph.capacity, active),
            left=np.array(left, np.int32),
            answer=answer,
            generated=np.array([len(ids) for ids in answers], np.int32),
        )

    def _decode(
        self,
        variant: Variant,
        slots: SlotArrays,
        sampling: SamplingArrays,
        limit: int,
        alone: int | None,
    ) -> DecodeOutput:
        """Run up to `limit` steps for the slots that do not rest; ends when all rest.

        It ends before a sequence needs longer caches. So their length follows from the places of
        tokens, not from the number of steps, and answers are the same however they are divided.
        """
        last = int(slots.position.max())
        step = self.specs.step_at(last, variant)

        def chosen(length: int) -> tuple[ProgramSpec, tuple[Any, ...]]:
            # Slots that rest write entries, too: several may not begin at the caches' last place.
            counted = slots.left > 0 if step.length == 1 else slice(None)
            room = (length - int(slots.position[counted].max())) // step.length
            end = () if alone is None else (np.int32(alone),)
            most = np.int32(min(limit, MAX_DECODE_STEPS, room))
            spec = self.specs.decode(variant, length, step.key, is_alone=alone is not None)
            return spec, (*slots, *sampling, most, *end)

        # A full sequence that rests is beyond the last place.
        return DecodeOutput(*self._run(chosen, min(last + step.length, self.graph.capacity)))

    @property
    def _drafter(self) -> Drafter | None:
        return self.graph.drafter if self._drafts else None

    def _output(self, slot: int, found: DecodeOutput, row: int) -> StepOutput:
        counts = found.counts[: int(found.steps), row, None]
        is_there = np.arange(found.tokens.shape[-1]) < counts
        tokens = found.tokens[: len(counts), row][is_there].tolist()
        scores = found.scores[: len(counts), row][is_there].tolist()
        state = self._slots[slot]
        top = tops(
            found.top_tokens[: len(counts), row][is_there],
            found.top_scores[: len(counts), row][is_there],
            state.request.top,
        )
        if state.request.top:
            scores = [*map(agreeing, tokens, scores, top)]
        is_stopped = bool(tokens) and tokens[-1] in self._stops
        state.left = 0 if is_stopped else state.left - len(tokens)
        drafter = self._drafter
        self.cache.append(slot, tokens, 0 if drafter is None else drafter.verify.length - 1)
        return StepOutput(
            tokens,
            scores if state.request.has_scores else [],
            is_stopped,
            state.left == 0,
            found.hidden_state[row] if state.request.has_hidden_state else None,
            top if state.request.top else [],
        )

    # ---- score

    def score(self, slot: int, ids: Sequence[int]) -> list[float]:
        """Append tokens to a sequence; returns the logarithms of their probabilities.

        Raises:
            GenerationError: as `prefill`.
        """
        return self.score_each({slot: ids})[slot]

    def score_each(self, texts: Mapping[int, Sequence[int]]) -> dict[int, list[float]]:
        """Append tokens to the sequences of several slots at once; returns the scores of each.

        Raises:
            GenerationError: as `prefill`.
        """
        for slot, ids in texts.items():
            self.graph.check([*self.ids(slot), *ids])
        for slot in texts:
            self._restore(slot)
            self.rest(slot)
        if self.gains_one_by_one([*map(len, texts.values())]):
            return {slot: self._score_text(slot, ids) for slot, ids in texts.items()}
        scores = {slot: list[float]() for slot in texts}
        most = max(map(len, texts.values()), default=0)
        for first in range(0, most, MAX_DECODE_STEPS):
            parts = {slot: ids[first : first + MAX_DECODE_STEPS] for slot, ids in texts.items()}
            rows = self._score(parts, has_top=False).scores
            for slot, part in parts.items():
                scores[slot] += rows[slot, : len(part)].tolist()
        return scores

    def gains_one_by_one(self, counts: Sequence[int]) -> bool:
        """Whether texts of these lengths are scored by fewer rows one after the other."""
        if not self.specs.scored or not counts:
            return False
        rows = sum(sum(self.specs.score_plan(count)) for count in counts)
        return rows <= max(counts) * max(self.slots, self.specs.scored[0])

    def _score_text(self, slot: int, ids: Sequence[int]) -> list[float]:
        scores: list[float] = []
        for length in self.specs.score_plan(len(ids)):
            part = ids[len(scores) : len(scores) + length]
            scores += self._score_part(slot, part, has_top=False).scores[0, : len(part)].tolist()
        return scores

    def begin_scores(self, slot: int, ids: Sequence[int], reused: int = 0) -> None:
        """Let a slot have `reused` entries and the next token; `score_parts` adds the others."""
        self.rest(slot)
        self.cache.hold(slot, ids, reused)

    def score_parts(
        self, parts: Mapping[int, Sequence[int]], counts: Mapping[int, int]
    ) -> dict[int, list[TokenScore]]:
        """Append tokens to sequences; returns how likely each was.

        Args:
            parts: by slot, up to `MAX_DECODE_STEPS` of each, or of one slot as many as
                `specs.score_plan` says.
            counts: how many of the most likely tokens each score has, by slot.
        """
        if self.specs.scored and len(parts) == 1:
            ((slot, part),) = parts.items()
            found = self._score_part(slot, part, has_top=True)
            return {slot: _token_scores(part, found, 0, counts[slot])}
        found = self._score(parts, has_top=True)
        return {
            slot: _token_scores(part, found, slot, counts[slot]) for slot, part in parts.items()
        }

    def _score_part(self, slot: int, part: Sequence[int], *, has_top: bool) -> ScoreOutput:
        """Append the tokens that one program scores to the sequence of a slot."""
        (length,) = self.specs.score_plan(len(part))
        start = len(self.ids(slot)) - 1
        tokens, targets = np.zeros((2, length), np.int32)
        tokens[: len(part)] = [self.ids(slot)[-1], *part[:-1]]
        targets[: len(part)] = part
        values = np.int32(slot), tokens, np.int32(start), targets, np.int32(len(part))
        needed = max(self.cache.entries, start + len(part))
        found = self._run(lambda n: (self.specs.score(n, length, has_top=has_top), values), needed)
        self.cache.append(slot, part)
        return ScoreOutput(*found)

    def _score(self, parts: Mapping[int, Sequence[int]], *, has_top: bool) -> ScoreOutput:
        """Append tokens to the sequences of some slots."""
        targets = np.zeros((self.slots, MAX_DECODE_STEPS), np.int32)
        lengths = np.zeros(self.slots, np.int32)
        for slot, part in parts.items():
            targets[slot, : len(part)], lengths[slot] = part, len(part)
        token, position = self.cache.last_tokens(self.least_length or self.graph.capacity, parts)
        needed = int((position + np.maximum(lengths, 1)).max())
        values = token, position, targets, lengths
        found = self._run(lambda n: (self.specs.score(n, has_top=has_top), values), needed)
        for slot, part in parts.items():
            self.cache.append(slot, part)
        return ScoreOutput(*found)

    # ---- programs

    def _restore(self, slot: int) -> None:
        """Prefill a sequence again whose entries later tokens, now forgotten, have overwritten."""
        if not self.cache.is_intact(slot):
            self.prefill(slot, list(self.ids(slot)))

    def _run(
        self, chosen: Callable[[int], tuple[ProgramSpec, Sequence[Any]]], needed: int
    ) -> list[np.ndarray]:
        """Run a program, which replaces the caches; returns its other results.

        Args:
            chosen: the program for caches of a length, and its other arguments.
            needed: for how many tokens; the caches have the shortest length that holds them.
        """
        for length in self.graph.cache_lengths:
            if length >= max(needed, self.least_length):
                with contextlib.suppress(LengthError):
                    return self._started(*chosen(length))
        raise GenerationError(f"expected at most {self.graph.capacity} tokens, got {needed}")

    def _started(self, spec: ProgramSpec, values: Sequence[Any]) -> list[np.ndarray]:
        flat = packed(np, values)

        def arguments(runtime: Runtime) -> list[Any]:
            adapters = [] if spec.kind == "copy" else self.adapters.on(runtime)
            return [*self.cache.on(runtime, spec.length), *adapters, flat]

        found, runtime = self._model.run(spec, arguments)
        count = len(self.cache.arrays)
        self.cache.replace(runtime, spec.length, found[:count])
        if not found[count:]:
            return []
        return unpacked(fetched(runtime, found[-1]), self._host_outputs(spec))


def _token_scores(
    tokens: Sequence[int], found: ScoreOutput, row: int, count: int
) -> list[TokenScore]:
    """The scores of one sequence's tokens, with `count` of the most likely ones each."""
    values, ranks, top_tokens, top_scores = (array[row, : len(tokens)] for array in found)
    top = tops(top_tokens, top_scores, count)
    chances = map(agreeing, tokens, values.tolist(), top)
    return [*map(TokenScore, chances, ranks.tolist(), top)]
