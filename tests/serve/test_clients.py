"""A server over real sockets, called by tritonclient: results equal the stock interpreter's."""

import contextlib
import json
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from starlette.testclient import TestClient

from jaxdelegate.serve import connections
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.running import Server
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.testing import ModelBuilder, assert_close
from tests.serve.stock import NETWORKS, stock_outputs

http = pytest.importorskip("tritonclient.http", reason="the client needs tritonclient[http]")
grpc = pytest.importorskip("tritonclient.grpc", reason="the client needs tritonclient[grpc]")
import grpc as grpcio  # noqa: E402
from tritonclient.grpc import service_pb2  # noqa: E402
from tritonclient.utils import InferenceServerException, np_to_triton_dtype  # noqa: E402

LIMIT = 1 << 20


class Ports(NamedTuple):
    http: str
    grpc: str


def two_signatures() -> bytes:
    builder = ModelBuilder()
    x = builder.input((1, 4), np.float32, "x")
    y = builder.tensor((1, 4), name="y")
    builder.operator("NEG", [x], [y])
    builder.outputs(y)
    other = builder.subgraph("other")
    a, b = other.input((1, 4), np.int32, "a"), other.input((1, 4), np.int32, "b")
    c = other.tensor((1, 4), np.int32, name="c")
    other.operator("ADD", [a, b], [c])
    other.outputs(c)
    builder.signature("add", {"left": a, "right": b}, {"sum": c}, subgraph=1)
    builder.signature("serving_default", {"x": x}, {"negative": y})
    return builder.build()


class Running:
    """A server in a thread, with the lines that it prints."""

    def __init__(self, models: dict[str, Path], **settings: Any) -> None:
        self.said: list[str] = []
        self._count = len(models)
        self._is_ready = threading.Event()
        self.server = Server(
            models,
            ServeSettings(**settings),
            Limits(LIMIT),
            port=0,
            grpc_port=0,
            say=self._say,
        )
        self._thread = threading.Thread(target=self.server.run)

    def _say(self, line: str) -> None:
        self.said.append(line)
        ready = [said for said in self.said if "is ready" in said and ":" not in said]
        if len(ready) == self._count:
            self._is_ready.set()

    def __enter__(self) -> Ports:
        self._thread.start()
        assert self._is_ready.wait(120), self.said
        ports = [line.rpartition("//")[2] for line in self.said if line.startswith("listening")]
        return Ports(*ports)

    def __exit__(self, *_: object) -> None:
        self.server.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    path = tmp_path_factory.mktemp("served") / "two.tflite"
    path.write_bytes(two_signatures())
    models = {
        "two": path,
        "words": NETWORKS / "keywords.tflite",
        "classifier": NETWORKS / "classification.tflite",
    }
    with Running(models, max_batch_size=2) as found:
        yield found


def inputs_of(module: Any, arrays: dict[str, np.ndarray], **more: Any) -> list[Any]:
    found = []
    for name, array in arrays.items():
        tensor = module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array, **more)
        found.append(tensor)
    return found


CLIENTS = [http, grpc]


def client_of(module: Any, ports: Ports) -> Any:
    return module.InferenceServerClient(ports.http if module is http else ports.grpc)


@pytest.mark.parametrize("module", CLIENTS)
def test_health_and_metadata(module: Any, ports: Ports) -> None:
    with client_of(module, ports) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("two:add", "1")
        more = {"as_json": True} if module is grpc else {}
        assert client.get_server_metadata(**more)["name"] == "jaxdelegate"
        found = client.get_model_metadata("two:add", **more)
        shape = [-1, 4] if module is http else ["-1", "4"]
        assert found["inputs"] == [
            {"name": name, "datatype": "INT32", "shape": shape} for name in ("left", "right")
        ]
        assert found["outputs"] == [{"name": "sum", "datatype": "INT32", "shape": shape}]
        index = client.get_model_repository_index(**more)
        rows = index if module is http else index["models"]
        assert [row["name"] for row in rows] == [
            "two",
            "two:serving_default",
            "two:add",
            "words",
            "classifier",
        ]


