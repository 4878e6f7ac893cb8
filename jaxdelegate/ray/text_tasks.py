"""What a language model does with rows: generates, scores or embeds texts, ordered by length."""

import abc
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from jaxdelegate.cache.programs import ProgramCache
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
T = TypeVar("T")  # what a task needs of a row

_CHAT = "messages"
_INTEGER, _OBJECT = np.dtype(np.int64), np.dtype(object)
# Outputs have the names of ray.data.llm's where it has them.
_GENERATED = {
    "generated_text": _OBJECT,
    "finish_reason": _OBJECT,
    "num_input_tokens": _INTEGER,
    "num_generated_tokens": _INTEGER,
    "generated_tokens": _OBJECT,
    "log_probabilities": _OBJECT,
    "reasoning_content": _OBJECT,
}
_SCORED = {
    "log_likelihood": np.dtype(np.float64),
    "num_input_tokens": _INTEGER,
    "num_scored_tokens": _INTEGER,
    "log_probabilities": _OBJECT,
}


class TextTask(abc.ABC, Generic[T]):
    """A task of an engine, which is open in this process.

    Attributes:
        inputs: that a row must have, by default with columns of the same names.
        more_inputs: that a row may have; `messages` replaces `prompt`.
        outputs: their types, by name.
        more_outputs: those that must be named.
        programs: where compiled programs are stored.
    """

    inputs: ClassVar[tuple[str, ...]]
    more_inputs: ClassVar[tuple[str, ...]] = ()
    outputs: Mapping[str, np.dtype]
    more_outputs: ClassVar[tuple[str, ...]] = ()
    programs: ProgramCache | None

    @abc.abstractmethod
    def item(self, row: Row) -> T:
        """What it needs of a row. A ValueError: why it cannot run."""

    @abc.abstractmethod
    def size(self, item: T) -> int:
        """How many tokens it reads."""

    def run(self, items: Sequence[T], names: Sequence[str]) -> dict[str, np.ndarray]:
        """Outputs [n, ...] by name. Neighbors have similar lengths: caches are as short as can be.

        Args:
            items: of n rows.
            names: of the outputs.
        """
        order = sorted(range(len(items)), key=lambda i: self.size(items[i]))
        results = self._results([items[i] for i in order], names) if items else []
        found = {name: np.empty(len(items), self.outputs[name]) for name in names}
        for i, result in zip(order, results, strict=True):
            for name in names:
                found[name][i] = result[name]
        return found

    @abc.abstractmethod
    def _results(self, items: Sequence[T], names: Sequence[str]) -> Sequence[Row]:
        """All outputs of each of the items, at least these."""


class Prompts:
    """Makes the tokens of prompts and of chats."""

    def __init__(self, engine: Engine, context: Mapping[str, Any]) -> None:
        """`context`: variables of the chat template."""
        self._engine, self._context = engine, context
        self._renderer = engine.renderer().without_lists()

    def text(self, row: Row) -> str:
        """The text that the model continues. A ValueError: the template refuses the messages."""
        if _CHAT not in row:
            return str(row["prompt"])
        messages = [stated(message, _CHAT) for message in row[_CHAT]]
        try:
            return self._renderer.render(messages, self._context, ends=True)
        except ModelError as error:  # it begins with the bundle's path
            problem = str(error).rpartition("chat template: ")[2]
            raise ValueError(f"the chat template fails: {problem}") from None


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A request, and the text of a chat; empty: it is none."""

    request: Request
    chat: str


class Generate(TextTask[Prompt]):
    """Continues prompts, and answers chats."""

    inputs = ("prompt",)
    more_inputs = (_CHAT, "seed")
    more_outputs = ("generated_tokens", "log_probabilities", "reasoning_content")

    def __init__(
        self,
        engine: Engine,
        prompts: Prompts,
        sampler: SamplerConfig,
        max_output_tokens: int | None,
    ) -> None:
        self._engine, self._prompts, self._sampler = engine, prompts, sampler
        self._limit = engine.limit(max_output_tokens)
        self.outputs, self.programs = _GENERATED, engine.programs

    def item(self, row: Row) -> Prompt:
        text = self._prompts.text(row)
        ids = self._engine.prompt_ids(text)
        self._engine.graph.check(ids, has_answer=True)
        seed = row.get("seed", _seed_of(self._sampler.seed or 0, ids))
        rules = self._engine.rules(dataclasses.replace(self._sampler, seed=seed))
        return Prompt(Request(ids, self._limit, rules), text if _CHAT in row else "")

    def size(self, item: Prompt) -> int:
        return len(item.request.ids)

    def _results(self, items: Sequence[Prompt], names: Sequence[str]) -> Sequence[Row]:
        has_scores = "log_probabilities" in names
        requests = [dataclasses.replace(item.request, has_scores=has_scores) for item in items]
        # As many slots for a few rows: rounding does not depend on the size of a batch.
        decoder = self._engine.new_decoder(self._engine.max_batch)
        completions = generated(self._engine, decoder, requests)
        return [self._result(*pair) for pair in zip(items, completions, strict=True)]

    def _result(self, item: Prompt, completion: Completion) -> Row:
        answer, reasoning = self._texts(item.chat, completion.text)
        return {
            "generated_text": answer,
            "finish_reason": completion.finish_reason,
            "num_input_tokens": completion.prompt_tokens,
            "num_generated_tokens": completion.completion_tokens,
            "generated_tokens": completion.token_ids,
            "log_probabilities": completion.log_probabilities,
            "reasoning_content": reasoning,
        }

    def _texts(self, chat: str, text: str) -> tuple[str, str]:
        """The answer, and what the model says in channels of a chat."""
        if not chat:
            return text, ""
        reader = ChannelReader(self._engine.metadata.channels, chat)
        pieces = [*reader.add(text), *reader.end()]
        answer, reasoning = (
            "".join(text for channel, text in pieces if (channel is None) is is_answer)
            for is_answer in (True, False)
        )
        return answer, reasoning


def _seed_of(seed: int, ids: Sequence[int]) -> int:
    """A seed of a prompt's own: it does not depend on the other rows."""
    numbers = np.array([seed, *ids], np.int64)
    return int.from_bytes(hashlib.sha256(numbers.tobytes()).digest()[:4], "little")


