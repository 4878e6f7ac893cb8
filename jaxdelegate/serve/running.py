"""A server process: opens models, listens, says when they are ready, ends with all answered."""

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

try:
    import uvicorn
except ModuleNotFoundError as missing:
    raise ImportError(
        f'serving needs {missing.name}: pip install "jaxdelegate[serve]"', name=missing.name
    ) from missing

from jaxdelegate.errors import JaxDelegateError
from jaxdelegate.serve.application import application
from jaxdelegate.serve.connections import bounded
from jaxdelegate.serve.limits import Limits
from jaxdelegate.serve.opening import opened
from jaxdelegate.serve.records import ServedModel
from jaxdelegate.serve.settings import ServeSettings

Say = Callable[[str], None]
_POLL_S = 0.2  # how soon the thread that waits for a model sees that nobody waits any more
_BACKLOG = 2048  # connections that wait to be accepted
_INTERRUPTED = 128 + signal.SIGINT  # the exit code, as shells count


class Server:
    """Models behind one port of HTTP, and one of gRPC where it is asked for."""

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
        """Take the port of HTTP and read the models.

        Args:
            models: files by the names that clients give.
            settings: of every model.
            limits: of requests.
            host: the address to listen on.
            port: of HTTP; 0: a free one.
            grpc_port: 0: a free one; None: no gRPC.
            say: prints where the server listens, and each model that is ready.
            is_whole_process: whether the process is for nothing else. A second SIGINT ends it
                then, whatever its threads do, and its garbage collector leaves alone what lives
                when all models are ready.

        Raises:
            ModelError: a file cannot be read.
            OptionError: an impossible option or name.
            OSError: the port is taken.
        """
        self._begin = time.perf_counter()
        self._host, self._grpc_port, self._say = host, grpc_port, say
        self._is_whole_process = is_whole_process
        self._error: BaseException | None = None
        settings = settings or ServeSettings()
        with contextlib.ExitStack() as failing:
            self._listener = failing.enter_context(_listening(host, port))
            self._served = opened(models, settings, limits)
            failing.pop_all()
        config = uvicorn.Config(
            application(self._served, self._lifespan),
            http=bounded(self._served.limits),
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(settings.timeout_s) + 1 if settings.timeout_s else None,
        )
        self._server = _Uvicorn(config, self.stop, is_whole_process=is_whole_process)

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT, SIGHUP or `stop`; then answer what was accepted, and return.

        Raises:
            JaxDelegateError: a model cannot be compiled.
            ImportError: gRPC is asked for, and a package that it needs is missing.
            OSError: the port of gRPC is taken.
        """
        self._server.run(sockets=[self._listener])
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Be ready no more, and end; from any thread."""
        self._served.is_ending = True
        self._server.should_exit = True

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Any) -> AsyncIterator[None]:
        """What starts and ends with the event loop: gRPC, and the wait for models."""
        host, port, *_ = self._listener.getsockname()
        self._say(f"listening on http://{_shown(host)}:{port}")  # from here on signals are heard
        async with contextlib.AsyncExitStack() as ends:
            ends.push_async_callback(self._served.close)
            self._served.start()
            try:
                await self._start_grpc(ends)
            except (ImportError, OSError) as error:
                self._fail(error)
            waiting = asyncio.create_task(self._wait_for_models())
            yield
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _start_grpc(self, ends: contextlib.AsyncExitStack) -> None:
        if self._grpc_port is None:
            return
        from jaxdelegate.serve import grpc_server  # noqa: PLC0415 (half a second)

        server, port = await grpc_server.start(self._served, self._host, self._grpc_port)
        ends.push_async_callback(server.stop, self._served.limits.body_timeout_s or None)
        self._say(f"listening on grpc://{_shown(self._host)}:{port}")

    async def _wait_for_models(self) -> None:
        await asyncio.gather(*map(self._tell, self._served.models.values()))
        if self._is_whole_process:
            gc.collect()
            gc.freeze()  # else requests wait whenever it searches jax's modules

    async def _tell(self, model: ServedModel) -> None:
        """Wait until a model is ready and say it; one that cannot be ends the server."""
        try:
            while not await asyncio.to_thread(model.wait_until_ready, _POLL_S):
                pass
        except JaxDelegateError as error:
            self._fail(error)
        else:
            seconds = time.perf_counter() - self._begin
            self._say(f"model {model.name!r} is ready after {seconds:.1f} s")

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self.stop()


class _Uvicorn(uvicorn.Server):
    """Uvicorn's server, which says at once that it ends, and returns when it has."""

    def __init__(
        self, config: uvicorn.Config, stop: Callable[[], None], *, is_whole_process: bool
    ) -> None:
        super().__init__(config)
        self._stop, self._is_whole_process = stop, is_whole_process

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGHUP is heard, too; not where it is ignored, as under nohup."""
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
        """Begin to end; a second SIGINT ends without answering."""
        super().handle_exit(sig, frame)
        if self.force_exit and self._is_whole_process:
            os._exit(_INTERRUPTED)  # an ordinary end waits for threads that are inside of XLA
        self._captured_signals.clear()  # uvicorn would raise it again at the end
        self._stop()


def _listening(host: str, port: int) -> socket.socket:
    """A socket; a port that is taken is an error before anything else is done."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
