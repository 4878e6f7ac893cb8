"""`jaxdelegate serve` as a process: shutdown, memory, readiness."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdelegate.measuring.tolerance import NETWORK
from jaxdelegate.testing import assert_close
from tests.serve.stock import NETWORKS, stock_outputs
from tests.support.language_models import language_bundle, language_model

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("signals_at_their_defaults")]

ROOT = Path(__file__).parents[2]


class Process:
    """A process of the tool, with its address and printed lines."""

    def __init__(self, *arguments: str) -> None:
        self.begin = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jaxdelegate", "serve", *arguments, "--port=0"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = int(self.line("listening on http://").rpartition(":")[2])

    def line(self, begin: str) -> str:
        """The next line, which must have this beginning."""
        assert self.process.stdout is not None
        found = self.process.stdout.readline().strip()
        assert found.startswith(begin), found
        return found

    def get(self, path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as found:
                return int(found.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    def read(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as found:
            return bytes(found.read())

    def infer(self, name: str, body: bytes) -> Any:
        address = f"http://127.0.0.1:{self.port}/v2/models/{name}/infer"
        with urllib.request.urlopen(urllib.request.Request(address, body), timeout=60) as found:
            return json.load(found)

    def anonymous_memory(self) -> int:
        """RssAnon in KiB."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+) kB", text)
        assert found is not None
        return int(found[1])


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[Process]:
    started = Process(*arguments)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate()


def body_of(name: str, array: np.ndarray) -> bytes:
    entry = {
        "name": name,
        "datatype": "FP32",
        "shape": array.shape,
        "data": array.ravel().tolist(),
    }
    return json.dumps({"inputs": [entry]}).encode()


def test_results_of_the_package_s_networks_equal_the_stock_interpreter_s(
    rng: np.random.Generator,
) -> None:
    names = ("classification", "segmentation", "pose")
    models = ",".join(f"{name}={NETWORKS / name}.tflite" for name in names)
    x = rng.normal(size=(2, 64, 64, 3)).astype(np.float32)
    with process(f"--models={models}", "--max_batch_size=2") as served:
        lines = [served.line("model ") for _ in names]
        assert {line.split()[1] for line in lines} == {repr(name) for name in names}
        for name in names:
            (output, *_) = served.infer(name, body_of("image", x))["outputs"]
            found = np.array(output["data"], np.float32).reshape(output["shape"])
            expected = [stock_outputs(name, [row[None]])[0] for row in x]
            assert_close([found], [np.concatenate(expected)], tolerance=NETWORK, because="networks")


