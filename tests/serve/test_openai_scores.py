"""Log probabilities of answers and prompts in OpenAI's and vLLM's forms."""

import concurrent.futures
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from jaxdelegate.bundles.tokenizers import Tokenizer
from jaxdelegate.lm.scores import TokenScore
from jaxdelegate.lm.text_stream import Part
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.openai import prompts
from jaxdelegate.serve.openai.scores import PromptForm, ScoreForm, TokenTexts
from tests.lm.test_text_stream import Bytes
from tests.serve.test_openai import CHAT, HELLO, TEXT, Served, completed, rendered
from tests.serve.test_openai_fields import serving
from tests.support.language_models import CHATML, language_bundle

PROMPT = "What is 2 + 3?"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path: Path = tmp_path_factory.mktemp("openai_scores") / "tiny.litertlm"
    path.write_bytes(language_bundle(CHATML))
    with serving(path, Limits()) as server:
        yield server


def scored(served: Served, prompt: str) -> list[float]:
    """By the engine's session: of the tokens after the first one of a prompt.

    The session begins with the bundle's start token, as a prompt that is a text does.
    """
    first, rest = prompt[:1], prompt[1:]
    with served.engine.create_session(apply_prompt_template=False) as session:
        session.run_prefill([first])
        return session.run_text_scoring([rest]).token_scores[0]


def ids_of(served: Served, prompt: str) -> list[int]:
    return served.engine.prompt_ids(prompt)


def completion(served: Served, **body: Any) -> Any:
    found = served.call(TEXT, {"temperature": 0, "max_tokens": 6, **body})
    assert found.status == 200, found.body
    return found.json["choices"]


def check_object(logprobs: Mapping[str, Any], top: int) -> None:
    """The most likely tokens, the chosen one's score among them or next to them."""
    places = zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    )
    for text, score, scores in places:
        if score is None:
            assert scores is None
            continue
        assert top <= len(scores) <= top + 1
        assert not text or scores[text] == score
        assert min(scores.values()) <= score <= max(scores.values())


# ---- answers


@pytest.mark.parametrize("top", [1, 20])
def test_top_logprobs_of_a_completion(served: Served, top: int) -> None:
    (choice,) = completion(served, prompt=PROMPT, logprobs=top)
    expected = completed(served, PROMPT, 6)
    logprobs = choice["logprobs"]
    assert choice["text"] == expected.text
    assert logprobs["token_logprobs"] == pytest.approx(expected.log_probabilities, abs=1e-4)
    check_object(logprobs, top)
    for score, scores in zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert score == max(scores.values())  # the answer is greedy
        assert len(scores) == top


def test_top_logprobs_of_a_chosen_token_that_is_unlikely(served: Served) -> None:
    token = served.engine.tokenize("~")[0]
    bias = {str(token): 100}
    (choice,) = completion(served, prompt=PROMPT, logprobs=2, logit_bias=bias)
    check_object(choice["logprobs"], 2)
    assert all(len(scores) == 3 for scores in choice["logprobs"]["top_logprobs"])
    assert choice["text"] == "~" * 6


@pytest.mark.parametrize("top", [0, 3])
def test_top_logprobs_of_a_chat_and_its_stream(served: Served, top: int) -> None:
    body = {"messages": HELLO, "max_tokens": 8, "temperature": 0}
    body |= {"logprobs": True, "top_logprobs": top}
    content = served.call(CHAT, body).json["choices"][0]["logprobs"]["content"]
    expected = completed(served, rendered(HELLO), 8)
    assert [e["logprob"] for e in content] == pytest.approx(expected.log_probabilities, abs=1e-4)
    for entry in content:
        assert len(entry["top_logprobs"]) == top
        if top:
            first = entry["top_logprobs"][0]
            assert first["logprob"] == entry["logprob"]
            scores = [other["logprob"] for other in entry["top_logprobs"]]
            assert scores == sorted(scores, reverse=True)
            assert not entry["token"] or first["token"] == entry["token"]
    events = served.call(CHAT, {**body, "stream": True}).events
    choices = [event["choices"][0] for event in events]
    assert content == [e for c in choices if c["logprobs"] for e in c["logprobs"]["content"]]


# ---- prompts


