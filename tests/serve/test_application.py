"""Endpoints other than inference, limits, compression, and shutdown."""

import asyncio
import gzip
import json
import threading
import zlib
from typing import Any

import numpy as np
import pytest

from jaxdelegate.errors import InterpreterError, OptionError
from jaxdelegate.serve.application import application, create
from jaxdelegate.serve.clients import RequestError
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.service import Service, parse_models
from jaxdelegate.serve.v2 import json_messages
from tests.serve.fakes import Fake, Response, call, echo, failing, tensor
from tests.serve.stock import NETWORKS

BODY = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
).encode()
INFER = "/v2/models/m/infer"


def model() -> Fake:
    return echo("m", tensor("x", "f4", -1, 2))


def asked(served: Service, method: str, path: str, *rest: Any) -> Response:
    return asyncio.run(call(application(served), method, path, *rest))


def test_metadata() -> None:
    served = Service([model(), echo("a b:c", tensor("t", object, -1))])
    found = asked(served, "GET", "/v2").json
    assert found["extensions"] == [
        "binary_tensor_data",
        "model_configuration",
        "sequence",
        "statistics",
    ]
    shown = {"name": "x", "datatype": "FP32", "shape": [-1, 2]}
    expected = {
        "name": "m",
        "versions": ["1"],
        "platform": "jaxdelegate_tflite",
        "inputs": [shown],
        "outputs": [shown],
    }
    assert asked(served, "GET", "/v2/models/m").json == expected
    assert asked(served, "GET", "/v2/models/m/versions/1").json == expected
    assert asked(served, "GET", "/v2/models/a b:c").json["inputs"][0]["datatype"] == "BYTES"


def test_ready_only_when_every_model_is() -> None:
    slow = model()
    slow.is_ready = False
    served = Service([slow, echo("other", tensor("x", "f4", -1))])
    live = asked(served, "GET", "/v2/health/live")
    assert (live.status, live.json) == (200, {"live": True})  # KServe's client reads the body
    answer = asked(served, "GET", "/v2/health/ready")
    assert (answer.status, answer.json) == (400, {"error": "not ready: 'm'"})
    assert asked(served, "GET", "/v2/models/m/ready").status == 400
    assert asked(served, "GET", "/v2/models/other/ready").json == {"name": "other", "ready": True}
    assert asked(served, "POST", INFER, BODY).status == 503
    states = [row["state"] for row in asked(served, "POST", "/v2/repository/index").json]
    assert states == ["LOADING", "READY"]
    (row,) = asked(served, "POST", "/v2/repository/index", b'{"ready":true}').json
    assert row == {"name": "other", "version": "1", "state": "READY", "reason": ""}
    slow.is_ready = True
    answer = asked(served, "GET", "/v2/health/ready")
    assert (answer.status, answer.json) == (200, {"ready": True})


def test_configurations_need_ready_models_and_statistics_do_not() -> None:
    slow = model()
    slow.is_ready = False
    served = Service([slow, echo("other", tensor("x", "f4", -1))])
    assert asked(served, "GET", "/v2/models/m/config").status == 503
    for path in ("/v2/models/other/config", "/v2/models/other/versions/1/config"):
        assert asked(served, "GET", path).json["name"] == "other"
    for path in ("/v2/models/m/stats", "/v2/models/m/versions/1/stats"):
        assert [row["name"] for row in asked(served, "GET", path).json["model_stats"]] == ["m"]
    rows = asked(served, "GET", "/v2/models/stats").json["model_stats"]
    assert [row["name"] for row in rows] == ["m", "other"]
    for path in ("/v2/models/absent/config", "/v2/models/other/versions/2/stats"):
        assert asked(served, "GET", path).status == 404


def test_metrics_are_those_of_the_recorder() -> None:
    served = Service([model()], metrics=lambda: (b"a 1\n", "text/plain; version=1"))
    answer = asked(served, "GET", "/metrics")
    assert (answer.body, answer.headers["content-type"]) == (b"a 1\n", "text/plain; version=1")
    assert asked(Service([model()]), "GET", "/metrics").status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/v2/systemsharedmemory/region/r/register",
        "/v2/cudasharedmemory/status",
        "/v2/repository/models/m/load",
        "/v2/models/m/generate",
        "/v2/logging",
    ],
)
def test_unsupported_parts_of_the_protocol_are_refused(path: str) -> None:
    answer = asked(Service([model()]), "POST", path, b"{}")
    assert answer.status == 501
    assert answer.json["error"].startswith("not supported: ")