def test_live_while_compiling_and_ready_after(tmp_path: Path) -> None:
    """The second start reads the programs that the first one stored."""
    arguments = (
        str(NETWORKS / "classification.tflite"),
        "--max_batch_size=1",
        f"--jax_serialization_dir={tmp_path / 'programs'}",
    )
    with process(*arguments) as served:
        assert served.get("/v2/health/live") == 200
        served.line("model 'classification' is ready after ")
        assert served.get("/v2/health/ready") == 200
    with process(*arguments) as served:
        served.line("model 'classification' is ready after ")
        assert served.get("/v2/health/ready") == 200
        text = served.read("/metrics").decode()
        labels = '{model="classification",version="1"}'
        assert f"jaxdelegate_compile_count{labels} 0.0" in text
        assert f"jaxdelegate_cache_hit_count{labels} 1.0" in text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_after_a_signal_accepted_requests_finish(number: signal.Signals) -> None:
    """Even one whose body is still being received."""
    body = body_of("features", np.zeros((1, 32), np.float32))
    head = (
        "POST /v2/models/keywords/infer HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    with process(str(NETWORKS / "keywords.tflite")) as served:
        served.line("model 'keywords' is ready after ")
        with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
            connection.sendall(head.encode())
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 100 ")  # it waits for the body
            connection.sendall(body[:10])
            served.process.send_signal(number)
            until_refused(served.port)
            connection.sendall(body[10:])
            answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        assert answer.startswith(b"HTTP/1.1 200 OK"), answer
        assert b"connection: close" in answer
        assert served.process.wait(60) == 0


def test_after_a_signal_streams_go_on_to_their_end(tmp_path: Path) -> None:
    path = tmp_path / "model.litertlm"
    path.write_bytes(language_bundle(model=language_model(capacity=2048)))
    body = json.dumps({"model": "model", "prompt": [1], "max_tokens": 2000, "stream": True})
    with process(str(path), f"--jax_serialization_dir={tmp_path}") as served:
        line = served.line("model 'model' is ready after ")
        assert re.search(
            r" with 0\.\d MB of weights, and up to \d\.\d MB of caches for each of 8 ", line
        )
        address = f"http://127.0.0.1:{served.port}/v1/completions"
        request = urllib.request.Request(address, body.encode())
        with urllib.request.urlopen(request, timeout=60) as stream:
            text = stream.readline()
            served.process.terminate()
            until_refused(served.port)
            text += stream.read()
        assert text.endswith(b"data: [DONE]\n\n")
        assert b"error" not in text
        assert served.process.wait(60) == 0


FORKS = """
import json, os, sys, time, urllib.request
from starlette.testclient import TestClient
from jaxdelegate.serve.application import create

def answer(app):
    with TestClient(app) as client:
        end = time.monotonic() + 60
        while client.get("/v2/health/ready").status_code != 200 and time.monotonic() < end:
            time.sleep(0.05)
        return client.post("/v2/models/m/infer", json={"inputs": [INPUT]}).status_code

def forked(function):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if function() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

INPUT = {"name": "features", "datatype": "FP32", "shape": [1, 32], "data": [0] * 32}
app = create({"m": sys.argv[1]})
assert "jax" not in sys.modules
assert [forked(lambda: answer(app) == 200) for _ in range(2)] == [0, 0]
with TestClient(app) as client:

    def refused():
        ready = client_of_child.get("/v2/health/ready")
        infer = client_of_child.post("/v2/models/m/infer", json={"inputs": [INPUT]})
        words = "was started before this process"
        return infer.status_code == 503 and words in ready.text and words in infer.text

    client_of_child = TestClient(app)  # no lifespan
    while client.get("/v2/health/ready").status_code != 200:
        time.sleep(0.05)
    assert forked(refused) == 0
    assert client.post("/v2/models/m/infer", json={"inputs": [INPUT]}).status_code == 200
"""


def test_a_fork_before_the_start_serves_and_one_after_it_reports_an_error() -> None:
    """`gunicorn --preload` creates the application once, before it forks its workers."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, str(NETWORKS / "keywords.tflite")],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert found.returncode == 0, found.stderr
    assert "m was started before this process" in found.stderr  # the log


def test_a_second_interrupt_ends_without_responses() -> None:
    head = b"POST /v2/models/keywords/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n"
    with process(str(NETWORKS / "keywords.tflite")) as served:
        served.line("model 'keywords' is ready after ")
        with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
            connection.sendall(head)  # no body: the server waits for it
            assert served.get("/v2/health/live") == 200
            served.process.send_signal(signal.SIGINT)
            until_refused(served.port)
            assert served.process.poll() is None
            served.process.send_signal(signal.SIGINT)
            assert served.process.wait(60) == 128 + signal.SIGINT


def until_refused(port: int) -> None:
    """Wait until the port is closed."""
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=60).close()
        except ConnectionError:
            return


def test_a_signal_while_compiling_ends_after_the_current_program() -> None:
    with process(str(NETWORKS / "segmentation.tflite")) as served:
        served.process.terminate()
        assert served.process.wait(60) == 0


@pytest.mark.parametrize("port", ["--port", "--grpc_port"])
def test_a_port_that_is_in_use(port: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = subprocess.run(
            [
                *(sys.executable, "-m", "jaxdelegate", "serve", str(NETWORKS / "keywords.tflite")),
                *("--port=0", f"{port}={taken.getsockname()[1]}"),
            ],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        )
    assert found.returncode == 1
    assert "\njaxdelegate: " in f"\n{found.stderr}"  # gRPC prints lines, too
    assert "Traceback" not in found.stderr


def test_uvicorn_starts_the_factory() -> None:
    command = [sys.executable, "-m", "uvicorn", "--factory", "jaxdelegate.serve.application:create"]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.set_inheritable(True)
        port = listener.getsockname()[1]
        with subprocess.Popen(
            [*command, f"--fd={listener.fileno()}", "--log-level=warning"],
            cwd=ROOT,
            env=os.environ | {"JAXDELEGATE_SERVE_MODELS": f"words={NETWORKS / 'keywords.tflite'}"},
            pass_fds=[listener.fileno()],
        ) as started:
            listener.close()
            address = f"http://127.0.0.1:{port}/v2/models/words"
            with urllib.request.urlopen(address, timeout=60) as found:
                assert json.load(found)["inputs"][0]["name"] == "features"
            started.terminate()
            assert started.wait(60) in (0, -signal.SIGTERM)


def test_broken_connections_leave_no_memory() -> None:
    """Bodies that are truncated at every position, and connections that are reset."""
    array = np.zeros((1, 64, 64, 3), np.float32)
    body = body_of("image", array)
    entry = {
        "name": "image",
        "datatype": "FP32",
        "shape": array.shape,
        "parameters": {"binary_data_size": array.nbytes},
    }
    text = json.dumps({"inputs": [entry]}).encode()
    binary = text + array.tobytes()
    good = b"POST /v2/models/classification/infer HTTP/1.1\r\nhost: x\r\n"
    requests = [
        good + f"content-length: {len(body)}\r\n\r\n".encode() + body,
        good
        + f"inference-header-content-length: {len(text)}\r\n".encode()
        + f"content-length: {len(binary)}\r\n\r\n".encode()
        + binary,
        good + b"content-length: 67108864\r\n\r\n" + bytes(1 << 20),
        good + b"content-encoding: gzip\r\ncontent-length: 65536\r\n\r\n" + bytes(1 << 15),
    ]

    def broken(port: int, count: int) -> None:
        for number in range(count):
            request = requests[number % len(requests)]
            cut = len(request) * (number % 97) // 97
            with (
                contextlib.suppress(ConnectionError),
                socket.create_connection(("127.0.0.1", port), timeout=60) as connection,
            ):
                connection.sendall(request[:cut])
                if number % 2:  # RST instead of FIN
                    linger = (1).to_bytes(4, "little") + bytes(4)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    with process(str(NETWORKS / "classification.tflite"), "--max_batch_size=1") as served:
        served.line("model 'classification' is ready after ")
        broken(served.port, 400)
        served.infer("classification", body)
        before = served.anonymous_memory()
        threads = [threading.Thread(target=broken, args=(served.port, 400)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert served.infer("classification", body)["outputs"]
        assert served.anonymous_memory() - before < 16 << 10  # KiB; 1 MiB for each would be 800
        assert served.get("/v2/health/ready") == 200
