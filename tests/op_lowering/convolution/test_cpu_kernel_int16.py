"""The package's own CPU kernels of int16 by int8: equal to the reference, bit for bit."""

import dataclasses
import functools
import math
from typing import Any

import jax
import numpy as np
import pytest

from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.convolution import cpu_kernel
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    Conv2DOptions,
    DepthwiseConv2DOptions,
    FullyConnectedOptions,
    Options,
    Padding,
    TensorType,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext
from jaxdelegate.quant.requantize import requantize_accumulator
from jaxdelegate.testing import Arg, Case
from tests.support.case_groups import CaseGroup, in_groups
from tests.support.quantized import scaled

CONTEXT = LoweringContext(kernels=KernelSet(cpu=True), quant_mode="integer")
EVERY_SET = pytest.mark.parametrize(
    "instruction_set", ["avx512vnni", "avx512f", "avxvnni", "avx2"], indirect=True
)
SAME, VALID = Padding.SAME, Padding.VALID
ONE, TWO = Conv2DOptions(SAME, 1, 1), Conv2DOptions(SAME, 2, 2)
INT32_SUMS = dataclasses.replace(ONE, quantized_bias_type=TensorType.INT32)
BY_CHANNEL = DepthwiseConv2DOptions(SAME, 1, 1, 1)
VERSIONS = {"CONV_2D": 5, "DEPTHWISE_CONV_2D": 5, "FULLY_CONNECTED": 7}
INT16 = np.dtype(np.int16)
Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Numbers:
    """`steps` is the output's scale in units that let sums fill its range about once.

    `bias` is its dtype, or None; `extreme`: all integers at their ends.
    """

    bias: Any = np.int64
    steps: float = 1.0
    extreme: bool = False

    def case(self, name: str, label: str, x: Shape, w: Shape, axis: int, options: Options) -> Case:
        """`axis` of the filter holds the units."""
        rng = np.random.default_rng(math.prod(x) + math.prod(w))
        units, products = w[axis], math.prod(w) // w[axis]
        count = 1 if name == "FULLY_CONNECTED" else units
        w_scale = np.float32(np.geomspace(0.1, 1, count) * 0.01)
        y_scale = np.float32(1e-3 * w_scale.mean() * math.sqrt(products) * 40 * self.steps)
        inputs = [
            Arg(self._integers(rng, x, np.int16), quantization=scaled(np.float32(1e-3))),
            Arg(self._integers(rng, w, np.int8), True, quantization=scaled(w_scale, axis=axis)),
        ]
        if self.bias is not None:
            bias = rng.integers(-20_000, 20_000, units).astype(self.bias)
            inputs.append(Arg(bias, True, quantization=scaled(np.float32(1e-3) * w_scale)))
        details: Any = {"version": VERSIONS[name], "outputs": [INT16]}
        details["output_quantization"] = [scaled(y_scale)]
        return Case(name, f"int16-{label}-{self}", inputs, options, **details)

    def _integers(self, rng: np.random.Generator, shape: Shape, dtype: Any) -> np.ndarray:
        high = np.iinfo(dtype).max
        if self.extreme:
            return rng.choice([-high - (dtype is np.int16), high], shape).astype(dtype)
        return rng.integers(-high, high, shape, endpoint=True).astype(dtype)


ODD = Numbers(extreme=True), Numbers(steps=1e-3), Numbers(steps=1e4)
INT32_BIASES = Numbers(np.int32), Numbers(np.int32, steps=1e-3), Numbers(np.int32, extreme=True)


def conv(x: Shape, w: Shape, o: Conv2DOptions = ONE, n: Numbers = Numbers()) -> Case:
    return n.case("CONV_2D", f"{x}-{w}-{o.padding.name}-{o.stride_w}", x, w, 0, o)


def depthwise(x: Shape, size: int, n: Numbers = Numbers(), o: Any = BY_CHANNEL) -> Case:
    w = (1, size, size, x[3])
    return n.case("DEPTHWISE_CONV_2D", f"{x}-{size}-{o.stride_w}", x, w, 3, o)


def product(rows: int, depth: int, units: int, n: Numbers = Numbers()) -> Case:
    shapes = (rows, depth), (units, depth)
    return n.case("FULLY_CONNECTED", f"{shapes}", *shapes, 0, FullyConnectedOptions())


