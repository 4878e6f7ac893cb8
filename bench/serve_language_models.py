"""Tokens per second of `jaxdelegate serve` with a bundle and of `litert-lm serve`; a soak test.

    NPROC=2 python bench/serve_language_models.py model.litertlm [--litert_lm=litert-lm]
        [--clients=8] [--answer_tokens=64] [--requests=4] [--rounds=7] [--out=FILE]
        [--platform=gpu --compute_dtype=float16]
    python bench/serve_language_models.py model.litertlm --soak=10000 [--clients=12] [--slots=8]
        [--hostile=9]
    python bench/serve_language_models.py model.litertlm --equal=1000 [--rounds=2]

First each server answers every chat alone: jaxdelegate's texts must be those of `lm.Engine`, and
`litert_lm_equal` counts those of litert-lm that are. Chats whose answers hang on rounding are left
out. Then closed loops run in turn, in each round those of both servers: one client, then `clients`
at once (or each of several numbers), `requests` chats each. Under load every text must be that of
the server alone; `wrong` counts the others. `--litert_lm` is the command of a package litert-lm,
whose environment may be another one; without it jaxdelegate is measured alone.

`--soak` sends as many requests of mixed lengths, half of them streams; every fifth client
disconnects early. None may be lost, each text must be that of an engine alone, nothing may run at
the end, and the server's anonymous resident memory may grow by 2%: the medians of the first and
the last sixth of the samples after the warm-up, a sixth of the requests. Otherwise the exit status
is 1. With `--hostile` clients, whose programs take memory, growth is not limited; `slowest_s` says
how long a request of the others took at most.

`--equal` compares a server with `--batch_invariant` and one without. Each answers as many chats one
by one, half of which continue others: greedy and seeded, with log probabilities and without. Then
in each round both get them at once, in random order, and an eighth of them one by one again.
`differing` counts answers that are not exactly those of the first time, by round; with the
option there must be none, else the exit status is 1. `cost` is the part of the tokens per second
that the option takes.
"""

import contextlib
import functools
import random
import re
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from absl import app, flags
from harness import append, spread, threads
from server_process import ServerProcess
from text_clients import (
    NAME,
    Case,
    Soak,
    answer,
    at_once,
    cases,
    continued,
    hostile,
    litert_lm_server,
    mixed_chats,
    whole_answer,
)

FLAGS = flags.FLAGS
flags.DEFINE_string("litert_lm", None, "The command litert-lm; None: jaxdelegate alone.")
flags.DEFINE_multi_integer("clients", [8], "At once; several numbers, one after the other.", 1)
flags.DEFINE_string("platform", "cpu", "Where jaxdelegate runs: cpu, gpu or tpu.")
flags.DEFINE_string("compute_dtype", "float32", "JaxDelegate's option.")
flags.DEFINE_integer("slots", 8, "--max_batch_size of jaxdelegate.", 1)
flags.DEFINE_integer("answer_tokens", 64, "The most tokens of an answer.", 1)
flags.DEFINE_integer("requests", 4, "Of each client in a round.", 1)
flags.DEFINE_integer("rounds", 7, "Timed rounds.", 1)
flags.DEFINE_integer("soak", 0, "Requests of the soak test; 0: measure.", 0)
flags.DEFINE_integer("equal", 0, "Chats whose answers must be equal; 0: measure.", 0)
flags.DEFINE_integer("hostile", 0, "Hostile clients during the soak test.", 0)
flags.DEFINE_integer("seed", 0, "Of the soak test.")
flags.DEFINE_string("out", None, "A file to append the JSON line to.")

GROWTH = 0.02
_CASES = 24  # of the soak test
_MOST_CHATS = 16  # that differ

Record = dict[str, Any]


def served(bundle: Path, *more: str) -> ServerProcess:
    options = [f"--jax_{name}={value}" for name, value in _options().items()]
    slots = f"--max_batch_size={FLAGS.slots}"
    return ServerProcess(str(bundle), f"--name={NAME}", slots, *options, *more)


def _options() -> dict[str, str]:
    return {"platform": FLAGS.platform, "compute_dtype": FLAGS.compute_dtype}


