from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    BatchMatMulOptions,
    FullyConnectedOptions,
    FullyConnectedOptionsWeightsFormat,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.op_lowering.spec import Sparsity, TensorSpec
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.testing import Arg, Case, const, f32, of

FLOAT32_ONLY = "the kernel takes float32 only"
KEEP = FullyConnectedOptions(keep_num_dims=True)
Shape = tuple[int, ...]


def dense(
    label: str,
    x: Shape,
    w: Shape,
    options: FullyConnectedOptions | None = None,
    *,
    dtype: Any = np.float32,
    bias: bool | None = True,
    late: bool = False,
    **details: Any,
) -> Case:
    """`w` is [N, K]; bias None: left out by its index; late: weights come at run time."""
    weights = of(dtype, *w, seed=1)
    inputs: list[Arg | None] = [of(dtype, *x), weights if late else const(weights)]
    inputs += [const(of(dtype, w[0], seed=2))] if bias else [None] if bias is None else []
    details = {"litert": None if dtype is np.float32 else FLOAT32_ONLY} | details
    return Case(
        "FULLY_CONNECTED",
        label,
        inputs,
        options or FullyConnectedOptions(),
        accumulated=max(w[1], 1),
        version=6,
        **details,
    )


FULLY_CONNECTED = [
    dense("one-row", (1, 7), (5, 7)),
    dense("rows", (4, 7), (5, 7)),
    dense("vector", (7,), (5, 7)),
    dense("scalar", (), (5, 1)),
    dense("flattened", (2, 3, 4), (5, 4)),
    dense("regrouped", (2, 3, 4), (5, 12)),
    dense("left-over", (2, 5), (2, 3)),
    dense("keep-rank-1", (7,), (5, 7), KEEP),
    dense("keep-rank-3", (2, 3, 4), (5, 4), KEEP),
    dense("keep-rank-5", (2, 1, 3, 1, 4), (5, 4), KEEP, late=True),
    dense("no-bias", (4, 7), (5, 7), bias=False),
    dense("absent-bias", (4, 7), (5, 7), bias=None),
    dense("late-weights", (4, 7), (5, 7), late=True),
    dense("late-weights-one-row", (1, 7), (5, 7), late=True),
    dense("no-depth", (3, 0), (5, 0)),
    dense("no-rows", (0, 7), (5, 7)),
    dense("no-units", (3, 7), (0, 7)),
    *(
        dense(act.name, (4, 7), (5, 7), FullyConnectedOptions(act))
        for act in (Act.RELU, Act.RELU_N1_TO_1, Act.RELU6)
    ),
    *(
        dense(f"{np.dtype(dtype).name}-{rows}", (rows, 7), (5, 7), dtype=dtype)
        for dtype in (np.float16, ml_dtypes.bfloat16)
        for rows in (1, 4)
    ),
    Case(
        "FULLY_CONNECTED",
        "float16-weights",
        [f32(2, 7), const(of(np.float16, 5, 7)), const(f32(5))],
        FullyConnectedOptions(),
        accumulated=7,
        litert=FLOAT32_ONLY,
    ),
]


def product(label: str, x: Arg, w: Arg, options: Any = None, **details: Any) -> Case:
    details = {"accumulated": max(x.value.shape[-2:])} | details
    return Case(
        "BATCH_MATMUL", label, [x, w], options or BatchMatMulOptions(), version=2, **details
    )


BATCHES = [
    ((), ()),
    ((3,), (3,)),
    ((3,), ()),
    ((), (3,)),
    ((3,), (1,)),
    ((2, 1, 3), (4, 1)),
    ((2, 3, 1), (2, 3, 1)),
    ((2,), (1, 3, 1)),
]


def oriented(batch: Shape, rows: int, columns: int, adjoint: bool, seed: int = 0) -> Arg:
    return f32(*batch, *((columns, rows) if adjoint else (rows, columns)), seed=seed)


BATCH_MATMUL = [
    product(
        f"{x}x{w}-{'x' if adj_x else ''}{'y' if adj_y else ''}",
        oriented(x, 4, 5, adj_x),
        oriented(w, 5, 3, adj_y, seed=1),
        BatchMatMulOptions(adj_x, adj_y),
    )
    for x, w in BATCHES
    for adj_x in (False, True)
    for adj_y in (False, True)
]
BATCH_MATMUL += [
    product("constant", f32(2, 4, 5), const(f32(5, 3, seed=1))),
    product("no-depth", f32(2, 4, 0), f32(2, 0, 3)),
    product("no-batch", f32(0, 4, 5), f32(1, 5, 3)),
    product(
        "rank-6",
        f32(1, 2, 1, 2, 4, 5),
        f32(2, 1, 5, 3),
        litert="the kernel takes up to 5 dimensions",
    ),
    *(
        product(np.dtype(dtype).name, of(dtype, 2, 4, 5), of(dtype, 2, 5, 3), litert=FLOAT32_ONLY)
        for dtype in (np.float16, ml_dtypes.bfloat16)
    ),
    *(
        product(
            f"int8-{label}",
            of(np.int8, 2, 4, 5, low=-128, high=127),
            of(np.int8, *w, low=-128, high=127),
            outputs=[np.int32],
        )
        for label, w in (("batches", (2, 5, 3)), ("shared", (5, 3)))
    ),
]
CASES = FULLY_CONNECTED + BATCH_MATMUL


