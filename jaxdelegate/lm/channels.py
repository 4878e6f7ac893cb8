"""Channels: parts of an answer between two texts that a bundle declares, such as reasoning.

Source: LiteRT-LM's runtime/conversation/internal_callback_util.cc and channel_util.cc.
"""

from collections.abc import Iterator, Sequence

from jaxdelegate.bundles.metadata import Channel
from jaxdelegate.lm.text_stream import overlap

Found = tuple[Channel | None, str]


class ChannelReader:
    """Splits a text that arrives in parts into the answer and its channels."""

    def __init__(
        self, channels: Sequence[Channel], prompt: str, *, is_only_first: bool = False
    ) -> None:
        """A channel that the prompt opens and does not close goes on in the answer.

        If `is_only_first`, an answer may begin with a channel, and has no others.
        """
        self._is_only_first, self._has_text = is_only_first, False
        self._channels = [channel for channel in channels if channel.start]
        self._open = _open_channel(self._channels, prompt)
        self._text = ""

    @property
    def is_open(self) -> bool:
        """Whether the text is in a channel."""
        return self._open is not None

    def add(self, text: str) -> Iterator[Found]:
        """The texts that this part completes, each with its channel; None: the answer."""
        self._text += text
        while True:
            ends = [c.start for c in self._channels] if self._open is None else [self._open.end]
            places = [(place, end) for end in ends if end and (place := self._text.find(end)) >= 0]
            if not places:
                break
            place, mark = min(places)
            if self._is_only_first and (self._has_text or (place and self._open is None)):
                self._channels = []
                continue
            yield from self._take(place)
            self._text = self._text[len(mark) :]
            opened = next((c for c in self._channels if c.start == mark), None)
            self._has_text |= self._open is not None
            self._open = opened if self._open is None else None
        yield from self._take(
            len(self._text) - max((overlap(self._text, e) for e in ends), default=0)
        )

    def end(self) -> Iterator[Found]:
        """The rest."""
        yield from self._take(len(self._text))

    def _take(self, count: int) -> Iterator[Found]:
        text, self._text = self._text[:count], self._text[count:]
        self._has_text |= bool(text) and self._open is None
        if text:
            yield self._open, text


def _open_channel(channels: Sequence[Channel], prompt: str) -> Channel | None:
    """The channel that is opened last, and not closed."""
    starts = {channel: prompt.rfind(channel.start) for channel in channels}
    found = [
        channel
        for channel, start in starts.items()
        if start > (prompt.rfind(channel.end) if channel.end else -1)
    ]
    return max(found, key=starts.__getitem__, default=None)
