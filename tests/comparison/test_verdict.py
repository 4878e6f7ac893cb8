"""Right, rounded and wrong outputs, by every kind of delegate and reference."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import jaxdelegate as jd
from jaxdelegate.comparison.bisect import bisect
from jaxdelegate.comparison.bounds import LOSSES
from jaxdelegate.comparison.diff import InferenceDiff, inference_diff
from jaxdelegate.comparison.figures import (
    DETECTIONS,
    LABELS,
    NUMBERS,
    SELECTIONS,
    TOP_ONE,
    VALUES,
)
from jaxdelegate.comparison.page import page
from jaxdelegate.comparison.rounding import rounded_file
from jaxdelegate.comparison.serialized import record
from jaxdelegate.comparison.sides import Runner, Test, delegated
from jaxdelegate.comparison.text import bisection, summary
from jaxdelegate.compile.precision_policy import emulated_policy
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    AddOptions,
    FullyConnectedOptions,
    MulOptions,
    RandomOptions,
)
from jaxdelegate.op_lowering.precision import BFLOAT16
from jaxdelegate.quant.params import Quantization
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.testing.builder import ModelBuilder
from jaxdelegate.tools.main import main
from tests.support.combinations import covering
from tests.support.ranges import ranged

REFERENCES = ("numpy", "litert_ref", "litert_builtin", "litert_xnnpack")


def scaled(scale: float) -> Quantization:
    return Quantization(np.array([scale], np.float32), np.array([0], np.int64))


def amplifying() -> bytes:
    """int8: y = x + x, with many sums between two steps, and z = 16 y: a step of y is 16 of z."""
    builder = ModelBuilder()
    x = builder.input((1, 20_000), np.int8, "x", quantization=scaled(0.0313))
    y = builder.tensor((1, 20_000), np.int8, "y", quantization=scaled(0.0626 * 2))
    z = builder.tensor((1, 20_000), np.int8, "z", quantization=scaled(0.0626 * 2))
    factor = builder.constant(np.array([16], np.int8), "factor", quantization=scaled(1.0))
    builder.operator("ADD", [x, x], [y], AddOptions(), version=2)
    builder.operator("MUL", [y, factor], [z], MulOptions(), version=2)
    builder.outputs(z)
    return builder.build()


def dynamic_range() -> bytes:
    """y = x w, of floats by int8 weights."""
    rng = np.random.default_rng(0)
    builder = ModelBuilder()
    x = builder.input((4, 32), np.float32, "x")
    weights = rng.integers(-127, 127, (8, 32)).astype(np.int8)
    w = builder.constant(weights, "w", quantization=scaled(0.01))
    y = builder.tensor((4, 8), np.float32, "y")
    builder.operator("FULLY_CONNECTED", [x, w, None], [y], FullyConnectedOptions())
    builder.outputs(y)
    return builder.build()


def mixed() -> bytes:
    """Float layers before and after int8 ones, as sensitivity's recipe leaves them."""
    rng = np.random.default_rng(0)
    builder = ModelBuilder()
    last = builder.input((1, 64), np.float32, "x")

    def dense(last: int, name: str) -> int:
        w = builder.constant(rng.normal(0, 0.125, (64, 64)).astype(np.float32))
        y = builder.tensor((1, 64), np.float32, name)
        builder.operator("FULLY_CONNECTED", [last, w, None], [y], FullyConnectedOptions())
        return y

    last = dense(last, "a")
    q, r = (builder.tensor((1, 64), np.int8, name, quantization=scaled(0.02)) for name in "qr")
    builder.operator("QUANTIZE", [last], [q])
    w = builder.constant(
        rng.integers(-127, 127, (64, 64)).astype(np.int8), quantization=scaled(0.002)
    )
    options = FullyConnectedOptions(ActivationFunctionType.NONE)
    builder.operator("FULLY_CONNECTED", [q, w, None], [r], options, version=4)
    f = builder.tensor((1, 64), np.float32, "f")
    builder.operator("DEQUANTIZE", [r], [f], version=2)
    builder.outputs(dense(dense(f, "b"), "c"))
    return builder.build()


