"""Strings. The expected results are those of TensorFlow 2.17.1."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from jaxdelegate.errors import OptionError
from jaxdelegate.testing import Arg, Case, const, value
from tests.op_lowering.flex.test_math import case as flex_case
from tests.op_lowering.flex.test_math import number, numbers

ODD = (b"\xc3\xa9\xff", b"", b" \t\x0b\x0c a b\x00 \xc2\xa0", b"ABC \xc3\x80\xc3\x9f")


def strings(*texts: bytes) -> Arg:
    return value(np.array([*texts, None], object)[:-1])


def one(text: bytes) -> Arg:
    """A constant: TensorFlow's interpreter takes no scalar strings."""
    return const(np.array(text, object))


def text(
    name: str,
    inputs: Sequence[Arg],
    *expected: Any,
    outputs: Sequence[Any] = (object,),
    **attributes: Any,
) -> tuple[Case, tuple[Any, ...]]:
    named = {k: v for k, v in attributes.items() if k != "T"}
    label = "-".join([*(f"{k}={v}" for k, v in named.items()), str(expected[:1])[:40]])
    given = {"T": np.dtype(object), **attributes}
    return flex_case(name, label, inputs, outputs, attributes=given), expected


def replaced(x: bytes, pattern: bytes, rewrite: bytes, y: bytes, **attributes: bool) -> Any:
    return text("RegexReplace", [strings(x), one(pattern), one(rewrite)], [y], **attributes)


def matched(x: bytes, pattern: bytes, y: bool) -> Any:
    return text("RegexFullMatch", [strings(x), one(pattern)], [y], outputs=[np.bool_])


def split(x: bytes, sep: bytes, y: list[bytes], maxsplit: int = -1) -> Any:
    indices = np.array([(0, i) for i in range(len(y))], np.int64).reshape(-1, 2)
    outputs = [np.int64, object, np.int64]
    expected = (indices, y, [1, len(y)])
    inputs = [strings(x), one(sep)]
    return text("StringSplitV2", inputs, *expected, outputs=outputs, maxsplit=maxsplit)


def substr(x: bytes, pos: int, n: int, y: bytes, unit: str = "BYTE") -> Any:
    return text(
        "Substr", [strings(x), number(pos), number(n)], [y], unit=unit, T=np.dtype(np.int32)
    )


def written(x: Any, *y: bytes, **attributes: Any) -> Any:
    return text("AsString", [value(x)], y, **{**attributes, "T": x.dtype})


def parsed(dtype: Any, texts: Sequence[bytes], y: Sequence[float]) -> Any:
    return text("StringToNumber", [strings(*texts)], y, outputs=[dtype], out_type=np.dtype(dtype))


