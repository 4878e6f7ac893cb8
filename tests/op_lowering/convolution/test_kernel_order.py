"""Short float convolutions before quantized operators equal BUILTIN_REF's bit for bit."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import Conv2DOptions, DepthwiseConv2DOptions, Padding
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext, ResultUse
from jaxdelegate.testing import Case, const, f32

INTEGER = LoweringContext(
    quant_mode="integer", kernels=KernelSet(cpu=True), result=ResultUse(quantized_later=True)
)
BY_XLA = dataclasses.replace(INTEGER, kernels=KernelSet())
SAME, VALID = Padding.SAME, Padding.VALID


def conv(label: str, w: tuple[int, ...], options: Conv2DOptions) -> Case:
    """`w` is [O, h, w, I]."""
    inputs = [f32(2, 9, 8, w[3]), const(f32(*w, seed=1)), const(f32(w[0], seed=2))]
    return Case("CONV_2D", label, inputs, options)


def depthwise(label: str, options: DepthwiseConv2DOptions) -> Case:
    inputs = [f32(2, 9, 8, 16), const(f32(1, 3, 3, 16, seed=1)), const(f32(16, seed=2))]
    return Case("DEPTHWISE_CONV_2D", label, inputs, options)


ORDERED = [
    conv("rgb", (8, 3, 3, 3), Conv2DOptions(SAME, 2, 2, Act.RELU6)),
    conv("valid", (5, 2, 4, 7), Conv2DOptions(VALID, 1, 3)),
    conv("pixel", (6, 1, 1, 64), Conv2DOptions(SAME, 1, 1)),
    depthwise("depthwise", DepthwiseConv2DOptions(SAME, 1, 1, 1, Act.RELU)),
    depthwise("depthwise-2", DepthwiseConv2DOptions(VALID, 2, 2, 1)),
]


@pytest.mark.litert
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("context", [INTEGER, BY_XLA], ids=["kernel", "xla"])
@pytest.mark.parametrize("case", ORDERED, ids=str)
def test_equals_litert(case: Case, context: LoweringContext) -> None:
    (got,) = case.run_lowered(RULES[case.name], context)
    (want,) = case.run_litert()
    np.testing.assert_array_equal(got, want)


SIZES = [
    ((2, 9, 8, 3), (17, 3, 3, 3), Conv2DOptions(SAME, 1, 1)),
    ((1, 1, 20, 64), (64, 1, 1, 64), Conv2DOptions(SAME, 1, 1)),
    ((1, 368, 1, 1), (64, 64, 1, 1), Conv2DOptions(VALID, 1, 16)),
    ((2, 30, 31, 5), (40, 3, 3, 5), Conv2DOptions(SAME, 2, 2, Act.RELU)),
    ((1, 3, 2, 16), (65, 2, 2, 16), Conv2DOptions(SAME, 1, 1)),
    ((1, 9, 9, 4), (5, 3, 3, 4), Conv2DOptions(SAME, 1, 1, Act.NONE, 2, 2)),
]


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize(("x", "w", "options"), SIZES)
def test_the_kernel_equals_xla(
    x: tuple[int, ...], w: tuple[int, ...], options: Conv2DOptions
) -> None:
    inputs = [f32(*x), const(f32(*w, seed=1)), const(f32(w[0], seed=2))]
    case = Case("CONV_2D", "sizes", inputs, options)
    results = []
    for context in (INTEGER, BY_XLA):
        lowered = RULES["CONV_2D"].lower(case.op(context))
        text = str(jax.make_jaxpr(lowered)(*case.arrays()))
        assert (library.PRODUCT_ORDERED in text) == context.kernels.cpu
        results.append(np.asarray(lowered(*case.arrays())[0]))
    np.testing.assert_array_equal(*results)


def test_long_ones_and_other_modes_are_left_to_the_usual_algorithms() -> None:
    def algorithms(case: Case, context: LoweringContext) -> Any:
        rule: Any = RULES[case.name].algorithms
        return rule(case.op(context))

    assert not algorithms(ORDERED[0], INTEGER)
    assert algorithms(
        ORDERED[0],
        LoweringContext(kernels=KernelSet(cpu=True), result=ResultUse(quantized_later=True)),
    )
    assert algorithms(
        ORDERED[0], LoweringContext(kernels=KernelSet(cpu=True), quant_mode="integer")
    )
    assert algorithms(conv("long", (6, 1, 1, 65), Conv2DOptions(SAME, 1, 1)), INTEGER)


def test_a_program_holds_a_filter_as_one_constant() -> None:
    """A constant for each product would be that many arguments of a kernel."""
    case = ORDERED[2]
    lowered = RULES[case.name].lower(case.op(BY_XLA))
    x, *weights = case.arrays()
    program = jax.jit(lambda x: lowered(x, *weights)).lower(x).compile().as_text()
    assert program is not None
    assert program[program.index("ENTRY") :].count(" constant(") <= len(weights)
