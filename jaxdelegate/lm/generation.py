"""Answers, hidden states and scores of many prompts, as many at once as a runner has slots."""

import collections
from collections.abc import Sequence

import numpy as np

from jaxdelegate.lm.adapters import Adapter
from jaxdelegate.lm.completions import Completion
from jaxdelegate.lm.model_runner import ModelRunner
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.sampling_params import SamplingParams
from jaxdelegate.lm.scheduler import ActiveRequest, Scheduler
from jaxdelegate.lm.text_processor import TextProcessor


def generate(
    text: TextProcessor, runner: ModelRunner, requests: Sequence[Request]
) -> list[Completion]:
    """The answers to requests, in their order."""
    return [_completion(text, active) for active in _finished(text, runner, requests)]


def hidden_states(
    text: TextProcessor, runner: ModelRunner, requests: Sequence[Request]
) -> np.ndarray:
    """Those that requests of `hidden_state_request` ask for, float32 [requests, size]."""
    states = [active.hidden_state for active in _finished(text, runner, requests)]
    return np.stack([state for state in states if state is not None])


def hidden_state_request(ids: Sequence[int], adapter: Adapter | None = None) -> Request:
    """For the hidden state of the last one of these tokens; one token is generated, too."""
    return Request(ids, 1, SamplingParams(), has_hidden_state=True, adapter=adapter)


def _finished(
    text: TextProcessor, runner: ModelRunner, requests: Sequence[Request]
) -> list[ActiveRequest]:
    if requests:
        longest = max(len(request.ids) for request in requests[: runner.slots])
        runner.load(longest, requests[0].variant(runner.graph.vocabulary))
    scheduler = Scheduler(runner, text.stops, is_streamed=False)
    waiting, joined = collections.deque(requests), list[ActiveRequest]()
    while waiting or scheduler.free < scheduler.slots:
        while waiting and scheduler.free:
            joined.append(scheduler.join(waiting.popleft()))
        scheduler.step()
    return joined


def score(
    runner: ModelRunner, texts: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> list[list[float]]:
    """The log probabilities of tokens that may follow prompts.

    Args:
        runner: which also prefills the prompts.
        texts: of each the prompt and what follows it.

    Raises:
        GenerationError: a prompt is empty, or too long with what follows it.
    """
    scores = list[list[float]]()
    for first in range(0, len(texts), runner.slots):
        some = texts[first : first + runner.slots]
        for slot, (prompt, _) in enumerate(some):
            runner.prefill(slot, prompt)
        scores += runner.score_each({i: ids for i, (_, ids) in enumerate(some)}).values()
    return scores


def _completion(text: TextProcessor, active: ActiveRequest) -> Completion:
    assert active.finish_reason is not None
    return Completion(
        text.detokenize(active.tokens),
        active.tokens,
        active.scores,
        active.finish_reason,
        len(active.request.ids),
        active.reused,
    )
