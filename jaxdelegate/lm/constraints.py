"""Answers that match a grammar: which tokens may come next, by the package llguidance."""

import functools
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from jaxdelegate.bundles.tokenizers import Tokenizer
from jaxdelegate.errors import OptionError
from jaxdelegate.lm.configs import ResponseFormat
from jaxdelegate.lm.schema_checks import GRAMMAR, check_grammar, refused
from jaxdelegate.lm.threads import in_thread
from jaxdelegate.optional import is_failure, optional_module

_EXTRA = "lm"
_BITS = 32
_ADDED = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
_NO_MATCH = "no token may follow, and the answer does not match"


class Grammar(NamedTuple):
    """What answers match.

    Attributes:
        kind: "json_schema", "regex" or "lark": llguidance's form of Lark's grammars.
        text: the schema in JSON, the pattern, or the grammar.
    """

    kind: Literal["json_schema", "regex", "lark"]
    text: str

    @classmethod
    def json(cls, schema: Mapping[str, Any] | str) -> Self:
        """JSON that matches a schema. An OptionError: it is not JSON."""
        return cls("json_schema", schema if isinstance(schema, str) else _json(schema))

    @classmethod
    def of(cls, form: ResponseFormat | None) -> Self | None:
        """That of a format; None: any text."""
        if form is None or form.type == ResponseFormat.Type.NONE:
            return None
        is_regex = form.type == ResponseFormat.Type.REGEX
        return cls("regex" if is_regex else "json_schema", form.schema_or_pattern)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Self:
        """One of some texts."""
        return cls("lark", "start: " + " | ".join(map(json.dumps, texts)))


class Constraint:
    """Which tokens may follow an answer. Not for several threads at once.

    Attributes:
        error: why the answer cannot go on; None: it can, or is complete.
    """

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        """`matcher`: of llguidance, for an empty answer."""
        self._matcher, self._vocabulary = matcher, vocabulary

    def copy(self) -> Self:
        """One for another answer that has the same tokens so far."""
        return type(self)(self._matcher.deep_copy(), self._vocabulary)

    @property
    def error(self) -> str | None:
        """Without the state that llguidance appends."""
        error = str(self._matcher.get_error()).partition("\n<")[0]
        return error or (_NO_MATCH if self._is_stopped and not self.is_match else None)

    @property
    def is_match(self) -> bool:
        """Whether the answer may end here."""
        return bool(self._matcher.is_accepting())

    @property
    def is_complete(self) -> bool:
        """Whether the answer matches, and nothing may follow."""
        return self._is_stopped and self.is_match

    @property
    def _is_stopped(self) -> bool:
        return bool(self._matcher.is_stopped())

    def allowed(self) -> np.ndarray:
        """A bit for each token that may come next, uint32 [`words`]."""
        found = np.zeros(words(self._vocabulary), np.uint32)
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)[: len(found)]
        found[: len(bits)] = bits  # a model may have more tokens than its tokenizer
        return found

    def add(self, token: int) -> None:
        """The answer has this token now."""
        self._matcher.consume_token(token)


class _Tokens:
    """A tokenizer as llguidance sees it."""

    bos_token_id = None

    def __init__(
        self, tokenizer: Tokenizer, pieces: Sequence[bytes | None], stops: Sequence[int]
    ) -> None:
        self._tokenizer, self.eos_token_id = tokenizer, stops[0]
        # A stop may be a piece like others, which could be a part of a string.
        pieces = [None if i in stops else piece for i, piece in enumerate(pieces)]
        self.tokens = [b"" if piece is None else piece for piece in pieces]
        self.special_token_ids = [i for i, piece in enumerate(pieces) if piece is None]
        self._ids = {piece: i for i, piece in enumerate(pieces) if piece is not None}
        self._most = max(map(len, self.tokens))

    def __call__(self, text: bytes) -> list[int]:
        """The tokens of a part of a text."""
        found = self._tokenizer.encode(text.decode(errors="replace"))
        # Some put a space before the beginning, or change other characters.
        is_same = b"".join(self.tokens[i] for i in found) == text
        return found if is_same else [*self._longest(text)]

    def _longest(self, text: bytes) -> Iterator[int]:
        while text:
            sizes = range(min(len(text), self._most), 0, -1)
            size = next((n for n in sizes if text[:n] in self._ids), None)
            if size is None:
                return
            yield self._ids[text[:size]]
            text = text[size:]


class Constraints:
    """Makes constraints for a model."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[int], vocabulary: int) -> None:
        """`stops`: the tokens that end an answer."""
        self._tokenizer, self._stops, self._vocabulary = tokenizer, list(stops), vocabulary
        self._lock = threading.Lock()  # reading a tokenizer takes up to seconds

    def matching(self, grammar: Grammar) -> Constraint:
        """A constraint to texts that match a grammar.

        Raises:
            OptionError: llguidance is not installed, or does not support the grammar; compiling it
                takes too much time, stack or memory; the bundle has no stop.
        """
        optional_module("llguidance", _EXTRA)
        if not self._stops:
            raise OptionError("the bundle declares no single token that ends an answer")
        check_grammar(*grammar)
        return in_thread(lambda: self._compiled(grammar)).result()

    def _compiled(self, grammar: Grammar) -> Constraint:
        matcher = optional_module("llguidance", _EXTRA).LLMatcher
        if grammar.kind == "json_schema":
            compiled = matcher.grammar_from_json_schema(grammar.text, overrides=GRAMMAR)
        elif grammar.kind == "regex":
            compiled = matcher.grammar_from_regex(grammar.text)
        else:
            compiled = matcher.grammar_from_lark(grammar.text)
        with self._lock:
            tokens = self._tokens
        constraint = Constraint(matcher(tokens, compiled, log_level=0), self._vocabulary)
        constraint.allowed()  # it checks limits, too
        if constraint.error is not None:
            raise OptionError(refused(grammar.kind, constraint.error))
        return constraint

    @functools.cached_property
    def _tokens(self) -> Any:
        package, known = optional_module("llguidance", _EXTRA), self._tokenizer.definition()
        try:
            if isinstance(known, str):
                known = self._with_stops(known)
            else:
                known = package.TokenizerWrapper(_Tokens(self._tokenizer, known, self._stops))
            return package.LLTokenizer(known, eos_token=self._stops)
        except BaseException as error:
            if not is_failure(error):
                raise
            raise OptionError(f"llguidance cannot read the bundle's tokenizer: {error}") from error

    def _with_stops(self, definition: str) -> str:
        """Hugging Face's JSON where the stops are special: not text, which strings may have."""
        if self._tokenizer.special_ids.issuperset(self._stops):
            return definition
        fields = json.loads(definition)
        added = {token["id"]: token for token in fields["added_tokens"]}
        for stop in self._stops:
            token = {**_ADDED, "id": stop, "content": self._tokenizer.token(stop)}
            added[stop] = {**token, **added.get(stop, {}), "special": True}
        return json.dumps({**fields, "added_tokens": [added[i] for i in sorted(added)]})


def _json(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(schema)
    except (RecursionError, TypeError, ValueError) as error:
        raise OptionError(f"the schema: expected an object of JSON: {error}") from None


def words(vocabulary: int) -> int:
    """How many uint32 have a bit for each token."""
    return -(-vocabulary // _BITS)
