"""The package's own CPU kernels of 8-bit integers: equal to the reference, bit for bit."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.convolution import cpu_kernel, cpu_kernel_integer
from jaxdelegate.op_lowering.convolution.cpu_kernel import NATIVE
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    Conv2DOptions,
    DepthwiseConv2DOptions,
    FullyConnectedOptions,
    Options,
    Padding,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext
from jaxdelegate.quant.params import integer_range
from jaxdelegate.quant.requantize import requantize_accumulator
from jaxdelegate.testing import Arg, Case
from tests.support.case_groups import CaseGroup, in_groups
from tests.support.quantized import scaled

CONTEXT = LoweringContext(kernels=KernelSet(cpu=True), quant_mode="integer")
SAME, VALID = Padding.SAME, Padding.VALID
INT8, UINT8 = np.dtype(np.int8), np.dtype(np.uint8)
SETS = ["avx512vnni", "avx512f", "avxvnni", "avx2"]
VERSIONS = {"CONV_2D": 8, "DEPTHWISE_CONV_2D": 6, "FULLY_CONNECTED": 14}
Shape = tuple[int, ...]


EVERY_SET = pytest.mark.parametrize("instruction_set", SETS, indirect=True)


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Which integers stand for which reals; `spread`: how much the filter's scales differ.

    `steps` is the output's scale in units that let sums fill its range about once: far below 1
    multipliers shift to the left, far above to the right. `extreme`: all integers at their ends.
    """

    dtype: np.dtype = INT8
    x_zero: int = -7
    w_zero: int = 0
    y_zero: int = 11
    spread: float = 8.0
    steps: float = 1.0
    has_bias: bool = True
    extreme: bool = False

    def case(self, name: str, label: str, x: Shape, w: Shape, axis: int, options: Options) -> Case:
        """`axis` of the filter holds the units."""
        rng = np.random.default_rng(len(label) + math.prod(x))
        units, products = w[axis], math.prod(w) // w[axis]
        count = 1 if self.dtype == UINT8 or self.spread == 1 else units
        x_scale = np.float32(0.02)
        w_scale = np.float32(np.geomspace(1 / self.spread, 1, count) * 0.01)
        y_scale = np.float32(x_scale * w_scale.mean() * math.sqrt(products) * 85 * self.steps)
        inputs = [
            Arg(self._integers(rng, x), quantization=scaled(x_scale, self.x_zero)),
            Arg(self._integers(rng, w), True, quantization=scaled(w_scale, self.w_zero, axis)),
        ]
        if self.has_bias:
            bias = rng.integers(-2000, 2000, units).astype(np.int32)
            inputs.append(Arg(bias, True, quantization=scaled(x_scale * w_scale)))
        details: Any = {"version": VERSIONS[name], "outputs": [self.dtype]}
        details["output_quantization"] = [scaled(y_scale, self.y_zero)]
        return Case(name, f"{self.dtype}-{label}", inputs, options, **details)

    def _integers(self, rng: np.random.Generator, shape: Shape) -> np.ndarray:
        low, high = integer_range(self.dtype)
        if self.extreme:
            return rng.choice([low, high], shape).astype(self.dtype)
        return rng.integers(low, high, shape, endpoint=True).astype(self.dtype)


BYTES = Numbers(UINT8, x_zero=121, w_zero=137, y_zero=90)
KINDS = {"int8": Numbers(), "uint8": BYTES}
ODD = {
    "low": Numbers(x_zero=-128, y_zero=-128, extreme=True),
    "high": Numbers(x_zero=127, y_zero=127, extreme=True),
    "uint8-low": Numbers(UINT8, 0, 0, 0, extreme=True),
    "uint8-high": Numbers(UINT8, 255, 255, 255, extreme=True),
    "left-shifts": Numbers(x_zero=5, steps=1e-5),
    "near-one": Numbers(x_zero=5, steps=5e-3, spread=100),
    "right-shifts": Numbers(x_zero=5, steps=1e4, spread=1e6),
    "vanishes": Numbers(x_zero=5, steps=1e12),
    "one-scale": Numbers(spread=1),
    "no-bias": Numbers(has_bias=False),
    "uint8-no-bias": dataclasses.replace(BYTES, has_bias=False),
    "uint8-symmetric": dataclasses.replace(BYTES, w_zero=128),
}


