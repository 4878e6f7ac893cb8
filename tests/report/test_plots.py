"""Figures show the numbers that they were given."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd

pytest.importorskip("matplotlib")

from jaxdelegate.benchmark.peaks import DevicePeaks
from jaxdelegate.report.plots import (
    BatchPoint,
    LatencyRuns,
    LayerPoint,
    MeasuredOperator,
    Peaks,
    batch_scaling,
    draw,
    error_per_layer,
    latency_distribution,
    roofline,
    save,
    to_svg,
)
from jaxdelegate.report.plots.figure import COLORS


def points(line: Any) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(*line.get_data(), strict=True)]


def test_latency_of_every_run() -> None:
    figure = latency_distribution([LatencyRuns("net", (3.0, 1.0, 2.0, 10.0))])
    (axes,) = figure.axes
    curve, median = axes.lines
    assert points(curve) == [(1.0, 25.0), (2.0, 50.0), (3.0, 75.0), (10.0, 100.0)]
    assert curve.get_label() == "net (median 2.5 ms)"
    assert median.get_xdata()[0] == 2.5


def test_batch_scaling() -> None:
    rows = [
        BatchPoint("a", 8, 16.0),
        BatchPoint("a", 1, 4.0),
        BatchPoint("b", 1, 1.0),
        BatchPoint("b", 0, 1.0),
    ]
    left, right = batch_scaling(rows).axes
    assert [points(line) for line in left.lines] == [[(1, 250), (8, 500)], [(1, 1000)]]
    assert [points(line) for line in right.lines] == [[(1, 4), (8, 16)], [(1, 1)]]
    assert [line.get_label() for line in left.lines] == ["a", "b"]


def names(axes: Any) -> list[str]:
    """The labels of an axes' bars."""
    return [label.get_text() for label in axes.get_yticklabels()]


def legend(figure: Any) -> list[str]:
    (box,) = figure.legends
    return [text.get_text() for text in box.get_texts()]


def test_roofline() -> None:
    peaks = Peaks(1e12, 1e11, "measured: products", "given by --peak_bandwidth")
    operators = [
        MeasuredOperator("slow 0", 1e9, 1e9, 0.02),
        MeasuredOperator("dense 1", 1e11, 1e9, 0.2),
        MeasuredOperator("copy 2", 0, 1e9, 0.01),
    ]
    assert [peaks.share(op) for op in operators[:2]] == pytest.approx([0.5, 0.5])
    figure = roofline(operators, peaks, title="net\non some device")
    assert figure.get_suptitle() == "Roofline\nnet\non some device"
    dots, times = figure.axes
    slope, flat = (points(line) for line in dots.lines)
    assert [y / x for x, y in slope] == pytest.approx([1e11, 1e11])
    assert slope[-1] == flat[0] == (10, 1e12)
    places = [tuple(dot.get_offsets()[0]) for dot in dots.collections]
    np.testing.assert_allclose(places, [(100, 5e11), (1, 5e10)])  # the slowest first
    assert legend(figure) == [
        "memory: 100 GB/s, given by --peak_bandwidth",
        "arithmetic: 1 TFLOP/s, measured: products",
    ]
    assert names(times) == ["dense 1", "slow 0", "copy 2"]
    assert [bar.get_width() for bar in times.patches] == pytest.approx([200, 20, 10])
    assert [text.get_text() for text in times.texts] == [
        "87% of the time, 50% of its roof",
        "9% of the time, 50% of its roof",
        "4% of the time, no arithmetic",
    ]


def test_what_fits_into_a_cache_has_its_own_roof() -> None:
    peaks = Peaks(1e12, 1e10, "measured", "measured", {1 << 20: 1e11, 4 << 20: 5e10})
    small, large = MeasuredOperator("a", 1e6, 1e6, 1e-4), MeasuredOperator("b", 1e8, 1e8, 1e-2)
    middle = MeasuredOperator("c", 2e6, 2e6, 1e-4)
    assert [peaks.share(op) for op in (small, middle, large)] == pytest.approx([0.1, 0.4, 1])
    figure = roofline([small, middle, large], peaks)
    assert legend(figure)[:2] == [
        "memory: 10 GB/s, measured",
        "cache (array of 1 MiB): 100 GB/s, measured",
    ]


def test_many_operators_are_not_all_named() -> None:
    operators = [MeasuredOperator(f"op {i}", 1e6, 1e6, (i + 1) * 1e-3) for i in range(20)]
    dots, times = roofline(operators, Peaks(1e12, 1e11)).axes
    assert len(dots.collections) == 20
    assert names(times) == [*(f"op {i}" for i in range(19, 11, -1)), "and 12 others"]
    assert times.texts[-1].get_text() == "78 ms together"


