"""The scheduler of requests: each joins when a slot is free, and leaves when it ends."""

import collections
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from jaxdelegate.lm.background_compiler import BackgroundCompiler
from jaxdelegate.lm.completions import FinishReason
from jaxdelegate.lm.constraints import Constraint
from jaxdelegate.lm.model_runner import ModelRunner, PrefillStep, StepOutput, grouped_steps
from jaxdelegate.lm.program_spec import MAX_DECODE_STEPS, SCORE
from jaxdelegate.lm.ready_programs import ProgramSet, ReadyPrograms
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.scores import TokenScore, Top
from jaxdelegate.lm.shared_prefixes import Share, SharedPrefixes
from jaxdelegate.lm.stops import StopSequences
from jaxdelegate.optional import is_failure
from jaxdelegate.text import printable

T = TypeVar("T")

_LONGEST_S = 0.05  # between two runs whose tokens someone waits for
_MOST_GROWTH = 8  # of a run's steps at once: the last run may have ended early
_LEAST_COPIED = 4  # tokens: a copy takes about as long as scoring a few
_LONGEST_CONSTRAINED_S = 0.005  # a constrained request has one token in each: it waits for others


@dataclasses.dataclass(eq=False)
class ActiveRequest:
    """A request in a slot.

    Attributes:
        request: its prompt, and how to continue it.
        slot: in which its cache entries are.
        reused: how many tokens of the prompt the slot's cache had, or got from another slot.
        prefilled: how many it has.
        constraint: the state of the request's, after `tokens`.
        tokens: the answer so far, without the stop.
        scores: the tokens' log probabilities, if requested.
        settled: how many of the tokens will stay: the next ones cannot make them part of a stop.
        finish_reason: why it has ended; None: it goes on.
        error: why it has ended too early.
        refusal: why its constraint gave up; the answer is lost.
        hidden_state: float32, before the last token, if requested.
        tops: the most likely tokens at the place of each of `tokens`, if requested.
        prompt_scores: of the prompt's tokens after the first one, if requested.
    """

    request: Request
    slot: int
    reused: int
    prefilled: int
    constraint: Constraint | None = None
    tokens: list[int] = dataclasses.field(default_factory=list)
    scores: list[float] = dataclasses.field(default_factory=list)
    settled: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None
    refusal: str | None = None
    hidden_state: np.ndarray | None = None
    tops: list[Top] = dataclasses.field(default_factory=list)
    prompt_scores: list[TokenScore] = dataclasses.field(default_factory=list)


class Pace:
    """How many decode steps a run has: one at first, then as many as the time for a run allows.

    Longer runs cost less for each token, but those who join or read the text wait for them.
    """

    def __init__(self, longest_s: float) -> None:
        """`longest_s`: the time of a run, at most about that."""
        self.steps, self._longest_s = 1, longest_s

    def took(self, seconds: float) -> None:
        """Choose the next number by the time that the last run took."""
        fitting = int(self.steps * self._longest_s / max(seconds, 1e-9))
        self.steps = max(1, min(fitting, _MOST_GROWTH * self.steps, MAX_DECODE_STEPS))


def _new_paces() -> dict[bool, Pace]:
    """By whether a request has a constraint."""
    return {False: Pace(_LONGEST_S), True: Pace(_LONGEST_CONSTRAINED_S)}


