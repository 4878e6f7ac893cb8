import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.op_lowering.lookup import farmhash
from jaxdelegate.op_lowering.lookup.reference_farmhash import fingerprint64
from jaxdelegate.op_lowering.options import (
    CombinerType,
    EmbeddingLookupSparseOptions,
    LSHProjectionOptions,
    LSHProjectionType,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.testing import Arg, Case, const, f32, of, value
from tests.support.quantized import scaled

SCALE = scaled(0.5, 3)
NO_EMPTY = "refuses empty tensors"
OUTSIDE = "writes out of bounds"


def sparse(
    label: str,
    places: Sequence[Sequence[int]],
    shape: Sequence[int],
    combiner: CombinerType,
    *,
    row: Sequence[int] = (3,),
    weights: Sequence[float] | None = None,
    make: Any = const,
    **details: Any,
) -> Case:
    """Lookups at `places` of a tensor of `shape`, in a table of five rows."""
    n = len(places)
    inputs = [
        value(np.arange(n) * 3 % 5, np.int32),
        value(np.reshape(places, (n, len(shape))), np.int32),
        make(np.int32(shape)),
        f32(n, low=0.5, high=2) if weights is None else value(weights, np.float32),
        f32(5, *row),
    ]
    options = EmbeddingLookupSparseOptions(combiner)
    label = f"{combiner.name}-{label}-{make.__name__}"
    return Case("EMBEDDING_LOOKUP_SPARSE", label, inputs, options, [np.float32], **details)


def sparse_cases(combiner: CombinerType) -> list[Case]:
    rows = [[0, 0], [0, 1], [1, 0], [3, 0], [3, 1], [3, 2]]
    deep = [[0, 0, 0], [0, 1, 0], [0, 1, 1], [1, 2, 0]]
    again = [[1, 0], [1, 1], [0, 0], [1, 2], [2, 0], [0, 1], [1, 3]]
    return [
        sparse("rows", rows, (4, 3), combiner),
        sparse("rows", rows, (4, 3), combiner, make=value),
        sparse("deep", deep, (2, 3, 2), combiner, row=(2, 4)),
        sparse("vector", [[0], [2], [1]], (3,), combiner),
        sparse("a-place-again", again, (4, 4), combiner),
        sparse("outside", [[0, 0], [7, 0], [1, 0]], (3, 1), combiner, litert=OUTSIDE),
        sparse("before", [[-1, 0], [0, 0], [-1, 1]], (3, 1), combiner, litert=OUTSIDE),
        sparse("zero-weight", rows, (4, 3), combiner, weights=[1, -1, 0, 2, 2, 2]),
        sparse("none", [], (4, 3), combiner, litert=NO_EMPTY),
        sparse("no-places", rows, (0, 3), combiner, litert=OUTSIDE),
        sparse("no-columns", rows, (4, 3), combiner, row=(0,), litert=NO_EMPTY),
    ]


TABLE = np.float32([[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]])


def lookup(
    label: str, queries: Any, keys: Any, rows: Any = TABLE, *, make: Any = const, **details: Any
) -> Case:
    rows = rows if isinstance(rows, Arg) else make(rows)
    inputs = [value(queries, np.int32), make(np.int32(keys)), rows]
    outputs = [rows.value.dtype, np.uint8]
    return Case("HASHTABLE_LOOKUP", f"{label}-{make.__name__}", inputs, outputs=outputs, **details)


KEYS = [-7, 0, 3, 8, 21]
QUERIES = [3, -7, 4, 21, 22, -8, 0, 8, 3]
WORDS = np.array([b"one", b"", b"three", b"four", b"\xc3\xbcf"], object)
FAR = np.iinfo(np.int32)
HASHTABLE = [
    lookup("rows", QUERIES, KEYS),
    lookup("rows", QUERIES, KEYS, make=value),
    lookup("vector", QUERIES, KEYS, np.int32(KEYS)),
    lookup("rank-3", QUERIES, KEYS, f32(5, 2, 3).value),
    lookup("one-key", [5, 4], [5], TABLE[:1]),
    lookup("twice", [1, 2, 3], [1, 2, 2, 2, 3], TABLE),
    lookup("unordered", QUERIES, [8, -7, 21, 0, 3], TABLE),
    lookup("wraps", [FAR.max, FAR.min, 0, -5], [FAR.min, -5, 0, 9, FAR.max], TABLE),
    lookup("no-queries", [], KEYS, litert=NO_EMPTY),
    lookup("no-columns", QUERIES, KEYS, TABLE[:, :0], litert=NO_EMPTY),
    *(
        lookup(np.dtype(dtype).name, QUERIES, KEYS, of(dtype, 5, 2).value)
        for dtype in (np.float16, np.float64, np.int8, np.uint8, np.int64, np.bool_, np.complex64)
    ),
    lookup("bfloat16", QUERIES, KEYS, of(ml_dtypes.bfloat16, 5, 2).value),
]
STRINGS = [lookup("strings", QUERIES, KEYS, WORDS)]


def projection(
    kind: LSHProjectionType, items: Arg, shape: tuple[int, int] = (3, 2), *weights: Arg | None
) -> Case:
    label = f"{kind.name}-{items.value.dtype}-{list(items.value.shape)}-{shape}-{len(weights)}"
    inputs = [f32(*shape), items, *weights]
    litert = "wants weights or no third input" if None in weights else None
    return Case(
        "LSH_PROJECTION", label, inputs, LSHProjectionOptions(kind), [np.int32], litert=litert
    )


PROJECTIONS = [
    case
    for kind in (LSHProjectionType.SPARSE, LSHProjectionType.DENSE)
    for case in [
        projection(kind, value([12345, 54321, 67890, 9876, -12345678], np.int32)),
        projection(kind, of(np.int64, 5), (4, 7), f32(5)),
        projection(kind, of(np.int64, 3), (4, 7), None),
        projection(kind, of(np.uint8, 4), (2, 31), f32(4)),
        projection(kind, of(np.int8, 4, 3), (2, 9)),
        projection(kind, f32(2, 7), (6, 5), f32(2)),
        projection(kind, f32(3, 2, 5), (6, 5), f32(3)),
        projection(kind, f32(4, 30), (3, 8), f32(4)),
        projection(kind, of(np.bool_, 4, 2), (3, 8)),
    ]
]
SPARSE = [case for combiner in CombinerType for case in sparse_cases(combiner)]
RUN_TIME = [*STRINGS, *(case for case in SPARSE if case.label.endswith("value"))]
CASES = [case for case in [*SPARSE, *HASHTABLE, *PROJECTIONS] if case not in RUN_TIME]


# Recorded from tf.fingerprint(..., method="farmhash64"); one key of each range of lengths.
FINGERPRINTS = {
    b"": 0x9AE16A3B2F90404F,
    b"a": 0xB3454265B6DF75E3,
    b"jax": 0x7F75A34F4BD29B73,
    b"four": 0x8A938515C2EFB1C8,
    b"ten bytes.": 0xA8EEA1982C0D70E6,
    b"twenty-one bytes long": 0xBD788E7B8D7592CC,
    b"Fingerprint64 of 33 bytes.......!": 0xE7DE41E5C1C2AE7A,
    bytes(range(100)): 0x3CFF0F886D8D6195,
}


@pytest.mark.parametrize("key", FINGERPRINTS)
def test_fingerprint64(key: bytes) -> None:
    keys = np.frombuffer(key * 2, np.uint8).reshape(2, len(key))
    assert fingerprint64(keys).tolist() == [FINGERPRINTS[key]] * 2
    with jax.enable_x64(True):
        traced = jax.jit(farmhash.fingerprint64)(keys)
    assert np.asarray(traced).tolist() == [FINGERPRINTS[key]] * 2


ROWS, TABLES, DENSE = SPARSE[0], HASHTABLE[0], LSHProjectionType.DENSE
REFUSED = {
    "'in0' is int64": ROWS.with_inputs({0: of(np.int64, 6)}),
    "'in4' is float16": ROWS.with_inputs({4: of(np.float16, 5, 3)}),
    "'in4' is quantized": ROWS.with_inputs({4: Arg(of(np.int8, 5, 3).value, quantization=SCALE)}),
    "[6, 2], [2], [5]": ROWS.with_inputs({3: f32(5)}),
    "[6, 3], [2], [6]": ROWS.with_inputs({1: of(np.int32, 6, 3)}),
    "the table has no rows": ROWS.with_inputs({4: f32(0, 3)}),
    "needs 5 inputs": ROWS.with_inputs({3: None}),
    "'in1' is int64": TABLES.with_inputs({1: of(np.int64, 5)}),
    "'out1' is bool": dataclasses.replace(TABLES, outputs=[np.float32, np.bool_]),
    "'out0' is int32": dataclasses.replace(TABLES, outputs=[np.int32, np.uint8]),
    "one row for each key": TABLES.with_inputs({1: of(np.int32, 4)}),
    "must be vectors": TABLES.with_inputs({0: of(np.int32, 2, 2)}),
    "'in2' has no rows": lookup("", [1], [], TABLE[:0]),
    "'in1' is complex64": projection(DENSE, of(np.complex64, 3)),
    "'in0' is float16": PROJECTIONS[0].with_inputs({0: of(np.float16, 3, 2)}),
    "one weight for each item": projection(DENSE, f32(3), (2, 3), f32(2)),
    "[n, 32] at most": projection(DENSE, f32(3), (2, 33)),
    "'in1' has no items": projection(DENSE, f32(0, 3)),
}


def test_quantized_rows_keep_their_scale() -> None:
    case = lookup("", QUERIES, KEYS, Arg(of(np.int8, 5, 2).value, True, quantization=SCALE))
    inputs, (rows, hits) = case.specs()
    outputs = dataclasses.replace(rows, quantization=SCALE), hits
    rule = RULES["HASHTABLE_LOOKUP"]
    assert rule.reason(Op(LoweringContext(), case.op_options, inputs, outputs)) is None
    assert "quantized differently" in case.reason(RULES[case.name])


STOPPED = {
    ("ids must be in", IndexError): ROWS.with_inputs({0: value([0, 1, 2, 3, 4, 5], np.int32)}),
    "do not match": ROWS.with_inputs({3: f32(5)}),
    ("not float32", TypeError): ROWS.with_inputs({4: of(np.float16, 5, 3)}),
    ("no kernel for quantized", TypeError): REFUSED["'in4' is quantized"],
    "queries, keys and rows": lookup("", [1], [], TABLE[:0]),
    "must be SPARSE or DENSE": projection(LSHProjectionType.UNKNOWN, f32(3)),
    "seeds are (2, 33)": projection(DENSE, f32(3), (2, 33)),
    "seeds are (2, 3)": projection(DENSE, f32(3), (2, 3), f32(2)),
    ("string tensors", TypeError): projection(DENSE, value(WORDS)),
}
