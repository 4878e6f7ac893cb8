from typing import Any

import ml_dtypes
import numpy as np

from jaxdelegate.measuring.tolerance import Tolerance
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    L2NormOptions,
    LocalResponseNormalizationOptions,
    NoOptions,
    Options,
    SoftmaxOptions,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.testing import Arg, Case, f32, of, value
from tests.support.dtypes import NO_KERNEL
from tests.support.quantized import scaled

NAN, INF = np.nan, np.inf
CRASHES = "LiteRT crashes on rows without values"
SLIDES = "the optimized kernel adds to and takes from one running sum"
OF_ROWS: dict[str, Options] = {
    "SOFTMAX": SoftmaxOptions(beta=1.0),
    "LOG_SOFTMAX": NoOptions(),
    "L2_NORMALIZATION": L2NormOptions(),
}
ODD = np.float32([[1, 2, NAN], [1, INF, 2], [-INF, 0, 1], [-INF, -INF, -INF], [0, 0, 0]])
LARGE = np.float32([[1e38, 2e38, -3e38], [88, 89, 90], [-1e4, 1e4, 0], [1e-20, 1e-21, 0]])


def rows(name: str, label: str, x: Any, **details: Any) -> Case:
    x = x if isinstance(x, Arg) else value(x)
    return Case(name, label, [x], OF_ROWS[name], accumulated=x.value.shape[-1] or 1, **details)


def softmax(beta: float) -> Case:
    return Case("SOFTMAX", f"beta{beta}", [f32(3, 5)], SoftmaxOptions(beta))


def local_response(label: str, x: Arg, radius: int, *parameters: float) -> Case:
    options = LocalResponseNormalizationOptions(radius, *parameters)
    name = "LOCAL_RESPONSE_NORMALIZATION"
    return Case(name, label, [x], options, tolerance=Tolerance(1e-4, 1e-5), because=SLIDES)


SHAPES = [
    (7,),
    (2, 3),
    (2, 3, 4),
    (2, 3, 1, 5),
    (1, 2, 1, 3, 4),
    (2, 1, 2, 1, 2, 3),
    (2, 1),
    (0, 3),
]
ROW_CASES = [
    case
    for name in OF_ROWS
    for case in [
        *(rows(name, f"{shape}", f32(*shape)) for shape in SHAPES),
        rows(name, "odd", ODD),
        rows(name, "large", LARGE),
        rows(name, "long", f32(2, 1001)),
        rows(name, "no-values", np.zeros((2, 0), np.float32), litert=CRASHES),
        rows(name, "bfloat16", of(ml_dtypes.bfloat16, 3, 9), litert=NO_KERNEL),
        rows(name, "float64", of(np.float64, 3, 9), litert=NO_KERNEL),
    ]
]
CASES = [
    *ROW_CASES,
    *(softmax(beta) for beta in (0.0, 0.25, 3.0, -1.0)),
    rows("SOFTMAX", "float16", of(np.float16, 3, 9)),
    rows("LOG_SOFTMAX", "float16", of(np.float16, 3, 9), litert=NO_KERNEL),
    rows("L2_NORMALIZATION", "float16", value(np.full((2, 3), 300, np.float16)), litert=NO_KERNEL),
    rows("L2_NORMALIZATION", "epsilon", np.float32([[1e-7, 0], [2e-6, 0], [-1e-6, 0]])),
    local_response("radius0", f32(1, 2, 2, 6), 0, 1.0, 0.5, 0.75),
    local_response("radius2", f32(2, 3, 2, 9), 2, 2.0, 0.3, 0.75),
    local_response("root", f32(1, 2, 2, 6), 1, 1.0, 1.0, 0.5),
    local_response("inverse", f32(1, 2, 2, 6), 2, 1.0, 1.0, 1.0),
    local_response("wide", f32(1, 2, 2, 4), 20, 1.0, 0.1, 0.75),
    local_response("negative-base", f32(1, 1, 1, 4), 1, -9.0, 0.1, 0.75),
    local_response("one-channel", f32(1, 2, 2, 1), 5, 1.0, 1.0, 0.5),
]


def run_litert(case: Case) -> list[np.ndarray]:
    # BUILTIN_REF leaves the last neighbor out of LOCAL_RESPONSE_NORMALIZATION; TensorFlow does not.
    return case.run_litert(optimized=case.name == "LOCAL_RESPONSE_NORMALIZATION")


def test_local_response_in_half_precision() -> None:
    options = LocalResponseNormalizationOptions(2, 1.0, 1.0, 0.5)
    x = value(np.full((1, 1, 1, 6), 300, np.float16))  # squares exceed float16
    case = Case("LOCAL_RESPONSE_NORMALIZATION", "", [x], options)
    case.check(case.run_lowered(RULES[case.name]), case.run_reference())


SCALE = scaled(0.5)
INT8 = Arg(np.int8([1, 2]).reshape(1, 1, 1, 2), quantization=SCALE)
RELU = L2NormOptions(ActivationFunctionType.RELU)
REFUSED = {
    "is a scalar": Case("SOFTMAX", "scalar", [value(np.float32(1))], SoftmaxOptions(1.0)),
    "is quantized int8": local_response("int8", INT8, 1, 1.0, 1.0, 1.0),
    "is int32, not one of": rows("L2_NORMALIZATION", "int32", of(np.int32, 2, 3)),
    "without a fused activation, not with RELU": Case("L2_NORMALIZATION", "", [f32(2)], RELU),
    "has rank 3, not 4": local_response("rank", f32(2, 2, 2), 1, 1.0, 1.0, 1.0),
    "radius -1 is negative": local_response("radius", f32(1, 1, 1, 2), -1, 1.0, 1.0, 1.0),
}
STOPPED = {("quantized int8", TypeError): REFUSED["is quantized int8"]}
