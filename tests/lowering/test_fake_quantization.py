"""The float view of quantized models: dequantization, rounding, folding and conversion."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.lowering import fake_quantization, legality
from jaxdelegate.lowering import partition as lowering
from jaxdelegate.lowering.computation import LoweredPartition
from jaxdelegate.model.records import Operator, Subgraph
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    AddOptions,
    FullyConnectedOptions,
    LSTMOptions,
    MulOptions,
    NoOptions,
    Options,
    RNNOptions,
    SVDFOptions,
    WhileOptions,
)
from jaxdelegate.op_lowering.rule import LoweringContext
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.passes import propagation
from jaxdelegate.quant import affine
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import Arg, Case, ModelBuilder
from jaxdelegate.testing.running import run_once

Arrays = list[np.ndarray]


def scaled(scale: Any, zero_point: int = 0, axis: int = 0) -> Quantization:
    scales = np.atleast_1d(np.asarray(scale, np.float32))
    return Quantization(scales, np.full(scales.shape, zero_point, np.int64), axis)


def spec_of(quantization: Quantization, dtype: Any = np.int8) -> TensorSpec:
    return TensorSpec("t", (), np.dtype(dtype), quantization)


def delegated(content: bytes, arrays: Sequence[np.ndarray], **options: Any) -> Arrays:
    """Outputs with every operator in one partition."""
    delegate = jd.JaxDelegate(require_full_delegation=True, quant_mode="float_view", **options)
    return run_once(
        jd.Interpreter(model_content=content, experimental_delegates=[delegate]), arrays
    )


def on_host(content: bytes, arrays: Sequence[np.ndarray]) -> Arrays:
    return run_once(jd.Interpreter(model_content=content), arrays)


def lowered(content: bytes) -> LoweredPartition:
    """The whole model as one partition in float view."""
    subgraph: Subgraph = jd.load(content).graph.subgraphs[0]
    specs = dict(enumerate(propagation.subgraph_specs(subgraph, None, [])))
    return lowering.lower_partition(
        subgraph.operators, specs, subgraph.inputs, subgraph.outputs, LoweringContext()
    )


def traced(content: bytes) -> Any:
    """The program's jaxpr, for the inputs that the model declares."""
    partition = lowered(content)
    weights = {w: partition.value(w) for w in partition.preparations}
    avals = [
        jax.ShapeDtypeStruct(partition.outside(i).shape, partition.outside(i).dtype)
        for i in partition.inputs
    ]
    with jax.enable_x64(True):
        return jax.make_jaxpr(lambda *values: partition.call(weights, values))(*avals)


def dequantized(q: np.ndarray, quantization: Quantization) -> np.ndarray:
    return affine.dequantize(q, quantization).astype(np.float64)


def stored(x: np.ndarray, quantization: Quantization, dtype: Any = np.int8) -> np.ndarray:
    return affine.quantize(x.astype(np.float32), quantization, np.dtype(dtype))


# ---- Simulators

GRIDS = [
    (np.int8, 0.1, -3),
    (np.int8, 0.013, 127),
    (np.uint8, 0.02, 131),
    (np.int16, 3e-4, 0),
    (np.int8, 7.0, -128),
]


@pytest.mark.parametrize(("dtype", "scale", "zero_point"), GRIDS)
def test_a_simulator_gives_the_float_of_the_nearest_integer(
    dtype: Any, scale: float, zero_point: int
) -> None:
    quantization = scaled(scale, zero_point)
    info = np.iinfo(dtype)
    q = np.random.default_rng(0).integers(info.min, info.max, 500, endpoint=True).astype(dtype)
    near = dequantized(q, quantization) + scale * np.random.default_rng(1).uniform(-0.49, 0.49, 500)
    got = fake_quantization.simulate(near.astype(np.float32), spec_of(quantization, dtype))
    np.testing.assert_array_equal(got, affine.dequantize(q, quantization))


