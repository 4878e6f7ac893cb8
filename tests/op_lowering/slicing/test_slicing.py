import itertools

import jax
import numpy as np
import pytest

from jaxdelegate.op_lowering.options import SplitOptions, SplitVOptions, StridedSliceOptions
from jaxdelegate.op_lowering.options import UnpackOptions as Unpack
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext
from jaxdelegate.testing import Arg, Case, const, f32, of, value
from tests.support.dtypes import NO_KERNEL, OTHERS, name

EMPTY = "the stock interpreter cannot return an empty tensor"
STRINGS = value(np.array([[b"a", b"", b"cd"], [b"long", b"\xff", b"x"]], object))


def i32(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


X = f32(4, 3, 5)


def slice_case(label: str, x: Arg, begin: tuple, size: tuple, dtype: str = "int32") -> Case:
    return Case("SLICE", label, [x, const(begin, dtype), const(size, dtype)], version=2)


SLICES = [
    slice_case("plain", X, (1, 0, 2), (2, 3, 1)),
    slice_case("rest", X, (1, 2, 0), (-1, 1, -1), "int64"),
    slice_case("whole", X, (0, 0, 0), (4, 3, 5)),
    slice_case("rank6", f32(2, 2, 1, 2, 2, 3), (0, 1, 0, 0, 1, 1), (2, 1, 1, -1, 1, 2)),
    *(slice_case(name(d), of(d, 3, 4), (1, 1), (2, 2)) for d in OTHERS),
    Case("SLICE", "moving", [X, value(i32(2, 0, 1)), const(i32(2, 3, 3))]),
    Case("SLICE", "moving64", [X, value([0, 1, 4], "int64"), const([1, 2, 1], "int64")]),
]


def strided(
    label: str,
    x: Arg,
    begin: tuple,
    end: tuple,
    strides: tuple,
    litert: str | None = None,
    **masks: int,
) -> Case:
    options = StridedSliceOptions(**masks)  # type: ignore[arg-type]
    places = [const(i32(*v)) for v in (begin, end, strides)]
    version = 4 if masks else 1
    return Case("STRIDED_SLICE", label, [x, *places], options, version=version, litert=litert)


ONE = f32(4)
EXHAUSTIVE = [
    strided(
        f"1d-{b}:{e}:{s}-{masks}",
        ONE,
        (b,),
        (e,),
        (s,),
        None
        if len(range(4)[b if not masks & 1 else None : e if not masks & 2 else None : s])
        else EMPTY,
        begin_mask=masks & 1,
        end_mask=masks >> 1,
    )
    for b, e, s, masks in itertools.product(
        (-9, -4, -1, 2, 7), (-6, -2, 0, 3, 9), (-2, 1), (0, 1, 2)
    )
]
STRIDED = [
    strided("plain", X, (1, 0, 0), (3, 2, 5), (1, 1, 2)),
    strided("backward", X, (-1, 2, 3), (-5, 0, -6), (-2, -1, -1)),
    strided("fewer", X, (1,), (3,), (1,)),
    strided("index", X, (1, -1, 0), (2, 0, 5), (1, 1, 1), shrink_axis_mask=0b011),
    strided("all-indices", X, (3, 2, -5), (4, 3, -4), (1, 1, 1), shrink_axis_mask=0b111),
    strided("masks", X, (2, 1, 3), (1, 1, 1), (1, -1, -1), begin_mask=0b110, end_mask=0b101),
    strided("index-masked", X, (2, 0, 0), (3, 3, 5), (1, 1, 1), begin_mask=1, shrink_axis_mask=1),
    strided("new-axis", X, (0, 1, 0), (0, 2, 0), (1, 1, 1), new_axis_mask=0b101),
    strided("ellipsis", X, (0, 1), (0, 4), (1, 1), ellipsis_mask=0b01),
    strided("ellipsis-middle", X, (1, 0, 1), (3, 0, 4), (1, 1, 2), ellipsis_mask=0b010),
    strided("ellipsis-index", X, (0, 3), (0, 4), (1, 1), ellipsis_mask=0b01, shrink_axis_mask=0b10),
    strided("ellipsis-new", X, (0, 0, 0), (0, 0, 0), (1, 1, 1), ellipsis_mask=2, new_axis_mask=5),
    strided("ellipsis-wins", X, (0, 1), (0, 3), (1, 1), ellipsis_mask=1, new_axis_mask=1),
    strided("ellipsis-of-one", f32(2, 3), (0, 0, 1), (0, 1, 3), (1, 1, 1), ellipsis_mask=1),
    strided("rank6", f32(2, 3, 1, 2, 2, 3), (0,) * 6, (2, 3, 1, 2, 2, 3), (1, 2, 1, 1, 1, 2)),
    strided(
        "rank5-mixed",
        f32(2, 3, 4, 2, 3),
        (0, 1, 0, 1),
        (0, 3, 0, 2),
        (1, 2, 1, 1),
        ellipsis_mask=0b100,
        begin_mask=1,
        end_mask=1,
        shrink_axis_mask=0b1000,
    ),
    strided("scalar", f32(), (), (), ()),
    strided("empty-dimension", f32(2, 0), (1, 0), (2, 0), (1, -1), EMPTY, begin_mask=2),
    *(strided(name(d), of(d, 3, 4), (2, 0), (0, 4), (-1, 2)) for d in OTHERS),
]
OFFSET = [
    Case(
        "STRIDED_SLICE",
        f"offset-{'fixed' if make is const else 'moving'}-{label}",
        [X, make(i32(*begin)), const(i32(*size)), const(i32(*strides))],
        StridedSliceOptions(offset=True, shrink_axis_mask=shrink),
        version=8,
    )
    for make in (const, value)
    for label, begin, size, strides, shrink in [
        ("plain", (1, 0, 2), (2, 3, 2), (1, 1, 1), 0),
        ("strides", (0, 1, 0), (4, 2, 5), (2, 1, 3), 0),
        ("index", (1, -1, 2), (2, 1, 2), (1, 1, 1), 0b10),
    ]
]
MOVING = [  # begin is known at run time only, but the shape does not depend on it
    Case(
        "STRIDED_SLICE",
        label,
        [X, value(i32(*begin)), value(i32(*end)), const(i32(*strides))],
        StridedSliceOptions(**masks),  # type: ignore[arg-type]
        version=4,
    )
    for label, begin, end, strides, masks in [
        ("moving-first", (2,), (3,), (1,), {"shrink_axis_mask": 1}),
        ("moving-last-back", (-1,), (0,), (1,), {"shrink_axis_mask": 1}),
        (
            "moving-column",
            (0, 2),
            (0, 3),
            (1, 1),
            {"begin_mask": 1, "end_mask": 1, "shrink_axis_mask": 2},
        ),
        (
            "moving-between",
            (0, 1, 9),
            (0, 2, 9),
            (-1, 1, 2),
            {"begin_mask": 5, "end_mask": 5, "shrink_axis_mask": 2},
        ),
        ("moving-ellipsis", (0, 4), (0, 5), (1, 1), {"ellipsis_mask": 1, "shrink_axis_mask": 2}),
        ("moving-new", (0, 3), (0, 4), (1, 1), {"new_axis_mask": 1, "shrink_axis_mask": 2}),
    ]
]
SPLITS = [
    Case("SPLIT", f"{axis}-{n}", [const(axis, "int32"), X], SplitOptions(num_splits=n), ["f4"] * n)
    for axis, n in [(0, 2), (-3, 4), (1, 3), (2, 5), ([-1], 1)]
] + [
    Case(
        "SPLIT",
        name(d),
        [const(1, "int32"), of(d, 2, 4)],
        SplitOptions(num_splits=2),
        [d, d],
        version=2,
        litert=None if d in (np.int8, np.uint8, np.int16, np.int32, np.int64) else NO_KERNEL,
    )
    for d in OTHERS
]
SPLITS_V = [
    Case(
        "SPLIT_V",
        f"{axis}-{sizes}-{dtype}",
        [X, const(sizes, dtype), const(axis, "int32")],
        SplitVOptions(num_splits=len(sizes)),
        ["float32"] * len(sizes),
    )
    for axis, sizes, dtype in [
        (0, [1, 3], "int32"),
        (-1, [2, -1, 1], "int64"),
        (1, [3], "int32"),
        (2, [1, 1, 3], "int32"),
    ]
] + [
    Case(
        "SPLIT_V",
        "empty-piece",
        [X, const([0, 4], "int32"), const(0, "int32")],
        SplitVOptions(num_splits=2),
        ["float32"] * 2,
        litert=EMPTY,
    )
]
UNPACKS = [
    Case("UNPACK", f"axis{axis}", [X], Unpack(num=n, axis=axis), ["float32"] * n)
    for axis, n in [(0, 4), (1, 3), (-1, 5), (-3, 4)]
] + [
    Case(
        "UNPACK",
        name(d),
        [of(d, 2)],
        Unpack(num=2),
        [d, d],
        litert=NO_KERNEL
        if d in (np.float64, np.complex64, np.uint16, np.uint32, np.int64, np.uint64)
        else None,
    )
    for d in OTHERS
]
UPDATES = [
    Case("DYNAMIC_UPDATE_SLICE", f"{shape}-{start}-{kind}", [X, f32(*shape, seed=1), make(start)])
    for shape, start in [
        ((2, 1, 3), [1, 2, 0]),
        ((2, 1, 3), [9, -9, 4]),
        ((4, 3, 5), [3, 3, 3]),
        ((1, 3, 2), [-1, 0, 3]),
    ]
    for kind, make in [
        ("fixed", lambda s: const(s, "int32")),
        ("moving", lambda s: value(s, "int32")),
        ("moving64", lambda s: value(s, "int64")),
    ]
] + [
    Case("DYNAMIC_UPDATE_SLICE", "none", [X, f32(4, 0, 5), value(i32(0, 0, 0))]),
    Case("DYNAMIC_UPDATE_SLICE", "scalar", [f32(), f32(seed=1), const(i32())], litert=EMPTY),
    *(
        Case("DYNAMIC_UPDATE_SLICE", name(d), [of(d, 3, 2), of(d, 1, 2, seed=1), value(i32(1, 0))])
        for d in OTHERS
    ),
]
CASES = [*SLICES, *EXHAUSTIVE, *STRIDED, *OFFSET, *MOVING, *SPLITS, *SPLITS_V, *UNPACKS, *UPDATES]
RUN_TIME = [  # known at run time only: the reference takes it, the lowering refuses it
    Case("SLICE", "run-time", [X, value(i32(1, 0, 0)), value(i32(2, 3, 1))]),
    Case("SLICE", "run-time-rest", [X, value(i32(1, 0, 0)), const(i32(-1, 3, 1))]),
    Case("SLICE", "strings", [STRINGS, const(i32(1, 0)), const(i32(1, -1))]),
    Case("STRIDED_SLICE", "run-time", [X, value(i32(1)), const(i32(3)), const(i32(1))]),
    Case("STRIDED_SLICE", "run-time-end", [X, const(i32(1)), value(i32(3)), const(i32(1))]),
    Case("STRIDED_SLICE", "run-time-strides", [X, const(i32(0)), const(i32(3)), value(i32(2))]),
    Case(
        "STRIDED_SLICE", "strings", [STRINGS, const(i32(0, 2)), const(i32(2, 0)), const(i32(1, -1))]
    ),
    Case("SPLIT", "run-time", [value(2, "int32"), X], SplitOptions(num_splits=5), ["float32"] * 5),
    Case(
        "SPLIT_V",
        "run-time",
        [X, value(i32(1, 3)), value(0, "int32")],
        SplitVOptions(num_splits=2),
        ["float32"] * 2,
    ),
]


def run_litert(case: Case) -> list[np.ndarray]:
    # BUILTIN_REF stops at version 7 of STRIDED_SLICE.
    return case.run_litert(optimized=case.version == 8)


REFUSED = {
    "begin is computed at run time": Case(
        "STRIDED_SLICE",
        "backward-offset",
        [X, value(i32(3)), const(i32(-2)), const(i32(-1))],
        StridedSliceOptions(offset=True),
        version=8,
    ),
    "longer than a dimension": Case(
        "STRIDED_SLICE",
        "long-offset",
        [X, value(i32(0)), const(i32(9)), const(i32(1))],
        StridedSliceOptions(offset=True),
        version=8,
    ),
    "an index is outside": strided("index", X, (4,), (5,), (1,), shrink_axis_mask=1),
    "leave": Case("SLICE", "long", [X, value(i32(0, 0, 0)), const(i32(4, 4, 5))]),
    "does not fit": Case("DYNAMIC_UPDATE_SLICE", "long", [X, f32(5, 3, 5), const(i32(0, 0, 0))]),
}


@pytest.mark.parametrize(
    ("start", "first"), [((3, 3, 3), (2, 2, 0)), ((-1, 0, 9), (0, 0, 0))], ids=str
)
def test_a_moving_slice_stays_inside(start: tuple, first: tuple) -> None:
    case = Case("SLICE", "clamped", [X, value(i32(*start)), const(i32(2, 1, 5))])
    place = tuple(slice(i, i + n) for i, n in zip(first, (2, 1, 5), strict=True))
    case.check(case.run_lowered(RULES["SLICE"]), [X.value[place]])
    with pytest.raises(ValueError, match="leaves"):
        case.run_reference()


IMPOSSIBLE = [
    slice_case("long", X, (3, 0, 0), (2, 1, 1)),
    slice_case("negative", X, (-1, 0, 0), (1, 1, 1)),
    strided("zero-stride", X, (0,), (1,), (0,)),
    Case("SPLIT", "uneven", [const(0, "int32"), X], SplitOptions(num_splits=3), ["f4"] * 3),
    Case("SPLIT", "axis", [const(3, "int32"), X], SplitOptions(num_splits=2), ["f4"] * 2),
    Case("SPLIT_V", "sum", [X, const(i32(1, 2)), const(0, "int32")], None, ["f4"] * 2),
    Case("SPLIT_V", "two-rests", [X, const(i32(-1, -1)), const(0, "int32")], None, ["f4"] * 2),
    Case("UNPACK", "num", [X], Unpack(num=3), ["f4"] * 3),
]


@pytest.mark.parametrize("batched", [(0, 0, 0), (0, 0, None), (None, 0, 0), (0, None, None), None])
def test_caches_of_a_batch_are_updated_each_at_its_place(
    batched: tuple[int | None, ...] | None, rng: np.random.Generator
) -> None:
    """Large tensors, as in language models; starts outside are clamped for each item."""
    caches = rng.normal(size=(3, 2, 64, 32)).astype(np.float32)
    new = rng.normal(size=(3, 2, 4, 32)).astype(np.float32)
    starts = i32(0, 5, 0), i32(0, 62, 0), i32(-3, -1, 9)
    case = Case("DYNAMIC_UPDATE_SLICE", "cache", [Arg(caches[0]), Arg(new[0]), value(starts[0])])
    lowered = RULES[case.name].lower(case.op(LoweringContext(kernels=KernelSet(cpu=True))))

    def run(*arrays: jax.Array) -> jax.Array:
        return lowered(*arrays)[0]

    call = jax.jit(run if batched is None else jax.vmap(run, batched))
    whole = batched or (None,) * 3
    arrays = [
        a[0] if axis is None else a
        for a, axis in zip((caches, new, np.stack(starts)), whole, strict=True)
    ]
    got = np.asarray(call(*arrays))
    for i in range(3):
        own = [
            a[0] if axis is None else a[i]
            for a, axis in zip((caches, new, starts), whole, strict=True)
        ]
        first = np.clip(own[2][1], 0, 60)
        want = own[0].copy()
        want[:, first : first + 4] = own[1]
        np.testing.assert_array_equal(got if batched is None else got[i], want)
