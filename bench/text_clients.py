"""Clients of OpenAI's API for servers of language models, and the answers that they must get."""

import concurrent.futures
import contextlib
import dataclasses
import http.client
import json
import os
import random
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from harness import threads
from server_process import ServerProcess

from jaxdelegate import lm
from jaxdelegate.lm.generation import generate
from jaxdelegate.lm.request import Request

CHAT = "/v1/chat/completions"
NAME = "m"
_TIMEOUT_S = 600.0
_START_S = 120.0
_MOST_CHATS = 4  # for each case
_LEAVING = 5  # one client of five
_WORDS = ("sun", "rain", "a long walk", "two cats", "the old house", "bread", "a letter", "snow")
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Case:
    """A chat, and its answer by an engine alone: the most likely tokens."""

    body: dict[str, Any]
    text: str


def cases(path: Path, limits: Sequence[int], slots: int, options: Mapping[str, Any]) -> list[Case]:
    """One for each limit of tokens; their messages differ. `options`: of JaxDelegate.

    Chats whose answer hangs on rounding are left out: it must be the same with one slot and with
    many, and when caches have a part of the prompt or all of it.
    """
    found, number = list[Case](), 0
    with lm.Engine(path, max_batch=slots, options=options) as engine:
        renderer = engine.text.renderer().without_lists()
        params = engine.text.sampling_params(lm.SamplerConfig(top_k=1))
        used = engine.new_runner(slots)
        while len(found) < len(limits):
            if number >= _MOST_CHATS * len(limits):
                raise RuntimeError(f"{path.name}: most answers hang on rounding")
            limit, messages = limits[len(found)], _messages(number)
            prompt = engine.prompt_ids(renderer.render(messages, {}, ends=True))
            request, number = Request(prompt, limit, params), number + 1
            runners = engine.new_runner(1), used, used
            answers = [generate(engine.text, runner, [request])[0] for runner in runners]
            if len({tuple(one.token_ids) for one in answers}) > 1:
                continue
            body = {"model": NAME, "messages": messages, "max_completion_tokens": limit}
            found.append(Case({**body, "temperature": 0, "top_k": 1}, answers[0].text))
    return found


def _messages(number: int) -> list[dict[str, Any]]:
    word = _WORDS[number % len(_WORDS)]
    content = f"{number}: " + f"Tell me about {word}. " * (1 + number % 7)
    return [{"role": "user", "content": [{"type": "text", "text": content}]}]


def mixed_chats(count: int, seed: int) -> list[dict[str, Any]]:
    """Short and longer ones with instructions in common, greedy and seeded, some with scores."""
    rng, found = random.Random(seed), list[dict[str, Any]]()
    systems = [" ".join(rng.choices(_WORDS, k=n)) for n in (2, 9, 16)]
    for number in range(count):
        text = " ".join(rng.choices(_WORDS, k=rng.randint(1, 9)))
        body: dict[str, Any] = {
            "model": NAME,
            "messages": [
                {"role": "system", "content": rng.choice(systems)},
                {"role": "user", "content": text},
            ],
            "max_completion_tokens": rng.randint(1, 24),
            "temperature": 0,
        }
        if number % 2:
            body |= {"temperature": 1.0, "top_p": 0.9, "seed": rng.randrange(99)}
        if number % 3 == 0:
            body |= {"logprobs": True, "top_logprobs": 2}
        found.append(body)
    return found


def continued(body: dict[str, Any], answered: dict[str, Any]) -> dict[str, Any]:
    """The next message of a chat, after an answer."""
    text = answered["choices"][0]["message"]["content"] or ""
    messages = [
        *body["messages"],
        {"role": "assistant", "content": text},
        {"role": "user", "content": "And?"},
    ]
    return {**body, "messages": messages}


def whole_answer(port: int, body: dict[str, Any]) -> dict[str, Any]:
    """The response as it is."""
    with posted(port, body) as response:
        return dict(json.loads(response.read()))


