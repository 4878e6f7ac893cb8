"""The two sides of a comparison, which answer inputs: the one under test, and the reference."""

import contextlib
import dataclasses
import importlib
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxdelegate.comparison.rounding import round_to, rounded_file
from jaxdelegate.errors import InterpreterError, ModelError, OptionError
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.model.source import interpreter_arguments, open_source
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.simple_delegate import Node, SimpleDelegate, SimpleDelegateKernel
from jaxdelegate.text import either

ModelPath = str | os.PathLike[str] | bytes
Arrays = Sequence[np.ndarray]
Convert = Callable[[Arrays], Arrays]

# Reference -> the stock interpreter's OpResolverType; None: the numpy kernels.
REFERENCES: dict[str, str | None] = {
    "numpy": None,
    "litert_ref": "BUILTIN_REF",
    "litert_builtin": "BUILTIN_WITHOUT_DEFAULT_DELEGATES",
    "litert_xnnpack": "AUTO",
}


@dataclasses.dataclass(frozen=True)
class Test:
    """The side under test: an interpreter with delegates."""

    __test__ = False  # for pytest: not a class of tests

    open_with: Callable[..., Any]  # (delegates, *, preserve_all_tensors) -> an interpreter
    delegates: Sequence[Any] = ()
    label: str = ""

    def open(self, *, preserve_all_tensors: bool = False) -> Any:
        with _without_warnings():
            return self.open_with(self.delegates, preserve_all_tensors=preserve_all_tensors)

    @property
    def name(self) -> str:
        names = [getattr(d, "name", type(d).__name__) for d in self.delegates]
        return self.label or " + ".join(map(str, names)) or "no delegate"

    @property
    def can_be_restricted(self) -> bool:
        return bool(self.delegates) and len(self.own_delegates()) == len(self.delegates)

    @property
    def contexts(self) -> list[LoweringContext]:
        """How those of the delegates that lower operators compute."""
        contexts = (getattr(d, "lowering_context", None) for d in self.delegates)
        return [context for context in contexts if context is not None]

    @property
    def is_reduced(self) -> bool:
        policies = [context.precision for context in self.contexts]
        return any(p.is_reduced or p.dot_precision != "highest" for p in policies)

    @property
    def operand(self) -> np.dtype | None:
        """The reduced dtype of a product's factors; None: float32 or tensorfloat32."""
        policies = (context.precision for context in self.contexts)
        return next((policy.operand for policy in policies if policy.is_reduced), None)

    @property
    def remarks(self) -> tuple[str, ...]:
        remarks = (getattr(d, "remark", None) for d in self.delegates)
        return tuple(remark for remark in remarks if remark is not None)

    def restricted(self, nodes: Iterable[int] | None = None) -> "Test":
        """This side with delegates limited to some operators (None: all), which log nothing."""
        return dataclasses.replace(self, delegates=[Restricted(d, nodes) for d in self.delegates])

    def own_delegates(self) -> list[SimpleDelegate]:
        return [d for d in self.delegates if isinstance(d, SimpleDelegate)]

    def nodes(self, delegate: SimpleDelegate) -> frozenset[int]:
        """The operators of the main subgraph that a delegate took at its latest partitioning."""
        try:
            report = delegate.report()
        except LookupError:
            return frozenset()
        return frozenset(node.index for node in report.delegated)


def delegated(model: ModelPath, delegates: Sequence[SimpleDelegate]) -> Test:
    def open_with(delegates: Sequence[Any], *, preserve_all_tensors: bool = False) -> Interpreter:
        return Interpreter(
            **interpreter_arguments(model),
            experimental_delegates=delegates,
            experimental_preserve_all_tensors=preserve_all_tensors,
        )

    return Test(open_with, tuple(delegates))


def open_reference(kind: str, model: ModelPath, *, preserve_all_tensors: bool = False) -> Any:
    """A stock interpreter runs on one thread."""
    if kind not in REFERENCES:
        raise OptionError(f"reference: expected one of {', '.join(REFERENCES)}, got {kind!r}")
    arguments: dict[str, Any] = {"experimental_preserve_all_tensors": preserve_all_tensors}
    resolver = REFERENCES[kind]
    if resolver is None:
        return Interpreter(**arguments, **interpreter_arguments(model))
    arguments |= interpreter_arguments(model, stock=True)
    stock = importlib.import_module("ai_edge_litert.interpreter")
    arguments["experimental_op_resolver_type"] = stock.OpResolverType[resolver]
    try:
        with _without_warnings():
            return stock.Interpreter(num_threads=1, **arguments)
    except ValueError as error:
        others = either([name for name in REFERENCES if name != kind])
        raise ModelError(
            f"{kind}: LiteRT's kernels cannot run the model: {_first_line(error)} "
            f"Choose another reference: {others}."
        ) from error


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*experimental_preserve_all_tensors", UserWarning)
        yield


