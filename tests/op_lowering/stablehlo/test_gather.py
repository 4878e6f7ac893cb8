import dataclasses
from typing import Any

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.options import StablehloGatherOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.testing import Arg, Case, assert_close, f32, of, value
from tests.support.dtypes import STABLEHLO
from tests.support.quantized import scaled

SIZES = "LiteRT has no gather for elements of this size"
INDICES = "LiteRT takes int32 and int64 indices only"
EMPTY = "LiteRT refuses empty tensors"
# Rows of [3, 4, 2] from two coordinates, the second first, as in the specification's example.
SPEC: dict[str, Any] = {
    "offset_dims": (2, 3),
    "collapsed_slice_dims": (0,),
    "start_index_map": (1, 0),
    "index_vector_dim": 2,
    "slice_sizes": (1, 2, 2),
}


def gather(label: str, x: Arg, indices: Arg, litert: str | None = None, **o: Any) -> Case:
    name = f"{label}-{x.value.dtype}-{indices.value.dtype}"
    options = StablehloGatherOptions(**{**SPEC, **o})
    return Case("STABLEHLO_GATHER", name, [x, indices], options, litert=litert)


def places(*shape: int, dtype: Any = np.int32, high: int = 5) -> Arg:
    return of(dtype, *shape, low=-2, high=high)


def stock(dtype: np.dtype) -> str | None:
    known = dtype.itemsize <= 8 and dtype != ml_dtypes.bfloat16
    return None if known else SIZES


def cases() -> list[Case]:
    rows: dict[str, Any] = {
        "offset_dims": (1,),
        "collapsed_slice_dims": (0,),
        "start_index_map": (0,),
        "index_vector_dim": 1,
        "slice_sizes": (1, 4),
    }
    points: dict[str, Any] = {
        "offset_dims": (),
        "collapsed_slice_dims": (0, 1, 2),
        "start_index_map": (2, 0, 1),
        "index_vector_dim": 0,
        "slice_sizes": (1, 1, 1),
    }
    blocks: dict[str, Any] = {
        "offset_dims": (0, 2, 3),
        "collapsed_slice_dims": (),
        "start_index_map": (2, 1),
        "index_vector_dim": 1,
        "slice_sizes": (2, 1, 2),
    }
    return [
        *(gather("spec", of(d, 3, 4, 2), places(2, 3, 2), stock(d)) for d in STABLEHLO),
        *(
            gather("index", f32(3, 4, 2), places(2, 3, 2, dtype=d), INDICES)
            for d in (np.int8, np.int16, np.uint8, np.uint32, np.uint64)
        ),
        gather("index", f32(3, 4, 2), places(2, 3, 2, dtype=np.int64)),
        gather("rows", f32(5, 4), places(7, 1), **rows),
        gather(
            "single indices", f32(5, 4), places(7), "LiteRT reads one dimension too many", **rows
        ),
        gather(
            "one index",
            f32(5, 4),
            value([2], np.int32),
            **{**rows, "offset_dims": (0,), "index_vector_dim": 0},
        ),
        gather("points", f32(3, 4, 2), places(3, 6), **points),
        gather("blocks", f32(3, 4, 2), places(3, 2, 2), **blocks),
        gather(
            "sorted", f32(5, 4), value([[0], [1], [4]], np.int32), indices_are_sorted=True, **rows
        ),
        gather("no indices", f32(5, 4), places(0, 1), EMPTY, **rows),
        gather("no elements", f32(5, 0), places(3, 1), EMPTY, **{**rows, "slice_sizes": (1, 0)}),
        gather("long", f32(300, 4), places(7, 1, dtype=np.uint8, high=255), INDICES, **rows),
        gather("far", f32(5, 4), value([[2**62], [-(2**62)], [3]], np.int64), **rows),
        gather("farther", f32(5, 4), value([[2**64 - 1], [3]], np.uint64), INDICES, **rows),
    ]


CASES = cases()


def test_example_of_the_specification() -> None:
    x = np.arange(1, 25, dtype=np.int32).reshape(3, 4, 2)
    indices = [[[0, 0], [1, 0], [2, 1]], [[0, 1], [1, 1], [0, 9]]]
    want = [
        [[[1, 2], [3, 4]], [[3, 4], [5, 6]], [[13, 14], [15, 16]]],
        [[[9, 10], [11, 12]], [[11, 12], [13, 14]], [[17, 18], [19, 20]]],
    ]
    case = gather("", value(x), value(indices, np.int64))
    assert_close(case.run_reference(), [np.int32(want)])
    assert_close(case.run_lowered(RULES[case.name]), [np.int32(want)])


SCALE = scaled(0.5, 3)


def reason(case: Case) -> str:
    return case.reason(RULES[case.name], shape=(2, 3, 2, 2))


X, PLACES = f32(3, 4, 2), places(2, 3, 2)
REFUSED = {
    "indices 'in1' are float32": gather("", X, f32(2, 3, 2)),
    "are quantized differently": gather(
        "", Arg(of(np.int8, 3, 4, 2).value, quantization=SCALE), PLACES
    ),
}
STOPPED = {
    "index_vector_dim 4 is outside": gather("", X, PLACES, index_vector_dim=4),
    "3 indices for (1, 0)": gather("", X, places(2, 3, 3)),
    "start_index_map [0, 0] do not fit": gather("", X, PLACES, start_index_map=(0, 0)),
    "collapsed_slice_dims [3] do not fit": gather("", X, PLACES, collapsed_slice_dims=(3,)),
    "offset_dims [3, 2] do not fit": gather("", X, PLACES, offset_dims=(3, 2)),
    "(3,) for slices": gather("", X, PLACES, offset_dims=(3,)),
    "slices (1, 2) of": gather("", X, PLACES, slice_sizes=(1, 2)),
    "slices of (1, 2, 3) do not fit": gather("", X, PLACES, slice_sizes=(1, 2, 3)),
    "collapses slices": gather("", X, PLACES, slice_sizes=(2, 2, 2)),
}


def test_gathers_quantized_values_of_one_scale() -> None:
    x = Arg(of(np.int8, 3, 4, 2).value, quantization=SCALE)
    case = dataclasses.replace(gather("", x, PLACES), output_quantization=[SCALE])
    assert reason(case) == ""
