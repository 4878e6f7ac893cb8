"""What a scheduler generates: a prompt, and how to continue it."""

import dataclasses
from collections.abc import Hashable, Sequence

from jaxdelegate.lm.adapters import Adapter
from jaxdelegate.lm.constraints import Constraint
from jaxdelegate.lm.sampling_params import SamplingParams, Variant
from jaxdelegate.lm.stops import StopSequences
from jaxdelegate.lm.thinking import ThinkingBudget


@dataclasses.dataclass(frozen=True)
class Request:
    """A prompt, and how to continue it.

    Attributes:
        ids: the tokens of the prompt.
        limit: the most tokens of the answer; None: as many as the model's limit leaves.
        params: how tokens are chosen.
        has_scores: whether the answer has log probabilities.
        constraint: which tokens may come next; it decides where the answer ends.
        has_hidden_state: whether the answer has the hidden state before its last token.
        top: how many of the most likely tokens each token of the answer has, with their log
            probabilities; at most `MOST_TOP`.
        prompt_top: the same for the tokens of the prompt, which are scored then, each by a decode
            step, except for a beginning whose scores are known; None: they are not.
        owner: only requests of the same one reuse each other's cache entries. Otherwise a client
            could learn the prompts of others, by the count of tokens or by the time.
        stops: where the answer ends; None: as the bundle declares. Programs stop at the bundle's
            tokens even so: `params` must keep them away where the answer does not end there.
        adapter: whose factors the prompt and the answer are computed with; None: the model alone.
            Only requests of the same one reuse each other's cache entries.
        thinking: ends reasoning that gets too long; None: nothing does, or the constraint.
    """

    ids: Sequence[int]
    limit: int | None
    params: SamplingParams
    has_scores: bool = False
    constraint: Constraint | None = None
    has_hidden_state: bool = False
    owner: Hashable = None
    stops: StopSequences | None = None
    top: int = 0
    prompt_top: int | None = None
    thinking: ThinkingBudget | None = None
    adapter: Adapter | None = None

    @property
    def most_steps(self) -> int | None:
        """The most tokens of a run, after which others may be allowed; None: any number."""
        if self.constraint is not None:
            return 1
        return None if self.thinking is None else self.thinking.room

    def variant(self, vocabulary: int) -> Variant:
        """The program that generates its tokens."""
        return self.params.variant(
            vocabulary,
            self.has_scores,
            self.constraint is not None or self.thinking is not None,
            self.has_hidden_state,
            has_top=self.top > 0,
        )