@pytest.mark.parametrize("module", CLIENTS)
def test_model_configurations(module: Any, ports: Ports) -> None:
    """Triton's load generators need dimensions of an item, and sequences or batches."""

    def asked(client: Any, name: str) -> Any:
        if module is http:
            return client.get_model_config(name)
        return client.get_model_config(name, "1", as_json=True)["config"]

    with client_of(module, ports) as client:
        found = asked(client, "two:add")
        assert (found["name"], found["platform"]) == ("two:add", "jaxdelegate_tflite")
        dims = [4] if module is http else ["4"]  # JSON of messages has 64-bit integers as text
        assert found["input"] == [
            {"name": name, "data_type": "TYPE_INT32", "dims": dims} for name in ("left", "right")
        ]
        assert found["output"] == [{"name": "sum", "data_type": "TYPE_INT32", "dims": dims}]
        sizes = found["dynamic_batching"]["preferred_batch_size"]
        assert sizes[0] == 1
        assert found["max_batch_size"] == sizes[-1]
        words = asked(client, "words")  # keeps states
        assert int(words["sequence_batching"]["max_sequence_idle_microseconds"]) == 3600 * 10**6
        assert "dynamic_batching" not in words


@pytest.mark.parametrize("module", CLIENTS)
def test_statistics_count_what_was_asked(module: Any, ports: Ports) -> None:
    more = {"as_json": True} if module is grpc else {}

    def read(client: Any, name: str = "") -> Any:
        return client.get_inference_statistics(name, **more)["model_stats"]

    with client_of(module, ports) as client:
        assert [row["name"] for row in read(client)] == ["two", "words", "classifier"]
        (before,) = read(client, "two:add")
        both = np.zeros((2, 4), np.int32)
        begun = time.perf_counter_ns()
        for _ in range(3):
            client.infer("two:add", inputs_of(module, {"left": both, "right": both}))
        span = time.perf_counter_ns() - begun
        (after,) = read(client, "two:add")
        assert after["name"] == "two:add"

        def added(*path: str) -> int:
            values = []
            for row in (after, before):
                value = row
                for part in path:
                    value = value.get(part, {} if part != path[-1] else 0)
                values.append(int(value))
            return values[0] - values[1]

        assert added("inference_count") == 6
        assert added("execution_count") in {3, 6}  # depends on measured times
        assert added("inference_stats", "success", "count") == 3
        assert added("inference_stats", "fail", "count") == 0
        parts = ("queue", "compute_input", "compute_infer", "compute_output")
        each = [added("inference_stats", part, "ns") for part in parts]
        assert min(each) >= 0
        assert sum(each) <= added("inference_stats", "success", "ns") <= span
        assert int(after["last_inference"]) <= time.time() * 1000
        with pytest.raises(InferenceServerException, match="'absent' is not served"):
            read(client, "absent")


@pytest.mark.parametrize("module", CLIENTS)
def test_signatures_are_called_by_name(module: Any, ports: Ports) -> None:
    left = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.int32)
    with client_of(module, ports) as client:
        given = inputs_of(module, {"right": left * 10, "left": left})
        found = client.infer("two:add", given, request_id="7")
        np.testing.assert_array_equal(found.as_numpy("sum"), left * 11)
        (response,) = [found.get_response()]
        assert (response["id"] if module is http else response.id) == "7"
        x = np.array([[np.nan, np.inf, -0.0, 1]], np.float32)
        found = client.infer("two", inputs_of(module, {"x": x})).as_numpy("negative")
        np.testing.assert_array_equal(found, -x)


@pytest.mark.parametrize("algorithm", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [False, True])
def test_http_in_every_form(binary: bool, algorithm: str | None, ports: Ports) -> None:
    left = np.array([[1, 2, 3, 4]], np.int32)
    with client_of(http, ports) as client:
        found = client.infer(
            "two:add",
            inputs_of(http, {"left": left, "right": left}, binary_data=binary),
            outputs=[http.InferRequestedOutput("sum", binary_data=binary)],
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
        )
    np.testing.assert_array_equal(found.as_numpy("sum"), left * 2)
    assert ("data" in found.get_output("sum")) != binary


