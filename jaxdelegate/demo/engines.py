"""The ways to run one network that the demo compares: numpy, LiteRT, XLA in several dtypes.

Nothing here knows a network or a picture.
"""

import dataclasses
import hashlib
import importlib
import statistics
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.errors import ModelError
from jaxdelegate.interpreter import Interpreter

MAX_TENSOR_BYTES = 256 << 20

_LONGEST = 0.5  # seconds that the timed invokes may take together; one is always timed
_REFERENCE_REPORT = "The numpy reference runs every operator. It has no delegate."
_LITERT_REPORT = (
    "LiteRT's interpreter with its defaults: it gives to XNNPACK what XNNPACK can run, and runs "
    "the rest with its own kernels. It does not report which."
)


@dataclasses.dataclass(frozen=True)
class Engine:
    """One way to run a network."""

    name: str
    options: Mapping[str, str] | None = None  # of JaxDelegate; None: no delegate
    is_litert: bool = False
    is_quantized: bool = False  # runs the int8 network where there is one

    def open(self, content: bytes) -> "Opened":
        """Load the network and allocate its tensors, which compiles it.

        Args:
            content: a .tflite file.

        Raises:
            JaxDelegateError: it is damaged, too large, or not for this engine.
            RuntimeError: LiteRT cannot run it.
        """
        start = time.perf_counter()
        if self.is_litert:
            interpreter, report = _litert(content), _LITERT_REPORT
        elif self.options is None:
            interpreter, report = _ours(content), _REFERENCE_REPORT
        else:
            delegate = JaxDelegate(self.options)
            interpreter = _ours(content, delegate)
        interpreter.allocate_tensors()
        ready = 1e3 * (time.perf_counter() - start)
        if self.options is not None:
            report = _report(delegate)
        return Opened(interpreter, report, ready)


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
    """What one engine made of one set of inputs."""

    outputs: list[np.ndarray]
    milliseconds: float  # median of the timed invokes


class Opened:
    """A network in an engine, ready to run. Threads may share it: they take turns."""

    def __init__(self, interpreter: Any, report: str, ready_milliseconds: float) -> None:
        """Keep an interpreter whose tensors are allocated."""
        self.report = report  # remarks, and after an empty line where each operator runs
        self.ready_milliseconds = ready_milliseconds  # load, partition, compile
        self.inputs: list[dict[str, Any]] = interpreter.get_input_details()
        self.outputs: list[dict[str, Any]] = interpreter.get_output_details()
        self._interpreter = interpreter
        self._lock = threading.Lock()

    def run(self, inputs: Sequence[np.ndarray], *, repeats: int = 20) -> Run:
        """Invoke once to warm up and for the outputs, then up to `repeats` times for the latency.

        Args:
            inputs: an array for each input, of its shape and dtype.
            repeats: how often at most; 0: the first invoke is the one that is timed.

        Raises:
            JaxDelegateError: the inputs do not fit, or an operator failed.
            ValueError, RuntimeError: the same in LiteRT.
        """
        with self._lock:
            for detail, array in zip(self.inputs, inputs, strict=True):
                self._interpreter.set_tensor(detail["index"], array)
            times = [self._timed()]
            outputs = [self._interpreter.get_tensor(d["index"]) for d in self.outputs]
            end = time.perf_counter() + _LONGEST - times[0]
            while len(times) <= repeats and time.perf_counter() < end:
                times.append(self._timed())
        return Run(outputs, statistics.median(times[1:] or times) * 1e3)

    def _timed(self) -> float:
        start = time.perf_counter()
        self._interpreter.invoke()
        return time.perf_counter() - start


class Engines:
    """Opened networks, the last used ones of them: opening one again takes a compilation."""

    def __init__(self, size: int = 8) -> None:
        """Keep so many."""
        self._size = size
        self._lock = threading.Lock()
        self._slots: OrderedDict[tuple[bytes, str], _Slot] = OrderedDict()

    def open(self, content: bytes, engine: Engine) -> Opened:
        """The network in the engine. Threads that ask for the same one wait for one opening.

        Raises:
            JaxDelegateError, RuntimeError: as of `Engine.open`. The next call tries again.
        """
        key = (hashlib.sha256(content).digest(), engine.name)
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
            while len(self._slots) > self._size:
                self._slots.popitem(last=False)
        with slot.lock:
            if slot.opened is None:
                slot.opened = engine.open(content)
            return slot.opened

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._slots)


@dataclasses.dataclass
class _Slot:
    """The place of an opened network, there before it is opened so that others can wait."""

    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    opened: Opened | None = None


def _ours(content: bytes, *delegates: JaxDelegate) -> Interpreter:
    return Interpreter(
        model_content=content,
        experimental_delegates=delegates,
        max_tensor_bytes=MAX_TENSOR_BYTES,
    )


def _report(delegate: JaxDelegate) -> str:
    """The summary, remarks, an empty line, the table of operators."""
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
