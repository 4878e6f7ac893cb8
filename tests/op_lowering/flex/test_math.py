"""Functions of single values, gradients, products and counts."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import custom_options
from jaxdelegate.testing import Arg, Case, Tolerance, assert_close, const, f32, of, value
from tests.support.dtypes import BF16
from tests.support.node_defs import flex_options

NO_FLEX = "TensorFlow's operators need TensorFlow"
EDGES = value([-np.inf, -1e30, -5, -1, -0.5, -0.0, 0, 1e-20, 0.5, 1, 6, 88, np.inf, np.nan], "f4")


def case(
    name: str,
    label: str,
    inputs: Sequence[Arg],
    outputs: Sequence[Any] | None = None,
    *,
    attributes: dict[str, Any] | None = None,
    **details: Any,
) -> Case:
    """An operator whose attribute T is the first input's dtype."""
    given = {"T": inputs[0].value.dtype, **(attributes or {})}
    options = custom_options(f"Flex{name}", flex_options(name, **given))
    return Case(f"Flex{name}", label, inputs, options, outputs, litert=NO_FLEX, **details)


def numbers(*values: int) -> Arg:
    return const(np.array(values, np.int32))


def number(n: int) -> Arg:
    return const(np.int32(n))


# Names, and the ranges where they have values.
UNARY = {
    "Acos": (-0.9, 0.9),
    "Acosh": (1.1, 9),
    "Asin": (-0.9, 0.9),
    "Asinh": (-9, 9),
    "Atan": (-9, 9),
    "Atanh": (-0.9, 0.9),
    "Cosh": (-9, 9),
    "Digamma": (0.5, 20),
    "Erf": (-4, 4),
    "Erfc": (-4, 4),
    "Erfinv": (-0.9, 0.9),
    "Expm1": (-4, 4),
    "Lgamma": (0.1, 20),
    "Log1p": (-0.9, 9),
    "Reciprocal": (0.2, 2),
    "Selu": (-4, 4),
    "Sinh": (-9, 9),
    "Softplus": (-30, 30),
    "Softsign": (-9, 9),
    "Tan": (-1.2, 1.2),
}
LGAMMA: dict[str, Any] = {
    "tolerance": Tolerance(4e-6, 4e-6),
    "because": "lax.lgamma adds up terms that cancel near 1 and 2",
}
FUNCTIONS = [
    *(case(name, "float32", [f32(3, 50, low=a, high=b)]) for name, (a, b) in UNARY.items()),
    case("Erf", "edges", [EDGES]),
    case("Erfc", "edges", [EDGES]),
    *(case(name, "edges", [EDGES]) for name in ("Acos", "Acosh", "Atanh", "Log1p", "Reciprocal")),
    case("Lgamma", "negative", [value([-0.5, -1.5, -4.2, -9.9, 1e-20, 1e6], np.float32)]),
    case("Lgamma", "edges", [EDGES]),
    case("Softplus", "edges", [EDGES]),
    case("Selu", "edges", [EDGES]),
    case("Digamma", "negative", [value([-0.7, -2.3, -7.9, 0.01, 1e6], np.float32)]),
    case("Erfinv", "ends", [value([-1, -0.999999, 0, 1e-8, 0.9999999, 1, 1.5], np.float32)]),
    case("Erf", "float64", [of(np.float64, 20)]),
    case("Erf", "float16", [of(np.float16, 20)]),
    case("Log1p", "bfloat16", [of(BF16, 20, low=0, high=9)]),
]
OTHERS = [
    case("ReluGrad", "plain", [f32(4, 5), f32(4, 5, seed=1)]),
    case("Relu6Grad", "plain", [f32(4, 5), f32(4, 5, low=-3, high=9)]),
    case("ReluGrad", "edges", [f32(14), EDGES]),
    *(
        case(name, "int32", [of(np.int32, 3, 4), of(np.int32, 4, low=1, high=40)])
        for name in ("BitwiseAnd", "BitwiseOr", "LeftShift", "TruncateMod")
    ),
    case("LeftShift", "int8", [of(np.int8, 9), value([-1, 0, 1, 6, 7, 8, 9, 100, -128], np.int8)]),
    case("Invert", "int16", [of(np.int16, 9)]),
    case("TruncateMod", "floats", [f32(3, 4, low=-9, high=9), f32(4, low=0.5, high=2)]),
    case("AddN", "three", [f32(4, 5, seed=i) for i in range(3)], attributes={"N": 3}),
    case("AddN", "edges", [EDGES, EDGES], attributes={"N": 2}),
    case("EluGrad", "plain", [f32(4, 5), f32(4, 5, seed=1)]),
    case("EluGrad", "edges", [f32(14), EDGES]),
    case("SoftsignGrad", "plain", [f32(4, 5), f32(4, 5, low=-3, high=9)]),
    case("LeakyReluGrad", "plain", [f32(4, 5), f32(4, 5, seed=1)]),
    case("LeakyReluGrad", "edges", [f32(14), EDGES], attributes={"alpha": 0.5}),
    case("BiasAddGrad", "nhwc", [f32(2, 3, 4, 5)], accumulated=24),
    case("BiasAddGrad", "nchw", [f32(2, 3, 4, 5)], attributes={"data_format": "NCHW"}),
    case("BiasAddGrad", "int32", [of(np.int32, 7, 3)]),
    *(
        case(
            "Cumprod",
            f"{exclusive}-{reverse}",
            [f32(3, 6, 2), number(-2)],
            attributes={"exclusive": exclusive, "reverse": reverse, "Tidx": np.dtype(np.int32)},
        )
        for exclusive in (False, True)
        for reverse in (False, True)
    ),
    case(
        "Cumprod",
        "int64",
        [of(np.int64, 5), number(0)],
        attributes={"Tidx": np.dtype(np.int32)},
    ),
    case("Cumprod", "empty", [f32(2, 0), number(1)], attributes={"exclusive": True}),
    case("Identity", "float32", [f32(2, 3)]),
    case("Identity", "bool", [of(np.bool_, 3)]),
    case(
        "Roll",
        "two",
        [f32(4, 5), numbers(1, -7), numbers(0, 1)],
        attributes={"Tshift": np.dtype(np.int32), "Taxis": np.dtype(np.int32)},
    ),
    case(
        "Roll",
        "twice",
        [of(np.int8, 4, 5), numbers(1, 1), numbers(-1, 1)],
        attributes={"Tshift": np.dtype(np.int32), "Taxis": np.dtype(np.int32)},
    ),
    case("InvertPermutation", "int32", [value([3, 0, 2, 1], np.int32)]),
    case("InvertPermutation", "int64", [value([1, 0], np.int64)]),
]