@pytest.mark.parametrize(("dtype", "scale", "zero_point"), GRIDS)
def test_a_simulator_saturates(dtype: Any, scale: float, zero_point: int) -> None:
    quantization = scaled(scale, zero_point)
    ends = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
    far = np.array([-np.inf, np.inf, -1e30, 1e30, np.nan], np.float32)
    got = fake_quantization.simulate(far, spec_of(quantization, dtype))
    low, high = affine.dequantize(ends, quantization)
    np.testing.assert_array_equal(got, np.array([low, high, low, high, low], np.float32))


def test_a_simulator_rounds_halves_up_from_the_lowest_value() -> None:
    halves = np.array([-1.5, -0.5, 0.5, 1.5, 2.5], np.float32)
    got = fake_quantization.simulate(halves, spec_of(scaled(1.0, 0)))
    np.testing.assert_array_equal(got, np.array([-1, 0, 1, 2, 3], np.float32))


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(("dtype", "scale", "zero_point"), GRIDS)
def test_a_gpu_gives_the_same_floats(dtype: Any, scale: float, zero_point: int) -> None:
    """Both sides of every half, and NaN."""
    info, spec = np.iinfo(dtype), spec_of(scaled(scale, zero_point), dtype)
    halves = (np.arange(info.min - 2, info.max + 2) - zero_point + 0.5) * np.float32(scale)
    halves = halves.astype(np.float32)
    both = (np.nextafter(halves, np.float32(end)) for end in (-np.inf, np.inf))
    odd = np.array([-np.inf, np.inf, -1e30, 1e30, np.nan, 0.0, -0.0], np.float32)
    x = np.concatenate([halves, *both, odd])
    got = fake_quantization.simulate(x, spec)
    first, last, _, low, step = map(np.float32, fake_quantization.grid_of(spec) or ())
    inside = np.minimum(np.where(x > first, x, first), last)
    want = (affine.round_half_away((inside - first) / step) + low) * step
    np.testing.assert_array_equal(got, want)


def chain(
    *scales: float, operator: str = "ADD", options: Options | None = None
) -> tuple[bytes, list[Quantization]]:
    """x, x + x, twice that, ...: int8 tensors with these scales."""
    builder, options = ModelBuilder(), options or AddOptions()
    quantizations = [scaled(scale) for scale in scales]
    last = builder.input((256,), np.int8, quantization=quantizations[0])
    for quantization in quantizations[1:]:
        y = builder.tensor((256,), np.int8, quantization=quantization)
        builder.operator(operator, [last, last], [y], options, version=2)
        last = y
    builder.outputs(last)
    return builder.build(), quantizations


EVERY_INT8 = np.arange(-128, 128).astype(np.int8)


def test_results_that_are_read_are_rounded_where_integer_kernels_round() -> None:
    content, (first, middle, last) = chain(0.01, 0.07, 0.05)
    x = dequantized(EVERY_INT8, first)
    between = dequantized(stored(2 * x, middle), middle)
    want = stored(2 * between, last)
    np.testing.assert_array_equal(delegated(content, [EVERY_INT8])[0], want)
    assert np.any(want != stored(4 * x, last))  # without the rounding in between
    np.testing.assert_array_equal(on_host(content, [EVERY_INT8])[0], want)


def test_results_that_are_read_saturate() -> None:
    content, (first, _, last) = chain(0.01, 0.01, 0.05)
    between = np.clip(2 * dequantized(EVERY_INT8, first), -1.28, 1.27)
    want = stored(2 * between, last)
    np.testing.assert_array_equal(delegated(content, [EVERY_INT8])[0], want)
    assert np.any(want != stored(4 * dequantized(EVERY_INT8, first), last))


