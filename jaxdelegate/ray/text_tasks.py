"""What a language model does with rows: generates, scores or embeds texts."""

import abc
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from jaxdelegate.errors import ModelError, OptionError
from jaxdelegate.lm.channels import ChannelReader
from jaxdelegate.lm.completions import Completion
from jaxdelegate.lm.configs import SamplerConfig
from jaxdelegate.lm.embedding_engine import EmbeddingEngine, normalized
from jaxdelegate.lm.embeddings import EmbeddingOptions, InputOverflowStrategy
from jaxdelegate.lm.engine import Engine
from jaxdelegate.lm.generation import generated, scored
from jaxdelegate.lm.messages import stated
from jaxdelegate.lm.scheduler import Request

Row = Mapping[str, Any]  # the values of inputs or of outputs, by name

_CHAT = "messages"
_INTEGER, _OBJECT = np.dtype(np.int64), np.dtype(object)


class Item(NamedTuple):
    """A row as its task runs it."""

    size: int  # the tokens that are read
    value: Any


class TextTask(abc.ABC):
    """A task of an engine, which is open in this process.

    Attributes:
        inputs: columns that a row must have; `messages` replaces `prompt`.
        optional_inputs: columns that are used only if they are named.
        outputs: their types, by name; the names are those of ray.data.llm where it has them.
        optional_outputs: those that are added only if they are named.
    """

    inputs: ClassVar[tuple[str, ...]]
    optional_inputs: ClassVar[tuple[str, ...]] = ()
    outputs: Mapping[str, np.dtype]
    optional_outputs: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def item(self, row: Row) -> Item:
        """The item of a row. A ValueError: why it cannot run."""

    @abc.abstractmethod
    def run(self, items: Sequence[Item], names: Sequence[str]) -> Sequence[Row]:
        """All outputs of at least one item, or at least those of these names."""


class _PromptTask(TextTask):
    """Reads prompts or chats."""

    def __init__(self, engine: Engine, context: Mapping[str, Any]) -> None:
        """`context`: variables of the chat template."""
        self._engine, self._context = engine, context
        self._renderer = engine.renderer().without_lists()

    def _text(self, row: Row) -> str:
        """The text that the model continues. A ValueError: the template refuses the messages."""
        if _CHAT not in row:
            return str(row["prompt"])
        messages = [stated(message, _CHAT) for message in row[_CHAT]]
        try:
            return self._renderer.render(messages, self._context, ends=True)
        except ModelError as error:  # it begins with the bundle's path
            problem = str(error).rpartition("chat template: ")[2]
            raise ValueError(f"the chat template fails: {problem}") from None


class Generate(_PromptTask):
    """Continues prompts, and answers chats."""

    inputs = ("prompt",)
    optional_inputs = (_CHAT, "seed")
    outputs = {  # noqa: RUF012 (never changed)
        "generated_text": _OBJECT,
        "finish_reason": _OBJECT,
        "num_input_tokens": _INTEGER,
        "num_generated_tokens": _INTEGER,
        "generated_tokens": _OBJECT,
        "log_probabilities": _OBJECT,
        "reasoning_content": _OBJECT,
    }
    optional_outputs = ("generated_tokens", "log_probabilities", "reasoning_content")

    def __init__(
        self,
        engine: Engine,
        context: Mapping[str, Any],
        sampler: SamplerConfig,
        max_output_tokens: int | None,
    ) -> None:
        super().__init__(engine, context)
        self._sampler, self._limit = sampler, engine.limit(max_output_tokens)

    def item(self, row: Row) -> Item:
        text = self._text(row)
        ids = self._engine.prompt_ids(text)
        self._engine.graph.check(ids, has_answer=True)
        seed = row.get("seed", _seed_of(self._sampler.seed or 0, ids))
        rules = self._engine.rules(dataclasses.replace(self._sampler, seed=seed))
        reader = ChannelReader(self._engine.metadata.channels if _CHAT in row else (), text)
        return Item(len(ids), (Request(ids, self._limit, rules), reader))

    def run(self, items: Sequence[Item], names: Sequence[str]) -> Sequence[Row]:
        has_scores = "log_probabilities" in names
        requests, readers = zip(*(item.value for item in items), strict=True)
        # As many slots for a few rows: rounding does not depend on the size of a batch.
        decoder = self._engine.new_decoder(self._engine.max_batch)
        scoring = [dataclasses.replace(request, has_scores=has_scores) for request in requests]
        completions = generated(self._engine, decoder, scoring)
        return [_answer(*pair) for pair in zip(readers, completions, strict=True)]


