"""Random requests while others are hostile: no wrong text, no refusal, no error."""

import contextlib
import http.client
import json
import queue
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxdelegate import lm
from jaxdelegate.serve.running import Server
from jaxdelegate.serve.settings import ServeSettings
from tests.support.language_models import language_bundle

REQUESTS = 40
HOSTILE: tuple[dict[str, Any], ...] = (
    {"n": 33, "max_tokens": 60, "temperature": 1},  # fills slots and queue
    {"max_tokens": 2, "temperature": 1.5, "top_k": 5},  # these need programs
    {"max_tokens": 2, "temperature": 1.5, "presence_penalty": 1, "logprobs": 0},
    {"prompt": "x" * 90, "max_tokens": 1, "temperature": 0},
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "tiny.litertlm"
    path.write_bytes(language_bundle())
    return path


@pytest.fixture
def port(path: Path) -> Iterator[int]:
    lines = queue.Queue[str]()
    settings = ServeSettings(max_batch_size=3, max_queue_size=30, warm=())
    server = Server({"tiny": path}, settings, port=0, say=lines.put)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield int(lines.get(timeout=60).rpartition(":")[2])
    server.stop()
    thread.join(120)
    assert not thread.is_alive()


def completed(port: int, client: str, **body: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"X-Forwarded-For": client, "Authorization": f"Bearer {random.random()}"}
    with contextlib.closing(connection):
        sent = json.dumps({"model": "tiny", "prompt": "x", **body})
        connection.request("POST", "/v1/completions", sent, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def attack(port: int, number: int, ends: threading.Event, seen: set[int]) -> None:
    """One address, a new key for each request."""
    while not ends.is_set():
        seen.add(completed(port, "10.6.6.6", **HOSTILE[number % len(HOSTILE)])[0])


@pytest.mark.slow
def test_others_notice_nothing(path: Path, port: int) -> None:
    rng, ends, seen = random.Random(3), threading.Event(), set[int]()
    lengths = [rng.randint(1, 60) for _ in range(REQUESTS)]
    prompts = ["".join(rng.choices("abc ", k=n)) for n in lengths]
    limits = [rng.randint(1, 12) for _ in range(REQUESTS)]
    with lm.Engine(path, lm.Backend.CPU()) as engine:
        expected = [
            engine.generate([prompt], max_output_tokens=limit)[0].text
            for prompt, limit in zip(prompts, limits, strict=True)
        ]
    while completed(port, "10.0.0.1", max_tokens=1)[0] == 503:
        ends.wait(0.1)
    hostile = [threading.Thread(target=attack, args=(port, n, ends, seen)) for n in range(8)]
    for thread in hostile:
        thread.start()
    try:
        for prompt, limit, text in zip(prompts, limits, expected, strict=True):
            body = {"prompt": prompt, "max_tokens": limit, "temperature": 0}
            status, found = completed(port, "10.0.0.1", **body)
            assert status == 200, found
            assert found["choices"][0]["text"] == text
            assert found["usage"]["prompt_tokens_details"]["cached_tokens"] == 0  # of other keys
    finally:
        ends.set()
        for thread in hostile:
            thread.join(120)
    assert seen <= {200, 429}
