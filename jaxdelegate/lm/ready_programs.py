"""Which requests can run with the programs in memory, while others are compiled."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from jaxdelegate.lm.background_compiler import BackgroundCompiler
from jaxdelegate.lm.language_model import LengthError
from jaxdelegate.lm.model_runner import ModelRunner, PrefillStep
from jaxdelegate.lm.program_spec import SCORE
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.sampling_params import Variant, common_variant


@dataclasses.dataclass(frozen=True)
class ProgramSet:
    """The programs for caches of a length: to prefill and, with a variant, to decode."""

    length: int
    variant: Variant | None

    def covers(self, other: "ProgramSet") -> bool:
        """Whether they do what others do, too."""
        if self.length < other.length or (self.variant is None) > (other.variant is None):
            return False
        variants = [v for v in (self.variant, other.variant) if v is not None]
        if len({v.ngram for v in variants}) > 1:
            return False
        return not variants or common_variant(variants) == self.variant


class ReadyPrograms:
    """Finds programs for the slots of a runner, or begins to compile them.

    Attributes:
        errors: of compiling, by the slot that needs the program.
        waiting: the slots whose requests have no program yet.
    """

    def __init__(self, runner: ModelRunner, compiler: BackgroundCompiler) -> None:
        self._runner, self._compiler = runner, compiler
        self._last: ProgramSet | None = None
        self.errors: dict[int, Exception] = {}
        self.waiting = set[int]()
        self._general = runner.specs.general_variants()

    def use(self, programs: ProgramSet) -> None:
        """The next program is one of these."""
        self._last = programs
        self._runner.least_length = programs.length

    def is_ready(self, request: Request) -> bool:
        """Whether a request that joins can run at once.

        If not, what it needs is compiled, but only if nothing else is: callers choose who is next.
        """
        graph, specs = self._runner.graph, self._runner.specs
        is_scored = request.prompt_top is not None
        ends = () if is_scored else itertools.accumulate(specs.plan(len(request.ids) - 1))
        needed = max(self._entries, len(request.ids) - 1 + specs.written, *ends)
        length = specs.length(min(needed, graph.capacity))
        variant = None if request.limit == 0 else request.variant(graph.vocabulary)
        wanted, step = ProgramSet(length, variant), SCORE if is_scored else None
        return self._in_memory(wanted, step) is not None or self._compiler.begin(
            specs.needed(length, self._best(wanted).variant, step)
        )

    def for_prefill(
        self,
        step: PrefillStep,
        prefilled: Sequence[int],
        decoding: Sequence[int],
    ) -> ProgramSet | None:
        """What the next step of a prompt runs with; None: it is not ready.

        Args:
            step: of the prompt; of the length `SCORE`: it is scored.
            prefilled: the slots whose prompts are whole.
            decoding: those of the last decode steps, which go on.
        """
        needed = max(step.end, self._entries)
        found = None
        if self._may_need(step.slot, needed, prefilled):
            found = self._ensure(step.slot, needed, decoding, step.length)
        (self.waiting.add if found is None else self.waiting.discard)(step.slot)
        return found

    def for_scores(
        self, steps: Sequence[PrefillStep], prefilled: Sequence[int], decoding: Sequence[int]
    ) -> dict[int, ProgramSet]:
        """What prompts are scored with, by the slots that can go on; arguments as `for_prefill`."""
        entries, by_length = self._entries, dict[int, ProgramSet]()
        found = {}
        for step in steps:
            length = self._runner.specs.length(max(step.end, entries))
            known = by_length.get(length) or self.for_prefill(step, prefilled, decoding)
            if known is not None:
                by_length[length] = found[step.slot] = known
        self.waiting -= found.keys()
        return found

    def scores_together(self) -> bool:
        """Whether the program that scores one token of each slot is in memory, for these caches."""
        spec = self._runner.specs.score(self._runner.least_length, has_top=True)
        return self._compiler.has_optional(spec)

    def has_prompts(self, length: int, programs: ProgramSet) -> bool:
        """Whether the program that reads several prompts by such steps is in memory."""
        specs = self._runner.specs
        spec = specs.prefill(length, programs.length, specs.prompts(length))
        return self._compiler.has_optional(spec)

    def for_decode(self, slots: Sequence[int]) -> tuple[Sequence[int], ProgramSet | None]:
        """The slots that can decode now, and with what.

        While there is no program for all of them, some run in turn, the first ones first.
        """
        self.waiting.difference_update(slots)
        all_ready = self._known(self._needed(slots), slots)
        if all_ready is not None:
            if self._is_stopgap(all_ready):
                wanted = self._wanted(self._needed(slots), slots)
                specs = self._runner.specs.needed(wanted.length, wanted.variant)
                self._compiler.begin(specs, is_urgent=False)
            return slots, all_ready
        running: list[int] = []
        ready = None
        for slot in slots:
            found = self._together(slot, running, slots)
            if found is not None:
                running, ready = [*running, slot], found
            elif not running:  # those that ran are the last ones
                self.waiting.add(slot)
        return running, ready

    def is_alone(self, slots: Sequence[int], programs: ProgramSet) -> bool:
        """Whether only one request decodes, and the program for that is in memory."""
        if len(slots) != 1 or programs.variant is None or not self._runner.gains_alone:
            return False
        if self._is_stopgap(programs):
            return False
        spec = self._runner.specs.decode(programs.variant, programs.length, is_alone=True)
        return self._compiler.has_optional(spec)

    def _is_stopgap(self, programs: ProgramSet) -> bool:
        """Whether the program does much that few requests need, and takes more time for it."""
        variant = programs.variant
        return variant is not None and variant.is_masked and variant in self._general

    def _together(
        self, slot: int, running: Sequence[int], others: Sequence[int]
    ) -> ProgramSet | None:
        """What a slot can run with, together with those that run; None: not in this run."""
        slots = [*running, slot]
        needed = self._needed(slots)
        if not self._may_need(slot, needed, others):
            return None
        if not running:
            return self._ensure(slot, needed, slots)
        ready = self._known(needed, slots)
        if ready is None:  # they run in turn: that one program is for all is not urgent
            wanted = self._best(self._wanted(needed, slots))
            self._compiler.begin(self._runner.specs.needed(wanted.length, wanted.variant))
        return ready

    def _may_need(self, slot: int, needed: int, others: Sequence[int]) -> bool:
        """Whether the others have programs for caches of the length that a slot needs."""
        length = self._runner.specs.length
        if length(needed) == length(self._entries):
            return True
        others = [other for other in others if other != slot and other not in self.errors]
        return all(self._ensure(slot, needed, [other]) for other in others)

    def _needed(self, slots: Sequence[int]) -> int:
        """For how many tokens these need caches, and the others that rest."""
        lengths = (len(self._runner.ids(slot)) for slot in slots)
        return min(max(self._entries, *lengths, 1), self._runner.graph.capacity)

    @property
    def _entries(self) -> int:
        """For how many tokens caches have room when a drafter's step has run."""
        entries, written = self._runner.cache.entries, self._runner.specs.written
        return entries if written == 1 else min(entries + written, self._runner.graph.capacity)

    def _wanted(self, needed: int, slots: Sequence[int]) -> ProgramSet:
        variant = common_variant([self._runner.variant(i) for i in slots]) if slots else None
        return ProgramSet(self._runner.specs.length(needed), variant)

    def _known(
        self, needed: int, slots: Sequence[int], step: int | None = None
    ) -> ProgramSet | None:
        """The least that is in memory; None: nothing is. Arguments as `_ensure`."""
        return self._in_memory(self._wanted(needed, slots), step)

    def _in_memory(self, wanted: ProgramSet, step: int | None = None) -> ProgramSet | None:
        for programs in self._covering(wanted):
            specs = self._runner.specs.needed(programs.length, programs.variant, step)
            if self._compiler.has(specs):
                return programs
        return None

    def _covering(self, wanted: ProgramSet) -> Iterator[ProgramSet]:
        """What covers these programs, the best ones first."""
        yield wanted
        if self._last is not None and self._last.covers(wanted):
            yield self._last
        if wanted.variant is not None:
            generals = (ProgramSet(wanted.length, variant) for variant in self._general)
            yield from (programs for programs in generals if programs.covers(wanted))

    def _best(self, wanted: ProgramSet) -> ProgramSet:
        """What to compile for these: what is compiled anyway, if that covers them."""
        for programs in self._covering(wanted):
            variant = programs.variant
            if variant is not None and programs.length == wanted.length:
                spec = self._runner.specs.decode(variant, wanted.length)
                if self._compiler.is_planned(spec):
                    return programs
        return wanted

    def _ensure(
        self, slot: int, needed: int, slots: Sequence[int], step: int | None = None
    ) -> ProgramSet | None:
        """The least that is ready; None: it is being compiled, or has failed.

        Args:
            slot: of the request that needs it.
            needed: for how many tokens.
            slots: of those that decode.
            step: the tokens of a prefill step.
        """
        if (known := self._known(needed, slots, step)) is not None:
            return known
        specs, wanted = self._runner.specs, self._best(self._wanted(needed, slots))
        try:
            is_ready = self._compiler.is_ready(specs.needed(wanted.length, wanted.variant, step))
        except LengthError:
            specs.exclude(wanted.length)
            return self._ensure(slot, needed, slots, step)
        except Exception as error:  # other requests run
            self.errors[slot] = error
            return None
        return wanted if is_ready else None