SQUARE = value(np.array([[b"a", b"b"], [b"c", b"d"]], object))
CAFE = "café é".encode()
REALS = np.float32([1.5, -2.25e-9, 3e20, np.nan, np.inf])
EXPECTED = [
    text("StringLower", [strings(*ODD[3:])], [b"abc \xc3\x80\xc3\x9f"]),
    text("StringLower", [strings(*ODD[3:])], [b"abc \xc3\xa0\xc3\x9f"], encoding="utf-8"),
    text("StringUpper", [strings("àbß".encode())], ["àBß".encode()]),
    text("StringUpper", [strings("àbß".encode())], ["ÀBSS".encode()], encoding="utf-8"),
    text("StringStrip", [strings(*ODD[:3])], [*ODD[:2], b"a b\x00 \xc2\xa0"]),
    text("StringLength", [strings(*ODD[:2])], [3, 0], outputs=[np.int32]),
    text(
        "StringLength",
        [strings(CAFE, b"\xe9\xff", b"\x80abc")],
        [6, 2, 3],
        outputs=[np.int32],
        unit="UTF8_CHAR",
    ),
    substr(b"hello", 1, 3, b"ell"),
    substr(b"hello", -3, 2, b"ll"),
    substr(b"hello", 5, 2, b""),
    substr(b"hello", 1, -1, b"ello"),
    substr(CAFE, -2, 9, " é".encode(), unit="UTF8_CHAR"),
    substr(CAFE, 3, 1, "é".encode(), unit="UTF8_CHAR"),
    text(
        "Substr",
        [SQUARE, numbers(0, 1), numbers(1, 1)],
        [[b"a", b""], [b"c", b""]],
        T=np.dtype(np.int32),
    ),
    text("StringJoin", [strings(b"a", b"b"), one(b"x")], [b"a/x", b"b/x"], separator="/", N=2),
    text("StringJoin", [strings(b"q")], [b"q"], separator="/", N=1),
    text("ReduceJoin", [SQUARE, numbers(0, 1)], b"acbd"),
    text("ReduceJoin", [SQUARE, numbers(1, 0)], b"a,b,c,d", separator=","),
    text("ReduceJoin", [SQUARE, numbers()], [[b"a", b"b"], [b"c", b"d"]]),
    text("ReduceJoin", [SQUARE, number(-2)], [[b"ac", b"bd"]], keep_dims=True),
    text("ReduceJoin", [value(np.zeros((2, 0), object)), numbers(1)], [b"", b""]),
    split(b"  a b  c d ", b"", [b"a", b"b", b"c", b"d"]),
    split(b"  a b  c d ", b"", [b"a", b"b", b"c d "], 2),
    split(b" a", b"", [b"a", b""], 1),
    split(b"a b", b"", [b"a", b"b"], 3),
    split(b" ", b"", []),
    split(b"a\x0bb\x1cc", b"", [b"a", b"b\x1cc"]),
    split(b"a,b,,c", b",", [b"a", b"b", b"", b"c"]),
    split(b"a,b,,c", b",", [b"a", b"b", b",c"], 2),
    split(b"a,b", b",", [b"a,b"], 0),
    split(b"a||b|c", b"||", [b"a", b"b|c"]),
    split(b"", b",", [b""]),
    text(
        "StringToHashBucketFast",
        [
            strings(
                b"a",
                b"hello world, this is a long long string of more than sixty-four bytes!!!",
                b"",
            )
        ],
        [939, 191, 263],
        outputs=[np.int64],
        num_buckets=1000,
    ),
    written(REALS, b"1.500000", b"-0.000000", b"300000006012263202816.000000", b"nan", b"inf"),
    written(REALS[:2], b"1.50", b"-0.00", precision=2),
    written(REALS[:2], b"1.500000e+00", b"-2.250000e-09", scientific=True),
    written(REALS[:3], b"1.5", b"-2.25e-09", b"3e+20", shortest=True),
    written(REALS[[0, 3]], b"00001.500000", b"         nan", width=12, fill="0"),
    written(REALS[[0, 4]], b"1.5      ", b"inf      ", width=9, fill="-", precision=1),
    written(REALS[[0, 3]], b"+1.500000", b"+nan", fill="+"),
    written(np.complex64([1 - 2j]), b"(1.00,-2.00)", precision=2),
    written(np.int8([5, -3]), b"000005", b"-00003", width=6, fill="0"),
    written(np.bool_([True, False]), b"true", b"false", width=7),
    written(np.array([b"x"], object), b"      x", width=7),
    parsed(
        np.float32, [b" 1.5", b"1e3", b"+5", b".5", b"5.", b"1e400"], [1.5, 1e3, 5, 0.5, 5, np.inf]
    ),
    parsed(np.float64, [b"-inf", b"NaN", b"0X10", b"+.5e+3"], [-np.inf, np.nan, 16, 500]),
    parsed(np.int32, [b" 5 ", b"-5"], [5, -5]),
    parsed(np.int64, [b"99999999999"], [99999999999]),
    replaced(b"abxd", b"x*", b"-", b"-a-b-d-"),
    replaced(b"abxd", b"x*", b"-", b"-abxd", replace_global=False),
    replaced(b"ab\n", b"b$", b"X", b"ab\n"),
    replaced(b"ab", b"$", b"<", b"ab<"),
    replaced("Aé1".encode(), b"\\w", b"-", "-é-".encode()),
    replaced("éa".encode(), b"\\b", b"|", "é|a|".encode()),
    replaced("aéb".encode(), b".", b"-", b"---"),
    replaced(b"ab12", b"([a-z]+)(\\d)", b"<\\2\\1\\0>", b"<1abab1>2"),
    replaced(b"ab", b"(a)|b", b"<\\1>", b"<a><>"),
    replaced(b"ab", b"a", b"\\5", b"ab"),
    replaced(b"a.b", b"[[:punct:]]", b"!", b"a!b"),
    replaced(b"a-b]", b"[]-]", b"_", b"a_b_"),
    replaced(b"a\x0bb", b"\\s", b"_", b"a\x0bb"),
    replaced(b"ab", b"(?i)B", b"Z", b"aZ"),
    replaced(b"x{,2}", b"x{,2}", b"y", b"y"),
    replaced(b"a.b", b"\\Q.\\E", b"q", b"aqb"),
    replaced(b"ab", b"\\x{62}|\\x61", b"q", b"qq"),
    replaced("a日".encode(), b"", b"-", "-a-日-".encode()),
    replaced(b"a\xffb", b"x*", b"-", b"-a-\xff-b-"),
    replaced(b"a\xffb", b".", b"-", b"-\xff-"),
    replaced("àB".encode(), "\\p{Lu}|(?i)À".encode(), b"u", b"uu"),
    replaced(b"aab", b"(?U)a+", b"-", b"--b"),
    replaced(b"", b"^$", b"x", b"x"),
    matched(b"a" * 60 + b"b", b"(a+)+", False),  # Python's module re needs years
    matched(b"ab\n", b"ab$", False),
    matched(b"ab", b"a|ab", True),
    matched(b"ab", b"(?s)a.", True),
    text(
        "StaticRegexFullMatch",
        [strings(b"a1", b"1a")],
        [True, False],
        outputs=[np.bool_],
        pattern="[a-z]\\d",
    ),
    text("StaticRegexReplace", [strings(b"a1b2")], [b"a#b#"], pattern="[0-9]", rewrite="#"),
    text(
        "StaticRegexReplace",
        [strings(b"a1b2")],
        [b"a#b2"],
        pattern="[0-9]",
        rewrite="#",
        replace_global=False,
    ),
]
RUN_TIME = [found for found, _ in EXPECTED]
STOPPED = {
    "position 6 is outside a string of 5": substr(b"hello", 6, 1, b"")[0],
    "position -6": substr(b"hello", -6, 1, b"")[0],
    "the unit 'X'": substr(b"hello", 0, 1, b"", unit="X")[0],
    "the encoding 'latin'": text("StringLower", [strings(b"a")], encoding="latin")[0],
    "an axis comes twice": text("ReduceJoin", [SQUARE, numbers(0, -2)])[0],
    "'1_0' is not float32": parsed(np.float32, [b"1_0"], [0])[0],
    "'Infinity' is not float32": parsed(np.float32, [b"Infinity"], [0])[0],
    "'+5' is not int32": parsed(np.int32, [b"+5"], [0])[0],
    "'99999999999' is not int32": parsed(np.int32, [b"99999999999"], [0])[0],
    "the fill 'x'": written(REALS, fill="x")[0],
    "expected at most 65536": written(REALS, width=2**31 - 1)[0],
    "exclude each other": written(REALS, scientific=True, shortest=True)[0],
    "which has no precision": written(np.int32([1]), precision=2)[0],
    "0 buckets": text("StringToHashBucketFast", [strings(b"a")], outputs=[np.int64], num_buckets=0)[
        0
    ],
    "'(': missing )": replaced(b"a", b"(", b"", b"")[0],
    "'a(?=b)': invalid perl operator": replaced(b"a", b"a(?=b)", b"", b"")[0],
    "'a**': bad repetition operator": replaced(b"a", b"a**", b"", b"")[0],
    "'(a)\\\\1': invalid escape sequence": matched(b"a", b"(a)\\1", False)[0],
    "invalid repetition size": matched(b"a", b"((a{100}){100}){100}", False)[0],
    "invalid UTF-8": matched(b"a", b"\xff", False)[0],
    "after each one": replaced(b"a", b"a", b"\\x", b"")[0],
}
IMPOSSIBLE = [
    text("StringJoin", [strings(b"a", b"b"), strings(b"c")])[0],
    text("StringSplitV2", [one(b"a"), one(b"")], outputs=[np.int64, object, np.int64])[0],
]


@pytest.mark.parametrize(("given", "expected"), EXPECTED, ids=lambda row: str(row)[:60])
def test_values_of_tensorflow(given: Case, expected: tuple[Any, ...]) -> None:
    for found, wanted, dtype in zip(
        given.run_reference(), expected, given.outputs or (), strict=True
    ):
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.array(wanted, dtype))


def test_without_the_package_of_regular_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(OptionError, match=r"re2 is not installed .*pip install "):
        replaced(b"a", b"a", b"b", b"b")[0].run_reference()
