from typing import Any

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.options import (
    StablehloConvolutionOptions,
    StablehloDotGeneralOptions,
    StablehloPrecisionConfig,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.testing import Arg, Case, assert_close, f32, of, value
from tests.support.dtypes import STABLEHLO
from tests.support.quantized import scaled

Dims = tuple[int, ...]


def dot(
    x: Arg,
    w: Arg,
    contract: tuple[Dims, Dims],
    batch: tuple[Dims, Dims] = ((), ()),
    dtype: Any = None,
) -> Case:
    options = StablehloDotGeneralOptions(*batch, *contract, (StablehloPrecisionConfig.DEFAULT,) * 2)
    y = np.dtype(dtype or x.value.dtype)
    label = f"{x.value.dtype}-{y}-{x.value.shape}-{w.value.shape}-{contract}-{batch}"
    k = int(np.prod([x.value.shape[d] for d in contract[0]]))
    return Case("STABLEHLO_DOT_GENERAL", label, [x, w], options, outputs=[y], accumulated=max(k, 1))


MATRIX = ((1,), (0,))


def dots() -> list[Case]:
    return [
        *(dot(of(d, 3, 4, high=9), of(d, 4, 5, high=9, seed=1), MATRIX) for d in STABLEHLO),
        *(
            dot(of(a, 3, 4, low=-99, high=99), of(a, 4, 5, low=-99, high=99), MATRIX, dtype=b)
            for a, b in (
                (np.int8, np.int32),
                (np.uint8, np.int32),
                (np.int32, np.int64),
                (np.float16, np.float32),
                (ml_dtypes.bfloat16, np.float32),
                (np.float32, np.float64),
                (np.float32, np.float16),
            )
        ),
        *(
            dot(f32(*x), f32(*w, seed=1), contract, batch)
            for x, w, contract, batch in (
                ((4,), (4,), ((0,), (0,)), ((), ())),
                ((3,), (2,), ((), ()), ((), ())),
                ((), (), ((), ()), ((), ())),
                ((2, 3, 4), (2, 4, 5), ((2,), (1,)), ((0,), (0,))),
                ((4, 2, 3), (5, 3, 4, 2), ((2, 0), (1, 2)), ((1,), (3,))),
                ((2, 3, 4, 5), (3, 2, 6), ((), ()), ((0, 1), (1, 0))),
                ((0, 3), (3, 2), MATRIX, ((), ())),
                ((2, 0), (0, 3), MATRIX, ((), ())),
            )
        ),
    ]


NHWC: dict[str, Any] = {
    "input_batch_dimension": 0,
    "input_feature_dimension": 3,
    "input_spatial_dimensions": (1, 2),
    "kernel_input_feature_dimension": 2,
    "kernel_output_feature_dimension": 3,
    "kernel_spatial_dimensions": (0, 1),
    "output_batch_dimension": 0,
    "output_feature_dimension": 3,
    "output_spatial_dimensions": (1, 2),
}
ODD_LAYOUT: dict[str, Any] = {
    "input_batch_dimension": 2,
    "input_feature_dimension": 0,
    "input_spatial_dimensions": (3, 1),
    "kernel_input_feature_dimension": 1,
    "kernel_output_feature_dimension": 0,
    "kernel_spatial_dimensions": (3, 2),
    "output_batch_dimension": 1,
    "output_feature_dimension": 3,
    "output_spatial_dimensions": (2, 0),
}


def convolution(
    label: str,
    x: Arg,
    w: Arg,
    dtype: Any = None,
    layout: dict[str, Any] = NHWC,
    k: int = 36,
    **o: Any,
) -> Case:
    options = StablehloConvolutionOptions(**{**layout, **o})
    y = np.dtype(dtype or x.value.dtype)
    name = f"{x.value.dtype}-{y}-{label}"
    return Case("STABLEHLO_CONVOLUTION", name, [x, w], options, outputs=[y], accumulated=k)


X, W = f32(2, 7, 8, 4), f32(3, 2, 4, 6, seed=1)
WINDOWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "strides": {"window_strides": (2, 3)},
    "padding": {"padding": (1, 2, 0, 3)},
    "cropping": {"padding": (-1, 2, 1, -3)},
    "base": {"lhs_dilation": (2, 3), "padding": (1, 0, -2, 1)},
    "dilated": {"rhs_dilation": (2, 3)},
    "reversed": {"window_reversal": (True, False)},
    "both reversed": {"window_reversal": (True, True), "window_strides": (1, 2)},
    "all": {
        "window_strides": (2, 1),
        "padding": (2, -1, 3, 1),
        "lhs_dilation": (2, 1),
        "rhs_dilation": (1, 2),
        "window_reversal": (False, True),
    },
    "too large": {"rhs_dilation": (4, 1)},
    "nothing": {"padding": (-4, -3, 0, 0)},
}


