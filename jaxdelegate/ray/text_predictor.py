"""A language model or a text encoder as the callable class that map_batches runs in actors."""

import dataclasses
import hashlib
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from jaxdelegate.errors import ModelError, OptionError
from jaxdelegate.lm.adapters import rank_config
from jaxdelegate.lm.channels import ChannelReader
from jaxdelegate.lm.completions import Completion
from jaxdelegate.lm.configs import LoraConfig, SamplerConfig, output_limit
from jaxdelegate.lm.contents.message_contents import read_contents, without_files
from jaxdelegate.lm.embedding_engine import EmbeddingEngine, normalized
from jaxdelegate.lm.embeddings import EmbeddingOptions, InputOverflowStrategy
from jaxdelegate.lm.engine import Engine, engine_with_encoders
from jaxdelegate.lm.generation import generate, score
from jaxdelegate.lm.messages import stated
from jaxdelegate.lm.request import Request
from jaxdelegate.lm.tool_prompts import ToolRenderer
from jaxdelegate.model.sections import LLM_METADATA
from jaxdelegate.model.source import text_metadata
from jaxdelegate.options import DelegateOptions
from jaxdelegate.ray import columns
from jaxdelegate.ray.batch_predictor import BatchPredictor, OnError
from jaxdelegate.ray.columns import Batch, PredictionError

Task = Literal["generate", "score", "embed"]
Row = Mapping[str, Any]  # the values of inputs or of outputs, by name
# The arguments that only some tasks have, and their types.
_ARGUMENTS: Mapping[str, tuple[type, tuple[Task, ...]]] = {
    "sampler_config": (SamplerConfig, ("generate",)),
    "max_output_tokens": (object, ("generate",)),
    "chat_template_kwargs": (Mapping, ("generate", "score")),
    "max_num_tokens": (object, ("generate", "score")),
    "lora_config": (LoraConfig, ("generate", "score", "embed")),
    "embedding_options": (EmbeddingOptions, ("embed",)),
}
# What a column of an input has, and the kinds of its dtype; other columns have texts.
_COLUMNS = {"messages": ("lists of messages", "O"), "seed": ("integers", "Oiu")}
_INTEGER, _OBJECT = np.dtype(np.int64), np.dtype(object)


class Item(NamedTuple):
    size: int  # the tokens that are read
    value: Any


