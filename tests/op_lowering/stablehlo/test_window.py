"""The deprecated builtin REDUCE_WINDOW; STABLEHLO_REDUCE_WINDOW is in test_reduce.py."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.op_lowering.options import ReduceWindowFunction, ReduceWindowOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.testing import Arg, Case, assert_close, const, f32, of, value

Function = ReduceWindowFunction
NAMED = [f for f in Function if f is not Function.UNSUPPORTED]
NO_DTYPE = "LiteRT has no kernel for this dtype"
STOCK = [
    np.dtype(t) for t in (np.float32, np.float64, np.int8, np.int16, np.int32, np.int64, np.uint8)
]
OTHERS = [
    np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.uint16, np.uint32, np.uint64, bool)
]


def window(
    label: str,
    function: Function,
    x: Arg,
    start: Any,
    sizes: list[int],
    strides: list[int] | None = None,
    dilations: list[int] | None = None,
    **details: Any,
) -> Case:
    ones = [1] * x.value.ndim
    inputs = [
        x,
        const(start, x.value.dtype),
        const(sizes, np.int64),
        const(strides or ones, np.int64),
        const(dilations or ones, np.int64),
    ]
    name = f"{function.name}-{x.value.dtype}-{label}"
    return Case("REDUCE_WINDOW", name, inputs, ReduceWindowOptions(function), **details)


ODD = np.float32([[1, np.nan, 3, np.inf], [0, -0.0, np.nan, 2], [5, -np.inf, 7, 8]])


def cases() -> list[Case]:
    return [
        *(
            window(
                "plain", f, of(d, 5, 6, high=4), 1, [2, 3], litert=None if d in STOCK else NO_DTYPE
            )
            for f in NAMED
            for d in (*STOCK, *OTHERS)
        ),
        *(
            c
            for f in NAMED
            for c in [
                window("strides", f, f32(5, 6), 0, [2, 3], [2, 1]),
                window("dilated", f, f32(5, 6), 2, [2, 2], [1, 2], dilations=[2, 1]),
                window("odd", f, value(ODD), 0, [2, 2]),
                window("large", f, of(np.int32, 12, 12, low=0, high=1), 1, [9, 10]),
                window("1d", f, f32(6), 0, [3]),
                window("rank5", f, f32(2, 1, 3, 2, 3), 0, [2, 1, 2, 1, 3]),
            ]
        ),
        window("none", Function.ADD, f32(2, 3), 0, [3, 1], litert="LiteRT refuses empty tensors"),
        window(
            "no rows", Function.ADD, f32(0, 3), 0, [1, 1], litert="LiteRT refuses empty tensors"
        ),
        window("wraps", Function.MUL, of(np.int8, 4, 4, low=-99, high=99), 3, [2, 2]),
    ]


CASES = cases()


EXAMPLES = {
    Function.ADD: [[12, 16], [24, 28]],
    Function.MUL: [[1 * 2 * 4 * 5, 2 * 3 * 5 * 6], [4 * 5 * 7 * 8, 5 * 6 * 8 * 9]],
    Function.MINIMUM: [[1, 2], [4, 5]],
    Function.MAXIMUM: [[5, 6], [8, 9]],
    Function.ALL: [[1, 1], [1, 1]],
    Function.ANY: [[1, 1], [1, 1]],
}


@pytest.mark.parametrize("function", NAMED)
def test_examples(function: Function) -> None:
    x = value(np.arange(1, 10, dtype=np.int32).reshape(3, 3))
    starts = {Function.ADD: 0, Function.MINIMUM: 99, Function.MAXIMUM: -99, Function.ANY: 0}
    case = window("", function, x, starts.get(function, 1), [2, 2])
    want = [np.int32(EXAMPLES[function])]
    assert_close(case.run_reference(), want)
    assert_close(case.run_lowered(RULES[case.name]), want)


def test_reference_takes_run_time_windows() -> None:
    known = window("", Function.ADD, f32(5, 6), 0, [2, 2])
    late = [value(a.value) for a in known.inputs if a is not None]
    case = Case("REDUCE_WINDOW", "", late, known.options)
    assert_close(case.run_reference(), known.run_reference())


def reason(case: Case) -> str:
    return case.reason(RULES[case.name], shape=(1, 1))


X = f32(5, 6)
LATE = window("", Function.ADD, X, 0, [2, 2])
REFUSED = {
    "there is no function UNSUPPORTED": window("", Function.UNSUPPORTED, X, 0, [2, 2]),
    "must hold one value": window("", Function.ADD, X, [0, 1], [2, 2]),
    "computed at run time": Case(
        "REDUCE_WINDOW", "", [value(a.value) for a in LATE.inputs if a], LATE.options
    ),
    "'in0' is complex64": window("", Function.ADD, of(np.complex64, 5, 6), 0, [2, 2]),
}


STOPPED = {
    "no function UNSUPPORTED": window("", Function.UNSUPPORTED, X, 0, [2, 2]),
    "windows [2] are not for": window("", Function.ADD, X, 0, [2]),
    "must be positive": window("", Function.ADD, X, 0, [2, 0]),
}