def layout_of(rank: int) -> dict[str, Any]:
    """Images [N, *spatial, C] of this number of spatial dimensions, filters [*spatial, I, O]."""
    spatial = tuple(range(rank + 1))
    return {
        **NHWC,
        "input_feature_dimension": rank + 1,
        "input_spatial_dimensions": spatial[1:],
        "kernel_input_feature_dimension": rank,
        "kernel_output_feature_dimension": rank + 1,
        "kernel_spatial_dimensions": spatial[:-1],
        "output_feature_dimension": rank + 1,
        "output_spatial_dimensions": spatial[1:],
    }


def convolutions() -> list[Case]:
    return [
        *(convolution(label, X, W, **o) for label, o in WINDOWS.items()),
        *(
            convolution("dtype", of(d, 1, 4, 5, 2, high=9), of(d, 2, 2, 2, 3, high=9, seed=1))
            for d in STABLEHLO
        ),
        *(
            convolution("wider", of(a, 1, 4, 5, 2, high=99), of(a, 2, 2, 2, 3, high=99), b)
            for a, b in ((np.int8, np.int32), (np.float16, np.float32), (np.float32, np.float64))
        ),
        convolution("features", X, f32(3, 2, 2, 6, seed=1), feature_group_count=2),
        convolution("depthwise", X, f32(3, 2, 1, 8, seed=1), feature_group_count=4),
        convolution("batches", X, f32(3, 2, 4, 6, seed=1), batch_group_count=2),
        convolution("all batches", f32(6, 5, 5, 2), f32(2, 2, 2, 6), batch_group_count=6),
        convolution("layout", f32(4, 7, 2, 8), f32(6, 4, 2, 3, seed=1), layout=ODD_LAYOUT),
        convolution(
            "layout and groups",
            f32(4, 7, 2, 8),
            f32(6, 2, 2, 3, seed=1),
            layout=ODD_LAYOUT,
            feature_group_count=2,
            window_reversal=(True, False),
            window_strides=(2, 1),
        ),
        convolution("1d", f32(2, 9, 3), f32(4, 3, 5), layout=layout_of(1), padding=(1, 2)),
        convolution("0d", f32(2, 3), f32(3, 5), layout=layout_of(0)),
        convolution("3d", f32(1, 4, 5, 3, 2), f32(2, 3, 2, 2, 3), layout=layout_of(3)),
        convolution("no features", f32(1, 3, 3, 0), f32(2, 2, 0, 2)),
        convolution("no batch", f32(0, 3, 3, 2), f32(2, 2, 2, 2)),
        convolution("no window", f32(1, 3, 3, 2), f32(2, 0, 2, 2)),
    ]


LOWERED = [*dots(), *convolutions()]


ON_GPU = [c for c in LOWERED if "float16" in str(c)]  # devices multiply it as it is


def both(case: Case) -> list[list[np.ndarray]]:
    return [case.run_reference(), case.run_lowered(RULES[case.name])]


def test_dot_example_of_the_specification() -> None:
    x = value(np.int32([[[1, 2], [3, 4]], [[5, 6], [7, 8]]]))
    w = value(np.int32([[[1, 0], [0, 1]], [[1, 0], [0, 1]]]))
    for got in both(dot(x, w, ((2,), (1,)), ((0,), (0,)))):
        assert_close(got, [x.value])


def test_dot_contracts_several_dimensions() -> None:
    x, w = f32(4, 2, 3), f32(5, 3, 4, 2, seed=1)
    want = np.einsum("abc,dcab->bd", x.value, w.value)
    for got in both(dot(x, w, ((2, 0), (1, 2)), ((1,), (3,)))):
        assert_close(got, [want], accumulated=12)


def test_dot_of_booleans_is_whether_any_pair_is_true() -> None:
    x, w = value([[True, True], [False, True]]), value([[True, False], [True, False]])
    for got in both(dot(x, w, MATRIX)):
        assert_close(got, [np.array([[True, False], [True, False]])])