class _PromptTask:
    def __init__(
        self, engine: Engine, context: Mapping[str, Any], lora_config: LoraConfig | None
    ) -> None:
        """`context`: variables of the chat template."""
        self._engine, self._context = engine, context
        self._adapter = engine.adapter(lora_config)
        renderer = engine.text.renderer().without_lists()
        self._renderer = ToolRenderer(renderer, engine.text.tool_syntax)

    def _messages(self, row: Row) -> list[dict[str, Any]]:
        """Those of a chat. A ValueError: the engine does not take what they have."""
        kinds = self._engine.contents.encoders
        return [stated(message, "messages", kinds) for message in row.get("messages", ())]

    def _text(self, row: Row, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text that the model continues. A ValueError: the template refuses the messages."""
        if "messages" not in row:
            return str(row["prompt"])
        seen = [*map(without_files, messages)]
        try:
            return self._renderer.render(seen, self._context, ends=True)
        except ModelError as error:  # it begins with the bundle's path
            problem = str(error).rpartition("chat template: ")[2]
            raise ValueError(f"the chat template fails: {problem}") from None


class Generate(_PromptTask):
    inputs = ("prompt",)
    optional_inputs = ("messages", "seed")
    outputs = {  # noqa: RUF012 (never changed); names as in ray.data.llm where it has them
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
        lora_config: LoraConfig | None,
        sampler: SamplerConfig,
        max_output_tokens: int | None,
    ) -> None:
        super().__init__(engine, context, lora_config)
        self._sampler, self._limit = sampler, output_limit(max_output_tokens)

    def item(self, row: Row) -> Item:
        messages, contents = self._messages(row), self._engine.contents
        text, files = self._text(row, messages), read_contents(messages, contents)
        ids = [*self._engine.text.start_ids, *contents.ids(text, files)]
        self._engine.graph.check(ids, has_answer=True)
        seed = row.get("seed", _seed_of(self._sampler.seed or 0, ids))
        engine_text = self._engine.text
        params = engine_text.sampling_params(dataclasses.replace(self._sampler, seed=seed))
        channels = engine_text.metadata.channels if "messages" in row else ()
        request = Request(ids, self._limit, params, adapter=self._adapter)
        return Item(len(ids), (request, ChannelReader(channels, text), files))

    def run(self, items: Sequence[Item], names: Sequence[str]) -> Sequence[Row]:
        has_scores = "log_probabilities" in names
        requests, readers, files = zip(*(item.value for item in items), strict=True)
        self._engine.contents.encode(itertools.chain(*files))
        # As many slots for a few rows: rounding does not depend on the size of a batch.
        runner = self._engine.new_runner(self._engine.max_batch)
        scoring = [dataclasses.replace(request, has_scores=has_scores) for request in requests]
        completions = generate(self._engine.text, runner, scoring)
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
    """A seed that depends on the prompt, not on the other rows."""
    numbers = np.array([seed, *(i % (1 << 63) for i in ids)], np.int64)  # places of files are large
    return int.from_bytes(hashlib.sha256(numbers.tobytes()).digest()[:4], "little")


class Score(_PromptTask):
    inputs = ("prompt", "continuation")
    optional_inputs = ("messages",)
    outputs = {  # noqa: RUF012 (never changed); names as in ray.data.llm where it has them
        "log_likelihood": np.dtype(np.float64),
        "num_input_tokens": _INTEGER,
        "num_scored_tokens": _INTEGER,
        "log_probabilities": _OBJECT,
    }
    optional_outputs = ("log_probabilities",)

    def item(self, row: Row) -> Item:
        prompt = self._engine.prompt_ids(self._text(row, self._messages(row)))
        self._engine.graph.check(prompt)
        continuation = self._engine.tokenize(row["continuation"])
        self._engine.graph.check([*prompt, *continuation])
        return Item(len(prompt) + len(continuation), (prompt, continuation))

    def run(self, items: Sequence[Item], names: Sequence[str]) -> Sequence[Row]:  # noqa: ARG002
        runner = self._engine.new_runner(self._engine.max_batch)
        for slot in range(runner.slots):
            runner.adapters.set(slot, self._adapter)
        pairs = [item.value for item in items]
        return [
            {
                "log_likelihood": sum(scores),
                "num_input_tokens": len(prompt),
                "num_scored_tokens": len(continuation),
                "log_probabilities": scores,
            }
            for (prompt, continuation), scores in zip(pairs, score(runner, pairs), strict=True)
        ]


class Embed:
    inputs, optional_inputs = ("text",), ()
    optional_outputs = ()

    def __init__(
        self,
        engine: Engine | EmbeddingEngine,
        options: EmbeddingOptions,
        lora_config: LoraConfig | None,
    ) -> None:
        """An engine that generates embeds by the model's state after each text."""
        self._engine, self._options, self._lora_config = engine, options, lora_config
        if isinstance(engine, EmbeddingEngine):
            size = engine.size
        elif options.input_overflow_strategy == InputOverflowStrategy.CHUNK_AND_AVERAGE:
            raise OptionError(
                "embedding_options: input_overflow_strategy: CHUNK_AND_AVERAGE is for text "
                "encoders; expected TRUNCATE or ERROR"
            )
        else:
            size = engine.hidden_states([]).shape[1]
        wanted = max(options.output_size or 0, 0)
        if wanted > size:
            raise OptionError(
                f"embedding_options: output_size: expected at most {size}, got {wanted}"
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
        texts = [item.value for item in items]
        if isinstance(self._engine, EmbeddingEngine):
            rows = self._engine.embeddings(texts, self._options)
        else:
            states = self._engine.hidden_states(texts, lora_config=self._lora_config)
            rows = [normalized(row, self._options) for row in states]
        return [
            {"embeddings": row, "num_input_tokens": item.size}
            for item, row in zip(items, rows, strict=True)
        ]


class TextPredictor(BatchPredictor[list[Item]]):
    """Adds what a bundle's model generates, scores or embeds to the rows of a data set.

    ```python
    ds.map_batches(
        jaxdelegate.ray.TextPredictor,
        fn_constructor_kwargs={"model": "model.litertlm", "inputs": {"prompt": "question"}},
        batch_size=64,
        compute=ray.data.ActorPoolStrategy(size=2),
    )
    ```

    Each actor has one engine, and uses only what Ray assigned to it, as `Predictor`. Outside of Ray
    it is a function of dictionaries of numpy arrays.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        task: Task = "generate",
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | Sequence[str] | None = None,
        *,
        sampler_config: SamplerConfig | None = None,
        max_output_tokens: int | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        embedding_options: EmbeddingOptions | None = None,
        lora_config: LoraConfig | None = None,
        max_num_tokens: int | None = None,
        max_batch: int = 8,
        options: Mapping[str, Any] | DelegateOptions | None = None,
        on_error: OnError = "raise",
        key: str | None = None,
        num_threads: int | None = None,
    ) -> None:
        """Open the bundle; programs are loaded or compiled when they are first needed.

        Args:
            model: the path of a `.litertlm` or `.task` file, which every actor can read.
            task: "generate": continue each `prompt`, or answer each chat of `messages`, with an
                optional `seed`; "score": the probability of each `continuation` of a `prompt` or of
                `messages`; "embed": the embedding of each `text`; of a model that generates its
                state after the text.
            inputs: the column of each of these; by default the column of that name, of `messages`
                and `seed` only if they are named.
            outputs: which to add, or the column of each; None: all but `generated_tokens`,
                `log_probabilities` and `reasoning_content`.
            sampler_config: how tokens are chosen; None: the most likely one. Without a column
                `seed` a row's random numbers depend on this seed and on its prompt.
            max_output_tokens: of an answer; None: as many as `max_num_tokens` leaves.
            chat_template_kwargs: variables of the chat template.
            embedding_options: None: the default ones.
            lora_config: the LoRA adapter of all rows, a file that every actor can read; None: none.
            max_num_tokens: as in `Engine`.
            max_batch: the most rows that are processed at once.
            options: JaxDelegate's. `serialization_dir` is the directory of compiled programs, of
                which the first actor compiles each, the others wait and load; unset: the user's.
            on_error: as in `Predictor`.
            key: the column that names rows in errors.
            num_threads: of XLA's CPU client; None: one for each of the actor's CPUs.

        Raises:
            ModelError: the file is not a bundle, or damaged, or has no model for the task.
            OptionError: an impossible value, a name that the task does not have, or a device that
                Ray did not assign to this actor.
        """
        _check(
            task,
            sampler_config=sampler_config,
            max_output_tokens=max_output_tokens,
            chat_template_kwargs=chat_template_kwargs,
            embedding_options=embedding_options,
            lora_config=lora_config,
            max_num_tokens=max_num_tokens,
        )
        if not isinstance(model, str | os.PathLike):
            raise OptionError(
                "model: expected the path of a bundle that every actor can read, got "
                f"{type(model).__name__}"
            )
        super().__init__(model, options, on_error, key, num_threads)
        chosen = self._options.changed()
        arguments: dict[str, Any] = {
            "cache_dir": chosen.pop("serialization_dir", None),
            "max_batch": max_batch,
            "options": chosen,
        }
        engine: Engine | EmbeddingEngine
        self._task: Generate | Score | Embed
        if task == "embed" and text_metadata(model) != LLM_METADATA:
            if lora_config is not None:
                raise OptionError("lora_config: text encoders take no adapters; leave it out")
            engine = EmbeddingEngine(model, **arguments)
            self._task = Embed(engine, embedding_options or EmbeddingOptions(), None)
        else:
            if lora_config is not None and lora_config.path:
                arguments["lora_rank_config"] = rank_config(lora_config.path, "lora_config")
            opened = engine_with_encoders if task == "generate" else Engine
            engine = opened(model, max_num_tokens=max_num_tokens, **arguments)
            context, sampler = chat_template_kwargs or {}, sampler_config or SamplerConfig()
            if task == "embed":
                self._task = Embed(engine, embedding_options or EmbeddingOptions(), lora_config)
            elif task == "score":
                self._task = Score(engine, context, lora_config)
            else:
                self._task = Generate(engine, context, lora_config, sampler, max_output_tokens)
        self._inputs = _input_columns(self._task, dict(inputs or {}))
        self._outputs = columns.output_columns(
            outputs, self._task.outputs, self._task.optional_outputs
        )
        self._opened(engine.programs)

    def _inputs_of(self, batch: Batch) -> tuple[list[Item], dict[int, str]]:
        values = {name: _values(batch, name, column) for name, column in self._inputs.items()}
        items: list[Item] = []
        wrong: dict[int, str] = {}
        for i in range(columns.num_rows(batch)):
            try:
                row = {n: _read(n, self._inputs[n], array[i]) for n, array in values.items()}
                items.append(self._task.item(row))
            except ValueError as error:
                items.append(Item(0, None))
                wrong[i] = str(error)
        return items, wrong

    def _run(self, inputs: list[Item], rows: Sequence[int]) -> dict[str, np.ndarray]:
        """Neighbors have similar lengths: caches are as short as can be."""
        names, items = [*self._outputs], [inputs[row] for row in rows]
        order = sorted(range(len(items)), key=lambda i: items[i].size)
        results = self._task.run([items[i] for i in order], names) if items else []
        outputs = {name: np.empty(len(items), self._task.outputs[name]) for name in names}
        for i, result in zip(order, results, strict=True):
            for name in names:
                outputs[name][i] = result[name]
        self._add("input_tokens", sum(item.size for item in items))
        return outputs


def _check(task: str, **arguments: Any) -> None:
    if task not in get_args(Task):
        known = ", ".join(map(repr, get_args(Task)))
        raise OptionError(f"task: expected one of {known}, got {task!r}")
    for name, value in arguments.items():
        kind, tasks = _ARGUMENTS[name]
        if value is not None and task not in tasks:
            listed = " and ".join(map(repr, tasks))
            raise OptionError(f"{name}: only for task {listed}, got {value!r} for {task!r}")
        if value is not None and not isinstance(value, kind):
            raise OptionError(f"{name}: expected a {kind.__name__}, got {type(value).__name__}")


def _input_columns(task: Generate | Score | Embed, named: dict[str, str]) -> dict[str, str]:
    columns.check_names("input", named, [*task.inputs, *task.optional_inputs])
    if {"prompt", "messages"} <= named.keys():
        raise OptionError("inputs: expected a prompt or messages, got both")
    needed = [n for n in task.inputs if n != "prompt" or "messages" not in named]
    return {name: name for name in needed} | named


def _values(batch: Batch, name: str, column: str) -> np.ndarray:
    """A column; a PredictionError: it cannot have such rows."""
    try:
        values = columns.column(batch, column, f"input {name!r}")
    except PredictionError as error:
        if name != "prompt" or "messages" not in batch:
            raise
        raise PredictionError(f'{error}; for chats: inputs={{"messages": "messages"}}') from None
    array, (expected, kinds) = np.asarray(values), _COLUMNS.get(name, ("text", "OU"))
    if array.dtype.kind == "f" and np.isnan(array).all():  # as Ray Data shows nulls without a type
        return np.full(len(array), None, object)
    if array.dtype.kind not in kinds:
        raise PredictionError(
            f"column {column!r} for input {name!r}: expected {expected}, got {array.dtype}; "
            f"{columns.HOW_TO_CAST}"
        )
    return array


def _read(name: str, column: str, value: Any) -> Any:
    if value is None or (isinstance(value, float) and math.isnan(value)):  # NaN is pandas's null
        raise ValueError(f"column {column!r}: it is null")
    try:
        if name == "messages":
            return _messages(value)
        if name == "seed":
            return int(_checked(value, int | np.integer, "an integer"))
        return str(_checked(value, str, "text"))
    except ValueError as error:
        raise ValueError(f"column {column!r}: {error}") from None


def _messages(value: Any) -> list[Any]:
    messages: list[Any] = _plain(_checked(value, list | np.ndarray, "a list of messages"))
    if not messages:
        raise ValueError("expected at least one message, got none")
    for message in messages:
        _checked(message, dict, "messages with a role and a content")
        _checked(message.get("role"), str, "a role of each message")
        for part in _checked(message.get("content"), str | list, "a content of each message"):
            _checked(part, str | dict, "a content of texts or parts")
    return messages


def _checked(value: Any, kind: Any, expected: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"expected {expected}, got {type(value).__name__}")
    return value


def _plain(value: Any) -> Any:
    """Lists and dictionaries without nulls: in Arrow all rows have the same fields."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items() if item is not None}
    if isinstance(value, list | np.ndarray):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value
