"""check_precision and compute_dtype="auto": which operators overflow and need float32."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.compile.precision_policy import emulated_policy
from jaxdelegate.lowering.error_probe import seeded_values
from jaxdelegate.op_lowering.options import (
    AddOptions,
    Conv2DOptions,
    CustomOptions,
    MulOptions,
    Padding,
    ReducerOptions,
    SoftmaxOptions,
)
from jaxdelegate.op_lowering.precision import PrecisionPolicy
from jaxdelegate.reference.kernel import Kernel, same_shape
from jaxdelegate.report.precision import OperatorPrecision, PrecisionReport
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import random_inputs, run_once
from tests.support.combinations import one_of


def scaled(builder: ModelBuilder, x: int, factor: float, shape: Sequence[int]) -> int:
    y = builder.tensor(shape)
    builder.operator("MUL", [x, builder.constant(np.float32([factor]))], [y], MulOptions())
    return y


def summed() -> bytes:
    """SUM to 1e5 times input, doubled, then scaled back: only the doubling overflows float16."""
    builder = ModelBuilder()
    x = builder.input((1, 1000), np.float32, "x")
    axis = builder.constant(np.array([1], np.int32))
    total, double = builder.tensor((1, 1), name="sum"), builder.tensor((1, 1), name="double")
    builder.operator("SUM", [x, axis], [total], ReducerOptions(keep_dims=True))
    builder.operator("ADD", [total, total], [double], AddOptions())
    builder.outputs(scaled(builder, total, 1e-3, (1, 1)), scaled(builder, double, 1e-3, (1, 1)))
    builder.signature("serving_default", {"numbers": x}, {})
    return builder.build()


def convolved() -> bytes:
    """A convolution with results far beyond 65504 for inputs in [-1, 1], scaled back after it."""
    rng = np.random.default_rng(0)
    builder = ModelBuilder()
    x = builder.input((1, 4, 4, 8), np.float32, "image")
    w = builder.constant(rng.uniform(-6e4, 6e4, (8, 3, 3, 8)).astype(np.float32))
    y, z = builder.tensor((1, 4, 4, 8), name="large"), builder.tensor((1, 4, 4, 8))
    options = Conv2DOptions(Padding.SAME, 1, 1)
    builder.operator("CONV_2D", [x, w, -1], [y], options)
    medium = builder.tensor((1, 4, 4, 8))
    builder.operator("MUL", [y, scaled(builder, x, 1e-2, (1, 4, 4, 8))], [medium], MulOptions())
    small = scaled(builder, medium, 1e-3, (1, 4, 4, 8))
    builder.operator("SOFTMAX", [small], [z], SoftmaxOptions(beta=1.0))
    builder.outputs(z)
    return builder.build()


NUMBERS = np.full((1, 1000), 100, np.float32)


def test_a_sum_beyond_float16_is_named_and_what_overflows_after_it() -> None:
    report = jd.check_precision(summed(), [NUMBERS], "float16")
    assert isinstance(report, jd.PrecisionReport)
    assert [(o.op, o.is_reduced) for o in report.out_of_range] == [("SUM", False), ("ADD", True)]
    assert report.first is not None
    assert (report.first.index, report.first.op, report.first.tensor) == (1, "ADD", "double")
    assert report.first.error == pytest.approx((2e5 - 65504) / 2e5, rel=1e-3)
    assert report.float32_operators == (1,)
    assert report.options == {"compute_dtype": "float16", "float32_operators": "1"}


@pytest.mark.parametrize("inputs", [[NUMBERS], {"x": NUMBERS}, {"numbers": NUMBERS}])
def test_inputs_in_order_or_by_name(inputs: object) -> None:
    assert not jd.check_precision(summed(), inputs, "float16").is_safe  # type: ignore[arg-type]


def test_a_loaded_model_can_be_checked() -> None:
    report = jd.check_precision(jd.load(summed()), [NUMBERS], "float16")
    assert report.float32_operators == (1,)


def test_a_model_within_the_range_is_safe() -> None:
    report = jd.check_precision(summed(), [NUMBERS / 100], "float16")
    assert (report.is_safe, report.first, report.float32_operators) == (True, None, ())
    assert str(report).startswith(
        "float16: all operators within tolerance (error bound 0.01); outputs"
    )


def test_small_errors_that_add_up_are_out_of_tolerance() -> None:
    """The exit code is 2, so the text must not say that all is well."""
    operators = [
        OperatorPrecision(n, "ADD", f"t{n}", 1.0, error, 0.004, 0, 0, True, n == 2)
        for n, error in enumerate((0.004, 0.008, 0.012))
    ]
    report = PrecisionReport("float16", 0.01, tuple(operators))
    assert not report.is_safe
    assert str(report).startswith("float16: the outputs are out of tolerance (error bound 0.01): ")
    assert "within tolerance" not in str(report)


def test_the_range_of_bfloat16_suffices() -> None:
    report = jd.check_precision(summed(), [NUMBERS], "bfloat16")
    assert report.is_safe
    assert 0 < max(o.error for o in report.operators) < 5e-3


def test_a_convolution_that_overflows_is_named() -> None:
    report = jd.check_precision(convolved(), None, "float16")
    assert report.first is not None
    assert (report.first.op, report.float32_operators) == ("CONV_2D", (0,))
    assert "#0 CONV_2D 'large'" in str(report)
    assert report.first.own_lost > 0
    notes = f"beyond float16's 65504; {report.first.lost} values NaN or infinite; must stay"
    assert notes in " ".join(str(report).split())


def test_of_operators_after_an_infinity_only_the_cause_is_kept_in_float32() -> None:
    """SOFTMAX of infinities is NaN, but not if the convolution stays float32."""
    report = jd.check_precision(convolved(), None, "float16")
    assert report.operators[-1].op == "SOFTMAX"
    assert report.operators[-1].lost > 0
    assert report.float32_operators == (0,)


def just_beyond() -> bytes:
    """A convolution that returns 65536, which is infinite in float16, minus itself."""
    builder = ModelBuilder()
    x = builder.input((1, 1, 1, 2), np.float32, "x")
    w = builder.constant(np.full((1, 1, 1, 2), 32768, np.float32))
    y, z = builder.tensor((1, 1, 1, 1)), builder.tensor((1, 1, 1, 1))
    builder.operator("CONV_2D", [x, w, -1], [y], Conv2DOptions(Padding.SAME, 1, 1))
    builder.operator("SUB", [y, y], [z])
    builder.outputs(z)
    return builder.build()


def test_a_convolution_just_beyond_the_range_is_named() -> None:
    """It becomes infinite, as in cuDNN: 65504 would be within the error bound."""
    report = jd.check_precision(just_beyond(), [np.ones((1, 1, 1, 2), np.float32)], "float16")
    assert report.float32_operators == (0,)
    assert [(o.lost, o.own_lost) for o in report.operators] == [(1, 1), (1, 0)]


def test_the_error_bound_decides() -> None:
    content = summed()
    assert jd.check_precision(content, [NUMBERS], "bfloat16", error_bound=1e-2).is_safe
    report = jd.check_precision(content, [NUMBERS], "bfloat16", error_bound=1e-6)
    assert not report.is_safe
    assert report.float32_operators


def test_small_errors_that_add_up_are_reported() -> None:
    """No operator is wrong alone, so float32 for one would not help, but the output is wrong."""
    builder = ModelBuilder()
    x = last = builder.input((1, 16), np.float32, "x")
    for _ in range(6):
        last = scaled(builder, last, 1.1, (1, 16))
        y = builder.tensor((1, 16))
        builder.operator("ADD", [last, x], [y], AddOptions())
        last = y
    builder.outputs(last)
    arrays = [np.random.default_rng(1).uniform(0.5, 1, (1, 16)).astype(np.float32)]
    report = jd.check_precision(builder.build(), arrays, "bfloat16", error_bound=2**-8)
    assert all(o.own_error <= 2**-8 for o in report.operators)
    assert (report.first, report.float32_operators, report.is_safe) == (None, (), False)
    assert report.output_error > 2**-8
    assert "small errors add up.\nThe largest own errors: #" in str(report)
    assert "--jax_float32_operators=" in report.next_step()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"compute_dtype": "float32"}, "compute_dtype: expected 'float16', 'bfloat16' or 'auto'"),
        ({"inputs": []}, "the model has 1 inputs, got 0"),
        ({"inputs": {"y": NUMBERS}}, r"inputs \['y'\] are not the model's: \['numbers'\]"),
        ({"error_bound": 0.0}, "error_bound: expected a positive number, got 0.0"),
        ({"options": {"compute": 1}}, "unknown option 'compute'"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(jd.JaxDelegateError, match=message):
        jd.check_precision(summed(), **arguments)  # type: ignore[arg-type]


def test_operators_on_the_host_and_partitions_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxdelegate.reference import KERNELS

    def double(_o: object, _i: object, _s: object, x: np.ndarray) -> tuple[np.ndarray]:
        return (2 * x,)

    monkeypatch.setitem(KERNELS, "HostOnlyDouble", Kernel(double, same_shape))
    builder = ModelBuilder()
    last = builder.input((1, 4), np.float32, "x")
    for name in ("ADD", "ADD", "HostOnlyDouble", "ADD", "MUL", "MUL"):
        y = builder.tensor((1, 4))
        host = name == "HostOnlyDouble"
        other = [] if host else [builder.constant(np.float32([1e-6]))] if name == "MUL" else [last]
        builder.operator(name, [last, *other], [y], CustomOptions() if host else None)
        last = y
    builder.outputs(last)
    report = jd.check_precision(builder.build(), [np.full((1, 4), 9000, np.float32)], "float16")
    assert [o.index for o in report.operators] == [0, 1, 3, 4, 5]
    assert 3 in report.float32_operators  # 144000, inside its partition
    assert 1 not in report.float32_operators


# ---- compute_dtype="auto"


def with_policy(policy: PrecisionPolicy, **options: object) -> jd.JaxDelegate:
    delegate = jd.JaxDelegate(platform="cpu", **options)
    delegate.compiler.context = delegate.compiler.context.on_gpu(policy)
    return delegate


@pytest.mark.parametrize("build", [summed, convolved])
def test_auto_is_correct_where_float16_is_not(build: object) -> None:
    content = build()  # type: ignore[operator]
    graph = jd.load(content).graph.subgraphs[0]
    specs = [graph.tensors[i].spec() for i in graph.inputs]
    arrays = [NUMBERS] if build is summed else seeded_values(specs, seed=7)

    def outputs(delegate: jd.JaxDelegate) -> list[np.ndarray]:
        return run_once(
            jd.Interpreter(model_content=content, experimental_delegates=[delegate]), arrays
        )

    want = outputs(jd.JaxDelegate(platform="cpu"))
    automatic = outputs(jd.JaxDelegate(compute_dtype="auto"))
    for g, w in zip(automatic, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-2)
    float16 = emulated_policy("float16")
    if build is convolved:  # with random inputs; SUM and ADD overflow only for large ones
        reduced = outputs(with_policy(float16))
        guarded = outputs(with_policy(float16, compute_dtype="auto"))
        assert not np.allclose(reduced[0], want[0], atol=1e-2)
        np.testing.assert_allclose(guarded[0], want[0], rtol=1e-2, atol=1e-4)


def test_the_reports_operators_make_float16_correct() -> None:
    content = summed()
    report = jd.check_precision(content, [NUMBERS], "float16")
    policy = dataclasses.replace(
        emulated_policy("float16"), float32_operators=report.float32_operators
    )
    for chosen, right in ((policy, True), (emulated_policy("float16"), False)):
        delegate = with_policy(chosen, **report.options)
        interpreter = jd.Interpreter(model_content=content, experimental_delegates=[delegate])
        got = run_once(interpreter, [NUMBERS])[1]
        assert np.allclose(got, [[200]], rtol=1e-3) == right


def test_the_check_does_not_change_states() -> None:
    """The checked run is one step of the model, not three."""
    builder = ModelBuilder()
    x, y = builder.input((1, 2), np.float32, "x"), builder.tensor((1, 2))
    rng = np.random.default_rng(3)
    w, r = (builder.constant(rng.normal(size=s).astype(np.float32)) for s in ((2, 2), (2, 2)))
    state = builder.tensor((1, 2), name="state", is_variable=True)
    bias = builder.constant(np.zeros(2, np.float32))
    builder.operator("RNN", [x, w, r, bias, state], [y])
    builder.outputs(y)
    content, arrays = builder.build(), [np.float32([[1, -1]])]
    plain = jd.Interpreter(model_content=content, experimental_delegates=[jd.JaxDelegate()])
    auto = jd.Interpreter(
        model_content=content,
        experimental_delegates=[with_policy(emulated_policy("float16"), compute_dtype="auto")],
    )
    for _ in range(3):
        np.testing.assert_allclose(run_once(auto, arrays)[0], run_once(plain, arrays)[0], rtol=1e-2)
    assert jd.check_precision(content, arrays, "float16").is_safe


def test_auto_needs_no_check_where_nothing_is_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxdelegate.lowering import error_probe

    def fail(*_: object) -> None:
        raise AssertionError("checked")

    monkeypatch.setattr(error_probe, "probe", fail)
    delegate = with_policy(PrecisionPolicy(), compute_dtype="auto")
    interpreter = jd.Interpreter(model_content=summed(), experimental_delegates=[delegate])
    assert run_once(interpreter, [NUMBERS])[0] == pytest.approx(100)


def test_a_dtype_that_the_platform_does_not_use_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "jaxdelegate"):
        jd.JaxDelegate(platform="cpu", compute_dtype="float16")
    assert "compute_dtype='float16' has no effect: this CPU computes in float32" in caplog.text


# ---- real models, if they are next to the checkout

MODELS = Path(__file__).parents[2].parent / "shared" / "models"
MANIFEST = json.loads((MODELS / "manifest.json").read_text()) if MODELS.exists() else []
LARGE = 1 << 20  # bytes: the larger ones take a minute and more
LONG = {"networks/terryky__face_detection_front.tflite"}  # smaller ones have its operators


def _takes_long(file: str) -> bool:
    return file in LONG or (MODELS / file).stat().st_size > LARGE


FLOAT_NETWORKS = sorted(
    m["file"]
    for m in MANIFEST
    if m["kind"] in ("float", "fp16w")
    and m["litert_runs"]
    and m["file"].split("/")[0] in ("networks", "zoo")
)


@pytest.mark.slow
@pytest.mark.skipif(not MANIFEST, reason="the real models are not here")
@pytest.mark.parametrize(
    "file",
    [
        *one_of(3, (file for file in FLOAT_NETWORKS if not _takes_long(file))),
        *(
            pytest.param(f, marks=pytest.mark.exhaustive)
            for f in filter(_takes_long, FLOAT_NETWORKS)
        ),
    ],
)
def test_real_models_stay_finite_in_float16(file: str) -> None:
    path = MODELS / file
    arrays = random_inputs(jd.Interpreter(path).get_input_details())
    want, got = (
        run_once(jd.Interpreter(path, experimental_delegates=[with_policy(policy)]), arrays)
        for policy in (PrecisionPolicy(), emulated_policy("float16"))
    )
    for g, w in zip(got, want, strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        if w.dtype.kind == "f":
            assert np.all(np.isfinite(g) | ~np.isfinite(w))
