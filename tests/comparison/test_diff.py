"""A delegate compared with a reference; the result as text, JSON, message and page."""

import dataclasses
import html.parser
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.comparison.bounds import Bounds
from jaxdelegate.comparison.diff import InferenceDiff, inference_diff
from jaxdelegate.comparison.inputs import InputSettings, with_usable_indices
from jaxdelegate.comparison.page import page
from jaxdelegate.comparison.serialized import record, stage_metrics
from jaxdelegate.comparison.sides import REFERENCES, delegated
from jaxdelegate.comparison.text import summary, verdict
from jaxdelegate.op_lowering.options import GatherOptions
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.protos import message
from jaxdelegate.report.json_records import write_json
from jaxdelegate.testing import ModelBuilder

DEEPLAB = Path(__file__).parents[3] / "shared/models/networks/image_segmenter__deeplabv3.tflite"


def diff(model: Any, **options: Any) -> InferenceDiff:
    options.setdefault("num_runs", 2)
    return inference_diff(model, delegated(model, [jd.JaxDelegate()]), **options)


@pytest.mark.parametrize("reference", list(REFERENCES))
def test_a_correct_delegate(network: bytes, reference: str) -> None:
    found = diff(network, reference=reference, invocations_per_run=3)
    assert found.agrees
    assert (found.test, found.reference, found.num_runs) == ("JaxDelegate", reference, 2)
    assert found.delegation == "All 5 operations will run on XLA:CPU, in 1 partition."
    assert found.layers is None
    (output,) = found.outputs
    assert (output.name, output.runs, output.elements) == ("probabilities", 2, 8)
    assert output.max_abs is not None
    assert output.max_abs < 1e-5
    for latency in (found.test_latency, found.reference_latency):
        assert latency.count == 6
        assert 0 < latency.min_us <= latency.avg_us <= latency.max_us


def test_a_wrong_delegate(network: bytes, break_rule: Any) -> None:
    break_rule("SOFTMAX", lambda y: y * 1.5)
    found = diff(network)
    (output,) = found.outputs
    assert not found.agrees
    assert output.exceeding == output.elements == 8
    assert output.relative == pytest.approx(0.5, rel=1e-4)
    assert output.cosine == pytest.approx(1)
    assert verdict(found).startswith(
        "1 of 1 output differs from numpy: 'probabilities'. Given numpy's inputs, 1 of 5 operators "
        "is wrong, first #4 SOFTMAX 'probabilities': max_abs="
    )
    assert diff(network, bounds=Bounds(of_largest=0.6)).agrees
    assert diff(network, bounds=Bounds(max_abs_error=0.6)).agrees


@pytest.mark.parametrize(
    ("options", "fraction"),
    [({}, 1e-4), ({"compute_dtype": "bfloat16"}, 1e-2), ({"compute_dtype": "float32"}, 1e-4)],
)
@pytest.mark.usefixtures("bfloat16_dots")
def test_the_bound_of_a_delegate_that_computes_in_reduced_precision(
    network: bytes, options: dict[str, Any], fraction: float
) -> None:
    test = delegated(network, [jd.JaxDelegate(**options)])
    (output,) = inference_diff(network, test, num_runs=1).outputs
    largest = output.limit / fraction if output.limit else 0.0
    assert 0.25 <= largest <= 1.0  # of four probabilities
    (output,) = inference_diff(network, test, num_runs=1, bounds=Bounds(0.5)).outputs
    assert output.limit == pytest.approx(0.5 * largest)


def test_operators_that_are_wrong_without_reaching_an_output(break_rule: Any) -> None:
    builder = ModelBuilder()
    x = builder.input((1, 16), np.float32, "x")
    a, b = builder.tensor((1, 16), name="a"), builder.tensor((1, 16), name="b")
    builder.operator("NEG", [x], [a])
    builder.operator("SIGN", [a], [b])
    builder.outputs(b)
    break_rule("NEG", lambda y: 2 * y)
    assert diff(builder.build()).agrees
    found = diff(builder.build(), per_layer=True)
    assert found.outputs[0].agrees
    assert not found.agrees
    assert verdict(found) == "All outputs agree with numpy, but operators are wrong on their own."


def test_the_seed_decides(network: bytes, break_rule: Any) -> None:
    break_rule("SOFTMAX", lambda y: y * 1.5)
    a, b, c = (diff(network, inputs=InputSettings(seed=s)).outputs for s in (1, 1, 2))
    assert a == b
    assert a != c


