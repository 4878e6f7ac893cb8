"""Fields of OpenAI's and vLLM's APIs: their effects, unknown ones, keys, and tokenization."""

import contextlib
import json
import queue
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxdelegate import lm
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.openai.requests import chat_request
from jaxdelegate.serve.running import Server
from jaxdelegate.serve.settings import ServeSettings
from tests.serve.test_openai import CHAT, HELLO, TEXT, Gate, Served, rendered
from tests.support.language_models import CHATML, SPECIAL, language_bundle


@contextlib.contextmanager
def serving(path: Path, limits: Limits, **settings: Any) -> Iterator[Served]:
    lines, chosen = queue.Queue[str](), ServeSettings(max_batch_size=2, warm=(), **settings)
    server = Server({"tiny": path}, chosen, limits, port=0, say=lines.put)
    thread = threading.Thread(target=server.run)
    thread.start()
    port = int(lines.get(timeout=60).rpartition(":")[2])
    assert "is ready" in lines.get(timeout=200)
    with lm.Engine(path, lm.Backend.CPU()) as engine:
        yield Served(port, engine, Gate(), server)
    server.stop()
    thread.join(60)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("openai_fields") / "tiny.litertlm"
    path.write_bytes(language_bundle(CHATML))
    return path


@pytest.fixture(scope="module")
def served(bundle: Path) -> Iterator[Served]:
    with serving(bundle, Limits()) as server:
        yield server


@pytest.fixture(scope="module")
def strict(bundle: Path) -> Iterator[Served]:
    limits = Limits(strict_fields=True, api_keys=("secret", "other"))
    with serving(bundle, limits) as server:
        yield server


def ids_of(served: Served, **body: Any) -> list[int]:
    """The tokens of a greedy answer to "Hello", whose bundle has a token for each byte."""
    fields = {"prompt": "Hello", "temperature": 0, "max_tokens": 12, "logprobs": 0}
    answer = served.call(TEXT, fields | body)
    assert answer.status == 200, answer.body
    (choice,) = answer.json["choices"]
    return served.engine.tokenize(choice["text"])


def plain(served: Served) -> list[int]:
    (answer,) = served.engine.generate(["Hello"], max_output_tokens=12)
    return answer.token_ids


# ---- how tokens are chosen


def test_logit_bias_moves_tokens(served: Served) -> None:
    first, *_ = plain(served)
    assert ids_of(served, logit_bias={str(first): -100})[0] != first
    token = served.engine.tokenize("Q")[0]
    assert set(ids_of(served, logit_bias={str(token): 100})) == {token}
    assert ids_of(served, logit_bias={}) == ids_of(served)


def test_repetition_penalty_is_that_of_the_engine(served: Served) -> None:
    (expected,) = served.engine.generate(
        ["Hello"],
        max_output_tokens=12,
        repetition_penalty_config=lm.RepetitionPenaltyConfig(repetition_penalty=5),
    )
    body = {"prompt": "Hello", "temperature": 0, "max_tokens": 12, "repetition_penalty": 5.0}
    assert served.call(TEXT, body).json["choices"][0]["text"] == expected.text


def test_min_p_of_one_leaves_the_most_likely_token(served: Served) -> None:
    hot = {"temperature": 2, "top_k": 0, "top_p": 1, "seed": 3}
    assert ids_of(served, **hot) != ids_of(served)
    assert ids_of(served, **hot, min_p=1) == ids_of(served)
    assert ids_of(served, **{**hot, "top_k": 7}, min_p=1) == ids_of(served)
    assert ids_of(served, **hot, min_p=0) == ids_of(served, **hot)


# ---- where answers end


def test_stop_token_ids_end_an_answer(served: Served) -> None:
    tokens = plain(served)
    stop = tokens[4]
    for more in ({}, {"n": 1, "stream": True}):
        body = {"prompt": "Hello", "temperature": 0, "max_tokens": 12, "stop_token_ids": [stop]}
        found = served.call(TEXT, {**body, **more})
        choices = [e["choices"][0] for e in (found.events if more else [found.json])]
        text = "".join(choice["text"] for choice in choices)
        assert text == served.engine.detokenize(tokens[: tokens.index(stop)])
        assert choices[-1]["finish_reason"] == "stop"


