"""A bundle's tokenizer: text to token ids and back, as LiteRT-LM does it.

No special tokens are added and none are left out: the chat template has them.
"""

import abc
import base64
import contextlib
import functools
import itertools
import json
import math
import os
import string
from collections.abc import Iterator, Sequence
from typing import Any

from jaxdelegate.errors import JaxDelegateError, ModelError
from jaxdelegate.model.sections import HF_TOKENIZER, SP_TOKENIZER, inflated
from jaxdelegate.optional import is_failure, optional_module
from jaxdelegate.text import printable

TYPES = (SP_TOKENIZER, HF_TOKENIZER)  # LiteRT-LM prefers the first
_EXTRA = "lm"
_SIZE_BYTES = 8  # before compressed JSON
_SPACE = "\u2581"  # stands for a space in SentencePiece's tokens
_MOST_TOKENS = 1 << 31
_FEW, _SHORT = 2, 256  # tokens and characters of texts that are kept
_MOST_KEPT = 1 << 14
_MOST_CHARACTERS = 1 << 26  # in a text between two steps
_MOST_STEPS = 1 << 25  # a step tries one token at one place; these take seconds


class Tokenizer(abc.ABC):
    """A vocabulary, and the rules that split text into its tokens.

    Attributes:
        kind: "SentencePiece" or "Hugging Face".
        file_name: that such a tokenizer usually has: "tokenizer.model" or "tokenizer.json".
        size: the number of tokens.
    """

    kind: str
    file_name: str
    size: int

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without a start token."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included.

        Raises:
            ValueError: an id is not in the vocabulary.
        """
        key = tuple(ids)
        if (text := self._kept.get(key)) is None:
            text = self._decode([self._known(i) for i in key])
            if len(key) <= _FEW and len(text) <= _SHORT:
                if len(self._kept) >= _MOST_KEPT:
                    self._kept.clear()
                self._kept[key] = text
        return text

    @functools.cached_property
    def _kept(self) -> dict[tuple[int, ...], str]:
        """Texts: streams decode each token, and then it and the next one."""
        return {}

    def token(self, index: int) -> str:
        """The text of one token in the vocabulary, for example "▁the".

        Raises:
            ValueError: the id is not in the vocabulary.
        """
        return self._token(self._known(index)) or ""

    def has(self, index: int) -> bool:
        """Whether the vocabulary has an id; a model may have more."""
        return 0 <= index < _MOST_TOKENS and self._token(int(index)) is not None

    @abc.abstractmethod
    def token_id(self, token: str) -> int | None:
        """The id of a token in the vocabulary, for example "<bos>"; None: it has no such token."""

    @functools.cached_property
    def special_ids(self) -> frozenset[int]:
        """The tokens that are marks rather than text, such as "<bos>"."""
        return frozenset(self._special_ids())

    def _special_ids(self) -> Iterator[int]:
        return iter(())

    def is_byte(self, index: int) -> bool:
        """Whether a token is a byte whose text depends on all bytes before and after it.

        Hugging Face's ByteFallback decodes bytes that follow each other as a whole: if one is
        invalid, each of them is U+FFFD.
        """
        del index
        return False

    @abc.abstractmethod
    def definition(self) -> str | list[bytes | None]:
        """Hugging Face's JSON, or the bytes of each token, None where it is special."""

    @abc.abstractmethod
    def _decode(self, ids: list[int]) -> str: ...

    @abc.abstractmethod
    def _token(self, index: int) -> str | None: ...

    @abc.abstractmethod
    def to_bytes(self) -> bytes:
        """The file that `sentencepiece` or Hugging Face's `tokenizers` opens.

        It encodes as this object: Hugging Face's JSON is without padding, truncation and
        post-processing, which would add special tokens.
        """

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write `to_bytes()` atomically.

        Args:
            path: of the file; or of a folder, where it is called `file_name`: one that exists, or
                that a slash at the end names.

        Returns:
            The path of the file.

        Raises:
            OSError: the file cannot be written.
        """
        from jaxdelegate.model.writing import write_file  # noqa: PLC0415 (most read only)

        name, content = os.fspath(path), self.to_bytes()
        if os.path.isdir(name) or name.endswith(("/", os.sep)):
            os.makedirs(name, exist_ok=True)
            name = os.path.join(name, self.file_name)
        write_file(name, lambda file: file.write(content))
        return name

    def __repr__(self) -> str:
        return f"<{self.kind} tokenizer of {self.size} tokens>"

    def _known(self, index: int) -> int:
        if not self.has(index):
            raise ValueError(f"expected an id of one of {self.size} tokens, got {index}")
        return int(index)


def open_tokenizer(kind: str, data: memoryview, where: str) -> Tokenizer:
    """The tokenizer of a section, of one of `TYPES`; `where` names it in messages.

    A ModelError if it is damaged; an OptionError if the package that reads it is not installed.
    """
    return (_SentencePiece if kind == SP_TOKENIZER else _HuggingFace)(data, where)


class _SentencePiece(Tokenizer):
    kind, file_name = "SentencePiece", "tokenizer.model"

    def __init__(self, data: memoryview, where: str) -> None:
        package = optional_module("sentencepiece", _EXTRA)
        try:
            self._model: Any = package.SentencePieceProcessor(model_proto=bytes(data))
            self.size = self._model.vocab_size()
            self._model.id_to_piece(list(range(self.size)))  # each is UTF-8
        except (RuntimeError, ValueError) as error:
            _fail(where, "a SentencePiece model", error)
        if self.size == 0:
            _fail(where, "a SentencePiece model", ValueError("it has no tokens"))
        self._where = where

    def encode(self, text: str) -> list[int]:
        with _using(self._where):
            return list(self._model.encode(text))

    def token_id(self, token: str) -> int | None:
        index = int(self._model.piece_to_id(token))
        return index if self._model.id_to_piece(index) == token else None

    def _special_ids(self) -> Iterator[int]:
        return filter(self._model.is_control, range(self.size))

    def definition(self) -> list[bytes | None]:
        return [self._bytes(index) for index in range(self.size)]

    def to_bytes(self) -> bytes:
        return bytes(self._model.serialized_model_proto())

    def _bytes(self, index: int) -> bytes | None:
        model = self._model
        if model.is_control(index) or model.is_unknown(index) or model.is_unused(index):
            return None
        piece = str(model.id_to_piece(index))
        if model.is_byte(index):  # "<0x0A>"
            return bytes([int(piece[1:-1], 16)])
        return piece.replace(_SPACE, " ").encode()

    def _decode(self, ids: list[int]) -> str:
        with _using(self._where):
            return str(self._model.decode(ids))

    def _token(self, index: int) -> str | None:
        return str(self._model.id_to_piece(index)) if index < self.size else None


class _HuggingFace(Tokenizer):
    kind, file_name = "Hugging Face", "tokenizer.json"

    def __init__(self, data: memoryview, where: str) -> None:
        package = optional_module("tokenizers", _EXTRA)
        size = int.from_bytes(data[:_SIZE_BYTES], "little")
        text = inflated(data[_SIZE_BYTES:], size, where)
        with _using(where, "expected the JSON of a Hugging Face tokenizer, got damaged data"):
            _check_charsmaps(bytes(text))
            self._tokenizer: Any = package.Tokenizer.from_buffer(text)
            self._steps = _steps(self._tokenizer.model)
            self._encode_growth = _growth(self._tokenizer.normalizer)
            self._decode_growth = _growth(self._tokenizer.decoder)
        # Texts are neither padded nor cut, as in transformers.
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.post_processor = None
        self._where = where
        self.size = self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        self._check(len(text) * self._encode_growth, _MOST_CHARACTERS, "characters")
        self._check(len(text) * min(self._steps, len(text)), _MOST_STEPS, "steps")
        with _using(self._where):
            # Its method for one text does not let other threads run.
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return list(encoding.ids)

    def _check(self, count: int, most: int, what: str) -> None:
        if count > most:
            raise ModelError(
                f"{printable(self._where)}: tokenizer: expected a text that takes at most {most} "
                f"{what}, got one that may take {count}: shorten it"
            )

    def token_id(self, token: str) -> int | None:
        index: int | None = self._tokenizer.token_to_id(token)
        return index

    def is_byte(self, index: int) -> bool:
        return index in self._bytes

    @functools.cached_property
    def _bytes(self) -> frozenset[int | None]:
        pairs = itertools.product(string.hexdigits, repeat=2)
        return frozenset(self.token_id(f"<0x{''.join(pair)}>") for pair in pairs)

    def _special_ids(self) -> Iterator[int]:
        added = self._tokenizer.get_added_tokens_decoder()
        return (index for index, token in added.items() if token.special)

    def definition(self) -> str:
        return str(self._tokenizer.to_str())

    def to_bytes(self) -> bytes:
        return self.definition().encode()

    def _decode(self, ids: list[int]) -> str:
        if self._decode_growth > 1:
            length = sum(len(self._token(i) or "") for i in ids)
            self._check(length * self._decode_growth, _MOST_CHARACTERS, "characters")
        with _using(self._where):
            return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def _token(self, index: int) -> str | None:
        token: str | None = self._tokenizer.id_to_token(index)
        return token


def _check_charsmaps(text: bytes) -> None:
    """Refuse SentencePiece's tables that declare more than they have: reading them allocates it."""
    if b"charsmap" not in text and b"\\u00" not in text:  # the name may have escapes
        return

    def check(pairs: list[tuple[str, Any]]) -> None:
        for name, value in pairs:
            if name == "precompiled_charsmap" and isinstance(value, str):
                table = base64.b64decode(value)
                if int.from_bytes(table[:4], "little") > len(table):
                    raise ValueError(f"{name}: it declares more than its {len(table)} bytes")

    json.loads(text, object_pairs_hook=check)


