"""Tokenizers of bundles from anyone: each is refused or used, in bounded time and memory."""

import base64
import copy
import json
import pickle
import subprocess
import sys
import time
from typing import Any

import pytest
import sentencepiece
import tokenizers

from jaxdelegate.bundles.tokenizers import TYPES, Tokenizer, open_tokenizer
from jaxdelegate.errors import ModelError
from tests.support.bundles import compressed

BPE = {"type": "BPE", "vocab": {"a": 0, "b": 1, "aa": 2}, "merges": [["a", "a"]]}
PADDING = {"direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
CUT = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 5}
TWICE = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 2,
    "pair": [],
    "special_tokens": {},
}


def hugging_face(model: Any = BPE, **parts: Any) -> Tokenizer:
    text = json.dumps({"version": "1.0", "added_tokens": [], "model": model, **parts})
    return open_tokenizer(TYPES[1], memoryview(compressed(text.encode())), "m.litertlm")


def replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def sequence(kind: str, *steps: Any) -> dict[str, Any]:
    return {"type": "Sequence", kind: steps}


def split(pattern: str) -> dict[str, Any]:
    behavior = {"behavior": "Isolated", "invert": False}
    return {"type": "Split", "pattern": {"Regex": pattern}, **behavior}


def charsmap(table: bytes) -> dict[str, str]:
    name = {"type": "Precompiled"}
    return {**name, "precompiled_charsmap": base64.b64encode(table).decode()}


@pytest.mark.parametrize(
    "parts",
    [
        {"padding": {**PADDING, "strategy": {"Fixed": 4_000_000_000}, "pad_to_multiple_of": None}},
        {"padding": {**PADDING, "strategy": "BatchLongest", "pad_to_multiple_of": 3_000_000_000}},
        {"truncation": CUT},
        {"post_processor": TWICE},
    ],
)
def test_texts_are_neither_padded_nor_cut(parts: Any) -> None:
    own = hugging_face(**parts)
    assert own.encode("aab") == [2, 1]
    assert tokenizers.Tokenizer.from_buffer(own.to_bytes()).encode("aab").ids == [2, 1]


UNIGRAM = {"type": "Unigram", "unk_id": 0, "vocab": [["a" * n, -1.0] for n in range(1, 3000)]}
USES = {
    "an endless regular expression": (
        {"pre_tokenizer": split("(a+)+$")}, "a" * 40 + "b", "it fails: ",
    ),
    "replacements": (
        {"normalizer": sequence("normalizers", *[replace("a", "a" * 1000)] * 4)}, "a", "characters",
    ),
    "replacements of nothing": (
        {"normalizer": sequence("normalizers", *[replace("", "a" * 100, "Regex")] * 5)},
        "a", "characters",
    ),
    "beginnings": (
        {"normalizer": {"type": "Prepend", "prepend": "a" * 1_000_000}}, "a" * 1000, "characters",
    ),
    "long pieces": ({"model": UNIGRAM}, "a" * 100_000, "steps"),
    "long words": (
        {"model": {"type": "WordPiece", "unk_token": "u", "continuing_subword_prefix": "##",
                   "max_input_chars_per_word": 1 << 40, "vocab": {"u": 0, "a": 1, "##a": 2}}},
        "a" * 100_000, "steps",
    ),
    "long suffixes": (
        {"model": {**BPE, "end_of_word_suffix": "b" * 100_000}}, "a" * 100_000, "steps",
    ),
    "no unknown token": ({"model": {"type": "WordLevel", "unk_token": "u", "vocab": {"a": 0}}},
                         "zz", "it fails: "),
}  # fmt: skip


@pytest.mark.parametrize("name", USES)
def test_texts_that_a_hostile_tokenizer_cannot_encode(name: str) -> None:
    parts, text, says = USES[name]
    tokenizer, start = hugging_face(**parts), time.process_time()
    with pytest.raises(ModelError, match=rf"m\.litertlm: tokenizer: .*{says}"):
        tokenizer.encode(text)
    assert time.process_time() - start < 10


def test_tokens_that_a_hostile_tokenizer_cannot_decode() -> None:
    tokenizer = hugging_face(decoder=sequence("decoders", *[replace("a", "a" * 1000)] * 4))
    with pytest.raises(ModelError, match=r"m\.litertlm: tokenizer: .* characters"):
        tokenizer.decode([0])