ON_GPU = FULLY_CONNECTED + BATCH_MATMUL[-8:]


def spec(shape: Shape, dtype: Any = np.float32, **details: Any) -> TensorSpec:
    return TensorSpec("t", shape, np.dtype(dtype), **details)


SHUFFLED = FullyConnectedOptionsWeightsFormat.SHUFFLED4x16INT8
ROWS, WEIGHTS = spec((4, 7)), spec((5, 7))
REFUSED = [
    (FullyConnectedOptions(), ROWS, spec((5, 7), sparsity=Sparsity((), (), ())), "sparse"),
    (FullyConnectedOptions(), spec((4, 7), np.int32), WEIGHTS, "int32, not one of"),
]
IMPOSSIBLE = [
    (FullyConnectedOptions(weights_format=SHUFFLED), ROWS, WEIGHTS, "SHUFFLED4x16INT8"),
    (FullyConnectedOptions(Act.TANH), ROWS, WEIGHTS, "fused TANH"),
    (FullyConnectedOptions(), ROWS, spec((5, 7, 1)), "must have 2 dimensions"),
    (FullyConnectedOptions(), ROWS, spec((6, 7)), "a bias"),
    (KEEP, ROWS, spec((5, 14)), "does not end in rows of 14"),
    (KEEP, spec(()), spec((5, 1)), "does not end in rows of 1"),
]


@pytest.mark.parametrize(("platform", "default"), [("cpu", "depth_first"), ("gpu", "units_first")])
def test_any_number_of_rows_shares_the_layout_of_a_filter(platform: str, default: str) -> None:
    rule: Any = RULES["FULLY_CONNECTED"]
    ops = [dense("", (rows, 7), (5, 7)).op(LoweringContext(platform)) for rows in (1, 4)]
    assert [next(iter(rule.algorithms(op))) for op in ops] == [default] * 2
    one, several = (rule.lower(op).layout for op in ops)
    assert one == several


@pytest.mark.parametrize(("options", "x", "w", "said"), REFUSED + IMPOSSIBLE)
def test_refuses(options: Any, x: TensorSpec, w: TensorSpec, said: str) -> None:
    rule, out = RULES["FULLY_CONNECTED"], spec((4, 5))
    assert said in (rule.reason(Op(LoweringContext(), options, (x, w, spec((5,))), (out,))) or "")


@pytest.mark.parametrize(("options", "x", "w", "said"), IMPOSSIBLE)
def test_impossible_shapes_are_a_value_error(
    options: Any, x: TensorSpec, w: TensorSpec, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        KERNELS["FULLY_CONNECTED"].shapes(options, (x, w, spec((5,))))


@pytest.mark.parametrize(
    ("x", "w", "adj_x"),
    [
        ((4, 5), (4, 3), False),
        ((4, 5), (5, 3), True),
        ((2, 4, 5), (3, 5, 3), False),
        ((5,), (5, 3), False),
        ((), (), False),
    ],
)
def test_batch_matmul_refuses_other_shapes(x: Shape, w: Shape, adj_x: bool) -> None:
    options, inputs = BatchMatMulOptions(adj_x), (spec(x), spec(w))
    assert RULES["BATCH_MATMUL"].reason(Op(LoweringContext(), options, inputs, (spec(x),)))
    with pytest.raises(ValueError, match=r"BATCH_MATMUL|broadcast"):
        KERNELS["BATCH_MATMUL"].shapes(options, inputs)


@pytest.mark.parametrize(
    ("x", "out"),
    [
        (spec((4, 5), np.int8), spec((4, 5), np.int8)),
        (spec((4, 5), np.int16), spec((4, 5), np.int16)),
        (spec((4, 5), np.float64), spec((4, 5), np.float64)),
    ],
)
def test_batch_matmul_refuses_other_dtypes(x: TensorSpec, out: TensorSpec) -> None:
    w = spec((5, 5), x.dtype, quantization=x.quantization)
    reason = RULES["BATCH_MATMUL"].reason(
        Op(LoweringContext(), BatchMatMulOptions(), (x, w), (out,))
    )
    assert str(x.dtype) in (reason or "")
