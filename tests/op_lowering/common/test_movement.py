"""What may be moved, for every rule that only moves data."""

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.op_lowering.options import (
    ConcatenationOptions,
    CustomOptions,
    DepthToSpaceOptions,
    OneHotOptions,
    PackOptions,
    ReverseSequenceOptions,
    SpaceToDepthOptions,
    SplitOptions,
    SplitVOptions,
    StridedSliceOptions,
    UnpackOptions,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.quant.params import Blockwise, Quantization
from jaxdelegate.testing import Arg, Case, const, of, value
from tests.support.quantized import scaled

HALF = scaled(0.5, 3)
QUARTER = scaled(0.25, 3)
I8 = np.int8


def i32(*numbers: int) -> Arg:
    return const(numbers, "int32")


X, IMAGE = of(I8, 2, 3), of(I8, 4, 2, 2, 4)
MOVED: dict[Case, tuple[int, ...]] = {  # the inputs whose values reach the output
    Case("RESHAPE", "", [X, i32(6)]): (0,),
    Case("SQUEEZE", "", [of(I8, 1, 2)]): (0,),
    Case("EXPAND_DIMS", "", [X, i32(0)]): (0,),
    Case("BROADCAST_TO", "", [X, i32(2, 2, 3)]): (0,),
    Case("FILL", "", [i32(2, 2), of(I8)], outputs=[I8]): (1,),
    Case("SLICE", "", [X, i32(0, 1), i32(2, 1)]): (0,),
    Case("STRIDED_SLICE", "", [X, i32(0), i32(1), i32(1)], StridedSliceOptions()): (0,),
    Case("SPLIT", "", [i32(0), X], SplitOptions(num_splits=2), [I8, I8]): (1,),
    Case("SPLIT_V", "", [X, i32(1, 2), i32(1)], SplitVOptions(num_splits=2), [I8, I8]): (0,),
    Case("UNPACK", "", [X], UnpackOptions(num=2), [I8, I8]): (0,),
    Case("DYNAMIC_UPDATE_SLICE", "", [X, of(I8, 1, 1), value([0, 1], "int32")]): (0, 1),
    Case("PAD", "", [X, const([[1, 0], [0, 1]], "int32")]): (0,),
    Case("PADV2", "", [X, const([[1, 0], [0, 1]], "int32"), of(I8)]): (0, 2),
    Case("MIRROR_PAD", "", [X, const([[1, 0], [0, 1]], "int32")]): (0,),
    Case("TRANSPOSE", "", [X, i32(1, 0)]): (0,),
    Case("CONCATENATION", "", [X, X], ConcatenationOptions(axis=1)): (0, 1),
    Case("PACK", "", [X, X], PackOptions(2)): (0, 1),
    Case("TILE", "", [X, i32(2, 1)]): (0,),
    Case("REVERSE_V2", "", [X, i32(1)]): (0,),
    Case("Roll", "", [X, i32(1), i32(1)], CustomOptions()): (0,),
    Case("SPACE_TO_BATCH_ND", "", [IMAGE, i32(2, 2), const([[1, 1], [0, 0]], "int32")]): (0,),
    Case("BATCH_TO_SPACE_ND", "", [IMAGE, i32(2, 2), const([[1, 1], [0, 0]], "int32")]): (0,),
    Case("SPACE_TO_DEPTH", "", [IMAGE], SpaceToDepthOptions(2)): (0,),
    Case("DEPTH_TO_SPACE", "", [IMAGE], DepthToSpaceOptions(2)): (0,),
    Case("GATHER", "", [X, i32(1)]): (0,),
    Case("GATHER_ND", "", [X, const([[1]], "int32")]): (0,),
    Case("SPARSE_TO_DENSE", "", [i32(1), i32(3), of(I8, 1), of(I8)], outputs=[I8]): (2, 3),
    Case("EMBEDDING_LOOKUP", "", [i32(1), X], outputs=[I8]): (1,),
    Case("ONE_HOT", "", [i32(1), i32(3), of(I8), of(I8)], OneHotOptions(-1), [I8]): (2, 3),
    Case("REVERSE_SEQUENCE", "", [X, i32(1, 2)], ReverseSequenceOptions(1, 0)): (0,),
    Case("MATRIX_DIAG", "", [X]): (0,),
    Case("MATRIX_SET_DIAG", "", [X, of(I8, 2)]): (0, 1),
}
every_case = pytest.mark.parametrize(("case", "moved"), MOVED.items(), ids=str)


def specs_of(case: Case, moved: tuple[int, ...], **changes: Any) -> tuple[Specs, Specs]:
    """The case's specs, those of moved values and of outputs changed."""
    inputs, outputs = case.specs()
    changed = tuple(
        dataclasses.replace(s, **changes) if i in moved else s for i, s in enumerate(inputs)
    )
    return changed, tuple(dataclasses.replace(s, **changes) for s in outputs)


def reason(case: Case, inputs: Specs, outputs: Specs, **settings: Any) -> str | None:
    return RULES[case.name].reason(
        Op(LoweringContext(**settings), case.op_options, inputs, outputs)
    )


@every_case
def test_moves_equally_quantized_values(case: Case, moved: tuple[int, ...]) -> None:
    inputs, outputs = specs_of(case, moved, quantization=HALF)
    assert reason(case, inputs, outputs) is None
    lowered = RULES[case.name].lower(Op(LoweringContext(), case.op_options, inputs, outputs))
    plain = case.run_reference()
    pads = case.name in {"PAD", "SPACE_TO_BATCH_ND"}
    for got, want in zip(lowered(*case.arrays()), plain, strict=True):
        zero = HALF.zero_point[0] if pads else 0
        padding = (want == 0) & pads  # the case's padding, or a value that is zero
        assert np.array_equal(np.where(padding, zero, got), np.where(padding, zero, want))


@every_case
def test_refuses_to_requantize(case: Case, moved: tuple[int, ...]) -> None:
    inputs, _ = specs_of(case, moved, quantization=HALF)
    _, outputs = specs_of(case, moved, quantization=QUARTER)
    assert "quantized differently" in str(reason(case, inputs, outputs))


@every_case
def test_refuses_quantized_values_where_the_option_says_so(
    case: Case, moved: tuple[int, ...]
) -> None:
    inputs, outputs = specs_of(case, moved, quantization=HALF)
    assert "enable_quant is off" in str(reason(case, inputs, outputs, enable_quant=False))


UNMOVABLE = {
    "which XLA does not support": {"dtype": np.dtype(object)},
    "is |V4, which XLA cannot move": {"dtype": np.dtype("V4")},
    "is int4, which XLA cannot move": {"dtype": np.dtype(ml_dtypes.int4)},
    "quantized in blocks": {
        "quantization": Quantization(np.float32([]), np.int64([]), blockwise=Blockwise(0, -1, 32))
    },
}


@pytest.mark.parametrize(("words", "changes"), UNMOVABLE.items(), ids=lambda v: str(v)[:20])
@every_case
def test_refuses_what_xla_cannot_move(
    case: Case, moved: tuple[int, ...], words: str, changes: dict
) -> None:
    inputs, outputs = specs_of(case, moved, **changes)
    assert words in str(reason(case, inputs, outputs))


@every_case
def test_refuses_another_dtype(case: Case, moved: tuple[int, ...]) -> None:
    inputs, _ = case.specs()
    _, outputs = specs_of(case, moved, dtype=np.dtype(np.float32))
    assert "but" in str(reason(case, inputs, outputs))
