"""One signature of an open model, with the same interface for jaxdelegate's and stock interpreters.

Nothing is copied between `set` and `output`, so that only `invoke` is timed, as in TFLite's tool.
"""

import dataclasses
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
        calls_of = _stock_subgraph if self._is_stock else _own_subgraph
        self._subgraph = calls_of(interpreter, signature)

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
        return self._subgraph.index

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
        self._check_own("device_inputs", device)
        return [device_arrays.placed(array, device) for array in arrays]

    def start(self, arrays: Sequence[np.ndarray], device: Any) -> Callable[[], Any]:
        """Start a run on host arrays, which must not change until the returned function returns."""
        self._check_own("inflight", device)
        inputs = dict(zip(self._subgraph.inputs, arrays, strict=True))
        wait = self._guarded(self.interpreter._start, inputs, self.subgraph)
        return functools.partial(self._guarded, wait)

    def _check_own(self, option: str, device: Any) -> None:
        if device is None or self._is_stock:
            actual = "no JaxDelegate" if device is None else "LiteRT's interpreter"
            raise OptionError(
                f"{option}: needs JaxDelegate in jaxdelegate's interpreter, got {actual}; omit the "
                "flag"
            )

    def set(self, arrays: Sequence[Any]) -> None:
        for index, array in zip(self._subgraph.inputs, arrays, strict=True):
            self._guarded(self._subgraph.set, index, array)

    def invoke(self) -> None:
        self._guarded(self._subgraph.invoke)

    def output(self, index: int) -> np.ndarray:
        return np.asarray(self._guarded(self._subgraph.get, index))

    def _guarded(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except JaxDelegateError:
            raise
        except (RuntimeError, ValueError) as error:  # what stock interpreters and XLA raise
            raise InterpreterError(f"{self.host}: {str(error).strip()}") from error


@dataclasses.dataclass(frozen=True)
class _Subgraph:
    index: int
    inputs: Sequence[int]
    outputs: Sequence[int]
    resize: Callable[[int, tuple[int, ...]], Any]
    allocate: Callable[[], Any]
    set: Callable[[int, Any], Any]
    invoke: Callable[[], Any]
    get: Callable[[int], Any]


def _own_subgraph(interpreter: Interpreter, signature: str) -> _Subgraph:
    definitions = {s.key: s for s in interpreter._model.signatures}
    index = definitions[signature].subgraph if signature else 0
    subgraph = interpreter._model.subgraphs[index]
    return _Subgraph(
        index,
        subgraph.inputs,
        subgraph.outputs,
        resize=functools.partial(interpreter._resize, index, strict=False),
        allocate=lambda: interpreter._runner(index).allocate(),
        set=functools.partial(interpreter._set, index),
        invoke=functools.partial(interpreter._invoke, index, wait=True),
        get=functools.partial(interpreter.get_tensor, subgraph_index=index),
    )


def _stock_subgraph(interpreter: Any, signature: str) -> _Subgraph:
    """The calls are those of the stock interpreter's SignatureRunner."""
    wrapper, index = interpreter._interpreter, 0
    inputs = [int(d["index"]) for d in interpreter.get_input_details()]
    outputs = [int(d["index"]) for d in interpreter.get_output_details()]
    if signature:
        definition = interpreter._get_full_signature_list()[signature]
        index = wrapper.GetSubgraphIndexFromSignature(signature)
        if index:
            inputs, outputs = (list(definition[end].values()) for end in ("inputs", "outputs"))
    return _Subgraph(
        index,
        inputs,
        outputs,
        resize=lambda i, shape: wrapper.ResizeInputTensor(
            i, np.array(shape, np.int32), False, index
        ),
        allocate=functools.partial(wrapper.AllocateTensors, index),
        set=lambda i, array: wrapper.SetTensor(i, array, index),
        invoke=functools.partial(wrapper.Invoke, index),
        get=lambda i: wrapper.GetTensor(i, index),
    )
