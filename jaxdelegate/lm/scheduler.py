"""The scheduler of requests: each joins when a slot is free, and leaves when it ends."""

import collections
import dataclasses
import itertools
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from jaxdelegate.lm.background_compiler import BackgroundCompiler
from jaxdelegate.lm.choices import Rules, Variant, joined
from jaxdelegate.lm.completions import FinishReason
from jaxdelegate.lm.constraints import Constraint
from jaxdelegate.lm.decoder import Decoder, StepOutput
from jaxdelegate.lm.graph import prefill_plan
from jaxdelegate.lm.host import Host
from jaxdelegate.lm.language_model import LengthError
from jaxdelegate.lm.tasks import STEPS

_LONG_SECONDS = 0.05  # between two runs whose tokens someone waits for


@dataclasses.dataclass(frozen=True)
class Request:
    """A prompt, and how to continue it.

    `owner`: only requests of the same one use what caches have of a prompt. Who could use that of
    others would learn their prompts, by the count of tokens or the time.
    """

    ids: Sequence[int]
    limit: int
    rules: Rules
    has_scores: bool = False
    constraint: Constraint | None = None
    has_hidden_state: bool = False
    owner: Hashable = None

    def variant(self, vocabulary: int) -> Variant:
        """The program that generates its tokens."""
        is_masked = self.constraint is not None
        return self.rules.variant(vocabulary, self.has_scores, is_masked, self.has_hidden_state)


@dataclasses.dataclass(eq=False)
class ActiveRequest:
    """A request in a slot.

    Attributes:
        request: its prompt, and how to continue it.
        slot: in which its caches are.
        reused: how many tokens of the prompt the slot's caches had.
        prefilled: how many they have.
        tokens: the answer so far, without the stop.
        scores: the tokens' log probabilities, if requested.
        settled: how many of the tokens will stay: the next ones cannot make them part of a stop.
        finish_reason: why it has ended; None: it goes on.
        error: why it has ended too early.
        refusal: why its constraint gave up; the answer is lost.
        hidden_state: float32, before the last token, if requested.
    """

    request: Request
    slot: int
    reused: int
    prefilled: int
    tokens: list[int] = dataclasses.field(default_factory=list)
    scores: list[float] = dataclasses.field(default_factory=list)
    settled: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None
    refusal: str | None = None
    hidden_state: np.ndarray | None = None


