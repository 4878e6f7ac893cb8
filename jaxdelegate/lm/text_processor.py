"""What a bundle declares about texts: tokens, templates, stops, and how tokens are chosen."""

import contextlib
import functools
from collections.abc import Iterator, Sequence

from jaxdelegate.bundles.bundle import Bundle
from jaxdelegate.bundles.metadata import Channel, LlmMetadata, Token
from jaxdelegate.bundles.tokenizers import Tokenizer
from jaxdelegate.errors import ModelError, OptionError
from jaxdelegate.lm.channels import ChannelReader
from jaxdelegate.lm.configs import (
    NoRepeatNgramConfig,
    RepetitionPenaltyConfig,
    SamplerConfig,
    SuppressTokensConfig,
)
from jaxdelegate.lm.constraints import Constraint, Constraints, Grammar
from jaxdelegate.lm.sampling_params import SamplingParams
from jaxdelegate.lm.stops import StopSequences
from jaxdelegate.lm.templates import AffixTemplate, JinjaTemplate, Renderer
from jaxdelegate.lm.thinking import AfterThought, ThinkingBudget
from jaxdelegate.lm.tool_calls import ToolSyntax, syntax_of
from jaxdelegate.text import printable


class TextProcessor:
    """Turns texts and messages into requests for a bundle's language model, and tokens into text.

    Values that the bundle declares are checked when they are first used; a ModelError names it.

    Attributes:
        metadata: what the bundle declares about its language model.
    """

    def __init__(self, bundle: Bundle, vocabulary: int) -> None:
        """`vocabulary`: how many tokens the model has."""
        self._bundle, self._vocabulary = bundle, vocabulary
        self.metadata: LlmMetadata = bundle.metadata

    # ---- tokens

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The bundle's tokenizer."""
        return self._bundle.tokenizer()

    def tokenize(self, text: str) -> list[int]:
        """The token ids of a text, without a start token."""
        return self.tokenizer.encode(text)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of token ids; those that the tokenizer does not have are left out."""
        return self.tokenizer.decode([i for i in token_ids if self.tokenizer.has(i)])

    def prompt_ids(self, prompt: str | Sequence[int]) -> list[int]:
        """The tokens of a prompt; of a text with the start token."""
        if not isinstance(prompt, str):
            return list(prompt)
        return [*self.start_ids, *self.tokenize(prompt)]

    @functools.cached_property
    def start_ids(self) -> list[int]:
        """The token before a prompt, if the bundle declares one."""
        return self._known("start_token", self.metadata.start_token)[:1]

    @functools.cached_property
    def pad_id(self) -> int:
        """The declared token that fills the rest of a prefill step, or 0."""
        ids = self._known("pad_token", self.metadata.pad_token)
        return ids[0] if len(ids) == 1 else 0

    @functools.cached_property
    def stops(self) -> StopSequences:
        """The sequences of tokens that end an answer."""
        return StopSequences([self._ids(token) for token in self.metadata.stop_tokens])

    def _known(self, name: str, token: Token | None) -> list[int]:
        """The ids of a token that the model has."""
        ids = [] if token is None else self._ids(token)
        wrong = next((i for i in ids if not 0 <= i < self._vocabulary), None)
        with declaring(self._bundle):
            if wrong is not None:
                raise OptionError(
                    f"{name}: expected a token id below {self._vocabulary}, got {wrong}"
                )
        return ids

    def _ids(self, token: Token) -> list[int]:
        if token.text is None:
            return list(token.ids)
        known = self.tokenizer.token_id(token.text)
        return self.tokenize(token.text) if known is None else [known]

    # ---- templates

    def renderer(
        self, chat_template: str | None = None, text_contents: bool | None = None
    ) -> Renderer:
        """What makes a text of messages; arguments and errors as `Engine.create_conversation`."""
        source = chat_template or self.metadata.template
        if source is None:
            return Renderer(AffixTemplate(self.metadata.affixes), text_contents)
        where = "chat_template" if chat_template else self._bundle.path
        return Renderer(JinjaTemplate(source, where), text_contents)

    @functools.cached_property
    def affixes(self) -> tuple[str, str]:
        """What surrounds a user's prompt in bundles without a Jinja template."""
        metadata = self.metadata
        if metadata.template is not None or "user" not in metadata.affixes:
            return "", ""
        user, model = metadata.affixes["user"], metadata.affixes.get("model")
        return user.prefix, user.suffix + (model.prefix if model is not None else "")

    def thinking_budget(self, budget: int, prompt: str) -> ThinkingBudget:
        """Ends the reasoning of an answer after a number of tokens.

        Args:
            budget: the most tokens.
            prompt: before the answer; it may open the channel for reasoning.

        Raises:
            OptionError: the bundle declares no such channel, or not how it ends.
        """
        channel = self._reasoning
        if channel is None:
            raise OptionError(
                "thinking_token_budget: expected a bundle that declares a channel with a start and "
                "an end, got one without; use -1, or limit the tokens of the answer"
            )
        start, end = (self._ids(Token(text)) for text in (channel.start, channel.end))
        is_open = ChannelReader([channel], prompt).is_open
        return ThinkingBudget(start, end, budget, self._vocabulary, is_open=is_open)

    def after_thought(self, constraint: Constraint, thinking: ThinkingBudget) -> AfterThought:
        """Makes what follows an answer's thoughts match a grammar."""
        return AfterThought(constraint, thinking, self.stops.tokens)

    @property
    def _reasoning(self) -> Channel | None:
        """The channel for reasoning, or the first one, as in LiteRT-LM."""
        whole = [c for c in self.metadata.channels if c.start and c.end]
        return next((c for c in whole if c.is_reasoning), next(iter(whole), None))

    @functools.cached_property
    def tool_syntax(self) -> ToolSyntax:
        """How the model writes calls of tools in answers to the bundle's template."""
        return syntax_of(self.metadata, self.metadata.template)

    # ---- how tokens are chosen

    def sampling_params(
        self,
        sampler: SamplerConfig | None = None,
        penalties: RepetitionPenaltyConfig | None = None,
        ngrams: NoRepeatNgramConfig | None = None,
        suppressed: SuppressTokensConfig | None = None,
    ) -> SamplingParams:
        """How tokens are chosen, by these configurations and the bundle's declarations."""
        tokens = {*self._declared_suppressed, *((suppressed and suppressed.suppress_tokens) or ())}
        return SamplingParams(
            sampler or self._declared_sampler,
            penalties or RepetitionPenaltyConfig(),
            ngrams or NoRepeatNgramConfig(),
            SuppressTokensConfig(tuple(sorted(tokens))),
        )

    @functools.cached_property
    def _declared_sampler(self) -> SamplerConfig:
        declared = self.metadata.sampler
        if declared is None or declared.type in ("TYPE_UNSPECIFIED", "GREEDY"):
            return SamplerConfig()
        k, p, temperature = declared.k or None, declared.p or None, declared.temperature
        with declaring(self._bundle):
            return SamplerConfig(k, p, temperature, declared.seed)

    @functools.cached_property
    def _declared_suppressed(self) -> tuple[int, ...]:
        with declaring(self._bundle):
            SuppressTokensConfig(self.metadata.suppressed_tokens)
        return self.metadata.suppressed_tokens

    def constraint(self, grammar: Grammar) -> Constraint:
        """Makes an answer match a grammar. Errors as `Constraints.matching`."""
        return self._constraints.matching(grammar)

    @functools.cached_property
    def _constraints(self) -> Constraints:
        return Constraints(self.tokenizer, sorted(self.stops.tokens), self._vocabulary)


@contextlib.contextmanager
def declaring(bundle: Bundle) -> Iterator[None]:
    """Let a wrong value in the metadata be a ModelError that names the bundle."""
    try:
        yield
    except OptionError as error:
        raise ModelError(f"{printable(bundle.path)}: LlmMetadata: {error}") from error
