"""Text, in numpy: SKIP_GRAM. Strings are object arrays of bytes. Source: kernels/skip_gram.cc."""

from collections.abc import Iterator

import numpy as np

from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.op_lowering.text.options import SkipGramOptions
from jaxdelegate.reference.kernel import Array, Kernel, without_specs

_SPACES = b" \t\n\v\f\r"  # isspace in the C locale


def skip_gram_shape(_o: Options, _inputs: Specs) -> tuple[Shape | None, ...]:
    return (None,)


def skip_gram(o: SkipGramOptions, x: Array) -> Array:
    """Sequences of the first string's words, with at most `max_skip_size` skipped between two."""
    if x.size == 0:
        raise ValueError("SKIP_GRAM: expected a string, got an empty tensor")
    words = _words(x.flat[0])
    grams: list[bytes] = []
    if 0 < o.ngram_size <= len(words):
        for first in range(len(words)):
            chosen = _grams(o, (first,), len(words))
            grams += (b" ".join(words[i] for i in positions) for positions in chosen)
    return np.array([*grams, None], object)[:-1]


def _words(text: bytes) -> list[bytes]:
    """The kernel's words: a space as the first byte does not separate words.

    Only the last word may begin with a space: " a" is a word, but " a b" has the one word "b".
    """
    words, start = [], 0
    for i in range(1, len(text)):
        if text[i] in _SPACES:
            if i > start and text[start] not in _SPACES:
                words.append(text[start:i])
            start = i + 1
    return [*words, text[start:]] if start < len(text) else words


def _grams(o: SkipGramOptions, chosen: tuple[int, ...], n: int) -> Iterator[tuple[int, ...]]:
    """Positions among n words that begin with the chosen ones: longer sequences first."""
    last = chosen[-1]
    if len(chosen) < o.ngram_size:
        for following in range(last + 1, min(last + o.max_skip_size + 2, n)):
            yield from _grams(o, (*chosen, following), n)
    if o.include_all_ngrams or len(chosen) == o.ngram_size:
        yield chosen


KERNELS = {"SKIP_GRAM": Kernel(without_specs(skip_gram), skip_gram_shape)}
