"""A model that runs any number of rows: in compiled batch sizes, padded, or one by one."""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.errors import (
    DelegationError,
    DeviceMemoryError,
    InterpreterError,
)
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.options import DelegateOptions
from jaxdelegate.ray.signature import End, Ends, ends_of
from jaxdelegate.ray.sizes import BatchSizes

_LOGGER = logging.getLogger("jaxdelegate")

Rows = Mapping[str, np.ndarray]  # by name of an input or output, [n, ...]


class BatchedModel:
    """An open model. Rows do not depend on each other, however they are batched.

    Attributes:
        name: of the file.
        delegate: what runs it.
        ends: its inputs and outputs.
        notes: what the user may want to know of how it runs.
        runs: how often the program ran.
        padded: rows that ran only to fill a batch.
        seconds: in which it was run or waited for.
        open_seconds: in which programs were compiled or loaded.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes,
        options: DelegateOptions,
        *,
        signature: str | None = None,
        batch_sizes: Sequence[int] | None = None,
        is_as_it_stands: bool = False,
        is_compiled_once: bool = False,
    ) -> None:
        """Read it; programs are compiled when the first rows come.

        Args:
            model: a path, or a file's content.
            options: of the delegate.
            signature: which; None: the only one.
            batch_sizes: that may be compiled; None: as batches come.
            is_as_it_stands: leave a graph that takes a batch to it, even where that is not known
                to compute each row by itself.
            is_compiled_once: wait for a process that compiles the same program.

        Raises:
            ModelError: no model, or a damaged one.
            OptionError: no such signature or device.
        """
        begun = time.perf_counter()
        if not is_as_it_stands:
            options = DelegateOptions.of(options, rebatch=True)
        self.delegate = JaxDelegate(options)
        if self.delegate.programs is not None:
            self.delegate.programs.compiles_once = is_compiled_once
        self._interpreter = _opened(model, self.delegate)
        self.name = "<bytes>" if isinstance(model, bytes) else os.path.basename(os.fspath(model))
        self.ends: Ends = ends_of(self._interpreter, signature)
        self._sizes = BatchSizes(batch_sizes)
        self._is_one_by_one = not self.ends.hold_batch
        self._in_flight = 1 if self.delegate.target.platform == "cpu" else 2
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.notes: tuple[str, ...] = ()
        self.runs = self.padded = 0
        self.seconds = 0.0
        self.open_seconds = time.perf_counter() - begun

    def run(self, rows: Rows) -> dict[str, np.ndarray]:
        """Run n >= 1 rows.

        Args:
            rows: of each input [n, ...], checked.

        Returns:
            Of each output [n, ...]; object [n] of arrays where rows have different shapes.

        Raises:
            InterpreterError: an operator failed, or the device has no memory (DeviceMemoryError).
            DelegationError: the options require full delegation, and it is impossible.
        """
        count = len(next(iter(rows.values())))
        size = 1 if self._is_one_by_one else self._size(rows, count)
        waiting: deque[Callable[[], list[np.ndarray]]] = deque()
        done: list[list[np.ndarray]] = []
        for first in range(0, count, size):
            chunk = {name: array[first : first + size] for name, array in rows.items()}
            waiting.append(self._start(chunk, size))
            if len(waiting) >= self._in_flight:
                done.append(self._timed(waiting.popleft()))
        done += [self._timed(results) for results in waiting]
        columns = zip(*done, strict=True)
        return {
            end.name: joined(parts) for end, parts in zip(self.ends.outputs, columns, strict=True)
        }

    def no_rows(self) -> dict[str, np.ndarray]:
        """The outputs of none: [0, ...]."""
        shapes = {end: [max(n, 0) for n in self.ends.row_shape(end)] for end in self.ends.outputs}
        return {end.name: np.zeros((0, *shape), end.dtype) for end, shape in shapes.items()}

    def _size(self, rows: Rows, count: int) -> int:
        """The size for so many rows, allocated; 1 where the model takes no batch."""
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
        self._allocate(rows, 1)  # what is wrong with a single row, too, is an error
        self._is_one_by_one = True
        note = f"{self.name} runs row by row: {reason}"
        self.notes = (*self.notes, note)
        _LOGGER.warning("%s", note)
        return 1

    def _why_not_batch(self, size: int) -> str | None:
        host = self._interpreter._host(self.ends.subgraph)
        for end in self.ends.outputs:
            shape = host.spec(end.index).shape
            if shape is not None and shape[:1] != (size,):
                return f"batches of {size} have an output {end.name!r} of {list(shape)}"
        return None

    def _allocate(self, rows: Rows, size: int) -> None:
        """Resize and allocate, where the shapes are others than before."""
        first = (size,) if self.ends.hold_batch else ()
        shapes = {name: (*first, *array.shape[1:]) for name, array in rows.items()}
        if shapes == self._shapes:
            return
        begun = time.perf_counter()
        self._shapes = {}
        for end in self.ends.inputs:
            self._interpreter._resize(self.ends.subgraph, end.index, shapes[end.name], strict=False)
        if self.ends.subgraph == 0:
            self._interpreter.allocate_tensors()
        else:
            self._interpreter._host(self.ends.subgraph).allocate()
        self._shapes = shapes
        self.open_seconds += time.perf_counter() - begun

    def _start(self, rows: Rows, size: int) -> Callable[[], list[np.ndarray]]:
        """Begin to run up to `size` rows; what it answers waits for their outputs."""
        self._allocate(rows, size)
        begun = time.perf_counter()
        count = len(next(iter(rows.values())))
        inputs = {end.index: self._filled(rows[end.name], size) for end in self.ends.inputs}
        if self.ends.has_variables:
            self._interpreter.reset_all_variables()  # no row knows of those before it
        results = self._interpreter._start(inputs, self.ends.subgraph)
        self.runs += 1
        self.padded += size - count
        self.seconds += time.perf_counter() - begun

        def wait() -> list[np.ndarray]:
            found = dict(zip(self._subgraph_outputs, results(), strict=True))
            return [self._items(found[end.index], end, count) for end in self.ends.outputs]

        return wait

    @property
    def _subgraph_outputs(self) -> Sequence[int]:
        return self._interpreter._model.subgraphs[self.ends.subgraph].outputs

    def _filled(self, array: np.ndarray, size: int) -> np.ndarray:
        """Rows [n, ...] as the model takes them: the last one again until there are `size`."""
        if not self.ends.hold_batch:
            return (
                array[0] if isinstance(array[0], np.ndarray) else np.asarray(array[0], array.dtype)
            )
        if len(array) == size:
            return np.ascontiguousarray(array)
        return np.concatenate([array, np.repeat(array[-1:], size - len(array), axis=0)])

    def _items(self, array: np.ndarray, end: End, count: int) -> np.ndarray:
        """Of an output the first `count` rows [count, ...]."""
        if end.dtype == object and array.dtype != object:
            array = array.astype(object)
        is_whole = self._is_one_by_one and (not self.ends.hold_batch or array.shape[:1] != (1,))
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


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays [k, ...] one after the other; object [n] of arrays if their rows differ in shape."""
    if len(parts) == 1:
        return parts[0]
    if len({part.shape[1:] for part in parts}) == 1:
        return np.concatenate(parts)
    rows = [row for part in parts for row in part]
    array = np.empty(len(rows), object)
    array[:] = rows
    return array
