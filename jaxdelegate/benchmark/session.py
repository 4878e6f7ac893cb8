"""One signature of an open model, with the same interface for jaxdelegate's and stock interpreters.

Nothing is copied between `set` and `output`, so that only `invoke` is timed, as in TFLite's tool.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.delegate import device_arrays
from jaxdelegate.errors import DelegationError, InterpreterError, JaxDelegateError, OptionError
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.text import printable

_LOGGER = logging.getLogger("jaxdelegate")

Details = Mapping[str, Any]


class Session:
    """Runs one subgraph of an interpreter. Stock interpreters' errors become InterpreterErrors."""

    def __init__(self, interpreter: Any, signature: str = "") -> None:
        """Find the subgraph; `signature` may be empty if the model has at most one."""
        self.interpreter = interpreter
        self.signature = signature
        self._keys = list(interpreter.get_signature_list())
        self._check_signature()
        self._tries_rebatch = False  # without being requested
        self._is_stock = not isinstance(interpreter, Interpreter)
        kind = _StockSubgraph if self._is_stock else _OwnSubgraph
        self._subgraph: Any = kind(interpreter, signature)

    def _check_signature(self) -> None:
        if self.signature and self.signature not in self._keys:
            known = printable(", ".join(self._keys)) or "none"
            raise OptionError(
                f"signature_to_run_for: the model has no {self.signature!r}; it has: {known}"
            )
        if not self.signature and len(self._keys) > 1:
            raise OptionError(
                "signature_to_run_for: the model has several signatures; pass one of: "
                + printable(", ".join(self._keys))
            )

    @property
    def host(self) -> str:
        """The interpreter: "jaxdelegate" or "litert"."""
        return "litert" if self._is_stock else "jaxdelegate"

    @property
    def subgraph(self) -> int:
        return int(self._subgraph.index)

    @property
    def inputs(self) -> list[Details]:
        return self._details(self._subgraph.inputs)

    @property
    def outputs(self) -> list[Details]:
        return self._details(self._subgraph.outputs)

    def _details(self, indices: Sequence[int]) -> list[Details]:
        return [self.interpreter._get_tensor_details(i, self.subgraph) for i in indices]

    def resize(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Resize the inputs; call `allocate` next."""
        inputs = self.inputs
        if len(shapes) != len(inputs):
            raise OptionError(f"input_layer: the model has {len(inputs)} inputs, got {len(shapes)}")
        for detail, shape in zip(inputs, shapes, strict=True):
            if len(detail["shape"]) not in (0, len(shape)):
                raise OptionError(
                    f"input_layer_shape: input {detail['name']!r} has {len(detail['shape'])} "
                    f"dimensions, got {','.join(map(str, shape))}"
                )
            self._subgraph.resize(int(detail["index"]), shape)

    def resize_batch(self, size: int) -> None:
        """Set the first dimension of the inputs where it is 1, or of all inputs if none has 1."""
        inputs = [d for d in self.inputs if len(d["shape"])]
        inputs = [d for d in inputs if d["shape"][0] == 1] or inputs
        if not inputs:
            raise OptionError(f"batch_size: no input has a first dimension to set to {size}")
        for detail in inputs:
            shape = (size, *(int(n) for n in detail["shape"][1:]))
            self._subgraph.resize(int(detail["index"]), shape)
        if size != 1 and any(d["shape_signature"][0] == 1 for d in inputs):
            self._tries_rebatch = not self._is_stock and self.interpreter._set_rebatch(True)

    @property
    def why_rebatched(self) -> str | None:
        """The reason why the batch runs as single runs; None: it runs at once."""
        if self._is_stock:
            return None
        reason: str | None = self.interpreter._why_rebatched(self.subgraph)
        return reason

    def allocate(self) -> None:
        try:
            self._guarded(self._subgraph.allocate)
        except DelegationError as error:
            if not self._tries_rebatch:
                raise
            _LOGGER.warning("%s\nThe graph is resized without rebatching.", error)
            self.interpreter._set_rebatch(False)
            self._tries_rebatch = False
            self._guarded(self._subgraph.allocate)

    def on_device(self, arrays: Sequence[np.ndarray], device: Any) -> list[Any]:
        """The inputs, one array for each, as arrays on a jax.Device, for `set`."""
        self._check_own("device_inputs", device)
        return [device_arrays.placed(array, device) for array in arrays]

    def start(self, arrays: Sequence[np.ndarray], device: Any) -> Callable[[], Any]:
        """Start a run on host arrays, which must not change until the returned function returns."""
        self._check_own("inflight", device)
        return functools.partial(self._guarded, self._guarded(self._subgraph.start, arrays))

    def _check_own(self, option: str, device: Any) -> None:
        if device is None or self._is_stock:
            actual = "no JaxDelegate" if device is None else "LiteRT's interpreter"
            raise OptionError(
                f"{option}: needs JaxDelegate in jaxdelegate's interpreter, got {actual}; omit the "
                "flag"
            )

    def set(self, arrays: Sequence[Any]) -> None:
        """Set the inputs to host arrays or to arrays from `on_device`."""
        for index, array in zip(self._subgraph.inputs, arrays, strict=True):
            self._guarded(self._subgraph.set, index, array)

    def invoke(self) -> None:
        self._guarded(self._subgraph.invoke)

    def output(self, index: int) -> np.ndarray:
        """A copy of an output tensor."""
        return np.asarray(self._guarded(self._subgraph.get, index))

    def _guarded(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except JaxDelegateError:
            raise
        except (RuntimeError, ValueError) as error:  # what stock interpreters and XLA raise
            raise InterpreterError(f"{self.host}: {str(error).strip()}") from error


class _OwnSubgraph:
    def __init__(self, interpreter: Interpreter, signature: str) -> None:
        self._interpreter = interpreter
        definitions = {s.key: s for s in interpreter._model.signatures}
        self.index = definitions[signature].subgraph if signature else 0
        subgraph = interpreter._model.subgraphs[self.index]
        self.inputs, self.outputs = subgraph.inputs, subgraph.outputs

    def resize(self, index: int, shape: tuple[int, ...]) -> None:
        self._interpreter._resize(self.index, index, shape, strict=False)

    def allocate(self) -> None:
        self._interpreter._runner(self.index).allocate()

    def set(self, index: int, array: Any) -> None:
        self._interpreter._set(self.index, index, array)

    def start(self, arrays: Sequence[np.ndarray]) -> Callable[[], Any]:
        inputs = dict(zip(self.inputs, arrays, strict=True))
        return self._interpreter._start(inputs, self.index)

    def invoke(self) -> None:
        self._interpreter._invoke(self.index, wait=True)

    def get(self, index: int) -> np.ndarray:
        return self._interpreter.get_tensor(index, self.index)


class _StockSubgraph:
    """A signature's subgraph in the stock interpreter, with the calls of its SignatureRunner."""

    def __init__(self, interpreter: Any, signature: str) -> None:
        self._wrapper = interpreter._interpreter
        self.index = 0
        self.inputs = [int(d["index"]) for d in interpreter.get_input_details()]
        self.outputs = [int(d["index"]) for d in interpreter.get_output_details()]
        if signature:
            definition = interpreter._get_full_signature_list()[signature]
            self.index = self._wrapper.GetSubgraphIndexFromSignature(signature)
            if self.index:
                self.inputs = list(definition["inputs"].values())
                self.outputs = list(definition["outputs"].values())

    def resize(self, index: int, shape: tuple[int, ...]) -> None:
        self._wrapper.ResizeInputTensor(index, np.array(shape, np.int32), False, self.index)

    def allocate(self) -> None:
        self._wrapper.AllocateTensors(self.index)

    def set(self, index: int, array: np.ndarray) -> None:
        self._wrapper.SetTensor(index, array, self.index)

    def invoke(self) -> None:
        self._wrapper.Invoke(self.index)

    def get(self, index: int) -> np.ndarray:
        return np.asarray(self._wrapper.GetTensor(index, self.index))