def test_unexpected_errors_send_no_stack_trace(caplog: pytest.LogCaptureFixture) -> None:
    served = Service([failing("m")])
    body = BODY.replace(b"[1, 2], ", b"[2], ")
    answer = asked(served, "POST", INFER, body)
    assert (answer.status, answer.json) == (
        500,
        {"error": "internal error; see the server's log"},
    )
    assert "ZeroDivisionError: secret" in caplog.text


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        (RequestError("the queue is full", 503), 503),
        (RequestError("too slow", 504), 504),
        (InterpreterError("node 3 (GATHER): index 9"), 500),
    ],
)
def test_errors_of_models_have_their_status(raised: Exception, status: int) -> None:
    def fail(_inputs: object) -> Any:
        raise raised

    tensors = (tensor("x", "f4", -1, 2),)
    answer = asked(Service([Fake("m", tensors, tensors, fail)]), "POST", INFER, BODY)
    assert answer.status == status
    assert str(raised) in answer.json["error"]


@pytest.mark.parametrize("name", ["gzip", "deflate"])
def test_compression_both_ways(name: str) -> None:
    data = np.zeros((500, 2), "f4").tolist()
    entry = {"name": "x", "datatype": "FP32", "shape": [500, 2], "data": data}
    body = json.dumps({"inputs": [entry]}).encode()
    packed = gzip.compress(body) if name == "gzip" else zlib.compress(body)
    headers = [("Content-Encoding", name), ("Accept-Encoding", f"br, {name};q=0.5")]
    answer = asked(Service([model()]), "POST", INFER, packed, headers)
    assert (answer.status, answer.headers["content-encoding"]) == (200, name)
    assert len(answer.body) == int(answer.headers["content-length"]) < 200
    text = gzip.decompress(answer.body) if name == "gzip" else zlib.decompress(answer.body)
    assert json.loads(text)["outputs"][0]["data"] == [0] * 1000


@pytest.mark.parametrize("accepted", ["", "br", "gzip;q=0", "identity", "gzip;q=x"])
def test_responses_are_not_compressed_unless_requested(accepted: str) -> None:
    entry = {"name": "x", "datatype": "FP32", "shape": [500, 2], "data": [0] * 1000}
    body = json.dumps({"inputs": [entry]}).encode()
    answer = asked(Service([model()]), "POST", INFER, body, [("Accept-Encoding", accepted)])
    assert "content-encoding" not in answer.headers
    assert answer.json["outputs"][0]["shape"] == [500, 2]


