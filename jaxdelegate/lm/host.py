"""What sessions and generation need of an engine."""

from collections.abc import Sequence
from typing import Protocol

from jaxdelegate.bundles.metadata import LlmMetadata
from jaxdelegate.bundles.tokenizers import Tokenizer
from jaxdelegate.lm.choices import Rules
from jaxdelegate.lm.configs import (
    NoRepeatNgramConfig,
    RepetitionPenaltyConfig,
    SamplerConfig,
    SuppressTokensConfig,
)


class Host(Protocol):
    """An engine, as its sessions see it."""

    init_time_in_second: float

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def metadata(self) -> LlmMetadata: ...

    @property
    def eos_token_ids(self) -> list[list[int]]: ...

    @property
    def start_ids(self) -> list[int]: ...

    @property
    def affixes(self) -> tuple[str, str]: ...

    def tokenize(self, text: str) -> list[int]: ...

    def rules(
        self,
        sampler: SamplerConfig | None = None,
        penalties: RepetitionPenaltyConfig | None = None,
        ngrams: NoRepeatNgramConfig | None = None,
        suppressed: SuppressTokensConfig | None = None,
    ) -> Rules: ...

    def limit(self, max_output_tokens: int | None) -> int: ...

    def stop_in(self, tokens: Sequence[int], first: int) -> range | None: ...
