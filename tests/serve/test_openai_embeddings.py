"""Embeddings over HTTP equal the engine's; forms of inputs and outputs, errors, disconnects."""

import contextlib
import dataclasses
import http.client
import json
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate import lm
from jaxdelegate.serve.openai.embedding_model import EmbeddingModel
from jaxdelegate.serve.running import Server
from jaxdelegate.serve.settings import ServeSettings
from tests.support.language_models import language_bundle
from tests.support.text_encoders import embedding_bundle

PATH = "/v1/embeddings"


class Served:
    def __init__(self, port: int, engine: lm.EmbeddingEngine, server: Server) -> None:
        self.port, self.engine, self.server = port, engine, server

    @property
    def model(self) -> EmbeddingModel:
        found = self.server._served.language_models["embed"]
        assert isinstance(found, EmbeddingModel)
        return found

    def send(self, path: str, body: Any) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", path, json.dumps({"model": "embed", **body}))
        return connection

    def call(self, body: Any, path: str = PATH) -> tuple[int, Any]:
        with contextlib.closing(self.send(path, body)) as connection:
            found = connection.getresponse()
            return found.status, json.loads(found.read())

    def expected(self, text: str, size: int | None = None) -> list[float]:
        options = lm.EmbeddingOptions(output_size=size)
        return self.engine.compute_embedding(text, options).embedding


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, lines = tmp_path_factory.mktemp("embeddings"), queue.Queue[str]()
    paths = {"embed": folder / "embed.litertlm", "text": folder / "text.litertlm"}
    paths["embed"].write_bytes(embedding_bundle())
    paths["text"].write_bytes(language_bundle())
    server = Server(paths, ServeSettings(max_batch_size=4, warm=()), port=0, say=lines.put)
    thread = threading.Thread(target=server.run)
    thread.start()
    port = int(lines.get(timeout=60).rpartition(":")[2])
    for _ in paths:
        assert "is ready" in lines.get(timeout=200)
    with lm.EmbeddingEngine(paths["embed"], lm.Backend.CPU()) as engine:
        yield Served(port, engine, server)
    server.stop()
    thread.join(60)
    assert not thread.is_alive()


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_the_official_client(served: Served) -> None:
    """It asks for base64 unless a call names another form."""
    openai = pytest.importorskip("openai", reason="the package openai is not installed")
    url = f"http://127.0.0.1:{served.port}/v1"
    texts = ["abc", "a longer one", ""] * 5
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        found = client.embeddings.create(model="embed", input=texts)
        assert [one.index for one in found.data] == list(range(15))
        for one, text in zip(found.data, texts, strict=True):
            close(one.embedding, served.expected(text))
        tokens = sum(len(served.engine.prompt_ids(text)) for text in texts)
        assert found.usage.prompt_tokens == found.usage.total_tokens == tokens
        for form in ("float", "base64"):
            one = client.embeddings.create(
                model="embed", input="abc", dimensions=3, encoding_format=form
            ).data[0]
            if form == "base64":
                assert isinstance(one.embedding, str)
                continue
            close(one.embedding, served.expected("abc", 3))


def test_a_model_that_generates_returns_its_states(served: Served, tmp_path: Path) -> None:
    path = tmp_path / "text.litertlm"
    path.write_bytes(language_bundle())
    texts = ["abc", "a longer one", "x"] * 3
    with lm.Engine(path, lm.Backend.CPU(), cache_dir=":nocache") as engine:
        states = engine.hidden_states(texts)
    wanted = states / np.linalg.norm(states, axis=1, keepdims=True)
    status, found = served.call({"model": "text", "input": texts})
    assert (status, len(found["data"])) == (200, 9)
    close([one["embedding"] for one in found["data"]], wanted)
    status, found = served.call({"model": "text", "input": "abc", "dimensions": 17})
    assert (status, found["error"]["param"]) == (400, "dimensions")
    status, found = served.call({"model": "text", "input": [[300]]})
    assert "expected token ids below 261" in found["error"]["message"]


def test_a_queue_that_is_shorter_than_a_request(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = dataclasses.replace(served.model.settings, max_queue_size=2)
    monkeypatch.setattr(served.model, "settings", settings)
    monkeypatch.setattr(served.model.worker, "_max_queue_size", 2)
    status, found = served.call({"input": ["abc"] * 20})
    assert (status, len(found["data"])) == (200, 20)


def test_tokens_are_taken_as_they_are(served: Served) -> None:
    ids = served.engine.prompt_ids("abc")
    for given in (ids, [ids, ids]):
        status, found = served.call({"input": given})
        assert status == 200
        for one in found["data"]:
            close(one["embedding"], served.expected("abc"))


def test_models_and_health(served: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/v1/models/embed")
        assert json.loads(connection.getresponse().read())["max_model_len"] == 16


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({}, "input", "missing field"),
        ({"input": []}, "input", "a list of at most 2048"),
        ({"input": ["x"] * 2049}, "input", "a list of at most 2048"),
        ({"input": [[]]}, "input[0]", "expected token ids"),
        ({"input": ["x", 5]}, "input[1]", "expected a string"),
        ({"input": [999]}, "input[0]", "expected token ids below 261"),
        ({"input": ["x", "y" * 20]}, "input[1]", "expected at most 16 tokens"),
        ({"input": "x", "dimensions": 13}, "dimensions", "expected at most 12, got 13"),
        ({"input": "x", "dimensions": 0}, "dimensions", "expected an integer from 1"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format", "one of float, base64"),
        ({"input": "x", "model": "other"}, "model", "does not exist"),
    ],
)
def test_wrong_requests(served: Served, body: Any, param: str, said: str) -> None:
    status, found = served.call(body)
    assert (status, found["error"]["param"]) == (404 if "model" in body else 400, param)
    assert said in found["error"]["message"]


def test_an_encoder_does_not_chat(served: Served) -> None:
    status, found = served.call({"prompt": "Hello"}, "/v1/completions")
    assert (status, "see /v1/embeddings" in found["error"]["message"]) == (400, True)


def test_a_client_that_leaves(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not computed leaves the queue; a run that fails is an error of its request."""
    begun, go_on, seen = threading.Event(), threading.Event(), list[int]()
    run = served.model.worker._run

    def gated(texts: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        seen.append(len(texts))
        if any(7 in tokens for tokens in texts):
            raise RuntimeError("broken")
        return run(texts)

    monkeypatch.setattr(served.model.worker, "_run", gated)
    connection = served.send(PATH, {"input": [[8] * 5] * 100})
    assert begun.wait(60)
    connection.close()
    while served.model.worker._waiting:
        pass
    go_on.set()
    status, found = served.call({"input": [[7, 7]]})
    assert (status, found["error"]["type"]) == (500, "server_error")
    assert sum(seen) < 20
    assert served.call({"input": "abc"})[0] == 200
