"""A model as the callable class that Ray Data's map_batches runs in actors."""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.errors import DelegationError, DeviceMemoryError, InterpreterError, OptionError
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.model.source import interpreter_arguments, text_metadata
from jaxdelegate.options import DelegateOptions
from jaxdelegate.ray import columns
from jaxdelegate.ray.batch_predictor import BatchPredictor, OnError, concatenate
from jaxdelegate.ray.columns import Batch, TensorInfo
from jaxdelegate.ray.resources import running_ray

_LOGGER = logging.getLogger("jaxdelegate")
_EXACT_SIZES = 2  # a data set begins with full batches and the rest of a block

Rows = Mapping[str, np.ndarray]  # by name of an input or output, [n, ...]


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

    Attributes:
        notes: what the user may want to know about how the model runs, such as row by row.
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
        content = _content(model)
        set_options = options.changed() if isinstance(options, DelegateOptions) else options or {}
        # Unless the user trusts that a graph that accepts a batch computes its rows independently
        with_rebatch = {"rebatch": True, **set_options}
        super().__init__(content, with_rebatch, on_error, key, num_threads)
        if signature is None and text_metadata(content) is not None:
            raise OptionError(
                "model: expected a model of tensors, got a bundle of a model of texts: use "
                "jaxdelegate.ray.TextPredictor, or name a signature"
            )
        delegate = JaxDelegate(self._options)
        self._interpreter = Interpreter(
            experimental_delegates=[delegate], **interpreter_arguments(content)
        )
        if batch_sizes is not None and (not batch_sizes or min(batch_sizes) < 1):
            raise OptionError(f"batch_sizes: must be at least 1, got {list(batch_sizes)}")
        self._sizes, self._may_add_sizes = sorted(set(batch_sizes or ())), batch_sizes is None
        self._read_signature(signature)
        self._is_one_by_one = not self._has_batch
        self._in_flight = 1 if delegate.target.platform == "cpu" else 2
        self.notes: tuple[str, ...] = ()
        names = [tensor.name for tensor in self._input_tensors]
        columns.check_names("input", inputs or {}, names)
        self._inputs = {name: name for name in names} | dict(inputs or {})
        names = [tensor.name for tensor in self._output_tensors]
        self._outputs = columns.output_columns(outputs, names)
        self._opened(delegate.programs)

    def _inputs_of(self, batch: Batch) -> tuple[Rows, dict[int, str]]:
        rows: dict[str, np.ndarray] = {}
        wrong: dict[int, str] = {}
        for tensor in self._input_tensors:
            name = self._inputs[tensor.name]
            value = columns.column(batch, name, f"input {tensor.name!r}")
            rows[tensor.name], bad = columns.to_array(value, tensor, name)
            wrong = bad | wrong
        return rows, wrong

    def _run(self, inputs: Rows, rows: Sequence[int]) -> dict[str, np.ndarray]:
        """Outputs whose rows differ in shape are object [n] of arrays."""
        if not rows:
            return {
                t.name: np.zeros((0, *(max(n, 0) for n in t.row_shape)), t.dtype)
                for t in self._output_tensors
            }
        chosen = {n: a if len(a) == len(rows) else a[list(rows)] for n, a in inputs.items()}
        size = 1 if self._is_one_by_one else self._size(chosen, len(rows))
        started: deque[Callable[[], list[np.ndarray]]] = deque()
        done: list[list[np.ndarray]] = []
        for first in range(0, len(rows), size):
            chunk = {name: array[first : first + size] for name, array in chosen.items()}
            started.append(self._start(chunk, size))
            if len(started) >= self._in_flight:
                done.append(started.popleft()())
        done += [results() for results in started]
        return {
            tensor.name: concatenate(parts)
            for tensor, *parts in zip(self._output_tensors, *done, strict=True)
        }

    def _read_signature(self, key: str | None) -> None:
        """The named signature, the only one, or the main subgraph of a file without any."""
        interpreter, self._subgraph = self._interpreter, 0
        inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
        signatures = {s.key: s for s in interpreter._model.signatures}
        if (key is None and len(signatures) > 1) or (key is not None and key not in signatures):
            known = ", ".join(map(repr, signatures)) or "none"
            raise OptionError(f"signature: expected one of the model's, {known}, got {key!r}")
        if signatures:
            signature = signatures[key or next(iter(signatures))]
            self._subgraph = signature.subgraph
            inputs, outputs = (
                [
                    interpreter._get_tensor_details(i, self._subgraph) | {"name": name}
                    for name, i in end.items()
                ]
                for end in (signature.inputs, signature.outputs)
            )
        self._has_batch = bool(inputs) and all(_is_batched(tensor) for tensor in inputs)
        self._input_tensors = [self._tensor(tensor) for tensor in inputs]
        self._output_tensors = [self._tensor(tensor) for tensor in outputs]
        tensors = interpreter._model.subgraphs[self._subgraph].tensors
        self._has_variables = any(tensor.is_variable for tensor in tensors)

    def _tensor(self, details: Mapping[str, Any]) -> TensorInfo:
        shape = tuple(details["shape_signature"].tolist())
        row_shape = shape[1:] if self._has_batch and _is_batched(details) else shape
        dtype = np.dtype(details["dtype"])
        dtype = np.dtype(object) if dtype.kind == "S" else dtype
        return TensorInfo(details["name"], details["index"], row_shape, dtype)

    def _size(self, rows: Rows, count: int) -> int:
        """The batch size for `count` rows, several runs if it is smaller; 1: no batch is accepted.

        It is the smallest size so far that holds them. If none does, the first two sizes are those
        of the batches, and further ones powers of two: a data set with varying batches compiles few
        programs, and one with equal batches pads none of them.
        """
        if self._may_add_sizes and count > max(self._sizes, default=0):
            is_exact = len(self._sizes) < _EXACT_SIZES
            self._sizes.append(count if is_exact else 1 << (count - 1).bit_length())
        size = next((size for size in self._sizes if size >= count), self._sizes[-1])
        reason = self._why_not_batch(rows, size) if size > 1 else None
        if reason is None:
            return size
        self._allocate(rows, 1)  # raises if a single row fails, too
        self._is_one_by_one = True
        note = f"{self._name} runs row by row: {reason}"
        self.notes = (*self.notes, note)
        _LOGGER.warning("%s", note)
        return 1

    def _why_not_batch(self, rows: Rows, size: int) -> str | None:
        try:
            self._allocate(rows, size)
        except DeviceMemoryError:
            raise
        except (DelegationError, InterpreterError) as error:
            return str(error)
        host = self._interpreter._runner(self._subgraph)
        for tensor in self._output_tensors:
            shape = host.spec(tensor.index).shape
            if shape is not None and shape[:1] != (size,):
                return f"batches of {size} have an output {tensor.name!r} of {list(shape)}"
        return None

    def _allocate(self, rows: Rows, size: int) -> None:
        begun = time.perf_counter()
        runner = self._interpreter._runner(self._subgraph)
        for tensor in self._input_tensors:
            shape = (*([size] if self._has_batch else []), *rows[tensor.name].shape[1:])
            if not runner.has_shape(tensor.index, shape):
                self._interpreter._resize(self._subgraph, tensor.index, shape, strict=False)
        if not runner.is_allocated:
            allocate = runner.allocate if self._subgraph else self._interpreter.allocate_tensors
            allocate()
        self._stats.open_seconds += time.perf_counter() - begun

    def _start(self, rows: Rows, size: int) -> Callable[[], list[np.ndarray]]:
        """Start to run up to `size` rows; the returned function waits for their outputs."""
        self._allocate(rows, size)
        count = len(next(iter(rows.values())))
        inputs = {t.index: self._filled(rows[t.name], size) for t in self._input_tensors}
        if self._has_variables:
            self._interpreter.reset_all_variables()  # no row sees the state of earlier ones
        results = self._interpreter._start(inputs, self._subgraph)
        indices = self._interpreter._model.subgraphs[self._subgraph].outputs
        self._add("rows_padded", size - count)

        def wait() -> list[np.ndarray]:
            arrays = dict(zip(indices, results(), strict=True))
            return [self._rows(arrays[t.index], t, count) for t in self._output_tensors]

        return wait

    def _filled(self, array: np.ndarray, size: int) -> np.ndarray:
        """Rows [n, ...] as the model's input; the last row is repeated to fill the batch."""
        if not self._has_batch:
            return np.asarray(array[0], array.dtype)
        if len(array) == size:
            return np.ascontiguousarray(array)
        return np.concatenate([array, np.repeat(array[-1:], size - len(array), axis=0)])

    def _rows(self, array: np.ndarray, tensor: TensorInfo, count: int) -> np.ndarray:
        """The first `count` rows of an output: [count, ...]."""
        if tensor.dtype == object and array.dtype != object:
            array = array.astype(object)
        is_whole = self._is_one_by_one and (not self._has_batch or array.shape[:1] != (1,))
        return array[None] if is_whole else array[:count]


def _is_batched(details: Mapping[str, Any]) -> bool:
    """Whether the first dimension is a batch: free, or 1 as converters write."""
    return details["shape_signature"][:1].tolist() in ([-1], [1])


def _content(model: Any) -> str | bytes:
    """A path, or a file's content, fetched from the object store if `model` is a reference.

    Nothing is unpickled: only bytes are a model.
    """
    ray = running_ray()
    is_reference = ray is not None and isinstance(model, ray.ObjectRef)
    content = ray.get(model) if is_reference else model  # type: ignore[union-attr]
    if isinstance(content, bytes):
        return content
    if isinstance(content, str | os.PathLike) and not is_reference:
        return str(os.fspath(content))
    raise OptionError(
        "model: expected a path, bytes, or a Ray object reference of bytes, got "
        f"{'a reference of ' if is_reference else ''}{type(content).__name__}"
    )