@pytest.mark.parametrize("module", CLIENTS)
def test_sequences_have_separate_states(
    module: Any, ports: Ports, rng: np.random.Generator
) -> None:
    """Two alternating sequences: the results of each equal those of a separate interpreter."""
    steps = rng.normal(size=(2, 3, 1, 32)).astype(np.float32)
    with client_of(module, ports) as client:
        found = [[], []]  # type: list[list[np.ndarray]]
        for step in range(3):
            for which in range(2):
                answer = client.infer(
                    "words",
                    inputs_of(module, {"features": steps[which, step]}),
                    sequence_id=which + 1,
                    sequence_start=step == 0,
                    sequence_end=step == 2,
                )
                found[which].append(answer.as_numpy("scores"))
    for given, answers in zip(steps, found, strict=True):
        assert_close(answers, stock_outputs("keywords", list(given)))


def test_sequences_belong_to_clients_over_both_protocols(ports: Ports) -> None:
    steps = [np.full((1, 32), n, np.float32) for n in range(3)]
    expected = stock_outputs("keywords", steps)
    keys: list[dict[str, str]] = [{}, {"authorization": "Bearer a"}, {"authorization": "Bearer b"}]
    with client_of(http, ports) as one, client_of(grpc, ports) as other:

        def scores(step: int, headers: dict[str, str]) -> np.ndarray:
            client, module = (other, grpc) if step == 1 else (one, http)
            given = inputs_of(module, {"features": steps[step]})
            options = {"sequence_start": step == 0, "sequence_end": step == 2}
            answer = client.infer("words", given, sequence_id=7, headers={**headers}, **options)
            found: np.ndarray = answer.as_numpy("scores")
            return found

        with pytest.raises(InferenceServerException, match="7 is not open"):
            scores(1, {})
        found = [[scores(step, headers) for headers in keys] for step in range(3)]
    for answers, wanted in zip(found, expected, strict=True):
        for answer in answers:
            assert_close(answer, wanted)


def test_a_grpc_stream_responds_in_order_and_survives_a_refusal(ports: Ports) -> None:
    answers: list[Any] = []
    enough = threading.Event()

    def keep(result: Any, error: Any) -> None:
        answers.append((result, error))
        if len(answers) == 3:
            enough.set()

    with client_of(grpc, ports) as client:
        client.start_stream(keep)
        for name in ("two", "missing", "two"):
            x = np.full((1, 4), len(name), np.float32)
            client.async_stream_infer(name, inputs_of(grpc, {"x": x}))
        assert enough.wait(60)
        client.stop_stream()
    first, second, third = answers
    np.testing.assert_array_equal(first[0].as_numpy("negative"), np.full((1, 4), -3))
    assert "model 'missing' is not served" in str(second[1])
    np.testing.assert_array_equal(third[0].as_numpy("negative"), np.full((1, 4), -3))


REFUSED = {
    "model": ("missing", {"x": np.zeros((1, 4), "f4")}, "is not served", "NOT_FOUND"),
    "name": ("two", {"y": np.zeros((1, 4), "f4")}, "input 'y'", "INVALID_ARGUMENT"),
    "dtype": ("two", {"x": np.zeros((1, 4), "f8")}, "input 'x': datatype", "INVALID_ARGUMENT"),
    "shape": ("two", {"x": np.zeros((1, 5), "f4")}, "input 'x': shape", "INVALID_ARGUMENT"),
    "batch": ("two", {"x": np.zeros((3, 4), "f4")}, "at most 2", "INVALID_ARGUMENT"),
}


@pytest.mark.parametrize("module", CLIENTS)
@pytest.mark.parametrize("what", REFUSED)
def test_refusals_have_a_reason_and_a_code(what: str, module: Any, ports: Ports) -> None:
    name, arrays, words, code = REFUSED[what]
    with client_of(module, ports) as client:
        with pytest.raises(InferenceServerException) as raised:
            client.infer(name, inputs_of(module, arrays))
        status = "404" if what == "model" else "400"
        expected = status if module is http else f"StatusCode.{code}"
        assert raised.value.status() == expected
        assert words in raised.value.message()