def _growth(step: Any) -> int:
    """How many characters a normalizer or a decoder makes of one, at most."""
    return 1 if step is None else _growth_of(json.loads(step.__getstate__()))


def _growth_of(step: Any) -> int:
    inner = step.get("normalizers") or step.get("decoders")
    if inner:
        return math.prod(map(_growth_of, inner))
    if step["type"] == "Prepend":
        return 1 + len(step["prepend"])
    if step["type"] != "Replace":
        return 1
    content, pattern = len(step["content"]), step["pattern"].get("String")
    return max(1, -(-content // len(pattern)) if pattern else 1 + content)


def _steps(model: Any) -> int:
    """How many lengths of a token a model may try at each character."""
    affixes = ("continuing_subword_prefix", "end_of_word_suffix")
    steps = 1 + sum(len(getattr(model, name, None) or "") for name in affixes)
    steps += int(getattr(model, "max_input_chars_per_word", 0))
    if type(model).__name__ == "Unigram":
        pieces = json.loads(model.__getstate__())["vocab"]
        steps += max((len(piece) for piece, _ in pieces), default=0)
    return steps


@contextlib.contextmanager
def _using(where: str, problem: str = "tokenizer: it fails") -> Iterator[None]:
    """Raise a ModelError for what the packages raise about their data."""
    try:
        yield
    except (JaxDelegateError, TypeError, UnicodeEncodeError):  # the caller's
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        raise ModelError(f"{printable(where)}: {problem}: {printable(str(error))}") from error


def _fail(where: str, expected: str, error: BaseException) -> None:
    raise ModelError(
        f"{printable(where)}: expected {expected}, got damaged data: {printable(str(error))}"
    ) from error
