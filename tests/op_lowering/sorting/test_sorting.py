import dataclasses
from typing import Any

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.options import BucketizeOptions, NoOptions
from jaxdelegate.testing import Arg, Case, const, of, value
from tests.support.dtypes import NO_KERNEL
from tests.support.quantized import scaled

NAN, INF = np.nan, np.inf
ODD = np.float32(
    [
        [1, NAN, 3, 3, -INF],
        [NAN, NAN, NAN, -INF, NAN],
        [0.0, -0.0, 0.0, -0.0, -1e-45],
        [-2, -3, INF, 2e-45, INF],
    ]
)
STOCK = [np.int8, np.uint8, np.int16, np.int32, np.int64]
OTHERS = [np.uint16, np.uint32, np.uint64, np.float16, ml_dtypes.bfloat16, np.float64]


def topk(label: str, x: Any, k: Any, index: Any = np.int32, **details: Any) -> Case:
    x = x if isinstance(x, Arg) else value(x)
    k = k if isinstance(k, Arg) else const(k, "int32")
    return Case("TOPK_V2", label, [x, k], NoOptions(), [x.value.dtype, index], version=3, **details)


def bucketize(label: str, x: Any, boundaries: tuple[float, ...], **details: Any) -> Case:
    return Case("BUCKETIZE", label, [value(x)], BucketizeOptions(boundaries), [np.int32], **details)


EDGES = (-1.5, 0.0, 0.0, 2.5, 16777216.0)
NEAR_EDGES = np.array([-2, -1.5, -0.0, 1, 2.5, 16777215, 16777216, 16777217])
CASES = [
    *(topk(f"odd{k}", ODD, k) for k in range(6)),
    *(topk(np.dtype(d).name, of(d, 3, 9, low=-120, high=120), 4) for d in STOCK),
    *(topk(np.dtype(d).name, of(d, 3, 9), 4, litert=NO_KERNEL) for d in OTHERS),
    topk("bfloat16-odd", ODD.astype(ml_dtypes.bfloat16), 5, litert=NO_KERNEL),
    topk("limits", np.array([[-(2**31), 2**31 - 1, 0, -(2**31)]], np.int32), 4),
    topk("all-equal", np.zeros((2, 40), np.float32), 17),
    topk("vector", of(np.float32, 7), [3]),
    topk("rank4", of(np.float32, 2, 1, 3, 5), 2),
    topk("negative", of(np.float32, 2, 3), -1),
    topk("empty", np.zeros((0, 3), np.float32), 2),
    topk("int16", of(np.float32, 2, 5), const(3, "int16"), np.int16),
    topk("mixed", of(np.float32, 2, 5), const(3, "int16"), np.int32),
    *(
        bucketize(np.dtype(d).name, NEAR_EDGES.astype(d), EDGES)
        for d in (np.float32, np.float64, np.int32, np.int64)
    ),
    bucketize("odd", ODD[:2], EDGES),
    bucketize("none", ODD[:2], ()),
    bucketize("scalar", np.float32(3), EDGES),
    bucketize("rank3", of(np.float32, 2, 3, 4).value, EDGES),
    bucketize("empty", np.zeros((2, 0), np.float32), EDGES),
    bucketize("float16", NEAR_EDGES[:5].astype(np.float16), EDGES, litert=NO_KERNEL),
]
SCALE = scaled(0.5, 3)
INT8 = Arg(of(np.int8, 3, 4, low=-100, high=100).value, quantization=SCALE)


QUANTIZED = topk("quantized", INT8, 2, output_quantization=[SCALE, None])
CASES.append(QUANTIZED)


X = of(np.float32, 2, 3)
REFUSED = {
    "depends on data": topk("late", X, value(2, "int32")),
    "k is 4, of 3 values": topk("many", X, 4),
    "holds 2 values, not one": topk("ks", X, [1, 2]),
    "'in1' is int64": topk("k64", X, const(2, "int64")),
    "'out1' is int64": topk("index64", X, 2, np.int64),
    "is bool, not one of": topk("bool", of(bool, 2, 3), 1),
    "is a scalar": topk("scalar", np.float32(1), 0),
    "boundaries are not sorted": bucketize("unsorted", ODD, (1.0, 0.0)),
    "is int8, not one of": bucketize("int8", np.int8([1]), EDGES),
    "'in0' and 'out0' are quantized differently": dataclasses.replace(
        QUANTIZED, output_quantization=[scaled(0.5, 4), None]
    ),
}


STOPPED = {
    "k is 4, of 3 values": topk("many", X, 4),
    "not sorted": bucketize("unsorted", ODD, (1.0, 0.0)),
}
