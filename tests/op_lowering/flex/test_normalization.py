"""FusedBatchNormV3 and its gradient."""

from typing import Any

import numpy as np

from jaxdelegate.testing import Arg, Case, const, f32, of, value
from tests.op_lowering.flex.test_math import case

F32 = np.float32
X, X5 = f32(2, 4, 3, 5), f32(2, 2, 3, 2, 4)
NONE = const(np.zeros(0, F32))


def vectors(n: int, *, averages: bool = True) -> list[Arg]:
    """Scale, offset, mean, variance."""
    given = [f32(n, low=0.5), f32(n, seed=1)]
    return [*given, *([f32(n, seed=2), f32(n, low=0.5, seed=3)] if averages else [NONE, NONE])]


def normalization(label: str, x: Arg, n: int, *, averages: bool = True, **attributes: Any) -> Case:
    return case(
        "FusedBatchNormV3",
        label,
        [x, *vectors(n, averages=averages)],
        [x.value.dtype, *[F32] * 5],
        attributes={"U": np.dtype(F32), "epsilon": 1e-3, **attributes},
        accumulated=64,
    )


def gradient(label: str, x: Arg, n: int, **attributes: Any) -> Case:
    scale, _, mean, variance = vectors(n)
    dy = of(x.value.dtype, *x.value.shape, seed=5)
    return case(
        "FusedBatchNormGradV3",
        label,
        [dy, x, scale, mean, variance, const(F32(0))],
        [x.value.dtype, *[F32] * 4],
        attributes={"U": np.dtype(F32), "epsilon": 1e-3, **attributes},
        accumulated=256,
    )


CASES = [
    normalization("training", X, 5, averages=False),
    normalization("averages", X, 5, exponential_avg_factor=0.1),
    normalization("channels-first", X, 4, averages=False, data_format="NCHW"),
    normalization("volumes", X5, 4, averages=False, data_format="NDHWC"),
    normalization("one", f32(1, 1, 1, 3), 3, averages=False),
    normalization("float16", of(np.float16, 2, 4, 3, 5), 5, averages=False),
    *(gradient(f"training={t}", X, 5, is_training=t) for t in (False, True)),
    gradient("channels-first", X, 4, data_format="NCHW"),
]
# TensorFlow leaves two results of inference undefined: it is only compared with the reference.
LOWERED = [
    normalization("inference", X, 5, is_training=False),
    normalization("inference-volumes", X5, 2, is_training=False, data_format="NCDHW"),
]
INTEGERS = normalization("", of(np.int32, 2, 4, 3, 5), 5)
REFUSED = {"is int32, not one of": INTEGERS}
IMPOSSIBLE = [
    normalization("", f32(2, 3, 5), 5),
    normalization("", X, 4),
    normalization("", X, 5, data_format="NCDHW"),
    gradient("", X, 5).with_inputs({0: f32(2, 4, 3, 4)}),
    gradient("", X, 5).with_inputs({3: value(np.zeros(2, F32))}),
]
