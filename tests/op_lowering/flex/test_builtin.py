"""TensorFlow's operators that a builtin operator computes."""

from typing import Any

import numpy as np

from jaxdelegate.testing import Arg, Case, const, f32, of, value
from tests.op_lowering.flex.test_math import case


def window(name: str, label: str, inputs: list[Arg], **attributes: Any) -> Case:
    return case(name, label, inputs, attributes=attributes, accumulated=64)


POOL: dict[str, Any] = {"ksize": (1, 2, 2, 3, 1), "strides": (1, 2, 1, 2, 1), "padding": "SAME"}
VOLUME, FILTER = f32(2, 4, 5, 6, 3), f32(2, 3, 2, 3, 4)
STEPS: dict[str, Any] = {"strides": (1, 1, 2, 1, 1), "padding": "VALID"}
K, INT = const(np.int32(3)), np.dtype(np.int32)
COMPLEX, INDICES = of(np.complex64, 2, 5), {"Tpaddings": INT}

CASES = [
    *(case(name, "floats", [f32(2, 3), f32(3, seed=1)]) for name in ("AddV2", "Sub", "Mul")),
    case("RealDiv", "floats", [f32(2, 3), f32(3, low=0.5)]),
    case("AddV2", "int64", [of(np.int64, 2, 3), of(np.int64, 3)]),
    case("Maximum", "floats", [f32(2, 3), f32(3, seed=1)]),
    case("Minimum", "floats", [f32(2, 3), f32(3, seed=1)]),
    case("Minimum", "int32", [of(np.int32, 2, 3), of(np.int32, 3)]),
    case(
        "SelectV2",
        "broadcast",
        [of(np.bool_, 2, 1), f32(2, 3), f32(3, seed=1)],
        [np.float32],
        attributes={"T": np.dtype(np.float32)},
    ),
    case("TopKV2", "rows", [f32(4, 6), K], [np.float32, np.int32], attributes={"sorted": True}),
    case("BatchMatMulV2", "plain", [f32(2, 3, 4), f32(4, 5)], accumulated=4),
    case(
        "BatchMatMulV2",
        "transposed",
        [f32(2, 4, 3), f32(2, 5, 4)],
        attributes={"adj_x": True, "adj_y": True},
        accumulated=4,
    ),
    case(
        "BatchMatMulV3",
        "plain",
        [f32(2, 3, 4), f32(4, 5)],
        attributes=dict.fromkeys(("Ta", "Tb", "Tout"), np.dtype(np.float32)),
        accumulated=4,
    ),
    case("ParallelConcat", "rows", [f32(1, 3), f32(1, 3, seed=1)], attributes={"N": 2}),
    *(case("Abs", np.dtype(d).name, [of(d, 2, 3)]) for d in (np.float32, np.float64)),
    *(case("Softmax", np.dtype(d).name, [of(d, 2, 3)]) for d in (np.float32, np.float64)),
    case("ZerosLike", "complex", [COMPLEX]),
    case("Pad", "complex", [COMPLEX, const(np.int32([[1, 0], [0, 2]]))], attributes=INDICES),
    case("ReverseV2", "complex", [COMPLEX, const(np.int32([1]))], attributes={"Tidx": INT}),
    case("Transpose", "complex", [COMPLEX, const(np.int32([1, 0]))], attributes={"Tperm": INT}),
    case(
        "StridedSlice",
        "complex",
        [COMPLEX, *(const(np.int32(bounds)) for bounds in ([0, 1], [2, 0], [1, 2]))],
        attributes={"Index": INT, "end_mask": 2, "shrink_axis_mask": 1},
    ),
    case(
        "SplitV",
        "rest",
        [f32(2, 9), const(np.int32([2, -1, 3])), const(np.int32(1))],
        [np.float32] * 3,
        attributes={"Tlen": np.dtype(np.int32), "num_split": 3},
    ),
    case(
        "Conv3DBackpropInputV2",
        "same",
        [const(np.int32([1, 3, 4, 5, 2])), f32(2, 2, 3, 2, 4), f32(1, 2, 2, 5, 4)],
        [np.float32],
        attributes={"T": np.dtype(np.float32), "strides": (1, 2, 2, 1, 1), "padding": "SAME"},
        accumulated=64,
    ),
    window("MaxPool3D", "same", [VOLUME], **POOL),
    window("MaxPool3D", "valid", [VOLUME], **{**POOL, "padding": "VALID"}),
    window("AvgPool3D", "same", [VOLUME], **POOL),
    window("AvgPool3D", "valid", [VOLUME], **{**POOL, "padding": "VALID"}),
    window("Conv3D", "valid", [VOLUME, FILTER], **STEPS),
    window("Conv3D", "same", [VOLUME, FILTER], **{**STEPS, "padding": "SAME"}),
]
REFUSED = {
    "depends on data": case("TopKV2", "", [f32(4), value(np.int32(1))], [np.float32, np.int32])
}
IMPOSSIBLE = [
    window("Conv3D", "", [VOLUME, FILTER], **STEPS, data_format="NCDHW"),
    window("Conv3D", "", [VOLUME, FILTER], padding="SAME", strides=(1,)),
    window("Conv3D", "", [VOLUME, FILTER], padding="EXPLICIT", strides=(1, 1, 1, 1, 1)),
]
