"""What the prompt of a slot can take from other slots: cache entries that they have, or soon will.

Only slots of the same owner and adapter share: see `Request.owner`.
"""

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from jaxdelegate.lm.kv_cache import ReadStep, common_length
from jaxdelegate.lm.model_runner import ModelRunner, PrefillStep
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.scores import TokenScore


class Share(NamedTuple):
    """What a prompt takes from another slot.

    Attributes:
        source: the slot.
        entries: how many.
        wait: how many tokens the source processes until then; 0: it has them.
        rest: how many the prompt's own steps process then.
    """

    source: int
    entries: int
    wait: int
    rest: int


# Clients ask for five at most where they score many prompts; twenty take 2 KB for each token.
_MOST_KEPT_TOP = 5
_Scored = tuple[Sequence[int], Sequence[TokenScore]]  # tokens, and the scores of all but the first


class _Source(NamedTuple):
    slot: int
    request: Request | None  # that joined it last
    common: int  # how many tokens at the beginning are equal


class SharedPrefixes:
    """Knows whose each slot is, and finds for a prompt the slot that has most of it."""

    def __init__(
        self, runner: ModelRunner, prefilling: Mapping[int, Sequence[PrefillStep]]
    ) -> None:
        """`prefilling`: the steps that are left of each prompt, in the order of joining."""
        self._runner, self._prefilling = runner, prefilling
        self._requests: list[Request | None] = [None] * runner.slots  # that joined last
        self._scored: list[_Scored] = [((), ())] * runner.slots  # by the requests that joined last
        self._sources: dict[int, _Source | None] = {}  # of the prompts that are prefilled
        self._rest = functools.lru_cache(1024)(self._steps_after)

    def _steps_after(self, tokens: int, start: int) -> int:
        return sum(self._runner.specs.plan(tokens - start, start))

    # ---- slots

    def join(self, request: Request, free: Iterable[int]) -> tuple[int, int]:
        """Choose a slot for a request; returns it, and how many of the tokens its cache has.

        It is one that has the whole prompt, or nothing else but its beginning. Otherwise it is the
        first free one: later prompts may continue what the others have.
        """
        had = {slot: self._had(slot, request) for slot in free}
        whole = [slot for slot, count in had.items() if count and self._is_kept(slot, request)]
        whole += [slot for slot, count in had.items() if count and count == len(request.ids) - 1]
        slot = max(whole, key=had.__getitem__, default=next(iter(had)))
        if not self._is_owned(slot, request):
            self._runner.clear(slot)
            self._scored[slot] = (), ()
        self._runner.adapters.set(slot, request.adapter)
        self._requests[slot] = request
        self._sources.pop(slot, None)
        return slot, had[slot]

    def _had(self, slot: int, request: Request) -> int:
        if request.prompt_top is not None:
            return self._known(slot, request)
        if not self._is_owned(slot, request):
            return 0
        return self._runner.cache.prefix(slot, request.ids)

    def _is_kept(self, slot: int, request: Request) -> bool:
        ids = self._runner.ids(slot)[:-1]
        return common_length(ids, request.ids[:-1]) == len(ids)

    def _is_owned(self, slot: int, request: Request) -> bool:
        last = self._requests[slot]  # None: the runner had its entries before
        is_same = self._runner.adapters.of(slot) is request.adapter
        return is_same and (None if last is None else last.owner) == request.owner

    def end(self, slot: int) -> None:
        """The request of a slot has ended: if it was not prefilled, others wait for it in vain."""
        gone = [s for s, source in self._sources.items() if source and source.slot == slot]
        for waiting in (slot, *gone):
            self._sources.pop(waiting, None)

    # ---- scores

    def scored(self, slot: int, request: Request, scores: Sequence[TokenScore]) -> None:
        """`scores` are those of a slot's prompt, and grow. Those with long tops are not kept."""
        is_kept = (request.prompt_top or 0) <= _MOST_KEPT_TOP
        self._scored[slot] = (request.ids, scores) if is_kept else ((), ())

    def scores(self, request: Request, slots: Iterable[int]) -> tuple[int, Sequence[TokenScore]]:
        """Which of some slots has the entries of most tokens whose scores are known; and these."""
        known = {slot: self._known(slot, request) for slot in slots}
        slot = max(known, key=known.__getitem__)
        scores, most = self._scored[slot][1][: known[slot]], request.prompt_top or 0
        return slot, [score._replace(top=score.top[:most]) for score in scores]

    def _known(self, slot: int, request: Request) -> int:
        ids, scores = self._scored[slot]
        has_tops = bool(scores) and len(scores[0].top) >= (request.prompt_top or 0)
        if not has_tops or not self._is_owned(slot, request):
            return 0
        count = min(common_length(ids, request.ids) - 1, len(scores))
        return min(count, self._runner.cache.prefix(slot, request.ids)) if count > 0 else 0

    # ---- what a prompt can take

    def share(self, slot: int, running: Collection[int]) -> Share | None:
        """What the prompt of a slot takes from another one; None: it is sooner done alone.

        `running`: the slots whose prefill goes on; it waits for those that joined before it.
        """
        request, steps = self._requests[slot], self._prefilling[slot]
        source = None if request is None or not steps else self._source(slot, request)
        if source is None or request is None:
            return None
        alone = sum(step.length for step in steps)
        is_later = source.slot in running and self._goes_first(source.slot, slot)
        for share in self._shares(source, request, is_later=is_later):
            if share.rest < alone and share.wait + share.rest <= alone:
                return share
        return None

    def _goes_first(self, other: int, slot: int) -> bool:
        order = [*self._prefilling]
        return other in order[: order.index(slot)]

    def _source(self, slot: int, request: Request) -> _Source | None:
        known = self._sources.get(slot)
        if slot not in self._sources or (known and self._requests[known.slot] is not known.request):
            self._sources[slot] = self._found(slot, request)
        return self._sources[slot]

    def _found(self, slot: int, request: Request) -> _Source | None:
        """The slot that will have most of a prompt; of several, one that has most now."""
        found = [
            _Source(other, self._requests[other], self._common(other, request))
            for other in range(self._runner.slots)
            if other != slot and self._is_owned(other, request)
        ]

        def most(source: _Source) -> tuple[int, int]:
            is_later = self._goes_first(source.slot, slot)
            counts = self._counts(source, len(request.ids) - 1, is_later=is_later)
            return max(count for count, _ in counts), counts[0][0]

        return max(found, key=most, default=None)

    def _common(self, slot: int, request: Request) -> int:
        steps = self._prefilling.get(slot)
        ids = steps[-1].ids if steps else self._runner.ids(slot)
        return common_length(ids[:-1], request.ids[:-1])

    def _shares(self, source: _Source, request: Request, *, is_later: bool) -> list[Share]:
        """The most that a source has or, if `is_later`, will have; then what it has now."""
        tokens = len(request.ids) - 1
        counts = self._counts(source, tokens, is_later=is_later)
        best = max(counts, key=lambda pair: pair[0])  # the first one of several
        return [
            Share(source.slot, count, wait, self._rest(tokens, count))
            for count, wait in (best, counts[0])
        ]

    def _counts(self, source: _Source, tokens: int, *, is_later: bool) -> list[tuple[int, int]]:
        """How many entries can be copied now and, if `is_later`, after each of its steps.

        With how many tokens the source processes until then. `tokens`: that a prompt processes.
        """
        cache, slot, wait = self._runner.cache, source.slot, 0
        common = min(source.common, max(len(cache.ids(slot)) - 1, 0))
        counts, more = [(cache.reusable(slot, common, tokens), 0)], list[ReadStep]()
        for step in self._prefilling.get(slot, ()) if is_later else ():
            if common == source.common:
                break
            more.append(ReadStep(step.length, len(step.ids) - 1))
            wait, common = wait + step.length, min(source.common, more[-1].end)
            counts.append((cache.reusable(slot, common, tokens, more), wait))
        return counts
