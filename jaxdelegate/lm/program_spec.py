"""What the programs of a language model do, and the arrays that they take and return.

All have sequences in slots, with a leading axis of arrays. A program takes weights, the caches in
the order of `LanguageGraph.carried`, each perhaps with its scales, the factors of LoRA adapters in
that of `adapters` there, then the host's arrays as one (`packed`); it returns the caches, then what
the host reads, as one too. Each array costs a GPU a copy of its own.
"""

import dataclasses
import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxdelegate.lm.graph import (
    LanguageGraph,
    Step,
    padding_of,
    prefill_plan,
    prompts_at_once,
    steps_at_once,
)
from jaxdelegate.lm.sampling_params import SamplingParams, Variant, general_variants

MAX_DECODE_STEPS = 32  # that a program runs before the host sees their results
_MOST_INVARIANT = 128  # tokens of a step: a beginning is reused in whole steps
_SCORED = (8, 32)  # tokens of one slot: for short answers and for prompts
SCORE = 0  # in place of the length of a prefill step: the prompt is scored

Array = tuple[tuple[int, ...], np.dtype]  # its shape and dtype
_INT, _FLOAT = np.dtype(np.int32), np.dtype(np.float32)


@dataclasses.dataclass(frozen=True)
class ProgramSpec:
    """What one program does.

    Attributes:
        kind: "prefill": fill a slot's caches with a part of a prompt; "decode": continue the
            sequences; "score": the logarithms of the probabilities of given tokens; "copy": one
            slot gets the caches of another one.
        step: the key of the signature that it runs; of a drafter's, it generates what that proposes
            as far as it is right.
        slots: the number of sequences.
        length: of the caches.
        stops: the tokens that end an answer.
        variant: how tokens may be chosen.
        is_alone: it decodes in one of the slots only, whose caches it copies and puts back.
        prompts: how many slots a step prefills; of several it copies the caches and puts them back.
        steps: how many prefill steps it runs, one after the other, at most.
        tokens: how many of one slot it scores at once; 0: of each slot one after the other.
    """

    kind: Literal["prefill", "decode", "score", "copy"]
    step: str
    slots: int
    length: int
    stops: tuple[int, ...] = ()
    variant: Variant = dataclasses.field(default_factory=Variant)
    is_alone: bool = False
    prompts: int = 1
    steps: int = 1
    tokens: int = 0

    @property
    def rows(self) -> int:
        """How many sequences it decodes or scores at once."""
        return 1 if self.is_alone else self.slots


class SlotArrays(NamedTuple):
    """The sequences in the slots.

    Attributes:
        token: int32 [slots]: the last token, which no cache has yet.
        position: int32 [slots]: its place.
        left: int32 [slots]: how many tokens may follow; 0: the slot rests.
        answer: int32 [slots, capacity]: the tokens that were generated; [slots, 0] where no logits
            processor needs them.
        generated: int32 [slots]: how many.
    """

    token: Any
    position: Any
    left: Any
    answer: Any
    generated: Any


class DecodeOutput(NamedTuple):
    """What a run of decode steps returns.

    Attributes:
        tokens: int32 [MAX_DECODE_STEPS, slots, n]: up to as many as the step processes.
        scores: float32 [MAX_DECODE_STEPS, slots, n]: the logarithms of their probabilities, if the
            variant has them.
        counts: int32 [MAX_DECODE_STEPS, slots]: how many tokens there are; 0: the slot rested.
        steps: int32: how many were run.
        hidden_state: float32 [slots, n]: before the last token, if the variant has it; [slots, 0].
        top_tokens: int32 [MAX_DECODE_STEPS, slots, n, top]: the most likely ones.
        top_scores: float32 [MAX_DECODE_STEPS, slots, n, top].
    """

    tokens: Any
    scores: Any
    counts: Any
    steps: Any
    hidden_state: Any
    top_tokens: Any
    top_scores: Any


