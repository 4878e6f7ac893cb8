"""The engines that the demo compares: numpy, LiteRT, XLA in several dtypes."""

import dataclasses
import importlib
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.errors import ModelError
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.lru_cache import LruCache

MAX_TENSOR_BYTES = 256 << 20

_MAX_SECONDS = 0.5  # all timed invokes together; one is always timed
_REFERENCE_REPORT = "The numpy reference runs every operator. It has no delegate."
_LITERT_REPORT = (
    "LiteRT's interpreter with its defaults: XNNPACK runs the operators that it supports, LiteRT's "
    "kernels run the others. LiteRT does not report which."
)


@dataclasses.dataclass(frozen=True, eq=False)  # hashable, whatever the options
class Engine:
    name: str
    options: Mapping[str, str] | None = None  # JaxDelegate's; None: no delegate
    is_litert: bool = False  # whether it is LiteRT's interpreter
    is_quantized: bool = False  # whether it runs the int8 network of a task

    def open(self, content: bytes) -> "Opened":
        """Load a .tflite file and allocate its tensors, which compiles it."""
        start = time.perf_counter()
        delegates = [] if self.options is None else [JaxDelegate(self.options)]
        interpreter = _litert(content) if self.is_litert else _ours(content, delegates)
        interpreter.allocate_tensors()
        ready = 1e3 * (time.perf_counter() - start)
        report = _LITERT_REPORT if self.is_litert else _REFERENCE_REPORT
        return Opened(interpreter, _report(*delegates) if delegates else report, ready)


REFERENCE = Engine("numpy reference")
LITERT = Engine("stock LiteRT", is_litert=True)
ENGINES = {
    engine.name: engine
    for engine in (
        REFERENCE,
        LITERT,
        Engine("XLA float32", {"compute_dtype": "float32"}),
        Engine("XLA float16", {"compute_dtype": "float16"}),
        Engine("XLA bfloat16", {"compute_dtype": "bfloat16"}),
        Engine("XLA exact integers", {"quant_mode": "integer"}, is_quantized=True),
    )
}


@dataclasses.dataclass(frozen=True)
class Run:
    outputs: list[np.ndarray]
    milliseconds: float  # median of the timed invokes


class Opened:
    """A network in an engine, ready to run. Threads may share it; one runs at a time."""

    def __init__(self, interpreter: Any, report: str, ready_milliseconds: float) -> None:
        self.report = report  # remarks, an empty line, and a table of where each operator runs
        self.ready_milliseconds = ready_milliseconds  # load, partition, compile
        self.inputs: list[dict[str, Any]] = interpreter.get_input_details()
        self.outputs: list[dict[str, Any]] = interpreter.get_output_details()
        self._interpreter = interpreter
        self._lock = threading.Lock()

    def run(self, inputs: Sequence[np.ndarray], *, repeats: int = 20) -> Run:
        """Invoke once for the outputs, then up to `repeats` times for the latency."""
        with self._lock:
            for detail, array in zip(self.inputs, inputs, strict=True):
                self._interpreter.set_tensor(detail["index"], array)
            times = [self._timed()]
            outputs = [self._interpreter.get_tensor(d["index"]) for d in self.outputs]
            end = time.perf_counter() + _MAX_SECONDS - times[0]
            while len(times) <= repeats and time.perf_counter() < end:
                times.append(self._timed())
        return Run(outputs, statistics.median(times[1:] or times) * 1e3)

    def _timed(self) -> float:
        start = time.perf_counter()
        self._interpreter.invoke()
        return time.perf_counter() - start


class Engines(LruCache[tuple[bytes, Engine], Opened]):
    """The last used opened networks: opening one again would compile it again."""

    def __init__(self, size: int = 8) -> None:
        super().__init__(size)

    def open(self, content: bytes, engine: Engine) -> Opened:
        """The network in the engine; after an error the next call tries again."""
        return self.get((content, engine), lambda: engine.open(content))


def _ours(content: bytes, delegates: Sequence[JaxDelegate]) -> Interpreter:
    return Interpreter(
        model_content=content,
        experimental_delegates=delegates,
        max_tensor_bytes=MAX_TENSOR_BYTES,
    )


def _report(delegate: JaxDelegate) -> str:
    from jaxdelegate.compile import precision_policy  # noqa: PLC0415 (imports jax)

    report = delegate.report()
    table = str(report).splitlines()[1 : 2 + len(report.nodes)]
    policy = delegate.lowering_context.precision
    dtype = precision_policy.remark(delegate.options, delegate.target.platform, policy)
    notes = [note for note in (report.summary(), dtype, report.remark) if note]
    return "\n".join([*notes, "", *table])


def _litert(content: bytes) -> Any:
    stock = importlib.import_module("ai_edge_litert.interpreter")
    try:
        return stock.Interpreter(model_content=content)
    except ValueError as error:
        raise ModelError(f"LiteRT: {error}") from error
