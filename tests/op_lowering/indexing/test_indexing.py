from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import (
    GatherOptions,
    OneHotOptions,
    ReverseSequenceOptions,
    TensorType,
    UniqueOptions,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.testing import Arg, Case, const, f32, of, value
from tests.support.dtypes import BF16, OTHERS, name, unless

EMPTY = "the stock interpreter cannot return an empty tensor"
STRINGS = value(np.array([b"a", b"", b"cd", b"long", b"\xff"], object))
GATHERED = (np.float16, BF16, np.bool_, np.int8, np.uint8, np.int16, np.int32, np.int64)
X = f32(4, 3, 5)


def i32(*numbers: int) -> Arg:
    return value(numbers, "int32")


def picks(high: int, *shape: int, dtype: Any = np.int32) -> Arg:
    return of(dtype, *shape, low=0, high=high - 1)


GATHERS = [
    Case(
        "GATHER",
        f"{list(at.value.shape)}-axis{axis}-batch{batch}",
        [X, at],
        GatherOptions(axis, batch),
    )
    for at, axis, batch in [
        (picks(4, 2), 0, 0),
        (picks(3, 2, 3), 1, 0),
        (picks(5, 2), -1, 0),
        (picks(5), 2, 0),
        (picks(3, 4, 2), 1, 1),
        (picks(5, 4, 2), -1, 1),
        (picks(5, 4, 3), 2, 2),
        (picks(5, 4, 3, 2), 2, -1),
        (picks(3, 4, 2), 1, -1),
    ]
] + [
    Case("GATHER", "fixed", [X, const([2, 0, 2], "int64")]),
    Case("GATHER", "one-of-a-vector", [f32(4), value(2, "int32")]),
    Case("GATHER", "int16", [X, value([3, 1], "int16")]),
    Case("GATHER", "rank6", [f32(2, 1, 2, 3, 1, 2), picks(3, 2, 2)], GatherOptions(3)),
    Case("GATHER", "no-positions", [X, i32()], litert=EMPTY),
    Case("GATHER", "empty-batch", [f32(0, 3), picks(3, 0, 2)], GatherOptions(1, 1), litert=EMPTY),
    Case("GATHER", "empty-rows", [f32(3, 0), picks(3, 2)], litert=EMPTY),
    *(
        Case("GATHER", name(d), [of(d, 3, 2), i32(2, 0)], litert=unless(d, *GATHERED))
        for d in OTHERS
    ),
]
GATHERS_ND = [
    Case("GATHER_ND", label, [X, at])
    for label, at in [
        ("rows", picks(4, 2, 1)),
        ("pairs", picks(3, 2, 3, 2)),
        ("elements", picks(3, 4, 3)),
        ("one", picks(3, 3)),
        ("int64", picks(3, 2, 2, dtype=np.int64)),
        ("int16", picks(3, 2, 2, dtype=np.int16)),
        ("fixed", const([[1, 2], [0, 0]], "int32")),
    ]
] + [
    Case("GATHER_ND", "whole", [X, value(np.zeros((2, 0)), "int32")], litert="it fails on those"),
    Case("GATHER_ND", "nothing", [X, value(np.zeros((0, 2)), "int32")], litert=EMPTY),
    *(
        Case("GATHER_ND", name(d), [of(d, 3, 2), picks(2, 4, 2)], litert=unless(d, *GATHERED))
        for d in OTHERS
    ),
]
SCATTERED = (np.bool_, np.int8, np.uint8, np.int32, np.int64)


def scatter(label: str, at: Any, updates: Arg, shape: list[int], **details: Any) -> Case:
    inputs = [value(at, "int32"), updates, const(shape, "int32")]
    return Case("SCATTER_ND", label, inputs, outputs=[updates.value.dtype], **details)


SCATTERS = [
    scatter("elements", [[4], [1], [7]], f32(3), [8]),
    scatter("rows", [[2], [0]], f32(2, 3, 2), [4, 3, 2]),
    scatter("pairs", [[[0, 1], [1, 0]]], f32(1, 2, 2), [2, 2, 2]),
    scatter("duplicates", [[1], [1], [0], [1]], f32(4, 2), [3, 2], accumulated=3),
    scatter("wraps", [[0], [0]], value([100, 100], "int8"), [2]),
    scatter("nothing", np.zeros((0, 1)), f32(0, 2), [3, 2]),
    *(
        scatter(name(d), [[0], [2], [0]], of(d, 3, 2), [3, 2], litert=unless(d, *SCATTERED))
        for d in OTHERS
        if d is not np.complex64
    ),
]


def dense(label: str, at: Any, shape: list[int], values: Arg, **details: Any) -> Case:
    dtype = values.value.dtype
    inputs = [value(at, "int32"), const(shape, "int32"), values, value(-1, dtype)]
    return Case("SPARSE_TO_DENSE", label, inputs, outputs=[dtype], **details)


DENSE = [
    dense("scalar", 2, [4], value(5.0, "float32")),
    dense("vector", [1, 3], [4], f32(2)),
    dense("vector-one-value", [1, 3], [4], value(5.0, "float32")),
    dense("matrix", [[0, 1], [2, 2]], [3, 4], f32(2)),
    dense("rank4", [[0, 1, 0, 2], [1, 0, 0, 1]], [2, 2, 1, 3], f32(2)),
    dense("last-stays", [[0, 1], [0, 1], [1, 0], [0, 1]], [2, 2], value([1, 2, 3, 4], "int32")),
    dense("nothing", np.zeros((0, 2)), [2, 2], f32(0)),
    Case(
        "SPARSE_TO_DENSE",
        "int64",
        [value([[1]], "int64"), const([3], "int64"), value([7], "int64"), const(-1, "int64")],
        outputs=["int64"],
    ),
    *(
        dense(
            name(d),
            [1, 2],
            [4],
            of(d, 2, low=0),
            litert=unless(d, np.int8, np.uint8, np.int32, np.int64),
        )
        for d in OTHERS
        if np.dtype(d).kind not in "ub"
    ),
]
LOOKUPS = [
    Case("EMBEDDING_LOOKUP", label, [ids, table], outputs=[table.value.dtype])
    for label, ids, table in [
        ("plain", picks(4, 3), f32(4, 5)),
        ("fixed-table", picks(4, 3), const(f32(4, 5))),
        ("rank4", picks(4, 2), f32(4, 2, 1, 3)),
        ("int8", picks(3, 4), of(np.int8, 3, 2)),
        ("int32", picks(3, 4), of(np.int32, 3, 2)),
    ]
]
HOTS = [
    Case(
        "ONE_HOT",
        f"axis{axis}-{list(at.value.shape)}",
        [at, const(3, "int32"), value(5, "float32"), value(-1, "float32")],
        OneHotOptions(axis),
        ["float32"],
    )
    for at, axis in [
        (picks(3, 4), -1),
        (picks(3, 4), 0),
        (picks(3, 2, 3), 1),
        (picks(3, 2, 3, dtype=np.int64), 2),
        (picks(3), 0),
        (i32(-1, 3, 7, 2), -1),
        (value([2**32 + 1, 2], "int64"), -1),
    ]
] + [
    Case(
        "ONE_HOT",
        name(d),
        [picks(3, 4), const([3], "int32"), const(np.ones(1), d), const(np.zeros(1), d)],
        OneHotOptions(-1),
        [d],
        litert=unless(d, np.bool_, np.int8, np.uint8, np.int32, np.int64),
    )
    for d in OTHERS
]
HOTS += [
    Case(
        "ONE_HOT",
        "no-classes",
        [picks(3, 4), const(0, "int32"), f32(), f32()],
        OneHotOptions(-1),
        ["float32"],
        litert=EMPTY,
    )
]
REVERSED = (np.uint8, np.int16, np.int32, np.int64)
REVERSES = [
    Case(
        "REVERSE_SEQUENCE",
        f"{seq}-{batch}-{dtype}",
        [X, value(lengths, dtype)],
        ReverseSequenceOptions(seq, batch),
    )
    for seq, batch, lengths, dtype in [
        (1, 0, [3, 0, 1, 2], "int32"),
        (0, 1, [4, 2, 3], "int64"),
        (2, 0, [5, 1, 4, 2], "int32"),
        (0, 2, [1, 2, 3, 4, 0], "int32"),
    ]
] + [
    Case(
        "REVERSE_SEQUENCE",
        name(d),
        [of(d, 2, 3), i32(2, 3)],
        ReverseSequenceOptions(1, 0),
        litert=unless(d, *REVERSED),
    )
    for d in OTHERS
]
REVERSES += [
    Case(
        "REVERSE_SEQUENCE", "empty", [f32(0, 3), i32()], ReverseSequenceOptions(1, 0), litert=EMPTY
    )
]
DIAGONAL = (np.int8, np.uint8, np.int16, np.int32, np.int64)
DIAGONALS = [
    Case("MATRIX_DIAG", f"{shape}", [f32(*shape)]) for shape in [(3,), (1,), (2, 3), (2, 1, 2, 2)]
] + [
    Case("MATRIX_SET_DIAG", f"{shape}", [f32(*shape), f32(*shape[:-2], min(shape[-2:]), seed=1)])
    for shape in [(3, 3), (2, 4), (4, 2), (2, 3, 2), (2, 1, 2, 3, 3)]
]
DIAGONALS += [
    case
    for d in OTHERS
    for case in (
        Case("MATRIX_DIAG", name(d), [of(d, 3)], litert=unless(d, *DIAGONAL)),
        Case(
            "MATRIX_SET_DIAG",
            name(d),
            [of(d, 2, 3), of(d, 2, seed=1)],
            litert=unless(d, *DIAGONAL),
        ),
    )
]
CONDITIONS = [
    of(np.bool_, 3, 4),
    value([[0, 1.5, np.nan], [-0.0, 0, -2]], "float32"),
    *(of(d, 2, 1, 3, low=0, high=1) for d in (np.int32, np.int64, np.int8, np.uint8, np.uint32)),
]
UNIQUES = [
    value([3, 1, 3, 3, 2, 1], "int32"),
    value([0.5, -1, 0.5, 2], "float32"),
    *(of(d, 9, low=0, high=4) for d in (np.int8, np.int16, np.int64, np.uint8)),
]
INDEX_TYPES = {np.int32: TensorType.INT32, np.int64: TensorType.INT64}


def data_dependent(made: Any, suffix: str) -> list[Case]:
    return [
        Case("WHERE", f"{c.value.dtype}-{suffix}", [made(c)], outputs=[np.int64])
        for c in CONDITIONS
    ] + [
        Case(
            "UNIQUE",
            f"{x.value.dtype}-{name(d)}-{suffix}",
            [made(x)],
            UniqueOptions(index),
            [x.value.dtype, d],
        )
        for x in UNIQUES
        for d, index in INDEX_TYPES.items()
    ]


CASES = [
    *GATHERS,
    *GATHERS_ND,
    *SCATTERS,
    *DENSE,
    *LOOKUPS,
    *HOTS,
    *REVERSES,
    *DIAGONALS,
    *data_dependent(const, "fixed"),
]
RUN_TIME = [  # what only the run decides: the reference must know it, the lowering refuses
    *data_dependent(lambda x: x, "run-time"),
    Case("GATHER", "strings", [STRINGS, i32(4, 1, 1)]),
    Case("GATHER_ND", "strings", [STRINGS, value([[4], [0]], "int64")]),
    Case("SCATTER_ND", "run-time", [value([[1]], "int32"), f32(1), i32(3)], outputs=["float32"]),
    Case("SPARSE_TO_DENSE", "run-time", [i32(1), i32(3), f32(1), f32()], outputs=["float32"]),
    Case(
        "ONE_HOT",
        "run-time",
        [picks(3, 4), value(3, "int32"), f32(), f32(seed=1)],
        OneHotOptions(-1),
        ["float32"],
    ),
]


BEYOND = [
    (Case("GATHER", "", [f32(3), i32(-1, 9)]), [0, 2]),
    (Case("GATHER_ND", "", [f32(3), value([[-1], [9]], "int32")]), [0, 2]),
    (Case("EMBEDDING_LOOKUP", "", [i32(-1, 9), f32(3, 1)], outputs=["float32"]), [0, 2]),
]


@pytest.mark.parametrize(("case", "nearest"), BEYOND, ids=str)
def test_gathers_take_the_nearest_element(case: Case, nearest: list[int]) -> None:
    x = next(a.value for a in case.inputs if a is not None and a.value.dtype == np.float32)
    case.check(case.run_lowered(RULES[case.name]), [x[nearest]])
    with pytest.raises(IndexError, match=case.name):
        case.run_reference()


def test_scatters_drop_updates_outside_the_tensor() -> None:
    added = scatter("", [[-1], [1], [9]], value([1, 2, 3], "float32"), [3])
    added.check(added.run_lowered(RULES["SCATTER_ND"]), [np.float32([0, 2, 0])])
    placed = dense("", [-1, 1, 9], [3], value([1, 2, 3], "float32"))
    placed.check(placed.run_lowered(RULES["SPARSE_TO_DENSE"]), [np.float32([-1, 2, -1])])
    for case in (added, placed):
        with pytest.raises(IndexError, match=case.name):
            case.run_reference()


REFUSED = {
    "coordinates for": Case("GATHER_ND", "deep", [f32(2), picks(2, 1, 2)]),
    "nothing to gather": Case("GATHER", "empty", [f32(0, 2), i32(0)]),
    "do not fit": scatter("updates", [[0]], f32(2, 2), [3, 2]),
    "do not place": dense("places", [[0, 1]], [3], f32(1)),
    "not the diagonal": Case("MATRIX_SET_DIAG", "", [f32(2, 3), f32(3)]),
    "do not name": Case("REVERSE_SEQUENCE", "", [X, i32(1)], ReverseSequenceOptions(1, 1)),
    "lengths for a batch": Case("REVERSE_SEQUENCE", "", [X, i32(1)], ReverseSequenceOptions(1, 0)),
    "'in1' is int8 without a scale": Case(
        "EMBEDDING_LOOKUP", "", [i32(0), of(np.int8, 2, 2)], None, ["f4"]
    ),
    "indices 'in1' are float32": Case("GATHER", "", [X, f32(1)]),
    "not one of": scatter("complex", [[0]], of(np.complex64, 1), [2]),
}


IMPOSSIBLE = [
    Case("GATHER", "axis", [X, i32(0)], GatherOptions(3)),
    Case("GATHER", "batch", [X, picks(3, 2, 2)], GatherOptions(1, 1)),
    Case("ONE_HOT", "axis", [i32(0), const(3, "int32"), f32(), f32()], OneHotOptions(2)),
    Case("ONE_HOT", "depth", [i32(0), const(-1, "int32"), f32(), f32()], OneHotOptions(-1)),
]