class Runner:
    """Runs one interpreter on arrays and records latencies; errors name the side."""

    def __init__(
        self, side: str, interpreter: Any, to_inputs: Convert = list, to_results: Convert = list
    ) -> None:
        """Convert a run's arrays to the interpreter's inputs, and its outputs to what is compared.

        `side` names it in errors.
        """
        self._side, self.interpreter = side, interpreter
        self._to_inputs, self._to_results = to_inputs, to_results
        self.latencies: list[float] = []  # seconds

    def __call__(self, arrays: Arrays, invocations: int = 1) -> None:
        interpreter, arrays = self.interpreter, self._to_inputs(arrays)
        try:
            self._allocate(arrays)
            for detail, array in zip(interpreter.get_input_details(), arrays, strict=True):
                interpreter.set_tensor(detail["index"], array)
            for _ in range(invocations):
                start = time.perf_counter()
                interpreter.invoke()
                self.latencies.append(time.perf_counter() - start)
        except (RuntimeError, ValueError) as error:  # what stock interpreters raise
            raise InterpreterError(f"{self._side}: {_first_line(error)}") from error

    def _allocate(self, arrays: Arrays) -> None:
        interpreter, is_resized = self.interpreter, not self.latencies
        for detail, array in zip(interpreter.get_input_details(), arrays, strict=True):
            if tuple(detail["shape"]) != array.shape:
                interpreter.resize_tensor_input(detail["index"], array.shape)
                is_resized = True
        if is_resized:
            interpreter.allocate_tensors()

    def all(self, runs: Iterable[Arrays]) -> list[Arrays]:
        results = []
        for arrays in runs:
            self(arrays)
            results.append(self.outputs())
        return results

    def value(self, index: int) -> np.ndarray | None:
        """A tensor's value; None if the interpreter did not keep it."""
        try:
            return np.asarray(self.interpreter.get_tensor(index))
        except ValueError:
            return None

    def outputs(self) -> Arrays:
        details = self.interpreter.get_output_details()
        try:
            got = [np.asarray(self.interpreter.get_tensor(d["index"])) for d in details]
        except (RuntimeError, ValueError) as error:
            raise InterpreterError(f"{self._side}: outputs: {_first_line(error)}") from error
        return self._to_results(got)


@dataclasses.dataclass(frozen=True)
class Reference:
    """The side that has the expected results: kernels, by a key of `REFERENCES`, and a model."""

    kind: str
    model: ModelPath
    to_inputs: Convert = list  # for its `Runner`
    to_results: Convert = list

    def runner(self, *, preserve_all_tensors: bool = False) -> Runner:
        interpreter = open_reference(
            self.kind, self.model, preserve_all_tensors=preserve_all_tensors
        )
        return Runner(f"reference ({self.kind})", interpreter, self.to_inputs, self.to_results)

    def others(self) -> list["Reference"]:
        """LiteRT's other kernels."""
        kinds = (kind for kind, resolver in REFERENCES.items() if resolver and kind != self.kind)
        return [dataclasses.replace(self, kind=kind) for kind in kinds]

    def rounded(self, dtype: np.dtype) -> "Reference":
        """Round the inputs and the constant factors of products to `dtype`."""
        return dataclasses.replace(
            self,
            model=rounded_file(bytes(open_source(self.model).content), dtype),
            to_inputs=lambda arrays: [round_to(a, dtype) for a in self.to_inputs(arrays)],
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class Restricted(SimpleDelegate):
    """Another delegate for some nodes only; it logs nothing."""

    def __init__(self, delegate: SimpleDelegate, nodes: Iterable[int] | None = None) -> None:
        super().__init__()
        self._delegate = delegate
        self._nodes = None if nodes is None else frozenset(nodes)
        self.name = delegate.name
        self.options = delegate.options
        self.device_name = delegate.device_name
        self.lowering_context = getattr(delegate, "lowering_context", None)

    def initialize(self, context: Any) -> None:
        self._delegate.initialize(context)

    def is_node_supported(self, node: Node) -> bool:
        return self.why_not(node) is None

    def why_not(self, node: Node) -> str | None:
        """The delegate's reason, or "not chosen"."""
        is_chosen = self._nodes is None or node.index in self._nodes
        return self._delegate.why_not(node) if is_chosen else "not chosen"

    def create_kernel(self) -> SimpleDelegateKernel:
        return self._delegate.create_kernel()
