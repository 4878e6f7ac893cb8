"""Programs that store tensors in reduced precision: the tensors, and results of whole networks."""

import dataclasses

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.compile.precision_policy import cpu_policy, device_policy, emulated_policy
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.lowering.mixed_precision import (
    is_as_declared,
    moves_reduced,
    reduced_tensors,
    unfit_constants,
)
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    AddOptions,
    Conv2DOptions,
    MulOptions,
    NoOptions,
    Padding,
    ReducerOptions,
    SequenceRNNOptions,
    SoftmaxOptions,
    WhileOptions,
)
from jaxdelegate.op_lowering.precision import FLOAT16, PrecisionPolicy
from jaxdelegate.op_lowering.rule import KernelSet
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import run_once
from tests.support.quantized import scaled

FLOAT16_ALGORITHMS, BFLOAT16_ALGORITHMS = emulated_policy("float16"), emulated_policy("bfloat16")
CPU_ALGORITHMS = cpu_policy("bfloat16", frozenset(["avx512_bf16"]))


def run(
    content: bytes, policy: PrecisionPolicy, *arrays: np.ndarray, **options: object
) -> list[np.ndarray]:
    return run_once(interpreter(content, policy, **options), arrays)


def interpreter(content: bytes, policy: PrecisionPolicy, **options: object) -> jd.Interpreter:
    """A GPU's policy on the CPU: programs follow the context of the delegate's compiler."""
    delegate = jd.JaxDelegate(platform="cpu", require_full_delegation=True, **options)
    delegate.compiler.context = dataclasses.replace(delegate.compiler.context, precision=policy)
    return jd.Interpreter(model_content=content, experimental_delegates=[delegate])


def per_tensor(scale: float, zero_point: int) -> Quantization:
    return scaled(scale, zero_point)


def of_largest(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got.astype(np.float64) - want).max() / np.abs(want).max())


def chain(*names: str, shape: tuple[int, ...] = (2, 8)) -> bytes:
    """A chain of operators on x; ADD adds a tensor to itself, SUM and MEAN keep dimensions."""
    builder = ModelBuilder()
    last = builder.input(shape, np.float32, "x")
    for name in names:
        inputs, options = [last], None
        if name in ("ADD", "MUL"):
            inputs = [last, last]
        if name in ("SUM", "MEAN"):
            inputs.append(builder.constant(np.array([1], np.int32)))
            options, shape = ReducerOptions(keep_dims=True), (shape[0], 1)
        if name == "RESHAPE":
            shape = tuple(reversed(shape))
            inputs.append(builder.constant(np.array(shape, np.int32)))
        last = builder.tensor(shape, name=f"{len(names)}")
        builder.operator(name, inputs, [last], options)
    builder.outputs(last)
    return builder.build()


def reduced_steps(content: bytes, policy: PrecisionPolicy = FLOAT16_ALGORITHMS) -> list[str]:
    """The operators whose result is held in reduced precision."""
    subgraph = read_model(content).subgraphs[0]
    specs = {t.index: t.spec() for t in subgraph.tensors}
    passing = {*subgraph.inputs, *subgraph.outputs}
    reduced = reduced_tensors(policy, subgraph.operators, specs, {}, passing)
    assert set(reduced.values()) <= {policy.storage}
    return [o.name for o in subgraph.operators if o.outputs[0] in reduced]


@pytest.mark.parametrize(
    ("names", "reduced"),
    [
        (["ADD", "MUL"], ["ADD"]),
        (["TANH", "RELU", "ADD"], ["TANH", "RELU"]),
        (["RELU", "ADD"], []),
        (["ADD", "SUM", "ADD"], ["ADD"]),
        (["ADD", "SUM", "RELU", "ADD", "ADD"], ["ADD", "ADD"]),
        (["ADD", "RESHAPE", "SOFTMAX"], []),
        (["ADD", "RSQRT", "ADD"], []),
        (["ADD", "ADD", "RESHAPE"], ["ADD"]),
    ],
)
def test_what_is_stored_reduced(names: list[str], reduced: list[str]) -> None:
    assert reduced_steps(chain(*names)) == reduced