def test_graph_inputs_and_unread_outputs_have_no_simulator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulated = []

    def simulate(value: Any, spec: TensorSpec, scale: Any = None) -> Any:
        assert scale is None
        simulated.append(spec.quantization.scale[0] if spec.quantization else None)
        return value

    monkeypatch.setattr(fake_quantization, "simulate", simulate)
    content, (first, _, last) = chain(0.01, 0.07, 0.05)
    got = delegated(content, [EVERY_INT8])[0]
    np.testing.assert_allclose(simulated, [0.07])
    np.testing.assert_array_equal(got, stored(4 * dequantized(EVERY_INT8, first), last))


@pytest.mark.usefixtures("built")
def test_native_kernels_round_what_they_yield_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of a native kernel, of another operator, and one that no operator reads."""
    builder, random = ModelBuilder(), np.random.default_rng(0)
    x = builder.input((4, 256), np.int8, quantization=scaled(0.01))
    w = builder.constant(
        random.integers(-127, 128, (256, 256)).astype(np.int8), quantization=scaled(0.01)
    )
    made = [builder.tensor((4, 256), np.int8, quantization=scaled(0.05, n)) for n in range(3)]
    builder.operator("FULLY_CONNECTED", [x, w, -1], [made[0]], FullyConnectedOptions(), version=4)
    builder.operator("ADD", [made[0], x], [made[1]], AddOptions(), version=2)
    options = FullyConnectedOptions()
    builder.operator("FULLY_CONNECTED", [made[1], w, -1], [made[2]], options, version=4)
    builder.outputs(made[2])
    content, arrays = builder.build(), [random.integers(-128, 128, (4, 256)).astype(np.int8)]
    want = on_host(content, arrays)[0]
    simulated, inner = [], fake_quantization.simulate

    def simulate(value: Any, spec: TensorSpec, scale: Any = None) -> Any:
        assert scale is None
        simulated.append(int(spec.quantization.zero_point[0]) if spec.quantization else None)
        return inner(value, spec)

    monkeypatch.setattr(fake_quantization, "simulate", simulate)
    np.testing.assert_array_equal(delegated(content, arrays)[0], want)
    assert simulated == [1]
    monkeypatch.setattr(fake_quantization, "grid_of", lambda _spec: None)
    np.testing.assert_array_equal(delegated(content, arrays)[0], want)
    assert simulated == [1, 0, 1]


@pytest.mark.parametrize(("dtype", "scale"), [(np.int32, 0.1), (np.int8, 1e-40)])
def test_kernels_have_no_grid_of_many_or_of_tiny_steps(dtype: Any, scale: float) -> None:
    assert fake_quantization.grid_of(spec_of(scaled(scale), dtype)) is None


def test_an_output_that_is_also_read_is_one_value() -> None:
    builder = ModelBuilder()
    x = builder.input((256,), np.int8, quantization=scaled(0.01))
    t = builder.tensor((256,), np.int8, quantization=scaled(0.07))
    y = builder.tensor((256,), np.int8, quantization=scaled(0.07))
    builder.operator("ADD", [x, x], [t], AddOptions(), version=2)
    builder.operator("ADD", [t, t], [y], AddOptions(), version=2)
    builder.outputs(t, y)
    half, whole = delegated(builder.build(), [EVERY_INT8])
    np.testing.assert_array_equal(whole, np.clip(2 * half.astype(int), -128, 127))


def test_values_that_are_equal_integers_are_equal_floats() -> None:
    """One operand is an input, the other was moved and rounded to its grid again."""
    builder = ModelBuilder()
    quantization = scaled(0.00783961, -1)
    x = builder.input((16, 16), np.int8, quantization=quantization)
    moved = builder.tensor((16, 16), np.int8, quantization=quantization)
    same = builder.tensor((16, 16), np.bool_)
    builder.operator(
        "TRANSPOSE",
        [x, builder.constant(np.array([1, 0], np.int32))],
        [moved],
        NoOptions(),
        version=2,
    )
    builder.operator("EQUAL", [x, moved], [same], NoOptions(), version=2)
    builder.outputs(same)
    symmetric = np.minimum(*np.meshgrid(EVERY_INT8[::16], EVERY_INT8[::16])).astype(np.int8)
    assert delegated(builder.build(), [symmetric])[0].all()


# ---- Constants


def product(
    w: np.ndarray, scales: Quantization, *, activation_scale: float | None, bias: Any = None
) -> bytes:
    """FULLY_CONNECTED of [2, n] rows; without a scale the activations are float32."""
    builder = ModelBuilder()
    given = None if activation_scale is None else scaled(activation_scale, 4)
    dtype = np.float32 if given is None else np.int8
    result = None if given is None else scaled(0.05, -7)
    x = builder.input((2, w.shape[1]), dtype, quantization=given)
    y = builder.tensor((2, w.shape[0]), dtype, quantization=result)
    inputs = [x, builder.constant(w, quantization=scales), -1]
    if bias is not None:
        inputs[2] = builder.constant(bias[0], quantization=bias[1])
    options = FullyConnectedOptions()
    builder.operator(
        "FULLY_CONNECTED", [None if i < 0 else i for i in inputs], [y], options, version=5
    )
    builder.outputs(y)
    return builder.build()


RNG = np.random.default_rng(3)
WEIGHTS = RNG.integers(-127, 127, (5, 8), np.int8, endpoint=True)
CHANNELS = scaled([0.004, 0.01, 0.02, 0.0007, 0.003])
BIAS = RNG.integers(-9000, 9000, 5, np.int32), scaled(0.02 * CHANNELS.scale)


def test_constants_are_dequantized_before_the_program() -> None:
    content = product(WEIGHTS, CHANNELS, activation_scale=0.02, bias=BIAS)
    partition = lowered(content)
    values = sorted((partition.value(w) for w in partition.preparations), key=np.ndim)
    want = [affine.dequantize(*BIAS), affine.dequantize(WEIGHTS, CHANNELS)]
    for value, expected in zip(values, want, strict=True):
        assert value.dtype == np.float32
        np.testing.assert_array_equal(np.sort(value.ravel()), np.sort(expected.ravel()))


def test_weights_with_a_scale_per_channel_and_their_bias() -> None:
    x = RNG.integers(-128, 127, (2, 8), np.int8, endpoint=True)
    reals = dequantized(x, scaled(0.02, 4)) @ dequantized(WEIGHTS, CHANNELS).T + dequantized(*BIAS)
    content = product(WEIGHTS, CHANNELS, activation_scale=0.02, bias=BIAS)
    np.testing.assert_array_equal(delegated(content, [x])[0], stored(reals, scaled(0.05, -7)))


def test_dynamic_range_weights_meet_floats_that_nobody_quantizes() -> None:
    x = RNG.uniform(-1, 1, (2, 8)).astype(np.float32)
    content = product(WEIGHTS, CHANNELS, activation_scale=None)
    reals = x.astype(np.float64) @ dequantized(WEIGHTS, CHANNELS).T
    np.testing.assert_allclose(delegated(content, [x])[0], reals, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("zero_point", [0, 128])
def test_dynamic_range_kernels_read_uint8_weights_as_int8(zero_point: int) -> None:
    x = RNG.uniform(-1, 1, (2, 8)).astype(np.float32)
    content = product(WEIGHTS.view(np.uint8), scaled(0.01, zero_point), activation_scale=None)
    reals = x.astype(np.float64) @ (0.01 * WEIGHTS.astype(np.float64)).T
    np.testing.assert_allclose(delegated(content, [x])[0], reals, rtol=1e-5, atol=1e-6)


def test_integer_kernels_read_uint8_weights_as_they_are() -> None:
    builder = ModelBuilder()
    x = builder.input((1, 8), np.uint8, quantization=scaled(0.01, 100))
    w = builder.constant(WEIGHTS.view(np.uint8), quantization=scaled(0.01, 131))
    y = builder.tensor((1, 5), np.uint8, quantization=scaled(0.1, 9))
    builder.operator("FULLY_CONNECTED", [x, w, None], [y], FullyConnectedOptions())
    builder.outputs(y)
    q = RNG.integers(0, 255, (1, 8), np.uint8, endpoint=True)
    weights = dequantized(WEIGHTS.view(np.uint8), scaled(0.01, 131))
    reals = dequantized(q, scaled(0.01, 100)) @ weights.T
    want = stored(reals, scaled(0.1, 9), np.uint8)
    np.testing.assert_array_equal(delegated(builder.build(), [q])[0], want)


def test_recurrent_uint8_weights_are_int8_too() -> None:
    weights = [RNG.integers(-127, 127, shape, np.int8) for shape in ((4, 3), (4, 4))]
    args = [Arg(w.view(np.uint8), is_const=True, quantization=scaled(0.01)) for w in weights]
    x = RNG.uniform(-1, 1, (2, 3)).astype(np.float32)
    bias = RNG.uniform(-1, 1, 4).astype(np.float32)
    case = Case(
        "RNN",
        "uint8",
        [
            Arg(x),
            *args,
            Arg(bias, is_const=True),
            Arg(np.zeros((2, 4), np.float32), is_variable=True),
        ],
        RNNOptions(ActivationFunctionType.TANH),
    )
    want = np.tanh(x @ (0.01 * weights[0].astype(np.float64)).T + bias)
    np.testing.assert_allclose(delegated(case.model(), [x])[0], want, rtol=1e-5, atol=1e-6)


# ---- Operators that the view leaves nothing of, and borders


def quantized_inside() -> bytes:
    """float32 -> QUANTIZE -> ADD to itself -> DEQUANTIZE -> float32."""
    builder = ModelBuilder()
    x = builder.input((256,))
    q = builder.tensor((256,), np.int8, quantization=scaled(0.02, 5))
    t = builder.tensor((256,), np.int8, quantization=scaled(0.03, -5))
    y = builder.tensor((256,))
    builder.operator("QUANTIZE", [x], [q])
    builder.operator("ADD", [q, q], [t], AddOptions(), version=2)
    builder.operator("DEQUANTIZE", [t], [y], version=2)
    builder.outputs(y)
    return builder.build()


def test_quantize_and_dequantize_only_round() -> None:
    x = RNG.uniform(-3, 3, 256).astype(np.float32)
    first, second = scaled(0.02, 5), scaled(0.03, -5)
    real = dequantized(stored(x, first), first)
    want = affine.dequantize(stored(2 * real, second), second)
    np.testing.assert_allclose(delegated(quantized_inside(), [x])[0], want, rtol=1e-6)


def test_no_integers_are_left_inside_a_program() -> None:
    assert "i8[" not in str(traced(quantized_inside()))


def test_borders_are_converted_inside_the_program() -> None:
    content, _ = chain(0.01, 0.07, 0.05)
    program = traced(content)
    assert [a.dtype for a in program.in_avals] == [np.int8]
    assert [a.dtype for a in program.out_avals] == [np.int8]
    assert "f32[256]" in str(program)


def test_int16_borders() -> None:
    builder = ModelBuilder()
    x = builder.input((9,), np.int16, quantization=scaled(2e-4))
    y = builder.tensor((9,), np.int16, quantization=scaled(3e-4))
    builder.operator("ADD", [x, x], [y], AddOptions(pot_scale_int16=False), version=2)
    builder.outputs(y)
    q = np.array([-32768, -32767, -3, -1, 0, 1, 2, 20000, 32767], np.int16)
    want = stored(2 * dequantized(q, scaled(2e-4)), scaled(3e-4), np.int16)
    np.testing.assert_array_equal(delegated(builder.build(), [q])[0], want)


def test_a_loop_rounds_what_it_carries() -> None:
    """While i < 6: i + 1, x * 0.873, on a grid so coarse that the rounding decides."""
    builder, quantization = ModelBuilder(), scaled(0.5)
    i, x = (
        builder.constant(np.array(0, np.int32)),
        builder.input((256,), np.int8, quantization=quantization),
    )
    ends = builder.tensor((), np.int32), builder.tensor((256,), np.int8, quantization=quantization)
    builder.operator("WHILE", [i, x], list(ends), WhileOptions(1, 2))
    builder.outputs(ends[1])
    condition, body = builder.subgraph("condition"), builder.subgraph("body")
    i = condition.input((), np.int32)
    condition.input((256,), np.int8, quantization=quantization)
    less = condition.tensor((), np.bool_)
    condition.operator("LESS", [i, condition.constant(np.array(6, np.int32))], [less], NoOptions())
    condition.outputs(less)
    i, x = body.input((), np.int32), body.input((256,), np.int8, quantization=quantization)
    more = body.tensor((), np.int32)
    smaller = body.tensor((256,), np.int8, quantization=quantization)
    factor = body.constant(np.array([87], np.int8), quantization=scaled(0.01003))
    body.operator("ADD", [i, body.constant(np.array(1, np.int32))], [more], AddOptions())
    body.operator("MUL", [x, factor], [smaller], MulOptions(), version=2)
    body.outputs(more, smaller)
    content = builder.build()
    want = EVERY_INT8
    for _ in range(6):
        want = stored(dequantized(want, quantization) * 87 * 0.01003, quantization)
    unrounded = stored(dequantized(EVERY_INT8, quantization) * (87 * 0.01003) ** 6, quantization)
    got = delegated(content, [EVERY_INT8])[0]
    np.testing.assert_array_equal(got, want)
    assert np.abs(want.astype(int) - unrounded).max() > 1


# ---- Kernels that do other than the file says


def test_integer_svdf_applies_no_activation() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-128, 127, (2, 8), np.int8)

    def const(shape: tuple[int, ...], dtype: Any, extent: int, scale: float) -> Arg:
        array = rng.integers(-extent, extent, shape, dtype, endpoint=True)
        return Arg(array, is_const=True, quantization=scaled(scale))

    case = Case(
        "SVDF",
        "int8",
        [
            Arg(x, quantization=scaled(0.01, -12)),
            const((6, 8), np.int8, 127, 0.008),
            const((6, 4), np.int16, 20000, 4e-5),
            const((3,), np.int32, 1 << 20, 8e-9),
            Arg(np.zeros((2, 24), np.int16), is_variable=True, quantization=scaled(2e-4)),
        ],
        SVDFOptions(2, ActivationFunctionType.RELU),
        [np.int8],
        version=3,
        output_quantization=[scaled(0.012, -3)],
    )
    want = on_host(case.model(), [x])[0]
    assert (want < -4).any()  # below the zero point: RELU would have cut these
    got = delegated(case.model(), [x])[0]
    assert np.abs(got.astype(int) - want).max() <= 1


@pytest.mark.parametrize("zero_point", [0, -128])
def test_lstm_rounds_and_saturates_between_its_gates(zero_point: int) -> None:
    """Sums before a layer norm that leave their range, and a hidden output before a projection."""
    case = _normalized_lstm(sums=5e-6, hidden=(0.00106, zero_point))
    x = case.feeds()
    want = on_host(case.model(), x)[0]
    got = delegated(case.model(), x)[0]
    assert np.abs(got.astype(int) - want).max() <= 2


def _normalized_lstm(sums: float, hidden: tuple[float, int]) -> Case:
    rng = np.random.default_rng(5)
    cells, size = 3, 4

    def const(shape: tuple[int, ...], dtype: Any, extent: int, scale: float) -> Arg:
        array = rng.integers(-extent, extent, shape, dtype, endpoint=True)
        return Arg(array, is_const=True, quantization=scaled(scale))

    inputs = [
        Arg(rng.integers(-128, 127, (2, size), np.int8), quantization=scaled(0.0012, -128)),
        *(const((cells, size), np.int8, 127, 0.0046) for _ in range(4)),
        *(const((cells, cells), np.int8, 127, 0.0046) for _ in range(4)),
        *(None for _ in range(3)),
        *(const((cells,), np.int32, 30_000_000, 1.1e-8) for _ in range(4)),
        const((cells, cells), np.int8, 127, 0.0046),
        const((cells,), np.int32, 50_000, 4.9e-6),
        Arg(
            np.full((2, cells), -128, np.int8), is_variable=True, quantization=scaled(0.0018, -128)
        ),
        Arg(np.zeros((2, cells), np.int16), is_variable=True, quantization=scaled(2.0**-12)),
        *(const((cells,), np.int16, 32000, 1.1e-5) for _ in range(4)),
    ]
    empty = np.empty(0, np.int16)
    between = [Arg(empty, quantization=scaled(sums)) for _ in range(4)]
    return Case(
        "LSTM",
        "norm-projection",
        inputs,
        LSTMOptions(fused_activation_function=ActivationFunctionType.TANH, cell_clip=10.0),
        [np.int8],
        version=2,
        output_quantization=[scaled(0.0018, -128)],
        intermediates=[*between, Arg(empty.astype(np.int8), quantization=scaled(*hidden))],
    )


# ---- What is refused


def test_enable_quant_off_leaves_quantized_operators_with_that_reason() -> None:
    delegate = jd.JaxDelegate(enable_quant=False)
    interpreter = jd.Interpreter(
        model_content=quantized_inside(), experimental_delegates=[delegate]
    )
    x = RNG.uniform(-3, 3, 256).astype(np.float32)
    np.testing.assert_array_equal(
        run_once(interpreter, [x])[0], on_host(quantized_inside(), [x])[0]
    )
    assert {node.reason for node in delegate.report().left} == {
        "it is quantized, and the option enable_quant is off"
    }
    assert len(delegate.report().left) == 3


def by_channel(axis: int) -> Quantization:
    return Quantization(np.float32([0.1, 0.2, 0.3]), np.int64([0, 3, -5]), axis)


def channels(moved: str, dtype: type = np.int8) -> bytes:
    """QUANTIZE [2, 3] with three scales, an operator that moves the integers, DEQUANTIZE."""
    builder = ModelBuilder()
    q = builder.tensor((2, 3), dtype, quantization=by_channel(1))
    builder.operator("QUANTIZE", [builder.input((2, 3), name="x")], [q])
    shape, axis, argument = {
        "": ((2, 3), 1, None),
        "TRANSPOSE": ((3, 2), 0, [1, 0]),
        "RESHAPE": ((2, 1, 3), 2, [2, 1, 3]),
    }[moved]
    if moved:
        source, q = q, builder.tensor(shape, dtype, quantization=by_channel(axis))
        builder.operator(moved, [source, builder.constant(np.int32(argument))], [q])
    y = builder.tensor(shape, name="y")
    builder.operator("DEQUANTIZE", [q], [y])
    builder.outputs(y)
    return builder.build()


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
@pytest.mark.parametrize("moved", ["", "TRANSPOSE", "RESHAPE"])
@pytest.mark.parametrize("quant_mode", ["auto", "float_view", "integer"])
def test_scales_per_channel_at_run_time(quant_mode: str, moved: str, dtype: type) -> None:
    """They are right for QUANTIZE, DEQUANTIZE, and what moves integers between them."""
    content, x = channels(moved, dtype), np.random.default_rng(0).uniform(-20, 20, (2, 3))
    x = x.astype(np.float32)
    want = run_once(jd.Interpreter(model_content=content), [x])[0]
    delegate = jd.JaxDelegate(quant_mode=quant_mode, min_gain=0, require_full_delegation=True)
    interpreter = jd.Interpreter(model_content=content, experimental_delegates=[delegate])
    model = jd.load(content, quant_mode=quant_mode)
    apply, params = model.function()
    for got in (run_once(interpreter, [x])[0], model(x)[0], apply(params, x)[0]):
        np.testing.assert_array_equal(np.asarray(got), want)


def test_the_gradient_of_scales_per_channel_passes_through() -> None:
    apply, params = jd.load(channels("")).function()
    x = np.float32([[12, 12, 12], [13, -27, 40]])
    got = jax.grad(lambda x: apply(params, x)[0].sum())(x)
    np.testing.assert_array_equal(got, [[1, 1, 1], [0, 0, 0]])


def added_channels(builder: ModelBuilder) -> int:
    x = builder.input((2, 4), np.int8, "x", quantization=scaled([0.1, 0.2]))
    y = builder.tensor((2, 4), np.int8, quantization=scaled([0.1, 0.2]))
    builder.operator("ADD", [x, x], [y], AddOptions(), version=2)
    return y


def multiplied_channels(builder: ModelBuilder) -> int:
    """The integers of a constant bias of int64 are not those that floats stand for."""
    x = builder.input((2, 4), np.int16, "data", quantization=scaled(0.1))
    w = builder.input((3, 4), np.int8, "x", quantization=scaled([0.1, 0.2, 0.3]))
    bias = builder.constant(np.int64([1, 2, 3]), quantization=scaled([0.01, 0.02, 0.03]))
    y = builder.tensor((2, 3), np.int16, quantization=scaled(0.1))
    builder.operator("FULLY_CONNECTED", [x, w, bias], [y], FullyConnectedOptions(), version=9)
    return y


@pytest.mark.parametrize("operator", [added_channels, multiplied_channels])
def test_scales_per_channel_at_run_time_of_other_operators_are_refused(
    operator: Callable[[ModelBuilder], int],
) -> None:
    builder = ModelBuilder()
    builder.outputs(operator(builder))
    delegate = jd.JaxDelegate(quant_mode="float_view")
    jd.Interpreter(model_content=builder.build(), experimental_delegates=[delegate])
    (node,) = delegate.report().left
    assert node.reason is not None
    assert "'x' is quantized per channel, but not constant" in node.reason


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("name", ["EMBEDDING_LOOKUP", "FULLY_CONNECTED", "GATHER"])
def test_a_verdict_dequantizes_no_large_weights(
    name: str, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of a language model took seconds and five times its memory."""
    table = Arg(np.ones((512, 256), np.int8), is_const=True, quantization=scaled(0.1))
    x, ids = Arg(np.ones((3, 256), np.float32)), Arg(np.int32([3, 5]))
    inputs = {
        "EMBEDDING_LOOKUP": [ids, table],
        "FULLY_CONNECTED": [x, table, None],
        "GATHER": [table, ids],
    }[name]
    case = Case(name, "large", inputs)
    op = case.op(LoweringContext(platform=platform, quant_mode="float_view"))
    run = affine.dequantize

    def of_few(values: np.ndarray, quantization: Quantization) -> np.ndarray:
        assert values.size < table.value.size
        return run(values, quantization)

    monkeypatch.setattr(affine, "dequantize", of_few)
    operator = Operator(
        index=0,
        name=name,
        builtin_code=0,
        inputs=tuple(range(len(inputs))),
        outputs=(9,),
        options=op.options,
    )
    outputs = (dataclasses.replace(op.outputs[0], dtype=np.dtype(np.float32)),)
    if name == "GATHER":  # it keeps the scale
        outputs = (dataclasses.replace(op.outputs[0], quantization=scaled(0.1)),)
    assert legality.why_not(op.context, operator, op.inputs, outputs) is None
