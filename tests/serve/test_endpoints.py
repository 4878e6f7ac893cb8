"""Responses in parts, and work for clients that leave."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from jaxdelegate.serve.endpoints import Stream, in_pieces, while_connected
from tests.serve.fakes import call


class Connection:
    """A client that leaves when `leave` is set."""

    def __init__(self) -> None:
        self.leave = asyncio.Event()
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)


def test_work_ends_when_the_client_leaves() -> None:
    async def test() -> None:
        connection, has_ended = Connection(), asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                has_ended.set()

        task = asyncio.create_task(while_connected(connection.receive, work()))
        await asyncio.sleep(0)
        connection.leave.set()
        with pytest.raises(ClientDisconnect):
            await task
        assert has_ended.is_set()

    asyncio.run(test())


def test_errors_and_results_of_work_are_those_of_the_request() -> None:
    async def test() -> None:
        async def work(number: int) -> float:
            return 1 / number

        receive = Connection().receive
        assert await while_connected(receive, work(2)) == 0.5
        with pytest.raises(ZeroDivisionError):
            await while_connected(receive, work(0))

    asyncio.run(test())


def test_a_stream_ends_when_the_client_leaves() -> None:
    async def test() -> None:
        connection = Connection()

        async def parts() -> AsyncIterator[bytes]:
            yield b"first"
            connection.leave.set()
            await asyncio.Event().wait()

        stream = Stream(parts(), {}, "text/event-stream")
        await stream({"type": "http"}, connection.receive, connection.send)
        start, part = connection.sent
        assert b"content-length" not in dict(start["headers"])
        assert part == {"type": "http.response.body", "body": b"first", "more_body": True}

    asyncio.run(test())


def test_pieces_have_the_length_of_the_whole() -> None:
    body = bytes(range(256)) * 10_000
    response = asyncio.run(call(in_pieces([body, b"end"], {"A": "b"}, "text/plain"), "GET", "/"))
    assert response.body == body + b"end"
    assert response.headers["content-length"] == str(len(response.body))
    assert response.headers["a"] == "b"