def _most_clients() -> int:
    return max(FLAGS.clients)


# ---- tokens per second


class Server:
    """A server, its texts of each chat alone, and what it did under load."""

    def __init__(self, port: int, chats: list[Case]) -> None:
        self._port, self._chats, self.wrong = port, chats, 0
        self._alone = [answer(port, chat.body)[0] for chat in chats]
        self.equal = sum(t == c.text for t, c in zip(self._alone, chats, strict=True))

    def rate(self, clients: int) -> float:
        """Tokens per second of a closed loop."""
        numbers = [i % len(self._chats) for i in range(clients * FLAGS.requests)]
        calls = [functools.partial(answer, self._port, self._chats[i].body) for i in numbers]
        begin = time.perf_counter()
        found = at_once(clients, calls)
        seconds = time.perf_counter() - begin
        self.wrong += sum(t != self._alone[i] for i, (t, _) in zip(numbers, found, strict=True))
        return sum(tokens for _, tokens in found) / seconds


def measured(bundle: Path, folder: Path) -> Record:
    limits = [FLAGS.answer_tokens] * min(_most_clients(), _MOST_CHATS)
    chats = cases(bundle, limits, FLAGS.slots, _options())
    with contextlib.ExitStack() as ends:
        own = ends.enter_context(served(bundle))
        own.wait_until_ready()
        servers = {"jaxdelegate": Server(own.port, chats)}
        if servers["jaxdelegate"].equal != len(chats):
            raise RuntimeError("jaxdelegate serve: a text is not that of an engine alone")
        if FLAGS.litert_lm:
            other = litert_lm_server(FLAGS.litert_lm, bundle, folder, _free_port())
            servers["litert_lm"] = Server(ends.enter_context(other), chats)
        rates: dict[int, dict[str, list[float]]] = {
            n: {name: [] for name in servers} for n in sorted({1, *FLAGS.clients})
        }
        for clients, each in rates.items():
            for _ in range(FLAGS.rounds):
                for name, server in servers.items():
                    each[name].append(server.rate(clients))
    return {**_rates(rates), **_checked(servers, len(chats))}


def _rates(rates: dict[int, dict[str, list[float]]]) -> Record:
    found: Record = {}
    for clients, each in rates.items():
        key = f"clients_{clients}"
        found[key] = {name: spread(values) for name, values in each.items()}
        if "litert_lm" in each:
            pairs = zip(each["jaxdelegate"], each["litert_lm"], strict=True)
            found[f"{key}_ratio"] = spread([a / b for a, b in pairs])
    return found


def _checked(servers: dict[str, Server], count: int) -> Record:
    wrong = {name: server.wrong for name, server in servers.items()}
    found: Record = {"chats": count, "wrong": wrong}
    if "litert_lm" in servers:
        found["litert_lm_equal"] = servers["litert_lm"].equal
    return found


def _free_port() -> int:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:
        return int(listening.getsockname()[1])


# ---- equal answers


class Repeated:
    """A server, its answers to each chat alone, and what it did under load."""

    def __init__(self, port: int, chats: list[dict[str, Any]]) -> None:
        """Let it answer these chats, then others that continue them."""
        self._port, self.differing = port, list[int]()
        self._chats, self._alone = chats, self._answers(1, [*range(len(chats))], chats)
        more = [continued(*each) for each in zip(chats, self._alone, strict=True)]
        self._alone += self._answers(1, [*range(len(more))], more)
        self._chats = [*chats, *more]

    def _answers(
        self, clients: int, numbers: list[int], chats: list[dict[str, Any]]
    ) -> list[Record]:
        return at_once(
            clients, [functools.partial(whole_answer, self._port, chats[i]) for i in numbers]
        )

    def rate(self, clients: int, numbers: list[int]) -> float:
        """Tokens per second; counts the answers that differ."""
        begin = time.perf_counter()
        found = self._answers(clients, numbers, self._chats)
        seconds = time.perf_counter() - begin
        wanted = [self._alone[i] for i in numbers]
        self.differing.append(
            sum(a["choices"] != b["choices"] for a, b in zip(found, wanted, strict=True))
        )
        return sum(each["usage"]["completion_tokens"] for each in found) / seconds


