"""Means over images by the native CPU kernel."""

import jax
import numpy as np
import pytest

from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.options import ReducerOptions
from jaxdelegate.op_lowering.precision import BFLOAT16, PrecisionPolicy
from jaxdelegate.op_lowering.reduction.rule import mean_by_kernel
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext, ResultUse
from jaxdelegate.testing import Case, const, f32, of, value

CONTEXT = LoweringContext(kernels=KernelSet(cpu=True))


def mean(shape: tuple[int, ...], axes: tuple[int, ...], *, keep: bool = False) -> Case:
    inputs = [f32(*shape), const(value(np.int32(axes)))]
    return Case("MEAN", f"{shape}-{axes}-{keep}", inputs, ReducerOptions(keep))


MEANS = [
    *(mean((1, 7, 7, channels), (1, 2)) for channels in (16, 17, 64, 65, 150)),
    mean((3, 5, 4, 40), (2, 1), keep=True),
    mean((2, 9, 33), (1,)),
    mean((1, 1, 1, 16), (1, 2)),
    mean((2, 30, 31, 40), (1, 2)),  # several parts of an image
    mean((1, 3, 20, 1000), (-3, -2)),
]


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("case", MEANS, ids=str)
def test_it_matches_the_reference(case: Case) -> None:
    lowered = RULES["MEAN"].lower(case.op(CONTEXT))
    with jax.enable_x64(True):
        assert library.MEAN in str(jax.make_jaxpr(lowered)(*case.arrays()))
    case.check(case.run_lowered(RULES["MEAN"], CONTEXT), case.run_reference())


OTHERS = {
    "channels": (mean((2, 3, 3, 16), (1, 2, 3)), CONTEXT),
    "images": (mean((2, 3, 3, 16), (0, 1, 2)), CONTEXT),
    "rows": (mean((2, 3, 3, 16), (1,)), CONTEXT),
    "few-channels": (mean((2, 3, 3, 15), (1, 2)), CONTEXT),
    "nothing": (mean((2, 0, 3, 16), (1, 2)), CONTEXT),
    "no-kernels": (MEANS[0], LoweringContext()),
    "quantized-later": (
        MEANS[0],
        LoweringContext(
            kernels=KernelSet(cpu=True),
            quant_mode="integer",
            result=ResultUse(quantized_later=True),
        ),
    ),
    "short": (
        MEANS[0],
        LoweringContext(kernels=KernelSet(cpu=True), precision=PrecisionPolicy(storage=BFLOAT16)),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_xla_computes_the_rest(name: str) -> None:
    case, context = OTHERS[name]
    inputs, _ = case.specs()
    assert inputs[0] is not None
    axes = tuple(sorted(int(a) % len(inputs[0].shape) for a in case.inputs[1].value))  # type: ignore[union-attr]
    assert mean_by_kernel(context, inputs[0], axes) is None


def test_xla_computes_float16() -> None:
    case = Case("MEAN", "half", [of(np.float16, 1, 3, 3, 16), const(value(np.int32([1, 2])))])
    inputs, _ = case.specs()
    assert inputs[0] is not None
    assert mean_by_kernel(CONTEXT, inputs[0], (1, 2)) is None