def test_the_stop_belongs_to_the_answer_if_asked(served: Served) -> None:
    text = served.engine.detokenize(plain(served))
    stop = text[3:5]
    body = {"prompt": "Hello", "temperature": 0, "max_tokens": 12, "stop": ["", stop, "zzzzz"]}
    body["include_stop_str_in_output"] = True
    (choice,) = served.call(TEXT, body).json["choices"]
    assert choice["text"] == text[: text.index(stop) + len(stop)]
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("stop", ["", [""], [], None])
def test_an_empty_stop_is_none(served: Served, stop: Any) -> None:
    assert ids_of(served, stop=stop) == ids_of(served)


def test_ends_of_the_bundle(served: Served) -> None:
    """A bias makes the stop the most likely token."""
    stop = SPECIAL.index("<eos>")
    body = {"prompt": "Hello", "temperature": 0, "max_tokens": 6, "logit_bias": {str(stop): 100}}

    def ended(**more: Any) -> tuple[int, str]:
        answer = served.call(TEXT, {**body, **more}).json
        return answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]

    assert ended() == (0, "stop")
    assert ended(min_tokens=3) == (3, "stop")
    assert ended(min_tokens=6) == (6, "length")
    assert ended(ignore_eos=True) == (6, "length")


def test_ends_of_one_request_leave_others_alone(served: Served) -> None:
    """It rests in its slot while the others run other programs."""
    expected = ids_of(served)
    for more in ({"ignore_eos": True}, {"min_tokens": 2}, {"logit_bias": {"5": 1}}):
        ids_of(served, **more)
        assert ids_of(served) == expected


def test_special_tokens_have_a_text_unless_they_are_skipped(served: Served) -> None:
    mark = SPECIAL.index("<|im_start|>")
    body = {"prompt": "Hello", "temperature": 0, "max_tokens": 3, "logit_bias": {str(mark): 100}}

    def text(**more: Any) -> str:
        return str(served.call(TEXT, {**body, **more}).json["choices"][0]["text"])

    assert text() == "<|im_start|>" * 3
    assert text(skip_special_tokens=True) == ""
    assert text(stop_token_ids=[mark]) == ""


# ---- grammars


@pytest.fixture
def has_llguidance() -> None:
    pytest.importorskip("llguidance")


GRAMMARS: dict[str, tuple[dict[str, Any], str]] = {
    "regex": ({"structured_outputs": {"regex": "[ab]{3}-[0-9]"}}, "[ab]{3}-[0-9]"),
    "guided": ({"guided_regex": "x{4}"}, "x{4}"),
    "format": ({"response_format": {"type": "regex", "regex": "(no|yes)!"}}, "(no|yes)!"),
    "choice": ({"structured_outputs": {"choice": ["red", 'a "b"\\', "blue"]}}, r'red|a "b"\\|blue'),
    "guided choice": ({"guided_choice": ["one"]}, "one"),
    "lark": ({"structured_outputs": {"grammar": 'start: "a" ("b" | "c")'}}, "a[bc]"),
    "json": ({"guided_json": {"const": [1, 2]}}, r"\[ ?1 ?, ?2 ?\]"),
    "json as text": ({"structured_outputs": {"json": '{"const": "x"}'}}, '"x"'),
}


@pytest.mark.usefixtures("has_llguidance")
@pytest.mark.parametrize("kind", GRAMMARS)
def test_answers_match_a_grammar(served: Served, kind: str) -> None:
    fields, pattern = GRAMMARS[kind]
    for temperature in (0, 2):
        body = {"messages": HELLO, "max_tokens": 40, "temperature": temperature, "seed": 5}
        (choice,) = served.call(CHAT, {**body, **fields}).json["choices"]
        assert re.fullmatch(pattern, choice["message"]["content"])
        assert choice["finish_reason"] == "stop"