def test_operators_in_float32_are_not_stored_reduced() -> None:
    content = chain("ADD", "MUL", "TANH")
    kept = dataclasses.replace(FLOAT16_ALGORITHMS, float32_operators=(0,))
    assert (reduced_steps(content), reduced_steps(content, kept)) == (["ADD", "MUL"], ["MUL"])
    assert reduced_steps(content, PrecisionPolicy()) == []


def test_a_result_between_operators_is_rounded_and_one_that_leaves_is_not() -> None:
    x = np.full((1, 8), 1 + 2**-13, np.float32)
    (one,) = run(chain("ADD", shape=(1, 8)), FLOAT16_ALGORITHMS, x)
    (two,) = run(chain("ADD", "ADD", shape=(1, 8)), FLOAT16_ALGORITHMS, x)
    np.testing.assert_array_equal(one, 2 * x)
    np.testing.assert_array_equal(two, np.full_like(x, 4))


def test_finite_values_never_become_nan() -> None:
    """80000 between two operators: infinity minus infinity would be NaN."""
    builder = ModelBuilder()
    x = builder.input((1, 4), np.float32, "x")
    big, zero, y = (builder.tensor((1, 4)) for _ in range(3))
    builder.operator("ADD", [x, x], [big], AddOptions())
    builder.operator("SUB", [big, big], [zero])
    builder.operator("ADD", [zero, big], [y], AddOptions())
    builder.outputs(y)
    x = np.full((1, 4), 40000, np.float32)
    (got,) = run(builder.build(), FLOAT16_ALGORITHMS, x)
    np.testing.assert_array_equal(got, np.full((1, 4), 65504))


def test_what_an_operator_only_moves_is_reduced_already() -> None:
    content = chain("TANH", "RESHAPE", "ADD")
    subgraph = read_model(content).subgraphs[0]
    specs = {t.index: t.spec() for t in subgraph.tensors}
    tanh, reshape, add = subgraph.operators
    reduced = dict.fromkeys((*tanh.outputs, *reshape.outputs), np.dtype(np.float16))
    assert [moves_reduced(o, specs, reduced) for o in (tanh, reshape, add)] == [False, True, False]
    assert not moves_reduced(reshape, specs, {})


def test_a_sum_beyond_float16_is_exact() -> None:
    x = np.full((1, 1000), 100, np.float32)
    (y,) = run(chain("SUM", "ADD", shape=(1, 1000)), FLOAT16_ALGORITHMS, x)
    np.testing.assert_array_equal(y, [[2e5]])


def test_mobilenet_in_shorter_dtypes() -> None:
    content = mobilenet_v1(size=32, width=0.5, classes=10)
    x = np.random.default_rng(0).uniform(-1, 1, (1, 32, 32, 3)).astype(np.float32)
    (want,) = run(content, PrecisionPolicy(), x)
    bounds = {
        FLOAT16_ALGORITHMS: (1e-6, 2e-3),
        BFLOAT16_ALGORITHMS: (1e-5, 1e-2),
        CPU_ALGORITHMS: (1e-6, 1e-2),
    }
    for policy, (least, most) in bounds.items():
        (got,) = run(content, policy, x)
        assert got.dtype == np.float32
        assert least < of_largest(got, want) < most  # shorter, and right


@pytest.mark.parametrize(
    "dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.exhaustive)]
)
def test_mobilenet_as_a_gpu_runs_it(dtype: str) -> None:
    """On the CPU, with a GPU's convolutions, which have results in reduced precision."""
    content = mobilenet_v1(size=32, width=0.5, classes=10)
    x = np.random.default_rng(0).uniform(-1, 1, (1, 32, 32, 3)).astype(np.float32)
    (want,) = run(content, PrecisionPolicy(), x)
    on_gpu = {"platform": "gpu", "precision": device_policy(dtype), "kernels": KernelSet()}
    delegate = jd.JaxDelegate(platform="cpu", require_full_delegation=True)
    delegate.compiler.context = dataclasses.replace(delegate.compiler.context, **on_gpu)
    (got,) = run_once(jd.Interpreter(model_content=content, experimental_delegates=[delegate]), [x])
    assert got.dtype == np.float32
    assert 1e-6 < of_largest(got, want) < 1e-2


