"""The encoders of an engine, and prompts with what they encode."""

from collections.abc import Callable, Iterable, Mapping

from jaxdelegate.errors import ModelError
from jaxdelegate.lm.contents.content_encoder import ContentEncoder
from jaxdelegate.lm.contents.content_prompts import content_prompt_ids
from jaxdelegate.lm.contents.encoded_content import EncodedContent


class PromptContents:
    """Writes prompts with images and sounds, and encodes them. Any thread may use it.

    Attributes:
        encoders: by the type of parts in messages: "image" or "audio".
    """

    def __init__(
        self, encoders: Iterable[ContentEncoder], tokenize: Callable[[str], list[int]]
    ) -> None:
        """`tokenize`: makes tokens of a text."""
        self.encoders: Mapping[str, ContentEncoder] = {e.rules.kind: e for e in encoders}
        self._tokenize = tokenize

    @property
    def size(self) -> int:
        """Elements of an embedding; 0: prompts have texts only. A ModelError: encoders differ."""
        sizes = {encoder.size for encoder in self.encoders.values()}
        if len(sizes) > 1:
            raise ModelError(f"expected encoders of embeddings of one size, got {sorted(sizes)}")
        return next(iter(sizes), 0)

    def ids(self, text: str, contents: Iterable[EncodedContent]) -> list[int]:
        """The tokens of a rendered text with these contents, which need not be encoded yet.

        Raises:
            GenerationError: the text has not as many placeholders as there are contents.
        """
        if not self.encoders:
            return self._tokenize(text)
        rules = [encoder.rules for encoder in self.encoders.values()]
        return content_prompt_ids(text, contents, rules, self._tokenize)

    def encode(self, contents: Iterable[EncodedContent]) -> None:
        """Compute the embeddings of those that have none yet."""
        given = [*contents]
        for kind, encoder in self.encoders.items():
            encoder.encode([content for content in given if content.rules.kind == kind])

    def close(self) -> None:
        """Free programs, weights and contents."""
        for encoder in self.encoders.values():
            encoder.close()
