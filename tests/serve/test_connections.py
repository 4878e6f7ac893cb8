"""Connections of clients that send endlessly or do not read are closed."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Self

import numpy as np
import pytest
import uvicorn

from jaxdelegate.serve import connections
from jaxdelegate.serve.application import application
from jaxdelegate.serve.connections import MAX_HEADER_BYTES, bounded
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.service import Service
from tests.serve.fakes import Fake, echo, tensor

LIMIT = 1 << 20
WIDE = 4 << 20  # numbers of a response that is larger than any socket's buffer


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    limits = Limits(LIMIT, body_timeout_s=0.2)
    one = (tensor("x", "f4", -1),)
    wide = Fake("wide", one, one, lambda _: {"x": np.zeros(WIDE, "f4")})
    app = application(Service([echo("m", *one), wide], limits))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, http=bounded(limits), ws="none", log_level="error", lifespan="off")
    )
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_HEADER_S", "UNREAD_S", "_LATE_S"):
        monkeypatch.setattr(connections, name, 0.3)


def infer(name: str, *, is_binary: bool = False) -> bytes:
    entry = {"name": "x", "datatype": "FP32", "shape": [1], "data": [5]}
    fields = {"inputs": [entry], "parameters": {"binary_data_output": is_binary}}
    body = json.dumps(fields).encode()
    head = (
        f"POST /v2/models/{name}/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Sender:
    """Sends bytes on a connection until it is closed."""

    def __init__(self, port: int, begin: bytes) -> None:
        self.connection = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.connection.sendall(begin)
        self.sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.connection.close()

    def flood(self, piece: bytes, most: int) -> None:
        with contextlib.suppress(ConnectionError):
            while self.sent < most:
                self.connection.sendall(piece)
                self.sent += len(piece)

    def drip(self, piece: bytes) -> None:
        """Send a piece now and then, so that no wait ends because of silence."""
        self.connection.settimeout(0.05)
        end = time.monotonic() + 20
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < end:
                self.connection.sendall(piece)
                with contextlib.suppress(TimeoutError):
                    if not self.connection.recv(1 << 16):
                        return
        assert time.monotonic() < end, "it is still open"

    def ended(self) -> bytes:
        """The response, up to the end of the connection."""
        found = b""
        with contextlib.suppress(ConnectionError):
            while data := self.connection.recv(1 << 16):
                found += data
        return found


GET = b"GET /v2 HTTP/1.1\r\nhost: x\r\n"
POST = b"POST /v2/models/m/infer HTTP/1.1\r\nhost: x\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
UPGRADE = b"connection: upgrade\r\nupgrade: h2c\r\n\r\n"
TRAILERS = b"2\r\n{}\r\n0\r\n"

FLOODS = {
    "headers": (GET, b"a: b\r\n" * 5000),
    "chunk-extension": (POST + CHUNKED + b"2;", b"x" * 30_000),
    "chunk-extension-of-get": (GET + CHUNKED + b"2;", b"x" * 30_000),
    "chunk-extensions": (POST + CHUNKED, b"1;" + b"x" * 300 + b"\r\n1\r\n"),
    "trailers": (POST + CHUNKED + TRAILERS, b"a: b\r\n" * 5000),
    "trailers-of-get": (GET + CHUNKED + b"0\r\n", b"a: b\r\n" * 5000),
    "one-trailer": (POST + CHUNKED + TRAILERS + b"a: ", b"b" * 30_000),
    "body-of-get": (GET + CHUNKED, b"8000\r\n" + bytes(1 << 15) + b"\r\n"),
    "body-that-is-declared": (GET + b"content-length: 999999999999\r\n\r\n", bytes(1 << 15)),
    "body-of-an-unknown-path": (
        b"POST /v1 HTTP/1.1\r\nhost: x\r\n" + CHUNKED,
        b"1\r\nx\r\n" * 5000,
    ),
    "after-the-last-request": (GET + b"connection: close\r\n\r\n", b"x" * 30_000),
    "after-an-upgrade": (GET + UPGRADE, b"x" * 30_000),
    "pipelined": (infer("wide"), (GET + b"\r\n") * 1000),
}


@pytest.mark.parametrize("what", FLOODS)
def test_connections_with_endless_bytes_are_closed(what: str, port: int) -> None:
    begin, piece = FLOODS[what]
    with Sender(port, begin) as sender:
        sender.flood(piece, 64 << 20)
        sender.ended()
    assert sender.sent < 32 << 20  # some of them in the buffers of sockets


DRIPS = {
    "nothing": (b"", b""),
    "headers": (GET, b"a: b\r\n"),
    "chunk-extension": (POST + CHUNKED + b"2;", b"x"),
    "chunk-extension-of-get": (GET + CHUNKED + b"2;", b"x"),
    "trailer": (POST + CHUNKED + TRAILERS, b"a"),
    "body": (POST + b"content-length: 99999\r\n\r\n", b"x"),
    "body-of-get": (GET + b"content-length: 99999\r\n\r\n", b"x"),
    "body-that-is-not-read": (
        b"POST /v2/logging HTTP/1.1\r\nhost: x\r\n"
        b"expect: 100-continue\r\ncontent-length: 99\r\n\r\n",
        b"",
    ),
    "empty-lines": (GET + b"\r\n", b"\r\n"),
    "after-an-upgrade": (GET + UPGRADE, b"x"),
}


@pytest.mark.parametrize("what", DRIPS)
def test_requests_that_never_end_time_out(what: str, port: int) -> None:
    begin, piece = DRIPS[what]
    with Sender(port, begin) as sender:
        sender.drip(piece)


def answer_to(port: int, *pieces: bytes) -> bytes:
    with Sender(port, pieces[0]) as sender:
        for piece in pieces[1:]:
            sender.connection.sendall(piece)
        return sender.ended()


def test_too_many_headers_in_one_packet_are_refused(port: int) -> None:
    answer = answer_to(port, GET + b"a: b\r\n" * (MAX_HEADER_BYTES // 2) + b"\r\n")
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")  # a reset may overtake it


def test_trailers_and_small_chunks_are_read(port: int) -> None:
    """Chunks of one byte take six on the wire."""
    body = infer("m").partition(b"\r\n\r\n")[2] + b" " * 60_000
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    head = POST + b"connection: close\r\n" + CHUNKED
    answer = answer_to(port, head, chunks + b"0\r\nchecksum: 1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK")


def test_a_request_for_an_upgrade_is_ignored(port: int) -> None:
    answer = answer_to(port, GET + UPGRADE)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"connection: close" in answer


def test_responses_to_pipelined_requests_are_in_order(port: int) -> None:
    names = [f"/v2/models/{name}" for name in ("m", "wide", "absent", "m")]
    requests = [b"GET %s HTTP/1.1\r\nhost: x\r\n\r\n" % name.encode() for name in names]
    requests[-1] = requests[-1].replace(b"host", b"connection: close\r\nhost")
    answer = answer_to(port, b"".join(requests))
    found = [answer.index(word) for word in (b'"name": "m"', b'"wide"', b"absent")]
    assert found == sorted(found)
    assert answer.count(b"HTTP/1.1 ") == 4


@pytest.mark.parametrize("is_binary", [False, True])
def test_a_response_that_is_not_read_is_dropped(is_binary: bool, port: int) -> None:
    with Sender(port, infer("wide", is_binary=is_binary)) as sender:
        sender.connection.recv(1, socket.MSG_PEEK)  # from now on nothing is read
        time.sleep(2)
        assert len(sender.ended()) < 3 * WIDE  # it would have four bytes for each number
    answer = answer_to(port, GET + b"connection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK")


def test_a_response_that_is_read_slowly_is_complete(port: int) -> None:
    with Sender(port, infer("wide", is_binary=True)) as sender:
        found = bytearray()
        while len(found) < 4 * WIDE:
            found += sender.connection.recv(1 << 21)
            time.sleep(0.02)
    head = bytes(found[: found.index(b"\r\n\r\n")])
    assert b"content-length: %d" % (len(found) - len(head) - 4) in head.lower()
