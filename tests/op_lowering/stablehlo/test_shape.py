import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.op_lowering.options import (
    NoOptions,
    Options,
    StablehloBroadcastInDimOptions,
    StablehloConcatenateOptions,
    StablehloDynamicSliceOptions,
    StablehloIotaOptions,
    StablehloPadOptions,
    StablehloSliceOptions,
    StablehloTransposeOptions,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.spec import Shape
from jaxdelegate.testing import Arg, Case, assert_close, const, f32, of, value
from tests.support.dtypes import STABLEHLO
from tests.support.quantized import scaled

NO_KERNEL = "LiteRT has no kernel for this operator"


def case(name: str, label: str, options: Options, *inputs: Arg, **details: Any) -> Case:
    return Case(f"STABLEHLO_{name}", label, list(inputs), options, **details)


def declared(
    name: str, label: str, options: Options, shape: Shape, *inputs: Arg, **details: Any
) -> Case:
    """Only the file has the output's shape."""
    return case(name, label, options, *inputs, litert=NO_KERNEL, shapes=[shape], **details)


def reshape(x: Arg, shape: Shape) -> Case:
    return declared("RESHAPE", f"{x.value.dtype}-{x.value.shape}-{shape}", NoOptions(), shape, x)


def broadcast(x: Arg, dims: tuple[int, ...], shape: Shape) -> Case:
    label = f"{x.value.dtype}-{x.value.shape}-{dims}-{shape}"
    options = StablehloBroadcastInDimOptions(dims)
    return declared("BROADCAST_IN_DIM", label, options, shape, x)


def iota(dtype: Any, shape: Shape, axis: int) -> Case:
    label = f"{np.dtype(dtype)}-{shape}-{axis}"
    return declared("IOTA", label, StablehloIotaOptions(axis), shape, outputs=[dtype])


def transpose(x: Arg, order: tuple[int, ...]) -> Case:
    label = f"{x.value.dtype}-{x.value.shape}-{order}"
    return case("TRANSPOSE", label, StablehloTransposeOptions(order), x, litert=NO_KERNEL)


def concatenate(axis: int, *parts: Arg) -> Case:
    label = f"{parts[0].value.dtype}-{[p.value.shape for p in parts]}-{axis}"
    return case("CONCATENATE", label, StablehloConcatenateOptions(axis), *parts, litert=NO_KERNEL)


def slice_(x: Arg, starts: Shape, limits: Shape, strides: Shape) -> Case:
    label = f"{x.value.dtype}-{x.value.shape}-{starts}-{limits}-{strides}"
    options = StablehloSliceOptions(starts, limits, strides)
    return case("SLICE", label, options, x, litert=NO_KERNEL)


def dynamic_slice(x: Arg, sizes: Shape, starts: list[Any], dtype: Any = np.int32) -> Case:
    label = f"{x.value.dtype}-{x.value.shape}-{sizes}-{np.dtype(dtype)}{starts}"
    scalars = [value(i, dtype) for i in starts]
    options = StablehloDynamicSliceOptions(sizes)
    return case("DYNAMIC_SLICE", label, options, x, *scalars, litert=NO_KERNEL)


def dynamic_update(x: Arg, update: Arg, starts: list[int], dtype: Any = np.int32) -> Case:
    label = f"{x.value.dtype}-{x.value.shape}-{update.value.shape}-{np.dtype(dtype)}{starts}"
    scalars = [value(i, dtype) for i in starts]
    return case("DYNAMIC_UPDATE_SLICE", label, NoOptions(), x, update, *scalars, litert=NO_KERNEL)


def pad(x: Arg, low: Shape, high: Shape, interior: Shape, fill: Any = 7, **details: Any) -> Case:
    label = f"{x.value.dtype}-{x.value.shape}-{low}-{high}-{interior}"
    options = StablehloPadOptions(low, high, interior)
    return case("PAD", label, options, x, value(fill, x.value.dtype), **details)


def dilate(x: Arg, dilations: list[int], fill: Any = 7, **details: Any) -> Case:
    label = f"{x.value.dtype}-{x.value.shape}-{dilations}"
    inputs = [x, const(dilations, np.int32), const(fill, x.value.dtype)]
    return Case("DILATE", label, inputs, NoOptions(), **details)


X = f32(3, 4)
PADS = [
    ((1, 2), (0, 1), (0, 0)),
    ((0, 0), (0, 0), (1, 2)),
    ((-1, 1), (2, -1), (1, 0)),
    ((-2, -3), (5, 4), (2, 1)),
    ((-3, 0), (0, -4), (1, 3)),
    ((3, -9), (-4, 9), (2, 2)),
]
EMPTY = "LiteRT empties every dimension if one is empty"
SMALL = "LiteRT has no element size for it"


def table() -> list[Case]:
    return [
        *(reshape(of(d, 2, 6), (3, 1, 4)) for d in STABLEHLO),
        *(reshape(f32(*a), b) for a, b in (((), (1, 1)), ((1,), ()), ((0, 3), (5, 0)))),
        *(broadcast(of(d, 4), (1,), (3, 4)) for d in STABLEHLO),
        *(
            broadcast(f32(*x), dims, shape)
            for x, dims, shape in (
                ((), (), (2, 3)),
                ((1, 3), (2, 0), (3, 2, 2)),
                ((2, 3), (1, 0), (3, 2)),
                ((2, 1, 3), (4, 2, 0), (3, 1, 5, 2, 2)),
                ((0,), (1,), (3, 0)),
                ((1,), (0,), (0, 2)),
            )
        ),
        *(iota(d, (3, 4), 1) for d in STABLEHLO if d.kind != "b"),
        *(iota(d, (300, 2), 0) for d in (np.int8, np.float16, ml_dtypes.bfloat16)),
        iota(np.float32, (0, 3), 0),
        iota(np.int32, (2, 1, 2, 3, 2), 3),
        *(transpose(of(d, 2, 3), (1, 0)) for d in STABLEHLO),
        *(
            transpose(f32(*s), o)
            for s, o in (((), ()), ((2, 3, 1, 2), (3, 1, 0, 2)), ((0, 2), (1, 0)))
        ),
        *(concatenate(1, of(d, 2, 3), of(d, 2, 1, seed=1), of(d, 2, 3, seed=2)) for d in STABLEHLO),
        concatenate(0, f32(2)),
        concatenate(2, f32(1, 2, 0, 2), f32(1, 2, 3, 2)),
        *(slice_(of(d, 3, 4), (1, 0), (3, 4), (1, 2)) for d in STABLEHLO),
        slice_(f32(), (), (), ()),
        slice_(f32(9), (2,), (2,), (3,)),
        slice_(f32(9), (1,), (9,), (3,)),
        *(dynamic_slice(of(d, 4, 4), (2, 3), [1, 0]) for d in STABLEHLO),
        *(dynamic_slice(f32(4, 4), (2, 3), i) for i in ([-1, 1], [3, 9], [0, -(2**31)])),
        *(
            dynamic_slice(f32(300, 4), (2, 3), [250, 1], d)
            for d in (np.uint8, np.int16, np.uint32, np.int64, np.uint64)
        ),
        dynamic_slice(f32(5, 4), (2, 3), [2**64 - 1, 1], np.uint64),
        dynamic_slice(f32(), (), []),
        dynamic_slice(f32(4, 4), (2, 3), [[1], [0]]),
        dynamic_slice(f32(3, 0), (2, 0), [1, 5]),
        *(dynamic_update(of(d, 4, 4), of(d, 2, 3, seed=1), [1, 1]) for d in STABLEHLO),
        *(dynamic_update(f32(4, 4), f32(2, 3, seed=1), i) for i in ([-5, 3], [9, 9])),
        dynamic_update(f32(5, 4), f32(1, 2, seed=1), [2**63 + 1, 200], np.uint64),
        dynamic_update(f32(), f32(seed=1), []),
        dynamic_update(f32(3, 2), f32(0, 2), [2, 0]),
        *(pad(of(d, 3, 4), *PADS[2], 1, litert=stock(d)) for d in STABLEHLO),
        *(pad(X, *p) for p in PADS),
        pad(f32(), (), (), (), litert="LiteRT needs a rank of at least 1"),
        pad(f32(0, 2), (1, 0), (2, 0), (3, 0), litert="LiteRT refuses empty tensors"),
        pad(X, (-3, 0), (0, 0), (0, 0), litert=EMPTY),
        *(dilate(of(d, 3, 3), [2, 3], 1, litert=stock(d)) for d in STABLEHLO),
        dilate(f32(4), [3]),
        dilate(f32(2, 3, 2), [1, 2, 2]),
        dilate(f32(2, 3, 2), [1, 1, 1]),
        dilate(f32(0, 2), [3, 2], litert="LiteRT refuses empty tensors"),
    ]


def stock(dtype: np.dtype) -> str | None:
    return SMALL if dtype == ml_dtypes.bfloat16 else None


CASES = table()


COUNT = value(np.arange(6, dtype=np.int32).reshape(2, 3))  # [[0, 1, 2], [3, 4, 5]]
# The specification's examples, and plain indexing.
EXAMPLES: list[tuple[Case, Any]] = [
    (reshape(COUNT, (3, 2)), [[0, 1], [2, 3], [4, 5]]),
    (broadcast(value([[1, 2, 3]], np.int32), (2, 1), (2, 3, 2)), [[[1, 1], [2, 2], [3, 3]]] * 2),
    (broadcast(COUNT, (1, 0), (3, 2)), [[0, 3], [1, 4], [2, 5]]),
    (iota(np.int32, (4, 5), 0), [[i] * 5 for i in range(4)]),
    (iota(np.int32, (4, 5), 1), [[0, 1, 2, 3, 4]] * 4),
    (transpose(COUNT, (1, 0)), [[0, 3], [1, 4], [2, 5]]),
    (concatenate(0, COUNT, value([[7, 8, 9]], np.int32)), [[0, 1, 2], [3, 4, 5], [7, 8, 9]]),
    (slice_(COUNT, (0, 0), (2, 3), (1, 2)), [[0, 2], [3, 5]]),
    (dynamic_slice(COUNT, (1, 2), [1, 9]), [[4, 5]]),
    (dynamic_slice(COUNT, (1, 2), [-1, -9]), [[0, 1]]),
    (dynamic_update(COUNT, value([[8, 9]], np.int32), [-1, 3]), [[0, 8, 9], [3, 4, 5]]),
    (
        pad(value([[1, 2, 3], [4, 5, 6]], np.int32), (0, 1), (2, 1), (1, 2), 0),
        [
            [0, 1, 0, 0, 2, 0, 0, 3, 0],
            [0, 0, 0, 0, 0, 0, 0, 0, 0],
            [0, 4, 0, 0, 5, 0, 0, 6, 0],
            [0, 0, 0, 0, 0, 0, 0, 0, 0],
            [0, 0, 0, 0, 0, 0, 0, 0, 0],
        ],
    ),
    (pad(value([1, 2, 3], np.int32), (-1,), (-2,), (2,), 0), [0, 0, 2, 0]),
    (pad(value([1, 2, 3], np.int32), (-2,), (4,), (0,), 9), [3, 9, 9, 9, 9]),
    (dilate(COUNT, [2, 2], -1), [[0, -1, 1, -1, 2], [-1] * 5, [3, -1, 4, -1, 5]]),
]


@pytest.mark.parametrize(("case", "want"), EXAMPLES, ids=str)
def test_examples(case: Case, want: Any) -> None:
    expected = [np.asarray(want, np.int32)]
    assert_close(case.run_reference(), expected)
    assert_close(case.run_lowered(RULES[case.name]), expected)


def test_reference_dilates_by_run_time_values() -> None:
    known = dilate(COUNT, [2, 3])
    late = dataclasses.replace(known, inputs=[COUNT, value([2, 3], np.int32), known.inputs[2]])
    assert_close(late.run_reference(), known.run_reference())


# ---- refusals

SCALE = scaled(0.5, 3)


def reason(case: Case) -> str:
    return case.reason(RULES[case.name], shape=(3, 4))


REFUSED = {
    "'in1' is int8, but 'in0' is float32": concatenate(0, X, of(np.int8, 3, 4)),
    "indices 'in1' are float32": dynamic_slice(X, (1, 1), [0, 0], np.float32),
    "must hold one value": pad(X, (0, 0), (0, 0), (0, 0), [1, 2]),
    "computed at run time": Case("DILATE", "", [X, value([1, 1], np.int32), f32()]),
    "'out0' is bool, not one of": iota(bool, (3, 4), 0),
    "holds strings": reshape(value(np.array([b"a"], object)), (1, 1)),
    "are quantized differently": transpose(
        Arg(of(np.int8, 3, 4).value, quantization=SCALE), (1, 0)
    ),
}


def test_moves_quantized_values_of_one_scale() -> None:
    x = Arg(of(np.int8, 3, 4).value, quantization=SCALE)
    case = dataclasses.replace(transpose(x, (1, 0)), output_quantization=[SCALE])
    assert case.reason(RULES[case.name]) == ""


STOPPED = {
    "does not reshape": reshape(X, (5,)),
    "[2] does not broadcast to [3, 4]": broadcast(f32(2), (0,), (3, 4)),
    "[3, 4] does not broadcast to [3, 4] along [0]": broadcast(X, (0,), (3, 4)),
    "along [0, 0]": broadcast(X, (0, 0), (3, 4)),
    "does not permute": transpose(X, (0, 0)),
    "dimension 2 is outside": concatenate(2, X, X),
    "differ outside of": concatenate(0, X, f32(3, 5)),
    "is not within": slice_(X, (0, 2), (3, 5), (1, 1)),
    "argument 3 is shorter": slice_(X, (0, 2), (3, 4), (1,)),
    "1 starts of (1, 1) in [3, 4]": dynamic_slice(X, (1, 1), [0]),
    "[4, 1] does not fit": dynamic_slice(X, (4, 1), [0, 0]),
    "[4, 4] does not fit": dynamic_update(X, f32(4, 4), [0, 0]),
    "leaves": pad(X, (-2, 0), (-2, 0), (0, 0)),
    "must not be negative": pad(X, (0, 0), (0, 0), (0, -1)),
    "must be positive": dilate(X, [1, 0]),
    "[1] dilations of [3, 4]": dilate(X, [1]),
    "dimension 2 of": iota(np.int32, (3, 4), 2),
}