def test_a_different_batch(network: bytes) -> None:
    found = diff(network, inputs=InputSettings(shapes={"input": (3, 8, 8, 3)}), per_layer=True)
    assert found.outputs[0].shape == (3, 1, 1, 4)
    assert found.agrees


def gather(dtype: type = np.float32, rows: int = 10) -> bytes:
    builder = ModelBuilder()
    table = np.arange(rows)
    values = np.array([b"%d" % n for n in table], object) if dtype is object else table
    x = builder.input((3,), np.int32, "ids")
    y = builder.tensor((3,), dtype, "y")
    builder.operator("GATHER", [builder.constant(values.astype(dtype)), x], [y], GatherOptions())
    builder.outputs(y)
    return builder.build()


@pytest.mark.parametrize(
    ("rows", "index_range"), [(1000, (0, 99)), (100, (0, 99)), (10, (0, 9)), (2, (0, 1))]
)
def test_drawn_indices_are_valid(rows: int, index_range: tuple[int, int]) -> None:
    model = gather(rows=rows)
    assert with_usable_indices(InputSettings(), model, "numpy").index_range == index_range
    assert diff(model).agrees


def test_indices_that_are_never_valid() -> None:
    with pytest.raises(
        jd.InterpreterError, match="set the range of integer inputs: --input_layer_value_range"
    ):
        diff(gather(rows=1), inputs=InputSettings(seed=1))


def test_strings_are_equal() -> None:
    (output,) = diff(gather(object), per_layer=True).outputs
    assert (output.agrees, output.elements, output.mean_abs) == (True, 6, None)
    text = summary(diff(gather(object)))
    assert "OutputDiff[0]: 0 of 6 unequal" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_runs": 0}, "num_runs: must be at least 1, got 0"),
        ({"invocations_per_run": 0}, "invocations_per_run: must be at least 1"),
        ({"per_layer": -1}, "per_layer: must be at least 1"),
        ({"reference": "tflite"}, "reference: expected one of numpy, litert_ref.* got 'tflite'"),
    ],
)
def test_impossible_options(network: bytes, options: dict[str, Any], message: str) -> None:
    with pytest.raises(jd.OptionError, match=message):
        diff(network, **options)


# ---- as text and files


@pytest.fixture(scope="module")
def wrong(network: bytes) -> InferenceDiff:
    rule = RULES["AVERAGE_POOL_2D"]

    def lower(*arguments: Any) -> Any:
        right = rule.lower(*arguments)
        return lambda *arrays: tuple(1.01 * y for y in right(*arrays))

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RULES, "AVERAGE_POOL_2D", dataclasses.replace(rule, lower=lower))
        return diff(network, per_layer=True, inputs=InputSettings(seed=5))


def test_the_text_starts_with_the_verdict_and_like_tflites(wrong: InferenceDiff) -> None:
    lines = summary(wrong, top=2).splitlines()
    assert lines[0] == verdict(wrong)
    assert lines[1] == "Num evaluation runs: 2"
    assert re.fullmatch(r"Reference run latency: avg=[\d.e+]+\(us\), std_dev=\d+\(us\)", lines[2])
    assert re.fullmatch(r"Test run latency: avg=[\d.e+]+\(us\), std_dev=\d+\(us\)", lines[3])
    assert lines[4] == (
        f"OutputDiff[0]: avg_error={wrong.outputs[0].mean_abs:g}, "
        f"std_dev={wrong.outputs[0].std_dev:g}"
    )
    text = "\n".join(lines)
    assert "output 0 'probabilities' float32 [1, 1, 1, 4]: DIFFERS in" in text
    assert "Layers by the error that they add (2 of 5;" in text
    assert "!#3 AVERAGE_POOL_2D 'pool'" in text
    assert "First divergence: #3 AVERAGE_POOL_2D 'pool': wrong on the reference's inputs" in text