def test_wide_sums_of_bytes() -> None:
    x = value(np.full((1, 1000), -128, np.int8))
    for got in both(dot(x, value(x.value.T), MATRIX, dtype=np.int32)):
        assert_close(got, [np.int32([[16384000]])])


def test_convolution_example_of_the_specification() -> None:
    grid = [[1, 2, 5, 6], [3, 4, 7, 8], [10, 11, 14, 15], [12, 13, 16, 17]]
    x = value(np.int32(grid).reshape(1, 4, 4, 1))
    w = value(np.ones((3, 3, 1, 1), np.int32))
    case = convolution(
        "",
        x,
        w,
        window_strides=(4, 4),
        padding=(0, 0, 0, 0),
        lhs_dilation=(2, 2),
        rhs_dilation=(1, 1),
        window_reversal=(False, False),
        feature_group_count=1,
        batch_group_count=1,
        precision_config=(StablehloPrecisionConfig.DEFAULT,) * 2,
    )
    for got in both(case):
        assert_close(got, [np.int32([[10, 26], [46, 62]]).reshape(1, 2, 2, 1)])


def test_reversal_turns_correlation_into_convolution() -> None:
    x, w = f32(1, 9, 1), f32(4, 1, 1, seed=1)
    want = np.convolve(x.value[0, :, 0], w.value[:, 0, 0], "valid").reshape(1, -1, 1)
    for got in both(convolution("", x, w, layout=layout_of(1), window_reversal=(True,))):
        assert_close(got, [want], accumulated=4)


def test_batch_groups_have_separate_kernels() -> None:
    x, w = f32(4, 3, 3, 2), f32(3, 3, 2, 2, seed=1)
    first = np.einsum("nhwc,hwc->n", x.value[:2], w.value[..., 0])
    second = np.einsum("nhwc,hwc->n", x.value[2:], w.value[..., 1])
    want = np.stack([first, second], -1).reshape(2, 1, 1, 2)
    for got in both(convolution("", x, w, batch_group_count=2)):
        assert_close(got, [want], accumulated=18)


# ---- refusals


def reason(case: Case) -> str:
    return case.reason(RULES[case.name], shape=(1,) * case.inputs[0].value.ndim)  # type: ignore[union-attr]


QUANTIZED = Arg(of(np.int8, 3, 4).value, quantization=scaled(1))
A = f32(3, 4)
REFUSED = {
    "'in0' is float32 and 'in1' int8": dot(A, of(np.int8, 4, 3), MATRIX),
    "products of float32 are not int32": dot(A, f32(4, 3), MATRIX, dtype=np.int32),
    "'in0' is quantized": dot(QUANTIZED, QUANTIZED, ((1,), (1,))),
}


def test_refuses_integer_convolutions_except_on_a_cpu() -> None:
    case = convolution("", of(np.int8, 1, 3, 3, 1), of(np.int8, 2, 2, 1, 1))
    gpu = RULES[case.name].reason(case.op(LoweringContext("gpu")))
    assert "gpu libraries have no convolution of int8" in str(gpu)
    assert reason(case) == ""


STOPPED = {
    "do not match": dot(A, A, MATRIX),
    "lhs dimensions [1, 1] do not fit": dot(A, A, ((1,), (1,)), ((1,), (0,))),
    "rhs dimensions [2] do not fit": dot(A, A, ((1,), (2,))),
    "do not match in (0, 1)": dot(A, A, ((1,), ()), ((0,), (0, 1))),
    "not 2 groups of 4": convolution("", X, W, feature_group_count=2),
    "are not the dimensions": convolution("", X, W, layout={**NHWC, "input_batch_dimension": 1}),
    "do not fit 2": convolution("", X, W, rhs_dilation=(0, 1)),
    "do not fit 2 dimensions": convolution("", X, W, window_strides=(1,)),
    "padding=(1, 2, 3, 4, 5)": convolution("", X, W, padding=(1, 2, 3, 4, 5)),
    "groups of both kinds": convolution(
        "", f32(2, 7, 8, 8), W, feature_group_count=2, batch_group_count=2
    ),
    ("quantized int8", TypeError): dot(QUANTIZED, QUANTIZED, ((1,), (1,))),
}
