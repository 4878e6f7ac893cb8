"""`jaxdelegate serve` in a child process: its address, memory and processor time."""

import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from types import TracebackType
from typing import Self

from harness import rss_anon_mb

_POLL_S = 0.005
_READY_S = 600.0
_END_S = 60.0


@contextlib.contextmanager
def pinned(cpus: Collection[int]) -> Iterator[None]:
    """Pin this thread, and what it starts, to processors; without any, leave it."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus or own)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


class ServerProcess:
    """A server that listens, but may not be ready yet.

    Args:
        arguments: of `jaxdelegate serve`, without the port, which is a free one.
        cpus: that it may use; empty: those of this process.
        is_quiet: whether its warnings, mostly about bad requests, are dropped.
    """

    def __init__(self, *arguments: str, cpus: Collection[int] = (), is_quiet: bool = False) -> None:
        self._begin = time.perf_counter()
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        with pinned(cpus):  # the child inherits it
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jaxdelegate", "serve", *arguments, "--port=0"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL if is_quiet else None,
                text=True,
                env=environment,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.fullmatch(r"listening on http://.*:(\d+)\n", line)
        if found is None:
            self.stop()
            raise RuntimeError(f"jaxdelegate serve {' '.join(arguments)}: no address, but {line!r}")
        self.port = int(found[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def wait_until_ready(self) -> float:
        """Poll /v2/health/ready until it succeeds; seconds since the process was started."""
        end = time.perf_counter() + _READY_S
        while self.get("/v2/health/ready")[0] != 200:
            if self._process.poll() is not None or time.perf_counter() > end:
                raise RuntimeError(f"the server is not ready; exit status {self._process.poll()}")
            time.sleep(_POLL_S)
        return time.perf_counter() - self._begin

    def wait_until_warm(self) -> str:
        """Wait until all programs are compiled; the line that says so."""
        assert self._process.stdout is not None
        line = next((line for line in self._process.stdout if " is warm " in line), "")
        if not line:
            raise RuntimeError(f"the server is not warm; exit status {self._process.poll()}")
        return line.strip()

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """Counters of all models together, by names without prefix."""
        found: dict[str, float] = {}
        text = self.get("/metrics")[1].decode()
        for name, value in re.findall(
            r"^jaxdelegate_(\w+?)(?:_total)?\{[^}]*\} (\S+)$", text, re.MULTILINE
        ):
            found[name] = found.get(name, 0) + float(value)
        return found

    def cpu_seconds(self) -> float:
        """Processor time of all threads so far."""
        with open(f"/proc/{self._process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_anon_mb(self) -> float:
        return rss_anon_mb(self._process.pid)

    def stop(self) -> int:
        """Stop it as an operator would; return the exit status."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.communicate()
        return self._process.returncode
