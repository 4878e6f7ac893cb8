"""A server that is warm compiles nothing for a request of any kind."""

import http.client
import json
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from jaxdelegate.lm.language_model import LanguageModel as Programs
from jaxdelegate.serve.running import Server
from jaxdelegate.serve.settings import ServeSettings
from tests.support.language_models import CHATML, language_bundle, language_model

pytestmark = pytest.mark.slow

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
SCHEMA = {"type": "integer"}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "get_weather"}}
FIELDS: dict[str, dict[str, Any]] = {
    "default": {},
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 20},
    "many": {"top_k": 100},
    "all": {"top_k": 0, "top_p": 0.9},
    "json": {"response_format": FORMAT},
    "sampled json": {"response_format": FORMAT, "top_k": 0},
    "tools": {"tools": [TOOL], "tool_choice": "required"},
    "logprobs": {"logprobs": True},
    "penalties": {"presence_penalty": 0.5, "temperature": 1},
    "bias": {"logit_bias": {"5": 1}},
    "minimum": {"min_tokens": 2},
    "together": {"response_format": FORMAT, "logprobs": True, "frequency_penalty": 0.1},
    "long": {"messages": [{"role": "user", "content": "a" * 270}]},
}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server that cannot compile any more."""
    folder, lines = tmp_path_factory.mktemp("warm"), queue.Queue[str]()
    path = folder / "tiny.litertlm"
    model = language_model(capacity=512, prefill=(64,))
    path.write_bytes(language_bundle(CHATML, model=model))
    settings = ServeSettings(max_batch_size=2, delegate_options={"serialization_dir": str(folder)})
    server = Server({"tiny": path}, settings, port=0, say=lines.put)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        port = int(lines.get(timeout=60).rpartition(":")[2])
        assert "is ready" in lines.get(timeout=300)
        line = lines.get(timeout=600)
        assert "model 'tiny' is warm after" in line
        assert ": any " in line
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Programs, "prepare", refused)
            patch.setattr(Programs, "_load_or_compile", refused)
            yield port
    finally:
        server.stop()
        thread.join(60)


def refused(*_: Any, **__: Any) -> None:
    raise RuntimeError("a request needs a program that is not compiled")


def answered(port: int, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path, json.dumps({"model": "tiny", **body}))
    found = connection.getresponse()
    status, content = found.status, found.read()
    connection.close()
    return status, content


@pytest.mark.parametrize("kind", FIELDS)
def test_a_chat_compiles_nothing(port: int, kind: str) -> None:
    status, content = answered(port, "/v1/chat/completions", {**CHAT, **FIELDS[kind]})
    assert status == 200, content


def test_an_embedding_compiles_nothing(port: int) -> None:
    status, content = answered(port, "/v1/embeddings", {"input": "Hello"})
    assert status == 200, content


def test_chats_of_all_kinds_at_once_compile_nothing(port: int) -> None:
    found = queue.Queue[tuple[int, bytes]]()

    def send(fields: dict[str, Any]) -> None:
        found.put(answered(port, "/v1/chat/completions", {**CHAT, **fields}))

    threads = [threading.Thread(target=send, args=(fields,)) for fields in FIELDS.values()]
    for thread in threads:
        thread.start()
    assert [found.get(timeout=120)[0] for _ in threads] == [200] * len(threads)
    for thread in threads:
        thread.join(60)
