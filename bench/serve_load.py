"""Servers with a filled cache, and the load on a server with a judge of its responses."""

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import percentile_ms, spread
from http_clients import Judge, Pool, closed_loop, first_responses, for_seconds
from server_process import ServerProcess

from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.op_lowering.options import ActivationFunctionType, FullyConnectedOptions
from jaxdelegate.testing import ModelBuilder

Record = dict[str, Any]


def dense(width: int, layers: int) -> bytes:
    """Square FULLY_CONNECTED layers, where even a single item reads all weights."""
    rng, builder = np.random.default_rng(0), ModelBuilder()
    y = builder.input((1, width), np.float32, "x")
    relu = FullyConnectedOptions(fused_activation_function=ActivationFunctionType.RELU)
    for _ in range(layers):
        weights = rng.normal(0, (2 / width) ** 0.5, (width, width)).astype(np.float32)
        x, y = y, builder.tensor((1, width))
        builder.operator("FULLY_CONNECTED", [x, builder.constant(weights), None], [y], relu)
    builder.outputs(y)
    return builder.build()


def network(path: str | None, size: int) -> tuple[str, bytes]:
    """The name and content of a file, or of MobileNet v1 0.25 for images of a size."""
    if path:
        return Path(path).stem, Path(path).read_bytes()
    return f"mobilenet_v1_0.25_{size}", mobilenet_v1(size=size, width=0.25)


def percentiles(rounds: Sequence[Sequence[float]]) -> Record:
    """The spread over rounds of each round's percentiles."""
    return {
        f"p{percent}_ms": spread([percentile_ms(seconds, percent) for seconds in rounds])
        for percent in (50, 99)
    }


class Work:
    """Files, caches and processors that all parts share.

    Args:
        directory: where files and programs go.
        server_cpus: what servers may use; empty: all.
    """

    def __init__(self, directory: Path, server_cpus: Collection[int] = ()) -> None:
        self.directory = directory
        self.server_cpus = server_cpus or os.sched_getaffinity(0)

    def file(self, name: str, content: bytes) -> Path:
        path = self.directory / f"{name}.tflite"
        path.write_bytes(content)
        return path

    def server(self, path: Path, *arguments: str, is_quiet: bool = False) -> ServerProcess:
        """A server that may not be ready yet; its cache is shared by all servers."""
        cache = f"--jax_serialization_dir={self.directory / 'programs'}"
        own = [str(path), "--name=m", cache, *arguments]
        return ServerProcess(*own, cpus=self.server_cpus, is_quiet=is_quiet)

    def fill_cache(self, path: Path, *arguments: str) -> None:
        with self.server(path, *arguments) as server:
            server.wait_until_ready()

    @contextlib.contextmanager
    def servers(
        self, path: Path, each: dict[str, Sequence[str]], *, is_quiet: bool = False
    ) -> Iterator[dict[str, ServerProcess]]:
        """Ready servers by label, which loaded all programs from the cache."""
        with contextlib.ExitStack() as ends:
            servers = {}
            for label, arguments in each.items():
                self.fill_cache(path, *arguments)
                server = self.server(path, *arguments, is_quiet=is_quiet)
                servers[label] = ends.enter_context(server)
                server.wait_until_ready()
            yield servers


class Load:
    """A server, the requests of a pool for it, and the judge of its responses."""

    def __init__(self, server: ServerProcess, pool: Pool, clients: int) -> None:
        self.server, self.judge, self._clients = server, Judge(pool), clients
        self.requests = pool.requests(server.port, "m")
        self._counters: dict[str, float] = {}  # before the load
        self._wall = self._server_cpu = self._client_cpu = 0.0  # seconds of closed loops

    async def begin(self) -> None:
        """Record the responses that later ones must equal."""
        await first_responses(self.server.port, self.requests, self.judge)
        self._counters = self.server.metrics()

    async def closed(self, requests: Iterable[tuple[int, bytes]]) -> tuple[float, list[float]]:
        """Responses per second, and the seconds of each."""
        server, client = self.server.cpu_seconds(), time.process_time()
        start = time.perf_counter()
        found = await closed_loop(self.server.port, self._clients, requests, self.judge.take)
        span = time.perf_counter() - start
        self._wall += span
        self._server_cpu += self.server.cpu_seconds() - server
        self._client_cpu += time.process_time() - client
        return len(found) / span, found

    async def round(self, seconds: float) -> tuple[float, list[float]]:
        return await self.closed(for_seconds(self.requests, seconds))

    def record(self) -> Record:
        """Counts of responses; items in a run and processors in use, under load."""
        judge, counters = self.judge, self.server.metrics()
        items, runs = (
            counters.get(f"inference_{name}", 0) - self._counters.get(f"inference_{name}", 0)
            for name in ("count", "exec_count")
        )
        return {
            "answers": judge.counts,
            "largest_difference": judge.largest_difference,
            "first_error": judge.first_error,
            "mean_batch": items / max(runs, 1),
            "server_processors": self._server_cpu / self._wall if self._wall else None,
            "client_processors": self._client_cpu / self._wall if self._wall else None,
        }
