"""`jaxdelegate serve` against NVIDIA's Triton Inference Server running LiteRT.

    python bench/serve_peer.py --peer_python=ENVIRONMENT/bin/python [--model=model.tflite]
        [--server_cpus=0] [--client_cpus=1] [--out=bench/results/serve_peer.jsonl]

Both servers are up, batch up to 8 requests without a delay, and get the same requests with binary
tensors from closed-loop clients in this process, one server at a time. The responses of both must
agree with stock LiteRT. Triton (pytriton_server.py) calls LiteRT with XNNPACK in one thread, in a
separate environment:

    python3 -m venv ENVIRONMENT && ENVIRONMENT/bin/pip install nvidia-pytriton ai-edge-litert
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

from absl import app, flags
from harness import append, ratios, spread
from http_clients import Judge, Pool, closed_loop, first_responses, for_seconds, run
from serve_load import Work, network, percentiles
from server_process import pinned

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "peer_python", None, "The Python of an environment with nvidia-pytriton.", required=True
)
flags.DEFINE_string("model", None, "A float .tflite; unset: MobileNet v1 0.25, built in memory.")
flags.DEFINE_integer("size", 128, "Of MobileNet's images.", 32)
flags.DEFINE_list("clients", ["1", "8", "64"], "How many connections, one after the other.")
flags.DEFINE_integer("pool", 64, "Distinct inputs.", 2)
flags.DEFINE_integer("rounds", 7, "Of each.", 1)
flags.DEFINE_float("seconds", 3, "Of a round, for each server.", 0.05)
flags.DEFINE_list("server_cpus", [], "Pin servers to these; none: all.")
flags.DEFINE_list("client_cpus", [], "Pin the client to these; none: all.")
flags.DEFINE_string("out", None, "A file to append the JSON lines to.")

BATCH = 8
_READY_S = 120.0
_OURS, _PEER = "jaxdelegate", "triton"


class Peer:
    """Triton, ready; stopped when the context ends."""

    def __init__(self, path: Path, cpus: set[int]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        script = str(Path(__file__).with_name("pytriton_server.py"))
        self._command = [FLAGS.peer_python, script, str(path), str(self.port), str(BATCH)]
        with pinned(cpus):  # the child inherits it
            self._process = subprocess.Popen(
                self._command,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # it starts processes
            )

    def __enter__(self) -> Self:
        end = time.perf_counter() + _READY_S
        while not self._answers("/v2/models/m/ready"):
            if self._process.poll() is not None or time.perf_counter() > end:
                raise SystemExit(f"Triton does not start; see why: {shlex.join(self._command)}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)  # Ctrl-C lets it stop Triton first
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as found:
                return bool(found.status == 200)
        except OSError:
            return False

    def version(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v2", timeout=10) as found:
            return str(json.load(found)["version"])


async def compared(ports: dict[str, int], pool: Pool, clients: int) -> dict[str, Any]:
    """Rates and latencies of both servers in turn; the first round is not counted."""
    judges = {name: Judge(pool) for name in ports}
    requests = {name: pool.requests(port, "m") for name, port in ports.items()}
    for name, port in ports.items():
        await first_responses(port, requests[name], judges[name])
    rates: dict[str, list[float]] = {name: [] for name in ports}
    seconds: dict[str, list[list[float]]] = {name: [] for name in ports}
    for number in range(FLAGS.rounds + 1):
        for name, port in list(ports.items())[:: 1 if number % 2 else -1]:
            begin = time.perf_counter()
            keyed = for_seconds(requests[name], FLAGS.seconds)
            found = await closed_loop(port, clients, keyed, judges[name].take)
            if number:
                rates[name].append(len(found) / (time.perf_counter() - begin))
                seconds[name].append(found)
    return {
        "clients": clients,
        "per_second": {name: spread(own) for name, own in rates.items()},
        "latency": {name: percentiles(own) for name, own in seconds.items()},
        "ratio": ratios(rates, _PEER)[_OURS],
        "answers": {name: judge.counts for name, judge in judges.items()},
    }


def main(_argv: list[str]) -> None:
    name, content = network(FLAGS.model, FLAGS.size)
    cpus = {int(cpu) for cpu in FLAGS.server_cpus}
    pool = Pool(content, FLAGS.pool)
    with tempfile.TemporaryDirectory() as directory:
        work = Work(Path(directory), cpus)
        path = work.file(name, content)
        work.fill_cache(path)
        if FLAGS.client_cpus:
            os.sched_setaffinity(0, {int(cpu) for cpu in FLAGS.client_cpus})
        with work.server(path) as ours, Peer(path, cpus) as peer:
            ours.wait_until_ready()
            ports, version = {_OURS: ours.port, _PEER: peer.port}, peer.version()
            for clients in map(int, FLAGS.clients):
                found = run(compared(ports, pool, clients))
                shown = {"server": FLAGS.server_cpus or None, "client": FLAGS.client_cpus or None}
                line = {"bench": "serve_peer", "model": name, "triton": version, "cpus": shown}
                append({**line, **found}, FLAGS.out)


if __name__ == "__main__":
    app.run(main)
