"""OpenAI's API over HTTP: answers equal the engine's; streams, errors, disconnects, limits."""

import concurrent.futures
import contextlib
import dataclasses
import http.client
import json
import math
import queue
import re
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate import lm
from jaxdelegate.errors import ModelError, OptionError, StoppedError
from jaxdelegate.lm.constraints import Constraint, Constraints, Grammar, words
from jaxdelegate.lm.language_model import LanguageModel as Programs
from jaxdelegate.lm.model_runner import ModelRunner
from jaxdelegate.lm.program_spec import MAX_DECODE_STEPS
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.scheduler import ActiveRequest, Scheduler
from jaxdelegate.serve.clients import RequestError
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.metrics import TextRecorder
from jaxdelegate.serve.openai.language_model import LanguageModel
from jaxdelegate.serve.openai.requests import ApiError, chat_request
from jaxdelegate.serve.running import Server
from jaxdelegate.serve.settings import ServeSettings
from tests.serve.stock import NETWORKS
from tests.support.language_models import CHATML, SPECIAL, language_bundle

TEMPLATE = "{% if messages[0].content == 'refuse' %}{{ raise_exception('no') }}{% endif %}" + CHATML
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]


class Gate:
    """Lets batches run freely, or a number of times."""

    def __init__(self) -> None:
        self._permits: threading.Semaphore | None = None
        self.left: queue.Queue[ActiveRequest] = queue.Queue()

    def close(self) -> None:
        self._permits = threading.Semaphore(0)

    def allow(self, count: int) -> None:
        assert self._permits is not None
        self._permits.release(count)

    def open(self) -> None:
        permits, self._permits = self._permits, None
        if permits is not None:
            permits.release(1000)

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        run, leave = Scheduler.decode, Scheduler.leave

        def gated(batch: Scheduler, steps: int = MAX_DECODE_STEPS) -> list[ActiveRequest]:
            if self._permits is None or batch.free == batch.slots:
                return run(batch, steps)
            self._permits.acquire()
            return run(batch, 1)

        def noticed(batch: Scheduler, running: ActiveRequest) -> None:
            leave(batch, running)
            self.left.put(running)

        patch.setattr(Scheduler, "decode", gated)
        patch.setattr(Scheduler, "leave", noticed)


@dataclasses.dataclass
class Served:
    port: int
    engine: lm.Engine
    gate: Gate
    server: Server

    def call(self, path: str, body: Any = None, **headers: str) -> "Answer":
        with contextlib.closing(self.send(path, body, **headers)) as connection:
            found = connection.getresponse()
            return Answer(found.status, dict(found.getheaders()), found.read())

    def send(self, path: str, body: Any = None, **headers: str) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        if isinstance(body, dict):
            body = json.dumps({"model": "tiny", **body})
        connection.request("GET" if body is None else "POST", path, body, headers)
        return connection

    def metric(self, name: str) -> float:
        lines = self.call("/metrics").body.decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


@dataclasses.dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """Those of a stream, which must end as it should."""
        assert self.headers["content-type"].startswith("text/event-stream")
        *events, done, rest = self.body.decode().split("\n\n")
        assert (done, rest) == ("data: [DONE]", "")
        return [json.loads(e.removeprefix("data: ")) for e in events]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("openai") / "tiny.litertlm"
    path.write_bytes(language_bundle(TEMPLATE))
    gate, lines = Gate(), queue.Queue[str]()
    settings = ServeSettings(max_batch_size=3, max_queue_size=2, warm=())
    keywords = NETWORKS / "keywords.tflite"
    with pytest.MonkeyPatch.context() as patch:
        gate.patch(patch)
        models: dict[str, Path] = {"tiny": path, "keywords": keywords}
        server = Server(models, settings, Limits(), port=0, say=lines.put)
        thread = threading.Thread(target=server.run)
        thread.start()
        port = int(lines.get(timeout=60).rpartition(":")[2])
        for _ in models:
            assert "is ready" in lines.get(timeout=200)
        with lm.Engine(path, lm.Backend.CPU()) as engine:
            yield Served(port, engine, gate, server)
        server.stop()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def gate(served: Served) -> Iterator[Gate]:
    """Closed; opened at the end."""
    served.gate.close()
    while not served.gate.left.empty():
        served.gate.left.get()
    yield served.gate
    served.gate.open()


def completed(served: Served, prompt: str, limit: int) -> lm.Completion:
    (found,) = served.engine.generate([prompt], max_output_tokens=limit, log_probabilities=True)
    return found


def rendered(messages: list[dict[str, str]]) -> str:
    said = [f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages]
    return "".join(said) + "<|im_start|>assistant\n"


# ---- answers


def test_models(served: Served) -> None:
    (found,) = served.call("/v1/models").json["data"]
    assert (found["id"], found["object"], found["max_model_len"]) == ("tiny", "model", 128)
    assert served.call("/v1/models/tiny").json == found
    assert served.call("/v1/models/other").error["code"] == "model_not_found"


def test_a_chat(served: Served) -> None:
    messages = [{"role": "system", "content": "Be brief."}, *HELLO]
    expected = completed(served, rendered(messages), 20)
    found = served.call(CHAT, {"messages": messages, "max_completion_tokens": 20, "temperature": 0})
    (choice,) = found.json["choices"]
    assert choice["message"]["content"] == expected.text
    assert choice["finish_reason"] == expected.finish_reason
    usage = found.json["usage"]
    assert usage["prompt_tokens"] == expected.prompt_tokens
    assert usage["completion_tokens"] == len(expected.token_ids)
    assert usage["total_tokens"] == expected.prompt_tokens + len(expected.token_ids)
    parts = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]
    messages = [{"role": "developer", "content": parts}, *HELLO]
    again = served.call(CHAT, {"messages": messages, "max_tokens": 20, "temperature": 0}).json
    assert again["choices"][0]["message"] == choice["message"]
    # The caches have the prompt now, all but its last token.
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == expected.prompt_tokens - 1