def compared(
    model: bytes, reference: str = "numpy", quant_mode: Any = "auto", **options: Any
) -> InferenceDiff:
    test = delegated(model, [jd.JaxDelegate(quant_mode=quant_mode)])
    return inference_diff(model, test, reference=reference, num_runs=2, **options)


def stock(model: bytes) -> Test:
    def opened(_delegates: Any, *, preserve_all_tensors: bool = False) -> Any:
        return Interpreter(
            model_content=model, experimental_preserve_all_tensors=preserve_all_tensors
        )

    return Test(opened, label="XNNPACK")


@pytest.mark.parametrize(
    ("model", "quant_mode", "reference"),
    covering([amplifying, mixed, dynamic_range], ["integer", "float_view"], REFERENCES),
)
def test_what_is_right_is_right_by_every_reference(
    model: Any, quant_mode: str, reference: str
) -> None:
    result = compared(model(), reference, quant_mode)
    assert result.is_healthy, summary(result)
    assert "differ from" not in summary(result) or "by rounding" in summary(result)


@pytest.mark.parametrize(
    ("wrong", "quant_mode", "reference"),
    covering(
        [(amplifying, "ADD"), (mixed, "FULLY_CONNECTED")], ["integer", "float_view"], REFERENCES
    ),
)
def test_what_is_wrong_is_wrong_by_every_reference(
    break_rule: Any, wrong: tuple[Any, str], quant_mode: str, reference: str
) -> None:
    model, operator = wrong

    def off(y: Any) -> Any:
        return y + y.dtype.type(3) if y.dtype == np.int8 else y + np.float32(0.4)

    break_rule(operator, off)
    result = compared(model(), reference, quant_mode)
    assert not result.is_healthy
    assert result.operators is not None
    assert {row.operator for row in result.operators.wrong} == {operator}
    assert f"wrong, first #0 {operator}" in summary(result)
    assert '<body class="broken">' in page(result)


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("model", [amplifying, mixed, dynamic_range])
def test_a_delegate_that_is_not_ours_is_judged_alike(model: Any, reference: str) -> None:
    result = inference_diff(model(), stock(model()), reference=reference, num_runs=2)
    assert result.is_healthy
    if not result.agrees:
        assert "cannot be checked one by one: the delegate is not" in summary(result)


def test_rounding_is_reported() -> None:
    result = compared(amplifying(), quant_mode="float_view")
    assert not result.agrees
    assert result.outputs[0].max_abs == 16
    assert result.operators is not None
    assert (result.operators.operators, result.operators.wrong) == (2, ())
    text = summary(result)
    assert "DIFFERS" not in text
    assert "1 of 1 output differs from numpy by rounding: 'z'." in text
    assert "each of the 2 operators is right" in text
    assert "Right as a whole: relative RMS error of 'z': " in text
    assert '<body class="healthy">' in page(result)
    assert record(result)["likenesses"][0]["figure"] == "relative RMS error"


def test_the_named_reference_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where numpy's kernel has the delegate's error, LiteRT shows it."""
    kernel = KERNELS["ADD"]

    def off(*arguments: Any) -> Any:
        (y,) = kernel.run(*arguments)
        return ((y + 20).astype(y.dtype),)

    rule = dataclasses.replace(kernel, run=off)
    monkeypatch.setitem(KERNELS, "ADD", rule)
    on_numpy = Test(lambda _delegates, **_: jd.Interpreter(model_content=amplifying()))
    same = inference_diff(amplifying(), on_numpy, reference="numpy", num_runs=1)
    assert same.agrees
    other = inference_diff(amplifying(), on_numpy, reference="litert_ref", num_runs=1)
    assert not other.is_healthy


def test_numpy_excuses_no_float_operator(break_rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The delegate and numpy have the same error; LiteRT, which was named, has not."""
    kernel = KERNELS["NEG"]
    rule = dataclasses.replace(kernel, run=lambda *given: (kernel.run(*given)[0] + 1,))
    monkeypatch.setitem(KERNELS, "NEG", rule)
    break_rule("NEG", lambda y: y + 1)
    builder = ModelBuilder()
    x, y = builder.input((4,), name="x"), builder.tensor((4,), name="y")
    builder.operator("NEG", [x], [y])
    builder.outputs(y)
    result = compared(builder.build(), "litert_ref")
    assert result.operators is not None
    assert [wrong.operator for wrong in result.operators.wrong] == ["NEG"]