class ScoreOutput(NamedTuple):
    """How likely tokens are that were known.

    `n`: MAX_DECODE_STEPS or, for one slot, the program's `tokens`.

    Attributes:
        scores: float32 [slots, n]: the logarithms of their probabilities.
        ranks: int32 [slots, n]: how many tokens are at least as likely; [slots, 0] where the
            variant has no top, like the next ones.
        top_tokens: int32 [slots, n, top]: the most likely ones.
        top_scores: float32 [slots, n, top].
    """

    scores: Any
    ranks: Any
    top_tokens: Any
    top_scores: Any


class ProgramSpecs:
    """The programs that sequences in some slots may need.

    Attributes:
        lengths: of the prefill steps, ascending.
        scored: how many tokens of one slot a program may score at once, ascending; none: it scores
            one of each slot.
    """

    def __init__(
        self,
        graph: LanguageGraph,
        slots: int,
        stops: Collection[int],
        platform: str = "cpu",
        *,
        drafts: bool = False,
        is_invariant: bool = False,
    ) -> None:
        """None is compiled yet.

        Args:
            graph: the model's signatures.
            slots: how many sequences there are at once.
            stops: the tokens that end an answer.
            platform: "cpu", "gpu" or "tpu".
            drafts: whether the drafter is used.
            is_invariant: each prompt is read alone, in short steps.
        """
        self._drafter = graph.drafter if drafts else None
        self._graph, self._slots, self._stops = graph, slots, tuple(sorted(stops))
        self._platform, self._is_invariant = platform, is_invariant
        most = max((_MOST_INVARIANT, *graph.lengths[:1])) if is_invariant else graph.capacity
        self.lengths = tuple(n for n in graph.lengths if n <= most)
        self.scored = _scored_at_once(graph, platform) if not (drafts or is_invariant) else ()
        self._excluded: set[int] = set()

    def prefill(self, tokens: int, length: int, prompts: int = 1) -> ProgramSpec:
        """Prefill steps of some tokens of each prompt, with caches of a length."""
        # A decode step processes a token, too: its logits are not computed then.
        signatures = *self._graph.prefill, self._graph.decode
        key = next(step.key for step in signatures if step.length == tokens)
        steps = self.steps(tokens, prompts)
        return ProgramSpec("prefill", key, self._slots, length, prompts=prompts, steps=steps)

    def decode(
        self, variant: Variant, length: int, step: str | None = None, *, is_alone: bool = False
    ) -> ProgramSpec:
        """Decode steps, of the signature `step`; None: of the usual one."""
        key = step or self._decode_keys(variant, length)[0]
        return ProgramSpec(
            "decode", key, self._slots, length, self._stops, variant=variant, is_alone=is_alone
        )

    @property
    def written(self) -> int:
        """How many entries a decode step writes in each slot."""
        return 1 if self._drafter is None else self._drafter.verify.length

    def general_variants(self) -> list[Variant]:
        """See there. Where the drafter is used, hidden states have programs of their own."""
        graph = self._graph
        return general_variants(graph.vocabulary, graph.hidden_size > 0 and self._drafter is None)

    def step_at(self, place: int, variant: Variant) -> Step:
        """The decode step of sequences whose last token has a place, at most.

        The drafter is used as long as its steps end within the caches.
        """
        drafter = None if variant.has_hidden_state else self._drafter
        if drafter is None or place + drafter.verify.length > self._graph.capacity:
            return self._graph.decode
        return drafter.verify

    def _decode_keys(self, variant: Variant, length: int) -> list[str]:
        """The signatures of the decode steps with caches of a length, the usual one first."""
        capacity = self._graph.capacity
        places = (0, capacity) if length == capacity else (0,)
        return list(dict.fromkeys(self.step_at(place, variant).key for place in places))

    def score(self, length: int, tokens: int = 0, *, has_top: bool = False) -> ProgramSpec:
        """The probabilities of tokens that are known, and of the most likely ones."""
        variant = SamplingParams().variant(self._graph.vocabulary, has_top=has_top)
        key = self._graph.decode.key
        return ProgramSpec("score", key, self._slots, length, variant=variant, tokens=tokens)

    def score_prompt(self, length: int) -> list[ProgramSpec]:
        """What scores the tokens of a prompt."""
        return [self.score(length, tokens, has_top=True) for tokens in self.scored or (0,)]

    def score_plan(self, count: int) -> list[int]:
        """The `tokens` of the programs that score a number of tokens of one slot."""
        return prefill_plan(count, 0, self.scored, count + self.scored[-1])

    def copy(self, length: int) -> ProgramSpec:
        """A slot gets the caches of another one."""
        return ProgramSpec("copy", self._graph.decode.key, self._slots, length)

    def needed(
        self, length: int, variant: Variant | None, tokens: int | None = None
    ) -> list[ProgramSpec]:
        """What sequences may need while caches have a length.

        Args:
            length: of caches.
            variant: of the sequences that decode; None: none does.
            tokens: of a prefill step that runs now; `SCORE`: prompts are scored.
        """
        steps = {n for n in self.lengths if n <= length}
        steps |= set() if tokens is None else {tokens}
        specs = [
            spec
            for n in sorted(steps)
            for spec in (self.score_prompt(length) if n == SCORE else [self.prefill(n, length)])
        ]
        specs += [self.copy(length)] if self._slots > 1 else []
        if variant is None:
            return specs
        keys = self._decode_keys(variant, length)
        return [*specs, *(self.decode(variant, length, key) for key in keys)]

    def to_start(self, count: int, variant: Variant, *, prefills: bool) -> list[ProgramSpec]:
        """What a prompt of `count` tokens needs: decode steps and, if it `prefills`, the others."""
        graph, end = self._graph, 0
        length = next((n for n in graph.cache_lengths if n > count), graph.capacity)
        specs = [self.decode(variant, length)]
        for step in self.plan(count - 1) if prefills else ():
            end += step
            specs.append(self.prefill(step, self.length(end)))
        return list(dict.fromkeys(specs))

    def plan(self, count: int, start: int = 0) -> list[int]:
        """The lengths of the prefill steps for `count` tokens from a place on."""
        graph, padding = self._graph, padding_of(self._platform, self._slots)
        return prefill_plan(count, start, self.lengths, graph.capacity, padding)

    def prompts(self, length: int) -> int:
        """How many prompts are read at once by prefill steps of a length."""
        return 1 if self._is_invariant else prompts_at_once(self._platform, self._slots, length)

    def steps(self, length: int, prompts: int) -> int:
        """How many prefill steps of a length a program runs at most, each of some prompts."""
        # It takes embeddings for soft tokens of all steps, which text would not fill.
        return 1 if self._graph.soft_size else steps_at_once(self._platform, prompts, length)

    def length(self, needed: int) -> int:
        """The length of the shortest caches for a number of tokens."""
        lengths = (n for n in self._graph.cache_lengths if n not in self._excluded)
        return next(n for n in lengths if n >= needed)

    def exclude(self, length: int) -> None:
        """Not all of the model's steps can be computed with caches of this length."""
        self._excluded.add(length)