@pytest.mark.parametrize(
    ("normalizer", "size"),
    [(sequence("normalizers", {"type": "Prepend", "prepend": "b"}, replace(" ", "a")), 1 << 20),
     (sequence("normalizers", replace("b", "", "Regex"), {"type": "NFC"}), 1 << 20)],
)  # fmt: skip
def test_long_texts_are_encoded(normalizer: Any, size: int) -> None:
    tokenizer = hugging_face(normalizer=normalizer)
    assert len(tokenizer.encode("a " * (size // 2))) > 0


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": charsmap(b"\xff" * 5)},
        {"normalizer": charsmap(base64.b64decode("CAAAAP////////////8="))},
        {"normalizer": charsmap(b"")},
        {"model": {**BPE, "merges": [["a", "zz"]]}},
        {"model": {"type": "Unigram", "unk_id": 0, "vocab": []}},
        {"model": {**BPE, "continuing_subword_prefix": "b" * 100}},  # Rust panics
        {"model": None},
    ],
)
def test_damaged_tokenizers_are_refused(parts: Any) -> None:
    with pytest.raises(ModelError, match=r"m\.litertlm: expected the JSON of a Hugging Face"):
        hugging_face(**parts)


IN_LITTLE_MEMORY = """
import resource
import sys
from jaxdelegate.bundles.tokenizers import TYPES, open_tokenizer
from jaxdelegate.errors import ModelError
import tokenizers
resource.setrlimit(resource.RLIMIT_AS, (2 << 30,) * 2)
try:
    open_tokenizer(TYPES[1], memoryview(sys.stdin.buffer.read()), "m")
except ModelError as error:
    sys.exit("declares more" not in str(error))
sys.exit(2)
"""


@pytest.mark.parametrize("name", ["precompiled_charsmap", "precompiled\\u005fcharsmap"])
def test_a_table_that_declares_gigabytes(name: str) -> None:
    step = json.dumps(charsmap(b"\xff" * 5)).replace("precompiled_charsmap", name)
    text = json.dumps({"version": "1.0", "added_tokens": [], "model": BPE, "normalizer": "@"})
    subprocess.run(
        [sys.executable, "-c", IN_LITTLE_MEMORY],
        input=compressed(text.replace('"@"', step).encode()),
        check=True,
        timeout=100,
    )


def message(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


def piece(text: bytes, kind: int) -> bytes:
    return message(1, message(1, text) + bytes([3 << 3, kind]))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it has no tokens"),
        (b"\xff", "damaged data"),
        (piece(b"<unk>", 2) + piece(b"\xff\xfe", 1), "codec can't decode"),
    ],
)
def test_damaged_sentencepiece_models_are_refused(content: bytes, says: str) -> None:
    sentencepiece.set_min_log_level(2)
    with pytest.raises(ModelError, match=rf"m: expected a SentencePiece model.*{says}"):
        open_tokenizer(TYPES[0], memoryview(content), "m")


def test_errors_of_callers_stay() -> None:
    with pytest.raises(TypeError):
        hugging_face().encode("\ud800")


def test_short_texts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not long ones: a hostile tokenizer could make gigabytes of them."""
    monkeypatch.setattr("jaxdelegate.bundles.tokenizers._MOST_KEPT", 2)
    decoder = replace("b", "long" * 100)
    tokenizer, decoded = hugging_face(decoder=decoder), list[list[int]]()
    decode = tokenizer._decode
    monkeypatch.setattr(tokenizer, "_decode", lambda ids: decoded.append(ids) or decode(ids))
    for _ in range(2):
        assert [tokenizer.decode(ids) for ids in ([0], [0, 2])] == ["a", "aaa"]
    assert decoded == [[0], [0, 2]]
    for ids in ([1], [1], [0, 0, 0], [0, 0, 0], [2], [0]):
        tokenizer.decode(ids)
    assert decoded[2:] == [[1], [1], [0, 0, 0], [0, 0, 0], [2], [0]]
    monkeypatch.undo()
    with pytest.raises(ValueError, match="expected an id"):
        tokenizer.decode([3])
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.decode([0, 2]) == copy.deepcopy(tokenizer).decode([0, 2]) == "aaa"
