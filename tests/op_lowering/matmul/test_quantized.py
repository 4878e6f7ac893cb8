import dataclasses
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    BatchMatMulOptions,
    FullyConnectedOptions,
    TensorType,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.quant.params import Blockwise, Quantization, integer_range
from jaxdelegate.testing import Arg, Case
from tests.support.case_groups import in_part
from tests.support.quantized import scaled

INT8, UINT8, INT16, INT32 = (np.dtype(t) for t in (np.int8, np.uint8, np.int16, np.int32))
INT4, INT2 = np.dtype(ml_dtypes.int4), np.dtype(ml_dtypes.int2)
CLAMPS = [Act.RELU, Act.RELU_N1_TO_1, Act.RELU6]
Shape = tuple[int, ...]


def integers(rng: np.random.Generator, dtype: Any, shape: Shape) -> np.ndarray:
    low, high = integer_range(np.dtype(dtype))
    return rng.integers(low, high, shape, endpoint=True).astype(dtype)


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Which integers stand for which reals; `spread`: how much the rows' scales differ.

    `steps` is the output's scale in units that let sums fill its range about once.
    """

    x: np.dtype = INT8
    w: np.dtype = INT8
    y: np.dtype | None = None  # that of x
    x_zero: int = 0
    w_zero: int = 0
    y_zero: int = 0
    spread: float = 1.0
    steps: float = 1.0
    bias: Any = None
    bias_type: TensorType = TensorType.FLOAT32

    @property
    def result(self) -> np.dtype:
        return self.y if self.y is not None else self.x

    def scales(self, depth: int, output_channels: int) -> tuple[np.float32, np.ndarray, np.float32]:
        """Those of the input, of the weights and of the output."""
        x = np.float32(0.02)
        w = np.float32(
            np.geomspace(1 / self.spread, 1, output_channels if self.spread > 1 else 1) * 0.01
        )
        full = math.sqrt(max(depth, 1)) * integer_range(self.x)[1] * integer_range(self.w)[1] / 1.5
        return x, w, np.float32(x * w.mean() * full / integer_range(self.result)[1] * self.steps)


def dense(
    label: str,
    x: Shape,
    w: Shape,
    n: Numbers = Numbers(),
    o: FullyConnectedOptions | None = None,
    *,
    has_bias: bool = True,
    late: bool = False,
    **details: Any,
) -> Case:
    """`w` is [N, K]; late: weights come at run time."""
    rng = np.random.default_rng(len(label) + math.prod(w))
    x_scale, w_scale, y_scale = n.scales(w[1], w[0])
    inputs = [
        Arg(integers(rng, n.x, x), quantization=scaled(x_scale, n.x_zero)),
        Arg(integers(rng, n.w, w), not late, quantization=scaled(w_scale, n.w_zero)),
    ]
    if has_bias:
        bias = rng.integers(-2000, 2000, w[0]).astype(n.bias or np.int32)
        inputs.append(Arg(bias, True, quantization=scaled(x_scale * w_scale)))
    o = dataclasses.replace(o or FullyConnectedOptions(), quantized_bias_type=n.bias_type)
    return Case(
        "FULLY_CONNECTED",
        f"{n.x}x{n.w}-{label}",
        inputs,
        o,
        outputs=[n.result],
        output_quantization=[scaled(y_scale, n.y_zero)],
        **({"version": 14} | details),
    )


KINDS = {
    "int8": Numbers(x_zero=-7, y_zero=11),
    "int8-filter-zero": Numbers(x_zero=-7, w_zero=3, y_zero=11),
    "int8-rows": Numbers(x_zero=-7, y_zero=11, spread=8),
    "int4": Numbers(w=INT4, x_zero=5, y_zero=1),
    "int4-rows": Numbers(w=INT4, x_zero=5, y_zero=1, spread=8),
    "int2": Numbers(w=INT2, x_zero=5, y_zero=1),
    "uint8": Numbers(UINT8, UINT8, x_zero=121, w_zero=137, y_zero=90),
    "uint8-int16": Numbers(UINT8, UINT8, INT16, x_zero=121, w_zero=137),
    "int16": Numbers(INT16, bias=np.int64, bias_type=TensorType.INT64),
    "int16-rows": Numbers(INT16, spread=8, bias=np.int64),
    "int16-int32-bias": Numbers(INT16, bias_type=TensorType.INT32),
    "int16-int4": Numbers(INT16, INT4, bias=np.int64),
    "int16-int2-rows": Numbers(INT16, INT2, spread=8, bias=np.int64),
    "int16-int16": Numbers(INT16, INT16, bias=np.int64, bias_type=TensorType.INT64),
    "int16-int16-zero": Numbers(INT16, INT16, w_zero=77, bias_type=TensorType.INT32),
    "int16-int16-rows": Numbers(INT16, INT16, spread=8, bias_type=TensorType.INT32),
}
ODD = {
    "zero-points-low": Numbers(x_zero=-128, w_zero=-128, y_zero=-128),
    "zero-points-high": Numbers(x_zero=127, w_zero=127, y_zero=127),
    "uint8-zero-points-low": Numbers(UINT8, UINT8),
    "uint8-zero-points-high": Numbers(UINT8, UINT8, x_zero=255, w_zero=255, y_zero=255),
    "saturates": Numbers(x_zero=5, steps=1e-4),
    "vanishes": Numbers(x_zero=5, steps=1e4),
    "rows-far-apart": Numbers(x_zero=5, spread=1e6),
    "int16-vanishes": Numbers(INT16, steps=1e4, bias=np.int64),
    "int16-rows-far-apart": Numbers(INT16, spread=1e6, bias=np.int64),
}
KEEP = FullyConnectedOptions(keep_num_dims=True)
FULLY_CONNECTED = [
    *(dense(kind, (4, 37), (5, 37), numbers) for kind, numbers in KINDS.items()),
    *(dense(f"{kind}-row", (1, 64), (8, 64), numbers) for kind, numbers in KINDS.items()),
    *(dense(label, (3, 20), (6, 20), numbers) for label, numbers in ODD.items()),
    *(
        dense(f"late-{kind}", (3, 20), (6, 20), KINDS[kind], late=True, litert="packed on its way")
        for kind in ("int8-filter-zero", "int8-rows", "uint8", "int16", "int4", "int16-int16")
    ),
    *(
        dense(f"{kind}-{act.name}", (3, 20), (6, 20), KINDS[kind], FullyConnectedOptions(act))
        for kind in ("int8", "uint8", "int16", "int16-int16")
        for act in CLAMPS
    ),
    dense("no-bias", (3, 20), (6, 20), KINDS["int8"], has_bias=False),
    dense("int16-no-bias", (3, 20), (6, 20), KINDS["int16"], has_bias=False),
    dense("keep-rank-4", (2, 1, 3, 20), (6, 20), KINDS["int8-rows"], KEEP),
    dense("regrouped", (2, 3, 4), (5, 12), KINDS["uint8"]),
    dense("left-over", (2, 5), (4, 3), KINDS["int8"]),
    dense("one-unit", (3, 20), (1, 20), KINDS["int8-rows"]),
    dense("deep", (2, 5000), (3, 5000), KINDS["int16"]),
    dense("no-depth", (3, 0), (5, 0), KINDS["int8"], litert="refuses no elements"),
    dense("no-rows", (0, 7), (5, 7), KINDS["int8"], litert="refuses no elements"),
]
BATCHES: list[tuple[Shape, Shape]] = [
    ((), ()),
    ((3,), (3,)),
    ((3,), ()),
    ((), (3,)),
    ((2, 1), (1, 3)),
    ((2, 3), ()),
    ((2, 1, 3), (4, 1)),
]
PRODUCTS = {
    "int8": Numbers(x_zero=-128, w_zero=127, y_zero=9),
    "int16": Numbers(INT16, INT16),
    "int16-int8": Numbers(INT16),
}


def product(
    label: str,
    batches: tuple[Shape, Shape],
    n: Numbers,
    o: BatchMatMulOptions | None = None,
    size: tuple[int, int, int] = (4, 23, 3),
    **details: Any,
) -> Case:
    """Matrices of [M, K] and [K, N]; the options may turn them."""
    o, (rows, depth, columns) = o or BatchMatMulOptions(), size
    rng = np.random.default_rng(len(label))
    x_scale, w_scale, y_scale = n.scales(depth, columns)
    x = (*batches[0], *((depth, rows) if o.adj_x else (rows, depth)))
    w = (*batches[1], *((columns, depth) if o.adj_y else (depth, columns)))
    inputs = [
        Arg(integers(rng, n.x, x), quantization=scaled(x_scale, n.x_zero)),
        Arg(integers(rng, n.w, w), quantization=scaled(w_scale, n.w_zero)),
    ]
    scale = [scaled(y_scale, n.y_zero)]
    details = {"outputs": [n.result], "output_quantization": scale, "version": 4} | details
    return Case("BATCH_MATMUL", f"{n.x}x{n.w}-{label}", inputs, o, **details)


def columns(kind: str, o: BatchMatMulOptions) -> Case:
    """With a scale for each column."""
    case = product(f"columns-{o.adj_y}-{kind}", ((2,), ()), PRODUCTS[kind], o)
    x, w = case.inputs
    scales = scaled(np.geomspace(0.001, 0.02, 3), axis=0 if o.adj_y else 1)
    late = dataclasses.replace(w, quantization=scales)
    return dataclasses.replace(
        case, inputs=[x, late], litert="the kernel takes the product of such scales for zero"
    )


BATCH_MATMUL = [
    *(
        columns(kind, BatchMatMulOptions(adj_y=adj_y))
        for kind in PRODUCTS
        for adj_y in (False, True)
    ),
    *(
        product(f"{x}x{w}-{kind}", (x, w), numbers)
        for kind, numbers in PRODUCTS.items()
        for x, w in BATCHES
    ),
    *(
        product(f"{adj_x}-{adj_y}-{kind}", ((2,), w), numbers, BatchMatMulOptions(adj_x, adj_y))
        for kind, numbers in PRODUCTS.items()
        for adj_x, adj_y in ((True, False), (False, True), (True, True))
        for w in ((2,), ())
    ),
    product("saturates", ((), ()), Numbers(steps=1e-4)),
    product("vanishes", ((), ()), Numbers(INT16, steps=1e4)),
    product("int32", ((2,), ()), Numbers(y=INT32, x_zero=5, w_zero=3)),
    product(
        "rank-6",
        ((1, 2, 1, 2), (2, 1)),
        PRODUCTS["int8"],
        litert="the kernel takes up to 5 dimensions",
    ),
    product("no-depth", ((), ()), PRODUCTS["int8"], size=(2, 0, 3), litert="refuses no elements"),
    product("no-rows", ((), ()), PRODUCTS["int8"], size=(0, 2, 3), litert="refuses no elements"),
]
COMPILED_IN_PART = True
CASES = FULLY_CONNECTED + BATCH_MATMUL


@pytest.mark.litert
@pytest.mark.parametrize("kind", in_part([*KINDS]))
def test_random_weights_equal_litert(kind: str, rng: np.random.Generator) -> None:
    for seed in range(15):
        rows, depth, output_channels = (int(n) for n in rng.integers((1, 1, 2), (5, 60, 20)))
        numbers = dataclasses.replace(KINDS[kind], steps=float(np.exp(rng.normal())))
        case = dense(f"random-{seed}", (rows, depth), (output_channels, depth), numbers)
        reference = case.run_reference()
        case.check(reference, case.run_litert())
        if seed < 2:
            case.check(case.run_lowered(RULES[case.name]), reference)


def test_sums_wrap_around_int32() -> None:
    x = Arg(np.full((1, 4), 127, np.int8), quantization=scaled(1.0, -128))
    w = Arg(np.full((2, 4), 127, np.int8), True, quantization=scaled(1.0))
    bias = Arg(np.array([2**31 - 1, -(2**31)], np.int32), True, quantization=scaled(1.0))
    case = Case(
        "FULLY_CONNECTED",
        "wraps",
        [x, w, bias],
        FullyConnectedOptions(),
        output_quantization=[scaled(2e7)],
    )
    total = 4 * 255 * 127
    wrapped = np.array([[-(2**31) + total - 1, -(2**31) + total]])
    case.check(case.run_reference(), [np.rint(wrapped / 2e7).astype(np.int8)])
    case.check(case.run_lowered(RULES[case.name]), case.run_reference())


def spec(shape: Shape, dtype: Any, scale: Any = 0.1, zero: int = 0, axis: int = 0) -> TensorSpec:
    q = None if scale is None else scaled(scale, zero, axis)
    return TensorSpec("t", shape, np.dtype(dtype), q)


def tensors(**replaced: TensorSpec) -> tuple[TensorSpec, ...]:
    known = {
        "x": spec((4, 6), np.int8),
        "w": spec((5, 6), np.int8),
        "b": spec((5,), np.int32, 0.01),
        "y": spec((4, 5), np.int8),
    }
    return tuple((known | replaced).values())


BLOCKS = Quantization(np.zeros(0, np.float32), np.zeros(0, np.int64), blockwise=Blockwise(0, -1, 2))
REFUSED: list[tuple[dict[str, TensorSpec], str]] = [
    ({"x": spec((4, 6), np.int32)}, "quantized int32"),
    ({"y": spec((4, 5), np.int16)}, "quantized int16"),
    ({"y": spec((4, 5), np.int8, None)}, "without a scale"),
    ({"w": spec((5, 6), np.int16)}, "quantized int16"),
    ({"w": spec((5, 6), np.int8, [0.1] * 6, axis=1)}, "6 scales"),
    ({"w": spec((5, 6), np.int8, [0.1] * 5, 2)}, "has zero points"),
    ({"w": spec((5, 6), INT4, 0.1, 2)}, "has zero points"),
    ({"w": TensorSpec("t", (5, 6), INT4, BLOCKS)}, "block"),
    ({"b": spec((5,), np.float32, None)}, "float32"),
    ({"b": spec((5,), np.int32, 0.5)}, "not that of the products"),
    ({"x": spec((4, 6), np.uint8), "y": spec((4, 5), np.uint8)}, "quantized int8"),
    ({"x": spec((4, 6), np.int16, 0.1, 2), "y": spec((4, 5), np.int16)}, "the kernel expects 0"),
]


def reason(o: Any, *specs: TensorSpec) -> str:
    *inputs, y = specs
    rule = RULES["FULLY_CONNECTED"]
    return rule.reason(Op(LoweringContext(quant_mode="integer"), o, tuple(inputs), (y,))) or ""


@pytest.mark.parametrize(("replaced", "said"), REFUSED)
def test_refuses(replaced: dict[str, TensorSpec], said: str) -> None:
    assert said in reason(FullyConnectedOptions(), *tensors(**replaced))


def test_refuses_opaque_options() -> None:
    assert "quant_spec" in reason(FullyConnectedOptions(quant_spec=b"x"), *tensors())
    assert not reason(FullyConnectedOptions(), *tensors())


def test_wide_outputs_of_bytes_need_a_bias() -> None:
    x, w, _, y = tensors(
        x=spec((4, 6), np.uint8), w=spec((5, 6), np.uint8), y=spec((4, 5), np.int16)
    )
    assert "needs a bias" in reason(FullyConnectedOptions(), x, w, y)


@pytest.mark.parametrize(
    ("x", "w", "y", "said"),
    [
        (np.uint8, np.uint8, np.uint8, "quantized uint8"),
        (np.int8, np.int16, np.int8, "quantized int16"),
        (np.int8, np.int8, np.int16, "quantized int16"),
        (np.int8, INT4, np.int32, "int4, not int8"),
    ],
)
def test_batch_matmul_refuses(x: Any, w: Any, y: Any, said: str) -> None:
    inputs, outputs = (spec((2, 4, 5), x), spec((2, 5, 3), w)), (spec((2, 4, 3), y),)
    context = LoweringContext(quant_mode="integer")
    got = RULES["BATCH_MATMUL"].reason(Op(context, BatchMatMulOptions(), inputs, outputs))
    assert said in (got or "")


@pytest.mark.parametrize(
    ("w", "said"),
    [
        (spec((5, 3), np.int8, [0.1] * 5, axis=0), "5 scales"),
        (spec((5, 3), np.int8, [0.1] * 3, 2, axis=1), "has zero points"),
    ],
)
def test_batch_matmul_refuses_other_scales(w: TensorSpec, said: str) -> None:
    inputs, outputs = (spec((4, 5), np.int8), w), (spec((4, 3), np.int8),)
    context = LoweringContext(quant_mode="integer")
    got = RULES["BATCH_MATMUL"].reason(Op(context, BatchMatMulOptions(), inputs, outputs))
    assert said in (got or "")