def test_a_stream_has_the_same_text(served: Served) -> None:
    body = {"messages": HELLO, "max_tokens": 20, "temperature": 0, "logprobs": True}
    whole = served.call(CHAT, body).json
    more = {"stream": True, "stream_options": {"include_usage": True}}
    events = served.call(CHAT, {**body, **more}).events
    assert len({e["id"] for e in events}) == 1
    assert {e["object"] for e in events} == {"chat.completion.chunk"}
    *chunks, last = events
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 20)
    assert {e["usage"] for e in chunks} == {None}
    choices = [e["choices"][0] for e in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    message = whole["choices"][0]
    text = "".join(c["delta"].get("content", "") for c in choices)
    assert text == message["message"]["content"]
    scores = [s for c in choices if c["logprobs"] for s in c["logprobs"]["content"]]
    assert scores == message["logprobs"]["content"]
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["length"]


def test_completions_of_several_prompts(served: Served) -> None:
    prompts = ["Hello", "What is 2 + 3?"]
    body = {"prompt": prompts, "max_tokens": 9, "logprobs": 0, "temperature": 0, "n": 2}
    found = served.call(TEXT, body).json
    assert [c["index"] for c in found["choices"]] == [0, 1, 2, 3]
    expected = [completed(served, prompts[i // 2], 9) for i in range(4)]
    for choice, one in zip(found["choices"], expected, strict=True):
        assert choice["text"] == one.text
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(
            one.log_probabilities, abs=1e-4
        )
        assert "".join(choice["logprobs"]["tokens"]) == one.text
        ends = [len("".join(choice["logprobs"]["tokens"][:i])) for i in range(9)]
        assert choice["logprobs"]["text_offset"] == ends[: len(one.token_ids)]
    usage = found["usage"]
    assert usage["prompt_tokens"] == expected[0].prompt_tokens + expected[2].prompt_tokens
    assert usage["completion_tokens"] == sum(len(e.token_ids) for e in expected)
    stream = served.call(TEXT, {**body, "stream": True}).events
    for index, one in enumerate(expected):
        own = [c for e in stream for c in e["choices"] if c["index"] == index]
        assert "".join(c["text"] for c in own) == one.text
        assert own[-1]["finish_reason"] == one.finish_reason


def test_token_ids_are_a_prompt(served: Served) -> None:
    ids = served.engine.prompt_ids("Hello")
    text = completed(served, "Hello", 16).text
    for prompt in (ids, [ids]):
        (choice,) = served.call(TEXT, {"prompt": prompt, "temperature": 0}).json["choices"]
        assert choice["text"] == text


def test_a_stop_text(served: Served) -> None:
    text = completed(served, "Hello", 30).text
    stop = text[6:8]
    for more in ({}, {"stream": True}):
        body = {"prompt": "Hello", "max_tokens": 30, "temperature": 0, "stop": [stop, "zzzz"]}
        found = served.call(TEXT, {**body, **more})
        choices = [e["choices"][0] for e in (found.events if more else [found.json])]
        assert "".join(c["text"] for c in choices) == text[: text.index(stop)]
        assert choices[-1]["finish_reason"] == "stop"


def test_seeds_and_samplers(served: Served) -> None:
    body = {"prompt": "Hello", "max_tokens": 12, "temperature": 1.5, "top_p": 0.9, "top_k": 20}

    def texts(**more: Any) -> list[str]:
        return [c["text"] for c in served.call(TEXT, {**body, **more}).json["choices"]]

    sampler = lm.SamplerConfig(top_k=20, top_p=0.9, temperature=1.5, seed=7)
    (expected,) = served.engine.generate(["Hello"], sampler_config=sampler, max_output_tokens=12)
    first = texts(seed=7, n=3)
    assert first[0] == expected.text
    assert len(set(first)) == 3
    assert texts(seed=8) == [first[1]]
    assert texts() != texts()
    assert texts(seed=7, n=3) == first


def test_penalties(served: Served) -> None:
    body = {"prompt": "Hello", "max_tokens": 12, "temperature": 0, "frequency_penalty": 2}
    (choice,) = served.call(TEXT, {**body, "presence_penalty": 1.5}).json["choices"]
    config = lm.RepetitionPenaltyConfig(presence_penalty=1.5, frequency_penalty=2)
    (expected,) = served.engine.generate(
        ["Hello"], max_output_tokens=12, repetition_penalty_config=config
    )
    assert choice["text"] == expected.text


def test_reasoning_is_separate(tmp_path: Path, served: Served) -> None:
    """What the template leaves open is reasoning until the channel's end."""
    from jaxdelegate.bundles.metadata import Channel
    from jaxdelegate.lm.channels import ChannelReader
    from jaxdelegate.lm.text_stream import Part
    from jaxdelegate.serve.openai.batching import Delta
    from jaxdelegate.serve.openai.responses import AnswerReader, ChatForm, Usage

    del tmp_path, served
    channel = Channel("thought", "<think>", "</think>", is_reasoning=True)

    def form() -> ChatForm:
        return ChatForm("m", Usage([3]), [AnswerReader(ChannelReader([channel], "<think>"))])

    texts = ["I ", "see</th", "ink>", "Yes", "."]
    deltas = [Delta(0, [Part(t, 0, None)], tokens=n) for n, t in enumerate(texts)]
    deltas.append(Delta(0, (), "stop", 5))
    message = form().whole(deltas)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("I see", "Yes.")
    own = form()
    chunks = [c["choices"][0]["delta"] for d in deltas for c in own.chunks(d, has_usage=False)]
    assert "".join(c.get("reasoning_content", "") for c in chunks) == "I see"
    assert "".join(c.get("content", "") for c in chunks) == "Yes."


# ---- many clients


def test_streams_do_not_depend_on_each_other(served: Served) -> None:
    prompts = ["Hello", "What is 2 + 3?", "x", "The quick brown fox", "y" * 60]
    expected = [completed(served, prompt, 25).text for prompt in prompts]

    def text(prompt: str) -> str:
        body = {"prompt": prompt, "max_tokens": 25, "temperature": 0, "stream": True}
        events = served.call(TEXT, body).events
        return "".join(e["choices"][0]["text"] for e in events)

    with concurrent.futures.ThreadPoolExecutor(5) as threads:
        for _ in range(3):
            assert list(threads.map(text, prompts)) == expected


class Compiler:
    """Holds the thread that compiles, until it is allowed to go on."""

    def __init__(self, error: Exception | None = None) -> None:
        self.has_begun, self.may_end, self._error = threading.Event(), threading.Event(), error

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        prepare = Programs.prepare

        def held(model: Programs, task: Any, *, is_optional: bool) -> None:
            if is_optional:
                return
            self.has_begun.set()
            assert self.may_end.wait(60)
            if self._error is not None:
                raise self._error
            prepare(model, task)

        patch.setattr(Programs, "prepare", held)


def test_others_go_on_while_a_program_is_compiled(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests for other programs, as many as there are slots, hold none of these."""
    compiler = Compiler()
    compiler.patch(monkeypatch)
    body = {"prompt": "Hello", "max_tokens": 9, "temperature": 1, "top_k": 200, "seed": 4}
    more: list[Any] = [{}, {"presence_penalty": 1}, {"presence_penalty": 1, "top_k": 20}]
    waiting = [served.send(TEXT, {**body, **own}) for own in more]
    assert compiler.has_begun.wait(60)
    plain = {"prompt": "x", "max_tokens": 30, "temperature": 0}
    expected = completed(served, "x", 30).text
    for own in ({}, {"prompt": ["x", "x"]}):
        for choice in served.call(TEXT, {**plain, **own}).json["choices"]:
            assert choice["text"] == expected
    assert served.metric("vllm:num_requests_running") == 0
    assert served.metric("vllm:num_requests_waiting") == 3
    compiler.may_end.set()
    found = []
    for connection in waiting:
        with contextlib.closing(connection):
            (choice,) = json.loads(connection.getresponse().read())["choices"]
            found.append(choice["text"])
    sampler = lm.SamplerConfig(top_k=200, top_p=1.0, temperature=1.0, seed=4)
    (alone,) = served.engine.generate(["Hello"], sampler_config=sampler, max_output_tokens=9)
    assert found[0] == alone.text
    assert all(found)


def test_a_program_that_cannot_be_compiled(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request fails alone; the next one tries again."""
    compiler = Compiler(RuntimeError("no memory"))
    body = {"prompt": "Hello", "max_tokens": 9, "temperature": 0, "logprobs": 0, "top_k": 90}
    body |= {"temperature": 1, "presence_penalty": 1}
    with monkeypatch.context() as patch:
        compiler.patch(patch)
        failing = served.send(TEXT, body)
        assert compiler.has_begun.wait(60)
        going_on = served.send(TEXT, {"prompt": "x", "max_tokens": 90, "stream": True})
        assert going_on.getresponse().readline()
        compiler.may_end.set()
        with contextlib.closing(failing), contextlib.closing(going_on):
            assert failing.getresponse().status == 500
            assert served.call(TEXT, {"prompt": "x", "max_tokens": 3}).status == 200
    assert served.call(TEXT, body).status == 200


def test_a_full_queue(served: Served, gate: Gate) -> None:
    body = {"prompt": "Hello", "max_tokens": 2, "temperature": 0}
    accepted = [served.send(TEXT, body) for _ in range(5)]
    while served.metric("vllm:num_requests_") < 5:
        pass
    refused = served.call(TEXT, body)
    assert refused.status == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert (refused.error["type"], refused.error["code"]) == (
        "rate_limit_error",
        "rate_limit_exceeded",
    )
    assert served.call("/v1/models").status == 200
    gate.open()
    for connection in accepted:
        with contextlib.closing(connection):
            assert connection.getresponse().status == 200


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_leaves(served: Served, gate: Gate, is_stream: bool) -> None:
    connection = served.send(TEXT, {"prompt": "Hello", "max_tokens": 99, "stream": is_stream})
    if is_stream:
        gate.allow(5)
        assert connection.getresponse().readline().startswith(b"data: ")
    else:
        while served.metric("vllm:num_requests_running") < 1:
            pass
    connection.close()
    while gate.left.empty():  # it is noticed before the next run
        gate.allow(1)
    assert len(gate.left.get().tokens) < 99
    assert served.metric("vllm:num_requests_running") == 0


def test_a_client_that_leaves_the_queue(served: Served, gate: Gate) -> None:
    body = {"prompt": "Hello", "max_tokens": 2}
    others = [served.send(TEXT, body) for _ in range(3)]
    waiting = served.send(TEXT, body)
    while served.metric("vllm:num_requests_") < 4:
        pass
    waiting.close()
    while served.metric("vllm:num_requests_") > 3:
        pass
    gate.open()
    for connection in others:
        with contextlib.closing(connection):
            assert connection.getresponse().status == 200


def test_the_time_limit(served: Served, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    model = served.server._served.language_models["tiny"]
    settings = dataclasses.replace(model.settings, answer_timeout_s=0.05)
    monkeypatch.setattr(model, "settings", settings)
    found = served.call(TEXT, {"prompt": "Hello"})
    assert (found.status, found.error["code"]) == (504, "timeout")
    assert "0.05 s" in found.error["message"]
    gate.allow(20)
    monkeypatch.setattr(
        model, "settings", dataclasses.replace(model.settings, answer_timeout_s=1.0)
    )
    *_, last = served.call(TEXT, {"prompt": "Hello", "stream": True, "max_tokens": 99}).events
    assert last["error"]["code"] == "timeout"


def test_the_other_protocol_is_in_the_same_server(served: Served) -> None:
    assert served.call("/v2/health/ready").status == 200
    assert served.call("/v2/models/tiny/ready").json == {"name": "tiny", "ready": True}
    entry = {"name": "features", "datatype": "FP32", "shape": [1, 32], "data": [0] * 32}
    body = json.dumps({"inputs": [entry]})
    assert served.call("/v2/models/keywords/infer", body).status == 200
    refused = served.call("/v2/models/tiny/infer", body)
    assert (refused.status, "/v1/models" in refused.json["error"]) == (400, True)
    names = [m["name"] for m in served.call("/v2/repository/index", "{}").json]
    assert names == ["keywords", "tiny"]


def test_clients_are_known_by_their_keys_or_addresses(served: Served) -> None:
    """Keys are not kept."""
    seen = []
    model = served.server._served.language_models["tiny"]
    with pytest.MonkeyPatch.context() as patch:
        submit = model.worker.submit
        patch.setattr(
            model.worker, "submit", lambda jobs: [seen.append(jobs[0].client), submit(jobs)]
        )
        for key in ("Bearer a", "Bearer b", "Bearer a"):
            served.call(TEXT, {"prompt": "x", "max_tokens": 1}, Authorization=key)
        served.call(TEXT, {"prompt": "x", "max_tokens": 1})
    assert seen[0] == seen[2] != seen[1]
    assert "Bearer" not in str(seen)
    assert {client.address for client in seen} == {"127.0.0.1"}
    assert seen[3].key == ""


def test_a_foreign_page_is_refused(served: Served) -> None:
    body = {"messages": HELLO, "max_tokens": 1}
    refused = served.call(CHAT, body, Origin="https://evil.com")
    assert (refused.status, refused.error["type"]) == (403, "invalid_request_error")
    assert served.call(CHAT, body, Host="evil.com").status == 403
    assert served.call(CHAT, body, **{"Content-Type": "text/plain"}).status == 415
    assert served.call(CHAT, body).status == 200


def cached(answer: Answer) -> int:
    assert answer.status == 200
    found: int = answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_caches_are_those_of_one_client(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """No one learns another client's prompt by the count of tokens that caches have."""
    prompt = "My access code is 271828."
    body, key = {"prompt": prompt, "max_tokens": 1}, {"Authorization": "Bearer victim"}
    mine = (key, {**key, "X-Forwarded-For": "10.0.0.1"}, {}, {"X-Forwarded-For": "10.0.0.1"})
    for number, headers in enumerate(mine):
        for known in (0, len(prompt)):  # all but the last one, with the start token
            assert cached(served.call(TEXT, body, **headers)) == known
        others = {"Authorization": f"Bearer {number}"}, {"X-Forwarded-For": f"10.6.6.{number}"}
        for other in others:
            assert cached(served.call(TEXT, body, **{**headers, **other})) == 0
    for salt in ("a", "b"):
        for known in (0, len(prompt)):  # all but the last one, with the start token
            assert cached(served.call(TEXT, {**body, "cache_salt": salt}, **key)) == known
    model = served.server._served.language_models["tiny"]
    monkeypatch.setattr(model, "settings", dataclasses.replace(model.settings, share_prefixes=True))
    served.call(TEXT, body, **key)
    assert cached(served.call(TEXT, body, Authorization="Bearer other")) == len(prompt)


def test_answers_to_one_prompt_read_it_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`n` answers, and what metrics count; the same prompt of another client is read for it."""
    prompt, steps, run = "The Engine has no pretensions.", list[Any](), ModelRunner.run_prefill

    def noted(runner: ModelRunner, some: Any) -> None:
        steps.extend(some)
        run(runner, some)

    monkeypatch.setattr(ModelRunner, "run_prefill", noted)
    counted = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
    before = [served.metric(name) for name in counted]
    body = {"prompt": prompt, "max_tokens": 3, "seed": 5}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        both = pool.submit(served.call, TEXT, {**body, "n": 2}, Authorization="Bearer a")
        other = pool.submit(served.call, TEXT, body, Authorization="Bearer b")
        assert (cached(both.result()), cached(other.result())) == (0, 0)
    count = len(served.engine.prompt_ids(prompt))
    assert len(steps) == 2 * math.ceil((count - 1) / 8)
    hits, queries = (served.metric(n) - b for n, b in zip(counted, before, strict=True))
    assert (hits, queries) == (count - 1, 3 * count)
    seeds = [{**body, "seed": 5 + n} for n in range(2)]
    alone = [served.call(TEXT, each, Authorization="Bearer c").json["choices"] for each in seeds]
    texts = [choice["text"] for choice in both.result().json["choices"]]
    assert texts == [choices[0]["text"] for choices in alone]


def test_a_chat_does_not_tell_what_others_embedded(served: Served) -> None:
    text = "My access code is 314159."
    for headers, known in (({"Authorization": "Bearer victim"}, len(text)), ({}, 0)):
        sent = served.call("/v1/embeddings", {"input": text}, Authorization="Bearer victim")
        assert sent.status == 200
        assert cached(served.call(TEXT, {"prompt": text, "max_tokens": 1}, **headers)) == known


@pytest.mark.parametrize("is_set", [False, True])
def test_the_engine_has_equal_answers_if_the_server_has(
    is_set: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.litertlm"
    path.write_bytes(language_bundle())
    model = LanguageModel(path, "m", ServeSettings(batch_invariant=is_set), TextRecorder())
    for name in ("_warm_up", "_begin_warming"):
        monkeypatch.setattr(model, name, lambda *_: None)
    with model.worker.resources:
        model._prepare()
        assert model.engine.batch_invariant is is_set


def test_a_forked_process_says_that_it_cannot_generate(tmp_path: Path) -> None:
    model = LanguageModel(tmp_path / "m.litertlm", "m", ServeSettings(), TextRecorder())
    model.worker.fail_after_fork()
    with pytest.raises(StoppedError, match="was started before this process"):
        model.worker.wait_until_ready()
    with pytest.raises(RequestError, match="m failed: m was started before"):
        model.worker.submit([])


def test_a_model_that_is_damaged_ends_the_server(tmp_path: Path) -> None:
    path = tmp_path / "model.litertlm"
    path.write_bytes(language_bundle("{% for %}"))
    server = Server({"m": path}, port=0, say=lambda _: None)
    with pytest.raises(ModelError, match="chat template: syntax error"):
        server.run()


def test_an_unexpected_error_of_a_model_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_model: LanguageModel, _engine: lm.Engine) -> None:
        raise RuntimeError("unexpected")

    monkeypatch.setattr(LanguageModel, "_warm_up", failing)
    path = tmp_path / "model.litertlm"
    path.write_bytes(language_bundle())
    server = Server({"m": path}, port=0, say=lambda _: None)
    with pytest.raises(RuntimeError, match="unexpected"):
        server.run()


# ---- errors

WRONG: dict[str, tuple[Any, int, str | None, str]] = {
    "not JSON": (b"{", 400, None, "the JSON of the request: "),
    "empty": (b"", 400, None, "the JSON of the request: "),
    "a list": (b"[]", 400, None, "expected an object"),
    "not UTF-8": (b'{"model": "\xff"}', 400, None, "is not UTF-8"),
    "deep": (b"[" * 100_000, 400, None, "nested too deeply"),
    "twice": (b'{"model": "a", "model": "b"}', 400, None, "duplicate field 'model'"),
    "long": (b" " * (5 << 20), 413, None, "expected at most 4194304 bytes"),
    "digits": (b'{"seed": ' + b"9" * 5000 + b"}", 400, None, "too many digits"),
    "no model": (b'{"messages": []}', 400, "messages", "expected a list of messages"),
    "model's type": ({"model": 5}, 400, "model", "expected a string"),
    "another model": ({"model": "gpt-4"}, 404, "model", "expected one of: 'tiny'"),
    "tensors": ({"model": "keywords"}, 404, "model", "it has tensors: see /v2/models"),
    "messages": ({"messages": "Hello"}, 400, "messages", "expected a list"),
    "role": (
        {"messages": [{"role": "bot"}]},
        400,
        "messages[0].role",
        "expected one of developer, system",
    ),
    "content": ({"messages": [{"role": "user"}]}, 400, "messages[0].content", "expected a string"),
    "sound": (
        {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
        400,
        "messages[0].content[0].input_audio",
        "expected an object",
    ),
    "image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        400,
        "messages[0].content[0].image_url",
        "expected a string",
    ),
    "surrogate": (
        b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
        400,
        "messages[0].content",
        "unpaired surrogate",
    ),
    "calls": (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]},
        400,
        "messages[0].tool_calls[0].function",
        "expected an object",
    ),
    "too long": (
        {"messages": [{"role": "user", "content": "x" * 200}]},
        400,
        "messages",
        "expected at most 127 tokens",
    ),
    "template": (
        {"messages": [{"role": "user", "content": "refuse"}]},
        400,
        "messages",
        "messages: the chat template fails: no",
    ),
    "NaN": (b'{"temperature": NaN}', 400, "temperature", "from 0 to 2"),
    "hot": ({"temperature": 2.1}, 400, "temperature", "from 0 to 2"),
    "true": ({"temperature": True}, 400, "temperature", "expected a number"),
    "top_p": ({"top_p": -0.1}, 400, "top_p", "from 0 to 1"),
    "n": ({"n": 0}, 400, "n", "from 1 to 128"),
    "many": ({"n": 6}, 400, "n", "at most 5 answers in a request"),
    "tokens": ({"max_tokens": 0}, 400, "max_tokens", "expected an integer from 1"),
    "half a token": ({"max_tokens": 1.5}, 400, "max_tokens", "expected an integer"),
    "both limits": (
        {"max_tokens": 1, "max_completion_tokens": 2},
        400,
        "max_completion_tokens and max_tokens",
        "the same number",
    ),
    "seed": ({"seed": 1 << 63}, 400, "seed", "expected an integer from"),
    "stop": ({"stop": ["a"] * 5}, 400, "stop", "at most 4 strings"),
    "long stop": ({"stop": "x" * 1025}, 400, "stop", "at most 1024 characters"),
    "stop's type": ({"stop": 5}, 400, "stop", "expected a string"),
    "stream": ({"stream": "yes"}, 400, "stream", "true or false"),
    "options": (
        {"stream_options": {"include_usage": True}},
        400,
        "stream_options",
        "only with stream",
    ),
    "penalty": ({"presence_penalty": 3}, 400, "presence_penalty", "from -2 to 2"),
    "format": (
        {"response_format": {"type": "xml"}},
        400,
        "response_format.type",
        "expected one of text, json_object, json_schema, regex, got 'xml'",
    ),
    "no schema": (
        {"response_format": {"type": "json_schema"}},
        400,
        "response_format.json_schema",
        "expected an object",
    ),
    "schema's type": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
        400,
        "response_format.json_schema.schema",
        "expected an object",
    ),
    "functions": ({"functions": [{"name": "f"}]}, 400, "functions", "use tools"),
    "top": ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", "from 0 to 20"),
    "top alone": ({"top_logprobs": 2}, 400, "top_logprobs", "only with logprobs: true"),
    "prompt's": ({"prompt_logprobs": -1}, 400, "prompt_logprobs", "from 0 to 20"),
    "prompt's in a stream": (
        {"prompt_logprobs": 1, "stream": True},
        400,
        "prompt_logprobs",
        "only without stream: true",
    ),
    "echo": ({"echo": True}, 400, "echo", "use /v1/completions"),
    "no tokens": ({"max_tokens": 0}, 400, "max_tokens", "from 1 to"),
    "logprobs": ({"logprobs": 1}, 400, "logprobs", "true or false"),
    "bias": ({"logit_bias": {"5": 101}}, 400, "logit_bias", "from -100 to 100 by token id"),
    "bias's token": ({"logit_bias": {"x": 1}}, 400, "logit_bias", "by token id"),
    "bias beyond": ({"logit_bias": {"999": 1}}, 400, "logit_bias", "token ids below 261"),
    "stop beyond": ({"stop_token_ids": [999]}, 400, "stop_token_ids", "token ids below 261"),
    "many first": ({"min_tokens": 5, "max_tokens": 4}, 400, "min_tokens", "at most max_tokens, 4"),
    "repetition": ({"repetition_penalty": 0.5}, 400, "repetition_penalty", "from 1 to"),
    "two grammars": (
        {"guided_regex": "a", "response_format": {"type": "json_object"}},
        400,
        "guided_regex and response_format",
        "expected one of them",
    ),
    "structure": ({"structured_outputs": {"xml": 1}}, 400, "structured_outputs", "got 'xml'"),
    "no structure": ({"structured_outputs": {}}, 400, "structured_outputs", "got 0 of them"),
    "choices": ({"guided_choice": []}, 400, "guided_choice", "a list of 1 to 1024 strings"),
    "whose answer": (
        {"continue_final_message": True},
        400,
        "continue_final_message",
        "expected the last message to be the assistant's",
    ),
    "both begin": (
        {"continue_final_message": True, "add_generation_prompt": True},
        400,
        "add_generation_prompt",
        "expected false with continue_final_message",
    ),
    "kwargs": ({"chat_template_kwargs": 5}, 400, "chat_template_kwargs", "expected an object"),
    "own messages": (
        {"chat_template_kwargs": {"messages": []}},
        400,
        "chat_template_kwargs",
        "without the names messages",
    ),
    "unknown option": (
        {"stream": True, "stream_options": {"usage": True}},
        400,
        "stream_options",
        "an object with include_usage",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_chats(served: Served, what: str) -> None:
    body, status, param, said = WRONG[what]
    if isinstance(body, dict):
        body = {"messages": HELLO, **body}
    elif body.startswith(b'{"temperature'):
        body = body.replace(
            b"{", b'{"model": "tiny", "messages": [{"role": "user", "content": ""}], '
        )
    found = served.call(CHAT, body)
    assert (found.status, found.error["param"]) == (status, param)
    assert said in found.error["message"]
    assert found.error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({}, "prompt", "missing field"),
        ({"prompt": []}, "prompt", "expected a string"),
        ({"prompt": [[]]}, "prompt[0]", "expected token ids"),
        ({"prompt": ["x", 5]}, "prompt[1]", "expected a string"),
        ({"prompt": [-1]}, "prompt", "expected token ids"),
        ({"prompt": [999]}, "prompt", "expected token ids below 261"),
        ({"prompt": [True]}, "prompt[0]", "expected a string"),
        ({"prompt": "x" * 500}, "prompt", "expected at most 127 tokens"),
        ({"prompt": "x", "logprobs": 21}, "logprobs", "from 0 to 20"),
        ({"prompt": "x", "logprobs": True}, "logprobs", "from 0 to 20"),
        ({"prompt": "x", "logprobs": 2, "top_logprobs": 2}, "top_logprobs", "use logprobs"),
        ({"prompt": "x", "prompt_logprobs": 0, "stream": True}, "prompt_logprobs", "without"),
        ({"prompt": "x" * 500, "max_tokens": 0}, "prompt", "expected at most 128 tokens"),
        ({"prompt": ["x"] * 6}, "prompt", "at most 5 answers in a request"),
        ({"prompt": "x", "echo": 1}, "echo", "true or false"),
        ({"prompt": "x", "best_of": 2}, "best_of", "use n"),
        ({"prompt": "x", "best_of": True}, "best_of", "use n"),
        ({"prompt": "x", "suffix": "y"}, "suffix", "is not supported"),
    ],
)
def test_wrong_completions(served: Served, body: Any, param: str, said: str) -> None:
    found = served.call(TEXT, body)
    assert (found.status, found.error["param"]) == (400, param)
    assert said in found.error["message"]


def test_wrong_paths_and_methods(served: Served) -> None:
    assert (found := served.call("/v1/images")).status == 404
    assert "unknown path" in found.error["message"]
    assert (found := served.call(CHAT)).status == 405
    assert "does not support GET" in found.error["message"]


def test_fields_without_a_meaning_are_ignored(served: Served) -> None:
    body = {"user": "me", "store": False, "logit_bias": {}, "tools": None, "n": None}
    body |= {"response_format": {"type": "text"}, "metadata": {"a": "b"}}
    body |= {"messages": [*HELLO, {"role": "assistant", "content": None, "tool_calls": []}]}
    assert served.call(CHAT, {**body, "max_tokens": 1}).status == 200


# ---- JSON

PLAN = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dog", "bird"]},
        "size": {
            "type": "object",
            "properties": {
                "large": {"type": "boolean"},
                "name": {"type": "string", "maxLength": 4},
            },
            "required": ["large", "name"],
            "additionalProperties": False,
        },
        "flags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["kind", "size", "flags"],
    "additionalProperties": False,
}


def matching(schema: Any, name: str = "plan") -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}


@pytest.fixture
def has_llguidance() -> None:
    pytest.importorskip("llguidance", reason="the package llguidance is not installed")


@pytest.mark.usefixtures("has_llguidance")
@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param({"temperature": 0}, marks=pytest.mark.exhaustive),
        {"temperature": 1.5, "seed": 3},
    ],
)
def test_answers_match_a_schema(served: Served, sampling: Any) -> None:
    """By OpenAI's client, whole and as streams."""
    openai = pytest.importorskip("openai", reason="the package openai is not installed")
    jsonschema = pytest.importorskip("jsonschema", reason="the package jsonschema is not installed")
    url = f"http://127.0.0.1:{served.port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        body = {"model": "tiny", "messages": HELLO, "response_format": matching(PLAN), **sampling}
        found = client.chat.completions.create(**body, n=3, logprobs=True)
        assert [c.finish_reason for c in found.choices] == ["stop"] * 3
        texts = [c.message.content for c in found.choices]
        for text in texts:
            jsonschema.validate(json.loads(text), PLAN)
        assert (len(set(texts)) == 1) == (sampling["temperature"] == 0)
        chunks = list(client.chat.completions.create(**body, stream=True))
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == texts[0]
        with pytest.raises(openai.BadRequestError, match="Invalid type: foo") as wrong:
            client.chat.completions.create(**{**body, "response_format": matching({"type": "foo"})})
        assert wrong.value.param == "response_format"


@pytest.mark.usefixtures("has_llguidance")
def test_limits_of_constrained_answers(served: Served) -> None:
    body = {"messages": HELLO, "temperature": 0, "response_format": {"type": "json_object"}}
    whole = served.call(CHAT, {**body, "max_tokens": 9}).json["choices"][0]
    assert (whole["finish_reason"], whole["message"]["content"][0]) == ("length", "{")
    stop = whole["message"]["content"][2:4]
    found = served.call(CHAT, {**body, "stop": stop}).json["choices"][0]
    text = whole["message"]["content"]
    assert (found["finish_reason"], found["message"]["content"]) == (
        "stop",
        text[: text.index(stop)],
    )


@pytest.mark.usefixtures("has_llguidance")
def test_constraints_leave_others_alone(served: Served, gate: Gate) -> None:
    """A sequence without one, in the same batch, has the tokens that it has alone."""
    chat = {"messages": HELLO, "temperature": 0, "response_format": matching(PLAN)}
    sent = [served.send(TEXT, {"prompt": "Hello", "max_tokens": 60, "temperature": 0})]
    sent += [served.send(CHAT, chat) for _ in range(2)]
    while served.metric("vllm:num_requests_") < 3:
        pass
    gate.open()
    expected = completed(served, "Hello", 60).text
    answers = []
    for connection in sent:
        with contextlib.closing(connection):
            answers.append(json.loads(connection.getresponse().read())["choices"][0])
    assert answers[0]["text"] == expected
    contents = [answer["message"]["content"] for answer in answers[1:]]
    assert contents[0] == contents[1]
    assert json.loads(contents[0])["kind"] in PLAN["properties"]["kind"]["enum"]


@pytest.mark.usefixtures("has_llguidance")
def test_a_schema_that_is_too_complex_on_the_way(served: Served) -> None:
    parts = "".join(f"(a{i}|b{i})?" for i in range(2000))
    schema = {"type": "string", "pattern": f"^{parts}$"}
    found = served.call(CHAT, {"messages": HELLO, "response_format": matching(schema)})
    assert found.status == 400
    assert (
        "response_format: change the schema, on which llguidance gave up" in found.error["message"]
    )


@pytest.mark.usefixtures("has_llguidance")
def test_a_schema_that_crashes_llguidance(served: Served) -> None:
    links = {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(20_000)}
    schema = {"$defs": {**links, "20000": {}}, "$ref": "#/$defs/0"}
    found = served.call(CHAT, {"messages": HELLO, "response_format": matching(schema)})
    assert (found.status, found.error["param"]) == (400, "response_format")
    assert "takes more than 16 MiB of stack" in found.error["message"]
    assert served.call(CHAT, {"messages": HELLO, "max_tokens": 1}).status == 200


@pytest.mark.usefixtures("has_llguidance")
@pytest.mark.parametrize("is_stream", [False, True])
def test_an_answer_that_cannot_match_does_not_stop(
    served: Served, monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    """The matcher allows the stop alone, and does not accept."""
    stop = SPECIAL.index("<eos>")
    only = np.zeros(words(served.engine.graph.vocabulary), np.uint32)
    only[stop // 32] = 1 << (stop % 32)
    monkeypatch.setattr(Constraint, "allowed", lambda _: only)
    monkeypatch.setattr(Constraint, "is_match", False)
    body = {"messages": HELLO, "response_format": {"type": "json_object"}, "stream": is_stream}
    found = served.call(CHAT, body)
    assert (found.status, found.error["type"]) == (400, "invalid_request_error")
    assert "stops where it does not match" in found.error["message"]


@pytest.mark.usefixtures("has_llguidance")
def test_an_error_of_a_matcher_is_its_requests_own(
    served: Served, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(_constraint: Constraint, _token: int) -> None:
        raise RuntimeError("a matcher's error")

    monkeypatch.setattr(Constraint, "add", add)
    body = {"messages": HELLO, "response_format": {"type": "json_object"}, "temperature": 0}
    sent = [served.send(CHAT, body), served.send(TEXT, {"prompt": "Hello", "max_tokens": 30})]
    while served.metric("vllm:num_requests_") < 2:
        pass
    gate.open()
    answers = []
    for connection in sent:
        with contextlib.closing(connection):
            answer = connection.getresponse()
            answers.append((answer.status, answer.read()))
    assert [status for status, _ in answers] == [400, 200]
    assert b"llguidance gave up" in answers[0][1]


@pytest.mark.usefixtures("has_llguidance")
def test_a_multi_token_stop_may_be_a_part_of_json(tmp_path: Path) -> None:
    def edit(metadata: Any) -> None:
        metadata.stop_tokens.add().token_ids.ids.extend(len(SPECIAL) + code for code in b"ab")

    path = tmp_path / "m.litertlm"
    path.write_bytes(language_bundle(edit=edit))
    with lm.Engine(path, lm.Backend.CPU()) as engine:
        batch = engine.new_scheduler(1)
        constraint = engine.text.constraint(Grammar.json({"const": "xaby"}))
        request = Request([1, 80], 40, engine.text.sampling_params(), constraint=constraint)
        running = batch.join(request)
        while running.finish_reason is None:
            batch.step()
        assert running.finish_reason == "stop"
        assert engine.detokenize(running.tokens) == '"xaby"'


class Slow:
    """A schema whose compilation lasts until the end of a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.end = queue.Queue[bool](), threading.Event()
        monkeypatch.setattr(Constraints, "matching", self._matching)

    def _matching(self, _schema: Any) -> Constraint:
        self.begun.put(True)
        self.end.wait(60)
        raise OptionError("it took too long")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    found = Slow(monkeypatch)
    yield found
    found.end.set()


SCHEMA = {"messages": HELLO, "response_format": {"type": "json_object"}}


def test_a_slow_schema_leaves_others_alone(served: Served, slow: Slow) -> None:
    """Also long requests; those with a schema that leave the queue are not compiled."""
    with contextlib.closing(served.send(CHAT, SCHEMA)) as first:
        slow.begun.get(timeout=20)
        waiting = served.send(CHAT, SCHEMA)
        assert served.call(CHAT, {"messages": HELLO, "max_tokens": 1}).status == 200
        long = served.call(CHAT, {"messages": [{"role": "user", "content": "x" * 100_000}]})
        assert long.error["code"] == "context_length_exceeded"
        waiting.close()
        for _ in range(5):  # the server has noticed it, and told the tasks that wait
            served.call("/v1/models")
        slow.end.set()
        assert b"it took too long" in first.getresponse().read()
    assert slow.begun.empty()


def test_a_schema_that_waits_too_long(
    served: Served, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.server._served, "limits", Limits(body_timeout_s=0.2))
    found = served.call(CHAT, SCHEMA)
    assert (found.status, found.error["type"]) == (503, "server_error")
    assert "still being read; try again later" in found.error["message"]
    slow.end.set()


@pytest.mark.parametrize("leaves", [False, True])
def test_a_slow_schema_does_not_hold_up_the_end(tmp_path: Path, slow: Slow, leaves: bool) -> None:
    path, lines = tmp_path / "m.litertlm", queue.Queue[str]()
    path.write_bytes(language_bundle())
    server = Server({"tiny": path}, ServeSettings(warm=()), port=0, say=lines.put)
    thread = threading.Thread(target=server.run)
    thread.start()
    port = int(lines.get(timeout=60).rpartition(":")[2])
    assert "is ready" in lines.get(timeout=200)
    connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(2)]
    for connection in connections:
        connection.request("POST", CHAT, json.dumps({"model": "tiny", **SCHEMA}))
    slow.begun.get(timeout=20)
    if not leaves:  # the first one is answered, the other one is not compiled
        server.stop()
        slow.end.set()
        assert {connection.getresponse().status for connection in connections} == {400, 503}
    for connection in connections:
        connection.close()
    server.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_half_characters_are_looked_for_in_little_memory() -> None:
    """A place is made only for the error: keys times elements would be gigabytes."""
    key, values = "k" * 20_000, [0] * 20_000
    fields = {"model": "m", "messages": HELLO, "chat_template_kwargs": {"\u00e9": {key: values}}}
    tracemalloc.start()
    try:
        chat_request(json.dumps(fields).encode())
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"a": [1, {"b": "\ud800"}]}, "chat_template_kwargs.a[1].b"),
        ({"a": {"\udc00": 1}}, "chat_template_kwargs.a"),
        ({"a": [["x"], [], {}, "y"], "c": "\ud83d"}, "chat_template_kwargs.c"),
    ],
)
def test_the_place_of_half_a_character(given: Any, where: str) -> None:
    fields = {"model": "m", "messages": HELLO, "chat_template_kwargs": given}
    with pytest.raises(ApiError, match="unpaired surrogate") as found:
        chat_request(json.dumps(fields).encode())
    assert found.value.param == where


def test_without_llguidance(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    found = served.call(CHAT, {"messages": HELLO, "response_format": {"type": "json_object"}})
    assert (found.status, found.error["param"]) == (400, "response_format")
    assert "llguidance is not installed" in found.error["message"]
    assert "pip install" in found.error["message"]


# ---- the official client


def test_the_code_of_the_page(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    openai = pytest.importorskip("openai", reason="the package openai is not installed")
    text = (Path(__file__).parents[2] / "docs" / "lm_serving.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    blocks = [block for block in blocks if "image_url" not in block]  # see test_openai_images.py
    assert blocks
    names: dict[str, Any] = {"openai": openai}
    for block in blocks:
        code = block.replace("localhost:8000", f"127.0.0.1:{served.port}")
        exec(code.replace('model="chat"', 'model="tiny"'), names)
    names["client"].close()
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    assert capsys.readouterr().out == completed(served, rendered(messages), 128).text


def test_the_official_client(served: Served) -> None:
    openai = pytest.importorskip("openai", reason="the package openai is not installed")
    client = openai.OpenAI(
        base_url=f"http://127.0.0.1:{served.port}/v1", api_key="none", max_retries=0
    )
    with client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        expected = completed(served, rendered(HELLO), 20).text
        options = {"model": "tiny", "messages": HELLO, "max_tokens": 20, "temperature": 0}
        found = client.chat.completions.create(**options, logprobs=True)
        assert found.choices[0].message.content == expected
        assert len(found.choices[0].logprobs.content) == found.usage.completion_tokens
        usage = {"include_usage": True}
        *chunks, last = client.chat.completions.create(**options, stream=True, stream_options=usage)
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == expected
        assert last.usage == found.usage or last.usage.total_tokens == found.usage.total_tokens
        text = client.completions.create(model="tiny", prompt="Hello", temperature=0)
        assert text.choices[0].text == completed(served, "Hello", 16).text
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.chat.completions.create(**{**options, "model": "x"})
        with pytest.raises(openai.BadRequestError) as wrong:
            client.chat.completions.create(**options, functions=[{"name": "f"}])
        assert (wrong.value.param, wrong.value.code) == ("functions", "unsupported_parameter")