def _answer(reader: ChannelReader, completion: Completion) -> Row:
    pieces = [*reader.add(completion.text), *reader.end()]
    return {
        "generated_text": "".join(text for channel, text in pieces if channel is None),
        "finish_reason": completion.finish_reason,
        "num_input_tokens": completion.prompt_tokens,
        "num_generated_tokens": completion.completion_tokens,
        "generated_tokens": completion.token_ids,
        "log_probabilities": completion.log_probabilities,
        "reasoning_content": "".join(text for channel, text in pieces if channel is not None),
    }


def _seed_of(seed: int, ids: Sequence[int]) -> int:
    """A seed of a prompt's own: it does not depend on the other rows."""
    numbers = np.array([seed, *ids], np.int64)
    return int.from_bytes(hashlib.sha256(numbers.tobytes()).digest()[:4], "little")


class Score(_PromptTask):
    """Computes how likely texts are after prompts."""

    inputs = ("prompt", "continuation")
    optional_inputs = (_CHAT,)
    outputs = {  # noqa: RUF012 (never changed)
        "log_likelihood": np.dtype(np.float64),
        "num_input_tokens": _INTEGER,
        "num_scored_tokens": _INTEGER,
        "log_probabilities": _OBJECT,
    }
    optional_outputs = ("log_probabilities",)

    def item(self, row: Row) -> Item:
        prompt = self._engine.prompt_ids(self._text(row))
        self._engine.graph.check(prompt)
        continuation = self._engine.tokenize(row["continuation"])
        self._engine.graph.check([*prompt, *continuation])
        return Item(len(prompt) + len(continuation), (prompt, continuation))

    def run(self, items: Sequence[Item], names: Sequence[str]) -> Sequence[Row]:  # noqa: ARG002
        decoder = self._engine.new_decoder(self._engine.max_batch)
        pairs = [item.value for item in items]
        return [
            {
                "log_likelihood": sum(scores),
                "num_input_tokens": len(prompt),
                "num_scored_tokens": len(continuation),
                "log_probabilities": scores,
            }
            for (prompt, continuation), scores in zip(pairs, scored(decoder, pairs), strict=True)
        ]


class Embed(TextTask):
    """Computes embeddings of texts."""

    inputs = ("text",)

    def __init__(self, engine: Engine | EmbeddingEngine, options: EmbeddingOptions) -> None:
        """An engine that generates embeds by the model's state after each text."""
        self._engine, self._options = engine, options
        is_encoder = isinstance(engine, EmbeddingEngine)
        size = engine.size if is_encoder else engine.hidden_states([]).shape[1]
        wanted = max(options.output_size or 0, 0)
        if wanted > size:
            raise OptionError(
                f"embedding_options: output_size: expected at most {size}, got {wanted}"
            )
        strategy = options.input_overflow_strategy
        if strategy == InputOverflowStrategy.CHUNK_AND_AVERAGE and not is_encoder:
            raise OptionError(
                "embedding_options: input_overflow_strategy: CHUNK_AND_AVERAGE is for text "
                "encoders; expected TRUNCATE or ERROR"
            )
        row = np.dtype((np.float32, (wanted or size,)))
        self.outputs = {"embeddings": row, "num_input_tokens": _INTEGER}

    def item(self, row: Row) -> Item:
        text = str(row["text"])
        if isinstance(self._engine, EmbeddingEngine):
            parts = self._engine.parts(text, self._options)
            return Item(sum(map(len, parts)), parts)
        has_special = self._options.insert_special_tokens is not False
        ids = self._engine.prompt_ids(text) if has_special else self._engine.tokenize(text)
        if self._options.input_overflow_strategy == InputOverflowStrategy.TRUNCATE:
            ids = ids[: self._engine.max_num_tokens]
        self._engine.graph.check(ids)
        return Item(len(ids), ids)

    def run(self, items: Sequence[Item], names: Sequence[str]) -> Sequence[Row]:  # noqa: ARG002
        found = self._embeddings([item.value for item in items])
        return [
            {"embeddings": row, "num_input_tokens": item.size}
            for item, row in zip(items, found, strict=True)
        ]

    def _embeddings(self, texts: Sequence[Any]) -> Sequence[np.ndarray]:
        if isinstance(self._engine, EmbeddingEngine):
            return self._engine.embeddings(texts, self._options)
        return [normalized(row, self._options) for row in self._engine.hidden_states(texts)]
