"""Tensor lists. What a loop writes into a list is in tests/passes/test_flex_lists.py."""

import dataclasses
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.options import custom_options
from jaxdelegate.testing import Arg, Case, const, f32, of, value
from tests.support.dtypes import BF16
from tests.support.node_defs import flex_options

NO_FLEX = "TensorFlow's operators need TensorFlow"


def case(
    name: str,
    label: str,
    *inputs: Arg,
    dtype: Any = np.float32,
    result: Any = None,
    **attributes: Any,
) -> Case:
    """An operator of lists of `dtype`."""
    data = flex_options(f"TensorList{name}", element_dtype=np.dtype(dtype), **attributes)
    options = custom_options(f"FlexTensorList{name}", data)
    outputs = [dtype if result is None else result]
    return Case(f"FlexTensorList{name}", label, inputs, options, outputs, litert=NO_FLEX)


def i32(*numbers: int) -> Arg:
    return const(np.array(numbers, np.int32))


ITEMS, ANY, SIZES = f32(4, 2, 3), const(np.int32(-1)), i32(-1, 3)
SECOND, ITEM = value(np.int32(1)), f32(2, 3, seed=1)

CASES = [
    case("FromTensor", "free", ITEMS, SIZES),
    case("FromTensor", "any-int8", of(np.int8, 3), ANY, dtype=np.int8),
    case("Stack", "free", ITEMS, SIZES, num_elements=4),
    case("Stack", "any", ITEMS, ANY, num_elements=-1),
    case("GetItem", "free", ITEMS, SECOND, SIZES),
    case("GetItem", "last", ITEMS, i32(3), i32(2, 3)),
    case("GetItem", "scalars", of(np.int64, 5), SECOND, i32(), dtype=np.int64),
    case("SetItem", "first", ITEMS, value(np.int32(0)), ITEM),
    case("SetItem", "last", ITEMS, value(np.int32(3)), ITEM),
    case("SetItem", "bfloat16", of(BF16, 2, 3), SECOND, of(BF16, 3), dtype=BF16),
    case("SetItem", "scalars", of(np.bool_, 3), SECOND, of(np.bool_), dtype=np.bool_),
    case("Resize", "longer", ITEMS, i32(6)),
    case("Resize", "shorter", ITEMS, i32(1)),
    case("Resize", "none", ITEMS, i32(0)),
    case("Length", "of-four", ITEMS, result=np.int32),
]
INDICES = value([3, 0], np.int32)
CASES += [
    case("PushBack", "four", ITEMS, ITEM),
    case("PushBack", "first", f32(0, 2, 3), ITEM),
    case("Gather", "two", ITEMS, INDICES, SIZES),
    case("ScatterIntoExistingList", "two", ITEMS, f32(2, 2, 3, seed=1), INDICES),
    case("ScatterV2", "as-needed", f32(2, 2), i32(4, 1), i32(2), const(np.int32(-1))),
    case("ScatterV2", "six", f32(2, 2), INDICES, i32(2), const(np.int32(6))),
]
TWO_RESULTS = [
    ("ConcatV2", "four", (ITEMS, SIZES, const(np.zeros(0, np.int64))), (np.float32, np.int64)),
    ("PopBack", "four", (ITEMS, SIZES), (np.float32, np.float32)),
]
CASES += [
    dataclasses.replace(case(name, label, *inputs), outputs=outputs)
    for name, label, inputs, outputs in TWO_RESULTS
]
EMPTY = dataclasses.replace(
    case("Reserve", "", i32(2, 3), const(np.int32(-1))), name="FlexEmptyTensorList", label="known"
)
LOWERED = [
    EMPTY,
    case("Reserve", "known", i32(2, 3), i32(4)),
    case("Reserve", "scalars", i32(), i32(2), dtype=np.complex64),
]
OUTSIDE = case("GetItem", "outside", ITEMS, value(np.int32(4)), SIZES)
FAR = case("Gather", "far", ITEMS, value([0, 4], np.int32), SIZES)
GROWING = case("SetItem", "grows", ITEMS, SECOND, ITEM, resize_if_index_out_of_bounds=True)
FULL = case("Stack", "full", ITEMS, SIZES, num_elements=3)
OTHER = case("Stack", "other", ITEMS, i32(-1, 4))
REFUSED = {
    "not a list of int32": case("Stack", "", ITEMS, SIZES, dtype=np.int32),
    "lists of handles": case("Stack", "", ITEMS, SIZES, dtype="V8"),
    "elements are [2, 3], not [-1, 4]": OTHER,
    "the list has 4 elements, not 3": FULL,
    "the list may grow": GROWING,
    "the list is empty": case("GetItem", "", f32(0, 2, 3), SECOND, SIZES),
    "not an index": case("GetItem", "", ITEMS, f32(), SIZES),
    "is computed at run time": case("Stack", "", ITEMS, value(np.int32(-1))),
}
STOPPED = {
    ("not a list of int32", TypeError): REFUSED["not a list of int32"],
    "not [-1, 4]": OTHER,
    "the list has 4 elements, not 3": FULL,
    "written beyond its end": GROWING,
    ("element 4 of a list of 4", IndexError): OUTSIDE,
    ("elements [4] of a list of 4", IndexError): FAR,
}
IMPOSSIBLE = [
    case("PushBack", "", ITEMS, f32(3)),
    case("PopBack", "", f32(0, 3), SIZES),
    case("ScatterIntoExistingList", "", ITEMS, f32(2, 3), INDICES),
    dataclasses.replace(CASES[-2], inputs=[f32(4), i32(), i32()]),
]