@pytest.mark.parametrize("module", CLIENTS)
def test_shared_memory_is_refused(module: Any, ports: Ports) -> None:
    tensor = module.InferInput("x", [1, 4], "FP32")
    tensor.set_shared_memory("region", 16)
    output = module.InferRequestedOutput("negative")
    output.set_shared_memory("region", 16)
    with client_of(module, ports) as client:
        with pytest.raises(InferenceServerException, match="shared memory is not supported"):
            client.infer("two", [tensor])
        given = inputs_of(module, {"x": np.zeros((1, 4), np.float32)})
        with pytest.raises(InferenceServerException, match="shared memory is not supported"):
            client.infer("two", given, outputs=[output])
        with pytest.raises(InferenceServerException) as raised:
            client.register_system_shared_memory("region", "/key", 16)
    assert raised.value.status() in ("501", "StatusCode.UNIMPLEMENTED")


@pytest.mark.parametrize("module", CLIENTS)
def test_a_classification_is_refused(module: Any, ports: Ports) -> None:
    outputs = [module.InferRequestedOutput("negative", class_count=2)]
    with client_of(module, ports) as client:
        given = inputs_of(module, {"x": np.zeros((1, 4), np.float32)})
        with pytest.raises(InferenceServerException, match="classification extension"):
            client.infer("two", given, outputs=outputs)


