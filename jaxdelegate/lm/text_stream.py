"""Tokens to text while they arrive: only what later tokens cannot change."""

import collections
import os.path
from collections.abc import Sequence
from typing import NamedTuple

from jaxdelegate.bundles.tokenizers import Tokenizer
from jaxdelegate.lm.scores import Top

_INCOMPLETE = "\ufffd"  # a character whose bytes several tokens share


class TextStream:
    """The text of tokens that are added one after another.

    A tokenizer may decode a token differently after another one, for example with a space, so new
    tokens are decoded together with those before them. A token that the model has and the
    tokenizer has not has no text.
    """

    def __init__(
        self, tokenizer: Tokenizer, before: Sequence[int] = (), *, skips_special: bool = False
    ) -> None:
        """No text.

        Args:
            tokenizer: of the tokens.
            before: tokens whose text is known already.
            skips_special: whether special tokens have no text.
        """
        self._tokenizer, self._skips_special = tokenizer, skips_special
        self._ids: list[int] = []
        self._known = ""  # what was returned of their text
        self._forget(self._end_of(before))

    def _end_of(self, ids: Sequence[int]) -> list[int]:
        """The last tokens, back to one that has a text of its own."""
        found, tokenizer = collections.deque[int](), self._tokenizer
        for token in filter(tokenizer.has, reversed(ids)):
            found.appendleft(token)
            if not tokenizer.is_byte(token) and tokenizer.decode([token]):
                break
        return [*found]

    def add(self, ids: Sequence[int]) -> str:
        """The text that these tokens add; without an incomplete character at its end."""
        self._ids += filter(self._is_shown, ids)
        return self._take(is_last=False)

    def end(self) -> str:
        """The rest of the text."""
        return self._take(is_last=True)

    def _is_shown(self, token: int) -> bool:
        has = self._tokenizer.has(token)
        return has and not (self._skips_special and token in self._tokenizer.special_ids)

    def _take(self, *, is_last: bool) -> str:
        if not is_last and self._ids and self._tokenizer.is_byte(self._ids[-1]):
            return ""
        text = self._tokenizer.decode(self._ids)
        if not is_last and text.endswith(_INCOMPLETE):
            return ""
        # The first bytes of a character are U+FFFD until its last one follows.
        same = os.path.commonprefix([self._known, text])  # noqa: RUF071 (of any texts)
        new = text[len(same) :]
        self._forget(self._ids)
        return new

    def _forget(self, ids: list[int]) -> None:
        """Keep the last token, and those before it that its text depends on."""
        start = max(len(ids) - 1, 0)
        while start and self._tokenizer.is_byte(ids[start]):
            start -= 1
        self._ids, self._known = ids[start:], self._tokenizer.decode(ids[start:])
        if self._known:
            return
        # A space has no text at the beginning, so it needs a token that has some.
        shown = next((i for i in reversed(ids[:start]) if self._tokenizer.decode([i])), None)
        if shown is not None:
            self._ids.insert(0, shown)
            self._known = self._tokenizer.decode(self._ids)


class Part(NamedTuple):
    """A token of an answer, the text that it adds, and its logarithm of a probability or None.

    Attributes:
        top: the most likely tokens in its place, if requested.
    """

    text: str
    token: int
    score: float | None
    top: Top = ()


class StoppedStream:
    """The parts of an answer, until one of some texts appears, which does not belong to it.

    It returns a token when neither the next ones nor a stop can change its text.

    Attributes:
        is_stopped: a stop appeared.
        count: how many tokens were added, those of the stop included.
    """

    def __init__(self, stream: TextStream, stops: Sequence[str], has_stop: bool = False) -> None:
        """`has_stop`: the stop belongs to the answer."""
        self._stream, self._stops = stream, [stop for stop in stops if stop]
        self._has_stop = has_stop
        self._held: list[Part] = []
        self.is_stopped, self.count = False, 0

    def add(
        self, tokens: Sequence[int], scores: Sequence[float], tops: Sequence[Top] = ()
    ) -> list[Part]:
        """The parts that these tokens complete; the tokens after a stop are ignored."""
        found: list[Part] = []
        for number, token in enumerate(tokens):
            if self.is_stopped:
                break
            self.count += 1
            score = scores[number] if scores else None
            top = tops[number] if tops else ()
            self._held.append(Part(self._stream.add([token]), token, score, top))
            found += self._taken()
        return found

    def end(self) -> list[Part]:
        """The rest."""
        if self._held and not self.is_stopped:
            last = self._held[-1]
            self._held[-1] = last._replace(text=last.text + self._stream.end())
            if (place := self._stop_in("".join(part.text for part in self._held))) is not None:
                return self._stopped(place)
        found, self._held = self._held, []
        return found

    def _taken(self) -> list[Part]:
        text = "".join(part.text for part in self._held)
        if (place := self._stop_in(text)) is not None:
            return self._stopped(place)
        end = len(text) - max((overlap(text, stop) for stop in self._stops), default=0)
        count = begin = 0
        for number, part in enumerate(self._held, 1):
            begin += len(part.text)
            if part.text and begin <= end:
                count = number
        found, self._held = self._held[:count], self._held[count:]
        return found

    def _stop_in(self, text: str) -> int | None:
        """Where the answer ends."""
        places = [
            (place, place + len(stop) * self._has_stop)
            for stop in self._stops
            if (place := text.find(stop)) >= 0
        ]
        return min(places)[1] if places else None

    def _stopped(self, place: int) -> list[Part]:
        """The parts before a place; the last one may be cut."""
        self.is_stopped, found = True, []
        for part in self._held:
            if place > 0:
                found.append(part._replace(text=part.text[:place]))
            place -= len(part.text)
        self._held = []
        return found


def overlap(text: str, mark: str) -> int:
    """How many characters at the end of a text may begin a mark."""
    sizes = range(min(len(text), len(mark) - 1), 0, -1)
    return next((n for n in sizes if text.endswith(mark[:n])), 0)
