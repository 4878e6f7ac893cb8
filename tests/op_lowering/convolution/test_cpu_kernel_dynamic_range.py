"""Dynamic range convolutions by our CPU kernels: equal to the reference, bit for bit."""

import dataclasses
import functools
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.kernels import library
from jaxdelegate.op_lowering.convolution import cpu_kernel
from jaxdelegate.op_lowering.convolution.cpu_kernel import NATIVE
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    Conv2DOptions,
    DepthwiseConv2DOptions,
    Options,
    Padding,
)
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import Arg, Case, Tolerance
from tests.support.case_groups import CaseGroup, in_groups

CONTEXT = LoweringContext(kernels=KernelSet(cpu=True), quant_mode="integer")
SAME, VALID = Padding.SAME, Padding.VALID
INT8, UINT8, INT4 = np.dtype(np.int8), np.dtype(np.uint8), np.dtype(ml_dtypes.int4)
EVERY_SET = pytest.mark.parametrize(
    "instruction_set", ["avx512vnni", "avx512f", "avxvnni", "avx2"], indirect=True
)
VERSIONS = {"CONV_2D": 8, "DEPTHWISE_CONV_2D": 6}
Shape = tuple[int, ...]


def images(shape: Shape) -> np.ndarray:
    """Images of very different extents and means."""
    rng = np.random.default_rng(shape)
    each = (shape[0], *(1,) * (len(shape) - 1))
    extents = np.exp(rng.normal(size=each) * 2)
    return np.float32((rng.normal(size=shape) + rng.normal(size=each)) * extents)


def case(
    name: str,
    label: str,
    x: Shape | np.ndarray,
    w: Shape,
    options: Options,
    *,
    scales: int = 0,
    dtype: np.dtype = INT8,
    has_bias: bool = True,
) -> Case:
    """`scales`: how many the filter has; 0: one for each unit. -128 is in no such filter."""
    axis = 3 if name == "DEPTHWISE_CONV_2D" else 0
    rng, output_channels = np.random.default_rng(w), w[axis]
    most = 7 if dtype == INT4 else 127
    values = rng.integers(-most, most, w, endpoint=True).astype(np.int8)
    stored = values.view(np.uint8) if dtype == UINT8 else values.astype(dtype)
    scale = np.float32(np.geomspace(0.001, 0.1, scales or output_channels))
    quantization = Quantization(scale, np.zeros(len(scale), np.int64), axis)
    image = x if isinstance(x, np.ndarray) else images(x)
    inputs = [Arg(image), Arg(stored, is_const=True, quantization=quantization)]
    if has_bias:
        inputs.append(Arg(np.float32(rng.normal(size=output_channels)), is_const=True))
    exact: dict[str, Any] = {"tolerance": Tolerance(), "because": "it is rounded as the kernel"}
    return Case(name, label, inputs, options, version=VERSIONS[name], **exact)


def conv(label: str, x: Shape | np.ndarray, w: Shape, options: Options, **how: Any) -> Case:
    """`w` is [O, h, w, I]."""
    return case("CONV_2D", label, x, w, options, **how)


def depthwise(label: str, x: Shape, size: tuple[int, int], options: Options, **how: Any) -> Case:
    return case("DEPTHWISE_CONV_2D", label, x, (1, *size, x[3]), options, **how)


