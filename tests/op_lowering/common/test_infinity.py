"""Infinity where LiteRT's kernels end in the range of a fused activation: the largest number."""

import numpy as np
import pytest

from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    Conv2DOptions,
    Conv3DOptions,
    DepthwiseConv2DOptions,
    FullyConnectedOptions,
    Options,
    Padding,
    Pool2DOptions,
    TransposeConvOptions,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext
from jaxdelegate.testing import Arg, Case, const, value
from tests.support.case_groups import CaseGroup

SPECIAL = np.float32([1.5, np.nan, np.inf, -np.inf, 1e15, -2])
SAME, VALID = Padding.SAME, Padding.VALID


def special(*shape: int) -> Arg:
    """An image; each pixel holds one of the values."""
    pixels = np.resize(SPECIAL, shape[:-1])
    return value(np.broadcast_to(pixels[..., None], shape).copy())


def ones(*shape: int) -> Arg:
    return const(np.ones(shape, np.float32))


def cases(act: Act) -> list[Case]:
    pool = Pool2DOptions(VALID, 1, 1, 1, 1, act)
    found: list[tuple[str, list[Arg], Options]] = [
        (
            "CONV_2D",
            [special(1, 2, 3, 16), ones(17, 1, 1, 16), ones(17)],
            Conv2DOptions(VALID, 1, 1, act),
        ),
        (
            "DEPTHWISE_CONV_2D",
            [special(1, 2, 3, 16), ones(1, 1, 1, 16), ones(16)],
            DepthwiseConv2DOptions(VALID, 1, 1, 1, act),
        ),
        (
            "CONV_3D",
            [special(1, 1, 2, 3, 2), ones(1, 1, 1, 2, 3), ones(3)],
            Conv3DOptions(VALID, 1, 1, 1, act),
        ),
        (
            "FULLY_CONNECTED",
            [special(6, 5), ones(3, 5), ones(3)],
            FullyConnectedOptions(act),
        ),
        (
            "TRANSPOSE_CONV",
            [const([1, 2, 3, 4], np.int32), ones(4, 1, 1, 2), special(1, 2, 3, 2), ones(4)],
            TransposeConvOptions(SAME, 1, 1, act),
        ),
        *((name, [special(1, 2, 3, 2)], pool) for name in ("AVERAGE_POOL_2D", "L2_POOL_2D")),
        ("MAX_POOL_2D", [special(1, 2, 3, 2)], pool),
    ]
    versions = {"TRANSPOSE_CONV": 4}
    return [
        Case(name, act.name, inputs, o, outputs=[np.float32], version=versions.get(name, 1))
        for name, inputs, o in found
    ]


CASES = [case for act in (Act.NONE, Act.RELU, Act.RELU6) for case in cases(act)]


@pytest.mark.parametrize("native", [False, True])
def test_lowering_matches_the_reference(native: bool) -> None:
    if native and (reason := library.why_not()) is not None:
        pytest.skip(reason)
    group = CaseGroup(CASES)
    results = group.run_lowered(RULES, LoweringContext(kernels=KernelSet(cpu=native)))
    assert not any(np.isinf(y).any() for (y,) in results)
    group.check(results, Case.run_reference)