def test_error_per_layer() -> None:
    rows = [
        LayerPoint("#0 ADD", 1e-6, 1e-6, tensor="a/very/long/name" * 5 + "/end"),
        LayerPoint("#1 MUL", 0.2, 0.1, agrees=False),
        LayerPoint("#2 RELU", 0.2, 0.0),
        LayerPoint("#3 EXP", 0.3),
    ]
    figure = error_per_layer(rows)
    along, named = figure.axes
    own, whole, crossed = along.lines
    np.testing.assert_array_equal(own.get_ydata(), [1e-6, 0.1, np.nan, np.nan])
    assert points(whole) == [(0, 1e-6), (1, 0.2), (2, 0.2), (3, 0.3)]
    assert points(crossed) == [(1, 0.1)]
    assert legend(figure)[-1] == "out of bounds"
    first, second, third, fourth = names(named)
    assert (first, second, fourth) == ("#1 MUL", "#3 EXP", "#2 RELU")
    assert third.startswith("#0 ADD …")
    assert third.endswith("name/end")
    texts = [text.get_text() for text in named.texts]
    assert texts == ["0.1, out of bounds", "0.3 (whole program)", "1e-06", "0"]
    assert [bool(bar.get_hatch()) for bar in named.patches] == [True, False, False, False]


def test_layers_of_two_comparisons() -> None:
    rows = [LayerPoint("#0 ADD", e, e, series=name) for name, e in (("one", 0.1), ("two", 0.2))]
    figure = error_per_layer(rows)
    assert names(figure.axes[1]) == ["#0 ADD", "#0 ADD"]
    assert [text.split(",")[0] for text in legend(figure)] == ["one", "one", "two", "two"]
    first, second = figure.axes[1].patches
    assert first.get_facecolor() != second.get_facecolor()


def test_layers_without_errors_are_drawn() -> None:
    along, named = error_per_layer([LayerPoint("#0 ADD", 0.0, 0.0), LayerPoint("#1 ADD", 0)]).axes
    assert (along.get_yscale(), named.get_xscale()) == ("linear", "linear")
    assert names(named) == ["#0 ADD", "#1 ADD"]


# ---- whether texts can be read


def texts_of(figure: Any) -> list[tuple[str, Any]]:
    """The texts that a figure shows, with their boxes in pixels."""
    text_module = importlib.import_module("matplotlib.text")
    figure.draw_without_rendering()
    found = [t for t in figure.findobj(text_module.Text) if t.get_visible() and t.get_text()]
    boxes = {id(t): (t.get_text(), t.get_window_extent()) for t in found}
    for axes in figure.axes:  # ticks beyond the limits are not drawn
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks() + axis.get_minor_ticks():
                if not low <= tick.get_loc() <= high:
                    boxes.pop(id(tick.label1), None)
                boxes.pop(id(tick.label2), None)
    return list(boxes.values())


def assert_readable(figure: Any) -> None:
    """No two texts overlap, all are on the figure, and none is small at 800 pixels."""
    found = texts_of(figure)
    assert figure.get_figwidth() * figure.dpi == 1400
    for i, (text, box) in enumerate(found):
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= 1400, text
        assert box.y1 <= figure.get_figheight() * figure.dpi, text
        for other, second in found[i + 1 :]:
            assert not box.padded(-1).overlaps(second.padded(-1)), (text, other)
    for axes in figure.axes:
        for text in axes.texts:
            assert axes.bbox.x0 <= text.get_window_extent().x0, text
            assert text.get_window_extent().x1 <= axes.bbox.x1, text
    text_module = importlib.import_module("matplotlib.text")
    for artist in figure.findobj(text_module.Text):
        pixels = artist.get_fontsize() / 72 * figure.dpi * 800 / 1400
        assert pixels >= 10 or not artist.get_text(), artist.get_text()


LONG = "StatefulPartitionedCall/a_model_with_a_long_name/block_12/expand_1x1/Relu6;" * 3


def _many_operators(count: int, series: str = "") -> list[MeasuredOperator]:
    rng = np.random.default_rng(count)
    kinds = ("CONV_2D", "DEPTHWISE_CONV_2D+MUL+ADD+HARD_SWISH+TRANSPOSE_CONV", "RESHAPE")
    flops, moved, seconds = 10 ** rng.uniform(3, 9, (3, count)) * [[1], [0.1], [1e-11]]
    return [
        MeasuredOperator(
            f"{kinds[i % 3]} {i}", flops[i] * (i % 3 < 2), moved[i], seconds[i], series
        )
        for i in range(count)
    ]


def _many_layers(count: int, series: str = "") -> list[LayerPoint]:
    errors = 10 ** np.random.default_rng(count).uniform(-9, 0, count)
    return [
        LayerPoint(f"#{i} DEPTHWISE_CONV_2D", 2 * e, e, i % 7 > 0, f"{LONG}{i}", series)
        for i, e in enumerate(errors.tolist())
    ]