ONE, TWO = Conv2DOptions(SAME, 1, 1), Conv2DOptions(SAME, 2, 2)
DEPTHWISE = DepthwiseConv2DOptions(SAME, 1, 1, 1)
ACTS = (Act.RELU, Act.RELU6, Act.RELU_N1_TO_1)
TIES = np.float32([[n + 0.5 for n in range(-127, 127)] + [127, -127, 0.49999997, 0]])
SPECIAL = {
    "zeros": np.zeros((2, 5, 5, 3), np.float32),
    "positive": np.abs(images((2, 5, 5, 3))),
    "negative": -np.abs(images((2, 5, 5, 3))),
    "one-sided": np.float32(np.r_[[-1e-6] * 10, [3.0] * 15].reshape(1, 5, 5, 1)),
    "ties": TIES.reshape(1, 2, 43, 3),
    "tiny": images((2, 5, 5, 3)) * np.float32(1e-30),
    "huge": images((2, 5, 5, 3)) * np.float32(1e30),
}
CONVOLUTIONS = [
    *(
        conv(f"{depth}-{output_channels}", (2, 7, 6, depth), (output_channels, 3, 3, depth), ONE)
        for depth in (1, 3, 4, 20)
        for output_channels in (1, 15, 16, 17, 40)
    ),
    *(
        conv(f"{name}-{scales}", (2, 8, 9, 5), (18, 3, 3, 5), options, scales=scales)
        for scales in (0, 1)
        for name, options in {
            "strides": TWO,
            "valid": Conv2DOptions(VALID, 3, 2),
            "dilated": Conv2DOptions(SAME, 1, 1, Act.NONE, 3, 2),
        }.items()
    ),
    *(
        conv(f"pixel-{scales}", (3, 5, 7, 20), (33, 1, 1, 20), ONE, scales=scales)
        for scales in (0, 1)
    ),
    *(conv(act.name, (1, 5, 5, 4), (6, 3, 3, 4), Conv2DOptions(SAME, 1, 1, act)) for act in ACTS),
    conv("groups", (2, 7, 6, 40), (36, 3, 3, 10), ONE),
    *(conv(f"column-{n}", (2, 41, 1, n), (18, 6, 1, n), TWO) for n in (3, 20, 68)),
    conv("joined-groups", (2, 7, 6, 32), (64, 3, 3, 4), ONE),
    conv("several-blocks", (1, 40, 45, 33), (20, 3, 3, 33), ONE),
    conv("several-threads", (2, 100, 100, 20), (4, 1, 1, 20), ONE, scales=1),
    conv("no-bias", (1, 5, 5, 4), (6, 3, 3, 4), ONE, has_bias=False),
    *(
        conv(f"{dtype}-{scales}", (2, 5, 5, 4), (6, 3, 3, 4), ONE, dtype=dtype, scales=scales)
        for dtype, scales in ((UINT8, 1), (INT4, 0), (INT4, 1))
    ),
    *(
        conv(f"{name}-{scales}", x, (5, 3, 3, x.shape[3]), ONE, scales=scales)
        for name, x in SPECIAL.items()
        for scales in (0, 1)
    ),
    *(
        depthwise(f"{channels}-{size}", (2, 6, 9, channels), size, options)
        for channels in (16, 17, 40)
        for size, options in (
            ((3, 3), DEPTHWISE),
            ((5, 5), DepthwiseConv2DOptions(SAME, 2, 2, 1)),
            ((2, 3), DepthwiseConv2DOptions(VALID, 1, 1, 1)),
            ((3, 3), DepthwiseConv2DOptions(SAME, 1, 1, 1, Act.NONE, 2, 2)),
        )
    ),
    *(
        depthwise(act.name, (1, 6, 6, 16), (3, 3), DepthwiseConv2DOptions(SAME, 1, 1, 1, act))
        for act in ACTS
    ),
    depthwise("no-bias", (1, 6, 6, 16), (3, 3), DEPTHWISE, has_bias=False),
    conv("int4", (1, 3, 3, 64), (128, 3, 3, 64), ONE, dtype=INT4),
]


def jaxpr(case: Case, context: LoweringContext = CONTEXT) -> str:
    context = dataclasses.replace(context, op_version=case.version)
    lowered = RULES[case.name].lower(case.op(context))
    with jax.enable_x64(True):
        return str(jax.make_jaxpr(lowered)(*case.arrays()))


@functools.cache
def is_taken(case: Case, context: LoweringContext = CONTEXT) -> bool:
    return "_dynamic_range.1" in jaxpr(case, context)


GROUPED = in_groups(CONVOLUTIONS)


@EVERY_SET
@pytest.mark.parametrize("group", GROUPED, ids=str)
def test_kernels_equal_the_reference(group: CaseGroup, instruction_set: str) -> None:
    del instruction_set
    assert all(map(is_taken, group.cases))
    group.check(group.run_compiled_once(RULES, CONTEXT), Case.run_reference)