def conv(x: Shape, w: Shape, o: Conv2DOptions, n: Numbers = Numbers(), label: str = "") -> Case:
    """`w` is [O, h, w, I]."""
    where = f"{x}-{w}-{o.padding.name}-{o.stride_w}-{o.dilation_w_factor}-{label}"
    return n.case("CONV_2D", where, x, w, 0, o)


def depthwise(
    x: Shape, h: int, w: int, o: DepthwiseConv2DOptions, n: Numbers = Numbers(), label: str = ""
) -> Case:
    where = f"{x}-{h}x{w}-{o.padding.name}-{o.stride_w}-{o.dilation_w_factor}-{label}"
    o = dataclasses.replace(o, depth_multiplier=1)
    return n.case("DEPTHWISE_CONV_2D", where, x, (1, h, w, x[3]), 3, o)


def product(rows: int, depth: int, units: int, n: Numbers = Numbers(), label: str = "") -> Case:
    n = dataclasses.replace(n, spread=1 if n.w_zero else n.spread)
    where = f"{rows}x{depth}x{units}-{label}"
    return n.case(
        "FULLY_CONNECTED", where, (rows, depth), (units, depth), 0, FullyConnectedOptions()
    )


ONE, TWO = Conv2DOptions(SAME, 1, 1), Conv2DOptions(SAME, 2, 2)
# Rows around a tile's 4, 6 and 14, columns around one, two and four panels of 16, depths around
# steps of 4.
PRODUCTS = [
    *(product(rows, 5, 40) for rows in range(1, 17)),
    *(product(rows, 7, units, BYTES) for rows in (1, 7, 30) for units in (1, 17, 33, 65)),
    *(product(3, depth, 20) for depth in (1, 2, 3, 4, 63, 64, 65, 2500)),
    *(product(5, 9, 3, n, label) for label, n in ODD.items()),
    product(200, 300, 70, Numbers(w_zero=3), "filter-zero"),
]
POINTWISE = [
    *(conv((1, 3, 5, 8), (units, 1, 1, 8), ONE) for units in (*range(1, 34), 63, 64, 65)),
    conv((2, 5, 7, 20), (33, 1, 1, 20), TWO),
    conv((2, 5, 7, 18), (33, 1, 1, 18), ONE),
    conv((1, 20, 20, 64), (40, 1, 1, 64), ONE, BYTES, "several-blocks"),
    conv((1, 2, 2, 3000), (3, 1, 1, 3000), ONE, Numbers(extreme=True), "deep"),
]
CONVOLUTIONS = [
    *(
        conv((2, 7, 9, channels), (17, 3, 3, channels), options, numbers)
        for channels in (1, 3, 5, 17, 20)
        for options in (ONE, TWO, Conv2DOptions(VALID, 1, 1), Conv2DOptions(VALID, 3, 2))
        for numbers in KINDS.values()
    ),
    conv((1, 23, 20, 3), (10, 7, 7, 3), TWO),
    conv((1, 6, 6, 12), (3, 2, 4, 12), ONE),
    conv((1, 2, 3, 2), (3, 5, 5, 2), ONE, label="filter-larger-than-image"),
    *(conv((1, 6, width, 1), (3, 3, 1, 1), ONE, label="narrow-image") for width in (1, 2, 3)),
    conv((1, 7, 8, 5), (3, 2, 2, 5), Conv2DOptions(SAME, 3, 3), label="stride-beyond-filter"),
    conv((1, 9, 9, 6), (5, 3, 3, 6), dataclasses.replace(ONE, dilation_w_factor=2)),
    conv((1, 9, 9, 6), (5, 3, 3, 6), dataclasses.replace(TWO, dilation_h_factor=3), BYTES),
    conv((1, 5, 5, 200), (20, 3, 3, 200), ONE, label="long-windows"),
    conv((1, 40, 40, 3), (8, 3, 3, 3), ONE, label="several-blocks"),
    *(conv((2, 9, 30, 70), (20, 3, 5, 70), TWO, n, label="lines") for n in KINDS.values()),
    conv((1, 3, 4, 70), (70, 3, 3, 70), TWO, label="more-filters-than-results"),
    *(
        conv((2, 41, 1, depth), (18, 6, 1, depth), TWO, numbers, "column")
        for depth in (1, 3, 20, 68)
        for numbers in KINDS.values()
    ),
    *(conv((1, 5, 6, 3), (18, 3, 3, 3), ONE, n, label) for label, n in ODD.items()),
    *(
        conv((1, 5, 5, 4), (6, 3, 3, 4), Conv2DOptions(SAME, 1, 1, act), numbers, act.name)
        for act in (Act.RELU, Act.RELU6, Act.RELU_N1_TO_1)
        for numbers in KINDS.values()
    ),
]
# With groups: channels and units of each, some of which share panels, and how many there are.
GROUPS = [
    *(
        conv(
            (2, 6, 9, depth * groups), (units * groups, 3, 3, depth), options, numbers, f"{groups}"
        )
        for depth, units, groups in (
            *((2, 2, 8), (4, 4, 4), (4, 4, 6), (8, 8, 4), (8, 4, 8), (8, 2, 8), (16, 4, 4)),
            *((3, 3, 4), (5, 17, 2), (16, 16, 3), (24, 24, 2), (12, 70, 2), (2, 4, 4)),
        )
        for options, numbers in ((ONE, Numbers()), (TWO, BYTES))
    ),
    *(
        conv((2, 5, 7, 2 * depth), (34, 1, 1, depth), options, numbers, "groups")
        for depth in (6, 8)
        for options in (ONE, TWO)
        for numbers in KINDS.values()
    ),
    conv((1, 3, 60, 8), (16, 1, 1, 4), ONE, label="lines"),
    conv((1, 60, 120, 16), (16, 3, 3, 4), ONE, label="blocks"),
    conv((1, 9, 9, 8), (8, 3, 3, 4), dataclasses.replace(ONE, dilation_h_factor=3), label="high"),
    conv((1, 2, 3, 16), (16, 5, 5, 4), ONE, label="groups-of-large-filters"),
    conv((1, 7, 8, 16), (16, 2, 2, 4), Conv2DOptions(SAME, 3, 3), label="stride-beyond-filter"),
    *(conv((1, 5, 6, 16), (16, 3, 3, 4), ONE, n, f"groups-{k}") for k, n in ODD.items()),
    *(conv((1, 5, 6, 16), (38, 3, 3, 8), ONE, n, f"groups-{k}") for k, n in ODD.items()),
]
DEPTHWISE_ONE = DepthwiseConv2DOptions(SAME, 1, 1)
DEPTHWISE_TWO = DepthwiseConv2DOptions(SAME, 2, 2)
DEPTHWISE = [
    *(
        depthwise((1, 5, width, 16), size, size, options)
        for width in (1, 2, 5, 8, 14, 23)
        for size in (3, 5)
        for options in (DEPTHWISE_ONE, DEPTHWISE_TWO)
    ),
    *(depthwise((2, 6, 9, channels), 3, 3, DEPTHWISE_ONE, BYTES) for channels in (17, 24, 40, 72)),
    depthwise((1, 16, 17, 20), 3, 3, DepthwiseConv2DOptions(VALID, 1, 1)),
    depthwise((1, 16, 17, 20), 5, 5, DepthwiseConv2DOptions(VALID, 2, 2), BYTES),
    depthwise((1, 9, 9, 20), 3, 3, DepthwiseConv2DOptions(SAME, 3, 3)),
    depthwise((1, 9, 9, 20), 2, 3, DEPTHWISE_ONE),
    depthwise((1, 9, 9, 20), 1, 1, DEPTHWISE_ONE),
    depthwise((1, 9, 9, 20), 7, 7, DEPTHWISE_ONE, BYTES),
    *(
        depthwise((1, 9, 19, 20), size, size, dataclasses.replace(DEPTHWISE_ONE, **dilation))
        for size in (3, 4, 5)
        for dilation in ({"dilation_w_factor": 2}, {"dilation_h_factor": 4})
    ),
    *(depthwise((1, 4, 5, 18), 3, 3, DEPTHWISE_ONE, n, label) for label, n in ODD.items()),
    *(depthwise((1, 4, 5, 18), 2, 3, DEPTHWISE_ONE, n, label) for label, n in ODD.items()),
    *(
        depthwise((1, 5, 5, 16), 3, 3, DepthwiseConv2DOptions(SAME, 1, 1, 1, act), n, act.name)
        for act in (Act.RELU, Act.RELU6, Act.RELU_N1_TO_1)
        for n in KINDS.values()
    ),
]


