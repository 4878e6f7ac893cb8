"""A model that runs any number of rows: in compiled batch sizes, padded, or one by one."""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.errors import DelegationError, DeviceMemoryError, InterpreterError
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.options import DelegateOptions
from jaxdelegate.ray.signature import Signature, TensorInfo, read_signature
from jaxdelegate.ray.sizes import BatchSizes

_LOGGER = logging.getLogger("jaxdelegate")

Rows = Mapping[str, np.ndarray]  # by name of an input or output, [n, ...]


class BatchedModel:
    """Rows do not affect each other, however they are batched."""

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes,
        options: DelegateOptions,
        *,
        signature: str | None = None,
        batch_sizes: Sequence[int] | None = None,
        trusts_batch: bool = False,
        compiles_once: bool = False,
    ) -> None:
        """Programs are compiled when the first rows arrive.

        A signature of None is the only one. Batch sizes of None are compiled as batches arrive.
        With `trusts_batch` a graph that accepts a batch runs on batches, even if it is not known to
        compute each row independently. With `compiles_once` this process waits while another
        compiles the same program.
        """
        begun = time.perf_counter()
        if not trusts_batch:
            options = DelegateOptions.of(options, rebatch=True)
        self.delegate = JaxDelegate(options)
        if self.delegate.programs is not None:
            self.delegate.programs.compiles_once = compiles_once
        self._interpreter = _opened(model, self.delegate)
        self.name = "<bytes>" if isinstance(model, bytes) else os.path.basename(os.fspath(model))
        self.signature: Signature = read_signature(self._interpreter, signature)
        self._sizes = BatchSizes(batch_sizes)
        self._is_one_by_one = not self.signature.has_batch
        self._in_flight = 1 if self.delegate.target.platform == "cpu" else 2
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.notes: tuple[str, ...] = ()  # what the user may want to know about how it runs
        self.runs = 0
        self.padded = 0  # rows that were computed only to fill a batch
        self.seconds = 0.0  # of running the program and waiting for it
        self.open_seconds = time.perf_counter() - begun  # of compiling or loading programs

    def run(self, rows: Rows) -> dict[str, np.ndarray]:
        """The outputs [n, ...] of n >= 1 checked rows; object [n] of arrays if shapes differ.

        An InterpreterError if an operator failed, a DeviceMemoryError if the device is out of
        memory, a DelegationError if required full delegation is impossible.
        """
        count = len(next(iter(rows.values())))
        size = 1 if self._is_one_by_one else self._size(rows, count)
        started: deque[Callable[[], list[np.ndarray]]] = deque()
        done: list[list[np.ndarray]] = []
        for first in range(0, count, size):
            chunk = {name: array[first : first + size] for name, array in rows.items()}
            started.append(self._start(chunk, size))
            if len(started) >= self._in_flight:
                done.append(self._timed(started.popleft()))
        done += [self._timed(results) for results in started]
        columns = zip(*done, strict=True)
        return {
            tensor.name: concatenate(parts)
            for tensor, parts in zip(self.signature.outputs, columns, strict=True)
        }

    def no_rows(self) -> dict[str, np.ndarray]:
        """The outputs for zero rows: [0, ...]."""
        signature = self.signature
        shapes = {t: [max(n, 0) for n in signature.row_shape(t)] for t in signature.outputs}
        return {t.name: np.zeros((0, *shape), t.dtype) for t, shape in shapes.items()}

    def _size(self, rows: Rows, count: int) -> int:
        """The batch size for `count` rows, allocated; 1 if the model does not accept a batch."""
        size = self._sizes.of(count)
        if size == 1:
            self._allocate(rows, size)
            return size
        try:
            self._allocate(rows, size)
        except DeviceMemoryError:
            raise
        except (DelegationError, InterpreterError) as error:
            reason = str(error)
        else:
            reason = self._why_not_batch(size) or ""
            if not reason:
                return size
        self._allocate(rows, 1)  # raises if a single row fails, too
        self._is_one_by_one = True
        note = f"{self.name} runs row by row: {reason}"
        self.notes = (*self.notes, note)
        _LOGGER.warning("%s", note)
        return 1

    def _why_not_batch(self, size: int) -> str | None:
        host = self._interpreter._runner(self.signature.subgraph)
        for tensor in self.signature.outputs:
            shape = host.spec(tensor.index).shape
            if shape is not None and shape[:1] != (size,):
                return f"batches of {size} have an output {tensor.name!r} of {list(shape)}"
        return None

    def _allocate(self, rows: Rows, size: int) -> None:
        first = (size,) if self.signature.has_batch else ()
        shapes = {name: (*first, *array.shape[1:]) for name, array in rows.items()}
        if shapes == self._shapes:
            return
        begun = time.perf_counter()
        self._shapes = {}
        subgraph = self.signature.subgraph
        for tensor in self.signature.inputs:
            self._interpreter._resize(subgraph, tensor.index, shapes[tensor.name], strict=False)
        if subgraph == 0:
            self._interpreter.allocate_tensors()
        else:
            self._interpreter._runner(subgraph).allocate()
        self._shapes = shapes
        self.open_seconds += time.perf_counter() - begun

    def _start(self, rows: Rows, size: int) -> Callable[[], list[np.ndarray]]:
        """Start to run up to `size` rows; the returned function waits for their outputs."""
        self._allocate(rows, size)
        begun = time.perf_counter()
        count = len(next(iter(rows.values())))
        signature = self.signature
        inputs = {t.index: self._filled(rows[t.name], size) for t in signature.inputs}
        if signature.has_variables:
            self._interpreter.reset_all_variables()  # no row sees the state of earlier ones
        results = self._interpreter._start(inputs, signature.subgraph)
        indices = self._interpreter._model.subgraphs[signature.subgraph].outputs
        self.runs += 1
        self.padded += size - count
        self.seconds += time.perf_counter() - begun

        def wait() -> list[np.ndarray]:
            found = dict(zip(indices, results(), strict=True))
            return [self._items(found[t.index], t, count) for t in signature.outputs]

        return wait

    def _filled(self, array: np.ndarray, size: int) -> np.ndarray:
        """Rows [n, ...] as the model's input; the last row is repeated to fill the batch."""
        if not self.signature.has_batch:
            return (
                array[0] if isinstance(array[0], np.ndarray) else np.asarray(array[0], array.dtype)
            )
        if len(array) == size:
            return np.ascontiguousarray(array)
        return np.concatenate([array, np.repeat(array[-1:], size - len(array), axis=0)])

    def _items(self, array: np.ndarray, tensor: TensorInfo, count: int) -> np.ndarray:
        """The first `count` rows of an output: [count, ...]."""
        if tensor.dtype == object and array.dtype != object:
            array = array.astype(object)
        is_whole = self._is_one_by_one and (not self.signature.has_batch or array.shape[:1] != (1,))
        return array[None] if is_whole else array[:count]

    def _timed(self, results: Callable[[], list[np.ndarray]]) -> list[np.ndarray]:
        begun = time.perf_counter()
        try:
            return results()
        finally:
            self.seconds += time.perf_counter() - begun


def _opened(model: str | os.PathLike[str] | bytes, delegate: JaxDelegate) -> Interpreter:
    if isinstance(model, bytes):
        return Interpreter(model_content=model, experimental_delegates=[delegate])
    return Interpreter(os.fspath(model), experimental_delegates=[delegate])


def concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate arrays [k, ...]; object [n] of arrays if their rows differ in shape."""
    if len(parts) == 1:
        return parts[0]
    if len({part.shape[1:] for part in parts}) == 1:
        return np.concatenate(parts)
    rows = [row for part in parts for row in part]
    array = np.empty(len(rows), object)
    array[:] = rows
    return array