CASES = [
    *(product(rows, 5, 40) for rows in (1, 2, 6, 7, 13, 15)),
    *(product(3, depth, units) for depth in (1, 2, 63, 500) for units in (1, 17, 33, 65)),
    *(product(5, 9, 3, n) for n in (*ODD, Numbers(None))),
    *(conv((1, 3, 5, 8), (units, 1, 1, 8)) for units in (1, 15, 16, 33, 64)),
    *(conv((2, 7, 9, c), (17, 3, 3, c), o) for c in (1, 3, 20) for o in (ONE, TWO)),
    *(conv((1, 5, 6, 3), (18, 3, 3, 3), ONE, n) for n in ODD),
    *(conv((1, 5, 6, 3), (18, 3, 3, 3), INT32_SUMS, n) for n in INT32_BIASES),
    conv((1, 7, 8, 5), (3, 2, 2, 5), Conv2DOptions(VALID, 3, 3)),
    *(conv((2, 41, 1, c), (18, 6, 1, c), TWO) for c in (3, 20, 34)),
    conv((2, 9, 30, 34), (20, 3, 3, 34), TWO),
    conv((1, 5, 5, 4), (6, 3, 3, 4), Conv2DOptions(SAME, 1, 1, Act.RELU6)),
    *(conv((1, 6, 9, 16), (units, 3, 3, 4)) for units in (16, 40)),  # groups
    *(depthwise((2, 5, width, 20), size) for width in (1, 5, 14) for size in (2, 3, 5)),
    *(depthwise((1, 4, 5, 18), 3, n) for n in (*ODD, Numbers(None))),
    depthwise((1, 9, 9, 24), 3, o=DepthwiseConv2DOptions(SAME, 2, 2, 1, Act.RELU)),
]


@functools.cache
def is_native(case: Case) -> bool:
    lowered = RULES[case.name].lower(case.op(CONTEXT))
    with jax.enable_x64(True):
        return "ffi_call" in str(jax.make_jaxpr(lowered)(*case.arrays()))


@pytest.mark.usefixtures("instruction_set")
@EVERY_SET
@pytest.mark.parametrize("group", in_groups(CASES), ids=str)
def test_kernels_equal_the_reference(group: CaseGroup) -> None:
    assert all(map(is_native, group.cases))
    for case, (got,) in zip(group.cases, group.run_compiled_once(RULES, CONTEXT), strict=True):
        (want,) = case.run_reference()
        assert got.dtype == want.dtype == INT16
        np.testing.assert_array_equal(got, want, err_msg=str(case))


@EVERY_SET
def test_requantization_of_any_sum(instruction_set: str) -> None:
    """Sums are the bias of a product with zeros; scaled as sums of int64 are."""
    del instruction_set
    rng = np.random.default_rng(0)
    ends = [-(2**31), 2**31 - 1, -1, 0, 1]
    sums = np.concatenate([rng.integers(-(2**31), 2**31, 43), ends]).astype(np.int32)
    call = jax.ffi.ffi_call(library.PRODUCT_INT16, jax.ShapeDtypeStruct((3, 48), INT16))
    x, w = np.zeros((3, 2), INT16), np.zeros((3, 1, library.PANEL, 2), INT16)
    fields = np.array(cpu_kernel.matrix_geometry(3, 2, 48), np.int64)
    for shift in (-30, -15, -7, 0, 1):
        for multiplier in (1 << 30, (1 << 31) - 1, 1518500250):
            scales = np.repeat(np.int32([[multiplier], [shift]]), 48, 1)
            integers = np.array((0, 0, 0, -(2**15), 2**15 - 1, 1), np.int64)
            with jax.enable_x64(True):
                got = call(x, w, sums, scales, geometry=fields, integers=integers)
            want = requantize_accumulator(
                sums.astype(np.int64), multiplier, shift, 0, (-(2**15), 2**15 - 1), INT16
            )
            np.testing.assert_array_equal(got, np.broadcast_to(want, got.shape), str(shift))


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("instruction_set", ["avx2"], indirect=True)
@pytest.mark.parametrize(("depth", "fits"), [(515, True), (517, False)])
def test_sums_beyond_int32_are_left_to_xla(depth: int, fits: bool) -> None:
    """515 weights of 127 by -32768 and the bias are just below 2**31."""
    case = product(2, depth, 3, Numbers(extreme=True))
    assert is_native(case) == fits
    (got,) = case.run_lowered(RULES[case.name], CONTEXT)
    np.testing.assert_array_equal(got, case.run_reference()[0])


def test_what_is_not_constant_is_left_to_xla() -> None:
    case = conv((1, 5, 5, 4), (6, 3, 3, 4))
    for position in (1, 2):
        inputs = list(case.inputs)
        inputs[position] = dataclasses.replace(inputs[position], is_const=False)  # type: ignore[type-var]
        assert not is_native(dataclasses.replace(case, inputs=inputs))