def bincount(label: str, x: Arg, size: int, weights: Arg) -> Case:
    dtype = weights.value.dtype
    inputs = [x, number(size), weights]
    return case("Bincount", label, inputs, [dtype], attributes={"T": dtype})


NONE = const(np.zeros(0, np.int32))
COUNTED = value([1, 5, 1, 0, 9], np.int32)
COUNTS = [
    bincount("counts", COUNTED, 6, NONE),
    bincount("weights", COUNTED, 6, f32(5)),
    bincount("none", COUNTED, 0, NONE),
    bincount("matrix", value([[1, 2], [2, 2]], np.int32), 4, const(np.zeros(0, np.float32))),
]


def dense_bincount(label: str, x: Arg, size: int, weights: Arg, *, once: bool = False) -> Case:
    dtype = weights.value.dtype
    attributes = {"T": dtype, "Tidx": x.value.dtype, "binary_output": once}
    size_ = const(np.array(size, x.value.dtype))
    return case("DenseBincount", label, [x, size_, weights], [dtype], attributes=attributes)


ROWS_COUNTED, NO_WEIGHTS = value([[1, 2, 2], [0, 7, 1]], np.int32), const(np.zeros(0, np.float32))
COUNTS += [
    dense_bincount("vector", value([1, 5, 1], np.int64), 6, NO_WEIGHTS),
    dense_bincount("rows", ROWS_COUNTED, 3, NO_WEIGHTS),
    dense_bincount("weights", ROWS_COUNTED, 3, f32(2, 3)),
    dense_bincount("once", ROWS_COUNTED, 3, NO_WEIGHTS, once=True),
    dense_bincount("once-weights", ROWS_COUNTED, 3, f32(2, 3), once=True),
]
CASES = [
    *(dataclasses.replace(c, **LGAMMA) if c.name == "FlexLgamma" else c for c in FUNCTIONS),
    *OTHERS,
    *COUNTS,
]

TWICE = case("InvertPermutation", "", [value([0, 0], np.int32)])
NEGATIVE = bincount("", value([-1], np.int32), 2, NONE)
REFUSED = {
    "is int32, not one of": case("Erf", "", [of(np.int32, 3)]),
    "shifts and axes differ": case("Roll", "", [f32(3), numbers(1), numbers(0, 0)]),
    "computed at run time": case("Cumprod", "", [f32(3), value(np.int32(0))]),
    "axis": case("Cumprod", "", [f32(3), number(1)]),
    "weights [2] for values [5]": bincount("", COUNTED, 3, f32(2)),
}
DIVIDED = case("TruncateMod", "zero", [of(np.int32, 3), value([1, 0, 2], np.int32)])
STOPPED = {
    "a divisor is 0": DIVIDED,
    "it is not a permutation": TWICE,
    "a value is negative": NEGATIVE,
    "weights [2] for values [5]": REFUSED["weights [2] for values [5]"],
    "Roll by": REFUSED["shifts and axes differ"],
}


@pytest.mark.parametrize(
    ("name", "x", "y"),
    [
        # TensorFlow 2.17.1: tf.raw_ops.<name>(x=...), float32.
        ("Erf", [-1.5, 0.25, 3.0], [-0.96610516, 0.27632636, 0.9999779]),
        ("Erfinv", [-0.9, 0.25, 0.7], [-1.1630871, 0.22531205, 0.7328691]),
        ("Lgamma", [-1.5, 0.25, 9.0], [0.8600470, 1.2880225, 10.604603]),
        ("Digamma", [-1.5, 0.25, 9.0], [0.7031568, -4.2274537, 2.1406415]),
    ],
)
def test_values_of_tensorflow(name: str, x: list[float], y: list[float]) -> None:
    (found,) = case(name, "", [value(x, np.float32)]).run_reference()
    tolerance = Tolerance(1e-6, 1e-6)
    assert_close([found], [np.float32(y)], tolerance=tolerance, because="two libraries")
