from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.testing import Arg, Case, const, of, value
from tests.support.dtypes import NO_KERNEL
from tests.support.quantized import scaled

NAN, INF = np.nan, np.inf
NO_VALUES = "ai-edge-litert cannot read an empty dynamic output"
HALF = [np.float16, ml_dtypes.bfloat16]
UNSORTED = [f"UNSORTED_SEGMENT_{kind}" for kind in ("SUM", "PROD", "MAX", "MIN")]
ODD = np.float32([[1, NAN], [-INF, 2], [3, INF], [5, 6]])


def segment_sum(label: str, x: Any, ids: Any, **details: Any) -> Case:
    x, ids = (a if isinstance(a, Arg) else value(a) for a in (x, ids))
    return Case("SEGMENT_SUM", label, [x, ids], accumulated=4, **details)


def unsorted(name: str, label: str, x: Any, ids: Any, count: Any, **details: Any) -> Case:
    x, ids = (a if isinstance(a, Arg) else value(a, t) for a, t in ((x, None), (ids, "int32")))
    count = count if isinstance(count, Arg) else const(count, "int32")
    return Case(name, label, [x, ids, count], accumulated=4, **details)


IDS = const([0, 0, 1, 2], "int32")
SORTED_CASES = [
    segment_sum("rank1", of(np.float32, 4), IDS),
    segment_sum("rank3", of(np.float32, 4, 2, 3), IDS),
    segment_sum("odd", ODD, IDS),
    segment_sum("int32", np.full((4, 2), 2**30, np.int32), const([0, 0, 0, 0], "int32")),
    segment_sum("no-columns", np.zeros((4, 0), np.float32), IDS, litert=NO_VALUES),
    *(segment_sum(np.dtype(d).name, of(d, 4, 2), IDS, litert=NO_KERNEL) for d in HALF),
]
UNSORTED_CASES = [
    case
    for name in UNSORTED
    for case in [
        unsorted(name, "rank1", of(np.float32, 5), [2, 0, 2, -1, 0], 4),
        unsorted(name, "rank3", of(np.float32, 3, 2, 2), [2, 0, 2], [3]),
        unsorted(name, "const-ids", of(np.float32, 3, 2), const([2, 0, 2], "int32"), 3),
        unsorted(name, "odd", ODD, [0, 2, 2, 0], 4),
        unsorted(name, "ids-rank2", ODD, [[0, 2], [2, -1], [0, 0], [1, 2]], 4),
        unsorted(name, "ids-scalar", ODD, 2, 4),
        unsorted(name, "all-dropped", ODD, [-1, -2, -1, -9], 2),
        unsorted(name, "int32", of(np.int32, 6, 2, low=-90000, high=90000), [0, 1, 1, 0, 3, 3], 4),
        unsorted(name, "empty", np.zeros((0, 2), np.float32), np.zeros(0), 3),
        unsorted(name, "no-columns", np.zeros((2, 0), np.float32), [0, 1], 3, litert=NO_VALUES),
        unsorted(name, "no-segments", ODD, [-1, -1, -1, -1], 0, litert=NO_VALUES),
        *(
            unsorted(name, np.dtype(d).name, of(d, 4, 2), [0, 2, 0, 0], 3, litert=NO_KERNEL)
            for d in HALF
        ),
    ]
]
CASES = SORTED_CASES + UNSORTED_CASES


RUN_TIME = [segment_sum("run-time", of(np.float32, 4, 2), value([0, 0, 1, 2], "int32"))]


def run_litert(case: Case) -> list[np.ndarray]:
    return case.run_litert(optimized=case.name == "SEGMENT_SUM")  # BUILTIN_REF lacks it


X = of(np.float32, 4, 2)
QUANTIZED = Arg(np.int8([1, 2]), quantization=scaled(0.5))
MAX = "UNSORTED_SEGMENT_MAX"
REFUSED = {
    "do not rise from 0 in steps": segment_sum("gap", X, const([0, 0, 2, 2], "int32")),
    "segment ids [3] do not name the rows": segment_sum("few", X, const([0, 1, 1], "int32")),
    "is quantized int8": segment_sum("quantized", QUANTIZED, const([0, 0], "int32")),
    "the shape of 'out0'": unsorted(MAX, "late", X, [0, 0, 1, 2], value(3, "int32")),
    "segment id 3 has no segment": unsorted(MAX, "beyond", X, const([0, 1, 3, 2], "int32"), 3),
    "are not a prefix of [4, 2]": unsorted(MAX, "rows", X, [0, 1], 3),
    "not a number of segments": unsorted(MAX, "negative", X, [0, 1, 1, 1], -2),
    "is int64, not one of": unsorted(MAX, "int64", of(np.int64, 2), [0, 1], 2),
}


@pytest.mark.parametrize("ids", [[1, 1, 1, 2], [0, 1, 0, 1], [0, 2, 2, 2], [-1, 0, 0, 0]])
def test_sorted_ids_must_rise_from_zero(ids: list[int]) -> None:
    case = segment_sum("", X, const(ids, "int32"))
    assert "do not rise" in case.reason(RULES[case.name])
    with pytest.raises(ValueError, match="do not rise"):
        case.run_reference()


STOPPED = {"3 segments": unsorted(MAX, "", X, [0, 1, 3, 2], 3)}