def test_a_loop_computes_reduced_and_carries_float32() -> None:
    builder = ModelBuilder()
    count = builder.constant(np.array(0, np.int32), "zero")
    x = builder.input((1, 8), np.float32, "x")
    ends = [builder.tensor((), np.int32), builder.tensor((1, 8), name="y")]
    condition, body = builder.subgraph("condition"), builder.subgraph("body")
    i, _ = condition.input((), np.int32), condition.input((1, 8), np.float32)
    less = condition.tensor((), np.bool_)
    condition.operator("LESS", [i, condition.constant(np.array(3, np.int32))], [less], NoOptions())
    condition.outputs(less)
    i, v = body.input((), np.int32), body.input((1, 8), np.float32)
    ahead, double, more = body.tensor((), np.int32), body.tensor((1, 8)), body.tensor((1, 8))
    body.operator("ADD", [i, body.constant(np.array(1, np.int32))], [ahead], AddOptions())
    body.operator("ADD", [v, v], [double], AddOptions())
    body.operator("ADD", [double, v], [more], AddOptions())
    body.outputs(ahead, more)
    builder.operator("WHILE", [count, x], ends, WhileOptions(1, 2))
    builder.outputs(ends[1])
    content = builder.build()
    x = np.random.default_rng(1).uniform(1, 2, (1, 8)).astype(np.float32)
    (got,) = run(content, FLOAT16_ALGORITHMS, x)
    want = x
    for _ in range(3):
        want = (want + want).astype(np.float16).astype(np.float32) + want
    np.testing.assert_array_equal(got, want)
    kept = dataclasses.replace(FLOAT16_ALGORITHMS, float32_operators=(0,))
    np.testing.assert_allclose(run(content, kept, x)[0], 27 * x, rtol=1e-6)


def test_states_keep_the_files_dtype() -> None:
    rng = np.random.default_rng(2)
    builder = ModelBuilder()
    x = builder.input((2, 3, 4), np.float32, "x")
    w, recurrent = (rng.normal(size=s).astype(np.float32) for s in ((5, 4), (5, 5)))
    bias = builder.constant(np.zeros(5, np.float32))
    state = builder.tensor((2, 5), name="state", is_variable=True)
    y, z = builder.tensor((2, 3, 5)), builder.tensor((2, 3, 5))
    options = SequenceRNNOptions(
        time_major=False, fused_activation_function=ActivationFunctionType.TANH
    )
    inputs = [x, builder.constant(w), builder.constant(recurrent), bias, state]
    builder.operator("UNIDIRECTIONAL_SEQUENCE_RNN", inputs, [y], options)
    builder.operator("ADD", [y, y], [z], AddOptions())
    builder.outputs(z)
    content = builder.build()
    arrays = [rng.uniform(-1, 1, (2, 3, 4)).astype(np.float32)]
    exact, reduced = (
        interpreter(content, PrecisionPolicy()),
        interpreter(content, FLOAT16_ALGORITHMS),
    )
    for _ in range(2):
        want, got = run_once(exact, arrays)[0], run_once(reduced, arrays)[0]
        assert 0 < of_largest(got, want) < 5e-3
    assert reduced.get_tensor(state).dtype == np.float32


@pytest.mark.parametrize("quant_mode", ["float_view", "integer"])
def test_quantized_tensors_keep_their_integers(quant_mode: str) -> None:
    rng = np.random.default_rng(3)
    q = per_tensor(0.05, 3)
    builder = ModelBuilder()
    x = builder.input((1, 6, 6, 4), np.int8, "x", quantization=q)
    weights = rng.integers(-127, 128, (8, 3, 3, 4), np.int8)
    w = builder.constant(weights, quantization=per_tensor(0.01, 0))
    bias = builder.constant(np.zeros(8, np.int32), quantization=per_tensor(0.0005, 0))
    y = builder.tensor((1, 6, 6, 8), np.int8, quantization=q)
    z = builder.tensor((1, 6, 6, 8), np.int8, quantization=q)
    builder.operator("CONV_2D", [x, w, bias], [y], Conv2DOptions(Padding.SAME, 1, 1))
    builder.operator("RELU", [y], [z])
    builder.outputs(z)
    arrays = rng.integers(-128, 128, (1, 6, 6, 4), np.int8)
    want = run(builder.build(), PrecisionPolicy(), arrays, quant_mode=quant_mode)[0]
    # Two operands rounded by half a step each, at the largest sum that there can be, in steps.
    most = 131 * 0.01 * np.abs(weights.astype(int)).sum((1, 2, 3)).max()
    for policy, half_step in ((FLOAT16_ALGORITHMS, 2**-12), (BFLOAT16_ALGORITHMS, 2**-9)):
        got = run(builder.build(), policy, arrays, quant_mode=quant_mode)[0]
        allowed = 0 if quant_mode == "integer" else 1 + 2 * half_step * most
        assert np.abs(got.astype(int) - want).max() <= allowed