# In bits that the reference's tolerance does not see: the second half has the special values.
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    "group",
    [*(pytest.param(g, marks=pytest.mark.exhaustive) for g in GROUPED[:3]), *GROUPED[3:]],
    ids=str,
)
def test_kernels_equal_the_algorithms_of_xla(group: CaseGroup) -> None:
    plain = dataclasses.replace(CONTEXT, kernels=KernelSet())
    both = (group.run_compiled_once(RULES, context) for context in (CONTEXT, plain))
    for case, (got,), (want,) in zip(group.cases, *both, strict=True):
        np.testing.assert_array_equal(got.view(np.int32), want.view(np.int32), str(case))


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("scales", [0, 1])
@pytest.mark.parametrize("at", [0, -1])
def test_nan_spoils_its_image_and_no_other(scales: int, at: int) -> None:
    x = images((2, 100, 100, 20))
    x[0].reshape(-1)[at] = np.nan
    (got,) = conv("nan", x, (4, 1, 1, 20), ONE, scales=scales).run_lowered(
        RULES["CONV_2D"], CONTEXT
    )
    assert np.isnan(got[0]).all()
    assert np.isfinite(got[1]).all()


@pytest.mark.usefixtures("built")
def test_a_bias_of_the_run() -> None:
    plain = conv("", (2, 5, 5, 4), (18, 3, 3, 4), ONE)
    x, w, bias = plain.inputs
    assert bias is not None
    late = dataclasses.replace(plain, inputs=[x, w, dataclasses.replace(bias, is_const=False)])
    assert is_taken(late)
    late.check(late.run_lowered(RULES[late.name], CONTEXT), late.run_reference())


def late_filter(case: Case) -> Case:
    x, w, bias = case.inputs
    assert w is not None
    return dataclasses.replace(case, inputs=[x, dataclasses.replace(w, is_const=False), bias])


LEFT = {
    "late-filter": late_filter(conv("", (1, 5, 5, 4), (6, 3, 3, 4), ONE)),
    "few-channels": depthwise("", (1, 6, 6, 15), (3, 3), DEPTHWISE),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_the_kernels_do_not_take_xla_does(name: str) -> None:
    assert not is_taken(LEFT[name])


def test_other_contexts_get_xla() -> None:
    example = conv("", (1, 5, 5, 4), (6, 3, 3, 4), ONE)
    assert is_taken(example)
    assert not is_taken(example, dataclasses.replace(CONTEXT, kernels=KernelSet()))
    assert not is_taken(example, dataclasses.replace(CONTEXT, algorithm="xla"))


def test_they_are_the_first_algorithm() -> None:
    def names(example: Case, context: LoweringContext = CONTEXT) -> list[str]:
        rule: Any = RULES[example.name]
        return list(rule.algorithms(example.op(context)))

    example, plain = LEFT["few-channels"], dataclasses.replace(CONTEXT, kernels=KernelSet())
    assert names(example) == names(example, plain)
    example = conv("", (1, 5, 5, 4), (6, 3, 3, 4), ONE)
    assert names(example) == [NATIVE, *names(example, plain)]


@pytest.mark.usefixtures("built")
def test_a_call_that_does_not_fit_is_refused() -> None:
    call = jax.ffi.ffi_call(
        library.PRODUCT_DYNAMIC_RANGE, jax.ShapeDtypeStruct((2, 16), np.float32)
    )
    x, w = np.ones((2, 4), np.float32), np.ones((1, 1, 16, 4), np.int8)
    ones, sums = np.ones(16, np.float32), np.ones(16, np.int32)
    attributes = {
        "geometry": np.array(cpu_kernel.matrix_geometry(2, 4, 16), np.int64),
        "modes": np.array((1, 0), np.int64),
        "range": np.array((0, 1), np.float32),
    }

    def refused(said: str, *arrays: np.ndarray, **changed: np.ndarray) -> None:
        with jax.enable_x64(True), pytest.raises(Exception, match=said):
            jax.block_until_ready(call(*arrays, **(attributes | changed)))

    refused("x does not fit geometry", x[:1], w, ones, ones, sums)
    refused("weights do not fit geometry", x, w[:, :, :4], ones, ones, sums)
    refused("bias, scales or sums do not fit", x, w, ones, ones[:4], sums)
    refused("expected modes and range", x, w, ones, ones, sums, range=np.zeros(1, np.float32))
    refused("expected geometry without zeros", x, w, ones, ones)
