"""Encodes images or sounds for prompts: those of several threads at once, and equal ones once."""

import abc
import concurrent.futures
import functools
import hashlib
import itertools
import math
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from jaxdelegate.bundles.bundle import Bundle
from jaxdelegate.errors import OptionError
from jaxdelegate.kernels import processor
from jaxdelegate.lm.contents.content_model import ContentModel
from jaxdelegate.lm.contents.content_program import ContentSpec, arguments
from jaxdelegate.lm.contents.encoded_content import ContentRules, EncodedContent, Piece
from jaxdelegate.lru_cache import LruCache
from jaxdelegate.text import printable

_MOST_KEPT = 64
# Inputs of a run of several rows on a CPU. On an EPYC such runs took longer than rows one by one
# for encoders of 0.4, 0.6 and 1.9 MB a row, and less for one of 0.15 MB.
_MOST_BYTES_ON_CPU = 640 << 10


class ContentEncoder(abc.ABC):
    """An encoder of a bundle. Any thread may use it.

    Attributes:
        rules: how the model's family writes its contents in prompts.
        graph: the signatures of the encoder and the adapter.
        most_at_once: pieces that it encodes at once.
    """

    def __init__(self, rules: ContentRules, model: ContentModel[Any], most_at_once: int) -> None:
        """`most_at_once`: pieces that it encodes at once."""
        self.rules, self._model, self.most_at_once = rules, model, most_at_once
        self.graph: Any = model.graph
        # Threads that share an operator wait for each other; those with a run each do not.
        is_on_cpu = model.platform == "cpu"
        self._runs_at_once = min(processor.thread_count(), most_at_once) if is_on_cpu else 1
        self._most_bytes = _MOST_BYTES_ON_CPU if is_on_cpu else sys.maxsize
        self._known: LruCache[Hashable, EncodedContent] = LruCache(_MOST_KEPT)
        self._planned = set[ContentSpec]()  # others compile these soon
        self._waiting: list[EncodedContent] = []
        self._lock, self._turn = threading.Lock(), threading.Lock()

    @property
    def size(self) -> int:
        """How many elements the embedding of a place has."""
        size: int = self.graph.size
        return size

    def read(
        self, data: bytes, owner: Hashable = None, most_places: int | None = None
    ) -> EncodedContent:
        """The content of a file, not encoded yet unless it is known.

        Args:
            data: the file.
            owner: only its own contents are known to it: see `Request.owner`.
            most_places: of an image; None: as many as the bundle declares.

        Raises:
            GenerationError: it is not a file that is supported.
            OptionError: a package that reads it is not installed, or the encoder does not return
                that many places.
        """
        key = owner, hashlib.sha256(data).digest(), most_places

        def content() -> EncodedContent:
            return EncodedContent(self.rules, self._pieces(data, most_places))

        return self._known.get(key, content)

    @abc.abstractmethod
    def _pieces(self, data: bytes, most_places: int | None) -> Sequence[Piece]:
        """What the encoder takes of a file. Errors as `read`."""

    def works(self, *, of_several: bool) -> list[Callable[[], None]]:
        """Functions that load or compile what contents need, so that none waits for it later.

        Until one of them was called, runs have fewer rows if their program is in memory.

        Args:
            of_several: the programs of runs of several rows; False: those of one.
        """
        graph, specs = self.graph, list[ContentSpec]()
        for key in graph.encoder_keys:
            most = self._rows_of(key, self.most_at_once).bit_length()
            rows = [1 << n for n in range(1, most)] if of_several else [1]
            specs += [ContentSpec(key, n) for n in rows]
        if graph.end is not None and not of_several:
            specs.append(ContentSpec(graph.end, is_end=True))
        self._planned.update(specs)
        return [functools.partial(self._prepare, spec) for spec in specs]

    def _prepare(self, spec: ContentSpec) -> None:
        try:
            self._model.prepare(spec)
        finally:
            self._planned.discard(spec)

    def encode(self, contents: Iterable[EncodedContent]) -> None:
        """Compute embeddings; while one thread does, those of others wait to be the next run.

        Raises:
            DeviceMemoryError: they do not fit.
        """
        own = [content for content in contents if content.pieces is not None]
        if not own:
            return
        with self._lock:
            self._waiting += own
        with self._turn:
            with self._lock:
                taken, self._waiting = self._waiting, []
            # Another thread may have taken the own ones, and failed.
            left = {id(content): content for content in (*taken, *own)}
            self._encode([content for content in left.values() if content.pieces is not None])

    def _encode(self, contents: Sequence[EncodedContent]) -> None:
        rows = dict[int, np.ndarray]()
        runs = self._runs([piece for content in contents for piece in content.pieces or ()])
        for run, found in zip(runs, self._embeddings(runs), strict=True):
            rows.update(zip(map(id, run), found, strict=True))
        ends = [self._model.end] if contents and self.rules.has_end else []
        for content in contents:
            own = [rows[id(piece)] for piece in content.pieces or ()]
            content.embeddings, content.pieces = np.concatenate([*own, *ends]), None

    def _embeddings(self, runs: Sequence[Sequence[Piece]]) -> Iterable[list[np.ndarray]]:
        whole = len(runs) - len(runs) % self._runs_at_once
        return [*self._side_by_side(runs[:whole]), *self._side_by_side(runs[whole:])]

    def _side_by_side(self, runs: Sequence[Sequence[Piece]]) -> Iterable[list[np.ndarray]]:
        count = min(self._runs_at_once, len(runs))
        if count < 2:
            return map(self._model.embeddings, runs)
        threads = max(processor.thread_count() // count, 1)
        encode = functools.partial(self._model.embeddings, threads=threads)
        return self._threads.map(encode, runs)

    @functools.cached_property
    def _threads(self) -> concurrent.futures.ThreadPoolExecutor:
        return concurrent.futures.ThreadPoolExecutor(self._runs_at_once, "encode")

    def _runs(self, pieces: Iterable[Piece]) -> list[Sequence[Piece]]:
        """Those of one signature together; powers of two, so that there are few programs."""
        runs = list[Sequence[Piece]]()

        def key(piece: Piece) -> str:
            return piece.key

        for signature, group in itertools.groupby(sorted(pieces, key=key), key):
            rest = [*group]
            most = self._rows_of(signature, min(len(rest), self.most_at_once))
            while rest:
                count = self._count(signature, min(len(rest), most))
                runs.append(rest[:count])
                rest = rest[count:]
        return runs

    def _rows_of(self, key: str, pieces: int) -> int:
        """The rows of each of the runs that encode as many pieces at once."""
        arrays = arguments(self.graph, ContentSpec(key))
        size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in arrays)
        return max(min(-(-pieces // self._runs_at_once), self._most_bytes // size), 1)

    def _count(self, key: str, most: int) -> int:
        """How many rows the next run has: fewer while others compile its program."""
        count = 1 << (most.bit_length() - 1)
        while count > 1 and self._is_awaited(ContentSpec(key, count)):
            count //= 2
        return count

    def _is_awaited(self, spec: ContentSpec) -> bool:
        return spec in self._planned and not self._model.has_program(spec)

    def close(self) -> None:
        """Free programs, weights, contents and threads."""
        if "_threads" in vars(self):
            self._threads.shutdown()
            del self._threads
        self._known.clear()
        self._model.close()


def needed_parts(bundle: Bundle, parts: Sequence[str], argument: str, nouns: str) -> dict[str, Any]:
    """Models of a bundle by part. An OptionError names the parts that it lacks.

    Args:
        bundle: of the language model.
        parts: that an encoder needs.
        argument: that asks for the encoder.
        nouns: what it encodes.
    """
    models = bundle.models
    missing = [part for part in parts if part not in models]
    if missing:
        raise OptionError(
            f"{argument}: {printable(bundle.path)} takes no {nouns}: it lacks {', '.join(missing)}"
        )
    return {part: models[part] for part in parts}


def has_parts(bundle: Bundle, needed: Callable[[Bundle], Sequence[str]]) -> bool:
    """Whether a bundle has the parts of an encoder, and its model is of a supported family."""
    try:
        return all(part in bundle.models for part in needed(bundle))
    except OptionError:
        return False