def test_constants_that_do_not_fit_are_named() -> None:
    builder = ModelBuilder()
    x = builder.input((1, 8), np.float32, "x")
    y, z = builder.tensor((1, 8)), builder.tensor((64, 256, 8))
    tiny = builder.constant(np.full((8, 8), 1e-7, np.float32), "tiny")
    builder.operator("FULLY_CONNECTED", [x, tiny, -1], [y])
    builder.operator(
        "MUL",
        [y, builder.constant(np.full((64, 256, 1), 1e7, np.float32), "huge")],
        [z],
        MulOptions(),
    )
    builder.operator(
        "SOFTMAX", [z], [end := builder.tensor((64, 256, 8))], SoftmaxOptions(beta=1.0)
    )
    builder.outputs(z, end)
    content = builder.build()
    subgraph = read_model(content).subgraphs[0]
    specs = {t.index: t.spec() for t in subgraph.tensors}
    found = unfit_constants(FLOAT16_ALGORITHMS, subgraph.operators, specs)
    assert {specs[i].name for i in found} == {"tiny", "huge"}
    x = np.linspace(-1, 1, 8, dtype=np.float32)[None] + 0.3
    want, got = run(content, PrecisionPolicy(), x)[0], run(content, FLOAT16_ALGORITHMS, x)[0]
    assert of_largest(got, want) < 1e-3
    assert unfit_constants(BFLOAT16_ALGORITHMS, subgraph.operators, specs) == {}


@pytest.mark.parametrize("may_be_reduced", [False, True])
def test_only_some_operators_end_reduced(may_be_reduced: bool) -> None:
    wide, reduced = np.zeros((2, 3), np.float32), np.zeros((2, 3), FLOAT16)
    assert is_as_declared(wide, wide, may_be_reduced=may_be_reduced)
    assert is_as_declared(reduced, wide, may_be_reduced=may_be_reduced) == may_be_reduced
    assert not is_as_declared(reduced[:1], wide, may_be_reduced=may_be_reduced)
    assert not is_as_declared(wide, reduced, may_be_reduced=may_be_reduced)


def test_large_constants_take_half_the_memory() -> None:
    builder = ModelBuilder()
    x = builder.input((1, 256), np.float32, "x")
    y, z = builder.tensor((1, 256)), builder.tensor((128, 256))
    rng = np.random.default_rng(4)
    w = builder.constant(rng.normal(size=(256, 256)).astype(np.float32))
    b = builder.constant(rng.normal(size=(128, 256)).astype(np.float32))
    builder.operator("FULLY_CONNECTED", [x, w, -1], [y])
    builder.operator("ADD", [y, b], [z], AddOptions())
    builder.outputs(z)
    delegate = jd.JaxDelegate(platform="cpu")
    delegate.compiler.context = dataclasses.replace(
        delegate.compiler.context, precision=FLOAT16_ALGORITHMS
    )
    interpreter = jd.Interpreter(model_content=builder.build(), experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    (partition,) = delegate.partitions()
    assert [a.dtype for a in partition.program.weights] == [FLOAT16, FLOAT16]


def test_a_constant_that_stays_float32_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    builder = ModelBuilder()
    x, y = builder.input((1, 8), np.float32, "x"), builder.tensor((1, 8))
    tiny = builder.constant(np.full((8, 8), 1e-7, np.float32), "tiny")
    builder.operator("FULLY_CONNECTED", [x, tiny, -1], [y])
    builder.outputs(y)
    with caplog.at_level("DEBUG", "jaxdelegate"):
        run(builder.build(), FLOAT16_ALGORITHMS, np.ones((1, 8), np.float32))
    assert "'tiny' stays float32: values of 1e-07 and less are below" in caplog.text
