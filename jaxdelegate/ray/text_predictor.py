"""A language model or a text encoder as the callable class that map_batches runs in actors."""

import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from jaxdelegate.cache.programs import ProgramCache
from jaxdelegate.errors import OptionError
from jaxdelegate.lm.configs import SamplerConfig
from jaxdelegate.lm.embedding_engine import EmbeddingEngine
from jaxdelegate.lm.embeddings import EmbeddingOptions
from jaxdelegate.lm.engine import Engine
from jaxdelegate.model.sections import LLM_METADATA
from jaxdelegate.model.source import text_metadata
from jaxdelegate.options import DelegateOptions
from jaxdelegate.ray import columns
from jaxdelegate.ray.batch_predictor import (
    Batch,
    BatchPredictor,
    OnError,
    check_names,
    output_columns,
)
from jaxdelegate.ray.errors import PredictionError
from jaxdelegate.ray.resources import assigned_resources, restrict
from jaxdelegate.ray.text_tasks import Embed, Generate, HiddenStates, Prompts, Row, Score, TextTask

Task = Literal["generate", "score", "embed"]
# The arguments that only some tasks have.
_OF_TASKS: Mapping[str, tuple[Task, ...]] = {
    "sampler_config": ("generate",),
    "max_output_tokens": ("generate",),
    "chat_template_kwargs": ("generate", "score"),
    "max_num_tokens": ("generate", "score"),
    "embedding_options": ("embed",),
}
_TYPES: Mapping[str, type] = {
    "sampler_config": SamplerConfig,
    "chat_template_kwargs": Mapping,
    "embedding_options": EmbeddingOptions,
}


class TextPredictor(BatchPredictor[list[Any]]):
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
        began = time.perf_counter()
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
        chosen = restrict(assigned_resources(), options or {}, num_threads).changed()
        arguments: dict[str, Any] = {
            "cache_dir": chosen.pop("serialization_dir", None),
            "max_batch": max_batch,
            "options": chosen,
        }
        self._task: TextTask[Any]
        if task == "embed" and text_metadata(model) == LLM_METADATA:
            states = Engine(model, **arguments)
            self._task = HiddenStates(states, embedding_options or EmbeddingOptions())
        elif task == "embed":
            encoder = EmbeddingEngine(model, **arguments)
            self._task = Embed(encoder, embedding_options or EmbeddingOptions())
        else:
            engine = Engine(model, max_num_tokens=max_num_tokens, **arguments)
            prompts = Prompts(engine, chat_template_kwargs or {})
            sampler = sampler_config or SamplerConfig()
            self._task = (
                Score(engine, prompts)
                if task == "score"
                else Generate(engine, prompts, sampler, max_output_tokens)
            )
        if self._task.programs is not None:
            self._task.programs.compiles_once = True
        self._inputs = _input_columns(self._task, inputs)
        usual = [name for name in self._task.outputs if name not in self._task.more_outputs]
        added = output_columns([*self._task.outputs], outputs, usual)
        super().__init__(os.path.basename(os.fspath(model)), added, on_error, key)
        self._open_seconds = time.perf_counter() - began

    @property
    def _opening(self) -> tuple[float, ProgramCache | None]:
        return self._open_seconds, self._task.programs

    def _inputs_of(self, batch: Batch) -> tuple[list[Any], dict[int, str]]:
        values = {name: _values(batch, name, column) for name, column in self._inputs.items()}
        items: list[Any] = []
        wrong: dict[int, str] = {}
        for i in range(columns.num_rows(batch)):
            try:
                items.append(self._item({name: own[i] for name, own in values.items()}))
            except ValueError as error:
                items.append(None)
                wrong[i] = str(error)
        return items, wrong

    def _item(self, row: Row) -> Any:
        read: dict[str, Any] = {}
        for name, value in row.items():
            try:
                read[name] = _read(name, value)
            except ValueError as error:
                raise ValueError(f"column {self._inputs[name]!r}: {error}") from None
        return self._task.item(read)

    def _run(
        self, inputs: list[Any], batch: Batch, rows: Sequence[int]
    ) -> tuple[dict[str, np.ndarray], dict[int, str]]:
        del batch
        items = [inputs[i] for i in rows]
        begun = time.perf_counter()
        found = self._task.run(items, [*self._outputs])
        self._meter.observe("device_seconds", time.perf_counter() - begun)
        self._meter.count("input_tokens", sum(map(self._task.size, items)))
        return found, {}


def _check(task: str, **given: Any) -> None:
    known = [*dict.fromkeys(task for tasks in _OF_TASKS.values() for task in tasks)]
    if task not in known:
        raise OptionError(f"task: expected one of {', '.join(map(repr, known))}, got {task!r}")
    for name, value in given.items():
        if value is not None and task not in _OF_TASKS[name]:
            tasks = " and ".join(map(repr, _OF_TASKS[name]))
            raise OptionError(f"{name}: only for task {tasks}, got {value!r} for {task!r}")
        kind = _TYPES.get(name, object)
        if value is not None and not isinstance(value, kind):
            raise OptionError(f"{name}: expected a {kind.__name__}, got {type(value).__name__}")


def _input_columns(task: TextTask[Any], given: Mapping[str, str] | None) -> dict[str, str]:
    given = given or {}
    check_names("input", given, [*task.inputs, *task.more_inputs])
    if "messages" in given and "prompt" in given:
        raise OptionError("inputs: expected a prompt or messages, got both")
    needed = [name for name in task.inputs if name != "prompt" or "messages" not in given]
    return {name: name for name in needed} | dict(given)


# ---- columns and their rows


def _values(batch: Batch, name: str, column: str) -> np.ndarray:
    """A column; a PredictionError: it cannot have such rows."""
    try:
        found = columns.column(batch, column, f"input {name!r}")
    except PredictionError as error:
        if name != "prompt" or "messages" not in batch:
            raise
        raise PredictionError(f'{error}; for chats: inputs={{"messages": "messages"}}') from None
    array, (expected, kinds) = np.asarray(found), _KINDS.get(name, _TEXTS)
    if array.dtype.kind == "f" and np.isnan(array).all():  # as Ray Data shows nulls without a type
        return np.full(len(array), None, object)
    if array.dtype.kind not in kinds:
        raise PredictionError(
            f"column {column!r} for input {name!r}: expected {expected}, got {array.dtype}; "
            f"{columns.HOW_TO_CAST}"
        )
    return array


_TEXTS = "text", "OU"
_KINDS = {"messages": ("lists of messages", "O"), "seed": ("integers", "Oiu")}


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
        return {name: _plain(own) for name, own in value.items() if own is not None}
    if isinstance(value, list | np.ndarray):
        return [_plain(own) for own in value]
    return value.item() if isinstance(value, np.generic) else value
