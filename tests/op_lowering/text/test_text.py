import dataclasses
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import CustomOptions, SkipGramOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.testing import Arg, Case, const, value


def strings(*items: bytes, make: Any = value) -> Arg:
    arg: Arg = make(np.array([*items, None], object)[:-1])
    return arg


def skip_gram(text: bytes, size: int, skip: int, every: bool) -> Case:
    options = SkipGramOptions(size, skip, every)
    return Case("SKIP_GRAM", f"{text!r}-{size}-{skip}-{every}", [strings(text)], options)


FOX = b"The quick brown fox jumps"
SKIP_GRAMS = [
    *(
        skip_gram(FOX, size, skip, every)
        for size in (1, 2, 3, 5)
        for skip in (0, 1, 2, 9)
        for every in (False, True)
    ),
    *(
        skip_gram(text, 2, 1, True)
        for text in (b"a\tb\nc  d", b" a b c", b"a b c ", b"\xc3\xbcber den", b"a\vb\fc\rd", b"  a")
    ),
    skip_gram(FOX, 6, 1, False),
    skip_gram(FOX, 0, 1, True),
    skip_gram(FOX, 2, -1, True),
]
NOTHING = [skip_gram(b"", 1, 1, True), skip_gram(b" ", 2, 1, True)]


@pytest.mark.litert
@pytest.mark.parametrize("case", [*SKIP_GRAMS, *NOTHING], ids=str)
def test_skip_gram_matches_litert(case: Case) -> None:
    (got,), (want,) = case.run_reference(), case.run_litert()
    assert got.dtype == object
    assert got.tolist() == want.tolist()


def test_skip_gram_needs_a_string() -> None:
    with pytest.raises(ValueError, match="expected a string"):
        dataclasses.replace(SKIP_GRAMS[0], inputs=[strings()]).run_reference()


# ---- ParseExample: LiteRT's Python package lacks its kernel; the messages are written out here.


