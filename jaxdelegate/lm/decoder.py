"""The host's view of the sequences in a program's slots: their tokens, and what is left."""

import contextlib
import dataclasses
from collections.abc import Collection, Container, Iterator, Mapping, Sequence

import numpy as np

from jaxdelegate.lm.choices import Choice, Rules, Variant, joined
from jaxdelegate.lm.constraints import Constraint
from jaxdelegate.lm.graph import prefill_plan
from jaxdelegate.lm.programs import Programs
from jaxdelegate.lm.tasks import STEPS, Sequences
from jaxdelegate.optional import is_failure
from jaxdelegate.text import printable


@dataclasses.dataclass(frozen=True)
class StepOutput:
    """Tokens that a sequence got, and the logarithms of their probabilities if asked for.

    Attributes:
        tokens: with a constraint without the stop.
        scores: of the tokens.
        ends: the sequence rests now.
        hidden_state: float32, before the last token, if asked for.
        is_match: the answer has ended where its constraint allows that.
        refusal: why the constraint gave up; the tokens of this run are lost.
    """

    tokens: list[int]
    scores: list[float]
    ends: bool
    hidden_state: np.ndarray | None
    is_match: bool = False
    refusal: str | None = None


@dataclasses.dataclass
class _Sequence:
    ids: list[int] = dataclasses.field(default_factory=list)  # caches have all but the last one
    written: int = 0  # the most entries of its caches since it was read from its beginning
    begin: int = 0  # of the answer, in `ids`
    left: int = 0
    rules: Rules = dataclasses.field(default_factory=Rules)
    has_scores: bool = False
    constraint: Constraint | None = None
    refusal: str | None = None
    has_hidden_state: bool = False

    def variant(self, vocabulary: int) -> Variant:
        is_masked = self.constraint is not None
        return self.rules.variant(vocabulary, self.has_scores, is_masked, self.has_hidden_state)