class Scheduler:
    """Decides which requests in a runner's slots run next. Not for several threads at once."""

    def __init__(
        self,
        runner: ModelRunner,
        stops: StopSequences,
        compiler: BackgroundCompiler | None = None,
        *,
        is_streamed: bool = True,
    ) -> None:
        """No requests.

        Args:
            runner: of programs.
            stops: where answers end.
            compiler: compiles while those requests run that need nothing new; None: all wait.
            is_streamed: someone waits for each token, so runs are short, and prompts are prefilled
                between them. False: only the last token counts.
        """
        self._runner, self._stops, self._is_streamed = runner, stops, is_streamed
        self._programs = None if compiler is None else ReadyPrograms(runner, compiler)
        self._running: dict[int, ActiveRequest] = {}  # the last run's requests are the last
        self._prefilling: dict[int, list[PrefillStep]] = {}  # that are left; in order of joining
        self._prefixes = SharedPrefixes(runner, self._prefilling)
        self._waiting: dict[int, int] = {}  # prompts, and the slots of which they will copy a part
        self._active: Sequence[ActiveRequest] = ()  # in the last run
        self._scoring: list[int] = []  # the slots whose prompts are being scored
        self._ended: list[ActiveRequest] = []  # since then, without more tokens
        self._passed = 0  # programs that scored others while short ends of prompts waited
        self._is_first = False
        self._paces, self._score_paces = _new_paces(), _new_paces()
        self._free = collections.deque(range(runner.slots))  # the one used last is the last
        self.is_held = False  # nothing ran: all requests wait for programs

    @property
    def slots(self) -> int:
        """How many requests it has at once."""
        return self._runner.slots

    @property
    def free(self) -> int:
        """How many requests may join."""
        return len(self._free)

    @property
    def waiting(self) -> int:
        """How many requests in slots cannot run, because their programs are being compiled."""
        return len(self._without_programs)

    @property
    def _without_programs(self) -> set[int]:
        return set() if self._programs is None else self._programs.waiting & self._running.keys()

    @property
    def use(self) -> float:
        """The part of all cache entries that the requests which can run use; 1: all."""
        running = self._running.keys() - self._without_programs
        tokens = sum(len(self._runner.ids(slot)) for slot in running)
        return tokens / (self.slots * self._runner.graph.capacity)

    def is_ready(self, request: Request) -> bool:
        """Whether a request that joins can run at once; see `ReadyPrograms.is_ready`."""
        return self._programs is None or self._programs.is_ready(request)

    def join(self, request: Request) -> ActiveRequest:
        """Put a request into a free slot; see `SharedPrefixes.join`.

        Raises:
            GenerationError: as `LanguageGraph.check`.
        """
        has_answer = not request.has_hidden_state and request.limit != 0
        self._runner.graph.check(request.ids, has_answer=has_answer)
        slot, reused = self._prefixes.join(request, self._free)
        self._free.remove(slot)
        constraint = None if request.constraint is None else request.constraint.copy()
        if request.thinking is not None:
            request = dataclasses.replace(request, thinking=request.thinking.copy())
        active = ActiveRequest(request, slot, reused, reused, constraint)
        self._running[slot] = active
        if request.prompt_top is None:
            self._prefilling[slot] = self._runner.prefill_steps(slot, request.ids)
        else:
            self._begin_scores(active)
        return active

    def _begin_scores(self, active: ActiveRequest) -> None:
        """Score a prompt after the beginning of which its slot has entries and scores."""
        slot, request = active.slot, active.request
        _, known = self._prefixes.scores(request, [slot])
        active.prompt_scores += known
        self._prefixes.scored(slot, request, active.prompt_scores)
        self._runner.begin_scores(slot, request.ids, len(known))
        self._scoring.append(slot)

    def leave(self, active: ActiveRequest) -> None:
        """Free the slot of a request that has not ended."""
        if self._running.get(active.slot) is active:
            active.finish_reason = "cancelled"
            self._end(active.slot)

    def step(self) -> list[ActiveRequest]:
        """Prefill one step of a prompt, score a part of others, and decode the whole ones.

        Where answers are not streamed, prompts are prefilled whole first.

        Returns:
            The requests that got tokens or have ended.
        """
        while self.prefill() and not (self._is_streamed or self.is_held):
            pass
        is_constrained = any(r.request.constraint for r in self._running.values())
        has_scored = self._timed(self._score_paces[is_constrained], self.score)
        if has_scored and self._is_worth_waiting:
            return []
        return self._timed(self._paces[is_constrained], self.decode)

    @property
    def _is_worth_waiting(self) -> bool:
        """Whether all that can be decoded is one token of prompts that were scored.

        They wait for other prompts that are scored, because their run takes no longer with these.
        """
        whole = [self._running[slot].request for slot in self._prefilled]
        is_more = bool(self._scoring) and not self._ended
        return is_more and all(r.limit == 1 and r.prompt_top is not None for r in whole)

    def _timed(self, pace: Pace, run: Callable[[int], T]) -> T:
        """Run as many steps as a pace says; where answers are not streamed, the most."""
        begin = time.monotonic()
        found = run(pace.steps if self._is_streamed else MAX_DECODE_STEPS)
        if found:
            pace.took(time.monotonic() - begin)
        return found

    # ---- prefill

    def prefill(self) -> bool:
        """Run prefill steps of a prompt, or of several; whether there is more to prefill.

        Every second run is for the prompt that joined first, the others are for the one of which
        the least is left: a short prompt does not wait for a long one, and a long one gets on.
        A prompt whose beginning another slot has, or is about to have, copies that.
        """
        self.is_held = bool(self._running)
        while ready := [slot for slot in list(self._prefilling) if self._can_prefill(slot)]:
            slots = self._copy_prefixes(ready)
            self._is_first = not self._is_first
            slot = slots[0] if self._is_first else min(slots, key=self._left_to_prefill)
            steps = self._prefill(slot, slots)
            for each in steps or (slot,):
                self._end_prefill_steps(each, steps[each])
            if steps:
                self._copy_prefixes(ready)  # before the next step, which may overwrite entries
                self.is_held = False
                break
        return bool(self._prefilling)

    def _copy_prefixes(self, ready: Sequence[int]) -> list[int]:
        """Copy what other slots have; returns those of the `ready` ones that wait for none."""
        self._waiting.clear()
        slots = [slot for slot in ready if slot in self._prefilling]
        for slot in slots:
            share = self._prefixes.share(slot, slots)
            if share is not None and share.wait:
                self._waiting[slot] = share.source
            elif share is not None:
                self._copy(self._running[slot], share)
        return [slot for slot in slots if slot not in self._waiting]

    def _copy(self, active: ActiveRequest, share: Share) -> None:
        slot, read = active.slot, active.prefilled - active.reused
        self._runner.copy(share.source, slot, share.entries)
        active.reused, active.prefilled = share.entries - read, share.entries
        self._prefilling[slot] = self._runner.prefill_steps(slot, active.request.ids)

    def _prefill(self, slot: int, others: Sequence[int]) -> collections.Counter[int]:
        """Run the next steps of a slot, and those of others in the same program; how many of each.

        At least half of the program's rows are used.
        """
        if not self._prefilling[slot]:
            return collections.Counter()
        programs, step = self._readiness(slot), self._prefilling[slot][0]
        self._use(programs)
        longest = self._runner.length_for(step) if programs is None else programs.length
        prompts = self._runner.specs.prompts(step.length)
        slots = [slot, *(other for other in others if other != slot)]
        steps = self._fitting(step.length, longest, slots, prompts)
        groups = len(grouped_steps(steps, prompts))
        is_used = groups < len(steps) and 2 * len(steps) >= prompts * groups
        if prompts > 1 and not (is_used and self._has_prompts(step.length, programs)):
            steps = self._fitting(step.length, longest, [slot], 1)
        self._runner.run_prefill(steps)
        return collections.Counter(step.slot for step in steps)

    def _fitting(
        self, length: int, longest: int, slots: Sequence[int], prompts: int
    ) -> list[PrefillStep]:
        """The next steps of some slots that one program runs by steps of a length.

        Args:
            length: of the program's steps; shorter ones fill rows that would be empty.
            longest: the length of its caches.
            slots: the most important one first.
            prompts: how many it reads at once.
        """
        most, found = self._runner.specs.steps(length, prompts), list[PrefillStep]()
        for slot in slots:
            for step in self._prefilling[slot]:
                more = [*found, step._replace(length=length)]
                count = most if step.length == length else len(grouped_steps(found, prompts))
                fits = step.length <= length and more[-1].end <= longest
                if not fits or len(grouped_steps(more, prompts)) > count:
                    break
                found = more
        return found

    def _has_prompts(self, length: int, programs: ProgramSet | None) -> bool:
        if self._programs is None or programs is None:
            return True
        return self._programs.has_prompts(length, programs)

    def _end_prefill_steps(self, slot: int, count: int) -> None:
        active = self._running[slot]
        del self._prefilling[slot][:count]
        if not self._prefilling[slot]:
            del self._prefilling[slot]
            self._begin(slot)
        active.prefilled = len(self._runner.ids(slot)) - 1

    def _can_prefill(self, slot: int) -> bool:
        has_all = self._programs is None or not self._prefilling[slot]
        return has_all or self._readiness(slot) is not None

    def _readiness(self, slot: int) -> ProgramSet | None:
        """What the next step of a prompt runs with; None: it is not ready, or all is."""
        steps = self._prefilling[slot]
        return self._programs_of(steps[0]) if steps else None

    def _programs_of(self, step: PrefillStep) -> ProgramSet | None:
        if self._programs is None:
            return None
        with self._failing(self._programs):
            return self._programs.for_prefill(step, self._prefilled, self._decoding)

    @property
    def _decoding(self) -> list[int]:
        return [active.slot for active in self._active if active.finish_reason is None]

    def _left_to_prefill(self, slot: int) -> int:
        """How many tokens are left of a prompt, or of one that waits for it."""
        waiting = [other for other, source in self._waiting.items() if source == slot]
        prompts = [self._running[each] for each in (slot, *waiting)]
        return min(len(active.request.ids) - 1 - active.prefilled for active in prompts)

    def _begin(self, slot: int) -> None:
        """The prompt of a slot is whole."""
        active = self._running[slot]
        self._runner.begin(slot, active.request)
        if self._runner.is_resting(slot):  # only the prompt was wanted
            active.finish_reason = "length"
            self._ended.append(active)
            self._end(slot)

    # ---- score

    def score(self, steps: int = MAX_DECODE_STEPS) -> bool:
        """Score tokens of prompts; whether it did.

        Up to `steps` of each, all at once; or, where a program scores many tokens of one slot,
        those of the first prompt: later ones copy what they share with it.
        """
        slots = self._scored_next(self._can_score())
        parts, counts = {}, {}
        for slot in slots:
            request, done = self._running[slot].request, len(self._runner.ids(slot))
            parts[slot] = request.ids[done : done + self._scored_tokens(slots, steps)]
            counts[slot] = request.prompt_top or 0
        has_run = any(parts.values())
        if has_run:
            self.is_held = False
            for slot, scores in self._runner.score_parts(parts, counts).items():
                self._running[slot].prompt_scores += scores
        for slot in slots:
            active = self._running[slot]
            active.prefilled = len(self._runner.ids(slot)) - 1
            if active.prefilled == len(active.request.ids) - 1:
                self._scoring.remove(slot)
                self._begin(slot)
        return has_run

    def _copy_scores(self, active: ActiveRequest) -> None:
        """Copy what another slot has of a prompt that is scored, if it has more of it."""
        source, known = self._prefixes.scores(active.request, range(self.slots))
        more = len(known) - len(active.prompt_scores)
        if more >= _LEAST_COPIED:
            self._runner.copy(source, active.slot, len(known))
            self._runner.begin_scores(active.slot, active.request.ids, len(known))
            active.prompt_scores += known[-more:]
            active.reused += more

    def _scored_tokens(self, slots: Sequence[int], steps: int) -> int:
        """How many tokens of each of these slots the next program scores, at most."""
        left, specs = self._left_to_score(slots[0]), self._runner.specs
        return specs.score_plan(left)[0] if specs.scored and len(slots) == 1 and left else steps

    def _left_to_score(self, slot: int) -> int:
        return len(self._running[slot].request.ids) - len(self._runner.ids(slot))

    def _scored_next(self, slots: Sequence[int]) -> Sequence[int]:
        """Those of some slots that the next program scores, with what they copy from others.

        Where it scores many tokens of one slot, short ends of prompts come last, and together; but
        not after more programs than there are slots.
        """
        scored, ends = self._runner.specs.scored, list[int]()
        for slot in slots:
            active, left = self._running[slot], self._left_to_score(slot)
            is_at_begin = len(self._runner.ids(slot)) - 1 == active.reused
            if is_at_begin and left > min(scored, default=0):
                self._copy_scores(active)
                left = self._left_to_score(slot)
            if left <= min(scored, default=left):
                ends.append(slot)
            elif self._passed < self.slots or not ends:
                self._passed += bool(ends)
                return [slot]
        self._passed = 0
        if len(ends) < 2:
            return ends
        lengths = [self._left_to_score(slot) for slot in ends]
        gains = not self._runner.gains_one_by_one(lengths)
        return ends if gains and self._scores_together else ends[:1]

    @property
    def _scores_together(self) -> bool:
        scored, programs = self._runner.specs.scored, self._programs
        return not scored or programs is None or programs.scores_together()

    def _can_score(self) -> list[int]:
        """The slots whose prompts are scored and have their program, which runs next."""
        if self._programs is None:
            return list(self._scoring)
        # That of the whole prompt's length scores all parts: fewer programs are compiled.
        steps = [self._score_step(slot) for slot in self._scoring]
        with self._failing(self._programs):
            ready = self._programs.for_scores(steps, self._prefilled, self._decoding)
        if ready:
            self._use(max(ready.values(), key=lambda programs: programs.length))
        return list(ready)

    def _score_step(self, slot: int) -> PrefillStep:
        ids = self._running[slot].request.ids
        return PrefillStep(slot, ids, len(ids), SCORE)

    # ---- decode

    def decode(self, steps: int = MAX_DECODE_STEPS) -> list[ActiveRequest]:
        """Run up to `steps` decode steps; returns the requests that got tokens or have ended."""
        slots: Sequence[int] = self._prefilled
        programs = None
        if self._programs is not None:
            with self._failing(self._programs):
                slots, programs = self._programs.for_decode(slots)
        self._active = [self._running[slot] for slot in slots]
        self._use(programs)
        allowed = self._allowed(self._active)
        slots = [slot for slot in slots if slot in self._running]
        changed, self._ended = self._ended, []
        outputs = self._runner.decode(
            steps,
            slots,
            None if programs is None else programs.variant,
            allowed=allowed,
            is_alone=self._is_alone(slots, programs),
        )
        for slot, output in outputs.items():
            self.is_held = False
            self._running[slot] = active = self._running.pop(slot)
            self._take(active, output)
            changed.append(active)
            if active.finish_reason is not None:
                self._end(slot)
        return changed

    @property
    def _prefilled(self) -> list[int]:
        return [s for s in self._running if s not in self._prefilling and s not in self._scoring]

    def _is_alone(self, slots: Sequence[int], programs: ProgramSet | None) -> bool:
        if self._programs is None or programs is None:
            return False
        return self._programs.is_alone(slots, programs)

    def _allowed(self, running: Sequence[ActiveRequest]) -> dict[int, np.ndarray]:
        allowed = {}
        for active in running:
            constraint = active.constraint
            if active.request.thinking is not None:
                allowed[active.slot] = active.request.thinking.allowed()
            if constraint is None:
                continue
            with _refusals(active):
                words, active.refusal = constraint.allowed(), constraint.error
            if active.refusal is None:
                allowed[active.slot] = words
            else:
                self._fail(active)
        return allowed

    def _take(self, active: ActiveRequest, output: StepOutput) -> None:
        before = len(active.tokens)
        active.tokens += output.tokens
        active.scores += output.scores
        active.tops += output.tops
        active.hidden_state = output.hidden_state
        if active.constraint is not None:
            _advance(active, active.constraint, output)
            active.settled = len(active.tokens)
            return
        if active.request.thinking is not None:
            for token in output.tokens:
                active.request.thinking.add(token)
        stops = active.request.stops or self._stops
        stop = stops.find(active.tokens, before)
        if stop is not None:
            beyond = len(active.tokens) - stop.stop
            self._runner.truncate(active.slot, len(self._runner.ids(active.slot)) - beyond)
            _cut(active, stop.start)
            active.finish_reason = "stop"
        elif output.is_resting:
            active.finish_reason = "length"
        active.settled = len(active.tokens)
        if active.finish_reason is None:
            active.settled -= stops.overlap(active.tokens)

    # ---- ends

    @contextlib.contextmanager
    def _failing(self, programs: ReadyPrograms) -> Iterator[None]:
        """An error of compiling ends the request that needs the program; others go on."""
        yield
        errors, programs.errors = programs.errors, {}
        for slot, error in errors.items():
            self._running[slot].error = str(error)
            self._fail(self._running[slot])

    def _fail(self, active: ActiveRequest) -> None:
        active.finish_reason = "cancelled"
        self._ended.append(active)
        self._end(active.slot)

    def _end(self, slot: int) -> None:
        self._runner.rest(slot)
        if self._prefilling.pop(slot, None) is not None:
            self._prefixes.end(slot)
        if slot in self._scoring:
            self._scoring.remove(slot)
        del self._running[slot]
        self._free.append(slot)

    def _use(self, programs: ProgramSet | None) -> None:
        if self._programs is not None and programs is not None:
            self._programs.use(programs)


def _cut(active: ActiveRequest, count: int) -> None:
    """Keep the first `count` tokens of the answer."""
    del active.tokens[count:], active.scores[count:], active.tops[count:]


def _advance(active: ActiveRequest, constraint: Constraint, output: StepOutput) -> None:
    """Let a constraint have the last tokens, and say whether the answer ends with them."""
    is_match = False
    with _refusals(active):
        if output.is_stopped:
            is_match = constraint.is_match
            active.refusal = None if is_match else "the answer stops where it does not match"
            _cut(active, len(active.tokens) - 1)
        else:
            for token in output.tokens:
                constraint.add(token)
            is_match, active.refusal = constraint.is_complete, constraint.error
    if active.refusal is not None:
        active.finish_reason = "cancelled"
    elif is_match or output.is_resting:
        active.finish_reason = "stop" if is_match else "length"


@contextlib.contextmanager
def _refusals(active: ActiveRequest) -> Iterator[None]:
    """An error of a constraint ends its request alone."""
    try:
        yield
    except BaseException as error:
        if not is_failure(error):
            raise
        active.refusal = printable(repr(error))