def varint(number: int) -> bytes:
    number %= 2**64
    head = b""
    while number >= 0x80:
        head += bytes([number & 0x7F | 0x80])
        number >>= 7
    return head + bytes([number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values: Sequence[Any], packed: bool = True) -> bytes:
    """The message Feature, of strings, floats or integers."""
    if not values or isinstance(values[0], bytes):
        return field(1, b"".join(field(1, v) for v in values))
    if isinstance(values[0], float):
        pieces, number, tag = [struct.pack("<f", v) for v in values], 2, b"\x0d"
    else:
        pieces, number, tag = [varint(v) for v in values], 3, b"\x08"
    items = field(1, b"".join(pieces)) if packed else b"".join(tag + p for p in pieces)
    return field(number, items)


def example(packed: bool = True, /, **features: Sequence[Any]) -> bytes:
    entries = (
        field(1, field(1, name.encode()) + field(2, feature(v, packed)))
        for name, v in features.items()
    )
    return field(1, b"".join(entries))


@dataclasses.dataclass(frozen=True, eq=False)
class Parse(Case):
    """ParseExample takes the shapes of its dense outputs from the file."""

    dense_shapes: Sequence[Shape] = ()
    n_sparse: int = 0

    def specs(self) -> tuple[Specs, Specs]:
        inputs, outputs = super().specs()
        batch = self.inputs[0].value.shape  # type: ignore[union-attr]
        changed = list(outputs)
        for i, shape in enumerate(self.dense_shapes):
            at = 3 * self.n_sparse + i
            changed[at] = dataclasses.replace(outputs[at], shape=(*batch, *shape))
        return inputs, tuple(changed)


def parse(
    examples: Arg,
    sparse: dict[bytes, Any] | None = None,
    dense: dict[bytes, Arg] | None = None,
    ragged: dict[bytes, Any] | None = None,
    version: int = 2,
) -> Parse:
    """`sparse`, `ragged`: dtypes by key; `dense`: defaults by key, of the features' shapes."""
    sparse, dense, ragged = sparse or {}, dense or {}, ragged or {}
    names = strings(make=const)
    if version == 1:
        keys = [const(np.array(key, object)) for key in (*sparse, *dense)]
    else:
        keys = [strings(*group, make=const) for group in (sparse, dense, ragged)]
    dtypes = [
        *[np.int64] * len(sparse),
        *sparse.values(),
        *[np.int64] * len(sparse),
        *(default.value.dtype for default in dense.values()),
        *ragged.values(),
        *[np.int32] * len(ragged),
    ]
    return Parse(
        "ParseExample" if version == 1 else "ParseExampleV2",
        "",
        [examples, names, *keys, *dense.values()],
        CustomOptions(),
        dtypes,
        dense_shapes=[default.value.shape for default in dense.values()],
        n_sparse=len(sparse),
    )


BATCH = strings(
    example(i=[1, -2, 2**62], f=[0.5], s=[b"a", b"\x00b"]),
    example(f=[1.5, -2.5], g=[3.0]),
    example(False, i=[-(2**63)], f=[4.0, 8.0, 16.0], g=[9.0], unknown=[1]),
)


@pytest.mark.parametrize("version", [1, 2])
def test_sparse_features(version: int) -> None:
    kinds = {b"i": np.int64, b"f": np.float32, b"s": np.dtype(object)}
    results = parse(BATCH, kinds, version=version).run_reference()
    indices, values, shapes = results[:3], results[3:6], results[6:]
    assert values[0].tolist() == [1, -2, 2**62, -(2**63)]
    assert values[1].tolist() == [0.5, 1.5, -2.5, 4.0, 8.0, 16.0]
    assert values[2].tolist() == [b"a", b"\x00b"]
    assert indices[0].tolist() == [[0, 0], [0, 1], [0, 2], [2, 0]]
    assert indices[1].tolist() == [[0, 0], [1, 0], [1, 1], [2, 0], [2, 1], [2, 2]]
    assert [shape.tolist() for shape in shapes] == [[3, 3], [3, 3], [3, 2]]
    assert [a.dtype for a in results[:2]] == [np.int64, np.int64]
    assert [a.dtype for a in values] == [np.int64, np.float32, object]


@pytest.mark.parametrize("version", [1, 2])
def test_dense_features_and_their_defaults(version: int) -> None:
    defaults = {b"g": const([7.0], np.float32), b"h": const([[1, 2], [3, 4]], np.int64)}
    g, h = parse(BATCH, dense=defaults, version=version).run_reference()
    assert g.tolist() == [[7], [3], [9]]
    assert h.tolist() == [[[1, 2], [3, 4]]] * 3
    assert (g.dtype, h.dtype) == (np.float32, np.int64)


def test_dense_strings_and_sparse_ones_together() -> None:
    batch = strings(example(a=[b"x", b"y"], b=[1]), example(b=[2, 3]))
    defaults = {b"a": strings(b"p", b"q", make=const)}
    indices, values, shape, dense = parse(batch, {b"b": np.int64}, defaults).run_reference()
    assert values.tolist() == [1, 2, 3]
    assert (indices.tolist(), shape.tolist()) == ([[0, 0], [1, 0], [1, 1]], [2, 2])
    assert dense.tolist() == [[b"x", b"y"], [b"p", b"q"]]


def test_ragged_features() -> None:
    values, splits = parse(BATCH, ragged={b"f": np.float32}).run_reference()
    assert values.tolist() == [0.5, 1.5, -2.5, 4.0, 8.0, 16.0]
    assert (splits.tolist(), splits.dtype) == ([0, 1, 3, 6], np.int32)


def test_one_example_without_a_batch() -> None:
    one = value(np.array(example(f=[1.0, 2.0], g=[3.0]), object))
    case = parse(one, {b"f": np.float32}, {b"g": const([0.0], np.float32)})
    indices, values, shape, g = case.run_reference()
    assert (indices.tolist(), values.tolist(), shape.tolist()) == ([[0], [1]], [1, 2], [2])
    assert g.tolist() == [3]


def test_no_examples() -> None:
    case = parse(strings(), {b"f": np.float32}, {b"g": const([0.0], np.float32)})
    indices, values, shape, g = case.run_reference()
    assert (indices.shape, values.shape, shape.tolist(), g.shape) == ((0, 2), (0,), [0, 0], (0, 1))


def test_the_last_entry_of_a_key_counts() -> None:
    twice = example(f=[1.0]) + example(f=[2.0])
    emptied = example(f=[1.0]) + field(1, field(1, field(1, b"f") + field(2, b"")))
    case = parse(strings(twice, emptied), dense={b"f": const([5.0], np.float32)})
    assert case.run_reference()[0].tolist() == [[2], [5]]


def test_unknown_fields_are_skipped() -> None:
    strange = b"\x10\x07" + b"\x19" + bytes(8) + b"\x25" + bytes(4) + field(9, b"any")
    case = parse(strings(strange + example(f=[1.0])), {b"f": np.float32})
    assert case.run_reference()[1].tolist() == [1]


NUMBER = const([0.0], np.float32)
WRONG = {
    "is not a list of int64": (example(f=[1.0]), {b"f": np.int64}, {}),
    "features are int64, float32 or strings": (example(f=[1.0]), {b"f": np.int32}, {}),
    "has 2 values, not [1]": (example(f=[1.0, 2.0]), {}, {b"f": NUMBER}),
    "has no default": (example(), {}, {b"f": const(np.zeros(0, np.float32))}),
    "ends within a field": (example(f=[1.0])[:-2], {b"f": np.float32}, {}),
    "ends within a number": (b"\x0a\x80", {b"f": np.float32}, {}),
    "wire type 3": (b"\x0b", {b"f": np.float32}, {}),
    "more than 10 bytes": (b"\xff" * 11, {b"f": np.float32}, {}),
}


@pytest.mark.parametrize("said", WRONG)
def test_damaged_or_unfitting_examples_are_refused(said: str) -> None:
    message, sparse, dense = WRONG[said]
    with pytest.raises((ValueError, TypeError)) as caught:
        parse(strings(message), sparse, dense).run_reference()
    assert said in str(caught.value)


HOST = [SKIP_GRAMS[0], parse(BATCH, {b"i": np.int64}), parse(BATCH, {b"i": np.int64}, version=1)]


@pytest.mark.parametrize("case", HOST, ids=lambda case: case.name)
def test_strings_stay_on_the_host(case: Case) -> None:
    rule, op = RULES[case.name], case.op(LoweringContext())
    assert "XLA does not support" in (rule.reason(op) or "")
    assert "XLA does not support" in (rule.why_not(op) or "")
    with pytest.raises(ValueError, match="XLA does not support"):
        rule.lower(op)