def test_json_has_the_same_figures(wrong: InferenceDiff, tmp_path: Path) -> None:
    write_json(str(tmp_path / "r.json"), record(wrong))
    written = json.loads((tmp_path / "r.json").read_text())
    assert (written["tool"], written["version"]) == ("inference_diff", jd.__version__)
    assert (written["agrees"], written["num_runs"], written["seed"]) == (False, 2, 5)
    output, want = written["outputs"][0], wrong.outputs[0]
    for name in ("name", "mean_abs", "max_abs", "cosine", "snr_db", "exceeding", "agrees"):
        assert output[name] == getattr(want, name)
    assert want.worst is not None
    assert output["worst"]["position"] == list(want.worst.position)
    assert output["worst"]["got"] == want.worst.got
    layers = written["layers"]["layers"]
    assert [row["operator"] for row in layers][-2:] == ["AVERAGE_POOL_2D", "SOFTMAX"]
    assert [row["local"]["agrees"] for row in layers] == [True, True, True, False, True]
    first = written["first_divergence"]
    assert (first["kind"], first["node"], first["tensor"]) == ("operator", 3, "pool")


def test_the_message_can_be_parsed_as_tflites(wrong: InferenceDiff) -> None:
    found = message("tflite.evaluation.EvaluationStageMetrics")
    found.ParseFromString(stage_metrics(wrong))
    assert found.num_runs == 2
    profiler = found.process_metrics.inference_profiler_metrics
    for got, want in (
        (profiler.reference_latency, wrong.reference_latency),
        (profiler.test_latency, wrong.test_latency),
    ):
        assert got.avg_us == want.avg_us
        assert (got.last_us, got.max_us, got.min_us, got.sum_us, got.std_deviation_us) == (
            int(want.last_us),
            int(want.max_us),
            int(want.min_us),
            int(want.sum_us),
            int(want.std_deviation_us),
        )
    (error,) = profiler.output_errors
    output = wrong.outputs[0]
    assert error.avg_value == output.mean_abs
    assert error.max_value == pytest.approx(output.max_mean_abs)
    assert error.min_value == pytest.approx(output.min_mean_abs)
    assert error.std_deviation == pytest.approx(output.std_dev)


class Cells(html.parser.HTMLParser):
    """The texts of a page's table cells; fails on anything that would load another file."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.wrong_rows = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag not in ("script", "link", "img")
        assert not {"src", "href"} & dict(attrs).keys()
        self.wrong_rows += tag == "tr" and ("class", "wrong") in attrs
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


def test_the_page_is_self_contained(wrong: InferenceDiff) -> None:
    text, parsed = page(wrong), Cells()
    parsed.feed(text)
    assert "First divergence: #3 AVERAGE_POOL_2D" in text
    assert parsed.wrong_rows == 2  # the output and the layer
    assert '<body class="broken">' in text
    assert f"{wrong.outputs[0].max_abs:.4g}" in parsed.cells
    layers = [cell for cell in parsed.cells if cell.endswith(("conv_1", "depthwise_2", "pool"))]
    assert layers == ["CONV_2Dconv_1", "DEPTHWISE_CONV_2Ddepthwise_2", "AVERAGE_POOL_2Dpool"]


@pytest.mark.parametrize("width", [pytest.param(1400, marks=pytest.mark.exhaustive), 800])
def test_the_page_is_as_wide_as_the_window(
    width: int, wrong: InferenceDiff, opened: Callable[..., str]
) -> None:
    model = "a/folder/" + "a_model_with_a_long_name_" * 8 + ".tflite"
    text = page(dataclasses.replace(wrong, model=model))
    script = "document.title = document.documentElement.scrollWidth - innerWidth"
    text = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)  # for the script
    text = text.replace("</body>", f"<script>{script}</script></body>")
    assert "<title>0</title>" in opened(text, width=width)


def test_names_cannot_break_the_page() -> None:
    builder = ModelBuilder()
    x = builder.input((2,), np.float32, "x")
    y = builder.tensor((2,), name="<script>alert(1)</script>")
    builder.operator("NEG", [x], [y])
    builder.outputs(y)
    text = page(diff(builder.build(), per_layer=True))
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


@pytest.mark.slow
@pytest.mark.skipif(not DEEPLAB.exists(), reason="the real models are not here")
@pytest.mark.parametrize("reference", list(REFERENCES))
def test_a_real_network(reference: str) -> None:
    found = diff(DEEPLAB, num_runs=1, reference=reference)
    assert found.agrees
    assert found.outputs[0].shape == (1, 257, 257, 21)
    assert found.outputs[0].snr_db is not None
    assert found.outputs[0].snr_db > 80
