"""One batch size of a served graph: its host and its input buffers."""

import itertools
import time
from collections.abc import Mapping, Sequence

import numpy as np

from jaxdelegate.host_memory import aligned_zeros
from jaxdelegate.runtime.subgraph import SubgraphRunner
from jaxdelegate.runtime.tensor_details import to_api_dtype
from jaxdelegate.serve.metrics import RunTimes
from jaxdelegate.serve.v2.signatures import ServedGraph

Arrays = Mapping[str, np.ndarray]
Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]  # the inputs', in the graph's order


class BatchProgram:
    """Runs requests together, as one batch of a fixed size. Not thread-safe."""

    def __init__(self, host: SubgraphRunner, graph: ServedGraph, size: int | None) -> None:
        """Compile nothing yet; `host` runs the graph's subgraph only for this program.

        The size is in items of the batch. None: the graph does not run in batches, and a run is one
        request with arrays of any shapes.
        """
        self.host, self._graph, self.size = host, graph, size
        self._shapes: Shapes | None = None  # what the buffers have
        self._buffers: list[np.ndarray] = []
        self._filled = 0  # rows of the buffers that may not be zeros

    def declared(self) -> Shapes:
        """The inputs' shapes that the file declares, with this batch size."""
        shapes = (tensor.shape for tensor in self._graph.inputs.values())
        return tuple(shape if self.size is None else (self.size, *shape[1:]) for shape in shapes)

    def output_shapes(self) -> tuple[Shape | None, ...]:
        """The outputs' shapes, after `prepare`; None for one that depends on data."""
        specs = [self.host.spec(tensor.index) for tensor in self._graph.outputs.values()]
        return tuple(None if spec.is_dynamic else spec.shape for spec in specs)

    def zeros(self) -> Arrays:
        """A request for a whole batch of zeros or empty strings, after `prepare`."""
        return {
            name: aligned_zeros(buffer.shape, buffer.dtype)
            for name, buffer in zip(self._graph.inputs, self._buffers, strict=True)
        }

    def prepare(self, shapes: Shapes) -> None:
        """Plan and compile for these input shapes, and allocate input buffers of zeros."""
        if shapes == self._shapes:
            return
        self._shapes = None  # if it fails, the next run prepares again
        indices = [tensor.index for tensor in self._graph.inputs.values()]
        for index, shape in zip(indices, shapes, strict=True):
            self.host.resize(index, shape)
        self.host.allocate()
        self._buffers = [
            aligned_zeros(shape, self.host.spec(index).dtype)
            for index, shape in zip(indices, shapes, strict=True)
        ]
        self._filled, self._shapes = 0, shapes

    def run(self, requests: Sequence[Arrays]) -> tuple[list[Arrays], RunTimes]:
        """Run requests, after `prepare`: items of the same shapes, together at most `size`.

        The results are views of the batch's outputs.
        """
        begin = time.monotonic()
        bounds = self._write(requests)
        written = time.monotonic()
        self.host.invoke(True)
        outputs = {name: self._output(t.index) for name, t in self._graph.outputs.items()}
        computed = time.monotonic()
        results = self._split(outputs, bounds)
        end = time.monotonic()
        return results, RunTimes(written - begin, computed - written, end - computed)

    def _write(self, requests: Sequence[Arrays]) -> list[tuple[int, int]]:
        """Write all inputs; returns the first row and the end of each request."""
        inputs = list(zip(self._graph.inputs.items(), self._buffers, strict=True))
        if self.size is None:
            (request,) = requests
            for (name, tensor), buffer in inputs:
                buffer[...] = request[name]
                self.host.assign(tensor.index, buffer)
            return [(0, 0)]
        first = next(iter(self._graph.inputs))
        ends = list(itertools.accumulate(len(request[first]) for request in requests))
        bounds = list(zip((0, *ends[:-1]), ends, strict=True))
        for (name, tensor), buffer in inputs:
            for request, (start, end) in zip(requests, bounds, strict=True):
                buffer[start:end] = request[name]
            if self._filled > ends[-1]:
                buffer[ends[-1] : self._filled] = b"" if buffer.dtype.hasobject else 0
            self.host.assign(tensor.index, buffer)
        self._filled = ends[-1]
        return bounds

    def _output(self, index: int) -> np.ndarray:
        """An output in host memory that later runs do not change."""
        tensor, array = self.host.subgraph.tensors[index], self.host.array(index)
        is_buffer = any(np.may_share_memory(array, buffer) for buffer in self._buffers)
        is_packed = tensor.dtype.kind == "V"  # integers of 2 and 4 bits
        return to_api_dtype(tensor, array) if is_buffer or is_packed else array

    def _split(
        self, outputs: dict[str, np.ndarray], bounds: Sequence[tuple[int, int]]
    ) -> list[Arrays]:
        if self.size is None or bounds == [(0, self.size)]:
            return [outputs]
        return [
            {name: array[start:end] for name, array in outputs.items()} for start, end in bounds
        ]