def test_a_message_beyond_the_limit(ports: Ports) -> None:
    given = inputs_of(grpc, {"x": np.zeros((LIMIT // 16 + 1, 4), np.float32)})
    with client_of(grpc, ports) as client, pytest.raises(InferenceServerException) as raised:
        client.infer("two", given)
    assert raised.value.status() == "StatusCode.RESOURCE_EXHAUSTED"


def called(ports: Ports, path: str, message: bytes) -> bytes:
    """The response to a message's bytes."""
    with grpcio.insecure_channel(ports.grpc) as channel:
        call = channel.unary_unary(path, request_serializer=None, response_deserializer=None)
        return bytes(call(message, timeout=30))


INFERENCE = "inference.GRPCInferenceService"


def test_health_over_grpc(ports: Ports) -> None:
    """The bytes of grpc.health.v1's messages: each has only field 1."""
    for service in ("", INFERENCE, "two", "two:add"):
        message = b"\x0a%c%s" % (len(service), service.encode())
        assert called(ports, "/grpc.health.v1.Health/Check", message) == b"\x08\x01"
    with pytest.raises(grpcio.RpcError, match="service 'three': expected") as raised:
        called(ports, "/grpc.health.v1.Health/Check", b"\x0a\x05three")
    assert raised.value.code() == grpcio.StatusCode.NOT_FOUND


def test_health_is_watched_until_the_shutdown(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(two_signatures())
    found: list[bytes] = []
    with contextlib.ExitStack() as after:
        with Running({"m": path}, max_batch_size=1) as own:
            channel = after.enter_context(grpcio.insecure_channel(own.grpc))
            watch = channel.unary_stream(
                "/grpc.health.v1.Health/Watch", request_serializer=None, response_deserializer=None
            )
            states = watch(b"\x0a\x01m", timeout=30)
            found.append(next(states))
            unknown = next(watch(b"\x0a\x01n", timeout=30))
        found.extend(states)
    assert (found, unknown) == ([b"\x08\x01", b"\x08\x02"], b"\x08\x03")


def test_unsupported_calls_are_refused(ports: Ports) -> None:
    names = [
        m.name for m in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    ]
    answered = {"ServerLive", "ServerReady", "ServerMetadata", "RepositoryIndex", "ModelStatistics"}
    of_models = {"ModelReady", "ModelMetadata", "ModelConfig", "ModelInfer", "ModelStreamInfer"}
    for name in set(names) - of_models - answered:
        with pytest.raises(grpcio.RpcError, match=f"not supported: {name}") as raised:
            called(ports, f"/{INFERENCE}/{name}", b"")
        assert raised.value.code() == grpcio.StatusCode.UNIMPLEMENTED
    for name in answered:
        called(ports, f"/{INFERENCE}/{name}", b"")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"\x2a\x00" * 100_000, "expected at most 16384 fields"),
        (b"\x2a\x05", "is not a ModelInferRequest"),
    ],
)
def test_messages_that_are_refused(message: bytes, words: str, ports: Ports) -> None:
    with pytest.raises(grpcio.RpcError) as raised:
        called(ports, f"/{INFERENCE}/ModelInfer", message)
    assert raised.value.code() == grpcio.StatusCode.INVALID_ARGUMENT
    assert words in raised.value.details()


@pytest.mark.parametrize("module", CLIENTS)
def test_ids_that_are_too_long_are_refused(module: Any, ports: Ports) -> None:
    given = inputs_of(module, {"x": np.zeros((1, 4), np.float32)})
    with client_of(module, ports) as client:
        for ids in ({"request_id": "i" * 257}, {"sequence_id": "i" * 257}):
            with pytest.raises(InferenceServerException, match="expected at most 256 bytes"):
                client.infer("two", given, **ids)


def sent(ports: Ports, *pieces: bytes) -> bytes:
    """The response to bytes on a connection, until it is closed."""
    host, _, port = ports.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
            found = b""
            while data := connection.recv(1 << 16):
                found += data
        except ConnectionError:  # closed while more bytes were sent
            return b"closed"
    return found


POST = b"POST /v2/models/two/infer HTTP/1.1\r\nhost: x\r\n"
CLOSED = {
    "headers-without-end": ((b"GET /v2 HTTP/1.1\r\n", *[b"a: " + b"b" * 9000 + b"\r\n"] * 8), 431),
    "one-header-without-end": ((b"GET /v2 HTTP/1.1\r\na: ", *[b"b" * 9000] * 8), 431),
    "address-without-end": ((b"GET /", *[b"b" * 9000] * 8), 431),
    "no-http": ((b"hello\r\n\r\n",), 400),
    "tls": ((bytes.fromhex("160301020001000001fc0303"),), 400),
    "version": ((b"GET /v2 HTTP/9.9\r\n\r\n",), 400),
    "length": ((POST + b"content-length: -1\r\n\r\n",), 400),
    "two-lengths": ((POST + b"content-length: 1\r\ncontent-length: 2\r\n\r\n",), 400),
    "length-and-chunks": (
        (POST + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",),
        400,
    ),
    "chunk": ((POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n",), 400),
    "too-large": ((POST + b"content-length: 9999999999\r\n\r\n",), 413),
    "chunks-too-large": (
        (
            POST + b"transfer-encoding: chunked\r\n\r\n",
            *[b"40000\r\n" + bytes(1 << 18) + b"\r\n"] * 5,
        ),
        413,
    ),
}


@pytest.mark.parametrize("what", CLOSED)
def test_connections_that_are_closed(what: str, ports: Ports) -> None:
    pieces, status = CLOSED[what]
    answer = sent(ports, *pieces)
    assert answer.startswith(b"HTTP/1.1 %d " % status) or (answer == b"closed" and len(pieces) > 1)
    if answer != b"closed":
        assert json.loads(answer.rpartition(b"\r\n\r\n")[2]).keys() == {"error"}
    with client_of(http, ports) as client:
        assert client.is_server_ready()


def test_headers_that_do_not_arrive_time_out(ports: Ports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_HEADER_S", 0.05)
    assert sent(ports, b"GET /v2 HTT").startswith(b"HTTP/1.1 408 ")
    assert sent(ports).startswith(b"HTTP/1.1 408 ")


def test_the_page_s_code_runs(
    ports: Ports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[2] / "docs" / "serving.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "model.tflite").write_bytes(two_signatures())
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block.replace("localhost:8000", ports.http), names)
    assert names["answer"].as_numpy("scores").shape == (1, 7)
    names["client"].close()
    with TestClient(names["app"]) as client:
        assert client.get("/v2/health/live").status_code == 200


def test_metrics_count_requests(ports: Ports) -> None:
    with urllib.request.urlopen(f"http://{ports.http}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert 'jaxdelegate_inference_request_success{model="two",version="1"}' in text
