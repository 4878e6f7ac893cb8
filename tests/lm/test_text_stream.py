"""Text that arrives by tokens, until a stop."""

import functools
import io
import random
from collections.abc import Sequence
from typing import Any

import pytest
import sentencepiece
import tokenizers
from tokenizers import decoders, models

from jaxdelegate.bundles.tokenizers import TYPES, Tokenizer, open_tokenizer
from jaxdelegate.lm.text_stream import StoppedStream, TextStream
from tests.support.bundles import compressed
from tests.support.language_models import byte_tokenizer


class Bytes(Tokenizer):
    """A token for each byte."""

    kind, size = "bytes", 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def token_id(self, token: str) -> int | None:
        return ord(token)

    def definition(self) -> list[bytes | None]:
        return [bytes([i]) for i in range(self.size)]

    def to_bytes(self) -> bytes:
        raise NotImplementedError

    def _decode(self, ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace")

    def _token(self, index: int) -> str | None:
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


# ---- tokenizers whose tokens are decoded differently next to others

LETTERS = ["▁", "▁no", "a", "##b", ".", "'", "##s", "é"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
FALLBACK = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
DECODERS = {
    "byte fallback": decoders.Sequence(FALLBACK),
    "byte fallback, first space": decoders.Sequence([*FALLBACK, decoders.Strip(" ", 1, 0)]),
    "WordPiece": decoders.WordPiece(),
    "Metaspace": decoders.Metaspace(),
    "none": None,
}
SENTENCEPIECE: dict[str, dict[str, Any]] = {
    "SentencePiece": {},
    "SentencePiece, all spaces": {"remove_extra_whitespaces": False, "model_type": "bpe"},
    "SentencePiece, no first space": {"add_dummy_prefix": False},
    "SentencePiece as written": {"normalization_rule_name": "identity"},
}


@functools.cache
def small_tokenizer(name: str) -> Tokenizer:
    if name in SENTENCEPIECE:
        trained = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["yes and no", "no or yes é"] * 9),
            model_writer=trained,
            vocab_size=290,
            byte_fallback=True,
            hard_vocab_limit=False,
            minloglevel=2,
            **SENTENCEPIECE[name],
        )
        return open_tokenizer(TYPES[0], memoryview(trained.getvalue()), "a test")
    if name == "bytes":
        return open_tokenizer(TYPES[1], memoryview(compressed(byte_tokenizer())), "a test")
    vocabulary = {token: i for i, token in enumerate(["<unk>", *LETTERS, *BYTES])}
    model = models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True)
    made = tokenizers.Tokenizer(model)
    made.decoder = DECODERS[name]
    return open_tokenizer(TYPES[1], memoryview(compressed(made.to_str().encode())), "a test")


def by_tokens(tokenizer: Tokenizer, ids: Sequence[int], before: Sequence[int] = ()) -> list[str]:
    stream = TextStream(tokenizer, before)
    return [*(stream.add([i]) for i in ids), stream.end()]


def token_lists(tokenizer: Tokenizer) -> list[list[int]]:
    """Texts with characters of several bytes, and tokens at random."""
    chosen = random.Random(7)
    texts = ["€€", "😀😀😀 a", "日本語", "a  日 本 ", "é€é", " a  no"]
    found = [tokenizer.encode(text) for text in texts]
    for _ in range(300):
        text = "".join(chosen.choices("€😀é日a \u200b", k=chosen.randrange(1, 12)))
        ids = tokenizer.encode(text)
        found += [ids, chosen.sample(ids, len(ids))]
        found.append([chosen.randrange(tokenizer.size) for _ in range(chosen.randrange(1, 12))])
    return found


@pytest.mark.parametrize("name", [*DECODERS, *SENTENCEPIECE, "bytes"])
def test_a_stream_is_the_whole_text(name: str) -> None:
    tokenizer = small_tokenizer(name)
    for ids in token_lists(tokenizer):
        assert "".join(by_tokens(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", ["byte fallback", "SentencePiece", "bytes"])
def test_bytes_after_a_prompt(name: str) -> None:
    tokenizer = small_tokenizer(name)
    before = tokenizer.encode("a€")
    ids = [i for i in tokenizer.encode("€😀é") if tokenizer.token(i) != "▁"]
    assert "".join(by_tokens(tokenizer, ids, before)) == "€😀é"
    assert "".join(by_tokens(tokenizer, ids[1:], [*before, ids[0]])).endswith("€😀é")


def test_a_byte_that_is_invalid_spoils_those_before_it() -> None:
    tokenizer = small_tokenizer("byte fallback")
    ids = [*tokenizer.encode("€"), tokenizer.token_id("<0xFF>") or 0, *tokenizer.encode("a")]
    assert by_tokens(tokenizer, ids) == ["", "", "", "", "\ufffd" * 4 + "a", ""]


class Few(Bytes):
    """Its model has more tokens."""

    size = 200

    def _token(self, index: int) -> str | None:
        return chr(index) if index < self.size else None


def test_tokens_that_the_tokenizer_does_not_have() -> None:
    stream = StoppedStream(TextStream(Few(), [98, 250]), ["x"])
    parts = [*stream.add([97, 250, 1 << 40, 98], []), *stream.end()]
    assert [(p.text, p.token) for p in parts] == [("a", 97), ("", 250), ("", 1 << 40), ("b", 98)]
    assert stream.count == 4