def test_an_echo_without_scores(served: Served) -> None:
    ids = ids_of(served, PROMPT)
    texts = [completed(served, PROMPT, 6).text, completed(served, PROMPT[:4], 6).text]
    choices = completion(served, prompt=[PROMPT, PROMPT[:4]], echo=True)
    assert [c["text"] for c in choices] == [PROMPT + texts[0], PROMPT[:4] + texts[1]]
    assert [c["logprobs"] for c in choices] == [None, None]
    (choice,) = completion(served, prompt=ids, echo=True)
    assert choice["text"] == "<bos>" + PROMPT + texts[0]
    (choice,) = completion(served, prompt=ids, echo=True, skip_special_tokens=True, logprobs=0)
    plain = (PROMPT + texts[0]).replace("<bos>", "")
    assert choice["text"] == "".join(choice["logprobs"]["tokens"]) == plain


@pytest.mark.parametrize("top", [0, 1, 20])
def test_an_echo_with_scores(served: Served, top: int) -> None:
    body = {"prompt": PROMPT, "logprobs": top, "echo": True}
    (choice,) = completion(served, **body)
    logprobs, count = choice["logprobs"], len(PROMPT) + 1
    (answer,) = completion(served, prompt=PROMPT, logprobs=top)
    assert choice["text"] == PROMPT + answer["text"] == "".join(logprobs["tokens"])
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["token_logprobs"][2:count] == pytest.approx(scored(served, PROMPT), abs=1e-4)
    assert logprobs["token_logprobs"][count:] == pytest.approx(
        answer["logprobs"]["token_logprobs"], abs=1e-4
    )
    offsets = [len("".join(logprobs["tokens"][:n])) for n in range(len(logprobs["tokens"]))]
    assert logprobs["text_offset"] == offsets
    if top:
        check_object(logprobs, top)
    else:
        assert logprobs["top_logprobs"] is None
    stream = {"temperature": 0, "max_tokens": 6, **body, "stream": True}
    parts = [choice for e in served.call(TEXT, stream).events for choice in e["choices"]]
    assert "".join(part["text"] for part in parts) == choice["text"]
    assert parts[0]["text"].startswith(PROMPT)
    for name in ("tokens", "text_offset"):
        assert [v for part in parts for v in part["logprobs"][name]] == logprobs[name]
    scores = [v for part in parts for v in part["logprobs"]["token_logprobs"]]
    assert scores[1:] == pytest.approx(logprobs["token_logprobs"][1:], abs=1e-4)


def test_only_the_prompt_is_scored(served: Served) -> None:
    more: dict[str, Any]
    for more in ({}, {"stream": True}):
        body = {"prompt": [PROMPT, PROMPT[:1]], "max_tokens": 0, "logprobs": 1, "echo": True}
        found = served.call(TEXT, {**body, **more})
        choices = [c for e in (found.events if more else [found.json]) for c in e["choices"]]
        choices.sort(key=lambda choice: choice["index"])
        assert [c["text"] for c in choices] == [PROMPT, PROMPT[:1]]
        assert [c["finish_reason"] for c in choices] == ["length"] * 2
        first, second = (c["logprobs"]["token_logprobs"] for c in choices)
        assert (first[0], second[0], len(second)) == (None, None, 2)
        assert first[1] == pytest.approx(second[1], abs=1e-4)
        assert first[2:] == pytest.approx(scored(served, PROMPT), abs=1e-4)
        if not more:
            assert found.json["usage"]["completion_tokens"] == 0
    (choice,) = completion(served, prompt=PROMPT, max_tokens=0)
    assert (choice["text"], choice["finish_reason"]) == ("", "length")


def test_a_prompt_that_fills_the_context_is_scored(served: Served) -> None:
    full = [30 + n % 60 for n in range(128)]
    (choice,) = completion(served, prompt=full, max_tokens=0, logprobs=0, echo=True)
    assert len(choice["logprobs"]["token_logprobs"]) == 128


def test_prompt_logprobs(served: Served) -> None:
    ids = ids_of(served, PROMPT)
    (choice,) = completion(served, prompt=PROMPT, prompt_logprobs=3, max_tokens=1)
    first, *rest = choice["prompt_logprobs"]
    assert first is None
    assert "prompt_logprobs" not in completion(served, prompt=PROMPT)[0]
    for token, score, found in zip(ids[2:], scored(served, PROMPT), rest[1:], strict=True):
        own = found[str(token)]
        assert own["logprob"] == pytest.approx(score, abs=1e-4)
        assert own["decoded_token"] == served.engine.detokenize([token])
        ranks = sorted(entry["rank"] for entry in found.values())
        assert ranks[:3] == [1, 2, 3]
        assert len(found) == (3 if own["rank"] <= 3 else 4)
        by_rank = sorted(found.values(), key=lambda entry: entry["rank"])
        scores = [entry["logprob"] for entry in by_rank]
        assert scores == sorted(scores, reverse=True)


