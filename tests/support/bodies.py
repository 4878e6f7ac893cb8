"""Models of one operator with a body, and bodies for them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.op_lowering.options import (
    IfOptions,
    Options,
    StablehloCompareOptions,
    StablehloComparisonDirection,
    StablehloComparisonType,
)
from jaxdelegate.testing.builder import ModelBuilder, SubgraphBuilder
from jaxdelegate.testing.case import Arg
from tests.support.dtypes import STABLEHLO

# (model, the body's subgraph, dtypes of the results): adds tensors and operators
Body = Callable[[ModelBuilder, SubgraphBuilder, Sequence[np.dtype]], None]

DTYPES = [d for d in STABLEHLO if d != np.complex128]
ORDERED = [d for d in DTYPES if d.kind != "c"]

# Why stock LiteRT cannot run a case.
NO_KERNEL = "LiteRT has no kernel for this operator"
NO_DTYPE = "LiteRT has no kernel for this dtype"
NO_BODY = "LiteRT takes other bodies"

_Dir = StablehloComparisonDirection
EQ, NE = _Dir.STABLEHLO_COMPARISON_DIRECTION_EQ, _Dir.STABLEHLO_COMPARISON_DIRECTION_NE
LT, LE = _Dir.STABLEHLO_COMPARISON_DIRECTION_LT, _Dir.STABLEHLO_COMPARISON_DIRECTION_LE
GT, GE = _Dir.STABLEHLO_COMPARISON_DIRECTION_GT, _Dir.STABLEHLO_COMPARISON_DIRECTION_GE
TOTAL = StablehloComparisonType.STABLEHLO_COMPARISON_TYPE_FLOAT_TOTAL_ORDER


@dataclasses.dataclass(frozen=True, eq=False)
class BodyCase:
    """A model of one operator with a body, which is subgraph 1.

    `results` have the dtypes of the outputs, and shapes for the file to declare.
    """

    name: str
    label: str
    options: Options
    inputs: Sequence[Arg]
    body: Body
    results: Sequence[np.ndarray]
    accumulated: int = 1
    litert: str | None = None  # why stock LiteRT cannot run it; None: it can

    def __str__(self) -> str:
        return f"{self.name}-{self.label}"

    def model(self) -> bytes:
        builder = ModelBuilder(str(self))
        inputs = [
            builder.constant(a.value) if a.is_const else builder.input(a.value.shape, a.value.dtype)
            for a in self.inputs
        ]
        outputs = [builder.tensor(y.shape, y.dtype) for y in self.results]
        builder.operator(self.name, inputs, outputs, self.options)
        builder.outputs(*outputs)
        self.body(builder, builder.subgraph("body"), [y.dtype for y in self.results])
        return builder.build()

    def run(self, make: Callable[..., Any]) -> list[np.ndarray]:
        """The outputs of the interpreter that `make(model_content=...)` returns."""
        interpreter = make(model_content=self.model())
        interpreter.allocate_tensors()
        feeds = [a.value for a in self.inputs if not a.is_const]
        for detail, array in zip(interpreter.get_input_details(), feeds, strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        details = interpreter.get_output_details()
        return [np.array(interpreter.get_tensor(d["index"])) for d in details]


def delegated(model_content: bytes) -> Interpreter:
    """Our interpreter with all operators delegated."""
    delegate = JaxDelegate(require_full_delegation=True)
    return Interpreter(model_content=model_content, experimental_delegates=[delegate])


def why_left(case: BodyCase) -> str:
    """Why the operator stays on the host; empty if it is delegated."""
    delegate = JaxDelegate()
    Interpreter(model_content=case.model(), experimental_delegates=[delegate])
    return delegate.report().nodes[0].reason or ""


def _scalars(body: SubgraphBuilder, dtypes: Sequence[np.dtype]) -> list[int]:
    return [body.input((), dtype) for dtype in dtypes]


def _apply(
    body: SubgraphBuilder, name: str, *inputs: int, dtype: Any, options: Options | None = None
) -> int:
    y = body.tensor((), dtype)
    body.operator(name, list(inputs), [y], options)
    return y


def _compare(
    body: SubgraphBuilder, direction: StablehloComparisonDirection, x: int, y: int, **kind: Any
) -> int:
    options = StablehloCompareOptions(direction, **kind)
    return _apply(body, "STABLEHLO_COMPARE", x, y, dtype=np.bool_, options=options)


# ---- bodies of (accumulated results, values)


def pairwise(*names: str) -> Body:
    """Result i applies an operator to arguments i and n + i."""

    def build(_model: ModelBuilder, body: SubgraphBuilder, dtypes: Sequence[np.dtype]) -> None:
        n, x = len(dtypes), _scalars(body, [*dtypes, *dtypes])
        body.outputs(
            *(_apply(body, names[i], x[i], x[n + i], dtype=dtype) for i, dtype in enumerate(dtypes))
        )

    return build


ADD, MUL = pairwise("STABLEHLO_ADD"), pairwise("STABLEHLO_MULTIPLY")
MAX, MIN = pairwise("STABLEHLO_MAXIMUM"), pairwise("STABLEHLO_MINIMUM")
AND, OR = pairwise("STABLEHLO_AND"), pairwise("STABLEHLO_OR")
SUB = pairwise("STABLEHLO_SUBTRACT")


def argument(*positions: int) -> Body:
    """Results are unchanged arguments."""

    def build(_model: ModelBuilder, body: SubgraphBuilder, dtypes: Sequence[np.dtype]) -> None:
        x = _scalars(body, [*dtypes, *dtypes])
        body.outputs(*(x[i] for i in positions))

    return build


def always(result: Any) -> Body:
    """A constant, whatever the arguments."""

    def build(_model: ModelBuilder, body: SubgraphBuilder, dtypes: Sequence[np.dtype]) -> None:
        _scalars(body, [*dtypes, *dtypes])
        body.outputs(body.constant(np.asarray(result)))

    return build


def odds(_model: ModelBuilder, body: SubgraphBuilder, dtypes: Sequence[np.dtype]) -> None:
    """a + b + a * b * 1: associative with identity 0, but not a single operator."""
    (d,) = dtypes
    a, b = _scalars(body, [d, d])
    one = body.constant(np.ones((), d))
    product = _apply(body, "STABLEHLO_MULTIPLY", a, b, dtype=d)
    product = _apply(body, "STABLEHLO_MULTIPLY", product, one, dtype=d)
    total = _apply(body, "STABLEHLO_ADD", a, b, dtype=d)
    body.outputs(_apply(body, "STABLEHLO_ADD", total, product, dtype=d))


def larger_and_where(
    _model: ModelBuilder, body: SubgraphBuilder, dtypes: Sequence[np.dtype]
) -> None:
    """The larger value with its index."""
    v, i, w, j = _scalars(body, [*dtypes, *dtypes])
    wins = _compare(body, GE, v, w)
    larger = _apply(body, "STABLEHLO_SELECT", wins, v, w, dtype=dtypes[0])
    body.outputs(larger, _apply(body, "STABLEHLO_SELECT", wins, i, j, dtype=dtypes[1]))


def branching(model: ModelBuilder, body: SubgraphBuilder, dtypes: Sequence[np.dtype]) -> None:
    """The larger value, by IF: a body that branches."""
    a, b = _scalars(body, [*dtypes, *dtypes])
    wins = _apply(body, "GREATER", a, b, dtype=np.bool_)
    y = body.tensor((), dtypes[0])
    body.operator("IF", [wins, a, b], [y], IfOptions(2, 3))
    body.outputs(y)
    for position in (0, 1):
        branch = model.subgraph("branch")
        branch.outputs(_scalars(branch, [*dtypes, *dtypes])[position])


# ---- comparators: arguments are both sides of the first operand, of the second...


def _sides(body: SubgraphBuilder, dtypes: Sequence[np.dtype]) -> list[int]:
    return _scalars(body, [d for d in dtypes for _ in range(2)])


def comparing(
    direction: StablehloComparisonDirection, key: int = 0, *, swapped: bool = False, **kind: Any
) -> Body:
    """Compare the two sides of one operand."""

    def build(_model: ModelBuilder, body: SubgraphBuilder, dtypes: Sequence[np.dtype]) -> None:
        a, b = _sides(body, dtypes)[2 * key : 2 * key + 2]
        body.outputs(_compare(body, direction, *((b, a) if swapped else (a, b)), **kind))

    return build


def builtin_less(_model: ModelBuilder, body: SubgraphBuilder, dtypes: Sequence[np.dtype]) -> None:
    """Compare by TFLite's own operator."""
    a, b = _sides(body, dtypes)[:2]
    body.outputs(_apply(body, "LESS", a, b, dtype=np.bool_))


