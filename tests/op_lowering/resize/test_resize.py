from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.op_lowering.options import ResizeBilinearOptions, ResizeNearestNeighborOptions
from jaxdelegate.testing import Arg, Case, const, f32, of, value
from tests.support.dtypes import NO_KERNEL
from tests.support.quantized import scaled

MODES = {"plain": {}, "aligned": {"align_corners": True}, "half": {"half_pixel_centers": True}}
BOTH = {"align_corners": True, "half_pixel_centers": True}
SIZES = [
    ((1, 3, 4, 2), (6, 8)),
    ((2, 5, 7, 3), (3, 2)),
    ((1, 4, 4, 1), (4, 4)),
    ((1, 3, 3, 1), (1, 1)),
    ((1, 1, 1, 2), (3, 5)),
    ((1, 7, 9, 1), (16, 11)),
    ((0, 3, 3, 2), (2, 2)),
    ((1, 3, 3, 0), (2, 2)),
]
ODD = np.float32([[1, np.inf, 2], [3, np.nan, -np.inf], [4, 5, 6]]).reshape(1, 3, 3, 1)
SCALE = scaled(0.5, 3)


def bilinear(label: str, x: Arg, size: Any, mode: dict[str, bool], **details: Any) -> Case:
    options = ResizeBilinearOptions(**mode)
    size = size if isinstance(size, Arg) else const(size, "int32")
    return Case("RESIZE_BILINEAR", label, [x, size], options, version=3, **details)


def nearest(label: str, x: Arg, size: Any, mode: dict[str, bool], **details: Any) -> Case:
    options = ResizeNearestNeighborOptions(**mode)
    size = size if isinstance(size, Arg) else const(size, "int32")
    return Case("RESIZE_NEAREST_NEIGHBOR", label, [x, size], options, version=3, **details)


def image(dtype: Any, *shape: int) -> Arg:
    return (
        of(dtype, *shape, low=-128, high=127)
        if np.dtype(dtype).kind == "i"
        else of(dtype, *shape, low=0, high=255)
    )


def bilinear_cases() -> list[Case]:
    integers = [np.uint8, np.int8, np.int16]
    return [
        case
        for mode, flags in MODES.items()
        for case in [
            *(bilinear(f"{mode}-{a}-{b}", f32(*a), b, flags) for a, b in SIZES),
            *(
                bilinear(f"{mode}-{np.dtype(d).name}-{a}-{b}", image(d, *a), b, flags)
                for d in integers
                for a, b in SIZES
            ),
            *(
                bilinear(
                    f"{mode}-{np.dtype(d).name}",
                    image(d, 1, 5, 4, 2),
                    (7, 9),
                    flags,
                    litert=NO_KERNEL,
                )
                for d in (np.float16, ml_dtypes.bfloat16, np.float64)
            ),
            bilinear(f"{mode}-odd", value(ODD), (5, 4), flags),
        ]
    ] + [
        bilinear("int16-limits", value(np.full((1, 2, 2, 1), -32768, np.int16)), (5, 5), {}),
        bilinear("uint8-limits", value(np.full((1, 2, 2, 1), 255, np.uint8)), (7, 5), {}),
    ]


def nearest_cases() -> list[Case]:
    stock = [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.float16, np.bool_]
    others = [np.int64, np.float64, np.complex64, ml_dtypes.bfloat16]
    modes = {**MODES, "both": BOTH}
    return [
        case
        for mode, flags in modes.items()
        for case in [
            *(nearest(f"{mode}-{a}-{b}", f32(*a), b, flags) for a, b in SIZES),
            *(
                nearest(f"{mode}-{np.dtype(d).name}", of(d, 1, 5, 4, 2), (7, 3), flags)
                for d in stock
            ),
            *(
                nearest(
                    f"{mode}-{np.dtype(d).name}", of(d, 1, 5, 4, 2), (7, 3), flags, litert=NO_KERNEL
                )
                for d in others
            ),
            nearest(
                f"{mode}-ramp",
                value(np.arange(50, dtype=np.float32).reshape(1, 5, 10, 1)),
                (13, 35),
                flags,
            ),
        ]
    ] + [nearest("no-rows", f32(1, 3, 3, 1), (0, 5), {})]


INT8 = Arg(image(np.int8, 1, 3, 4, 2).value, quantization=SCALE)
COMPILED_IN_PART = True
CASES = [
    *bilinear_cases(),
    *nearest_cases(),
    bilinear("quantized", INT8, (5, 6), MODES["half"], output_quantization=[SCALE]),
    nearest("quantized", INT8, (5, 6), MODES["half"], output_quantization=[SCALE]),
]


@pytest.mark.parametrize("make", [bilinear, nearest])
def test_reference_resizes_to_a_run_time_size(make: Any) -> None:
    late = make("", f32(1, 3, 4, 2), value([5, 6], "int32"), {})
    known = make("", f32(1, 3, 4, 2), [5, 6], {})
    late.check(late.run_reference(), known.run_reference())


X = f32(1, 3, 3, 1)
REFUSED = {
    "depends on data": bilinear("late", X, value([2, 2], "int32"), {}),
    "exclude each other": bilinear("both", X, (2, 2), BOTH),
    "the size is [0, 2]": bilinear("none", X, (0, 2), {}),
    "the size is [-1, 2]": nearest("negative", X, (-1, 2), {}),
    "has no pixels": nearest("pixels", f32(1, 0, 3, 1), (2, 2), {}),
    "is int32, not one of": bilinear("int32", of(np.int32, 1, 2, 2, 1), (2, 2), {}),
    "'in1' is int64": nearest("int64", X, const([2, 2], "int64"), {}),
    "rank 4 and 2 sizes": nearest("sizes", X, (2, 2, 2), {}),
}
STOPPED = {"align_corners": REFUSED["exclude each other"]}