@pytest.mark.usefixtures("has_llguidance")
@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"guided_regex": "("}, "guided_regex", "change the regular expression, which llguidance"),
        ({"guided_regex": "(" * 5000}, "guided_regex", "change the regular expression, which"),
        ({"guided_grammar": "nonsense"}, "guided_grammar", "change the grammar, which llguidance"),
        ({"guided_json": "{"}, "guided_json", "expected the JSON of a schema"),
        ({"guided_json": 5}, "guided_json", "expected an object, got 5"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex", "expected a string"),
    ],
)
def test_wrong_grammars(served: Served, fields: Any, param: str, said: str) -> None:
    found = served.call(CHAT, {"messages": HELLO, **fields})
    assert (found.status, found.error["param"]) == (400, param)
    assert said in found.error["message"]
    assert len(found.body) < 2000


# ---- prompts


def test_a_chat_continues_its_last_message(served: Served) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "It is"}]
    prompt = rendered(messages).removesuffix("<|im_end|>\n<|im_start|>assistant\n")
    assert prompt.endswith("It is")
    (expected,) = served.engine.generate([prompt], max_output_tokens=9)
    body = {"messages": messages, "temperature": 0, "max_tokens": 9}
    for more in ({}, {"add_generation_prompt": False}):
        found = served.call(CHAT, {**body, **more, "continue_final_message": True})
        assert found.json["choices"][0]["message"]["content"] == expected.text


def test_a_chat_without_a_generation_prompt(served: Served) -> None:
    prompt = rendered(HELLO).removesuffix("<|im_start|>assistant\n")
    (expected,) = served.engine.generate([prompt], max_output_tokens=9)
    body = {"messages": HELLO, "temperature": 0, "max_tokens": 9, "add_generation_prompt": False}
    assert served.call(CHAT, body).json["choices"][0]["message"]["content"] == expected.text


def test_reasoning_effort_is_a_variable_of_the_template() -> None:
    body = {"model": "m", "messages": HELLO, "reasoning_effort": "none"}
    chat = chat_request(json.dumps(body).encode()).chat
    assert chat is not None
    assert chat.context == {"reasoning_effort": "none", "enable_thinking": False}
    body |= {"reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "low"}}
    chat = chat_request(json.dumps(body).encode()).chat
    assert chat is not None
    assert chat.context == {"reasoning_effort": "low"}


# ---- fields as clients send them


def test_null_and_whole_floats(served: Served) -> None:
    body = {"prompt": "Hello", "max_tokens": 3.0, "n": 1.0, "seed": 7.0, "top_k": 1.0}
    nulls = dict.fromkeys(("stream_options", "stop", "logit_bias", "response_format", "min_p"))
    answer = served.call(TEXT, {**body, **nulls}).json
    assert answer["usage"]["completion_tokens"] == 3
    more = {"stream": True, "stream_options": {"include_usage": None}}
    assert served.call(TEXT, {**body, **more}).status == 200


def test_the_only_model_needs_no_name(served: Served) -> None:
    body = json.dumps({"prompt": "Hello", "max_tokens": 1}).encode()
    assert served.call(TEXT, body).json["model"] == "tiny"


def test_unknown_fields_are_named(served: Served) -> None:
    fields = {"warmth": 1, 'a "b"\n\u00e9': 2, "max_tokens": 1}
    expected = "299 jaxdelegate \"ignored unknown fields: 'warmth', 'a "
    for path, what in ((TEXT, {"prompt": "x"}), (CHAT, {"messages": HELLO})):
        for more in ({}, {"stream": True}):
            found = served.call(path, {**what, **fields, **more})
            assert found.status == 200
            assert found.headers["warning"].startswith(expected)
    assert "warning" not in served.call(TEXT, {"prompt": "x", "max_tokens": 1}).headers


def test_strict_servers_refuse_unknown_fields(strict: Served) -> None:
    key = {"Authorization": "Bearer secret"}
    for path, what in ((TEXT, {"prompt": "x"}), (CHAT, {"messages": HELLO})):
        found = strict.call(path, {**what, "warmth": 1}, **key)
        assert (found.status, found.error["param"]) == (400, "warmth")
        assert found.error["code"] == "unknown_parameter"
    assert strict.call("/tokenize", {"prompt": "x", "warmth": 1}, **key).status == 400


# ---- the server


def test_health_and_version(served: Served) -> None:
    assert (served.call("/health").status, served.call("/health").body) == (200, b"")
    assert served.call("/ping").status == served.call("/ping", {}).status == 200
    assert [*served.call("/version").json] == ["version"]
    assert served.call("/v1/models").json["data"][0]["status"] == "ready"


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "secret"}, 401),
        ({"Authorization": "Bearer secret"}, 200),
        ({"Authorization": "bearer  other"}, 200),
    ],
)
def test_keys(strict: Served, header: dict[str, str], status: int) -> None:
    for path in ("/v1/models", "/tokenizer_info", "/v2/models/stats"):
        assert strict.call(path, **header).status == status
    found = strict.call(CHAT, {"messages": HELLO, "max_tokens": 1}, **header)
    assert found.status == status
    if status == 401:
        assert found.error["code"] == "invalid_api_key"
        assert found.headers["www-authenticate"] == "Bearer"


