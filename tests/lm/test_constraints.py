"""Constraints: what llguidance allows, for both kinds of tokenizers; the mask on the device."""

import concurrent.futures
import functools
import io
import json
import time
from collections.abc import Sequence
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
import sentencepiece

from jaxdelegate import lm
from jaxdelegate.bundles.tokenizers import TYPES, Tokenizer, open_tokenizer
from jaxdelegate.errors import OptionError
from jaxdelegate.lm.constraints import Constraint, Constraints, Grammar, words
from jaxdelegate.lm.sampler import next_token
from jaxdelegate.lm.sampling_params import SamplingParams
from tests.support.bundles import compressed
from tests.support.language_models import SPECIAL, byte_tokenizer

llguidance: Any = pytest.importorskip(
    "llguidance", reason="the package llguidance is not installed"
)

SCHEMA: dict[str, Any] = {"enum": ["no", "yes"]}


@functools.cache
def sentencepiece_with_bytes(user_defined_symbols: Sequence[str] = ()) -> bytes:
    """A model that has a token for each byte."""
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["yes and no", "no or yes"] * 9),
        model_writer=trained,
        vocab_size=280,
        byte_fallback=True,
        user_defined_symbols=list(user_defined_symbols),
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return trained.getvalue()


@pytest.fixture(params=["SentencePiece", "Hugging Face"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "SentencePiece":
        return open_tokenizer(TYPES[0], memoryview(sentencepiece_with_bytes()), "a test")
    return open_tokenizer(TYPES[1], memoryview(compressed(byte_tokenizer())), "a test")


def stop_of(tokenizer: Tokenizer) -> int:
    name = "</s>" if tokenizer.kind == "SentencePiece" else "<eos>"
    found = tokenizer.token_id(name)
    assert found is not None
    return found


def constrained(tokenizer: Tokenizer, schema: Any, extra: int = 0) -> Constraint:
    stops = [stop_of(tokenizer)]
    return Constraints(tokenizer, stops, tokenizer.size + extra).matching(Grammar.json(schema))


def allowed(constraint: Constraint) -> list[int]:
    bits = np.unpackbits(constraint.allowed().view(np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()


def test_every_walk_ends_with_an_answer(tokenizer: Tokenizer, rng: np.random.Generator) -> None:
    texts = set()
    first = constrained(tokenizer, SCHEMA)
    for _ in range(20):
        constraint, ids = first.copy(), []
        while not constraint.is_complete:
            ids.append(int(rng.choice(allowed(constraint))))
            constraint.add(ids[-1])
            assert constraint.error is None
        texts.add(json.loads(tokenizer.decode(ids)))
    assert texts == {"no", "yes"}
    assert not first.is_complete


def test_tokens_that_the_tokenizer_does_not_have(tokenizer: Tokenizer) -> None:
    constraint = constrained(tokenizer, SCHEMA, extra=70)
    assert len(constraint.allowed()) == words(tokenizer.size + 70)
    assert max(allowed(constraint)) < tokenizer.size


def test_an_answer_may_end_only_where_it_matches(tokenizer: Tokenizer) -> None:
    constraint, stop = constrained(tokenizer, {"type": "integer"}), stop_of(tokenizer)
    assert stop not in allowed(constraint)
    for token in tokenizer.encode("7"):
        constraint.add(token)
    assert stop in allowed(constraint)
    assert not constraint.is_complete  # more digits may follow


@pytest.mark.parametrize(
    "own", [{}, {"x-guidance": {"whitespace_flexible": True, "item_separator": "[ ]{0,40},"}}]
)
def test_blanks_end(tokenizer: Tokenizer, own: Any) -> None:
    constraint, seen = constrained(tokenizer, {"type": "object", **own}), list[int]()
    for text in "{ ":
        seen = allowed(constraint)
        constraint.add(tokenizer.encode("}" + text)[-1])  # nothing is added before it
    assert constraint.error is None
    space = tokenizer.encode("} ")[-1]
    assert space in seen
    assert space not in allowed(constraint)
    assert (tokenizer.token_id("<0x0A>") or tokenizer.encode("\n")[0]) not in seen


def test_a_token_that_is_not_allowed(tokenizer: Tokenizer) -> None:
    constraint = constrained(tokenizer, SCHEMA)
    constraint.add(stop_of(tokenizer))
    assert constraint.error is not None
    assert not constraint.is_complete


def with_stop(kind: str) -> tuple[Tokenizer, int]:
    """A tokenizer whose stop is a piece like others, not a special one."""
    if kind == "SentencePiece":
        data = sentencepiece_with_bytes(user_defined_symbols=("<stop>",))
        tokenizer = open_tokenizer(TYPES[0], memoryview(data), "a test")
    else:
        fields = json.loads(byte_tokenizer())
        added = {**fields["added_tokens"][0], "id": 261, "content": "<stop>", "special": False}
        fields["added_tokens"] += [added] if kind == "Hugging Face, added" else []
        fields["model"]["vocab"]["<stop>"] = 261
        content = compressed(json.dumps(fields).encode())
        tokenizer = open_tokenizer(TYPES[1], memoryview(content), "a test")
    stop = tokenizer.token_id("<stop>")
    assert stop is not None
    return tokenizer, stop


@pytest.mark.parametrize(
    "kind", ["SentencePiece", "Hugging Face, added", "Hugging Face, in the vocabulary"]
)
def test_a_stop_that_is_a_piece_like_others(kind: str, rng: np.random.Generator) -> None:
    """It ends the answer, and is never a part of a string or of a name."""
    tokenizer, stop = with_stop(kind)
    makes = Constraints(tokenizer, [stop], tokenizer.size)
    for schema in ({"type": "string", "maxLength": 4}, {"type": "object", "maxProperties": 1}):
        first, ends = makes.matching(Grammar.json(schema)), 0
        for _ in range(20):
            constraint, ids = first.copy(), list[int]()
            while not constraint.is_complete and len(ids) < 30:
                token = int(rng.choice(allowed(constraint)))
                assert token != stop or constraint.is_match
                if token == stop:
                    break
                constraint.add(token)
                ids.append(token)
            if constraint.is_match:
                ends += 1
                json.loads(tokenizer.decode(ids))
        assert ends


@pytest.mark.parametrize("has_special", [True, False])
def test_a_tokenizer_is_read_once(has_special: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Constraints that come meanwhile wait; stops that are special already change nothing."""
    tokenizer, stop = with_stop("Hugging Face, added")
    stop = stop_of(tokenizer) if has_special else stop
    real, read = llguidance.LLTokenizer, list[str]()

    def reading(definition: str, **options: Any) -> Any:
        read.append(definition)
        time.sleep(0.2)
        return real(definition, **options)

    monkeypatch.setattr(llguidance, "LLTokenizer", reading)
    makes = Constraints(tokenizer, [stop], tokenizer.size)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for made in [pool.submit(makes.matching, Grammar.json(SCHEMA)) for _ in range(3)]:
            assert made.result().allowed().any()
    assert [text == tokenizer.definition() for text in read] == [has_special]


def test_a_schema_that_llguidance_cannot_complete(tokenizer: Tokenizer) -> None:
    """It stops, and does not accept: a named property meets a pattern (llguidance#265)."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "patternProperties": {"^a$": {"type": "string"}},
        "additionalProperties": False,
    }
    constraint = constrained(tokenizer, schema)
    for text in '{"a":"b", ':
        constraint.add(tokenizer.encode("}" + text)[-1])
        constraint.allowed()
    if constraint.error is None:  # a release that completes it
        pytest.skip("this llguidance completes the answer")
    assert not constraint.is_match
    assert not constraint.is_complete


def test_a_matcher_that_stops_too_early_is_an_error() -> None:
    matcher = mock.Mock()
    matcher.get_error.return_value = ""
    matcher.is_stopped.return_value, matcher.is_accepting.return_value = True, False
    constraint = Constraint(matcher, 1)
    assert constraint.error == "no token may follow, and the answer does not match"
    assert not constraint.is_complete


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "foo"}, "Invalid type: foo"),
        ({"not": {"type": "string"}}, "Unimplemented keys"),
        ({"$ref": "http://x/y"}, "not present in a registry"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "object", "x-guidance": {"foo": 1}}, "unknown field `foo`"),
    ],
)
def test_schemas_that_are_refused(tokenizer: Tokenizer, schema: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        constrained(tokenizer, schema)


def test_a_bundle_without_a_stop(tokenizer: Tokenizer) -> None:
    with pytest.raises(OptionError, match="no single token that ends an answer"):
        Constraints(tokenizer, [], tokenizer.size).matching(Grammar.json(SCHEMA))


@pytest.mark.parametrize("sampler", [lm.SamplerConfig(), lm.SamplerConfig(top_k=40)])
def test_the_mask(sampler: lm.SamplerConfig, rng: np.random.Generator) -> None:
    """Only tokens whose bits are set are chosen, also beyond the 32nd, and by their logits."""
    size = len(SPECIAL) + 65
    variant = SamplingParams(sampler).variant(size, is_masked=True)
    run = jax.jit(lambda *values: next_token(variant, *values))
    for seed in range(5):
        kept = rng.permutation(size)[:7]
        mask = np.zeros(words(size), np.uint32)
        np.bitwise_or.at(mask, kept // 32, np.uint32(1) << (kept % 32).astype(np.uint32))
        choice = (
            SamplingParams(sampler)
            .arrays(variant, size)
            ._replace(allowed=mask, seed=np.uint32(seed))
        )
        logits = rng.normal(0, 3, size).astype(np.float32)
        token, *_ = run(choice, logits, np.zeros(0, np.int32), np.int32(0))
        expected = kept if sampler.top_k else [kept[logits[kept].argmax()]]
        assert int(token) in expected
