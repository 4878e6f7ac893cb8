"""A served bundle of a text encoder: its engine, and the worker that computes embeddings."""

import os
import time
from collections.abc import Sequence

import numpy as np

from jaxdelegate.lm.embedding_engine import EmbeddingEngine
from jaxdelegate.serve.batching import Batcher
from jaxdelegate.serve.clients import Client
from jaxdelegate.serve.decisions import Costs, compiled_sizes
from jaxdelegate.serve.metrics import ModelRecorder, RunTimes
from jaxdelegate.serve.openai.text_model import TextModel
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.waiting import waiting

_RUNS = 2  # whose texts a request may have in the queue


class EmbeddingModel(TextModel):
    worker: Batcher[Sequence[int], np.ndarray]
    engine: EmbeddingEngine

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str,
        settings: ServeSettings,
        recorder: ModelRecorder,
    ) -> None:
        """Open nothing yet, so that the process may fork."""
        super().__init__(path, name, settings)
        self._costs: dict[int, Costs] = {}  # by the length of an encoder
        self.worker = Batcher(name, settings, recorder, self._prepare, self._run)

    @property
    def max_model_len(self) -> int:
        return self.engine.graph.length

    @property
    def vocabulary(self) -> int:
        return self.engine.tokenizer.size

    @property
    def embedding_size(self) -> int:
        return self.engine.graph.encoders[0].size

    def _texts_at_once(self) -> int:
        return min(_RUNS * self.settings.max_batch_size, self.settings.max_queue_size)

    async def _embedding(self, tokens: Sequence[int], client: Client) -> np.ndarray:
        del client  # the queue has no turns
        length = self.engine.graph.encoder(len(tokens)).length
        return await self.worker.submit(
            tokens,
            key=length,
            rows=1,
            costs=self._costs[length],
            timeout_s=self.settings.timeout_s,
        )

    # ---- in the thread

    def _prepare(self) -> None:
        most = self.settings.max_num_tokens
        self.engine = EmbeddingEngine(self._path, max_input_length=most, **self._engine_options())
        self.worker.resources.callback(self.engine.close)
        with waiting(f"{self.name} is being compiled, and not ready before"):
            for encoder in self.engine.graph.encoders:
                sizes = compiled_sizes(self.settings.max_batch_size)
                seconds = {n: self._seconds([[0] * encoder.length] * n) for n in sizes}
                self._costs[encoder.length] = Costs(seconds)

    def _seconds(self, texts: Sequence[Sequence[int]]) -> float:
        """Compile, then measure a run."""
        self.worker.check_open()
        self._run(texts)
        return self._run(texts)[1].infer_s

    def _run(self, texts: Sequence[Sequence[int]]) -> tuple[list[np.ndarray], RunTimes]:
        begin = time.perf_counter()
        rows = self.engine.embed(texts)
        return list(rows), RunTimes(infer_s=time.perf_counter() - begin)
