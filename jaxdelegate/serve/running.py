"""A server process: opens models, listens, says when they are ready, ends with all answered."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

try:
    import uvicorn
except ModuleNotFoundError as missing:
    raise ImportError(
        f'serving needs {missing.name}: pip install "jaxdelegate[serve]"', name=missing.name
    ) from missing


from jaxdelegate.errors import JaxDelegateError
from jaxdelegate.serve.application import application
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.opening import opened
from jaxdelegate.serve.service import Service
from jaxdelegate.serve.settings import ServeSettings

Say = Callable[[str], None]
_POLL_S = 0.2  # how soon the thread that waits for a model sees that nobody waits any more


def run(
    models: Mapping[str, str | os.PathLike[str]],
    settings: ServeSettings,
    limits: Limits,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    grpc_port: int | None = None,
    say: Say = print,
) -> None:
    """Serve models until SIGTERM or SIGINT, then answer what was accepted, and return.

    Args:
        models: files by the names that clients give.
        settings: of every model.
        limits: of requests.
        host: the address to listen on.
        port: of HTTP; 0: a free one.
        grpc_port: 0: a free one; None: no gRPC.
        say: prints where the server listens, and each model that is ready.

    Raises:
        ModelError: a file cannot be read.
        OptionError: an impossible option or name.
        OSError: a port is taken.
        JaxDelegateError: a model cannot be compiled.
    """
    begin = time.perf_counter()
    with _listening(host, port) as listener:
        served = opened(models, settings, limits)
        process = _Process(served, host, grpc_port, say, begin)
        config = uvicorn.Config(
            application(served, process.lifespan),
            http="auto",
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(settings.timeout_s) + 1 if settings.timeout_s else None,
        )
        process.server = _Server(config, served)
        address = listener.getsockname()
        say(f"listening on http://{_shown(address[0])}:{address[1]}")
        process.server.run(sockets=[listener])
    if process.error is not None:
        raise process.error


def _listening(host: str, port: int) -> socket.socket:
    """A socket; a port that is taken is an error before anything else is done."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=2048)
    listener.set_inheritable(False)
    return listener


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class _Server(uvicorn.Server):
    """Uvicorn's, which is not ready from the signal on, and returns when it has ended."""

    def __init__(self, config: uvicorn.Config, served: Service) -> None:
        super().__init__(config)
        self._served = served

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Begin to end; a second SIGINT ends at once."""
        self._served.is_ending = True
        super().handle_exit(sig, frame)
        self._captured_signals.clear()  # uvicorn would raise it again at the end


class _Process:
    """What starts and ends with the event loop: gRPC, and the wait for models."""

    server: _Server

    def __init__(
        self, served: Service, host: str, grpc_port: int | None, say: Say, begin: float
    ) -> None:
        self.error: BaseException | None = None
        self._served, self._host, self._grpc_port = served, host, grpc_port
        self._say, self._begin = say, begin

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: Any) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as ends:
            ends.push_async_callback(self._served.close)
            try:
                await self._start_grpc(ends)
            except (ImportError, OSError) as error:
                self._end(error)
            waits = [
                asyncio.create_task(self._tell(model)) for model in self._served.models.values()
            ]
            yield
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _start_grpc(self, ends: contextlib.AsyncExitStack) -> None:
        if self._grpc_port is None:
            return
        from jaxdelegate.serve import grpc_server  # noqa: PLC0415 (half a second)

        server, port = await grpc_server.start(self._served, self._host, self._grpc_port)
        ends.push_async_callback(server.stop, self._served.limits.body_timeout_s or None)
        self._say(f"listening on grpc://{_shown(self._host)}:{port}")

    async def _tell(self, model: Any) -> None:
        """Wait until a model is ready and say it; one that cannot be ends the server."""
        try:
            while not await asyncio.to_thread(model.wait_until_ready, _POLL_S):
                pass
        except JaxDelegateError as error:
            self._end(error)
            return
        seconds = time.perf_counter() - self._begin
        self._say(f"model {model.name!r} is ready after {seconds:.1f} s")

    def _end(self, error: BaseException) -> None:
        self.error = self.error or error
        self.server.should_exit = True
