"""A served bundle of a language model: its engine, and the thread that generates."""

import asyncio
import dataclasses
import functools
import os
import time
from collections.abc import Hashable, Sequence

import numpy as np

from jaxdelegate.errors import StoppedError
from jaxdelegate.lm.background_compiler import BackgroundCompiler
from jaxdelegate.lm.configs import SamplerConfig
from jaxdelegate.lm.engine import Engine
from jaxdelegate.lm.generation import hidden_state_request
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.scheduler import Scheduler
from jaxdelegate.lm.templates import Renderer
from jaxdelegate.lm.text_stream import StoppedStream, TextStream
from jaxdelegate.serve.metrics import Metrics
from jaxdelegate.serve.openai.batching import Delta, Job, TextBatcher
from jaxdelegate.serve.openai.requests import DEFAULT_K
from jaxdelegate.serve.records import Client
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.started import Started
from jaxdelegate.serve.text_metrics import TextRecorder
from jaxdelegate.waiting import waiting

_EMBEDDINGS = " embeddings"  # a key of their own for turns, so that a client's chats go on


class LanguageModel(Started):
    """A language model under the name that clients use."""

    version = "1"

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str,
        settings: ServeSettings,
        recorder: TextRecorder,
    ) -> None:
        """Open nothing yet, so that the process may fork."""
        super().__init__(name)
        self.settings = settings
        self.created = int(time.time())
        self._path = path
        self._engine: Engine | None = None
        self._compiler: BackgroundCompiler | None = None
        self._renderer: Renderer | None = None
        self.batcher: TextBatcher = TextBatcher(
            self._new_scheduler,
            self._prepare,
            name=name,
            slots=settings.max_batch_size,
            max_queue_size=settings.max_queue_size,
            recorder=recorder,
        )

    @property
    def engine(self) -> Engine:
        """The engine; only once it is ready."""
        assert self._engine is not None
        return self._engine

    @property
    def max_model_len(self) -> int:
        """The most tokens of a prompt and its answer; only once it is ready."""
        return self.engine.max_num_tokens

    @property
    def renderer(self) -> Renderer:
        """Makes a text of messages; only once it is ready."""
        assert self._renderer is not None
        return self._renderer

    async def close(self) -> None:
        """Refuse new requests, finish those that were accepted, and end the thread."""
        self._is_ending.set()
        await asyncio.to_thread(self.batcher.close)
        if self._compiler is not None:
            await asyncio.to_thread(self._compiler.close)
        if self._engine is not None:
            self._engine.close()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue all sequences of a request. A RequestError: too many wait."""
        self.batcher.submit(jobs)

    def cancel(self, jobs: Sequence[Job]) -> None:
        """End sequences that no one waits for."""
        self.batcher.cancel(jobs)

    @property
    def vocabulary(self) -> int:
        """The number of token ids that the model takes; only once it is ready."""
        return self.engine.graph.vocabulary

    @property
    def embedding_size(self) -> int:
        """Elements of the hidden states that `embed` returns; 0: it cannot. Once it is ready."""
        return self.engine.graph.hidden_size

    def owner(self, client: Client, salt: str = "") -> Hashable:
        """Who may use caches that a client's prompt has filled."""
        return None if self.settings.share_prefixes else client, salt

    async def embed(self, texts: Sequence[Sequence[int]], client: Client) -> list[np.ndarray]:
        """The hidden state of each text's last token; errors as `submit`."""
        turns = asyncio.Semaphore(self.settings.max_batch_size)

        async def one(tokens: Sequence[int]) -> np.ndarray:
            async with turns:
                return await self._hidden_state(tokens, client)

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one(tokens)) for tokens in texts]
        return [task.result() for task in running]

    async def _hidden_state(self, tokens: Sequence[int], client: Client) -> np.ndarray:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def deliver(delta: Delta) -> None:
            loop.call_soon_threadsafe(functools.partial(_end, ended, delta))

        stream = StoppedStream(TextStream(self.engine.tokenizer, tokens), ())
        request = dataclasses.replace(hidden_state_request(tokens), owner=self.owner(client))
        turns = client._replace(key=client.key + _EMBEDDINGS)
        job = Job(0, turns, request, stream, deliver)
        self.submit([job])
        try:
            await ended
        finally:
            self.cancel([job])
        assert job.running is not None
        assert job.running.hidden_state is not None
        return job.running.hidden_state

    # ---- in the thread

    def _prepare(self) -> None:
        with self._preparing():
            options = dict(self.settings.delegate_options)
            self._engine = Engine(
                self._path,
                max_num_tokens=self.settings.max_num_tokens,
                max_batch=self.settings.max_batch_size,
                cache_dir=options.pop("serialization_dir", None),
                options=options,
            )
            self._compiler = self._engine.new_background_compiler()
            self._renderer = self._engine.text.renderer().without_lists()
            with waiting(f"{self.name} is being compiled, and not ready before"):
                self._warm_up(self._engine)
            self.memory = self._memory(self._engine)

    def _warm_up(self, engine: Engine) -> None:
        """Load or compile what most requests need; a thread does the rest when it is needed."""
        runner = engine.new_runner(self.settings.max_batch_size)
        prompts = [[0], *([n] * (length + 1) for n, length in enumerate(engine.graph.lengths, 1))]
        for ids in prompts:
            self._check_ending()
            runner.prefill(0, ids[: engine.max_num_tokens])
        usual = None, SamplerConfig(temperature=0), SamplerConfig(top_k=DEFAULT_K)
        for params in map(engine.text.sampling_params, usual):
            self._check_ending()
            runner.prefill(0, [0])
            runner.begin(0, Request([0], 1, params))
            runner.decode()

    def _memory(self, engine: Engine) -> str:
        both = engine.weight_bytes, engine.cache_bytes
        weights, caches = (f"{count / 1e6:,.1f} MB" for count in both)
        slots = self.settings.max_batch_size
        return f"{weights} of weights, and up to {caches} of caches for each of {slots} slots"

    def _check_ending(self) -> None:
        if self._is_ending.is_set():
            raise StoppedError(f"{self.name} was closed before it was compiled")

    def _new_scheduler(self) -> Scheduler:
        return self.engine.new_scheduler(self.settings.max_batch_size, self._compiler)


def _end(ended: asyncio.Future[None], delta: Delta) -> None:
    if ended.done():
        return
    if delta.error is not None:
        ended.set_exception(delta.error)
    elif delta.finish_reason is not None:
        ended.set_result(None)


def open_language_model(
    path: str | os.PathLike[str], name: str, settings: ServeSettings | None, metrics: Metrics
) -> LanguageModel:
    """A bundle to serve; `start` opens and compiles it."""
    return LanguageModel(path, name, settings or ServeSettings(), metrics.text_recorder(name))
