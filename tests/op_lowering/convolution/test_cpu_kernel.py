"""The package's own CPU kernels, where they were built: against the reference, tile by tile."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest

from jaxdelegate.kernels import library
from jaxdelegate.lowering import fake_quantization
from jaxdelegate.measuring.tolerance import Tolerance
from jaxdelegate.op_lowering.convolution import cpu_kernel
from jaxdelegate.op_lowering.options import ActivationFunctionType as Act
from jaxdelegate.op_lowering.options import (
    Conv2DOptions,
    DepthwiseConv2DOptions,
    FullyConnectedOptions,
    Padding,
)
from jaxdelegate.op_lowering.precision import BFLOAT16, PrecisionPolicy
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import KernelSet, LoweringContext, ResultUse
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.testing import Case, const, f32, of, value
from jaxdelegate.testing.case import run_together
from tests.support.case_groups import CaseGroup, in_groups
from tests.support.quantized import scaled

REASON = library.why_not()
CONTEXT = LoweringContext(kernels=KernelSet(cpu=True))
SAME, VALID = Padding.SAME, Padding.VALID


def jaxpr(case: Case, context: LoweringContext) -> str:
    lowered = RULES[case.name].lower(case.op(context))
    with jax.enable_x64(True):
        return str(jax.make_jaxpr(lowered)(*case.arrays()))


def check(case: Case) -> None:
    assert "ffi_call" in jaxpr(case, CONTEXT)
    case.check(case.run_lowered(RULES[case.name], CONTEXT), case.run_reference())


def product(rows: int, depth: int, output_channels: int, act: Act = Act.NONE) -> Case:
    inputs = [
        f32(rows, depth),
        const(f32(output_channels, depth, seed=1)),
        const(f32(output_channels, seed=2)),
    ]
    options = FullyConnectedOptions(act)
    label = f"{rows}x{depth}x{output_channels}-{act.name}"
    return Case("FULLY_CONNECTED", label, inputs, options, accumulated=depth)


def conv(x: tuple[int, ...], w: tuple[int, ...], options: Conv2DOptions, label: str = "") -> Case:
    """`w` is [O, h, w, I]."""
    inputs = [f32(*x), const(f32(*w, seed=1)), const(f32(w[0], seed=2))]
    label = label or f"{x}-{w}-{options.padding.name}-{options.stride_w}"
    return Case("CONV_2D", label, inputs, options, accumulated=math.prod(w[1:]))


def depthwise(x: tuple[int, ...], h: int, w: int, options: DepthwiseConv2DOptions) -> Case:
    channels = x[3]
    inputs = [f32(*x), const(f32(1, h, w, channels, seed=1)), const(f32(channels, seed=2))]
    label = f"{x}-{h}x{w}-{options.padding.name}-{options.stride_w}-{options.dilation_w_factor}"
    options = dataclasses.replace(options, depth_multiplier=1)
    return Case("DEPTHWISE_CONV_2D", label, inputs, options, accumulated=h * w)


# Rows around a tile's 6 and 14, columns around one, two and four panels of 16, depths of one block
# and of several.
PRODUCTS = [
    *(product(rows, 5, 40) for rows in range(1, 17)),
    *(
        product(rows, 7, output_channels)
        for rows in (1, 6, 7, 30)
        for output_channels in (1, 15, 16, 17, 33, 64, 65)
    ),
    *(product(3, depth, 20) for depth in (1, 1151, 1152, 1153, 2500)),
    *(product(60, depth, 35) for depth in (1153, 2500)),
    product(200, 300, 70),
    product(30, 1024, 70),  # rows that begin in the same set of the cache
    *(product(9, 4, 18, act) for act in (Act.RELU, Act.RELU6, Act.RELU_N1_TO_1)),
]
ONE, TWO = Conv2DOptions(SAME, 1, 1), Conv2DOptions(SAME, 2, 2)
CONVOLUTIONS = [
    *(
        conv((2, 7, 9, channels), (17, 3, 3, channels), options)
        for channels in (1, 3, 5, 20)
        for options in (ONE, TWO, Conv2DOptions(VALID, 1, 1), Conv2DOptions(VALID, 3, 2))
    ),
    conv((2, 5, 7, 20), (33, 1, 1, 20), ONE),
    conv((2, 5, 7, 20), (33, 1, 1, 20), TWO),
    conv((1, 23, 20, 3), (10, 7, 7, 3), TWO),
    conv((1, 6, 6, 12), (3, 2, 4, 12), ONE),
    conv((1, 2, 3, 2), (3, 5, 5, 2), ONE, "filter-larger-than-image"),
    conv((1, 7, 8, 5), (3, 2, 2, 5), Conv2DOptions(SAME, 3, 3), "stride-beyond-filter"),
    conv((1, 9, 9, 6), (5, 3, 3, 6), dataclasses.replace(ONE, dilation_w_factor=2), "dilated"),
    conv((1, 9, 9, 6), (5, 3, 3, 6), dataclasses.replace(TWO, dilation_h_factor=3), "dilated-2"),
    conv((1, 5, 5, 200), (20, 3, 3, 200), ONE, "window-in-parts"),
    conv((1, 3, 3, 1300), (5, 2, 2, 1300), ONE, "pixel-by-pixel"),
    conv((1, 40, 40, 3), (8, 3, 3, 3), ONE, "several-blocks"),
    conv((3, 5, 4, 3), (8, 3, 3, 3), TWO, "images"),
    conv((2, 9, 30, 70), (20, 3, 5, 70), TWO, "lines"),
    conv((1, 3, 4, 20), (70, 3, 3, 20), TWO, "more-filters-than-results"),
    *(conv((2, 41, 1, depth), (18, 6, 1, depth), TWO, f"column-{depth}") for depth in (1, 20)),
    *(
        conv((1, 5, 5, 4), (6, 3, 3, 4), Conv2DOptions(SAME, 1, 1, act), act.name)
        for act in (Act.RELU, Act.RELU6, Act.RELU_N1_TO_1)
    ),
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
    *(depthwise((2, 6, 9, channels), 3, 3, DEPTHWISE_ONE) for channels in (17, 24, 40, 72)),
    depthwise((1, 16, 17, 20), 3, 3, DepthwiseConv2DOptions(VALID, 1, 1)),
    depthwise((1, 16, 17, 20), 5, 5, DepthwiseConv2DOptions(VALID, 2, 2)),
    depthwise((1, 9, 9, 20), 3, 3, DepthwiseConv2DOptions(SAME, 3, 3)),
    depthwise((1, 9, 9, 20), 2, 3, DEPTHWISE_ONE),
    depthwise((1, 9, 9, 20), 7, 7, DEPTHWISE_ONE),
    depthwise((1, 9, 9, 20), 3, 3, dataclasses.replace(DEPTHWISE_ONE, dilation_w_factor=2)),
    depthwise((1, 9, 9, 20), 3, 3, dataclasses.replace(DEPTHWISE_ONE, dilation_h_factor=2)),
    *(
        depthwise(
            (1, 9, width, 20),
            size,
            size,
            DepthwiseConv2DOptions(padding, 1, 1, dilation_w_factor=by, dilation_h_factor=by),
        )
        for width, size, by in ((33, 3, 2), (33, 3, 12), (40, 3, 4), (30, 5, 2), (2, 3, 3))
        for padding in ((SAME, VALID) if size + (size - 1) * (by - 1) <= 9 <= width else (SAME,))
    ),
    depthwise((1, 9, 9, 20), 3, 3, dataclasses.replace(DEPTHWISE_TWO, dilation_w_factor=2)),
    *(
        depthwise((1, 5, 5, 16), 3, 3, DepthwiseConv2DOptions(SAME, 1, 1, 1, act))
        for act in (Act.RELU, Act.RELU6, Act.RELU_N1_TO_1)
    ),
]


# Odd and even sizes, tiles that reach beyond the image, panels that are not full.
WINOGRAD = [
    *(
        conv((2, height, width, 20), (output_channels, 3, 3, 20), options)
        for height, width, output_channels in (
            (7, 9, 17),
            (6, 3, 40),
            (1, 1, 16),
            (2, 5, 33),
            (4, 4, 3),
        )
        for options in (ONE, Conv2DOptions(VALID, 1, 1))
        if options is ONE or min(height, width) > 2
    ),
    conv((1, 28, 30, 40), (24, 3, 3, 40), ONE, "several-blocks"),
    *(
        conv((1, 5, 5, 16), (18, 3, 3, 16), Conv2DOptions(SAME, 1, 1, act), act.name)
        for act in (Act.RELU, Act.RELU6, Act.RELU_N1_TO_1)
    ),
]


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("algorithm", [cpu_kernel.NATIVE, cpu_kernel.NATIVE_WINOGRAD])
def test_both_algorithms_of_3x3_match_the_reference(algorithm: str) -> None:
    context = dataclasses.replace(CONTEXT, algorithm=algorithm)
    rule: Any = RULES["CONV_2D"]
    assert all(algorithm in rule.algorithms(c.op(context)) for c in WINOGRAD)
    tiled = algorithm == cpu_kernel.NATIVE_WINOGRAD
    CaseGroup([in_tiles(c) if tiled else c for c in WINOGRAD]).check_lowerings(RULES, context)


def in_tiles(case: Case) -> Case:
    tolerance = Tolerance(rtol=1e-5, atol=2e-7 * case.accumulated)
    because = "a tile's results are differences of sums over all of its values, so that they "
    because += "are as exact as the largest, not as each of them"
    return dataclasses.replace(case, tolerance=tolerance, because=because)


def test_winograd_is_the_default_of_much_work_on_few_filters() -> None:
    def first(size: int, channels: int, output_channels: int) -> str:
        case = conv((1, size, size, channels), (output_channels, 3, 3, channels), ONE)
        rule: Any = RULES["CONV_2D"]
        return next(iter(rule.algorithms(case.op(CONTEXT))))

    assert first(56, 64, 64) == first(14, 256, 256) == cpu_kernel.NATIVE_WINOGRAD
    assert first(7, 512, 512) == first(14, 16, 16) == first(56, 64, 8) == cpu_kernel.NATIVE


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("group", in_groups(PRODUCTS + CONVOLUTIONS + DEPTHWISE), ids=str)
def test_kernels_match_the_reference(group: CaseGroup) -> None:
    assert all("ffi_call" in jaxpr(case, CONTEXT) for case in group.cases)
    group.check(group.run_compiled_once(RULES, CONTEXT), Case.run_reference)


SPECIAL = [1.5, np.nan, np.inf, -np.inf, -0.0, 1e30]


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("act", [Act.NONE, Act.RELU, Act.RELU6, Act.RELU_N1_TO_1])
def test_nan_and_infinity_pass_as_in_the_reference(act: Act) -> None:
    x = np.resize(np.float32(SPECIAL), (1, 6, 1, 1)) * np.ones((1, 6, 7, 18), np.float32)
    one, bias = np.ones((18, 1, 1, 1), np.float32), const(np.zeros(18, np.float32))
    pixel = const(one * np.eye(18, dtype=np.float32)[:, None, None, :] + np.float32(0.25))
    check(Case("CONV_2D", act.name, [value(x), pixel, bias], Conv2DOptions(VALID, 1, 1, act)))
    taps = const(np.ones((1, 1, 3, 18), np.float32))
    options = DepthwiseConv2DOptions(VALID, 1, 1, 1, act)
    check(Case("DEPTHWISE_CONV_2D", act.name, [value(x), taps, bias], options))


@pytest.mark.usefixtures("built")
def test_no_bias_and_left_over_values() -> None:
    inputs = [f32(2, 7), const(f32(5, 3, seed=1)), None]
    check(Case("FULLY_CONNECTED", "left-over", inputs, FullyConnectedOptions(), accumulated=3))
    options = FullyConnectedOptions(keep_num_dims=True)
    inputs = [f32(2, 4, 3), const(f32(5, 3, seed=1)), None]
    check(Case("FULLY_CONNECTED", "kept", inputs, options, accumulated=3))


# With and without a clamp, in panels and tiles that are not full, by all kernels of float32.
ENDS_ON_GRID = [
    (product(30, 7, 33), cpu_kernel.NATIVE),
    (product(9, 4, 1, Act.RELU6), cpu_kernel.NATIVE),
    (conv((2, 9, 7, 5), (17, 3, 3, 5), ONE), cpu_kernel.NATIVE),
    (conv((1, 5, 5, 200), (20, 3, 3, 200), ONE), cpu_kernel.NATIVE),
    (conv((1, 9, 7, 32), (64, 3, 3, 8), ONE), cpu_kernel.NATIVE),
    (conv((1, 7, 9, 20), (18, 3, 3, 20), ONE), cpu_kernel.NATIVE_WINOGRAD),
    (depthwise((2, 6, 9, 17), 3, 3, DEPTHWISE_ONE), cpu_kernel.NATIVE),
]
GRIDS = [
    (np.int8, 0.03, -7),
    (np.uint8, 0.0235294122, 0),
    (np.int16, 1e-4, 0),
    (np.uint8, 0.5, 255),
]


def check_on_grid(cases: Sequence[tuple[Case, LoweringContext]], spec: TensorSpec) -> None:
    """Compare the kernels, in one program, with what XLA makes of their floats."""
    grid = fake_quantization.grid_of(spec)
    ended = [
        (case, dataclasses.replace(context, result=ResultUse(grid=grid))) for case, context in cases
    ]
    for case, context in ended:
        assert RULES[case.name].lower(case.op(context)).is_on_grid
        assert "to_grid" in jaxpr(case, context)
    plain, got = (
        [y for (y,) in run_together([case.lowered_call(RULES[case.name], c) for case, c in some])]
        for some in (cases, ended)
    )
    with jax.enable_x64(True):
        want = jax.jit(lambda ys: [fake_quantization.simulate(y, spec) for y in ys])(plain)
    for (case, _), y, z in zip(cases, got, map(np.asarray, want), strict=True):
        np.testing.assert_array_equal(y.view(np.int32), z.view(np.int32), str(case))
        assert len(np.unique(y)) > 1 or spec.quantization.zero_point[0] == 255


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize(("dtype", "scale", "zero_point"), GRIDS)
def test_results_on_a_grid_equal_those_rounded_after_the_kernel(
    dtype: Any, scale: float, zero_point: int
) -> None:
    quantization = scaled(scale, zero_point)
    spec = TensorSpec("y", (), np.dtype(dtype), quantization)
    check_on_grid(
        [(case, dataclasses.replace(CONTEXT, algorithm=a)) for case, a in ENDS_ON_GRID], spec
    )


@pytest.mark.usefixtures("instruction_set")
def test_ties_nan_and_infinity_on_a_grid_equal_those_rounded_after_the_kernel() -> None:
    almost = np.nextafter(np.float32(0.5), np.float32(0))  # half and its neighbor must differ
    values = [*(n + 0.5 for n in range(-4, 9)), almost, -almost, 1 + almost, *SPECIAL]
    x = np.resize(np.float32(values), (1, 2, len(values), 16))
    one, bias = const(np.ones((1, 1, 1, 16), np.float32)), const(np.full(16, -0.0, np.float32))
    options = dataclasses.replace(DEPTHWISE_ONE, depth_multiplier=1)
    case = Case("DEPTHWISE_CONV_2D", "special", [value(x), one, bias], options)
    for zero_point in (-128, -124, 0):
        quantization = scaled(1, zero_point)
        spec = TensorSpec("y", (), np.dtype(np.int8), quantization)
        check_on_grid([(case, CONTEXT)], spec)


def taken(case: Case, context: LoweringContext = CONTEXT) -> bool:
    return "ffi_call" in jaxpr(case, context)


@pytest.mark.parametrize("name", ["run-time-filter", "float16", "few-channels", "multiplier"])
def test_what_the_kernels_do_not_take_xla_does(name: str) -> None:
    image, filters = f32(1, 5, 5, 4), f32(6, 3, 3, 4, seed=1)
    two = dataclasses.replace(DEPTHWISE_ONE, depth_multiplier=2)
    case = {
        "run-time-filter": Case("CONV_2D", name, [image, filters], ONE, accumulated=36),
        "float16": Case(
            "CONV_2D", name, [of(np.float16, 1, 5, 5, 4), const(of(np.float16, 6, 3, 3, 4))], ONE
        ),
        "few-channels": depthwise((1, 5, 5, 15), 3, 3, DEPTHWISE_ONE),
        "multiplier": Case(
            "DEPTHWISE_CONV_2D", name, [f32(1, 5, 5, 16), const(f32(1, 3, 3, 32))], two
        ),
    }[name]
    assert not taken(case)


def test_other_contexts_get_xla() -> None:
    case = conv((1, 5, 5, 4), (6, 3, 3, 4), ONE)
    assert taken(case)
    assert not taken(case, LoweringContext())
    assert not taken(case, dataclasses.replace(CONTEXT, algorithm="xla"))
    short = PrecisionPolicy(operand=BFLOAT16)
    assert not taken(case, dataclasses.replace(CONTEXT, precision=short))


def test_in_reduced_precision_they_take_what_stays_float32() -> None:
    windows, pixel = conv((1, 5, 5, 4), (6, 3, 3, 4), ONE), conv((1, 5, 5, 4), (6, 1, 1, 4), ONE)
    factors = PrecisionPolicy(operand=BFLOAT16, reduces_convolutions=False, least_rows=8)
    rounding = dataclasses.replace(CONTEXT, precision=factors)
    assert [taken(case, rounding) for case in (windows, pixel)] == [True, False]
    assert [taken(product(rows, 3, 4), rounding) for rows in (7, 8)] == [True, False]
    held = dataclasses.replace(CONTEXT, precision=PrecisionPolicy(storage=BFLOAT16))
    assert not any(taken(case, held) for case in (windows, pixel, product(7, 3, 4)))


SHORT = dataclasses.replace(
    CONTEXT,
    precision=PrecisionPolicy(operand=BFLOAT16, reduces_convolutions=False),
    kernels=KernelSet(cpu=True, cpu_bfloat16=True),
)
MULTIPLIES_SHORT = pytest.mark.skipif(
    REASON is not None or not library.multiplies_bfloat16(),
    reason="this processor does not multiply bfloat16",
)


def rounded(case: Case) -> Case:
    """The case with values that bfloat16 represents exactly."""
    x, w, *bias = (arg for arg in case.inputs if arg is not None)
    short = (
        dataclasses.replace(arg, value=arg.value.astype(BFLOAT16).astype(np.float32))
        for arg in (x, w)
    )
    return dataclasses.replace(case, inputs=[*short, *bias])


SHORT_PRODUCTS = [
    *(product(rows, 6, 40) for rows in range(1, 17)),
    *(
        product(rows, 8, output_channels)
        for rows in (1, 7, 30)
        for output_channels in (1, 15, 17, 33, 64, 65)
    ),
    *(product(3, depth, 20) for depth in (2, 30, 32, 34, 1152, 1154, 2500)),
    *(product(60, depth, 35) for depth in (1154, 2500)),
    *(product(9, 4, 18, act) for act in (Act.RELU, Act.RELU6, Act.RELU_N1_TO_1)),
    conv((2, 5, 7, 20), (33, 1, 1, 20), ONE),
    conv((2, 5, 7, 20), (33, 1, 1, 20), TWO),
    conv((1, 20, 20, 64), (40, 1, 1, 64), ONE, "several-blocks"),
    *(
        conv((2, 11, 9, 6), (20, *window, 6), options)
        for window in ((3, 3), (1, 7), (5, 1))
        for options in (ONE, TWO, dataclasses.replace(ONE, dilation_w_factor=2))
    ),
    conv((1, 12, 12, 140), (16, 3, 3, 140), ONE, "several-parts-of-the-depth"),
]


@MULTIPLIES_SHORT
@pytest.mark.parametrize("group", in_groups(SHORT_PRODUCTS), ids=str)
def test_products_of_bfloat16_match_the_reference(group: CaseGroup) -> None:
    cases = [rounded(case) for case in group.cases]
    assert all("jaxdelegate.product_bfloat16" in jaxpr(case, SHORT) for case in cases)
    CaseGroup(cases).check_lowerings(RULES, SHORT)


@MULTIPLIES_SHORT
@pytest.mark.parametrize("depth", [2, 18, 34])
def test_factors_are_rounded_to_the_nearest_bfloat16(depth: int) -> None:
    """With a tie to the even one; infinities and NaN stay until the sum is clamped."""
    x = np.random.default_rng(0).standard_normal((5, depth)).astype(np.float32)
    x[0, :2], x[1, :2] = (1 + 2**-8, 1 + 3 * 2**-8), (np.inf, -np.inf)
    x[2, 0] = np.nan
    largest = np.finfo(np.float32).max
    want = np.clip(x.astype(BFLOAT16).astype(np.float32), -largest, largest)
    for column in range(2):
        one = np.zeros((1, depth), np.float32)
        one[0, column] = 1
        x_only = np.where(one != 0, x, 0)
        case = Case("FULLY_CONNECTED", "rounded", [value(x_only), const(one), None])
        (got,) = case.run_lowered(RULES["FULLY_CONNECTED"], SHORT)
        np.testing.assert_array_equal(got[:, 0], want[:, column])


def test_what_the_kernel_of_bfloat16_does_not_take() -> None:
    assert taken(product(3, 4, 5), SHORT)
    odd, several = product(3, 5, 5), conv((1, 5, 5, 4), (6, 3, 3, 4), ONE)
    elsewhere = dataclasses.replace(SHORT, kernels=KernelSet(cpu=True))
    sums = dataclasses.replace(SHORT.precision, accumulate_float32=False)
    assert not taken(odd, SHORT)
    assert not taken(product(3, 4, 5), elsewhere)
    assert not taken(product(3, 4, 5), dataclasses.replace(SHORT, precision=sums))
    assert "product_bfloat16" not in jaxpr(several, SHORT)


@MULTIPLIES_SHORT
def test_it_takes_fewer_rows_and_columns_than_xla() -> None:
    policy = dataclasses.replace(SHORT.precision, least_rows=32, least_columns=64)
    context = dataclasses.replace(SHORT, precision=policy)
    takes = {n: "product_bfloat16" in jaxpr(product(1, 6, n), context) for n in (15, 16)}
    assert takes == {15: False, 16: True}


def test_it_is_the_first_algorithm_where_it_is_one() -> None:
    for case in (conv((1, 5, 5, 4), (6, 3, 3, 4), ONE), product(2, 3, 4)):
        algorithms: Any = RULES[case.name].algorithms
        names = list(algorithms(case.op(CONTEXT)))
        plain = list(algorithms(case.op(LoweringContext())))
        assert names == [cpu_kernel.NATIVE, *plain]


def test_panels_are_filled_up_with_zeros() -> None:
    w = np.arange(1, 41, dtype=np.float32).reshape(2, 20)
    laid_out = cpu_kernel.panels(w)
    np.testing.assert_array_equal(cpu_kernel.panels(np.stack([w, w]))[1], laid_out)
    assert laid_out.shape == (2, 2, library.PANEL)
    np.testing.assert_array_equal(laid_out[0], w[:, :16])
    np.testing.assert_array_equal(laid_out[1], np.pad(w[:, 16:], ((0, 0), (0, 12))))


@pytest.mark.usefixtures("built")
def test_a_call_that_does_not_fit_is_refused() -> None:
    call = jax.ffi.ffi_call(library.PRODUCT, jax.ShapeDtypeStruct((2, 16), np.float32))
    x, w, bias = (np.ones(shape, np.float32) for shape in ((2, 3), (1, 4, 16), (16,)))
    fields = np.array(cpu_kernel.matrix_geometry(2, 3, 16), np.int64)
    limits = np.array((0, 1), np.float32)
    nonlinearity = np.array((0,), np.int64)

    def refused(
        said: str,
        *arrays: np.ndarray,
        fields: np.ndarray = fields,
        nonlinearity: np.ndarray = nonlinearity,
        **more: np.ndarray,
    ) -> None:
        with jax.enable_x64(True), pytest.raises(Exception, match=said):
            jax.block_until_ready(
                call(*arrays, geometry=fields, range=limits, then=nonlinearity, **more)
            )

    refused("weights do not fit geometry", x, w, bias)
    refused("the residual does not fit y", x, w[:, :3], bias, x)
    refused("then is not a nonlinearity", x, w[:, :3], bias, nonlinearity=nonlinearity + 3)
    refused("to_grid is not a grid", x, w[:, :3], bias, to_grid=limits)
    empty = np.where(fields == 3, 0, fields)  # nothing is divided by it
    refused("expected geometry without zeros", x[:, :0], w[:, :0], bias, fields=empty)
