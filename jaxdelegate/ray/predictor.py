"""A model as the callable class that Ray Data's map_batches runs in actors."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.cache.programs import ProgramCache
from jaxdelegate.errors import (
    DeviceMemoryError,
    InterpreterError,
    OptionError,
    StoppedError,
    TensorError,
)
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
from jaxdelegate.ray.batched_model import BatchedModel, Rows, concatenate
from jaxdelegate.ray.errors import running_ray
from jaxdelegate.ray.resources import assigned_resources, restrict


class Predictor(BatchPredictor[Rows]):
    """Adds a model's outputs to the rows of a data set, as columns.

    ```python
    ds.map_batches(
        jaxdelegate.ray.Predictor,
        fn_constructor_kwargs={"model": "model.tflite", "inputs": {"image": "pixels"}},
        batch_size=8,
        compute=ray.data.ActorPoolStrategy(size=2),
    )
    ```

    Each actor uses only what Ray assigned to it: with `num_gpus=1` its GPU, without a GPU one CPU
    thread for each of its CPUs. Outside of Ray it is a function of dictionaries of numpy arrays.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | Any,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | Sequence[str] | None = None,
        *,
        signature: str | None = None,
        options: Mapping[str, Any] | DelegateOptions | None = None,
        batch_sizes: Sequence[int] | None = None,
        on_error: OnError = "raise",
        key: str | None = None,
        num_threads: int | None = None,
    ) -> None:
        """Read the model; programs are compiled when the first batch arrives.

        Args:
            model: a path that every actor can read, a file's content, or the reference of content
                in Ray's object store (`ray.put(content)`).
            inputs: the column of each input; by default the column with the input's name.
            outputs: which outputs to add, or the column of each; None: all, by their names.
            signature: of the model; None: the only one, or the main subgraph of a file without.
            options: JaxDelegate's. With `serialization_dir`, a directory of compiled programs, the
                first actor compiles, the others wait and load.
            batch_sizes: for which programs may be compiled; the largest splits larger batches.
                None: as batches arrive, and smaller ones are padded.
            on_error: what to do with rows that fail: "raise" ends the job and names them, "skip"
                removes them from the data set; the log names them, and a metric counts them.
            key: the column that names rows in errors.
            num_threads: of XLA's CPU client; None: one for each of the actor's CPUs.

        Raises:
            ModelError: the file is not a model, or damaged.
            OptionError: an impossible value, a name that the model does not have, or a device that
                Ray did not assign to this actor.
        """
        given = options.changed() if isinstance(options, DelegateOptions) else dict(options or {})
        known = restrict(assigned_resources(), given, num_threads)
        content = _content(model)
        _check_tensors(content, signature)
        self._model = BatchedModel(
            content,
            known,
            signature=signature,
            batch_sizes=batch_sizes,
            trusts_batch=given.get("rebatch") is False,
            compiles_once=True,
        )
        self._inputs = _input_columns(self._model, inputs)
        known_outputs = [tensor.name for tensor in self._model.signature.outputs]
        super().__init__(self._model.name, output_columns(known_outputs, outputs), on_error, key)

    @property
    def _opening(self) -> tuple[float, ProgramCache | None]:
        return self._model.open_seconds, self._model.delegate.programs

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user may want to know about how the model runs, such as row by row."""
        return self._model.notes

    def _inputs_of(self, batch: Batch) -> tuple[Rows, dict[int, str]]:
        rows: dict[str, np.ndarray] = {}
        wrong: dict[int, str] = {}
        for tensor in self._model.signature.inputs:
            name = self._inputs[tensor.name]
            value = columns.column(batch, name, f"input {tensor.name!r}")
            shape = self._model.signature.row_shape(tensor)
            rows[tensor.name], bad = columns.to_array(value, tensor, shape, name)
            wrong = bad | wrong
        return rows, wrong

    def _run(
        self, inputs: Rows, batch: Batch, rows: Sequence[int]
    ) -> tuple[dict[str, np.ndarray], dict[int, str]]:
        if not rows:
            return self._model.no_rows(), {}
        chosen = _select(inputs, rows)
        before, padded = self._model.seconds, self._model.padded
        try:
            return self._model.run(chosen), {}
        except (DeviceMemoryError, StoppedError):
            raise
        except (InterpreterError, TensorError) as error:
            return self._one_by_one(chosen, batch, rows, error)
        finally:
            self._meter.observe("device_seconds", self._model.seconds - before)
            self._meter.count("rows_padded", self._model.padded - padded)

    def _one_by_one(
        self,
        rows: Rows,
        batch: Batch,
        numbers: Sequence[int],
        error: Exception,
    ) -> tuple[dict[str, np.ndarray], dict[int, str]]:
        """After a failure of the batch: find the rows that fail."""
        found: list[dict[str, np.ndarray]] = []
        failed: dict[int, str] = {}
        for at, number in enumerate(numbers):
            try:
                found.append(self._model.run(_select(rows, [at])))
            except (InterpreterError, TensorError) as own:
                failed[number] = str(own)
        if not failed:
            raise error  # no single row fails
        if not self._skips:
            raise self._error(batch, failed) from error
        if not found:
            return self._model.no_rows(), failed
        return {name: concatenate([row[name] for row in found]) for name in found[0]}, failed


def _select(rows: Rows, numbers: Sequence[int]) -> Rows:
    if not rows or len(numbers) == len(next(iter(rows.values()))):
        return rows
    return {name: array[list(numbers)] for name, array in rows.items()}


def _content(model: Any) -> str | bytes:
    """A path, or a file's content, fetched from the object store if `model` is a reference.

    Nothing is unpickled: only bytes are a model.
    """
    ray = running_ray()
    if ray is not None and isinstance(model, ray.ObjectRef):
        content = ray.get(model)
        if not isinstance(content, bytes):
            raise OptionError(
                f"model: expected a reference of bytes, the content of a .tflite file, got one of "
                f"{type(content).__name__}"
            )
        return content
    if isinstance(model, bytes):
        return model
    if isinstance(model, str | os.PathLike):
        return str(os.fspath(model))
    raise OptionError(
        "model: expected a path, bytes, or a Ray object reference of bytes, got "
        f"{type(model).__name__}"
    )


def _check_tensors(content: str | bytes, signature: str | None) -> None:
    """Refuse a bundle of a model of texts, unless the caller has named what to run."""
    if signature is None and text_metadata(content) is not None:
        raise OptionError(
            "model: expected a model of tensors, got a bundle of a model of texts: use "
            "jaxdelegate.ray.TextPredictor, or name a signature"
        )


def _input_columns(model: BatchedModel, given: Mapping[str, str] | None) -> dict[str, str]:
    names = [tensor.name for tensor in model.signature.inputs]
    given = given or {}
    check_names("input", given, names)
    return {name: given.get(name, name) for name in names}
