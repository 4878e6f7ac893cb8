"""bench/serve.py: what counts as wrong or lost, and each part with small counts."""

import asyncio
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.children import compiling_quickly

BENCH = Path(__file__).parents[2] / "bench"


class FakePool:
    """Two inputs with their expected outputs."""

    expected = ({"y": np.float32([[1, 2]])}, {"y": np.float32([[3, 4]])})


def response(clients: Any, *values: float, status: int = 200, name: str = "y") -> Any:
    """A binary response with one tensor."""
    parameters = {"binary_data_size": 4 * len(values)}
    entry = {"name": name, "datatype": "FP32", "shape": [1, len(values)], "parameters": parameters}
    text = json.dumps({"outputs": [entry]}).encode()
    return clients.Response(status, len(text), text + np.float32(values).tobytes())


def judged(clients: Any) -> Any:
    judge = clients.Judge(FakePool())
    judge.begin(0, response(clients, 1, 2))
    judge.begin(1, response(clients, 3, 4))
    return judge


@pytest.mark.parametrize(
    ("values", "fields", "kind"),
    [
        ((1, 2), {}, "equal"),
        ((1 + 1e-6, 2), {}, "near"),
        ((1 + 1e-4, 2), {}, "wrong"),
        ((3, 4), {}, "wrong"),  # another client's
        ((1, np.nan), {}, "wrong"),
        ((1,), {}, "wrong"),
        ((1, 2), {"name": "z"}, "wrong"),
        ((1, 2), {"status": 503}, "errors"),
    ],
    ids=str,
)
def test_responses_are_classified(
    values: tuple[float, ...], fields: dict[str, Any], kind: str
) -> None:
    clients = importlib.import_module("http_clients")
    judge = judged(clients)
    for _ in range(2):
        judge.take(0, response(clients, *values, **fields))
    assert judge.counts == {**dict.fromkeys(judge.counts, 0), kind: 2}
    assert judge.failures == (0 if kind in {"equal", "near"} else 2)


def test_the_first_response_must_agree_with_the_stock_interpreter() -> None:
    clients = importlib.import_module("http_clients")
    with pytest.raises(AssertionError, match="output 0"):
        clients.Judge(FakePool()).begin(0, response(clients, 1, 2.1))


def test_more_bytes_than_tensors_are_wrong() -> None:
    clients = importlib.import_module("http_clients")
    judge, right = judged(clients), response(clients, 1, 2)
    judge.take(0, clients.Response(200, right.header_length, right.body + b"x"))
    assert judge.counts["wrong"] == 1


def test_lost_responses_are_counted_and_the_client_continues() -> None:
    """The server closes every third request's connection, and responds in two writes."""
    clients = importlib.import_module("http_clients")
    right = response(clients, 1, 2)
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Length: {len(right.body)}\r\n"
        f"Inference-Header-Content-Length: {right.header_length}\r\n\r\n"
    ).encode()
    requests = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        while await reader.read(100):
            requests += 1
            if requests % 3 == 0:
                break
            writer.write(head + right.body[:5])
            await writer.drain()
            await asyncio.sleep(0)
            writer.write(right.body[5:])
        writer.close()

    async def main() -> tuple[Any, list[float]]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        judge = judged(clients)
        async with server:
            seconds = await clients.closed_loop(port, 2, [(0, b"x")] * 12, judge.take)
        return judge, seconds

    judge, seconds = clients.run(main())
    assert judge.counts == {"equal": 8, "near": 0, "wrong": 0, "errors": 0, "lost": 4}
    assert len(seconds) == 8


def parts(out: Path, *arguments: str, script: str = "serve.py") -> list[dict[str, Any]]:
    command = [sys.executable, str(BENCH / script), f"--out={out}", *arguments]
    environment = {**compiling_quickly(), "JAX_PLATFORMS": "cpu", "NPROC": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in out.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.litert
def test_answers_sequences_and_broken_requests(tmp_path: Path) -> None:
    sizes = ["--requests=300", "--pool=16", "--sessions=6", "--steps=3", "--count=88"]
    names = ["answers", "sessions", "broken"]
    rows = parts(tmp_path / "out.jsonl", f"--parts={','.join(names)}", "--clients=8", *sizes)
    many, sequences, broken = rows
    assert [row["part"] for row in rows] == names
    assert many["answers"]["equal"] + many["answers"]["near"] == 300
    assert (sequences["equal"], sequences["left_open"]) == (18, 0)
    assert broken["unexpected_kinds"] == {}
    assert broken["kinds"] == 22
    assert broken["answers"]["equal"] == 6


@pytest.mark.exhaustive
@pytest.mark.litert
def test_throughput_latency_and_restart(tmp_path: Path) -> None:
    names = ["throughput", "latency", "restart"]
    sizes = ["--size=32", "--width=64", "--layers=2", "--pool=8", "--clients=4"]
    short = ["--rounds=2", "--seconds=0.3", "--starts=2"]
    rows = parts(tmp_path / "out.jsonl", f"--parts={','.join(names)}", *sizes, *short)
    assert [row["part"] for row in rows] == ["throughput", *names]
    assert all(row["ratio"]["median"] > 0 for row in rows[:2])
    assert all(row["item_ms"].keys() == {"1", "8"} for row in rows[:2])
    assert rows[2]["latency"].keys() == {"delayed", "at_once"}
    assert rows[3]["compiled"] == 0
    assert 0 < rows[3]["ready_s"]["median"] <= rows[3]["ready_s"]["max"]


PEER = """#!{python}
import os, sys
_, _script, model, port, size = sys.argv
arguments = [model, "--name=m", f"--port={{port}}", f"--max_batch_size={{size}}"]
os.execv(sys.executable, [sys.executable, "-m", "jaxdelegate", "serve", *arguments])
"""


@pytest.mark.exhaustive
@pytest.mark.litert
def test_a_peer(tmp_path: Path) -> None:
    """A second server of ours replaces Triton, whose packages are not installed."""
    peer = tmp_path / "python"
    peer.write_text(PEER.format(python=sys.executable))
    peer.chmod(0o755)
    sizes = ["--size=32", "--pool=8", "--clients=1,4", "--rounds=2", "--seconds=0.3"]
    out = tmp_path / "out.jsonl"
    rows = parts(out, f"--peer_python={peer}", *sizes, script="serve_peer.py")
    assert [row["clients"] for row in rows] == [1, 4]
    for row in rows:
        assert row["per_second"].keys() == row["answers"].keys() == {"jaxdelegate", "triton"}
        for counts in row["answers"].values():
            assert counts["equal"] > 0
            assert counts["wrong"] == counts["errors"] == counts["lost"] == 0
        assert row["ratio"]["median"] > 0
