"""Interleaved sequences of a stateful model over HTTP, checked against an interpreter each."""

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import percentile_ms
from http_clients import Client, Named, Response, exchange, infer, outputs, run
from server_process import ServerProcess

import jaxdelegate as jd

Outputs = dict[str, np.ndarray]


class Sequences:
    """The requests of all sequences, and the outputs of an interpreter for each.

    The first interpreter compiles the program and stores it in `cache`, the others load it.
    """

    def __init__(self, path: Path, port: int, cache: Path, sessions: int, steps: int) -> None:
        self.steps, self.count = steps, sessions
        self.requests: dict[int, bytes] = {}  # by sequence * steps + step
        self.expected: dict[int, Outputs] = {}
        delegate = jd.JaxDelegate(serialization_dir=str(cache))
        for sequence in range(sessions):
            interpreter = Named(jd.Interpreter(str(path), experimental_delegates=[delegate]))
            for step in range(steps):
                key = sequence * steps + step
                arrays = interpreter.random_inputs(key)
                self.expected[key] = interpreter(arrays)
                self.requests[key] = infer(
                    port,
                    "m",
                    arrays,
                    sequence_id=sequence + 1,
                    sequence_start=step == 0,
                    sequence_end=step == steps - 1,
                )
        self.counts = {"equal": 0, "wrong": 0, "lost": 0}
        self.first_error = ""

    def take(self, key: int, response: Response | None) -> None:
        kind = "lost"
        if response is not None:
            kind = "equal" if self._is_equal(key, response) else "wrong"
        if kind == "wrong" and response is not None and response.status != 200:
            self.first_error = self.first_error or response.body[:300].decode(errors="replace")
        self.counts[kind] += 1

    def _is_equal(self, key: int, response: Response) -> bool:
        if response.status != 200:
            return False
        found, want = outputs(response), self.expected[key]
        return set(found) == set(want) and all(
            found[n].dtype == y.dtype
            and found[n].shape == y.shape
            and found[n].tobytes() == y.tobytes()
            for n, y in want.items()
        )

    async def one_client(self, port: int, own: list[int], seconds: list[float]) -> None:
        """Send its sequences' requests, in a different order in each step."""
        client, rng = await Client.connect(port), random.Random(own[0])
        for step in range(self.steps):
            for sequence in rng.sample(own, len(own)):
                key = sequence * self.steps + step
                client = await exchange(
                    port,
                    client,
                    key,
                    self.requests[key],
                    self.take,
                    since=time.perf_counter(),
                    seconds=seconds,
                )
        client.close()


def run_sessions(
    server: ServerProcess, path: Path, cache: Path, *, sessions: int, steps: int, clients: int
) -> dict[str, Any]:
    """Counts of responses, requests per second, and the most sequences that were open at once.

    Raises:
        ValueError: the model's outputs do not depend on states.
    """
    work = Sequences(path, server.port, cache, sessions, steps)
    if steps > 1:
        check_states(work, path)
    seconds: list[float] = []

    async def all_clients() -> float:
        begin = time.perf_counter()
        owns = [list(range(first, sessions, clients)) for first in range(min(clients, sessions))]
        await asyncio.gather(*(work.one_client(server.port, own, seconds) for own in owns))
        return time.perf_counter() - begin

    span = run(all_clients())
    return {
        "sessions": sessions,
        "steps": steps,
        **work.counts,
        "first_error": work.first_error,
        "per_second": len(seconds) / span,
        "p50_ms": percentile_ms(seconds, 50),
        "p99_ms": percentile_ms(seconds, 99),
        "left_open": server.metrics().get("session_count"),
    }


def check_states(work: Sequences, path: Path) -> None:
    """Refuse a model for which mixing up sequences would go unnoticed.

    Raises:
        ValueError: a new interpreter returns the last output of a sequence.
    """
    last = work.steps - 1
    fresh = Named(jd.Interpreter(str(path), experimental_delegates=[jd.JaxDelegate()]))
    first = fresh(fresh.random_inputs(last))
    if all(first[name].tobytes() == y.tobytes() for name, y in work.expected[last].items()):
        raise ValueError(f"{path.name}: its outputs do not depend on states; choose another model")
