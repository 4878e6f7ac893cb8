"""Reductions by sorted segments, also of chosen rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdelegate.testing import Arg, Case, const, f32, of, value
from tests.op_lowering.flex.test_math import case

INT = np.dtype(np.int32)
GAPS = (0, 0, 2, 2, 2, 5)


def ids_of(ids: Sequence[int]) -> Arg:
    return const(np.array(ids, np.int32))


def segment(name: str, x: Arg, ids: Sequence[int]) -> Case:
    attributes: dict[str, Any] = {"Tindices": INT}
    label = f"{x.value.dtype}-{list(ids)}"
    return case(f"Segment{name}", label, [x, ids_of(ids)], attributes=attributes, accumulated=8)


def sparse(name: str, x: Arg, rows: Sequence[int], ids: Sequence[int], *count: int) -> Case:
    attributes: dict[str, Any] = {"Tidx": INT, "Tsegmentids": INT, "Tnumsegments": INT}
    inputs = [x, value(rows, np.int32), ids_of(ids), *(const(np.int32(n)) for n in count)]
    name = f"SparseSegment{name}{'WithNumSegments' if count else ''}"
    label = f"{list(rows)}-{list(ids)}"
    return case(name, label, inputs, attributes=attributes, accumulated=8)


SEGMENTS, SPARSE = ("Max", "Mean", "Min", "Prod"), ("Mean", "SqrtN", "Sum")
ROWS = (3, 1, 1, 0)
CASES = [
    *(segment(name, f32(6, 3), GAPS) for name in SEGMENTS),
    *(segment(name, of(np.float64, 3), (0, 0, 1)) for name in SEGMENTS),
    *(sparse(name, f32(4, 3), ROWS, (0, 2, 2, 3)) for name in SPARSE),
    *(sparse(name, f32(4, 3), ROWS, (0, 2, 2, 3), 6) for name in SPARSE),
    sparse("Sum", f32(4, 3), (), (), 2),
]
RUN_TIME = [segment("Mean", f32(3), (0, 0, 1)).with_inputs({1: value(np.int32([0, 0, 1]))})]
OUTSIDE = sparse("Sum", f32(4, 3), (0, 4), (0, 0))
STOPPED = {"row 4 of 4": OUTSIDE}
IMPOSSIBLE = [
    segment("Mean", f32(3), (1, 0, 1)),
    segment("Mean", f32(3), (-1, 0, 1)),
    segment("Mean", f32(3), (0, 1)),
    sparse("Sum", f32(3), (0, 1), (0, 3), 3),
    sparse("Sum", f32(3), (0, 1), (0,)),
]