def _scored_at_once(graph: LanguageGraph, platform: str) -> tuple[int, ...]:
    """Where products of many rows cost less than as many of one, and later tokens hide nothing."""
    can_rewind = graph.max_rewind is None and graph.updates_caches
    return _SCORED if platform == "cpu" and can_rewind else ()


def signatures(graph: LanguageGraph, spec: ProgramSpec) -> dict[str, str]:
    """The signatures that a program runs, by part."""
    return {} if spec.kind == "copy" else graph.keys(spec.step)


def cache_arrays(graph: LanguageGraph, slots: int, length: int) -> list[Array]:
    """The caches of all slots; one slot has no such axis, which would make XLA copy them."""
    ahead = (slots,) if slots > 1 else ()
    arrays = (array for name in graph.carried for array in graph.arrays(name, length))
    return [((*ahead, *shape), dtype) for shape, dtype in arrays]


def adapter_arrays(graph: LanguageGraph, spec: ProgramSpec) -> list[Array]:
    """The factors of the adapters of all slots; one slot has no such axis."""
    ahead = (spec.slots,) if spec.slots > 1 else ()
    factors = () if spec.kind == "copy" else graph.adapters.values()
    return [((*ahead, *info.shape), info.dtype) for info in factors]


def arguments(graph: LanguageGraph, spec: ProgramSpec, step: Step) -> list[Array]:
    """The arrays that a program takes after its weights, in order."""
    return [
        *cache_arrays(graph, spec.slots, spec.length),
        *adapter_arrays(graph, spec),
        _packed_array(host_inputs(graph, spec, step)),
    ]


