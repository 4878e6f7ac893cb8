"""How to draw operators that call subgraphs, variables, and complex numbers."""

import numpy as np

from jaxdelegate.op_lowering.dtypes import DTYPES
from jaxdelegate.op_lowering.options import (
    AddOptions,
    CallOptions,
    IfOptions,
    MulOptions,
    StablehloCaseOptions,
    StableHLOCompositeOptions,
    StablehloWhileOptions,
    TensorType,
    VarHandleOptions,
    WhileOptions,
)
from jaxdelegate.op_lowering.spec import Shape
from tests.support.graph_drawing import Drawing
from tests.support.graph_records import Graph
from tests.support.random_operators.elementwise import Draw, F

_STEPS = ("ABS", "NEG", "RELU", "TANH", "SQUARE", "FLOOR", "COS")


def _branch(d: Drawing, shape: Shape) -> Graph:
    """One float operand through one or two elementwise operators."""
    body = Drawing(d.rng)
    x = body.fed(np.zeros(shape, np.float32))
    for _ in range(body.between(1, 2)):
        x = body.same(body.one_of(_STEPS), [x], shape)
    factor = body.const(np.float32(body.one_of((0.5, 2.0, -1.5))))
    return body.graph([body.same("MUL", [x, factor], shape, MulOptions())])


def _if(d: Drawing) -> None:
    x = d.operand(F, 0, 4)
    shape = d.shape_of(x)
    output = d.add(shape, np.float32)
    d.node(
        "IF",
        [d.fed(d.chance(0.5), bool), x],
        [output],
        bodies=(_branch(d, shape), _branch(d, shape)),
        calling=lambda at: IfOptions(*at),
    )


def _case(d: Drawing) -> None:
    x = d.operand(F, 0, 4)
    shape, n = d.shape_of(x), d.between(1, 3)
    output = d.add(shape, np.float32)
    d.node(
        "STABLEHLO_CASE",
        [d.fed(d.between(-1, n), np.int32), x],
        [output],
        bodies=tuple(_branch(d, shape) for _ in range(n)),
        calling=lambda at: StablehloCaseOptions(tuple(at)),
    )


def _call(d: Drawing) -> None:
    x = d.operand(F, 0, 4)
    output = d.add(d.shape_of(x), np.float32)
    body = _branch(d, d.shape_of(x))
    d.node("CALL", [x], [output], bodies=(body,), calling=lambda at: CallOptions(at[0]))


def _composite(d: Drawing) -> None:
    x = d.operand(F, 0, 4)
    output = d.add(d.shape_of(x), np.float32)
    d.node(
        "STABLEHLO_COMPOSITE",
        [x],
        [output],
        bodies=(_branch(d, d.shape_of(x)),),
        calling=lambda at: StableHLOCompositeOptions("random.branch", at[0]),
    )


def _while(name: str) -> Draw:
    options = WhileOptions if name == "WHILE" else StablehloWhileOptions

    def draw(d: Drawing) -> None:
        x = d.operand(F, 0, 4)
        shape = d.shape_of(x)
        outputs = [d.add((), np.int32), d.add(shape, np.float32)]
        condition = Drawing(d.rng)
        i, _ = condition.fed(np.int32(0)), condition.fed(np.zeros(shape, np.float32))
        limit = condition.const(np.int32(5))
        goes_on = condition.graph([condition.result("LESS", [i, limit], (), "bool")])
        body = Drawing(d.rng)
        i, y = body.fed(np.int32(0)), body.fed(np.zeros(shape, np.float32))
        following = body.same("ADD", [i, body.const(np.int32(1))], (), AddOptions())
        y = body.same(body.one_of(("ABS", "NEG", "TANH", "COS")), [y], shape)
        d.node(
            name,
            [d.fed(d.between(2, 6), np.int32), x],
            outputs,
            bodies=(goes_on, body.graph([following, y])),
            calling=lambda at: options(*at),
        )

    return draw


def _variable(d: Drawing) -> None:
    """Write a variable, and read it."""
    x = d.operand(("float32", "int32", "int8"), 0, 4)
    shape, dtype = d.shape_of(x), d.tensors[x].dtype
    handle = d.add((1,), DTYPES[TensorType.RESOURCE])
    name = VarHandleOptions(shared_name=f"v{len(d.nodes)}")
    d.node("VAR_HANDLE", [], [handle], name, live=False)
    d.node("ASSIGN_VARIABLE", [handle, x], [], live=False)
    d.node("READ_VARIABLE", [handle], [d.add(shape, dtype)])


def _rfft2d(d: Drawing) -> None:
    rows, columns = (d.one_of((2, 4, 8, 16)) for _ in range(2))
    x = d.operand(F, 2, 4, all)
    *batch, _, _ = d.shape_of(x)
    to = (*batch, rows, columns // 2 + 1)
    operands = [x, d.const((rows, columns), np.int32)]
    y = d.result("RFFT2D", operands, to, "complex64", accumulated=rows * columns)
    if d.chance(0.7):  # the operators of complex numbers
        _part(d.one_of(("REAL", "IMAG", "COMPLEX_ABS")))(d, y)


def _part(name: str):  # type: ignore[no-untyped-def]
    def draw(d: Drawing, x: int | None = None) -> None:
        x = d.operand(("complex64",), 1, 4) if x is None else x
        d.result(name, [x], d.shape_of(x), "float32")

    return draw


OPERATORS: dict[str, Draw] = {
    "IF": _if,
    "STABLEHLO_CASE": _case,
    "CALL": _call,
    "STABLEHLO_COMPOSITE": _composite,
    "WHILE": _while("WHILE"),
    "STABLEHLO_WHILE": _while("STABLEHLO_WHILE"),
    "VAR_HANDLE": _variable,
    "ASSIGN_VARIABLE": _variable,
    "READ_VARIABLE": _variable,
    "RFFT2D": _rfft2d,
    **{name: _part(name) for name in ("REAL", "IMAG", "COMPLEX_ABS")},
}
