"""A language model or a text encoder as the callable class that map_batches runs in actors."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from jaxdelegate.errors import OptionError
from jaxdelegate.lm.configs import SamplerConfig
from jaxdelegate.lm.embedding_engine import EmbeddingEngine
from jaxdelegate.lm.embeddings import EmbeddingOptions
from jaxdelegate.lm.engine import Engine
from jaxdelegate.model.sections import LLM_METADATA
from jaxdelegate.model.source import text_metadata
from jaxdelegate.options import DelegateOptions
from jaxdelegate.ray import columns
from jaxdelegate.ray.batch_predictor import BatchPredictor, OnError
from jaxdelegate.ray.columns import Batch, PredictionError
from jaxdelegate.ray.text_tasks import Embed, Generate, Item, Row, Score, TextTask

Task = Literal["generate", "score", "embed"]
# The arguments that only some tasks have, and their types.
_ARGUMENTS: Mapping[str, tuple[type, tuple[Task, ...]]] = {
    "sampler_config": (SamplerConfig, ("generate",)),
    "max_output_tokens": (object, ("generate",)),
    "chat_template_kwargs": (Mapping, ("generate", "score")),
    "max_num_tokens": (object, ("generate", "score")),
    "embedding_options": (EmbeddingOptions, ("embed",)),
}
# What a column of an input has, and the kinds of its dtype; other columns have texts.
_TEXTS = "text", "OU"
_COLUMNS = {"messages": ("lists of messages", "O"), "seed": ("integers", "Oiu")}


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
        self._task: TextTask
        if task == "embed":
            is_encoder = text_metadata(model) != LLM_METADATA
            engine = (EmbeddingEngine if is_encoder else Engine)(model, **arguments)
            self._task = Embed(engine, embedding_options or EmbeddingOptions())
        else:
            engine = Engine(model, max_num_tokens=max_num_tokens, **arguments)
            context, sampler = chat_template_kwargs or {}, sampler_config or SamplerConfig()
            self._task = (
                Score(engine, context)
                if task == "score"
                else Generate(engine, context, sampler, max_output_tokens)
            )
        self._inputs = _input_columns(self._task, inputs)
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
                items.append(self._item({name: array[i] for name, array in values.items()}))
            except ValueError as error:
                items.append(Item(0, None))
                wrong[i] = str(error)
        return items, wrong

    def _item(self, row: Row) -> Item:
        read: dict[str, Any] = {}
        for name, value in row.items():
            try:
                read[name] = _read(name, value)
            except ValueError as error:
                raise ValueError(f"column {self._inputs[name]!r}: {error}") from None
        return self._task.item(read)

    def _run(self, inputs: list[Item], rows: Sequence[int]) -> dict[str, np.ndarray]:
        """Neighbors have similar lengths: caches are as short as can be."""
        names, items = [*self._outputs], [inputs[row] for row in rows]
        order = sorted(range(len(items)), key=lambda i: items[i].size)
        results = self._task.run([items[i] for i in order], names) if items else []
        outputs = {name: np.empty(len(items), self._task.outputs[name]) for name in names}
        for i, result in zip(order, results, strict=True):
            for name in names:
                outputs[name][i] = result[name]
        self._meter.add("input_tokens", sum(item.size for item in items))
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


def _input_columns(task: TextTask, names: Mapping[str, str] | None) -> dict[str, str]:
    named = columns.input_columns(names, [*task.inputs, *task.optional_inputs])
    if "messages" in named and "prompt" in named:
        raise OptionError("inputs: expected a prompt or messages, got both")
    needed = [name for name in task.inputs if name != "prompt" or "messages" not in named]
    return {name: name for name in needed} | named


def _values(batch: Batch, name: str, column: str) -> np.ndarray:
    """A column; a PredictionError: it cannot have such rows."""
    try:
        values = columns.column(batch, column, f"input {name!r}")
    except PredictionError as error:
        if name != "prompt" or "messages" not in batch:
            raise
        raise PredictionError(f'{error}; for chats: inputs={{"messages": "messages"}}') from None
    array, (expected, kinds) = np.asarray(values), _COLUMNS.get(name, _TEXTS)
    if array.dtype.kind == "f" and np.isnan(array).all():  # as Ray Data shows nulls without a type
        return np.full(len(array), None, object)
    if array.dtype.kind not in kinds:
        raise PredictionError(
            f"column {column!r} for input {name!r}: expected {expected}, got {array.dtype}; "
            f"{columns.HOW_TO_CAST}"
        )
    return array


def _read(name: str, value: Any) -> Any:
    """The value of an input in a row. A ValueError: why it is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):  # NaN is pandas's null
        raise ValueError("it is null")
    if name == "messages":
        return _messages(value)
    return _seed(value) if name == "seed" else str(_checked(value, str, "text"))


def _seed(value: Any) -> int:
    if isinstance(value, bool):
        raise ValueError("expected an integer, got bool")
    return int(_checked(value, int | np.integer, "an integer"))


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
    if not isinstance(value, kind):
        raise ValueError(f"expected {expected}, got {type(value).__name__}")
    return value


def _plain(value: Any) -> Any:
    """Lists and dictionaries without nulls: in Arrow all rows have the same fields."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items() if item is not None}
    if isinstance(value, list | np.ndarray):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value