def test_large_bodies_are_read_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop is not blocked while numbers are read."""
    monkeypatch.setattr("jaxdelegate.serve.v2.api.SMALL", 10)
    inside, leave = asyncio.Event(), asyncio.Event()
    decode = json_messages.decode

    async def ask() -> Response:
        loop = asyncio.get_running_loop()

        def waiting(*arguments: Any) -> Any:
            loop.call_soon_threadsafe(inside.set)
            asyncio.run_coroutine_threadsafe(leave.wait(), loop).result()
            return decode(*arguments)

        monkeypatch.setattr(json_messages, "decode", waiting)
        app = application(Service([model()]))
        task = asyncio.create_task(call(app, "POST", INFER, BODY))
        await inside.wait()
        assert (await call(app, "GET", "/v2/health/live")).status == 200
        assert not task.done()
        leave.set()
        return await task

    assert asyncio.run(ask()).status == 200


def test_a_body_that_does_not_arrive_times_out() -> None:
    app = application(Service([model()], Limits(body_timeout_s=0.01)))
    sent: list[dict[str, Any]] = []

    async def ask() -> None:
        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": INFER,
            "query_string": b"",
            "headers": [],
        }
        await app(scope, asyncio.Event().wait, send)

    asyncio.run(ask())
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]


def test_during_shutdown_running_requests_finish_and_new_ones_are_refused() -> None:
    slow = model()

    async def ask() -> tuple[Response, Response, Response]:
        slow.gate = asyncio.Event()
        served = Service([slow])
        app = application(served)
        running = asyncio.create_task(call(app, "POST", INFER, BODY))
        await slow.entered.wait()
        served.is_ending = True
        ready = await call(app, "GET", "/v2/health/ready")
        late = await call(app, "POST", INFER, BODY)
        slow.gate.set()
        answer = await running
        await served.close()
        return answer, ready, late

    answer, ready, late = asyncio.run(ask())
    assert (answer.status, ready.status, late.status) == (200, 400, 503)
    assert slow.is_closed


@pytest.mark.parametrize("names", [["m", "m"], ["a/b"], [""], ["a\nb"]])
def test_names_that_cannot_be_served(names: list[str]) -> None:
    with pytest.raises(OptionError, match="name"):
        Service([echo(name, tensor("x", "f4", -1)) for name in names])


def test_a_tensor_without_a_datatype_cannot_be_served() -> None:
    with pytest.raises(OptionError, match=r"model 'm': tensor 'x': .*complex64"):
        Service([echo("m", tensor("x", "c8", -1))])


@pytest.mark.parametrize("text", ["", "a", "=a", "a=", "a=b,", "a=b,a=c"])
def test_invalid_lists_of_models(text: str) -> None:
    with pytest.raises(OptionError, match="models: "):
        parse_models(text)


def test_the_factory_needs_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAXDELEGATE_SERVE_MODELS", raising=False)
    with pytest.raises(OptionError, match="JAXDELEGATE_SERVE_MODELS: expected name=path"):
        create()
    with pytest.raises(OptionError, match="at least one model"):
        create({})
    assert parse_models("a=1.tflite, b=2=3") == {"a": "1.tflite", "b": "2=3"}


def test_the_factory_starts_no_thread() -> None:
    """It may be called before a fork; threads start with the application."""
    before = threading.active_count()
    create({"m": NETWORKS / "keywords.tflite"})
    assert threading.active_count() == before


def test_errors_of_a_model_that_cannot_be_served_are_reported() -> None:
    broken = model()
    broken.is_ready, broken.error = False, InterpreterError("node 3 (GATHER): no")
    served = Service([broken, echo("other", tensor("x", "f4", -1))])
    for method, path, status in (("GET", "/v2/health/ready", 400), ("POST", INFER, 503)):
        answer = asked(served, method, path, BODY)
        assert answer.status == status
        assert "'m' cannot be served: node 3 (GATHER): no" in answer.json["error"]


def test_the_pieces_of_a_response_form_the_whole() -> None:
    wide = (tensor("x", "f4", -1, 2),)
    values = np.arange(600_000, dtype="f4").reshape(-1, 2)
    served = Service([Fake("m", wide, wide, lambda _: {"x": values})])
    plain = asked(served, "POST", INFER, BODY)
    assert plain.json["outputs"][0]["data"] == values.ravel().tolist()
    assert int(plain.headers["content-length"]) == len(plain.body)
    packed = asked(served, "POST", INFER, BODY, [("Accept-Encoding", "gzip")])
    assert gzip.decompress(packed.body) == plain.body
    binary = BODY[:-1] + b',"parameters":{"binary_data_output":true}}'
    answer = asked(served, "POST", INFER, binary)
    length = int(answer.headers["inference-header-content-length"])
    assert answer.body[length:] == values.tobytes()


@pytest.mark.parametrize("identity", ["x" * 257, "ü" * 129])
def test_ids_are_short(identity: str) -> None:
    request = json.loads(BODY)
    for fields in ({"id": identity}, {"parameters": {"sequence_id": identity}}):
        answer = asked(Service([model()]), "POST", INFER, json.dumps(request | fields).encode())
        assert answer.status == 400
        assert "id" in answer.json["error"]
        assert "expected at most 256 bytes" in answer.json["error"]
    echoed = asked(
        Service([model()]), "POST", INFER, json.dumps(request | {"id": "x" * 256}).encode()
    )
    assert echoed.json["id"] == "x" * 256


@pytest.mark.parametrize(
    "limits", [{"max_held_bytes": 0}, {"max_request_bytes": 0}, {"body_timeout_s": -1.0}]
)
def test_invalid_limits(limits: Any) -> None:
    with pytest.raises(OptionError, match=next(iter(limits))):
        Limits(**limits)
