"""Tokens to text while they arrive: only what later tokens cannot change."""

from collections.abc import Sequence

from jaxdelegate.bundles.tokenizers import Tokenizer

_INCOMPLETE = "\ufffd"  # a character whose bytes several tokens share


class TextStream:
    """The text of tokens that are added one after another.

    A tokenizer may decode a token differently after another one, for example with a space, so new
    tokens are decoded together with those before them.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        """`before` are tokens whose text is known already."""
        self._tokenizer = tokenizer
        self._ids = list(before)[-1:]
        self._done = len(self._ids)  # tokens whose text was returned

    def add(self, ids: Sequence[int]) -> str:
        """The text that these tokens add; without an incomplete character at its end."""
        self._ids += ids
        return self._take(is_last=False)

    def end(self) -> str:
        """The rest of the text."""
        return self._take(is_last=True)

    def _take(self, *, is_last: bool) -> str:
        known = self._tokenizer.decode(self._ids[: self._done])
        text = self._tokenizer.decode(self._ids)
        if not is_last and text.endswith(_INCOMPLETE):
            return ""
        self._ids = self._ids[-1:]
        self._done = len(self._ids)
        return text[len(known) :]