def test_health_needs_no_key(strict: Served) -> None:
    for path in ("/health", "/ping", "/version", "/v2/health/ready", "/metrics"):
        assert strict.call(path).status == 200


# ---- tokens


def test_tokens_of_texts_and_chats(served: Served) -> None:
    found = served.call("/tokenize", {"prompt": "Hello"}).json
    ids = served.engine.prompt_ids("Hello")
    assert found == {"count": len(ids), "max_model_len": 128, "tokens": ids}
    body = {"prompt": "Hello", "add_special_tokens": False}
    assert served.call("/tokenize", body).json["tokens"] == served.engine.tokenize("Hello")
    chat = served.call("/tokenize", {"messages": HELLO}).json["tokens"]
    assert chat == served.engine.prompt_ids(rendered(HELLO))
    assert served.call("/detokenize", {"tokens": ids[1:]}).json == {"prompt": "Hello"}


def test_what_a_tokenizer_is(served: Served) -> None:
    info = served.call("/tokenizer_info").json
    assert (info["bos_token"], info["eos_token"]) == ("<bos>", "<eos>")
    assert info["chat_template"] == CHATML
    assert (info["vocab_size"], info["model_max_length"]) == (256 + len(SPECIAL), 128)


@pytest.mark.parametrize(
    ("path", "body", "param", "said"),
    [
        ("/tokenize", {}, "prompt and messages", "expected one of them"),
        ("/tokenize", {"prompt": "x", "messages": HELLO}, "prompt and messages", "one of them"),
        ("/tokenize", {"prompt": 5}, "prompt", "expected a string"),
        ("/detokenize", {}, "tokens", "missing field"),
        ("/detokenize", {"tokens": [99999]}, "tokens", "expected ids of the tokenizer's"),
        ("/detokenize", {"tokens": "x"}, "tokens", "expected token ids"),
    ],
)
def test_wrong_requests_for_tokens(
    served: Served, path: str, body: Any, param: str, said: str
) -> None:
    found = served.call(path, body)
    assert (found.status, found.error["param"]) == (400, param)
    assert said in found.error["message"]


def test_messages_come_back_as_clients_keep_them(served: Served) -> None:
    """Fields that other servers or clients add to answers."""
    kept = {"provider_specific_fields": {"refusal": None}, "thinking_blocks": [1], "refusal": None}
    said = {"role": "assistant", "content": "Hi", "reasoning": "hm", **kept, "function_call": None}
    body = {"messages": [*HELLO, said, *HELLO], "max_tokens": 1}
    assert "warning" not in served.call(CHAT, body).headers
    chat = chat_request(json.dumps(body).encode()).chat
    assert chat is not None
    assert chat.messages[1]["reasoning_content"] == "hm"
    other = {**body, "messages": [*HELLO, {**said, "extra": 1}, {**HELLO[0], "extra": 2}]}
    assert "'messages[1].extra'" in served.call(CHAT, other).headers["warning"]
    for name, value in {"function_call": {"name": "f"}, "audio": {"id": "a"}}.items():
        found = served.call(CHAT, {"messages": [{**said, name: value}]})
        assert (found.status, found.error["param"]) == (400, f"messages[0].{name}")


def test_unknown_fields_of_messages_are_refused_when_strict(strict: Served) -> None:
    body = {"messages": [{**HELLO[0], "extra": 1}], "max_tokens": 1}
    found = strict.call(CHAT, body, Authorization="Bearer secret")
    assert (found.status, found.error["param"]) == (400, "messages[0].extra")