class Pace:
    """How many steps a run has: the first token comes alone, later ones in longer runs.

    Longer runs cost less for each token, but those who join or read the text wait for them.
    """

    def __init__(self, longest_s: float = _LONG_SECONDS) -> None:
        """`longest_s`: the time of a run, at most about that."""
        self.steps, self._longest_s = 1, longest_s

    def took(self, seconds: float) -> None:
        """Choose the next number by the time that the last run took."""
        if 2 * seconds < self._longest_s:
            self.steps = min(2 * self.steps, STEPS)
        elif seconds > self._longest_s:
            self.steps = max(self.steps // 2, 1)


class Scheduler:
    """Decides which requests in a decoder's slots run next. Not for several threads at once."""

    def __init__(
        self, host: Host, decoder: Decoder, compiler: BackgroundCompiler | None = None
    ) -> None:
        """`compiler`: compiles while those requests go on that need nothing new; None: all wait."""
        self._host, self._decoder, self._compiler = host, decoder, compiler
        self._running: dict[int, ActiveRequest] = {}  # those of the last run are the last
        self._owners: list[Hashable] = [None] * decoder.slots
        self._prefilling: dict[int, Iterator[tuple[int, int]]] = {}  # in the order of joining
        self._next: dict[int, tuple[int, int] | None] = {}  # of these: the next step
        self._ready: _Ready | None = None
        self._active: Sequence[ActiveRequest] = ()  # in the last run
        self._failed: list[ActiveRequest] = []  # since the last run
        self.is_held = False  # nothing ran: all requests wait for programs
        self._is_first = False
        self._free = collections.deque(range(decoder.slots))  # the one used last is the last

    @property
    def slots(self) -> int:
        """How many requests it has at once."""
        return self._decoder.slots

    @property
    def free(self) -> int:
        """How many requests may join."""
        return len(self._free)

    @property
    def use(self) -> float:
        """The part of all caches that the requests use; 1: all."""
        tokens = sum(len(self._decoder.ids(slot)) for slot in self._running)
        return tokens / (self.slots * self._decoder.capacity)

    @property
    def is_constrained(self) -> bool:
        """Whether a request gets one token in each run."""
        return any(running.request.constraint for running in self._running.values())

    def join(self, request: Request) -> ActiveRequest:
        """Put a request into a free slot, the one whose caches have most of its prompt.

        Those of other owners count as empty.

        Raises:
            GenerationError: as `LanguageGraph.check`.
        """
        if not request.has_hidden_state:
            self._decoder.check(request.ids)
        known = {slot: self._decoder.known(slot, request.ids) for slot in self._free}
        known = {i: n if self._owners[i] == request.owner else 0 for i, n in known.items()}
        slot = max(known, key=known.__getitem__)
        if self._owners[slot] != request.owner:
            self._decoder.forget(slot)
            self._owners[slot] = request.owner
        self._free.remove(slot)
        self._running[slot] = running = ActiveRequest(request, slot, known[slot], known[slot])
        self._prefilling[slot] = steps = self._decoder.prefill_steps(slot, request.ids)
        self._next[slot] = next(steps, None)
        return running

    def is_ready(self, request: Request) -> bool:
        """Whether a request that joins can go on at once.

        If not, what it needs is compiled, but only if nothing else is: callers choose who is next.
        """
        if self._compiler is None:
            return True
        programs, graph = self._decoder.programs, self._decoder.programs.graph
        plan = prefill_plan(len(request.ids) - 1, 0, graph.lengths, graph.capacity)
        needed = max(self._decoder.held, len(request.ids), *itertools.accumulate(plan))
        length = programs.length(min(needed, graph.capacity))
        wanted = _Ready(length, request.variant(graph.vocabulary))
        return self._in_memory(wanted) is not None or self._compiler.begin(
            programs.tasks(length, wanted.variant)
        )

    def leave(self, running: ActiveRequest) -> None:
        """Free the slot of a request that has not ended."""
        if self._running.get(running.slot) is running:
            running.finish_reason = "cancelled"
            self._end(running.slot)

    def prefill(self) -> bool:
        """Run one prefill step of a prompt; whether there is more to prefill.

        Every second step is for the prompt that joined first, the others are for the one of which
        the least is left: a short prompt does not wait for a long one, and a long one gets on.
        """
        self.is_held = bool(self._running)
        while slots := [slot for slot in list(self._prefilling) if self._can_prefill(slot)]:
            self._is_first = not self._is_first
            slot = slots[0] if self._is_first else min(slots, key=self._left_to_prefill)
            request, has_steps = self._running[slot].request, self._next[slot] is not None
            if has_steps:
                self._use(self._readiness(slot))
                self._next[slot] = next(self._prefilling[slot], None)
            if self._next[slot] is None:  # it has ended
                del self._prefilling[slot], self._next[slot]
                self._decoder.begin(
                    slot,
                    request.limit,
                    request.rules,
                    has_scores=request.has_scores,
                    constraint=request.constraint,
                    has_hidden_state=request.has_hidden_state,
                )
            self._running[slot].prefilled = len(self._decoder.ids(slot)) - 1
            if has_steps:
                self.is_held = False
                break
        return bool(self._prefilling)

    def _left_to_prefill(self, slot: int) -> int:
        running = self._running[slot]
        return len(running.request.ids) - 1 - running.prefilled

    def run(self, steps: int = STEPS) -> list[ActiveRequest]:
        """Run up to `steps` steps; returns the requests that got tokens or have ended."""
        slots, ready = self._runnable()
        self._use(ready)
        found, self._failed = self._failed, []
        variant = None if ready is None else ready.variant
        is_alone = ready is not None and self._is_alone(slots, ready)
        for slot, output in self._decoder.run(steps, slots, variant, is_alone=is_alone).items():
            self.is_held = False
            self._running[slot] = running = self._running.pop(slot)
            self._take(running, output)
            found.append(running)
            if running.finish_reason is not None:
                self._end(slot)
        return found

    def _take(self, running: ActiveRequest, output: StepOutput) -> None:
        before = len(running.tokens)
        running.tokens += output.tokens
        running.scores += output.scores
        running.hidden_state = output.hidden_state
        running.refusal = output.refusal
        # With a constraint, which decides where the answer ends, a stop sequence may be its text.
        is_free = running.request.constraint is None
        stop = self._host.stop_in(running.tokens, before) if is_free else None
        if stop is not None:
            beyond = len(running.tokens) - stop.stop
            self._decoder.truncate(running.slot, len(self._decoder.ids(running.slot)) - beyond)
            del running.tokens[stop.start :], running.scores[stop.start :]
            running.finish_reason = "stop"
        elif output.ends:
            running.finish_reason = "stop" if output.is_match else "length"
        running.settled = len(running.tokens)
        if running.finish_reason is None:
            running.settled -= _overlap(running.tokens, self._host.eos_token_ids)

    def _end(self, slot: int) -> None:
        self._decoder.rest(slot)
        self._prefilling.pop(slot, None)
        self._next.pop(slot, None)
        del self._running[slot]
        self._free.append(slot)

    # ---- which requests have programs

    def _can_prefill(self, slot: int) -> bool:
        return self._compiler is None or self._next[slot] is None or bool(self._readiness(slot))

    def _readiness(self, slot: int) -> "_Ready | None":
        """What the next step of a prompt runs with; None: it is not ready, or all is."""
        step, end = self._next[slot] or (0, 0)
        needed = max(end, self._decoder.held)
        slots = [running.slot for running in self._active if running.finish_reason is None]
        return self._found(slot, needed, slots, step) if self._may_need(slot, needed) else None

    def _begun(self) -> list[int]:
        return [slot for slot in self._running if slot not in self._prefilling]

    def _may_need(self, slot: int, needed: int) -> bool:
        """Whether the others have programs for caches of the length that a slot needs."""
        length = self._decoder.programs.length
        if self._compiler is None or length(needed) == length(self._decoder.held):
            return True
        return all(self._found(slot, needed, [other]) for other in self._begun() if other != slot)

    def _runnable(self) -> "tuple[Sequence[int] | None, _Ready | None]":
        """The slots that can run, and with what; None: all can.

        While there is no program for all of them, some run in turn, those first that have waited.
        """
        if self._compiler is None:
            return None, None
        begun = self._begun()
        slots, ready = begun, self._known(self._needed(begun), begun)
        if ready is None:
            slots = []
            for slot in begun:
                more = [*slots, slot]
                found = self._together(slot, slots)
                if found is not None:
                    slots, ready = more, found
        self._active = [self._running[slot] for slot in slots]
        return slots, ready

    def _together(self, slot: int, others: Sequence[int]) -> "_Ready | None":
        """What a slot can run with, together with others; None: not in this run."""
        slots = [*others, slot]
        needed = self._needed(slots)
        if not self._may_need(slot, needed):
            return None
        if not others:
            return self._found(slot, needed, slots)
        ready = self._known(needed, slots)
        if ready is None:  # they go on in turn: that one program is for all is not urgent
            wanted = self._wanted(needed, slots)
            assert self._compiler is not None
            self._compiler.begin(self._decoder.programs.tasks(wanted.length, wanted.variant))
        return ready

    def _is_alone(self, slots: Sequence[int] | None, ready: "_Ready") -> bool:
        """Whether only one request generates, and the program for that is in memory."""
        programs = self._decoder.programs
        if slots is None or len(slots) != 1 or ready.variant is None or not programs.gains_alone:
            return False
        assert self._compiler is not None
        task = programs.generator(ready.variant, ready.length, is_alone=True)
        return self._compiler.has_optional(task)

    def _needed(self, slots: Sequence[int]) -> int:
        """For how many tokens these need caches, and the others that rest."""
        lengths = (len(self._decoder.ids(slot)) for slot in slots)
        return min(max(self._decoder.held, *lengths, 1), self._decoder.capacity)

    def _wanted(self, needed: int, slots: Sequence[int]) -> "_Ready":
        variant = joined([self._decoder.variant(i) for i in slots]) if slots else None
        return _Ready(self._decoder.programs.length(needed), variant)

    def _known(self, needed: int, slots: Sequence[int], step: int | None = None) -> "_Ready | None":
        """The least that is in memory; None: nothing is. Arguments as `_found`."""
        return self._in_memory(self._wanted(needed, slots), step)

    def _in_memory(self, wanted: "_Ready", step: int | None = None) -> "_Ready | None":
        assert self._compiler is not None
        last = self._ready
        for ready in (wanted, *([] if last is None or not last.covers(wanted) else [last])):
            if self._compiler.has(self._decoder.programs.tasks(ready.length, ready.variant, step)):
                return ready
        return None

    def _found(
        self, slot: int, needed: int, slots: Sequence[int], step: int | None = None
    ) -> "_Ready | None":
        """The least that is ready; None: it is being compiled, or has failed.

        Args:
            slot: of the request that needs it.
            needed: for how many tokens.
            slots: of those that generate.
            step: that reads the prompt.
        """
        if self._compiler is None:
            return None
        if (known := self._known(needed, slots, step)) is not None:
            return known
        programs, wanted = self._decoder.programs, self._wanted(needed, slots)
        tasks = programs.tasks(wanted.length, wanted.variant, step)
        try:
            return wanted if self._compiler.is_ready(tasks) else None
        except LengthError:
            programs.exclude(wanted.length)
            return self._found(slot, needed, slots, step)
        except Exception as error:  # others go on
            running = self._running[slot]
            running.error, running.finish_reason = str(error), "cancelled"
            self._failed.append(running)
            self._end(slot)
            return None

    def _use(self, ready: "_Ready | None") -> None:
        if ready is not None:
            self._ready = ready
            self._decoder.programs.least = ready.length


@dataclasses.dataclass(frozen=True)
class _Ready:
    """The programs of caches of a length, for prompts and for a variant, are in memory."""

    length: int
    variant: Variant | None

    def covers(self, other: "_Ready") -> bool:
        if self.length < other.length or (self.variant is None) > (other.variant is None):
            return False
        variants = [v for v in (self.variant, other.variant) if v is not None]
        return not variants or joined(variants) == self.variant


def _overlap(tokens: Sequence[int], stops: Sequence[Sequence[int]]) -> int:
    """How many tokens at the end may begin a stop sequence."""
    sizes = (n for stop in stops for n in range(1, len(stop)) if [*tokens[-n:]] == [*stop[:n]])
    return max(sizes, default=0)