def jaxpr(case: Case, context: LoweringContext) -> str:
    lowered = RULES[case.name].lower(case.op(context))
    with jax.enable_x64(True):
        return str(jax.make_jaxpr(lowered)(*case.arrays()))


@functools.cache
def taken(case: Case, context: LoweringContext = CONTEXT) -> bool:
    return "ffi_call" in jaxpr(case, context)


@pytest.mark.usefixtures("instruction_set")
@EVERY_SET
@pytest.mark.parametrize(
    "group", in_groups(PRODUCTS + POINTWISE + CONVOLUTIONS + GROUPS + DEPTHWISE), ids=str
)
def test_kernels_equal_the_reference(group: CaseGroup) -> None:
    assert all(map(taken, group.cases))
    for case, (got,) in zip(group.cases, group.run_compiled_once(RULES, CONTEXT), strict=True):
        (want,) = case.run_reference()
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want, err_msg=str(case))


def requantized(
    sums: np.ndarray, multiplier: int, shift: int, rows: int, dtype: np.dtype, bounds: Any
) -> np.ndarray:
    """Bytes of sums that are the bias of a product with zeros."""
    units = len(sums)
    call = jax.ffi.ffi_call(library.PRODUCT_INT8, jax.ShapeDtypeStruct((rows, units), dtype))
    x, w = np.zeros((rows, 4), dtype), np.zeros((units // library.PANEL, 1, 16, 4), np.int8)
    scales = np.repeat(np.int32([[multiplier], [shift]]), units, 1)
    fields = np.array(cpu_kernel.matrix_geometry(rows, 4, units), np.int64)
    integers = np.array((0, 0, 3, *bounds), np.int64)
    with jax.enable_x64(True):
        return np.asarray(call(x, w, sums, scales, geometry=fields, integers=integers))


@EVERY_SET
def test_requantization_of_any_sum(instruction_set: str) -> None:
    """Around ties and ends, where both roundings show."""
    del instruction_set
    for shift in (*range(-31, 2), 7, 30):
        check_requantization(shift)


def check_requantization(shift: int) -> None:
    rng = np.random.default_rng(shift + 31)
    near = 2.0 ** np.clip(31 - np.arange(62) % 31, 0, 30) * rng.choice([-1, 1], 62)
    halves = np.arange(-600, 600) * 2.0 ** (max(-shift, 0))
    ends = np.array([-(2**31), 2**31 - 1, -(2**30), 2**30, 0, 1, -1])
    sums = np.concatenate([near, halves, halves + 1, halves - 1, ends]).clip(-(2**31), 2**31 - 1)
    sums = np.resize(sums.astype(np.int32), (len(sums) + 15) // 16 * 16)
    kinds: Any = ((1, INT8, (-128, 127)), (3, UINT8, (0, 255)), (9, INT8, (-5, 90)))
    for multiplier in (0, 1 << 30, (1 << 31) - 1, 1518500250):
        for rows, dtype, bounds in kinds:
            want = requantize_accumulator(sums, multiplier, shift, 3, bounds, dtype)
            got = requantized(sums, multiplier, shift, rows, dtype, bounds)
            np.testing.assert_array_equal(got, np.broadcast_to(want, got.shape), str(shift))


def test_what_the_kernels_do_not_take_xla_does() -> None:
    image = conv((1, 5, 5, 4), (6, 3, 3, 4), ONE)
    assert taken(image)
    assert not taken(image, LoweringContext(quant_mode="integer"))
    assert not taken(image, dataclasses.replace(CONTEXT, algorithm="grouped_dot"))
    assert taken(image, dataclasses.replace(CONTEXT, algorithm=NATIVE))
    late = dataclasses.replace(image.inputs[1], is_const=False)  # type: ignore[type-var]
    assert not taken(dataclasses.replace(image, inputs=[image.inputs[0], late, image.inputs[2]]))
    dilated = dataclasses.replace(ONE, dilation_w_factor=2)
    assert not taken(conv((1, 5, 5, 4), (6, 3, 3, 2), dilated, label="dilated-groups"))
    assert not taken(depthwise((1, 5, 5, 15), 3, 3, DEPTHWISE_ONE, label="few-channels"))
    assert not taken(product(3, 4, 5), dataclasses.replace(CONTEXT, algorithm="dot"))


def test_it_is_the_first_algorithm_where_it_is_one() -> None:
    for case in (conv((1, 5, 5, 4), (6, 3, 3, 4), ONE), product(2, 3, 4)):
        algorithms: Any = RULES[case.name].algorithms
        names = list(algorithms(case.op(CONTEXT)))
        assert names[0] == NATIVE
        assert len(names) > 1
        assert NATIVE not in algorithms(case.op(LoweringContext(quant_mode="integer")))


@pytest.mark.parametrize("numpy", [np, jnp], ids=["numpy", "jax"])
def test_panels_hold_four_of_the_depth_side_by_side(numpy: Any) -> None:
    w = np.arange(2 * 3 * 1 * 20, dtype=np.int8).reshape(2, 3, 1, 20)
    (laid_out,) = np.asarray(cpu_kernel_integer.steps(numpy.asarray(w), 4))
    assert laid_out.shape == (2, 2, library.PANEL, 4)
    for row in range(2):
        np.testing.assert_array_equal(laid_out[0, row, :, :3], w[row, :, 0, :16].T)
        np.testing.assert_array_equal(laid_out[1, row, :4, :3], w[row, :, 0, 16:].T)
    assert not laid_out[..., 3].any()
    assert not laid_out[1, :, 4:].any()


@pytest.mark.parametrize("numpy", [np, jnp], ids=["numpy", "jax"])
def test_depthwise_filters_hold_two_rows_side_by_side(numpy: Any) -> None:
    w = np.arange(3 * 2 * 1 * 5, dtype=np.int8).reshape(3, 2, 1, 5)
    laid_out = np.asarray(cpu_kernel_integer.pairs(numpy.asarray(w), -100))
    assert laid_out.shape == (2, 2, 5, 2)
    np.testing.assert_array_equal(laid_out[0, ..., 0], w[0, :, 0] + np.int16(100))
    np.testing.assert_array_equal(laid_out[0, ..., 1], w[1, :, 0] + np.int16(100))
    np.testing.assert_array_equal(laid_out[1, ..., 0], w[2, :, 0] + np.int16(100))
    assert not laid_out[1, ..., 1].any()


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("wrong", ["weights", "scales", "x"])
def test_a_call_that_does_not_fit_is_refused(wrong: str) -> None:
    call = jax.ffi.ffi_call(library.PRODUCT_INT8, jax.ShapeDtypeStruct((2, 16), np.int8))
    x = np.ones((2, 3), np.int16 if wrong == "x" else np.int8)
    w = np.ones((1, 2 if wrong == "weights" else 1, 16, 4), np.int8)
    bias, scales = np.ones(16, np.int32), np.ones((3 if wrong == "scales" else 2, 16), np.int32)
    fields = np.array(cpu_kernel.matrix_geometry(2, 3, 16), np.int64)
    attributes = {"geometry": fields, "integers": np.zeros(5, np.int64)}
    with jax.enable_x64(True), pytest.raises(Exception, match=f"{wrong} (do|is)"):
        jax.block_until_ready(call(x, w, bias, scales, **attributes))
