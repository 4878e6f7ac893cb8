"""A served bundle of a text encoder: its engine, and the thread that computes embeddings."""

import asyncio
import dataclasses
import os
import time
from collections.abc import Sequence

import numpy as np

from jaxdelegate.errors import StoppedError
from jaxdelegate.lm.embedding_engine import EmbeddingEngine
from jaxdelegate.serve.batching import Batcher
from jaxdelegate.serve.decisions import Costs, compiled_sizes
from jaxdelegate.serve.metrics import Metrics, ModelRecorder
from jaxdelegate.serve.records import Client
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.started import Started
from jaxdelegate.waiting import waiting

_RUNS = 2  # whose texts a request may have in the queue, so that others come between


@dataclasses.dataclass(frozen=True)
class _Ran:
    results: Sequence[np.ndarray]
    infer_s: float
    input_s: float = 0.0
    output_s: float = 0.0


class EmbeddingModel(Started):
    """A text encoder under the name that clients use."""

    version = "1"

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str,
        settings: ServeSettings,
        recorder: ModelRecorder,
    ) -> None:
        """Open nothing yet, so that the process may fork."""
        super().__init__(name)
        self.settings = settings
        self.created = int(time.time())
        self._path = path
        self._engine: EmbeddingEngine | None = None
        self._costs: dict[int, Costs] = {}  # by the length of an encoder
        self.batcher: Batcher[Sequence[int], np.ndarray] = Batcher(
            self._run,
            name=name,
            max_queue_delay_us=settings.max_queue_delay_us,
            max_queue_size=settings.max_queue_size,
            recorder=recorder,
            prepare=self._prepare,
        )

    @property
    def engine(self) -> EmbeddingEngine:
        """The engine; only once it is ready."""
        assert self._engine is not None
        return self._engine

    @property
    def max_model_len(self) -> int:
        """The most tokens of a text; only once it is ready."""
        return self.engine.graph.length

    @property
    def vocabulary(self) -> int:
        """The number of token ids; only once it is ready."""
        return self.engine.tokenizer.size

    @property
    def embedding_size(self) -> int:
        """Elements of an embedding; only once it is ready."""
        return self.engine.graph.encoders[0].size

    async def embed(
        self,
        texts: Sequence[Sequence[int]],
        client: Client,  # noqa: ARG002 (of a language model, which has turns)
    ) -> list[np.ndarray]:
        """The embedding of each text, not normalized; errors as `Batcher.submit`."""
        most = min(_RUNS * self.settings.max_batch_size, self.settings.max_queue_size)
        turns = asyncio.Semaphore(most)

        async def one(tokens: Sequence[int]) -> np.ndarray:
            length = self.engine.graph.encoder(len(tokens)).length
            costs, timeout_s = self._costs[length], self.settings.timeout_s
            async with turns:
                return await self.batcher.submit(
                    tokens, key=length, rows=1, costs=costs, timeout_s=timeout_s
                )

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one(tokens)) for tokens in texts]
        return [task.result() for task in running]

    async def close(self) -> None:
        """Refuse new requests, finish those that were accepted, and end the thread."""
        self._is_ending.set()
        await self.batcher.close()
        if self._engine is not None:
            self._engine.close()

    # ---- in the thread

    def _prepare(self) -> None:
        with self._preparing():
            options = dict(self.settings.delegate_options)
            self._engine = engine = EmbeddingEngine(
                self._path,
                max_input_length=self.settings.max_num_tokens,
                max_batch=self.settings.max_batch_size,
                cache_dir=options.pop("serialization_dir", None),
                options=options,
            )
            with waiting(f"{self.name} is being compiled, and not ready before"):
                for encoder in engine.graph.encoders:
                    sizes = compiled_sizes(self.settings.max_batch_size)
                    seconds = {n: self._seconds([[0] * encoder.length] * n) for n in sizes}
                    self._costs[encoder.length] = Costs(seconds)

    def _seconds(self, texts: Sequence[Sequence[int]]) -> float:
        """Compile, then measure a run."""
        if self._is_ending.is_set():
            raise StoppedError(f"{self.name} was closed before it was compiled")
        self._run(texts)
        return self._run(texts).infer_s

    def _run(self, texts: Sequence[Sequence[int]]) -> _Ran:
        begin = time.perf_counter()
        rows = self.engine.embed(texts)
        return _Ran(list(rows), time.perf_counter() - begin)


def open_embedding_model(
    path: str | os.PathLike[str], name: str, settings: ServeSettings | None, metrics: Metrics
) -> EmbeddingModel:
    """A bundle to serve; `start` opens and compiles it."""
    return EmbeddingModel(path, name, settings or ServeSettings(), metrics.recorder(name, "1"))
