"""Figures hold the numbers that they were given."""

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


def points(line: Any) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(*line.get_data(), strict=True)]


def test_latency_of_every_run() -> None:
    figure = latency_distribution([LatencyRuns("net", (3.0, 1.0, 2.0, 10.0))])
    (axes,) = figure.axes
    curve, median = axes.lines
    assert points(curve) == [(1.0, 25.0), (2.0, 50.0), (3.0, 75.0), (10.0, 100.0)]
    assert curve.get_label() == "net (median 2.5 ms)"
    assert median.get_xdata()[0] == 2.5


def test_latency_of_percentiles() -> None:
    figure = latency_distribution([LatencyRuns("net", percentiles={95: 4.0, 5: 1.0, 50: 2.0})])
    assert points(figure.axes[0].lines[0]) == [(1.0, 5.0), (2.0, 50.0), (4.0, 95.0)]


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


def test_roofline() -> None:
    peaks = Peaks(1e12, 1e11)  # the ridge is at 10 FLOP per byte
    operators = [
        MeasuredOperator("slow", 1e9, 1e9, 0.02),
        MeasuredOperator("dense", 1e11, 1e9, 0.2),
        MeasuredOperator("copy", 0, 1e9, 0.01),
    ]
    assert [peaks.share(op) for op in operators[:2]] == pytest.approx([0.5, 0.5])
    figure = roofline(operators, peaks)
    (axes,) = figure.axes
    roof = points(axes.lines[0])
    assert [y / min(1e12, 1e11 * x) for x, y in roof] == pytest.approx([1, 1, 1])
    assert 10.0 in [x for x, _ in roof]
    dots = [tuple(dot.get_offsets()[0]) for dot in axes.collections]
    np.testing.assert_allclose(dots, [(100, 5e11), (1, 5e10)])  # the slowest first
    assert legend(figure) == ["roof", "dense (50% of the roof)", "slow (50% of the roof)"]


def legend(figure: Any) -> list[str]:
    (box,) = figure.legends
    return [text.get_text() for text in box.get_texts()]


def test_many_operators_are_not_all_named() -> None:
    operators = [MeasuredOperator(f"op{i}", 1e6, 1e6, (i + 1) * 1e-3) for i in range(20)]
    figure = roofline(operators, Peaks(1e12, 1e11))
    assert len(figure.axes[0].collections) == 20
    assert [name.split()[0] for name in legend(figure)[1:]] == [f"op{i}" for i in range(19, 11, -1)]


def test_error_per_layer() -> None:
    rows = [
        LayerPoint("#0 ADD", 1e-6, 1e-6),
        LayerPoint("#1 MUL", 0.2, 0.1, agrees=False),
        LayerPoint("#2 RELU", 0.2, 0.0),
    ]
    (axes,) = error_per_layer(rows).axes
    heights = [bar.get_height() for bar in axes.patches]
    assert heights[:2] == [1e-6, 0.1]
    assert np.isnan(heights[2])
    assert points(axes.lines[0]) == [(0, 1e-6), (1, 0.2), (2, 0.2)]
    assert [text.get_text() for text in axes.texts] == ["#1 MUL"]
    assert axes.patches[0].get_facecolor() != axes.patches[1].get_facecolor()


def test_layers_without_errors_are_drawn() -> None:
    (axes,) = error_per_layer([LayerPoint("#0 ADD", 0.0, 0.0), LayerPoint("#1 ADD", None)]).axes
    assert axes.get_yscale() == "linear"


@pytest.mark.parametrize(
    "call",
    [
        lambda: latency_distribution([]),
        lambda: latency_distribution([LatencyRuns("empty")]),
        lambda: batch_scaling([]),
        lambda: roofline([], Peaks(1, 1)),
        lambda: roofline([MeasuredOperator("x", 1, 1, 1)], Peaks(0, 1)),
        lambda: error_per_layer([]),
        lambda: draw("pie", []),
        lambda: draw("layers", []),
    ],
)
def test_nothing_to_draw(call: Any) -> None:
    with pytest.raises(jd.OptionError, match=r"want|must be positive"):
        call()


@pytest.mark.parametrize(
    ("suffix", "head"),
    [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF"), (".html", b"<!DOCTYPE html>")],
)
def test_files(suffix: str, head: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"f{suffix}"
    save(error_per_layer([LayerPoint("#0 ADD", 1e-3)]), path)
    assert path.read_bytes().startswith(head)
    with pytest.raises(jd.OptionError, match=r"want a name that ends in \.png"):
        save(error_per_layer([LayerPoint("#0 ADD", 1e-3)]), tmp_path / "f.gif")


def test_svg_stands_in_a_page() -> None:
    svg = to_svg(error_per_layer([LayerPoint("#0 ADD", 1e-3, agrees=False)]))
    assert svg.startswith("<svg")
    assert svg.rstrip().endswith("</svg>")
    assert "#0 ADD" in svg


# ---- from the tools' files


def benchmark(batch: int, avg: float, **more: Any) -> dict[str, Any]:
    stat = {"count": 5, "avg": avg, "min": 1.0, "max": 9.0, "median": 2.0, "p5": 1.5, "p95": 8.0}
    return {
        "name": "",
        "model": "dir/net.tflite",
        "platform": "gpu",
        "batch": batch,
        "inference_ms": {**stat, **more},
    }


def test_benchmark_results(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text(json.dumps([benchmark(4, 8.0), benchmark(1, 4.0)]))
    left, _ = draw("batch", [path]).axes
    assert points(left.lines[0]) == [(1, 250), (4, 500)]
    assert left.lines[0].get_label() == "net gpu"
    path.write_text(json.dumps(benchmark(1, 4.0)) + "\n" + json.dumps(benchmark(4, 8.0)) + "\n")
    (axes,) = draw("latency", [path]).axes
    assert points(axes.lines[0]) == [(1, 0), (1.5, 5), (2, 50), (8, 95), (9, 100)]
    assert axes.lines[2].get_label() == "net gpu, batch 4 (median 2 ms)"
    path.write_text(json.dumps(benchmark(1, 4.0, values=[2.0, 1.0])))
    assert points(draw("latency", [path]).axes[0].lines[0]) == [(1, 50), (2, 100)]


def test_roofline_file(tmp_path: Path) -> None:
    record = {
        "operators": [
            {"name": "ADD", "flops": 1e6, "bytes": 1e6, "seconds": 1e-3},
            {"name": "custom", "flops": None, "bytes": 1e6, "seconds": 1e-3},
        ],
        "peaks": {"flops_per_second": 1e10, "bytes_per_second": 1e10},
    }
    path = tmp_path / "r.json"
    path.write_text(json.dumps(record))
    assert legend(draw("roofline", [path])) == ["roof", "ADD (10% of the roof)"]
    other = draw("roofline", [path], Peaks(2e9, 2e9))
    assert legend(other) == ["roof", "ADD (50% of the roof)"]


@pytest.mark.parametrize("text", ["", "[1, 2]", "{", "null", "\xff"])
def test_files_that_are_no_results(text: str, tmp_path: Path) -> None:
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
def test_results_of_another_form(record: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(record))
    for kind in ("latency", "batch", "roofline", "layers"):
        with pytest.raises(jd.OptionError, match="not a result for a"):
            draw(kind, [path])


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(jd.OptionError, match=r"pip install 'jaxdelegate\[report\]'") as caught:
        error_per_layer([LayerPoint("#0 ADD", 1e-3)])
    assert "\n" not in str(caught.value)


def test_matplotlib_keeps_its_global_state() -> None:
    """Neither pyplot nor a changed rcParams; nothing of it before a figure is wanted."""
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
