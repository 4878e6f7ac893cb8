import dataclasses
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.op_lowering.options import (
    ArgMaxOptions,
    ConcatenationOptions,
    MirrorPadMode,
    MirrorPadOptions,
    NoOptions,
    OneHotOptions,
    Options,
    PackOptions,
    ReducerOptions,
    ResizeBilinearOptions,
    ResizeNearestNeighborOptions,
    TensorType,
    default_options,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import Lowered, LoweringContext, Op
from jaxdelegate.quant.params import Blockwise, Quantization
from jaxdelegate.testing import Arg, Case, const, value
from tests.support.case_groups import CaseGroup
from tests.support.dtypes import NO_KERNEL
from tests.support.quantized import any_integers, scaled

INT8, UINT8, INT16 = np.int8, np.uint8, np.int16


# ---- CONCATENATION


def concatenation(label: str, parts: list[Arg], target: Quantization, axis: int = 1) -> Case:
    return Case(
        "CONCATENATION",
        label,
        parts,
        ConcatenationOptions(axis=axis),
        output_quantization=[target],
        version=2,
    )


def joined(*scales: tuple[float, int], seed: int = 0) -> list[Arg]:
    return [
        Arg(any_integers(UINT8, 2, 3 + i, 4, seed=seed), quantization=scaled(*scale))
        for i, scale in enumerate(scales)
    ]


EVERY = Arg(np.arange(256, dtype=UINT8).reshape(1, 256), quantization=scaled(0.3, 20))
CONCATENATIONS = [
    concatenation("equal", joined((0.5, 3), (0.5, 3)), scaled(0.5, 3)),
    concatenation("scales", joined((0.5, 3), (0.1, 3), (2.0, 3)), scaled(0.5, 3)),
    concatenation("points", joined((0.5, 0), (0.5, 255), (0.5, 77)), scaled(0.5, 100)),
    concatenation("ends", joined((0.01, 0), (4.0, 255)), scaled(0.3, 128)),
    concatenation("halves", joined((1.0, 1), (1.0, 4)), scaled(2.0, 128)),
    concatenation("far", joined((1e-6, 0), (1e4, 255)), scaled(1.0, 0)),
    *(concatenation(f"every-{s}", [EVERY], scaled(s, 100)) for s in (0.01, 0.2999, 0.7, 30.0)),
    concatenation(
        "constant",
        [
            joined((0.5, 3))[0],
            dataclasses.replace(EVERY, value=any_integers(UINT8, 2, 1, 4), is_const=True),
        ],
        scaled(0.4, 9),
    ),
]  # fmt: skip


# ---- EMBEDDING_LOOKUP


def lookup(label: str, table: Any, quantization: Quantization, result: Any = np.float32) -> Case:
    rows = dataclasses.replace(const(np.asarray(table)), quantization=quantization)
    ids = value([2, 0, 2, 1], "int32")
    return Case("EMBEDDING_LOOKUP", label, [ids, rows], NoOptions(), outputs=[result], version=3)


def by_row(*scales: float) -> Quantization:
    return Quantization(np.float32(scales), np.int64([0] * len(scales)))


INT4 = any_integers(INT8, 3, 6).astype(ml_dtypes.int4)
LOOKUPS = [
    lookup("int8", any_integers(INT8, 3, 5), scaled(0.013)),
    lookup("uint8", any_integers(UINT8, 3, 5), scaled(0.013)),
    lookup("rows", any_integers(INT8, 3, 5), by_row(1e-5, 0.3, 70)),
    lookup("rank4", any_integers(INT8, 3, 2, 1, 4), by_row(0.1, 0.2, 0.3)),
    lookup("int4", INT4, scaled(0.07)),
    lookup("int4-rows", INT4, by_row(0.01, 2.0, 0.3)),
    lookup("int2", np.int8([[-2, -1, 0, 1]] * 3).astype(ml_dtypes.int2), by_row(0.5, 0.1, 3)),
    lookup("float16", any_integers(INT8, 3, 5), by_row(0.011, 0.3, 7), np.float16),
]


WORDS = [
    lookup("int8", any_integers(INT8, 3, 8), by_row(0.1, 0.2, 0.3)),
    lookup("rank4", any_integers(INT8, 3, 2, 1, 4), by_row(0.1, 0.2, 0.3)),
    lookup("int4", any_integers(INT8, 3, 4096).astype(ml_dtypes.int4), by_row(0.1, 0.2, 0.3)),
]


@pytest.mark.parametrize("case", WORDS, ids=str)
def test_a_tpu_picks_rows_as_words(case: Case) -> None:
    """XLA would copy the whole table for single rows of bytes."""
    rule, (inputs, outputs) = RULES[case.name], case.specs()
    context = LoweringContext(platform="tpu", op_version=case.version)
    lowered = rule.lower(Op(context, case.op_options, inputs, outputs))
    assert isinstance(lowered, Lowered)
    prepared = lowered.prepare[1](case.arrays()[1])
    assert (prepared.dtype, prepared.ndim) == (np.int32, 2)
    with jax.enable_x64(True):
        got = jax.jit(lowered.run)(case.feeds()[0], prepared)
    case.check([np.asarray(got[0])], case.run_reference())


# ---- movement that keeps the stored integers


def moved(
    name: str, x: np.ndarray, *others: Arg, options: Options | None = None, **details: Any
) -> Case:
    quantization = scaled(0.25, 0 if x.dtype == INT16 else 3)
    outputs = details.pop("outputs", [x.dtype])
    return Case(
        name,
        f"{x.dtype}-{x.shape}",
        [Arg(x, quantization=quantization), *others],
        options or default_options(name),
        outputs=outputs,
        output_quantization=[quantization if d == x.dtype else None for d in outputs],
        **details,
    )


def like(x: np.ndarray, number: int) -> Arg:
    quantization = scaled(0.25, 0 if x.dtype == INT16 else 3)
    return Arg(np.asarray(number, x.dtype), is_const=True, quantization=quantization)


def movements(dtype: Any) -> list[Case]:
    x, image = any_integers(dtype, 3, 4), any_integers(dtype, 1, 4, 6, 4)
    pads = const([[1, 2], [0, 1]], "int32")
    hot, index = np.int32([2, 0, 7]), ArgMaxOptions(TensorType.INT32)
    half = ResizeBilinearOptions(half_pixel_centers=True)
    nearest = ResizeNearestNeighborOptions(align_corners=True)
    return [
        moved("PAD", x, pads),
        moved("PADV2", x, pads, like(x, 5), options=NoOptions()),
        moved("MIRROR_PAD", x, pads, options=MirrorPadOptions(MirrorPadMode.SYMMETRIC), version=2),
        moved("TRANSPOSE", x, const([1, 0], "int32"), version=2),
        moved("REVERSE_V2", x, const([1], "int32"), version=2),
        moved("GATHER", x, value([1, 0, 1], "int32")),
        moved("TILE", x, const([2, 1], "int32"), version=2),
        moved("BROADCAST_TO", x, const([2, 3, 4], "int32"), version=2),
        moved("PACK", x, options=PackOptions(values_count=1), version=2),
        moved("REDUCE_MAX", x, const([1], "int32"), options=ReducerOptions(), version=2),
        moved("REDUCE_MIN", x, const([0, 1], "int32"), options=ReducerOptions(), version=2),
        moved(
            "ARG_MAX",
            x,
            const(1, "int32"),
            options=index,
            outputs=[np.int32],
            litert=NO_KERNEL if dtype == INT16 else None,
        ),
        moved("TOPK_V2", x, const(2, "int32"), outputs=[x.dtype, np.int32]),
        moved("RESIZE_NEAREST_NEIGHBOR", image, const([7, 5], "int32"), options=nearest),
        moved("RESIZE_BILINEAR", image, const([7, 5], "int32"), options=half),
        moved("SPACE_TO_BATCH_ND", image, const([2, 2], "int32"), const([[0, 2], [1, 1]], "int32")),
        Case(
            "ONE_HOT",
            f"{np.dtype(dtype)}",
            [value(hot), const(4, "int32"), like(x, 9), like(x, 3)],
            OneHotOptions(axis=-1),
            outputs=[dtype],
            output_quantization=[like(x, 9).quantization],
            litert=NO_KERNEL if dtype == INT16 else None,
        ),
    ]


MOVEMENTS = [case for dtype in (INT8, UINT8, INT16) for case in movements(dtype)]
CASES = [*CONCATENATIONS, *LOOKUPS, *MOVEMENTS]


def fuzzed(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    if seed % 2:
        scales = [(2.0 ** rng.uniform(-7, 1), int(rng.integers(256))) for _ in range(3)]
        return concatenation(f"{seed}", joined(*scales[:2], seed=seed), scaled(*scales[2]))
    dtype = (INT8, UINT8, INT16)[seed // 2 % 3]
    options = (
        ResizeBilinearOptions(),
        ResizeBilinearOptions(True),
        ResizeBilinearOptions(False, True),
    )
    image = any_integers(dtype, 1, *(int(n) for n in rng.integers(1, 10, 2)), 3, seed=seed)
    size = const(rng.integers(1, 17, 2), "int32")
    return moved("RESIZE_BILINEAR", image, size, options=options[seed // 6 % 3], version=3)


@pytest.mark.litert
def test_fuzz() -> None:
    cases = [fuzzed(seed) for seed in range(180)]
    for case in cases:
        case.check(case.run_reference(), case.run_litert())
    group = CaseGroup(cases[:72])
    group.check(group.run_lowered(RULES), Case.run_litert)


TABLE, HALF = any_integers(INT8, 3, 5), scaled(0.5)
REFUSED = [
    (
        concatenation("int8", [Arg(TABLE, quantization=scaled(0.25))], HALF),
        "quantized differently",
        TypeError,
    ),
    (
        concatenation("plain", [Arg(any_integers(UINT8, 2, 2))], HALF),
        "quantized differently",
        TypeError,
    ),
    (
        concatenation(
            "channels", [Arg(any_integers(UINT8, 2, 2), quantization=by_row(1, 2))], HALF
        ),
        "'in0' has 2 scales",
        ValueError,
    ),
    (lookup("point", TABLE, scaled(0.5, 3)), "has a zero point", ValueError),
    (lookup("rows", TABLE, by_row(1, 2)), "2 scales for 3 rows", ValueError),
    (lookup("int16", any_integers(INT16, 3, 5), HALF), "dequantizes rows of int16", TypeError),
    (lookup("int32", TABLE, HALF, np.int32), "dequantizes rows to int32", TypeError),
]


@pytest.mark.parametrize(("case", "said", "error"), REFUSED)
def test_refuses(case: Case, said: str, error: type[Exception]) -> None:
    assert said in case.reason(RULES[case.name])
    with pytest.raises(error):
        case.run_reference()


def rescaling(case: Case) -> Case:
    """The case with another scale at its first output."""
    _, *others = case.output_quantization or [None]
    return dataclasses.replace(case, output_quantization=[scaled(0.125, 3), *others])


SCALED = [case for case in MOVEMENTS if case.name != "ARG_MAX"]  # whose output has no scale


@pytest.mark.parametrize("case", SCALED, ids=str)
def test_movements_do_not_requantize(case: Case) -> None:
    assert "quantized differently" in rescaling(case).reason(RULES[case.name])


STRICT = ("PADV2", "MIRROR_PAD", "PACK", "REDUCE_MAX", "REDUCE_MIN", "SPACE_TO_BATCH_ND")


@pytest.mark.parametrize("case", [c for c in SCALED if c.name in STRICT], ids=str)
def test_the_reference_stops_where_the_kernel_asks_for_one_scale(case: Case) -> None:
    with pytest.raises(TypeError, match="quantized differently"):
        rescaling(case).run_reference()


def test_refuses_a_table_quantized_in_blocks() -> None:
    inputs, outputs = lookup("blocks", TABLE, HALF).specs()
    blocks = Quantization(np.float32([]), np.int64([]), blockwise=Blockwise(0, -1, 32))
    inputs = (inputs[0], dataclasses.replace(inputs[1], quantization=blocks))
    why = RULES["EMBEDDING_LOOKUP"].reason(Op(LoweringContext(), NoOptions(), inputs, outputs))
    assert "quantized in blocks" in (why or "")


def test_looks_rows_up_in_a_table_found_at_run_time() -> None:
    known = lookup("late", TABLE, by_row(0.1, 0.2, 0.3))
    table = known.inputs[1]
    assert table is not None
    late = dataclasses.replace(
        known, inputs=[known.inputs[0], dataclasses.replace(table, is_const=False)]
    )
    late.check(late.run_lowered(RULES[late.name]), known.run_reference())
