from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.testing import Arg, Case, f32, of, value
from tests.support.quantized import scaled

ORDER = ["LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"]
EQUALITY = ["EQUAL", "NOT_EQUAL"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
NUMBERS = ["float32", "float16", "float64", BFLOAT16, *INTEGERS]
IN_LITERT = {"float32", "float16", "int16", "int32", "int64"}
EXTRA_IN_LITERT = {
    ("EQUAL", "bool"),
    ("NOT_EQUAL", "bool"),
    ("LESS", "bfloat16"),
    ("GREATER", "bfloat16"),
}
NAN, INF = np.nan, np.inf
X = value([NAN, NAN, 1, INF, INF, -INF, 0.0, 1], np.float32)
Y = value([NAN, 1, NAN, INF, -INF, 1, -0.0, 1 + 1e-7], np.float32)
SHAPES = {
    "channels": ((2, 3, 4), (4,)),
    "outer": ((3, 1, 2), (1, 4, 2)),
    "scalars": ((), ()),
    "empty": ((0, 3), (1, 3)),
    "rank_8": ((2, 1, 2, 1, 2, 1, 2, 1), (1, 2, 1, 2, 1, 2, 1, 2)),
}


def _litert(name: str, dtype: str) -> str | None:
    if (name, dtype) == ("NOT_EQUAL", "int16"):
        return "LiteRT leaves the output unwritten"
    known = dtype in IN_LITERT or (name, dtype) in EXTRA_IN_LITERT
    return None if known else "LiteRT has no kernel for this dtype"


def _compare(name: str, label: str, x: Arg, y: Arg) -> Case:
    dtype = x.value.dtype.name
    return Case(name, f"{label}-{dtype}", [x, y], outputs=["bool"], litert=_litert(name, dtype))


def _few(dtype: np.dtype | str, *shape: int, seed: int = 0) -> Arg:
    """Small whole numbers, so that many pairs are equal."""
    return value(of(np.int8, *shape, low=0, high=3, seed=seed).value.astype(dtype))


def _select(
    name: str, label: str, condition: Sequence[int], x: Arg, y: Arg, litert: str | None = None
) -> Case:
    chosen = of(np.bool_, *condition)
    return Case(name, label, [chosen, x, y], outputs=[x.value.dtype], litert=litert)


SELECTABLE = [*NUMBERS, "complex64", "bool"]
COMPILED_IN_PART = True
CASES = [
    *(
        _compare(name, "same", _few(d, 4, 5), _few(d, 4, 5, seed=1))
        for name in [*EQUALITY, *ORDER]
        for d in NUMBERS
    ),
    *(
        _compare(name, "same", _few(d, 4, 5), _few(d, 4, 5, seed=1))
        for name in EQUALITY
        for d in ("bool", "complex64")
    ),
    *(_compare(name, "edges", X, Y) for name in [*EQUALITY, *ORDER]),
    *(
        _compare(name, label, _few("int32", *a), _few("int32", *b, seed=1))
        for name in ("EQUAL", "LESS", "GREATER_EQUAL")
        for label, (a, b) in SHAPES.items()
    ),
    *(
        Case(name, label, [of(np.bool_, *a), of(np.bool_, *b, seed=1)])
        for name in ("LOGICAL_AND", "LOGICAL_OR")
        for label, (a, b) in SHAPES.items()
    ),
    Case("LOGICAL_NOT", "rank_3", [of(np.bool_, 2, 1, 5)]),
    Case("LOGICAL_NOT", "scalar", [value(True)]),
    *(
        _select(name, f"same-{np.dtype(d).name}", (3, 4), _few(d, 3, 4), _few(d, 3, 4, seed=1))
        for name in ("SELECT", "SELECT_V2")
        for d in SELECTABLE
    ),
    _select("SELECT", "rows", (3,), f32(3, 2, 4), f32(3, 2, 4, seed=1)),
    _select("SELECT", "square", (4,), f32(4, 4), f32(4, 4, seed=1)),
    _select("SELECT", "scalar", (), f32(2, 3), f32(2, 3, seed=1)),
    _select("SELECT", "one_row", (1,), f32(1, 3), f32(1, 3, seed=1)),
    _select("SELECT", "one_element", (1, 1), f32(1), f32(1, seed=1)),
    _select("SELECT", "all_scalars", (), f32(), f32(seed=1)),
    _select("SELECT", "empty", (0,), f32(0, 3), f32(0, 3)),
    _select("SELECT_V2", "last_axis", (4,), f32(4, 4), f32(4, 4, seed=1)),
    _select("SELECT_V2", "outer", (2, 1, 3), f32(4, 1), f32(seed=1)),
    _select("SELECT_V2", "wider_x", (3,), f32(2, 3), f32(1, 1, 1, seed=1)),
    _select("SELECT_V2", "rank_8", (2, 1) * 4, f32(*(1, 2) * 4), f32(2, seed=1)),
    _select("SELECT_V2", "empty", (0, 1), f32(1, 3), f32()),
]


WORDS = value([b"a", b"", "\u00e9".encode()], object)
OTHERS = value([b"a", b"b", b"e"], object)


@pytest.mark.litert
@pytest.mark.parametrize("name", EQUALITY)
@pytest.mark.parametrize("other", [OTHERS, value([b"a"], object)], ids=["same", "broadcast"])
def test_strings_compare_on_the_host(name: str, other: Arg) -> None:
    words = [Arg(a.value, is_const=True) for a in (WORDS, other)]
    case = Case(name, "strings", words, outputs=["bool"])
    case.check(case.run_reference(), case.run_litert())
    reason = RULES[name].reason(case.op(LoweringContext()))
    assert reason == "'in0' holds strings, which XLA does not support"


SCALE = scaled(0.1, 3)
QUANTIZED = Arg(np.arange(-2, 2, dtype=np.int8), quantization=SCALE)


def test_selection_moves_quantized_values_as_they_are() -> None:
    case = Case("SELECT_V2", "", [of(np.bool_, 4), QUANTIZED, QUANTIZED], outputs=["int8"])
    case.check(case.run_lowered(RULES["SELECT_V2"]), case.run_reference())


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (
            Case("LESS", "", [QUANTIZED, value([1, 2, 3, 4], "int8")], outputs=["bool"]),
            "'in1' is int8 without a scale",
        ),
        (
            Case("EQUAL", "", [f32(2), value([1, 2], "int32")], outputs=["bool"]),
            "'in0' is float32 and 'in1' int32",
        ),
        (Case("LESS", "", [of("bool", 2)] * 2), "'in0' is bool, not one of"),
        (Case("LOGICAL_AND", "", [f32(2), f32(2)], outputs=["bool"]), "'in0' is float32, not one"),
        (Case("SELECT_V2", "", [f32(2), f32(2), f32(2)]), "'in0' is float32, not one of bool"),
        (
            _select("SELECT_V2", "", (2,), f32(2), value([1, 2], "int32")),
            "'in1' is float32 and 'in2' int32",
        ),
        (
            _select("SELECT_V2", "", (2,), value([b"a"], object), value([b"b"], object)),
            "'in1' holds strings",
        ),
        (Case("GREATER", "", [f32(2), f32(2)], version=3, outputs=["bool"]), "version 3 is newer"),
    ],
    ids=lambda v: v.name if isinstance(v, Case) else "",
)
def test_refusals(case: Case, said: str) -> None:
    context = LoweringContext(op_version=case.version)
    reason = RULES[case.name].reason(case.op(context))
    assert reason is not None
    assert reason.startswith(said)


@pytest.mark.parametrize(
    ("condition", "x", "y", "said"),
    [
        ((2,), (3, 2), (3, 2), "a [2] condition for [3, 2] inputs"),
        ((3, 1), (3, 2), (3, 2), "a [3, 1] condition for [3, 2] inputs"),
        ((2,), (2, 1), (2, 3), "shapes [2, 1] and [2, 3] differ"),
    ],
)
def test_select_does_not_broadcast(
    condition: tuple[int, ...], x: tuple[int, ...], y: tuple[int, ...], said: str
) -> None:
    args = [of(np.bool_, *condition), f32(*x), f32(*y)]
    specs, outputs = _select("SELECT_V2", "", condition, f32(1), f32(1)).specs()
    inputs = tuple(
        type(spec)(spec.name, a.value.shape, a.value.dtype)
        for spec, a in zip(specs, args, strict=True)
    )
    case = Case("SELECT", "", args, outputs=["float32"])
    assert RULES["SELECT"].reason(Op(LoweringContext(), case.op_options, inputs, outputs)) == said
    with pytest.raises(ValueError, match="SELECT"):
        case.specs()