class Decoder:
    """Reads and continues sequences, each in a slot. Not for several threads at once."""

    def __init__(
        self, programs: Programs, stops: frozenset[int], *, drafts: bool = False, pad: int = 0
    ) -> None:
        """Empty sequences.

        Args:
            programs: of the model.
            stops: the tokens that end an answer.
            drafts: whether to use the model's drafter.
            pad: the token that fills the rest of a step which reads a prompt.
        """
        self._programs, self._stops, self._drafts, self._pad = programs, stops, drafts, pad
        self._caches = programs.new_caches()
        self._sequences = [_Sequence() for _ in range(programs.slots)]

    @property
    def slots(self) -> int:
        """How many sequences it has at once."""
        return self._programs.slots

    @property
    def capacity(self) -> int:
        """How many tokens a sequence may have."""
        return self._programs.graph.capacity

    def ids(self, slot: int) -> Sequence[int]:
        """All tokens of a sequence, the prompt included."""
        return self._sequences[slot].ids

    def is_resting(self, slot: int) -> bool:
        """Whether nothing is generated in a slot."""
        return self._sequences[slot].left == 0

    def prepare(self, count: int, rules: Rules, *, has_scores: bool = False) -> None:
        """Load what will read and continue a sequence of `count` tokens, if it is stored."""
        if not self._drafts:
            variant = rules.variant(self._programs.graph.vocabulary, has_scores)
            self._programs.load(variant, count)

    def prefill(self, slot: int, ids: Sequence[int]) -> int:
        """Prefill a slot with these tokens, reusing the prefix that its caches have.

        Returns:
            How many tokens the caches had.

        Raises:
            GenerationError: as `LanguageGraph.check`.
        """
        known = self.known(slot, ids)
        for _ in self.prefill_steps(slot, ids):
            pass
        return known

    def check(self, ids: Sequence[int]) -> None:
        """Raise a GenerationError if a model cannot answer these tokens."""
        self._programs.graph.check(ids, has_answer=True)

    def known(self, slot: int, ids: Sequence[int]) -> int:
        """How many of the tokens a slot's caches have. Errors as `prefill`."""
        self._programs.graph.check(ids)
        return self._known(self._sequences[slot], ids)

    def prefill_steps(self, slot: int, ids: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Prefill, pausing before each step, when other slots may run.

        It yields the length of the step and the place after it. A sequence whose prefill was not
        finished has the tokens so far. Errors as `prefill`.
        """
        graph, sequence = self._programs.graph, self._sequences[slot]
        known = start = self.known(slot, ids)
        sequence.written = sequence.written if known else 0
        self._keep(sequence, ids[: known + 1])
        for step in prefill_plan(len(ids) - 1 - known, known, graph.lengths, graph.capacity):
            yield step, start + step
            part = np.full(step, self._pad, np.int32)
            tokens = ids[start : min(start + step, len(ids) - 1)]
            part[: len(tokens)] = tokens
            held = self.held
            # An error may end this: then the caches have nothing for certain.
            self._keep(sequence, ())
            self._programs.read(self._caches, slot, part, start, len(tokens), held)
            start += len(tokens)
            self._keep(sequence, ids[: start + 1])

    @property
    def held(self) -> int:
        """How many tokens of the longest sequence the caches have."""
        return max(max(len(s.ids) - 1, 0) for s in self._sequences)

    @property
    def programs(self) -> Programs:
        """Those of the model."""
        return self._programs

    def variant(self, slot: int) -> Variant:
        """What the next `run` needs for the sequence of a slot."""
        return self._sequences[slot].variant(self._programs.graph.vocabulary)

    def _keep(self, sequence: _Sequence, ids: Sequence[int]) -> None:
        """Let a sequence that rests have these tokens."""
        sequence.ids, sequence.left = list(ids), 0
        self._write(sequence)

    def _known(self, sequence: _Sequence, ids: Sequence[int]) -> int:
        """How many of the tokens a sequence's caches have; not all caches can go back."""
        # A full sequence that rests goes on writing its last entry.
        capacity = self._programs.graph.capacity
        known = min(_common(sequence.ids[:-1], ids[:-1]), capacity - 1)
        return known if self._is_within_reach(sequence, known) else 0

    def _is_within_reach(self, sequence: _Sequence, known: int) -> bool:
        max_rewind = self._programs.graph.max_rewind
        return max_rewind is None or sequence.written - known <= max_rewind

    def _restore(self, slot: int) -> None:
        """Read a sequence again where caches cannot go back before the tokens that it forgot."""
        sequence = self._sequences[slot]
        if not self._is_within_reach(sequence, len(sequence.ids) - 1):
            self.prefill(slot, list(sequence.ids))

    def _write(self, sequence: _Sequence, beyond: int = 0) -> None:
        sequence.written = max(sequence.written, len(sequence.ids) - 1 + beyond)

    def forget(self, slot: int) -> None:
        """Let a slot have no tokens."""
        self._keep(self._sequences[slot], ())

    def wait(self) -> None:
        """Wait until the device has read and generated everything."""
        for array in self._caches.arrays:
            array.block_until_ready()

    def truncate(self, slot: int, length: int) -> None:
        """Forget the tokens of a sequence after the first `length`, at least one; it rests."""
        del self._sequences[slot].ids[length:]
        self._sequences[slot].left = 0

    def begin(
        self,
        slot: int,
        limit: int,
        rules: Rules,
        *,
        has_scores: bool = False,
        constraint: Constraint | None = None,
        has_hidden_state: bool = False,
    ) -> None:
        """Generate up to `limit` tokens in a slot from the next `run` on.

        With a constraint it gets one in each run: what may come next depends on the last one.
        """
        self._restore(slot)
        sequence = self._sequences[slot]
        # The token after a hidden state is not part of an answer.
        room = self._programs.graph.limit - len(sequence.ids) + has_hidden_state
        sequence.begin, sequence.left = len(sequence.ids), max(min(limit, room), 0)
        sequence.rules, sequence.has_scores = rules, has_scores
        sequence.constraint = None if constraint is None else constraint.copy()
        sequence.refusal, sequence.has_hidden_state = None, has_hidden_state

    def rest(self, slot: int) -> None:
        """Generate nothing more in a slot."""
        self._sequences[slot].left = 0

    def run(
        self,
        steps: int = STEPS,
        slots: Collection[int] | None = None,
        variant: Variant | None = None,
        *,
        is_alone: bool = False,
    ) -> Mapping[int, StepOutput]:
        """Run up to `steps` steps; returns the tokens of each slot that did not rest.

        Args:
            steps: the most.
            slots: others rest in this run; None: all generate.
            variant: of the program; None: the one that the sequences need.
            is_alone: by the program of one slot, which `slots` has.
        """
        active = {
            i: s
            for i, s in enumerate(self._sequences)
            if s.left > 0 and (slots is None or i in slots)
        }
        if not active:
            return {}
        vocabulary = self._programs.graph.vocabulary
        variant = variant or joined([s.variant(vocabulary) for s in active.values()])
        choices = [s.rules.choice(variant, vocabulary) for s in self._sequences]
        choice = Choice(*map(np.stack, zip(*choices, strict=True)))
        for slot, sequence in active.items():
            if sequence.constraint is not None:
                choice.allowed[slot] = _allowed(sequence, sequence.constraint)
        placed = self._placed(variant, active)
        rows = [*active] if is_alone else [*range(self.slots)]
        found = self._programs.generate(
            variant,
            self._caches,
            Sequences(*(array[rows] for array in placed)),
            Choice(*(array[rows] for array in choice)),
            steps,
            drafts=self._drafts and not is_alone,
            slot=rows[0] if is_alone else None,
        )
        numbers = np.arange(found.tokens.shape[-1])
        kept = numbers < found.counts[: int(found.steps), :, None]
        tokens, scores = (a[: len(kept)] for a in (found.tokens, found.scores))
        return {
            i: self._taken(
                active[i],
                tokens[:, n][own].tolist(),
                scores[:, n][own].tolist(),
                found.hidden_state[n],
            )
            for n, (i, own) in enumerate(zip(rows, kept.swapaxes(0, 1), strict=True))
            if i in active
        }

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
            self._programs.graph.check([*self._sequences[slot].ids, *ids])
        for slot in texts:
            self._restore(slot)
            self.rest(slot)
        found = {slot: list[float]() for slot in texts}
        for first in range(0, max(map(len, texts.values()), default=0), STEPS):
            parts = {slot: ids[first : first + STEPS] for slot, ids in texts.items()}
            targets = np.zeros((self._programs.slots, STEPS), np.int32)
            lengths = np.zeros(self._programs.slots, np.int32)
            for slot, part in parts.items():
                targets[slot, : len(part)], lengths[slot] = part, len(part)
            token, position = self._ends(self.capacity)
            scores = self._programs.score(self._caches, token, position, targets, lengths)
            for slot, part in parts.items():
                found[slot] += scores[slot, : len(part)].tolist()
                self._sequences[slot].ids += part
                self._write(self._sequences[slot])
        return found

    def _ends(self, length: int, active: Container[int] = ()) -> tuple[np.ndarray, np.ndarray]:
        """The last token of each sequence, and its place; resting slots, too, write an entry.

        Where a resting one would need more than `length` entries, it writes its last one again.
        """
        places = [max(len(s.ids) - 1, 0) for s in self._sequences]
        places = [
            place - 1 if place == length < self.capacity and i not in active else place
            for i, place in enumerate(places)
        ]
        pairs = zip(self._sequences, places, strict=True)
        tokens = [s.ids[place] if s.ids else 0 for s, place in pairs]
        return np.array(tokens, np.int32), np.array(places, np.int32)

    def _placed(self, variant: Variant, active: Container[int]) -> Sequences:
        answers = [s.ids[s.begin :] for s in self._sequences]
        capacity = self._programs.graph.capacity if variant.has_rules else 0
        answer = np.zeros((self.slots, capacity), np.int32)
        if variant.has_rules:
            for row, ids in zip(answer, answers, strict=True):
                row[: len(ids)] = ids
        return Sequences(
            *self._ends(self._programs.least or self.capacity, active),
            left=np.array(
                [_steps(s) if i in active else 0 for i, s in enumerate(self._sequences)], np.int32
            ),
            answer=answer,
            generated=np.array([len(ids) for ids in answers], np.int32),
        )

    def _taken(
        self, sequence: _Sequence, tokens: list[int], scores: list[float], state: np.ndarray
    ) -> StepOutput:
        """What a sequence got: a stop token or the limit may have ended it before others."""
        is_stopped = bool(tokens) and tokens[-1] in self._stops
        sequence.left = 0 if is_stopped else sequence.left - len(tokens)
        sequence.ids += tokens
        is_match = False
        if sequence.constraint is not None:
            is_match = _is_match(sequence, sequence.constraint, tokens, is_stopped=is_stopped)
            if is_match or sequence.refusal is not None:
                sequence.left = 0
            count = 0 if sequence.refusal is not None else len(tokens) - is_stopped
            tokens, scores = tokens[:count], scores[:count]
        drafter = self._programs.graph.drafter if self._drafts else None
        self._write(sequence, 0 if drafter is None else drafter.verify.length - 1)
        return StepOutput(
            tokens,
            scores if sequence.has_scores else [],
            sequence.left == 0,
            state if sequence.has_hidden_state else None,
            is_match,
            sequence.refusal,
        )


@contextlib.contextmanager
def _own_errors(sequence: _Sequence) -> Iterator[None]:
    """An error of a constraint ends its sequence alone."""
    try:
        yield
    except BaseException as error:
        if not is_failure(error):
            raise
        sequence.refusal = printable(repr(error))


def _allowed(sequence: _Sequence, constraint: Constraint) -> np.ndarray:
    """The tokens that may come next."""
    found = np.zeros((), np.uint32)
    with _own_errors(sequence):
        found = constraint.allowed()
        sequence.refusal = constraint.error
    return found


def _is_match(
    sequence: _Sequence, constraint: Constraint, tokens: list[int], *, is_stopped: bool
) -> bool:
    """Whether an answer has ended, with these tokens, where its constraint allows that."""
    is_match = False
    with _own_errors(sequence):
        if sequence.refusal is None and not is_stopped:
            for token in tokens:
                constraint.add(token)
            is_match, sequence.refusal = constraint.is_complete, constraint.error
        elif sequence.refusal is None:
            is_match = constraint.is_match
            sequence.refusal = None if is_match else "the answer stops where it does not match"
    return is_match


def _steps(sequence: _Sequence) -> int:
    """The most tokens that a sequence may get in a run."""
    return sequence.left if sequence.constraint is None else min(sequence.left, 1)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many elements at the beginning are equal."""
    pairs = zip(a, b, strict=False)
    return next((n for n, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
