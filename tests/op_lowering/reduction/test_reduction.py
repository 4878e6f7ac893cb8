import dataclasses
from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import (
    ArgMaxOptions,
    ArgMinOptions,
    CumsumOptions,
    ReducerOptions,
    TensorType,
    default_options,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op, ResultUse
from jaxdelegate.testing import Arg, Case, const, of, value
from tests.support.dtypes import BF16, NO_KERNEL
from tests.support.quantized import scaled

NAN, INF = np.nan, np.inf
SCALE = scaled(0.5, 3)
ODD = np.float32(
    [[1, NAN, 3, 2], [NAN, NAN, NAN, NAN], [-INF, -INF, -INF, -INF], [2, INF, NAN, -INF]]
)
NUMERIC = ["MEAN", "SUM", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN"]


def reducer(
    name: str, label: str, x: Arg, axes: Any, *, keep_dims: bool = False, **details: Any
) -> Case:
    options = ReducerOptions(keep_dims=keep_dims)
    return Case(name, label, [x, const(axes, "int32")], options, **details)


def axes_cases() -> list[Case]:
    axes = [[1], [-1], [0, 2], [2, -3, 0, 0], [0, 1, 2], 1, np.zeros(0)]
    x = of(np.float32, 2, 3, 4)
    return [
        reducer(name, f"axes{np.asarray(a).tolist()}-{keep}", x, a, keep_dims=keep, accumulated=24)
        for name in NUMERIC
        for a in axes
        for keep in (False, True)
    ]


def dtype_cases() -> list[Case]:
    stock = {
        "MEAN": [np.int32, np.int64],
        "SUM": [np.int32, np.int64],
        "REDUCE_PROD": [np.int8, np.uint8, np.int16, np.int32, np.int64],
        "REDUCE_MAX": [np.int8, np.uint8, np.int16, np.int32, np.int64],
        "REDUCE_MIN": [np.int8, np.uint8, np.int16, np.int32, np.int64],
    }
    floats = [np.float16, BF16, np.float64]
    cases = [
        reducer(n, np.dtype(d).name, of(d, 3, 5, low=-100, high=100), [1])
        for n, dtypes in stock.items()
        for d in dtypes
    ]
    return cases + [
        reducer(n, np.dtype(d).name, of(d, 3, 5), [1], accumulated=5, litert=NO_KERNEL)
        for n in stock
        for d in floats
    ]


def value_cases() -> list[Case]:
    big = np.full((2, 3), 2**31 - 1, np.int32)
    return [
        *(reducer(n, "odd", value(ODD), [1]) for n in NUMERIC),
        *(reducer(n, "odd-all", value(ODD), [0, 1]) for n in NUMERIC),
        *(reducer(n, "odd-nan-first", value(ODD[:, ::-1][3:, 1:]), [0, 1]) for n in NUMERIC),
        *(reducer(n, "infinite-all", value(ODD[2]), [0]) for n in NUMERIC),
        *(reducer(n, "infinite", value(-ODD[2:3]), [1]) for n in NUMERIC),
        *(reducer(n, "odd-no-axes", value(ODD), np.zeros(0)) for n in NUMERIC),
        *(reducer(n, "scalar", value(np.float32(3)), [0]) for n in NUMERIC),
        *(reducer(n, "scalar-no-axes", value(np.float32(3)), np.zeros(0)) for n in NUMERIC),
        *(reducer(n, "rank6", of(np.float32, 2, 1, 3, 2, 1, 2), [1, 3, -1]) for n in NUMERIC),
        *(
            reducer(n, f"empty-{np.dtype(d).name}-{axes}", value(np.zeros((2, 0), d)), axes)
            for n in NUMERIC
            for d in (np.float32, np.int32, np.int64)
            for axes in ([1], [0], [0, 1])
        ),
        reducer("MEAN", "truncates", value([[1, -2, -3], [4, 5, -9], [0, 2, 3]], "int32"), [1]),
        reducer("MEAN", "wide", value(big), [1]),
        reducer("MEAN", "overflow", value(np.full((1, 8), 6e4, np.float16)), [1], litert=NO_KERNEL),
        reducer("SUM", "wraps", value(big), [1]),
        reducer("SUM", "wraps64", value(np.full((1, 3), 2**62, np.int64)), [1]),
        reducer("REDUCE_PROD", "wraps", value(big), [0]),
        reducer("REDUCE_PROD", "wraps8", value([[100, 3, 2]], "int8"), [1]),
        reducer("REDUCE_MAX", "bfloat16-nan", value(ODD.astype(BF16)), [1], litert=NO_KERNEL),
    ]


def boolean_cases() -> list[Case]:
    x = value([[[True, False], [False, False]], [[True, True], [True, True]]])
    empty = value(np.zeros((2, 0), bool))
    return [
        reducer(n, f"{np.asarray(a).tolist()}-{keep}", x, a, keep_dims=keep)
        for n in ("REDUCE_ANY", "REDUCE_ALL")
        for a in ([0], [-1], [0, 1, 2], np.zeros(0))
        for keep in (False, True)
    ] + [reducer(n, "empty", empty, [1]) for n in ("REDUCE_ANY", "REDUCE_ALL")]


def arg(name: str, label: str, x: Any, axis: Any, output: Any = np.int32, **details: Any) -> Case:
    kind = TensorType.INT32 if output is np.int32 else TensorType.INT64
    options = (ArgMaxOptions if name == "ARG_MAX" else ArgMinOptions)(output_type=kind)
    index = axis if isinstance(axis, Arg) else const(axis, "int32")
    x = x if isinstance(x, Arg) else value(x)
    return Case(name, label, [x, index], options, outputs=[output], **details)


def arg_cases() -> list[Case]:
    ties = np.float32([[1, 3, 3, 0], [0.0, -0.0, 0.0, -0.0], [-INF, -INF, 2, 2]])
    late = np.float32([[1, NAN, 3, 3], [0, NAN, -INF, NAN], [2, 1, INF, NAN]])
    first = np.float32([[NAN, 1, 2, 2], [NAN, -INF, -INF, NAN], [NAN, NAN, NAN, NAN]])
    signed = of(np.int32, 3, 4, 5).value
    integers = [np.int8, np.uint8, np.int32]
    others = [np.int16, np.int64, np.uint32, np.float16, BF16, np.float64]
    last = "ai-edge-litert 2.3.0 keeps a NaN in first place, though only along the last axis"
    return [
        c
        for n in ("ARG_MAX", "ARG_MIN")
        for c in [
            arg(n, "ties", ties, 1),
            arg(n, "ties-axis0", ties, [0]),
            arg(n, "nan", late, -1),
            arg(n, "nan-first", first, -1, litert=last),
            arg(n, "nan-first-axis0", first.T.copy(), 0),
            arg(n, "int64", signed, 1, np.int64),
            arg(n, "axis64", signed, const(-2, "int64")),
            arg(n, "vector", signed[0, 0], 0),
            arg(n, "empty", np.zeros((0, 2), np.float32), -1),
            arg(n, "bool", of(bool, 3, 4).value, 1),
            arg(n, "image-nan", np.tile(np.concatenate([late, first]), (50, 1)), 1, litert=last),
            arg(n, "image-ties", np.tile(ties, (100, 1)), 1, np.int64),
            *(arg(n, f"image-{np.dtype(d)}", of(d, 9, 30, 21).value, 2) for d in integers),
            arg(n, "image-bool", of(bool, 30, 10, 7).value, 2),
            *(arg(n, np.dtype(d).name, of(d, 4, 5).value, 0) for d in integers),
            *(arg(n, np.dtype(d).name, of(d, 4, 5).value, 0, litert=NO_KERNEL) for d in others),
        ]
    ]


def cumsum_cases() -> list[Case]:
    modes = [CumsumOptions(exclusive=e, reverse=r) for e in (False, True) for r in (False, True)]
    inputs = {
        "float32": (of(np.float32, 3, 4, 2), 1, None),
        "int32": (value(np.full((2, 4), 2**30, np.int32)), -1, None),
        "int64": (of(np.int64, 2, 5, low=-1000, high=1000), [0], None),
        "infinite": (value(np.float32([1, INF, 2, -INF, 3])), 0, None),
        "empty": (value(np.zeros((2, 0), np.float32)), 1, None),
        "empty-rows": (value(np.zeros((0, 2), np.float32)), 1, None),
        "float16": (of(np.float16, 2, 64), 1, NO_KERNEL),
        "bfloat16": (of(BF16, 2, 64), 1, NO_KERNEL),
    }
    return [
        Case(
            "CUMSUM",
            f"{label}-{'exclusive' * o.exclusive}-{'reverse' * o.reverse}",
            [x, const(axis, "int32")],
            o,
            accumulated=8,
            litert=litert,
        )
        for label, (x, axis, litert) in inputs.items()
        for o in modes
    ]


def quantized_order_cases() -> list[Case]:
    x = Arg(of(np.int8, 3, 4, low=-100, high=100).value, quantization=SCALE)
    return [
        arg("ARG_MAX", "quantized", x, 1),
        reducer("REDUCE_MIN", "quantized", x, [1], output_quantization=[SCALE]),
    ]


CASES = [
    *axes_cases(),
    *dtype_cases(),
    *value_cases(),
    *boolean_cases(),
    *arg_cases(),
    *cumsum_cases(),
    *quantized_order_cases(),
]


@pytest.mark.litert
@pytest.mark.parametrize("name", ["MEAN", "SUM"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((1, 96, 70, 8), [1, 2]), ((2, 61, 67, 3), [1, 2]), ((9, 3001), [1]), ((40, 50, 7), [0, 1])],
)
def test_integer_mode_rounds_float_sums_as_litert(
    name: str, shape: tuple[int, ...], axes: list[int]
) -> None:
    """Exact equality, because dynamic range operators after a sum quantize it on the fly."""
    case = reducer(name, "long", of(np.float32, *shape, low=0, high=3), axes)
    want = case.run_litert()[0]
    context = LoweringContext(quant_mode="integer", result=ResultUse(quantized_later=True))
    np.testing.assert_array_equal(case.run_lowered(RULES[name], context)[0], want)
    np.testing.assert_array_equal(case.run_reference()[0], want)
    floats = case.run_lowered(RULES[name], LoweringContext())[0]
    np.testing.assert_allclose(floats, want, rtol=1e-5)


FLOAT = of(np.float32, 2, 3)
QUANTIZED = Arg(of(np.int8, 2).value, quantization=SCALE)
REFUSED = {
    "depends on data": Case("SUM", "late", [FLOAT, value([1], "int32")]),
    "'in1' is computed at run time": Case("CUMSUM", "late", [FLOAT, value(0, "int32")]),
    "is int8, not one of bfloat16": reducer("SUM", "int8", of(np.int8, 2, 3), [1]),
    "is int16, not one of": reducer("MEAN", "int16", of(np.int16, 2, 3), [1]),
    "is quantized int8": Case("CUMSUM", "quantized", [QUANTIZED, const(0, "int32")]),
    "is float32, not one of bool": reducer("REDUCE_ANY", "float", FLOAT, [0]),
    "is complex64, not one of": reducer("REDUCE_MAX", "complex", of(np.complex64, 2), [0]),
    "'in1' is float32": Case("SUM", "axes", [FLOAT, const([1], "float32")]),
    "no values along the axis": arg("ARG_MAX", "none", np.zeros((2, 0), np.float32), 1),
    "holds 2 axes, not one": arg("ARG_MAX", "axes", FLOAT.value, [0, 1]),
    "is a scalar": arg("ARG_MIN", "scalar", np.float32(1), 0),
    "'out0' is float32": dataclasses.replace(
        arg("ARG_MIN", "output", FLOAT.value, 0), outputs=[np.float32]
    ),
}


@pytest.mark.parametrize("name", ["SUM", "REDUCE_MAX", "ARG_MAX", "CUMSUM"])
def test_refuses_an_axis_outside_the_rank(name: str) -> None:
    x, _ = Case("CUMSUM", "", [FLOAT, const(0, "int32")]).specs()[0]
    axis = dataclasses.replace(x, name="axis", shape=(1,), dtype=np.dtype("int32"))
    axis = dataclasses.replace(axis, const=np.int32([2]))
    options = default_options(name)
    why = RULES[name].reason(Op(LoweringContext(), options, (x, axis), (x,)))
    assert why == "axis 2 is outside rank 2"


def test_refuses_to_move_values_to_another_scale() -> None:
    inputs, outputs = quantized_order_cases()[1].specs()
    other = scaled(0.25, 3)
    y = dataclasses.replace(outputs[0], quantization=other)
    why = RULES["REDUCE_MIN"].reason(Op(LoweringContext(), ReducerOptions(), inputs, (y,)))
    assert "'in0' and 'out0' are quantized differently" in (why or "")


def test_refuses_quantized_tensors_if_they_are_disabled() -> None:
    inputs, outputs = quantized_order_cases()[0].specs()
    context = LoweringContext(enable_quant=False)
    why = RULES["ARG_MAX"].reason(Op(context, ArgMaxOptions(), inputs, outputs))
    assert "enable_quant" in (why or "")


def test_reference_refuses_quantized_arithmetic() -> None:
    with pytest.raises(TypeError, match="quantized int8"):
        Case("CUMSUM", "quantized", [QUANTIZED, const(0, "int32")]).run_reference()