def results(graph: LanguageGraph, spec: ProgramSpec) -> list[Array]:
    """The arrays that a program returns, in order."""
    read = host_outputs(graph, spec)
    caches = cache_arrays(graph, spec.slots, spec.length)
    return [*caches, _packed_array(read)] if read else caches


def host_inputs(graph: LanguageGraph, spec: ProgramSpec, step: Step) -> list[Array]:
    """The host's arrays that a program takes, in the order in which they are packed."""
    n, scalar = spec.rows, ((), _INT)
    if spec.kind == "prefill":  # slot, tokens, start, count; embeddings of soft tokens; steps
        ahead = tuple(n for n in (spec.steps, spec.prompts) if n > 1)
        arrays = [((*ahead, *shape), _INT) for shape in ((), (step.length,), (), ())]
        soft = (*ahead, step.length, graph.soft_size), _FLOAT
        return [*arrays, *([soft] if graph.soft_size else []), *([scalar] * (spec.steps > 1))]
    if spec.kind == "copy":  # source, target, count
        return [scalar, scalar, scalar]
    if spec.tokens:  # slot, tokens, start, targets, count
        many = (spec.tokens,), _INT
        return [scalar, many, scalar, many, scalar]
    if spec.kind == "score":  # token, position, targets, lengths
        return [((n,), _INT), ((n,), _INT), ((n, MAX_DECODE_STEPS), _INT), ((n,), _INT)]
    capacity = graph.capacity if spec.variant.has_logits_processors else 0
    each = (n,), _INT
    slots = SlotArrays(each, each, each, ((n, capacity), _INT), each)
    of_one = SamplingParams().arrays(spec.variant, graph.vocabulary)
    sampling = [((n, *array.shape), array.dtype) for array in of_one]
    # The scalars limit the steps, and name the slot.
    return [*slots, *sampling, scalar, *([scalar] * spec.is_alone)]


def host_outputs(graph: LanguageGraph, spec: ProgramSpec) -> list[Array]:
    """The arrays that a program returns for the host, in the order in which they are packed."""
    n = spec.rows
    if spec.kind in ("prefill", "copy"):
        return []
    top = spec.variant.top
    if spec.kind == "score":
        each = (1, spec.tokens) if spec.tokens else (n, MAX_DECODE_STEPS)
        ranks = each if top else (each[0], 0)
        return [*ScoreOutput((each, _FLOAT), (ranks, _INT), *_pair((*each, top)))]
    most = MAX_DECODE_STEPS, n, graph.step(spec.step).length
    size = graph.hidden_size if spec.variant.has_hidden_state else 0
    own = (most, _INT), (most, _FLOAT), (most[:2], _INT), ((), _INT), ((n, size), _FLOAT)
    return [*DecodeOutput(*own, *_pair((*most, top)))]


def _pair(shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Tokens and their scores."""
    return (shape, _INT), (shape, _FLOAT)


def packed(numpy: Any, values: Sequence[Any]) -> Any:
    """The bits of arrays of 4-byte numbers as one: int32 [n]. `numpy`: or jax.numpy."""
    return numpy.concatenate([numpy.asarray(v).reshape(-1).view(np.int32) for v in values])


def unpacked(flat: Any, arrays: Sequence[Array]) -> list[Any]:
    """The arrays of these shapes and dtypes of which `packed` made one, of numpy or jax."""
    ends = itertools.accumulate((math.prod(shape) for shape, _ in arrays), initial=0)
    parts = [flat[begin:end] for begin, end in itertools.pairwise(ends)]
    pairs = zip(parts, arrays, strict=True)
    return [part.view(dtype).reshape(shape) for part, (shape, dtype) in pairs]


def _packed_array(arrays: Sequence[Array]) -> Array:
    return (sum(math.prod(shape) for shape, _ in arrays),), _INT