def test_prompt_logprobs_of_a_chat(served: Served) -> None:
    body = {"messages": HELLO, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
    found = served.call(CHAT, body).json
    ids = ids_of(served, rendered(HELLO))
    (choice,) = completion(served, prompt=ids, logprobs=0, echo=True, max_tokens=0)
    first, *others = found["prompt_logprobs"]
    assert first is None
    assert [[*entry] for entry in others] == [[str(token)] for token in ids[1:]]
    scores = [entry["logprob"] for other in others for entry in other.values()]
    assert scores == pytest.approx(choice["logprobs"]["token_logprobs"][1:], abs=1e-4)


def test_clients_at_once_get_what_they_get_alone(served: Served) -> None:
    """Prompts are scored together, in turn with answers, in caches of several lengths."""
    bodies: list[dict[str, Any]] = [
        {"prompt": "x" * 70, "max_tokens": 0, "logprobs": 1, "echo": True},
        {"prompt": PROMPT, "max_tokens": 40, "logprobs": 1},
        {"prompt": PROMPT * 5, "max_tokens": 9, "logprobs": 2, "echo": True},
        {"prompt": "y", "max_tokens": 60, "logprobs": 0},
        {"prompt": "z" * 30, "max_tokens": 1, "logprobs": 20, "echo": True},
    ]
    alone = [completion(served, **body)[0] for body in bodies]
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        together = [*pool.map(lambda body: completion(served, **body)[0], bodies)]
    for one, other in zip(alone, together, strict=True):
        assert one["text"] == other["text"]
        scores = (choice["logprobs"]["token_logprobs"] for choice in (one, other))
        first, second = ([score for score in some if score is not None] for some in scores)
        assert first == pytest.approx(second, abs=1e-4)


def test_scores_of_a_request_are_limited(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2 * len(ids_of(served, PROMPT))
    monkeypatch.setattr(prompts, "_MOST_SCORES", count)
    body = {"prompt": PROMPT, "logprobs": 1, "echo": True, "max_tokens": 6}
    assert served.call(TEXT, body).status == 200
    found = served.call(TEXT, {**body, "n": 2})
    assert (found.status, found.error["param"]) == (400, "logprobs")
    assert f"got a request for {2 * count}" in found.error["message"]
    found = served.call(TEXT, {"prompt": PROMPT, "prompt_logprobs": 20})
    assert (found.status, found.error["param"]) == (400, "prompt_logprobs")


# ---- texts


class Few(Bytes):
    """Has no token 200, and a token without a text."""

    def has(self, index: int) -> bool:
        return index < 200

    def token(self, index: int) -> str:
        return "<mark>" if index == 7 else ""

    def decode(self, ids: Any) -> str:
        return super().decode([i for i in ids if i != 7])


def test_names_of_tokens() -> None:
    texts = TokenTexts(Few())
    assert [texts.of(i) for i in (98, 7, 200)] == ["b", "<mark>", "token_id:200"]
    tokenizer: Tokenizer = Bytes()
    assert TokenTexts(tokenizer).of(0xC3) == "\ufffd"


def test_texts_that_are_alike_stay_apart() -> None:
    form = ScoreForm(TokenTexts(Bytes()), 3)
    top = [(0xC3, -0.5), (0xC4, -1.0), (98, -2.0)]
    found = form.completion([Part("b", 98, -2.0, top)], 0)
    assert found["top_logprobs"] == [{"b": -2.0, "token_id:195": -0.5, "token_id:196": -1.0}]
    (entry,) = form.chat([Part("b", 98, float("-inf"), top)])["content"]
    assert entry["logprob"] == -9999.0
    assert [other["bytes"] for other in entry["top_logprobs"]] == [None, None, [98]]


def test_the_start_token_is_no_part_of_the_text() -> None:
    scores = [TokenScore(-1.0, 2, []), TokenScore(-2.0, 3, [])]
    form = PromptForm([1, 98, 99], TokenTexts(Bytes()), "bc", True, False, 0)
    assert [part.text for part in form.parts(scores)] == ["", "b", "c"]
    first, *rest = form.logprobs(scores) or []
    assert first is None
    assert rest[0] == {"98": {"logprob": -1.0, "rank": 2, "decoded_token": "b"}}
