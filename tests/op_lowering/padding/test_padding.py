import dataclasses
from typing import Any

import numpy as np
import pytest

from jaxdelegate.op_lowering.options import MirrorPadMode, MirrorPadOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.quant.params import Quantization
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.testing import Arg, Case, ModelBuilder, const, f32, of, value
from tests.support.dtypes import BF16, NO_KERNEL, OTHERS, name
from tests.support.quantized import scaled

PADDED_BY_LITERT = (np.float16, BF16, np.bool_, np.int8, np.uint8, np.int16, np.int32, np.int64)
X = f32(2, 3, 2)
WIDTHS = [[1, 0], [2, 3], [0, 0]]
MODES = (MirrorPadMode.REFLECT, MirrorPadMode.SYMMETRIC)


PADS = [
    Case("PAD", f"{list(x.value.shape)}-{widths}", [x, const(np.reshape(widths, (-1, 2)), "int32")])
    for x, widths in [
        (f32(3), [[1, 2]]),
        (X, WIDTHS),
        (X, [[0, 0]] * 3),
        (f32(1, 3, 4, 2), [[0, 0], [1, 2], [2, 1], [0, 0]]),
        (f32(1, 2, 1, 2, 3), [[1, 0], [0, 1], [2, 0], [0, 2], [1, 1]]),
        (f32(0, 2), [[1, 1], [0, 1]]),
        (f32(), []),
    ]
] + [
    Case(
        "PAD",
        "rank6",
        [f32(1, 2, 1, 1, 2, 1), const([[1, 0], [0, 1]] * 3, "int32")],
        litert="LiteRT pads five dimensions at most",
    ),
    *(
        Case(
            "PAD",
            name(d),
            [of(d, 2, 3), const([[1, 0], [0, 2]], "int32")],
            litert=None if d in PADDED_BY_LITERT else NO_KERNEL,
        )
        for d in OTHERS
    ),
    *(
        Case("PAD", f"by-{d}", [X, const(np.minimum(WIDTHS, 1), d)])
        for d in ("int64", "int8", "int16", "bool")
    ),
]
PADS_V2 = [
    Case("PADV2", "constant", [X, const(WIDTHS, "int32"), const(7.5, "float32")]),
    Case("PADV2", "run-time-value", [X, const(WIDTHS, "int64"), value([-7.5], "float32")]),
    Case(
        "PADV2", "image", [f32(1, 2, 2, 1), const([[0, 0], [1, 2], [2, 1], [0, 0]], "int32"), f32()]
    ),
    Case("PADV2", "absent", [X, const(WIDTHS, "int32"), None]),
    *(
        Case(
            "PADV2",
            name(d),
            [of(d, 2, 3), const([[1, 0], [0, 2]], "int32"), of(d, seed=1)],
            litert=None if d in PADDED_BY_LITERT else NO_KERNEL,
        )
        for d in OTHERS
    ),
]
MIRRORS = [
    Case(
        "MIRROR_PAD",
        f"{mode.name}-{list(shape)}-{widths}",
        [f32(*shape), const(widths, "int32")],
        MirrorPadOptions(mode=mode),
    )
    for mode in MODES
    for shape, widths in [
        ((4,), [[3, 2]]),
        ((2, 3, 2), [[1, 0], [2, 2], [0, 1]]),
        ((2, 2, 2, 2, 2, 2), [[1, 1], [0, 1], [1, 0], [0, 0], [1, 1], [0, 1]]),
        ((1, 3), [[0, 0], [1, 2]]),
    ]
] + [
    Case(
        "MIRROR_PAD", "whole", [f32(3), const([[3, 3]], "int64")], MirrorPadOptions(mode=MODES[1])
    ),
    *(Case("MIRROR_PAD", name(d), [of(d, 3, 2), const([[1, 2], [1, 0]], "int32")]) for d in OTHERS),
]
CASES = [*PADS, *PADS_V2, *MIRRORS]
RUN_TIME = [
    Case("PAD", "run-time", [X, value(WIDTHS, "int32")]),
    Case("PADV2", "run-time", [X, value(WIDTHS, "int64"), value(3.0, "float32")]),
    Case("MIRROR_PAD", "run-time", [f32(3), value([[1, 2]], "int32")]),
]


IMPOSSIBLE = [
    Case("MIRROR_PAD", "reflect", [f32(3), const([[3, 0]], "int32")]),
    Case("MIRROR_PAD", "symmetric", [f32(3), const([[0, 4]], "int32")], MirrorPadOptions(MODES[1])),
    Case("PAD", "few", [X, const([[0, 0], [1, 0]], "int32")]),
    Case("PADV2", "negative", [X, const([[0, 0], [-1, 0], [0, 0]], "int32"), value(0.0)]),
    Case("MIRROR_PAD", "many", [f32(3), const([[0, 1], [0, 0]], "int32")]),
]
STOPPED = {
    "PAD: paddings must not be negative": Case(
        "PAD", "", [X, const([[0, 0], [-1, 0], [0, 0]], "int32")]
    ),
    "PAD: paddings must be [3, 2] for an input [2, 3, 2]": Case(
        "PAD", "few", [X, const([[0, 0], [1, 0]], "int32")]
    ),
}


QUANTIZED = [
    (d, scaled(0.5, point)) for d, point in [(np.int8, -7), (np.uint8, 130), (np.int16, 0)]
]


def quantized(case: Case, quantization: Quantization) -> tuple[Specs, Specs]:
    inputs, outputs = case.specs()
    return inputs, (dataclasses.replace(outputs[0], quantization=quantization),)


@pytest.mark.litert
@pytest.mark.parametrize(("dtype", "quantization"), QUANTIZED, ids=str)
def test_quantized_padding_is_the_zero_point(dtype: Any, quantization: Quantization) -> None:
    x = Arg(of(dtype, 2, 3).value, quantization=quantization)
    case = Case("PAD", "quantized", [x, const([[1, 0], [0, 2]], "int32")], version=2)
    inputs, outputs = quantized(case, quantization)
    reference = KERNELS["PAD"](case.op_options, inputs, outputs, *case.arrays())
    assert reference[0][0, 0] == quantization.zero_point[0]
    context, rule = LoweringContext(op_version=2), RULES["PAD"]
    assert rule.reason(Op(context, case.op_options, inputs, outputs)) is None
    lowered = rule.lower(Op(context, case.op_options, inputs, outputs))
    case.check(lowered(*case.arrays()), reference)
    case.check(reference, _litert_pad(x, outputs))


def _litert_pad(x: Arg, outputs: Specs) -> list[np.ndarray]:
    from ai_edge_litert.interpreter import Interpreter

    builder, y = ModelBuilder(), outputs[0]
    tensors = [
        builder.input(x.value.shape, x.value.dtype, quantization=x.quantization),
        builder.constant(np.int32([[1, 0], [0, 2]])),
    ]
    result = builder.tensor(y.shape, y.dtype, quantization=y.quantization)
    builder.operator("PAD", tensors, [result], version=2)
    builder.outputs(result)
    interpreter = Interpreter(model_content=builder.build())
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x.value)
    interpreter.invoke()
    return [np.array(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))]