def _many_runs(count: int) -> list[LatencyRuns]:
    rng = np.random.default_rng(count)
    return [
        LatencyRuns(f"{LONG[:90]} {i}", tuple((i + 1) * rng.lognormal(0, 1, 200)))
        for i in range(count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.exhaustive), 150])
def test_texts_do_not_overlap(count: int) -> None:
    title = f"{LONG}\non NVIDIA H100 80GB HBM3 (cuda:0)"
    peaks = Peaks(6.7e13, 3.35e12, "given by --peak_flops", "given by --peak_bandwidth")
    assert_readable(roofline(_many_operators(count), peaks, title=title))
    assert_readable(error_per_layer(_many_layers(count), title=title))
    assert_readable(latency_distribution(_many_runs(min(count, 12)), title=title))
    batches = range(1, count + 1)
    points = [BatchPoint(LONG, batch, 3 + batch**1.5) for batch in batches]
    assert_readable(batch_scaling(points, title=title))


def test_similar_errors_have_an_axis_with_numbers() -> None:
    rows = [LayerPoint(f"#{i} ADD", 2e-7, (i + 1) * 1e-7, tensor=LONG) for i in range(9)]
    figure = error_per_layer(rows)
    assert_readable(figure)
    assert figure.axes[1].get_xscale() == "linear"
    assert sum(bool(label.get_text()) for label in figure.axes[1].get_xticklabels()) > 3


@pytest.mark.slow
def test_texts_of_two_results_do_not_overlap() -> None:
    two = (LONG, f"{LONG}2")
    peaks = Peaks(1e12, 1e11, "measured", "measured", {1 << 20: 1e12})
    assert_readable(roofline([op for name in two for op in _many_operators(30, name)], peaks))
    assert_readable(error_per_layer([row for name in two for row in _many_layers(30, name)]))