@pytest.mark.parametrize("figure", LOSSES)
def test_the_page_has_the_limits(figure: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "inference_diff.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| ")]
    limits = [f"{limit:g}" for limit in LOSSES[figure].values()]
    assert any([cell.strip() for cell in row[-4:-1]] == limits for row in rows)


def test_errors_that_add_up_are_wrong_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """No operator is wrong on its own, but the outputs of the program are."""
    opened = jd.Interpreter.get_tensor

    def get_tensor(self: jd.Interpreter, index: int, subgraph_index: int = 0) -> np.ndarray:
        value = opened(self, index, subgraph_index)
        is_plain = self._delegates and not self._preserve
        return np.roll(value, 1) if is_plain else value

    monkeypatch.setattr(jd.Interpreter, "get_tensor", get_tensor)
    result = compared(amplifying())
    assert result.operators is not None
    assert result.operators.wrong == ()
    assert not result.is_healthy
    assert "Wrong as a whole: relative RMS error" in summary(result)


def test_an_operator_without_a_float_counterpart_is_wrong(
    break_rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = KERNELS["ADD"]

    def of_integers(o: Any, inputs: Any, outputs: Any, *arrays: Any) -> Any:
        if inputs[0].dtype.kind == "f":
            raise ValueError("no kernel for floats")
        return kernel.run(o, inputs, outputs, *arrays)

    monkeypatch.setitem(KERNELS, "ADD", dataclasses.replace(kernel, run=of_integers))
    break_rule("ADD", lambda y: y + np.float32(0.4))
    result = compared(amplifying(), quant_mode="float_view")
    assert result.operators is not None
    assert [wrong.operator for wrong in result.operators.wrong] == ["ADD"]


def test_results_that_were_not_kept_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    value = Runner.value
    monkeypatch.setattr(
        Runner, "value", lambda self, index: None if index == 1 else value(self, index)
    )
    result = compared(amplifying(), quant_mode="float_view")
    assert result.operators is not None
    assert (result.operators.operators, result.operators.unseen) == (0, 2)
    assert "2 of the operators could not be checked" in summary(result)


def test_an_operator_is_wrong_if_it_is_in_one_run(break_rule: Any) -> None:
    """The first run out of bounds differs by rounding only."""
    firsts = []
    break_rule("FULLY_CONNECTED", lambda y: jax.debug.callback(firsts.append, y[0, 0]) or y)
    right = compared(dynamic_range(), "litert_ref", "float_view")
    jax.effects_barrier()
    assert right.is_healthy
    assert "by rounding" in summary(right)
    before, later = map(np.float32, firsts[:2])
    between, sign = (before + later) / 2, later - before
    break_rule(
        "FULLY_CONNECTED", lambda y: jnp.where((y[0, 0] - between) * sign > 0, y + np.float32(2), y)
    )
    wrong = compared(dynamic_range(), "litert_ref", "float_view")
    assert wrong.operators is not None
    assert [row.operator for row in wrong.operators.wrong] == ["FULLY_CONNECTED"]


def test_bisect_names_no_operator_for_rounding() -> None:
    model = amplifying()
    result = bisect(model, ranged(model, jd.JaxDelegate(quant_mode="float_view")))
    assert (result.verdict, result.culprits) == ("rounding", ())
    assert "by rounding" in bisection(result, "numpy")


def test_random_outputs_are_not_compared() -> None:
    builder = ModelBuilder()
    x = builder.input((4,), name="x")
    shape = builder.constant(np.array([4], np.int32))
    noise, y, z = (builder.tensor((4,), name=name) for name in ("noise", "y", "z"))
    builder.operator("RANDOM_UNIFORM", [shape], [noise], RandomOptions())
    builder.operator("ADD", [x, noise], [y], AddOptions())
    builder.operator("NEG", [x], [z])
    builder.outputs(y, z)
    result = compared(builder.build())
    assert result.random == ("y",)
    assert result.is_healthy
    text = summary(result)
    assert "differs by random numbers" in text
    assert "by rounding" not in text
    assert "Random numbers decide 'y': not compared. All outputs agree with numpy." in text
    layers = compared(builder.build(), per_layer=True).layers
    assert layers is not None
    assert layers.wrong_operators() == []


@pytest.mark.parametrize("quant_mode", ["integer", "float_view"])
def test_layers_are_judged_as_operators_are(break_rule: Any, quant_mode: str) -> None:
    """An operator in floats is off by more than a step of the kernel that rounds its inputs."""
    right = compared(dynamic_range(), "litert_ref", quant_mode, per_layer=True)
    assert right.layers is not None
    assert right.layers.wrong_operators() == []
    assert right.is_healthy
    break_rule("FULLY_CONNECTED", lambda y: y + np.float32(0.4))
    wrong = compared(dynamic_range(), "litert_ref", quant_mode, per_layer=True)
    assert wrong.layers is not None
    assert [layer.operator for layer in wrong.layers.wrong_operators()] == ["FULLY_CONNECTED"]


def test_a_dtype_without_effect_is_said() -> None:
    model = mixed()
    test = delegated(model, [jd.JaxDelegate(compute_dtype="float16")])
    result = inference_diff(model, test, num_runs=1)
    assert "compute_dtype='float16' has no effect: this CPU computes in float32" in summary(result)


def in_bfloat16(model: bytes) -> Test:
    delegate = jd.JaxDelegate(platform="cpu", min_gain=0)
    context = delegate.compiler.context.on_gpu(emulated_policy("bfloat16"))
    delegate.compiler.context = context
    return delegated(model, [delegate])


def cancelling() -> bytes:
    """y = x w where most terms cancel, so that bfloat16 is off by much of y."""
    rng = np.random.default_rng(0)
    half = rng.normal(0, 1, (8, 256)).astype(np.float32)
    builder = ModelBuilder()
    x = builder.input((4, 512), np.float32, "x")
    w = builder.constant(np.concatenate([half, 0.02 - half], 1), "w")
    s = builder.tensor((4, 512), np.float32, "s")
    y = builder.tensor((4, 8), np.float32, "y")
    steady = builder.constant(np.array([40], np.float32), "steady")
    builder.operator("ADD", [x, steady], [s], AddOptions())
    builder.operator("FULLY_CONNECTED", [s, w, None], [y], FullyConnectedOptions())
    builder.outputs(y)
    return builder.build()


@pytest.mark.parametrize(("factor", "wrong"), [(1.0, []), (1.5, ["FULLY_CONNECTED"])])
def test_rounded_factors_are_right_however_far_they_bring_a_sum(
    break_rule: Any, factor: float, wrong: list[str]
) -> None:
    break_rule("FULLY_CONNECTED", lambda y: y * y.dtype.type(factor))
    result = inference_diff(cancelling(), in_bfloat16(cancelling()), num_runs=2)
    assert not result.agrees
    assert result.operators is not None
    assert [row.operator for row in result.operators.wrong] == wrong
    assert result.is_healthy == (not wrong)
    assert "the reference on rounded weights and inputs: " in summary(result)


def test_rounding_a_file_leaves_its_biases() -> None:
    builder = ModelBuilder()
    x = builder.input((1, 2), np.float32, "x")
    w, b = (builder.constant(np.full(shape, 1.001, np.float32)) for shape in ((2, 2), (2,)))
    y = builder.tensor((1, 2), np.float32, "y")
    builder.operator("FULLY_CONNECTED", [x, w, b], [y], FullyConnectedOptions())
    builder.outputs(y)
    content = builder.build()
    rounded = rounded_file(content, BFLOAT16)
    assert len(rounded) == len(content)
    tensors = read_model(rounded).subgraphs[0].tensors
    np.testing.assert_array_equal(tensors[w].data, 1)
    np.testing.assert_array_equal(tensors[b].data, np.float32(1.001))


def test_exit_codes(tmp_path: Any, break_rule: Any) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(amplifying())
    flags = [f"--graph={path}", "--num_runs=1", "--jax_quant_mode=float_view"]
    assert main(["inference_diff", *flags]) == 0
    assert main(["bisect", *flags]) == 0
    break_rule("ADD", lambda y: y + np.float32(0.4))
    assert main(["inference_diff", *flags]) == 2


# ---- Figures


def detected(*rows: Sequence[float]) -> list[np.ndarray]:
    """The four outputs for rows of class, score, ymin, xmin, ymax, xmax."""
    table = np.array(rows, np.float32).reshape(-1, 6)
    number = np.float32([len(table)])
    return [table[None, :, 2:], table[None, :, 0], table[None, :, 1], number]


CAT = (1, 0.9, 0.1, 0.1, 0.5, 0.5)
DOG = (2, 0.8, 0.4, 0.4, 0.9, 0.9)


@pytest.mark.parametrize(
    ("got", "low", "high"),
    [
        ((CAT, DOG), 0, 0),
        ((DOG, CAT), 0, 0),  # in another order
        (((1, 0.9, 0.11, 0.1, 0.5, 0.5), DOG), 0.01, 0.03),  # a shift of a few percent
        ((CAT,), 0.4, 0.5),  # one is missing
        ((CAT, DOG, (3, 0.9, 0, 0, 1, 1)), 0.3, 0.4),  # one is added
        ((CAT, (1, *DOG[1:])), 0.4, 0.5),  # another class
        ((), 1, 1),
    ],
)
def test_detections_are_matched_by_overlap(got: Any, low: float, high: float) -> None:
    figure = DETECTIONS
    loss = figure.loss([detected(*got)], [detected(CAT, DOG)], "float")
    assert low - 1e-6 <= loss <= high + 1e-6


def test_no_detections_are_equal() -> None:
    assert DETECTIONS.loss([detected()], [detected()], "float") == 0


def test_selected_boxes_are_a_set() -> None:
    figure = SELECTIONS
    want = [np.int32([5, 3, 9, 0]), np.int32(3)]
    assert figure.loss([[np.int32([9, 5, 3, 1]), np.int32(3)]], [want], "float") == 0
    assert figure.loss([[np.int32([9, 5, 4, 1]), np.int32(3)]], [want], "float") == 0.5


def test_numbers_are_measured_by_their_deviation() -> None:
    rng = np.random.default_rng(0)
    want = (100 + rng.normal(size=1000)).astype(np.float32)
    noisy = (want + 0.1 * rng.normal(size=1000)).astype(np.float32)
    assert NUMBERS.loss([[noisy]], [[want]], "float") == pytest.approx(0.1, rel=0.1)
    assert NUMBERS.loss([[want]], [[want]], "float") == 0
    assert NUMBERS.loss([[want[:9]]], [[want]], "float") == np.inf
    nan = np.where(np.arange(1000) == 3, np.nan, want)
    assert NUMBERS.loss([[nan]], [[want]], "float") == np.inf
    assert NUMBERS.loss([[nan]], [[nan]], "float") == 0
    imaginary = 1j * rng.normal(size=8)
    assert NUMBERS.loss([[imaginary * 1.1]], [[imaginary]], "float") > 0.05


def test_noise_permits_no_more_than_half() -> None:
    want, other = [[np.float32([0, 1])]], [[np.float32([1, 0])]]
    likeness = NUMBERS.at(0).likeness(["y"], want, want, [other], (), "quantized")
    assert (likeness.between_kernels, likeness.limit) == (2.0, 0.5)
    calm = NUMBERS.at(0).likeness(["y"], want, want, [want], (), "quantized")
    assert calm.limit == LOSSES["relative RMS error"]["quantized"]


def test_top_1_counts_clear_winners() -> None:
    want = np.float32([[0.1, 3.0, 2.9999, -1]])
    near, far = np.float32([[0.1, 2.99, 3.0, -1]]), np.float32([[3.1, 3.0, 2.9, -1]])
    assert TOP_ONE.loss([[near]], [[want]], "float") == 0
    assert TOP_ONE.loss([[far]], [[want]], "float") == 1


def test_labels_are_measured_by_overlap() -> None:
    want = np.array([[0, 0, 1, 1]])
    assert LABELS.loss([[want]], [[want]], "float") == 0
    assert LABELS.loss([[np.array([[0, 1, 1, 1]])]], [[want]], "float") == pytest.approx(
        1 - (1 / 2 + 2 / 3) / 2
    )


def test_other_values_are_equal_or_not() -> None:
    strings = np.array([b"a", b"b"], object)
    assert VALUES.loss([[strings]], [[strings]], "float") == 0
    assert VALUES.loss([[np.array([b"a", b"c"], object)]], [[strings]], "float") == 0.5
