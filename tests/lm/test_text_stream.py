"""Text that arrives by tokens, until a stop."""

from collections.abc import Sequence

import pytest

from jaxdelegate.bundles.tokenizers import Tokenizer
from jaxdelegate.lm.text_stream import StoppedStream, TextStream


class Bytes(Tokenizer):
    """A token for each byte."""

    kind, size = "bytes", 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def token_id(self, token: str) -> int | None:
        return ord(token)

    def definition(self) -> list[bytes | None]:
        return [bytes([i]) for i in range(self.size)]

    def _decode(self, ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace")

    def _token(self, index: int) -> str:
        return chr(index)


def streamed(text: str, stops: Sequence[str], size: int = 1) -> tuple[list[str], StoppedStream]:
    """What each piece of `size` bytes gives, the end included."""
    tokenizer = Bytes()
    stream = StoppedStream(TextStream(tokenizer), stops)
    ids, found = tokenizer.encode(text), []
    for at in range(0, len(ids), size):
        part = ids[at : at + size]
        found.append("".join(p.text for p in stream.add(part, [float(i) for i in part])))
    found.append("".join(p.text for p in stream.end()))
    return found, stream


@pytest.mark.parametrize("size", [1, 2, 3, 50])
@pytest.mark.parametrize(
    ("text", "stops", "wanted"),
    [
        ("hello world", [], "hello world"),
        ("hello world", ["wo"], "hello "),
        ("hello world", ["low", "o w"], "hell"),
        ("ababac", ["abac"], "ab"),
        ("aaab", ["aab"], "a"),
        ("stop", ["stop"], ""),
        ("almost sto", ["stop"], "almost sto"),
        ("zwölf€", ["€"], "zwölf"),
        ("zwölf€", ["xyz"], "zwölf€"),
        ("x\n\ny", ["\n\n", "y"], "x"),
    ],
)
def test_until_a_stop(text: str, stops: list[str], wanted: str, size: int) -> None:
    found, stream = streamed(text, stops, size)
    assert "".join(found) == wanted
    assert stream.is_stopped == (wanted != text)


def test_nothing_is_returned_that_may_belong_to_a_stop() -> None:
    assert streamed("abcabx!", ["abx"])[0] == ["", "", "abc", "", "", "", "", ""]
    assert streamed("aé!", ["x"])[0] == ["a", "", "é", "!", ""]


def test_tokens_and_scores() -> None:
    stream = StoppedStream(TextStream(Bytes()), ["c"])
    parts = stream.add(list("aéb!c?".encode()), list(range(7)))
    assert [(p.text, p.token, p.score) for p in parts] == [
        ("a", 97, 0),
        ("", 195, 1),
        ("é", 169, 2),
        ("b", 98, 3),
        ("!", 33, 4),
    ]
    assert (stream.count, stream.is_stopped) == (6, True)
    assert stream.end() == []


def test_half_of_a_character_at_the_end() -> None:
    stream = StoppedStream(TextStream(Bytes()), [])
    assert [p.text for p in stream.add([97, 195], [])] == ["a"]
    assert [(p.text, p.score) for p in stream.end()] == [("\ufffd", None)]