def test_color_blind_people_can_distinguish_the_colors() -> None:
    """Machado, Oliveira and Fernandes (2009), severity 1; distances in linear RGB."""
    deuteranopia = [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
    protanopia = [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ]
    to_rgb = importlib.import_module("matplotlib.colors").to_rgb
    linear = np.array([to_rgb(color) for color in COLORS]) ** 2.2
    for matrix in (np.eye(3), deuteranopia, protanopia):
        seen = np.clip(linear @ np.transpose(matrix), 0, 1) ** (1 / 2.2)
        distances = np.linalg.norm(seen[:, None] - seen[None], axis=-1)
        assert distances[~np.eye(len(COLORS), dtype=bool)].min() > 0.12


@pytest.mark.parametrize(
    "call",
    [
        lambda: latency_distribution([]),
        lambda: latency_distribution([LatencyRuns("empty", ())]),
        lambda: batch_scaling([]),
        lambda: roofline([], Peaks(1, 1)),
        lambda: roofline([MeasuredOperator("x", 1, 1, 1)], Peaks(0, 1)),
        lambda: error_per_layer([]),
        lambda: draw("pie", []),
        lambda: draw("layers", []),
    ],
)
def test_nothing_to_draw(call: Any) -> None:
    with pytest.raises(jd.OptionError, match=r"expected|must be positive"):
        call()


@pytest.mark.parametrize(
    ("suffix", "head"),
    [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF"), (".html", b"<!DOCTYPE html>")],
)
def test_files(suffix: str, head: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"f{suffix}"
    save(error_per_layer([LayerPoint("#0 ADD", 1e-3)]), path)
    assert path.read_bytes().startswith(head)
    with pytest.raises(jd.OptionError, match=r"must end in \.png"):
        save(error_per_layer([LayerPoint("#0 ADD", 1e-3)]), tmp_path / "f.gif")


def test_svg_fits_in_a_page() -> None:
    svg = to_svg(error_per_layer([LayerPoint("#0 ADD", 1e-3, agrees=False)]))
    assert svg.startswith("<svg")
    assert svg.rstrip().endswith("</svg>")
    assert "#0 ADD" in svg


# ---- from the tools' files


def benchmark(batch: int, avg: float) -> dict[str, Any]:
    return {
        "name": "",
        "model": "dir/net.tflite",
        "platform": "gpu",
        "device": "NVIDIA L4 (cuda:0)",
        "batch": batch,
        "inference_ms": {"avg": avg, "values": [9.0, 1.0, 1.5, 2.0, 8.0]},
    }


def test_benchmark_results(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text(json.dumps([benchmark(4, 8.0), benchmark(1, 4.0)]))
    left, _ = draw("batch", [path]).axes
    assert points(left.lines[0]) == [(1, 250), (4, 500)]
    assert left.lines[0].get_label() == "net gpu"
    path.write_text(json.dumps(benchmark(1, 4.0)) + "\n" + json.dumps(benchmark(4, 8.0)) + "\n")
    figure = draw("latency", [path])
    (axes,) = figure.axes
    assert figure.get_suptitle() == "Latency distribution\nnet\non NVIDIA L4 (cuda:0)"
    assert points(axes.lines[0]) == [(1, 20), (1.5, 40), (2, 60), (8, 80), (9, 100)]
    assert axes.lines[2].get_label() == "net gpu, batch 4 (median 2 ms)"


def test_series_are_named_after_the_delegates_options(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    rows = [
        {**benchmark(1, 4.0), "flags": {"jax_compute_dtype": dtype}}
        for dtype in ("float32", "float16")
    ]
    path.write_text(json.dumps(rows))
    assert legend(draw("batch", [path])) == [
        "net gpu --jax_compute_dtype=float32",
        "net gpu --jax_compute_dtype=float16",
    ]


def test_configurations_have_their_names(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    rows = [
        {"configuration": {"name": "cpu w/ 1 threads", "flags": []}, "result": benchmark(1, 4.0)},
        {"configuration": {"name": "cpu w/ 2 threads", "flags": []}, "result": None},
    ]
    path.write_text(json.dumps(rows))
    assert legend(draw("latency", [path])) == ["cpu w/ 1 threads (median 2 ms)"]


def test_roofline_file(tmp_path: Path) -> None:
    record = {
        "model": "dir/net.tflite",
        "operators": [
            {"name": "ADD 0", "flops": 1e6, "bytes": 1e6, "seconds": 3e-3},
            {
                "name": "MUL+ADD 1+2+3+4",
                "nodes": [1, 2, 3, 4],
                "flops": 1,
                "bytes": 1,
                "seconds": 0.002,
            },
            {"name": "custom 5", "flops": None, "bytes": 1e6, "seconds": 1e-3},
        ],
        "peaks": {"flops_per_second": 1e10, "bytes_per_second": 1e10},
    }
    path = tmp_path / "r.json"
    path.write_text(json.dumps(record))
    figure = draw("roofline", [path])
    assert figure.get_suptitle() == "Roofline\nnet"
    assert names(figure.axes[1]) == ["ADD 0", "MUL+ADD 1…4 (4 fused)", "custom 5"]
    assert legend(figure) == [
        "memory: 10 GB/s, given in r.json",
        "arithmetic: 10 GFLOP/s, given in r.json",
    ]
    other = draw("roofline", [path], Peaks(2e9, 2e9, "given by --peak_flops"))
    assert legend(other)[1] == "arithmetic: 2 GFLOP/s, given by --peak_flops"
    record["peaks"] = DevicePeaks(3e9, {1 << 20: 2e9, 4 << 20: 1e9}).as_dict()
    path.write_text(json.dumps(record))
    assert legend(draw("roofline", [path])) == [
        "memory: 1 GB/s, measured: addition in place",
        "cache (array of 1 MiB): 2 GB/s, measured: addition in place",
        "arithmetic: 3 GFLOP/s, measured: product of matrices, float32",
    ]


@pytest.mark.parametrize("text", ["", "[1, 2]", "{", "null", "\xff"])
def test_files_that_are_not_results(text: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(text.encode("latin-1"))
    for kind in ("latency", "batch", "roofline", "layers"):
        with pytest.raises(jd.OptionError, match=r"r\.json"):
            draw(kind, [path])


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"inference_ms": 3},
        {"operators": [{}], "layers": None, "batch": "x", "inference_ms": {"avg": 1}},
        {"operators": [{"name": "", "flops": "x", "bytes": 1, "seconds": 1}], "layers": {}},
    ],
)
def test_results_in_another_format(record: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(record))
    for kind in ("latency", "batch", "roofline", "layers"):
        with pytest.raises(jd.OptionError, match="not a result for a"):
            draw(kind, [path])


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(jd.OptionError, match=r"pip install 'matplotlib>=") as caught:
        error_per_layer([LayerPoint("#0 ADD", 1e-3)])
    assert "\n" not in str(caught.value)


def test_matplotlib_keeps_its_global_state() -> None:
    """Plots use no pyplot, change no rcParams, and load matplotlib only for a figure."""
    code = """
import sys
import jaxdelegate.report.plots as plots
assert "matplotlib" not in sys.modules
assert "jax" not in sys.modules
import matplotlib
before = dict(dict.items(matplotlib.rcParams))  # rcParams[...] would choose a backend
plots.to_svg(plots.error_per_layer([plots.LayerPoint("#0 ADD", 1e-3)]))
assert "matplotlib.pyplot" not in sys.modules
assert dict(dict.items(matplotlib.rcParams)) == before
"""
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
