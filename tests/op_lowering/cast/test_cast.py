import dataclasses

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.op_lowering.options import FakeQuantOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.quant.params import Blockwise, Quantization
from jaxdelegate.testing import Arg, Case, f32, of, value

FLOATS = ["float32", "float16", "bfloat16", "float64"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"]
PACKED = ["int4", "uint4", "int2"]
DTYPES = {n: np.dtype(getattr(ml_dtypes, n, None) or n) for n in [*FLOATS, *PACKED]}
DTYPES |= {n: np.dtype(n) for n in [*INTEGERS, "uint64", "bool", "complex64", "complex128"]}
NAN, INF = np.nan, np.inf


def _values(dtype: str) -> Arg:
    if dtype in FLOATS:
        edges = [NAN, INF, -INF, -0.0, 0.3, -0.7, 1.7, -1.7, 127.9, -128.9, 255.5, 300, -300]
        large = [70000, 2.0**31, -(2.0**31), 2.0**63, 1e10, -1e10, 1e20, -1e20]
        with np.errstate(over="ignore"):
            return value(np.array([*edges, *large], np.float32).astype(DTYPES[dtype]))
    if dtype == "complex64":
        return value([1.5 + 2j, -3.7, 1j, complex(NAN, 1), 1e20 - 1j], np.complex64)
    if dtype == "bool":
        return value([True, False])
    info = np.iinfo(dtype)
    return value([info.min, info.max, info.max // 3, 0, 1, 77], dtype)


def _packed(dtype: str) -> Arg:
    low, high = {"int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1)}[dtype]
    return Arg(np.arange(low, high + 1).astype(DTYPES[dtype]), is_const=True)


def _cast(source: str, target: str, x: Arg) -> Case:
    wide = {"uint64", "complex128"} & {source, target}
    return Case(
        "CAST",
        f"{source}-{target}",
        [x],
        outputs=[DTYPES[target]],
        litert="LiteRT has no kernel for this dtype" if wide else None,
    )


PLAIN = [*FLOATS, *INTEGERS, "bool", "complex64"]
CASTS = [
    *(_cast(source, target, _values(source)) for source in PLAIN for target in PLAIN),
    *(_cast("uint64", target, _values("uint64")) for target in ("float32", "int8", "bool")),
    *(_cast(source, "uint64", _values(source)) for source in ("float32", "int8", "bool")),
    *(_cast(packed, "float32", _packed(packed)) for packed in PACKED),
    *(_cast("float32", packed, _values("float32")) for packed in PACKED),
    Case("CAST", "empty", [f32(0, 3)], outputs=["int32"]),
    Case("CAST", "scalar", [value(3.7, np.float32)], outputs=["int64"]),
    Case("CAST", "rank_8", [f32(1, 2, 1, 2, 1, 2, 1, 2)], outputs=["uint8"]),
]


def _scale(scale: list[float], zero_point: list[int], axis: int = 0) -> Quantization:
    return Quantization(np.array(scale, np.float32), np.array(zero_point, np.int64), axis)


def _stored(dtype: str, *shape: int, quantization: Quantization) -> Arg:
    if dtype in PACKED:
        x = np.resize(_packed(dtype).value, shape)
    else:
        x = of(np.dtype(dtype), *shape, low=-(2**15), high=np.iinfo(dtype).max).value
    return Arg(x, is_const=dtype in PACKED, quantization=quantization)


DEQUANTIZE = [
    *(
        Case("DEQUANTIZE", f"tensor-{d}", [_stored(d, 2, 8, quantization=q)], outputs=["float32"])
        for d, q in [
            ("int8", _scale([0.37], [-5])),
            ("uint8", _scale([0.011], [129])),
            ("int16", _scale([3e-4], [0])),
            ("int4", _scale([0.37], [1])),
            ("uint4", _scale([0.37], [7])),
            ("int2", _scale([0.37], [0])),
        ]
    ),
    *(
        Case(
            "DEQUANTIZE", f"axis_1-{d}", [_stored(d, 2, 3, 4, quantization=q)], outputs=["float32"]
        )
        for d in ("int8", "uint8", "int4")
        for q in [_scale([0.3, 0.5, 7e-3], [1, 0, 5], 1)]
    ),
    Case(
        "DEQUANTIZE",
        "axis_0-int16",
        [_stored("int16", 2, 3, quantization=_scale([0.3, 0.5], [0, 0]))],
        outputs=["float32"],
        litert="per-channel int16 has no kernel",
    ),
    Case(
        "DEQUANTIZE",
        "tensor-int32",
        [
            Arg(
                np.array([-(2**31), -(2**24) - 1, 0, 3, 2**31 - 1], np.int32),
                quantization=_scale([3e-4], [7]),
            )
        ],
        outputs=["float32"],
        litert="LiteRT has no kernel for this dtype",
    ),
    Case("DEQUANTIZE", "run_time-float16", [of(np.float16, 3, 4)], outputs=["float32"]),
    Case(
        "DEQUANTIZE",
        "constant-float16",
        [Arg(of(np.float16, 3, 4).value, is_const=True)],
        outputs=["float32"],
    ),
    Case(
        "DEQUANTIZE",
        "run_time-bfloat16",
        [of(ml_dtypes.bfloat16, 3, 4)],
        outputs=["float32"],
        litert="LiteRT has no kernel for this dtype",
    ),
    Case(
        "DEQUANTIZE",
        "scalar",
        [_stored("int8", quantization=_scale([0.3], [4]))],
        outputs=["float32"],
    ),
    Case(
        "DEQUANTIZE",
        "empty",
        [_stored("int8", 0, 2, quantization=_scale([0.3, 0.1], [4, 0], 1))],
        outputs=["float32"],
        litert="per-channel kernels read past an empty tensor",
    ),
]

LEVELS = value([NAN, INF, -INF, -2, -1, -0.3, 0.1, 0.5, 0.77, 1, 1.004, 5, 0], np.float32)
FAKE_QUANT = [
    Case("FAKE_QUANT", f"{bits}_bits-{low}-{high}", [x], FakeQuantOptions(low, high, bits))
    for x in (LEVELS,)
    for bits in (2, 4, 8, 16)
    for low, high in ((-1.0, 1.0), (-1.3, 2.9), (0.0, 6.0), (0.1, 1.0), (-1.0, -0.2))
] + [
    Case(
        "FAKE_QUANT",
        "narrow",
        [f32(3, 4)],
        FakeQuantOptions(-1.0, 1.0, 8, narrow_range=True),
        litert="narrow_range is TensorFlow's only",
    ),
    Case("FAKE_QUANT", "random", [f32(2, 3, 4, 5)], FakeQuantOptions(-1.5, 1.7, 8)),
    Case("FAKE_QUANT", "empty", [f32(0)], FakeQuantOptions(-1.5, 1.7, 8)),
]


def _quantize(
    label: str, dtype: str, x: Arg, result: Quantization, litert: str | None = None
) -> Case:
    details = {"outputs": [DTYPES[dtype]], "output_quantization": [result], "litert": litert}
    return Case("QUANTIZE", f"{label}-{dtype}", [x], **details)


HALVES = value(
    [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, -0.49999997, 1e6, -1e6, NAN], "float32"
)
TARGETS = ["int8", "uint8", "int16", "int4", "uint4"]
QUANTIZE = [
    *(_quantize("halves", d, HALVES, _scale([1.0], [0])) for d in TARGETS),
    *(
        _quantize("random", d, f32(40, 50, low=-9, high=9), _scale([scale], [zero_point]))
        for d, scale, zero_point in [
            ("int8", 0.073, -3),
            ("uint8", 0.0611, 128),
            ("int16", 3.7e-4, 0),
            ("int4", 0.7, 2),
            ("uint4", 0.9, 8),
        ]
    ),
    *(
        _quantize(
            "axis_1", d, f32(2, 3, 40, low=-9, high=9), _scale([0.11, 0.07, 0.3], [1, 0, 9], 1)
        )
        for d in ("int8", "uint8", "int16")
    ),
    _quantize("scalar", "int8", value(1.3, "float32"), _scale([0.1], [1])),
    _quantize("empty", "int8", f32(3, 0), _scale([0.1], [1])),
    _quantize(
        "far",
        "int8",
        value([INF, -INF, 1e10, -1e10], "float32"),
        _scale([0.1], [1]),
        litert="undefined there: BUILTIN_REF and XNNPACK differ",
    ),
    _quantize(
        "half",
        "int8",
        of(np.float16, 3, 4),
        _scale([0.1], [1]),
        litert="only XNNPACK takes float16",
    ),
]

CASES = [*CASTS, *DEQUANTIZE, *FAKE_QUANT, *QUANTIZE]


@pytest.mark.litert
@pytest.mark.parametrize("case", [c for c in CASES if c.litert is None], ids=str)
def test_reference_matches_litert(case: Case) -> None:
    want = case.run_litert()
    # The interpreter returns packed integers, one per byte.
    got = [
        y.astype(w.dtype) if y.dtype.name in PACKED else y
        for y, w in zip(case.run_reference(), want, strict=True)
    ]
    case.check(got, want)


def test_saturated_values_go_to_the_nearest_end() -> None:
    case = next(c for c in QUANTIZE if str(c) == "QUANTIZE-far-int8")
    assert case.run_reference()[0].tolist() == [127, -128, 127, -128]


def test_cast_takes_the_stored_integers() -> None:
    stored = _stored("int8", 5, quantization=_scale([0.3], [4]))
    case = Case("CAST", "", [stored], outputs=["float32"])
    want = [stored.value.astype(np.float32)]
    case.check(case.run_reference(), want)
    case.check(case.run_lowered(RULES["CAST"]), want)


BLOCKWISE = dataclasses.replace(_scale([0.1], [0]), blockwise=Blockwise(1, -1, 32))
REFUSALS = [
    (Case("CAST", "", [value([b"1"], object)], outputs=["int32"]), "'in0' holds strings"),
    (_cast("int4", "int32", _packed("int4")), "int4 is not cast to int32"),
    (Case("DEQUANTIZE", "", [value([1], "int8")]), "'out0' is int8, not one of"),
    (
        Case("DEQUANTIZE", "", [value([1], "int8")], outputs=["float32"]),
        "'in0' is int8 without a scale",
    ),
    (
        Case("DEQUANTIZE", "", [_stored("int8", 2, quantization=BLOCKWISE)], outputs=["float32"]),
        "'in0' is quantized in blocks: its blockwise scales are not known",
    ),
    (
        Case(
            "DEQUANTIZE",
            "",
            [_stored("int8", 3, 2, quantization=_scale([0.1, 0.2], [0, 0], 0))],
            outputs=["float32"],
        ),
        "'in0' has 2 scales for axis 0 of [3, 2]",
    ),
    (
        Case(
            "DEQUANTIZE",
            "",
            [_stored("int64", 2, quantization=_scale([0.1], [0]))],
            outputs=["float32"],
        ),
        "'in0' is int64, not one of",
    ),
    (Case("QUANTIZE", "", [f32(2)], outputs=["int8"]), "'out0' is int8 without a scale"),
    (Case("FAKE_QUANT", "", [f32(2)], FakeQuantOptions(-1, 1, 24)), "num_bits is 24"),
    (Case("CAST", "", [f32(2)], outputs=["int8"], version=10), "version 10 is newer"),
]


@pytest.mark.parametrize(("case", "said"), REFUSALS, ids=lambda v: getattr(v, "name", ""))
def test_refusals(case: Case, said: str) -> None:
    context = LoweringContext(op_version=case.version)
    reason = RULES[case.name].reason(case.op(context))
    assert reason is not None
    assert reason.startswith(said)


@pytest.mark.parametrize("case", [DEQUANTIZE[0], QUANTIZE[0]], ids=str)
def test_quantization_can_be_switched_off(case: Case) -> None:
    context = LoweringContext(enable_quant=False)
    reason = RULES[case.name].reason(case.op(context))
    assert reason == "it is quantized, and the option enable_quant is off"


def test_the_reference_refuses_what_it_cannot_mean() -> None:
    with pytest.raises(ValueError, match="without a scale"):
        Case("DEQUANTIZE", "", [value([1], "int8")], outputs=["float32"]).run_reference()
    with pytest.raises(ValueError, match="no scale"):
        Case("QUANTIZE", "", [f32(2)], outputs=["int8"]).run_reference()
