"""A server process: opens models, listens, reports when they are ready, shuts down gracefully."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from jaxdelegate.optional import needs

try:
    import uvicorn
except ModuleNotFoundError as missing:
    raise needs("serving", missing, "serve") from missing

from jaxdelegate.serve.application import application
from jaxdelegate.serve.connections import bounded
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.service import Service, open_service
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.worker import Worker

Say = Callable[[str], None]
_POLL_S = 0.2  # how soon a thread that waits for a model notices a shutdown
_BACKLOG = 2048  # connections that wait to be accepted
_INTERRUPTED = 128 + signal.SIGINT  # the exit code, by the convention of shells


class Server:
    """Serves models on one port for HTTP, and optionally on one for gRPC."""

    def __init__(
        self,
        models: Mapping[str, str | os.PathLike[str]],
        settings: ServeSettings | None = None,
        limits: Limits | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        grpc_port: int | None = None,
        say: Say = print,
        is_whole_process: bool = False,
    ) -> None:
        """Bind the HTTP port and read the models, files by the names that clients use.

        A port of 0 is any free one; a `grpc_port` of None: no gRPC. `say` prints the addresses, and
        each model when it is ready. If the process does nothing else (`is_whole_process`), a second
        SIGINT ends it even if threads are busy, and its garbage collector ignores the objects that
        exist when all models are ready. Raises a ModelError for a file, an OptionError for an
        option or a name, an OSError if the port is in use.
        """
        self._begin = time.perf_counter()
        self._host, self._grpc_port, self._say = host, grpc_port, say
        self._is_whole_process = is_whole_process
        self._error: BaseException | None = None
        settings = settings or ServeSettings()
        with contextlib.ExitStack() as failing:
            self._listener = failing.enter_context(_listening(host, port))
            self._served = open_service(models, settings, limits)
            failing.pop_all()
        config = uvicorn.Config(
            application(self._served, self._lifespan),
            http=bounded(self._served.limits),
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_graceful_s(self._served, settings),
        )
        self._server = _Uvicorn(config, self.stop, is_whole_process=is_whole_process)

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT, SIGHUP or `stop`, finish accepted requests and return."""
        self._server.run(sockets=[self._listener])
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """May be called from any thread."""
        self._served.is_ending = True
        self._server.should_exit = True

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Any) -> AsyncIterator[None]:
        host, port, *_ = self._listener.getsockname()
        self._say(f"listening on http://{_shown(host)}:{port}")  # signal handlers are installed now
        async with contextlib.AsyncExitStack() as exits:
            exits.push_async_callback(self._served.close)
            self._served.start()
            try:
                await self._start_grpc(exits)
            except (ImportError, OSError) as error:
                self._fail(error)
            waiting = asyncio.create_task(self._wait_for_models())
            yield
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _start_grpc(self, exits: contextlib.AsyncExitStack) -> None:
        if self._grpc_port is None:
            return
        from jaxdelegate.serve.v2 import grpc_server  # noqa: PLC0415 (takes half a second)

        server, port = await grpc_server.start(self._served, self._host, self._grpc_port)
        exits.push_async_callback(server.stop, self._served.limits.body_timeout_s or None)
        self._say(f"listening on grpc://{_shown(self._host)}:{port}")

    async def _wait_for_models(self) -> None:
        models = self._served.all.items()
        for report in (self._report, self._report_warm):
            await asyncio.gather(*(report(name, model.worker) for name, model in models))
            if self._is_whole_process:
                gc.collect()
                gc.freeze()  # otherwise requests wait whenever it traverses jax's modules

    async def _report(self, name: str, worker: Worker) -> None:
        """Wait until a model is ready and print it; an error ends the server."""
        try:
            while not await asyncio.to_thread(worker.wait_until_ready, _POLL_S):
                pass
        except Exception as error:  # unexpected ones, too: the model would never be ready
            self._fail(error)
        else:
            seconds = time.perf_counter() - self._begin
            memory = f", with {worker.memory}" if worker.memory else ""
            self._say(f"model {name!r} is ready after {seconds:.1f} s{memory}")

    async def _report_warm(self, name: str, worker: Worker) -> None:
        """Wait until no request waits for programs any more, and print what they took."""
        while (compiled := await asyncio.to_thread(worker.when_warm, _POLL_S)) is None:
            pass
        if compiled:
            seconds = time.perf_counter() - self._begin
            self._say(f"model {name!r} is warm after {seconds:.1f} s: {compiled}")

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self.stop()


class _Uvicorn(uvicorn.Server):
    """Calls `stop` at the first signal, and returns after shutdown."""

    def __init__(
        self, config: uvicorn.Config, stop: Callable[[], None], *, is_whole_process: bool
    ) -> None:
        super().__init__(config)
        self._stop, self._is_whole_process = stop, is_whole_process

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGHUP as well, unless it is ignored, as under nohup."""
        hangup = getattr(signal, "SIGHUP", None)  # Windows has none
        is_main = threading.current_thread() is threading.main_thread()
        if hangup is None or not is_main or signal.getsignal(hangup) is not signal.SIG_DFL:
            with super().capture_signals():
                yield
            return
        signal.signal(hangup, self.handle_exit)
        try:
            with super().capture_signals():
                yield
        finally:
            signal.signal(hangup, signal.SIG_DFL)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """A second SIGINT exits immediately."""
        super().handle_exit(sig, frame)
        if self.force_exit and self._is_whole_process:
            os._exit(_INTERRUPTED)  # an ordinary exit waits for threads that are inside XLA
        self._captured_signals.clear()  # uvicorn would raise it again after the shutdown
        self._stop()


def _graceful_s(served: Service, settings: ServeSettings) -> int | None:
    """Seconds that a shutdown waits for responses; None: without a limit."""
    limits = [settings.timeout_s, *([settings.answer_timeout_s] if served.language_models else [])]
    return int(max(limits)) + 1 if all(limits) else None


def _listening(host: str, port: int) -> socket.socket:
    """A listening socket; created first, so that a port in use is an early error."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
