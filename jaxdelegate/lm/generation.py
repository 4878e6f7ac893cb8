"""Answers, hidden states and scores of many texts at once."""

import collections
from collections.abc import Sequence

import numpy as np

from jaxdelegate.lm.choices import Rules
from jaxdelegate.lm.completions import Completion
from jaxdelegate.lm.decoder import Decoder
from jaxdelegate.lm.host import Host
from jaxdelegate.lm.scheduler import ActiveRequest, Request, Scheduler


def generated(host: Host, decoder: Decoder, requests: Sequence[Request]) -> list[Completion]:
    """Answer all requests, as many at once as the decoder has slots."""
    return [_completion(host, running) for running in _answered(host, decoder, requests)]


def hidden_states(host: Host, decoder: Decoder, texts: Sequence[Sequence[int]]) -> np.ndarray:
    """The hidden states of the last tokens, float32 [texts, size]."""
    requests = [hidden_state_request(ids) for ids in texts]
    states = [running.hidden_state for running in _answered(host, decoder, requests)]
    return np.stack([state for state in states if state is not None])


def hidden_state_request(ids: Sequence[int]) -> Request:
    """For the hidden state of the last one of these tokens; one token is generated, too."""
    return Request(ids, 1, Rules(), has_hidden_state=True)


def _answered(host: Host, decoder: Decoder, requests: Sequence[Request]) -> list[ActiveRequest]:
    if requests:
        first = requests[0]
        longest = max(len(request.ids) for request in requests[: decoder.slots])
        decoder.prepare(longest, first.rules, has_scores=first.has_scores)
    scheduler, waiting, all_running = Scheduler(host, decoder), collections.deque(requests), []
    while waiting or scheduler.free < scheduler.slots:
        while waiting and scheduler.free:
            all_running.append(scheduler.join(waiting.popleft()))
        while scheduler.prefill():
            pass
        scheduler.run()
    return all_running


def scored(
    decoder: Decoder, texts: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> list[list[float]]:
    """The log probabilities of tokens that may follow prompts, as many at once as there are slots.

    Args:
        decoder: which also reads the prompts.
        texts: of each the prompt and what follows it.

    Raises:
        GenerationError: a prompt is empty, or too long with what follows it.
    """
    found = list[list[float]]()
    for first in range(0, len(texts), decoder.slots):
        some = texts[first : first + decoder.slots]
        for slot, (prompt, _) in enumerate(some):
            decoder.prefill(slot, prompt)
        found += decoder.score_each({i: ids for i, (_, ids) in enumerate(some)}).values()
    return found


def _completion(host: Host, running: ActiveRequest) -> Completion:
    assert running.finish_reason is not None
    return Completion(
        host.tokenizer.decode([*filter(host.tokenizer.has, running.tokens)]),
        running.tokens,
        running.scores,
        running.finish_reason,
        len(running.request.ids),
        running.reused,
    )
