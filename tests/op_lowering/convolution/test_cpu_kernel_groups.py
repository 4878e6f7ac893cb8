"""Convolutions with groups by our CPU kernels: which they compute, and against the reference."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import pytest

from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.common.window import Window
from jaxdelegate.op_lowering.convolution import cpu_kernel
from jaxdelegate.op_lowering.convolution.algorithms import Convolution
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import Conv2DOptions, Padding
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext
from jaxdelegate.testing import Case, const, f32, value
from tests.support.case_groups import CaseGroup, in_groups

CONTEXT = LoweringContext(kernels=KernelSet(cpu=True))
SAME, VALID = Padding.SAME, Padding.VALID
ONE, TWO = Conv2DOptions(SAME, 1, 1), Conv2DOptions(SAME, 2, 2)


def conv(x: tuple[int, ...], w: tuple[int, ...], options: Conv2DOptions, label: str = "") -> Case:
    """`w` is [O, h, w, I]."""
    inputs = [f32(*x), const(f32(*w, seed=1)), const(f32(w[0], seed=2))]
    label = label or f"{x}-{w}-{options.padding.name}-{options.stride_w}"
    return Case("CONV_2D", label, inputs, options, accumulated=math.prod(w[1:]))


def taken(case: Case) -> bool:
    lowered = RULES[case.name].lower(case.op(CONTEXT))
    with jax.enable_x64(True):
        return "ffi_call" in str(jax.make_jaxpr(lowered)(*case.arrays()))


# Channels and units of each, some of which share panels, and how many there are.
GROUPS = [
    *(
        conv(
            (2, 6, width, depth * groups),
            (output_channels * groups, 3, 3, depth),
            options,
            f"{groups}x{depth}x{output_channels}-{width}-{options.stride_w}",
        )
        for width in (1, 9, 31)
        for depth, output_channels, groups in (
            *((2, 2, 8), (4, 4, 4), (4, 4, 6), (8, 8, 4), (3, 4, 8), (3, 3, 4), (8, 4, 4)),
            *((5, 17, 2), (16, 16, 3), (24, 24, 2), (12, 70, 2)),
        )
        for options in (ONE, TWO)
    ),
    *(conv((2, 5, 7, 2 * depth), (34, 1, 1, depth), o) for depth in (6, 8) for o in (ONE, TWO)),
    conv((1, 3, 60, 8), (16, 1, 1, 4), ONE, "lines"),
    conv((1, 60, 120, 16), (16, 3, 3, 4), ONE, "blocks"),
    conv((1, 9, 9, 8), (8, 3, 3, 4), dataclasses.replace(ONE, dilation_h_factor=3), "high"),
    conv((1, 9, 9, 16), (16, 3, 3, 4), Conv2DOptions(VALID, 2, 1), "groups-valid"),
    conv((1, 2, 3, 16), (16, 5, 5, 4), ONE, "groups-of-large-filters"),
    conv((1, 7, 8, 16), (16, 2, 2, 4), Conv2DOptions(SAME, 3, 3), "groups-and-strides"),
    conv((1, 5, 5, 400), (40, 3, 3, 200), ONE, "deep-groups"),
    *(
        conv((1, 5, 5, 16), (16, 3, 3, 4), Conv2DOptions(SAME, 1, 1, act), f"groups-{act.name}")
        for act in (Act.RELU, Act.RELU6, Act.RELU_N1_TO_1)
    ),
]


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("group", in_groups(GROUPS), ids=str)
def test_kernels_match_the_reference(group: CaseGroup) -> None:
    assert all(map(taken, group.cases))
    group.check(group.run_compiled_once(RULES, CONTEXT), Case.run_reference)


def test_which_groups_share_a_panel() -> None:
    def packed_groups(
        depth: int, output_channels: int, groups: int, deep: int = 1, **more: int
    ) -> int:
        size, stride = more.get("size", 3), more.get("stride", 1)
        window = Window(14, size, stride, Padding.SAME)
        c = Convolution((window, window), depth * groups, depth, output_channels * groups)
        return cpu_kernel.packed_groups(c, deep)

    assert [
        packed_groups(output_channels, output_channels, 16) for output_channels in (2, 3, 4, 8, 16)
    ] == [8, 1, 4, 2, 1]
    assert [packed_groups(4, 4, groups) for groups in (6, 8)] == [1, 4]
    assert [packed_groups(depth, 4, 8) for depth in (3, 5)] == [4, 1]
    # Where a value takes part in few products, it is not copied for several columns.
    assert [
        packed_groups(output_channels, output_channels, 8, stride=2) for output_channels in (4, 8)
    ] == [4, 1]
    assert packed_groups(8, 8, 8, size=1) == 1
    # Four bytes at a time.
    assert [packed_groups(depth, 4, 8, 4) for depth in (2, 4, 16, 20)] == [1, 4, 4, 1]
    assert packed_groups(8, 8, 8, 4, stride=2) == 2


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("depth", [2, 5, 8])
def test_nan_and_infinity_stay_in_their_group(depth: int) -> None:
    """Some groups share a panel, some do not."""
    special = np.resize(np.float32([1.5, np.nan, np.inf, -np.inf, 1e30]), (1, 5, 1, 1))
    channels = 16 // depth * depth
    x = np.where(np.arange(channels) == 4, special, np.ones((1, 5, 7, channels), np.float32))
    inputs = [value(x), const(np.ones((channels, 1, 5, depth), np.float32)), None]
    case = Case("CONV_2D", "special", inputs, Conv2DOptions(VALID, 1, 1))
    assert taken(case)
    case.check(case.run_lowered(RULES[case.name], CONTEXT), case.run_reference())


def test_dilated_windows_are_left_to_xla() -> None:
    dilated = [dataclasses.replace(ONE, **{f"dilation_{axis}_factor": 2}) for axis in "hw"]
    assert [taken(conv((1, 9, 9, 32), (32, 3, 3, 16), o)) for o in dilated] == [True, False]


def test_layouts_depend_on_the_number_of_groups() -> None:
    """Weights are laid out once for all input shapes with the same layout."""
    rule: Any = RULES["CONV_2D"]

    def layout(size: int, channels: int) -> Any:
        case = conv((1, size, size, channels), (32, 3, 3, 4), ONE)
        return rule.lower(case.op(CONTEXT)).layout

    assert layout(6, 8) == layout(7, 8) != layout(6, 16)


def test_narrow_groups_are_left_to_xla() -> None:
    def is_taken(depth: int, output_channels: int, size: int, groups: int = 8) -> bool:
        x, w = (1, 6, 6, depth * groups), (output_channels * groups, size, size, depth)
        return taken(conv(x, w, ONE))

    assert is_taken(2, 2, 3)  # eight of them share a panel
    assert not is_taken(2, 2, 3, groups=7)
    assert is_taken(2, 3, 3)
    assert is_taken(5, 2, 3)
    assert not is_taken(4, 2, 3)
    assert [is_taken(depth, 4, 1) for depth in (8, 9)] == [False, True]


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("groups", [(0, 1), (2, 0), (3, 1), (4, 4), (8, 4)], ids=str)
def test_groups_that_do_not_fit_are_refused(groups: tuple[int, int]) -> None:
    """How many there are, and share a panel, of 8 channels and 16 units."""
    call = jax.ffi.ffi_call(library.PRODUCT, jax.ShapeDtypeStruct((2, 16), np.float32))
    fields = np.array(cpu_kernel.matrix_geometry(2, 8, 16), np.int64)
    fields[7:9] = groups
    x, w, bias = (np.ones(shape, np.float32) for shape in ((2, 8), (1, 8, 16), (16,)))
    attributes = {"range": np.ones(2, np.float32), "then": np.zeros(1, np.int64)}
    with jax.enable_x64(True), pytest.raises(Exception, match="geometry"):
        jax.block_until_ready(call(x, w, bias, geometry=fields, **attributes))
