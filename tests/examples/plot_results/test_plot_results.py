"""`python examples/plot_results`: figures show the numbers of the tools' files."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_rgba

from jaxdelegate.benchmark.peaks import DevicePeaks
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.tools.main import main
from plot_results import figures
from plot_results.results import Result, kind_of, read

ROOT = Path(__file__).parents[3]


def of(*records: dict[str, Any]) -> list[Result]:
    return [Result(Path("r.json"), {"model": "dir/net.tflite", **record}) for record in records]


def benchmark(batch: int, avg: float, *values: float, **more: Any) -> dict[str, Any]:
    times = {"avg": avg, "values": [*values]}
    return {"platform": "gpu", "device": "an L4", "batch": batch, "inference_ms": times, **more}


def operator(name: str, flops: float | None, moved: float, seconds: float) -> dict[str, Any]:
    return {"name": name, "flops": flops, "bytes": moved, "seconds": seconds}


def profile(*operators: dict[str, Any], peaks: dict[str, Any] | None = None) -> Result:
    limits = peaks or {"flops_per_second": 1e12, "bytes_per_second": 1e11}
    return of({"operators": operators, "peaks": limits})[0]


def layer(i: int, whole: float, own: float, agrees: bool = True, name: str = "") -> dict[str, Any]:
    errors = [{"relative_to_largest": e, "agrees": agrees, "name": name} for e in (whole, own)]
    return {"node": i, "operator": "ADD", "tensor": errors[0], "local": errors[1]}


def comparison(*layers: dict[str, Any], **more: Any) -> Result:
    words = {"tool": "inference_diff", "test": "XLA", "reference": "numpy", "delegation": "All."}
    return of({**words, "layers": {"layers": layers}, **more})[0]


def points(line: Any) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(*line.get_data(), strict=True)]


def names(axes: Any) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.texts]


def legend(figure: Any) -> list[str]:
    (box,) = figure.legends
    return [text.get_text() for text in box.get_texts()]


def test_latency() -> None:
    figure = figures.latency(of(benchmark(4, 4.0, 3, 1, 2, 10)))
    (axes,) = figure.axes
    curve, median = axes.lines
    assert points(curve)[-4:] == [(1, 0.25), (2, 0.5), (3, 0.75), (10, 1)]
    assert median.get_xdata()[0] == 2.5
    assert legend(figure) == ["net gpu, batch 4 (median 2.5 ms)"]
    assert figure.get_suptitle() == "Latency distribution\nnet\non an L4"


def test_batch() -> None:
    flags = {"jax_compute_dtype": "float16"}
    figure = figures.batch(of(benchmark(8, 16), benchmark(1, 4), benchmark(1, 1, flags=flags)))
    left, right = figure.axes
    assert [points(line) for line in left.lines] == [[(1, 250), (8, 500)], [(1, 1000)]]
    assert [points(line) for line in right.lines] == [[(1, 4), (8, 16)], [(1, 1)]]
    assert legend(figure) == ["net gpu", "net gpu --jax_compute_dtype=float16"]


def test_roofline() -> None:
    fused = {**operator("MUL+ADD 1+2+3+4", 1e11, 1e9, 0.2), "nodes": [1, 2, 3, 4]}
    copy, slow = operator("custom 5", None, 1e9, 0.01), operator("ADD 0", 1e9, 1e9, 0.02)
    figure = figures.roofline([profile(copy, slow, fused)])
    dots, bars = figure.axes
    places = [tuple(dot.get_offsets()[0]) for dot in dots.collections]
    np.testing.assert_allclose(sorted(places), [(1, 5e10), (100, 5e11)])
    (start, ridge), (corner, _) = (points(line) for line in dots.lines)
    assert (start[1] / start[0], ridge, corner) == (pytest.approx(1e11), (10, 1e12), (10, 1e12))
    assert legend(figure) == ["memory: 100 GB/s, given", "arithmetic: 1 TFLOP/s, given"]
    assert names(bars) == ["MUL+ADD 1…4 (4 fused)", "ADD 0", "custom 5"]
    assert [bar.get_width() for bar in bars.patches] == pytest.approx([200, 20, 10])
    assert texts(bars) == [
        "87% of the time, 50% of its roof",
        "9% of the time, 50% of its roof",
        "4% of the time, no arithmetic",
    ]


def test_what_fits_into_a_cache_has_its_own_roof() -> None:
    peaks = DevicePeaks(1e12, {1 << 20: 1e11, 4 << 20: 5e10, 16 << 20: 1e10}).as_dict()
    small, middle = operator("a", 1e6, 1e6, 1e-4), operator("b", 2e6, 2e6, 1e-4)
    figure = figures.roofline([profile(small, middle, operator("c", 1e8, 1e8, 1e-2), peaks=peaks)])
    assert [text.split(", ")[1] for text in texts(figure.axes[1])] == [
        "100% of its roof",
        "10% of its roof",
        "40% of its roof",
    ]
    assert legend(figure) == [
        "memory: 10 GB/s, measured: addition in place",
        "cache (array of 1 MiB): 100 GB/s, measured: addition in place",
        "arithmetic: 1 TFLOP/s, measured: product of matrices, float32",
    ]


def test_many_operators_are_not_all_named() -> None:
    operators = [operator(f"op {i}", 1e6, 1e6, (i + 1) * 1e-3) for i in range(20)]
    dots, bars = figures.roofline([profile(*operators)]).axes
    assert len(dots.collections) == 20
    assert names(bars) == [f"op {i}" for i in range(19, 11, -1)]
    assert bars.get_xlabel().endswith("; 12 others: 78 ms")


def test_layers() -> None:
    rows = [
        layer(0, 1e-6, 1e-6, name="a/very/long/name" * 5 + "/end"),
        layer(1, 0.2, 0.1, agrees=False),
        layer(2, 0.2, 0.0),
    ]
    figure = figures.layers([comparison(*rows)])
    along, bars = figure.axes
    own, whole, crossed = along.lines
    np.testing.assert_array_equal(own.get_ydata(), [1e-6, 0.1, np.nan])
    assert points(whole) == [(0, 1e-6), (1, 0.2), (2, 0.2)]
    assert points(crossed) == [(1, 0.1)]
    assert figure.get_suptitle() == "Error per layer\nnet\nXLA against numpy. All."
    first, second, third = names(bars)
    assert (first, third) == ("#1 ADD", "#2 ADD")
    assert second.startswith("#0 ADD …")
    assert second.endswith("name/end")
    assert texts(bars) == ["0.1, out of bounds", "1e-06", "0"]


def test_outputs_of_two_comparisons_without_layers() -> None:
    outputs = [{"name": "y", "relative_to_largest": 0.1, "agrees": True}]
    figure = figures.layers([comparison(layers=None, outputs=outputs)] * 2)
    assert texts(figure.axes[1]) == ["0.1 (whole program)"] * 2
    assert [text.split(",")[0] for text in legend(figure)] == ["r (1)", "r (1)", "r (2)", "r (2)"]
    lines, bars = figure.axes[0].lines[::2], figure.axes[1].patches
    colors = [to_rgba(line.get_color()) for line in lines]
    assert colors == [bar.get_facecolor() for bar in bars]
    assert colors[0] != colors[1]


def assert_readable(figure: Any) -> None:
    """No two texts overlap, all are on the figure, and none is small at 800 pixels."""
    text_module = importlib.import_module("matplotlib.text")
    figure.draw_without_rendering()
    boxes = {id(t): (t, t.get_window_extent()) for t in figure.findobj(text_module.Text)}
    for axes in figure.axes:  # ticks beyond the limits are not drawn
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks() + axis.get_minor_ticks():
                boxes.pop(id(tick.label2))
                if not low <= tick.get_loc() <= high:
                    boxes.pop(id(tick.label1))
    shown = [(t.get_text(), box) for t, box in boxes.values() if t.get_visible() and t.get_text()]
    for i, (text, box) in enumerate(shown):
        assert 0 <= box.x0 < box.x1 <= 1400, text
        assert 0 <= box.y0 < box.y1 <= figure.get_figheight() * figure.dpi, text
        for other, second in shown[i + 1 :]:
            assert not box.padded(-1).overlaps(second.padded(-1)), (text, other)
    for text, _ in boxes.values():
        assert text.get_fontsize() / 72 * figure.dpi * 800 / 1400 >= 10 or not text.get_text()


LONG = "StatefulPartitionedCall/a_model_with_a_long_name/block_12/expand_1x1/Relu6;" * 3


@pytest.mark.slow
@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.exhaustive), 150])
def test_texts_do_not_overlap(count: int) -> None:
    rng = np.random.default_rng(count)
    long = {"model": LONG, "device": "NVIDIA H100 80GB HBM3 (cuda:0)"}
    kinds = ("CONV_2D", "DEPTHWISE_CONV_2D+MUL+ADD+HARD_SWISH+TRANSPOSE_CONV", "RESHAPE")
    flops, moved, seconds = 10 ** rng.uniform(3, 9, (3, count)) * [[1], [0.1], [1e-11]]
    operators = [
        operator(f"{kinds[i % 3]} {i}", flops[i] * (i % 3 < 2), moved[i], seconds[i])
        for i in range(count)
    ]
    peaks = {"flops_per_second": 6.7e13, "bytes_per_second": 3.35e12}
    assert_readable(figures.roofline(of({"operators": operators, "peaks": peaks, **long})))
    errors = 10 ** rng.uniform(-9, 0, count)
    rows = [layer(i, 2 * e, e, i % 7 > 0, f"{LONG}{i}") for i, e in enumerate(errors.tolist())]
    assert_readable(figures.layers([comparison(*rows, test=LONG)]))
    runs = [
        benchmark(1, 1, *(i * rng.lognormal(0, 1, 200)), name=f"{LONG[:90]} {i}", **long)
        for i in range(1, min(count, 12) + 1)
    ]
    assert_readable(figures.latency(of(*runs)))
    batches = [benchmark(i, 3 + i**1.5, **long) for i in range(1, count + 1)]
    assert_readable(figures.batch(of(*batches)))


@pytest.mark.parametrize(
    ("records", "kind"),
    [
        ([benchmark(1, 1.5, 1, 2, operators=[])], "latency"),
        ([benchmark(n, 1, 1) for n in (1, 8)], "batch"),
        ([{"operators": [operator("ADD", 1, 1, 1)]}], "roofline"),
        ([{"layers": None, "outputs": []}], "layers"),
    ],
)
def test_the_kind_is_what_the_results_have(records: list[dict[str, Any]], kind: str) -> None:
    assert kind_of(of(*records)) == kind


@pytest.mark.parametrize("text", ["[{}, {}]", "{}\n{}\n", "[{}]"])
def test_formats_of_files(text: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    assert [result.record for result in read(path)] == [{}] * text.count("{")


def test_configurations_have_their_names(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    rows = [
        {"configuration": {"name": "cpu w/ 1 threads"}, "result": benchmark(1, 4)},
        {"configuration": {"name": "cpu w/ 2 threads"}, "result": None},
    ]
    path.write_text(json.dumps(rows))
    assert [result.name for result in read(path)] == ["cpu w/ 1 threads"]


# ---- the script


def plotted(*words: str, folder: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "examples/plot_results"), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_results_of_the_tools(tmp_path: Path) -> None:
    builder = ModelBuilder()
    x = builder.input((1, 64), np.float32, "x")
    w = builder.constant(np.full((32, 64), 0.1, np.float32))
    y = builder.tensor((1, 32), name="y")
    builder.operator("FULLY_CONNECTED", [x, w, None], [y])
    builder.outputs(y)
    model, diff, times = (tmp_path / name for name in ("m.tflite", "diff.json", "times.json"))
    model.write_bytes(builder.build())
    assert main(["inference_diff", f"{model}", "--num_runs=1", f"--result_json={diff}"]) == 0
    runs = ["--num_runs=3", "--min_secs=0", "--warmup_min_secs=0", "--profile_runs=2"]
    flags = [*runs, "--enable_op_profiling", f"--result_json={times}"]
    assert main(["benchmark_model", f"{model}", *flags]) == 0
    process = plotted("diff.json", folder=tmp_path)
    assert process.stdout == "layers plot of diff.json written to diff.png\n"
    assert (tmp_path / "diff.png").read_bytes().startswith(b"\x89PNG")
    peaks = "--peak_flops=1e11", "--peak_bandwidth=1e10"
    process = plotted("times.json", "--kind=roofline", "--output=r.svg", *peaks, folder=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "FULLY_CONNECTED" in (tmp_path / "r.svg").read_text()


@pytest.mark.parametrize(
    ("text", "flag", "message"),
    [
        ("", "", "Expecting value"),
        ("[1, 2]", "", "expected JSON objects"),
        ("{}", "", "expected a result of inference_diff or benchmark_model"),
        ("{}", "--kind=latency", "there is no 'inference_ms'"),
        ('{"inference_ms": 3}', "--kind=latency", "r.json: "),
        ('{"operators": []}', "--kind=roofline", "the device's peaks are not known"),
        ('{"inference_ms": {"values": [1]}}', "--output=x.txt", "Format 'txt' is not supported"),
        ('{"inference_ms": {"values": [1]}}', "--output=absent/x.png", "No such file"),
        ("", "--kind=pie", "invalid choice: 'pie'"),
        ("", "--peak_flops=1", "give both or neither"),
    ],
)
def test_mistakes_have_no_traceback(text: str, flag: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(text)
    process = plotted("r.json", *filter(None, [flag]), folder=tmp_path)
    assert process.returncode > 0
    assert message in process.stderr
    assert "Traceback" not in process.stderr
