"""A served bundle that reads text: a language model, or a text encoder."""

import abc
import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdelegate.serve.clients import Client
from jaxdelegate.serve.settings import ServeSettings
from jaxdelegate.serve.worker import Worker


class TextModel(abc.ABC):
    """A bundle under the name that clients use.

    It has its engine, and the properties, once the worker is ready. `parent`: the name of the model
    that it adapts; None: it is one.
    """

    version = "1"
    parent: str | None = None
    worker: Worker
    engine: Any

    def __init__(self, path: str | os.PathLike[str], name: str, settings: ServeSettings) -> None:
        """Open nothing yet, so that the process may fork."""
        self.name, self.settings, self._path = name, settings, path
        self.created = int(time.time())

    @property
    @abc.abstractmethod
    def max_model_len(self) -> int:
        """The most tokens of a text, with its answer."""

    @property
    @abc.abstractmethod
    def vocabulary(self) -> int:
        """The number of token ids."""

    @property
    @abc.abstractmethod
    def embedding_size(self) -> int:
        """Elements of an embedding; 0: it has none."""

    async def embed(self, texts: Sequence[Sequence[int]], client: Client) -> list[np.ndarray]:
        """The embedding of each text, not normalized. A RequestError if too many wait."""
        turns = asyncio.Semaphore(self._texts_at_once())

        async def one(tokens: Sequence[int]) -> np.ndarray:
            async with turns:
                return await self._embedding(tokens, client)

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one(tokens)) for tokens in texts]
        return [task.result() for task in running]

    @abc.abstractmethod
    def _texts_at_once(self) -> int:
        """How many texts of a request may be in the queue, so that others come between."""

    @abc.abstractmethod
    async def _embedding(self, tokens: Sequence[int], client: Client) -> np.ndarray: ...

    def _engine_options(self) -> dict[str, Any]:
        options = dict(self.settings.delegate_options)
        return {
            "max_batch": self.settings.max_batch_size,
            "cache_dir": options.pop("serialization_dir", None),
            "options": options,
        }