@dataclasses.dataclass(frozen=True)
class Pair:
    """The tokens of a prompt, and of what may follow it."""

    prompt: Sequence[int]
    continuation: Sequence[int]


class Score(TextTask[Pair]):
    """Computes how likely texts are after prompts."""

    inputs = ("prompt", "continuation")
    more_inputs = (_CHAT,)
    more_outputs = ("log_probabilities",)

    def __init__(self, engine: Engine, prompts: Prompts) -> None:
        self._engine, self._prompts = engine, prompts
        self.outputs, self.programs = _SCORED, engine.programs

    def item(self, row: Row) -> Pair:
        prompt = self._engine.prompt_ids(self._prompts.text(row))
        self._engine.graph.check(prompt)
        continuation = self._engine.tokenize(row["continuation"])
        self._engine.graph.check([*prompt, *continuation])
        return Pair(prompt, continuation)

    def size(self, item: Pair) -> int:
        return len(item.prompt) + len(item.continuation)

    def _results(self, items: Sequence[Pair], names: Sequence[str]) -> Sequence[Row]:
        del names
        decoder = self._engine.new_decoder(self._engine.max_batch)
        found = scored(decoder, [(item.prompt, item.continuation) for item in items])
        return [
            {
                "log_likelihood": sum(scores),
                "num_input_tokens": len(item.prompt),
                "num_scored_tokens": len(item.continuation),
                "log_probabilities": scores,
            }
            for item, scores in zip(items, found, strict=True)
        ]


class Embed(TextTask[list[list[int]]]):
    """Computes embeddings of texts."""

    inputs = ("text",)

    def __init__(self, engine: EmbeddingEngine, options: EmbeddingOptions) -> None:
        self._engine, self._options, self.programs = engine, options, engine.programs
        self.outputs = _embedding_columns(engine.size, options)

    def item(self, row: Row) -> list[list[int]]:
        return self._engine.parts(str(row["text"]), self._options)

    def size(self, item: list[list[int]]) -> int:
        return sum(map(len, item))

    def _results(self, items: Sequence[list[list[int]]], names: Sequence[str]) -> Sequence[Row]:
        del names
        found = self._engine.embeddings(items, self._options)
        return [
            {"embeddings": row, "num_input_tokens": self.size(item)}
            for item, row in zip(items, found, strict=True)
        ]


class HiddenStates(TextTask[list[int]]):
    """Embeds texts by a model that generates: its state after each text."""

    inputs = ("text",)

    def __init__(self, engine: Engine, options: EmbeddingOptions) -> None:
        self._engine, self._options, self.programs = engine, options, engine.programs
        self.outputs = _embedding_columns(engine.hidden_states([]).shape[1], options)
        if options.input_overflow_strategy == InputOverflowStrategy.CHUNK_AND_AVERAGE:
            raise OptionError(
                "embedding_options: input_overflow_strategy: CHUNK_AND_AVERAGE is for text "
                "encoders; expected TRUNCATE or ERROR"
            )

    def item(self, row: Row) -> list[int]:
        has_special = self._options.insert_special_tokens is not False
        ids = (self._engine.prompt_ids if has_special else self._engine.tokenize)(str(row["text"]))
        if self._options.input_overflow_strategy == InputOverflowStrategy.TRUNCATE:
            ids = ids[: self._engine.max_num_tokens]
        self._engine.graph.check(ids)
        return ids

    def size(self, item: list[int]) -> int:
        return len(item)

    def _results(self, items: Sequence[list[int]], names: Sequence[str]) -> Sequence[Row]:
        del names
        states = self._engine.hidden_states(items)
        return [
            {"embeddings": normalized(row, self._options), "num_input_tokens": len(item)}
            for item, row in zip(items, states, strict=True)
        ]


def _embedding_columns(size: int, options: EmbeddingOptions) -> dict[str, np.dtype]:
    wanted = options.output_size or 0
    if wanted > size:
        raise OptionError(f"embedding_options: output_size: expected at most {size}, got {wanted}")
    row = np.dtype((np.float32, (wanted if wanted > 0 else size,)))
    return {"embeddings": row, "num_input_tokens": _INTEGER}