def equalled(bundle: Path) -> tuple[Record, bool]:
    chats = mixed_chats(FLAGS.equal // 2, FLAGS.seed)
    names = {"jaxdelegate": (), "batch_invariant": ("--batch_invariant",)}
    rates: dict[str, dict[str, list[float]]] = {
        kind: {name: [] for name in names} for kind in ("at_once", "one_by_one")
    }
    with contextlib.ExitStack() as ends:
        servers = dict[str, Repeated]()
        for name, options in names.items():
            server = ends.enter_context(served(bundle, "--warm=none", *options))
            server.wait_until_ready()
            servers[name] = Repeated(server.port, chats)
        for number in range(FLAGS.rounds):
            order = random.Random(number).sample(range(2 * len(chats)), 2 * len(chats))
            for name, server in servers.items():
                rates["at_once"][name].append(server.rate(_most_clients(), order))
                rates["one_by_one"][name].append(server.rate(1, order[: len(order) // 8]))
    found: Record = {"requests": 2 * len(chats)}
    for kind, each in rates.items():
        pairs = zip(each["batch_invariant"], each["jaxdelegate"], strict=True)
        cost = spread([1 - invariant / own for invariant, own in pairs])
        found[kind] = {**{name: spread(values) for name, values in each.items()}, "cost": cost}
    found["differing"] = {name: server.differing for name, server in servers.items()}
    return found, not any(servers["batch_invariant"].differing)


# ---- soak


def soaked(bundle: Path) -> tuple[Record, bool]:
    rng = random.Random(FLAGS.seed)
    limits = [rng.randint(1, FLAGS.answer_tokens) for _ in range(_CASES)]
    chats, begin = cases(bundle, limits, FLAGS.slots, _options()), time.perf_counter()
    with served(bundle) as server:
        server.wait_until_ready()
        soak = Soak(server, chats, FLAGS.soak, FLAGS.seed)
        calls = [functools.partial(soak.request, n) for n in range(FLAGS.soak)]
        with hostile(server.port, FLAGS.hostile):
            at_once(_most_clients(), calls)
        at_end = _running(server)
        for _ in range(100):  # those that left end before the next run
            if not at_end:
                break
            time.sleep(0.1)
            at_end = _running(server)
    record = {
        "requests": FLAGS.soak,
        "seconds": time.perf_counter() - begin,
        "done": soak.done,
        "errors": soak.errors,
        "hostile": FLAGS.hostile,
        "slowest_s": soak.slowest_s,
        "running_at_end": at_end,
        "rss_anon_mb": spread(soak.samples),
        "growth": soak.growth(),
    }
    grows = soak.growth() > GROWTH and not FLAGS.hostile
    return record, not (soak.errors or at_end or grows)


def _running(server: ServerProcess) -> float:
    """Sequences in slots and in the queue."""
    text = server.get("/metrics")[1].decode()
    return sum(map(float, re.findall(r"^vllm:num_requests_\w+\{.*\} (\S+)$", text, re.MULTILINE)))


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        raise app.UsageError(f"expected one bundle, got {len(arguments) - 1}")
    bundle, is_healthy = Path(arguments[1]), True
    head = {"bundle": bundle.name, "threads": threads(), "slots": FLAGS.slots}
    head |= {"clients": _most_clients(), "answer_tokens": FLAGS.answer_tokens, **_options()}
    with tempfile.TemporaryDirectory() as folder:
        if FLAGS.equal:
            found, is_healthy = equalled(bundle)
            append({"bench": "equal_language_models", **head, **found}, FLAGS.out)
        elif FLAGS.soak:
            found, is_healthy = soaked(bundle)
            append({"bench": "soak_language_models", **head, **found}, FLAGS.out)
        else:
            found = measured(bundle, Path(folder))
            append({"bench": "serve_language_models", **head, **found}, FLAGS.out)
    return 0 if is_healthy else 1


if __name__ == "__main__":
    sys.exit(app.run(main))