@contextlib.contextmanager
def posted(
    port: int, body: dict[str, Any], address: str = "127.0.0.1"
) -> Iterator[http.client.HTTPResponse]:
    """`address`: of the client, as a proxy would name it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    with contextlib.closing(connection):
        headers = {"Content-Type": "application/json", "X-Forwarded-For": address}
        connection.request("POST", CHAT, json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {response.read()[:500]!r}")
        yield response


def answer(port: int, body: dict[str, Any]) -> tuple[str, int]:
    """The text, and how many tokens it has."""
    with posted(port, body) as response:
        found = json.loads(response.read())
    return found["choices"][0]["message"]["content"], found["usage"]["completion_tokens"]


def streamed(port: int, body: dict[str, Any]) -> str:
    """The text of a stream, which must end as it should."""
    text, line = "", ""
    with posted(port, {**body, "stream": True}) as response:
        for raw in response:
            if not raw.strip():
                continue
            line = raw.decode().removeprefix("data: ").strip()
            if line != "[DONE]":
                text += json.loads(line)["choices"][0]["delta"].get("content", "")
    if line != "[DONE]":
        raise RuntimeError(f"the stream ended with {line!r}")
    return text


def left(port: int, body: dict[str, Any], events: int) -> None:
    """Disconnect after some events of a stream."""
    with posted(port, {**body, "stream": True}) as response:
        for _ in range(2 * events):
            response.readline()


@contextlib.contextmanager
def hostile(port: int, clients: int) -> Iterator[None]:
    """Meanwhile clients of another address fill the queue, and ask for programs of many kinds."""
    ends = threading.Event()

    def attack(number: int) -> None:
        rng = random.Random(number)
        while not ends.is_set():
            more = {"n": 128, "max_completion_tokens": 200, "temperature": 1}
            if number % 2:
                more = {"top_k": rng.randint(2, 300), "presence_penalty": rng.randint(0, 1)}
                more |= {"max_completion_tokens": 3, "logprobs": rng.random() < 0.5}
            with (
                contextlib.suppress(RuntimeError),
                posted(  # status 429
                    port, {"model": NAME, "messages": _messages(number), **more}, "10.6.6.6"
                ) as response,
            ):
                response.read()

    threads = [threading.Thread(target=attack, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def at_once(clients: int, calls: Sequence[Callable[[], T]]) -> list[T]:
    """The results of all calls, by clients that take the next one when they have a result."""
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


class Soak:
    """What the requests of a soak test came to."""

    def __init__(self, server: ServerProcess, chats: Sequence[Case], count: int, seed: int) -> None:
        """`count`: of the requests."""
        self._server, self._chats, self._seed = server, chats, seed
        self._lock = threading.Lock()
        self.done = {"whole": 0, "stream": 0, "left": 0}
        self.errors: list[str] = []
        self.slowest_s = 0.0  # of those that did not leave
        self.samples: list[float] = []  # MB, one for each hundredth of the requests
        self._every = max(count // 100, 1)

    def request(self, number: int) -> None:
        rng = random.Random(self._seed * 1_000_003 + number)
        chat = rng.choice(self._chats)
        kind = "left" if number % _LEAVING == 0 else rng.choice(("whole", "stream"))
        begin = time.perf_counter()
        try:
            self._sent(kind, chat, rng)
        except Exception as error:  # one that is lost, too
            self.errors.append(f"{number}, {kind}: {type(error).__name__}: {error}")
        with self._lock:
            self.done[kind] += 1
            if kind != "left":
                self.slowest_s = max(self.slowest_s, time.perf_counter() - begin)
            if sum(self.done.values()) % self._every == 0:
                self.samples.append(self._server.rss_anon_mb())

    def _sent(self, kind: str, chat: Case, rng: random.Random) -> None:
        port = self._server.port
        if kind == "left":
            left(port, chat.body, rng.randrange(4))
            return
        text = streamed(port, chat.body) if kind == "stream" else answer(port, chat.body)[0]
        if text != chat.text:
            raise AssertionError(f"expected {chat.text!r}, got {text!r}")

    def growth(self) -> float:
        """How much memory grew from the first sixth after the warm-up to the last; 0.01: by 1%."""
        after = self.samples[len(self.samples) // 6 :]
        size = max(len(after) // 6, 1)
        return statistics.median(after[-size:]) / statistics.median(after[:size]) - 1


@contextlib.contextmanager
def litert_lm_server(command: str, bundle: Path, folder: Path, port: int) -> Iterator[int]:
    """`litert-lm serve` with a bundle, on as many threads as XLA has; yields its port."""
    home = folder / "litert-lm"
    home.mkdir()
    settings = {"default": {"cpu_thread_count": threads()}}
    (home / "config.json").write_text(json.dumps(settings))
    environment = {**os.environ, "LITERT_LM_DIR": str(home)}
    copy = shutil.copy(bundle, folder / "copy.litertlm")
    subprocess.run([command, "import", copy, NAME], env=environment, check=True, text=True)
    serve = [command, "serve", f"--port={port}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(serve, env=environment, **quiet)
    try:
        _wait(server, port)
        yield port
    finally:
        server.terminate()
        server.wait()


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + _START_S
    while server.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            with contextlib.closing(connection):
                connection.request("GET", "/v1/models")
                connection.getresponse().read()
                return
        time.sleep(0.1)
    raise RuntimeError(f"litert-lm serve does not answer; exit status {server.poll()}")
