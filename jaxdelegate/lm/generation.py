"""Answers to many prompts: each slot gets the next prompt when its answer ends."""

import dataclasses
from collections.abc import Sequence

from jaxdelegate.lm.choices import Rules
from jaxdelegate.lm.completions import Completion, FinishReason
from jaxdelegate.lm.decoder import Decoder
from jaxdelegate.lm.host import Host


@dataclasses.dataclass(frozen=True)
class Request:
    """A prompt, and how to continue it."""

    ids: Sequence[int]
    limit: int
    rules: Rules
    has_scores: bool = False


@dataclasses.dataclass
class _Running:
    number: int
    request: Request
    reused: int
    tokens: list[int] = dataclasses.field(default_factory=list)
    scores: list[float] = dataclasses.field(default_factory=list)


def generated(host: Host, decoder: Decoder, requests: Sequence[Request]) -> list[Completion]:
    """Answer all requests, as many at once as the decoder has slots."""
    waiting = list(enumerate(requests))[::-1]
    running: dict[int, _Running] = {}
    found: dict[int, Completion] = {}
    if requests:
        first = requests[0]
        longest = max(len(request.ids) for request in requests[: decoder.slots])
        decoder.prepare(longest, first.rules, has_scores=first.has_scores)
    while waiting or running:
        for slot in range(decoder.slots):
            if slot not in running and waiting:
                number, request = waiting.pop()
                reused = decoder.read(slot, request.ids)
                decoder.begin(slot, request.limit, request.rules, has_scores=request.has_scores)
                running[slot] = _Running(number, request, reused)
        for slot, piece in decoder.run().items():
            own = running[slot]
            before = len(own.tokens)
            own.tokens += piece.tokens
            own.scores += piece.scores
            stop = host.stop_in(own.tokens, before)
            if stop is not None or piece.ends:
                decoder.rest(slot)
                found[own.number] = _completion(host, own, stop)
                del running[slot]
    return [found[number] for number in range(len(requests))]


def _completion(host: Host, own: _Running, stop: range | None) -> Completion:
    count = len(own.tokens) if stop is None else stop.start
    reason: FinishReason = "length" if stop is None else "stop"
    tokens = own.tokens[:count]
    return Completion(
        host.tokenizer.decode(tokens),
        tokens,
        own.scores[:count],
        reason,
        len(own.request.ids),
        own.reused,
    )
