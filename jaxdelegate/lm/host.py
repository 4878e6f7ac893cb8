"""What sessions and generation need of an engine."""

from collections.abc import Sequence
from typing import Protocol

from jaxdelegate.bundles.tokenizers import Tokenizer
from jaxdelegate.lm.decoder import Decoder


class Host(Protocol):
    """An engine, as its sessions see it."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def start_ids(self) -> list[int]: ...

    @property
    def affixes(self) -> tuple[str, str]: ...

    def tokenize(self, text: str) -> list[int]: ...

    def limit(self, max_output_tokens: int | None) -> int: ...

    def stop_in(self, tokens: Sequence[int], first: int) -> range | None: ...

    def new_decoder(self, slots: int) -> Decoder: ...
