"""Seconds of the first request of each kind to `jaxdelegate serve` with a bundle.

    NPROC=2 python bench/first_requests.py model.litertlm [--slots=8] [--answer_tokens=8]
        [--kinds=json,long] [--out=FILE]

`first_start` has no stored programs: each request is sent when the server is warm. `second_start`
has those of the first: a server is started for each kind, and the request is sent as soon as it is
ready. `again` is the time of the same request once more. Prompts have few tokens, but that of
`long` needs longer caches than the shortest ones, if the bundle has any.
"""

import contextlib
import dataclasses
import http.client
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from absl import app, flags
from harness import append, threads
from server_process import ServerProcess
from text_clients import NAME

FLAGS = flags.FLAGS
flags.DEFINE_integer("slots", 8, "--max_batch_size.", 1)
flags.DEFINE_integer("answer_tokens", 8, "The most tokens of an answer.", 1)
flags.DEFINE_list("kinds", [], "Of requests; none: all.")
flags.DEFINE_string("out", None, "A file to append the JSON line to.")

_TIMEOUT_S = 600.0
_CHAT = "/v1/chat/completions"
_LONG = 300  # characters, of at least a token each in most bundles
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": _SCHEMA}}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA}}


def kinds() -> dict[str, tuple[str, dict[str, Any]]]:
    """A request's path and body by its kind."""
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": FLAGS.answer_tokens}
    more: dict[str, dict[str, Any]] = {
        "default": {},
        "greedy": {"temperature": 0},
        "sampling": {"temperature": 0.7, "top_k": 20},
        "top_k_100": {"top_k": 100},
        "all_tokens": {"top_k": 0},
        "json": {"response_format": _FORMAT},
        "greedy_json": {"response_format": _FORMAT, "temperature": 0},
        "tools": {"tools": [_TOOL], "tool_choice": "required"},
        "logprobs": {"logprobs": True},
        "penalties": {"presence_penalty": 0.5},
        "logit_bias": {"logit_bias": {"5": 1}},
        "json_and_logprobs": {"response_format": _FORMAT, "logprobs": True},
        "long": {"messages": [{"role": "user", "content": " a 1" * (_LONG // 4)}]},
    }
    found = {name: (_CHAT, {**chat, **fields}) for name, fields in more.items()}
    found["embeddings"] = "/v1/embeddings", {"input": "Hello"}
    return {name: found[name] for name in FLAGS.kinds or found}


@dataclasses.dataclass
class Times:
    """Seconds of a request, and of the same one once more; or why there is no answer."""

    first: float = 0.0
    again: float = 0.0
    error: str | None = None


def timed(server: ServerProcess, kind: str) -> Times:
    path, body = kinds()[kind]
    times = list[float]()
    for _ in range(2):
        begin = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=_TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps({"model": NAME, **body}))
            response = connection.getresponse()
            content = response.read()
        if response.status != 200:
            return Times(error=f"status {response.status}: {content[:200].decode()}")
        times.append(time.perf_counter() - begin)
    return Times(times[0], times[1])


def measured(bundle: Path, folder: str) -> dict[str, Any]:
    flags_ = (
        f"--name={NAME}",
        f"--max_batch_size={FLAGS.slots}",
        f"--jax_serialization_dir={folder}",
    )

    def started() -> ServerProcess:
        return ServerProcess(str(bundle), *flags_)

    with started() as server:
        ready = server.wait_until_ready()
        line = server.wait_until_warm()
        first = {kind: dataclasses.asdict(timed(server, kind)) for kind in kinds()}
    second = {}
    for kind in kinds():
        with started() as server:
            server.wait_until_ready()
            second[kind] = dataclasses.asdict(timed(server, kind))
    return {
        "ready_s": ready,
        "warm": line,
        "first_start": first,
        "second_start": second,
        "slowest_s": {
            "first_start": max(times["first"] for times in first.values()),
            "second_start": max(times["first"] for times in second.values()),
        },
    }


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        raise app.UsageError(f"expected one bundle, got {len(arguments) - 1}")
    bundle = Path(arguments[1])
    head = {"bench": "first_requests", "bundle": bundle.name, "threads": threads()}
    with tempfile.TemporaryDirectory() as folder:
        found = measured(bundle, folder)
    append({**head, "slots": FLAGS.slots, **found}, FLAGS.out)
    return 0


if __name__ == "__main__":
    sys.exit(app.run(main))