def by_magnitude(_model: ModelBuilder, body: SubgraphBuilder, dtypes: Sequence[np.dtype]) -> None:
    """Compare absolute values."""
    keys = [_apply(body, "STABLEHLO_ABS", v, dtype=dtypes[0]) for v in _sides(body, dtypes)[:2]]
    body.outputs(_compare(body, LT, *keys))


def canonical(_model: ModelBuilder, body: SubgraphBuilder, dtypes: Sequence[np.dtype]) -> None:
    """The total order with equal zeros, as JAX exports a sort of floats."""
    zero = body.constant(np.zeros((), dtypes[0]))
    keys = []
    for v in _sides(body, dtypes):
        is_zero = _compare(body, EQ, v, zero)
        keys.append(_apply(body, "STABLEHLO_SELECT", is_zero, zero, v, dtype=dtypes[0]))
    body.outputs(_compare(body, LT, *keys, compare_type=TOTAL))


def lexicographic(_model: ModelBuilder, body: SubgraphBuilder, dtypes: Sequence[np.dtype]) -> None:
    """Ascending by the first operand, then descending by the second."""
    a, b, c, d = _sides(body, dtypes)
    then = [_compare(body, EQ, a, b), _compare(body, GT, c, d)]
    tie = _apply(body, "STABLEHLO_AND", *then, dtype=np.bool_)
    body.outputs(_apply(body, "STABLEHLO_OR", _compare(body, LT, a, b), tie, dtype=np.bool_))
