"""Benchmarks, and the formats of their results."""

import csv
import dataclasses
import gzip
import io
import itertools
import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.benchmark import results, state, tables
from jaxdelegate.benchmark.op_profile import totals
from jaxdelegate.benchmark.options import BenchmarkOptions
from jaxdelegate.benchmark.results import BenchmarkReport
from jaxdelegate.benchmark.run import benchmark, graph_source
from jaxdelegate.benchmark.session import Session
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.op_lowering.options import AddOptions
from jaxdelegate.protos import message
from jaxdelegate.providers import flag_values
from jaxdelegate.testing.builder import ModelBuilder

MODEL = mobilenet_v1(size=32, width=0.25)
SHORT = BenchmarkOptions(num_runs=3, min_secs=0, warmup_runs=2, warmup_min_secs=0, seed=4)
PROFILED = dataclasses.replace(SHORT, enable_op_profiling=True, profile_runs=3)


def two_adds(*, signatures: bool = False) -> bytes:
    builder = ModelBuilder()
    x = builder.input((1, 4), np.float32, "x", shape_signature=(-1, 4))
    y, z = builder.tensor((1, 4), name="y"), builder.tensor((1, 4), name="z")
    builder.operator("ADD", [x, x], [y], AddOptions())
    builder.operator("ADD", [y, x], [z], AddOptions())
    builder.outputs(z)
    if signatures:
        builder.signature("first", {"x": x}, {"y": y})
        builder.signature("second", {"x": x}, {"z": z})
    return builder.build()


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> tuple[BenchmarkReport, list[str], Path]:
    """A report of a network whose second half stays on the host, its lines, its trace."""
    trace = tmp_path_factory.mktemp("trace") / "trace.json.gz"
    lines: list[str] = []
    options = dataclasses.replace(PROFILED, perfetto_trace=str(trace))
    values = flag_values(last_delegate_node_index=19)
    return benchmark(MODEL, options, values=values, log=lines.append), lines, trace


Half = tuple[BenchmarkReport, list[str], Path]


def test_what_was_run(half: Half) -> None:
    report, _, _ = half
    assert report.inference.count == 3
    assert report.warmup.count == 2
    assert (report.interpreter, report.batch, report.seed) == ("jaxdelegate", 1, 4)
    assert report.model_bytes == len(MODEL)
    (x,) = report.inputs
    assert (x.name, x.shape, x.dtype) == ("input", (1, 32, 32, 3), "float32")
    assert report.input_bytes == 32 * 32 * 3 * 4
    (applied,) = report.delegates
    assert (applied.name, applied.kernels, applied.taken) == ("JAX", 1, 20)
    assert not applied.is_complete
    assert report.flags == {"last_delegate_node_index": 19}
    assert report.versions["jaxdelegate"] == jd.__version__


def test_throughput_follows_from_the_times(half: Half) -> None:
    report, _, _ = half
    seconds = sum(report.inference.values) / 1e6
    assert report.inferences_per_second == pytest.approx(3 / seconds)
    assert report.megabytes_per_second == pytest.approx(3 * 12288 / seconds / 2**20)


def test_the_lines_of_tflite_in_their_order(half: Half) -> None:
    _, lines, _ = half
    starts = [
        "Loaded model <bytes>",
        "JAX delegate created.",
        "Explicitly applied JAX delegate, and the model graph will be partially executed by the "
        "delegate w/ 1 delegate kernels.",
        "The input model file size (MB): ",
        "Initialized session in ",
        "Running benchmark for at least 2 iterations and at least 0 seconds but terminate if "
        "exceeding 150 seconds.",
        "count=2 ",
        "Running benchmark for at least 3 iterations",
        "count=3 ",
        "Inference timings in us: Init: ",
        "Note: as the benchmark tool itself affects memory footprint",
        "Memory footprint delta from the start of the tool (MB): init=",
    ]
    found = zip(lines[: len(starts)], starts, strict=True)
    assert all(line.startswith(start) for line, start in found)


def test_host_operators_and_partitions_are_timed(half: Half) -> None:
    report, _, _ = half
    assert report.profile is not None
    partition, *host = report.profile.nodes
    assert (partition.type, partition.nodes) == ("JaxDelegate", tuple(range(20)))
    assert partition.name == "[depthwise_20]:31"  # TFLite numbers delegate nodes after operators
    assert [(row.type, row.nodes) for row in host] == [
        *[("CONV_2D", (20,)), ("DEPTHWISE_CONV_2D", (21,)), ("CONV_2D", (22,))],
        *[("DEPTHWISE_CONV_2D", (23,)), ("CONV_2D", (24,)), ("DEPTHWISE_CONV_2D", (25,))],
        *[("CONV_2D", (26,)), ("AVERAGE_POOL_2D", (27,)), ("CONV_2D", (28,))],
        *[("RESHAPE", (29,)), ("SOFTMAX", (30,))],
    ]
    assert all(row.times.count == 3 for row in report.profile.nodes)
    assert host[-1].bytes == 1001 * 4


def test_operators_in_the_partition_are_timed(half: Half) -> None:
    report, _, _ = half
    assert report.profile is not None
    inside = report.profile.inside
    covered = {index for row in inside for index in row.nodes}
    assert covered == set(range(20))
    named = [row for row in inside if row.nodes]
    assert sum(row.times.sum for row in named) >= 0.9 * totals(inside).sum > 0
    for row in named:
        kinds = {"CONV_2D" if i % 2 == 0 else "DEPTHWISE_CONV_2D" for i in row.nodes}
        assert set(row.type.split("+")) == kinds
        assert row.name.endswith(":" + "+".join(map(str, row.nodes)))


def test_work_and_time_of_operators_for_a_roofline(half: Half) -> None:
    report, _, _ = half
    assert report.profile is not None
    work = report.profile.work
    assert sorted(i for row in work for i in row.nodes) == list(range(31))  # each one once
    (last,) = [row for row in work if row.nodes == (28,)]
    assert last.flops == 2 * 256 * 1001
    assert last.bytes == 4 * (256 + 256 * 1001 + 1001 + 1001)
    inside = [row for row in work if row.nodes[0] < 20]
    named = [row for row in report.profile.inside if row.nodes]
    seconds = sum(row.times.avg for row in named) / 1e6
    assert sum(row.seconds for row in inside) == pytest.approx(seconds)
    convolution = next(row for row in inside if 0 in row.nodes)
    assert convolution.flops is not None
    assert convolution.flops >= 2 * 16 * 16 * 8 * 27
    assert convolution.bytes >= 4 * (32 * 32 * 3 + 16 * 16 * 8)


def test_the_trace_is_one_that_perfetto_reads(half: Half) -> None:
    _, _, trace = half
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert any("fusion" in event.get("name", "") for event in events)


def test_results_as_json_csv_and_proto(half: Half) -> None:
    report, _, _ = half
    record = json.loads(json.dumps(report.as_dict()))
    latency = record["latency_metrics"]
    assert latency["avg_ms"] == pytest.approx(report.inference.avg / 1e3)
    assert latency["first_inference_ms"] == report.warmup.first / 1e3
    assert latency["init_ms"] == report.init_us / 1e3
    assert record["misc_metrics"]["num_runs"] == 3
    assert record["inference_ms"]["p95"] == report.inference.percentile(95) / 1e3
    assert record["op_profile"]["nodes"][0]["nodes"] == list(range(20))
    assert record["inference_ms"]["values"] == [us / 1e3 for us in report.inference.values]
    (row,) = csv.DictReader(io.StringIO(results.to_csv([results.row_of(report.as_dict())])))
    assert float(row["avg_ms"]) == pytest.approx(latency["avg_ms"])
    assert row["batch"] == "1"
    proto = message("tflite.tools.benchmark.BenchmarkResult")
    proto.ParseFromString(results.to_proto(report))
    assert proto.latency_metrics.median_ms == pytest.approx(latency["median_ms"])
    assert proto.misc_metrics.num_warmup_runs == 2
    assert proto.misc_metrics.model_size_mb == pytest.approx(len(MODEL) / 1e6)


def test_the_wire_format_of_the_result(half: Half) -> None:
    """The field numbers matter: misc_metrics is 4, its counts of runs are 2 and 3."""
    content = results.to_proto(dataclasses.replace(half[0], name="run"))
    assert content.startswith(b"\x0a\x03run\x12")
    # model_size_mb, a float, then num_runs=3 and num_warmup_runs=2
    assert re.search(rb"\x22.\x0d.{4}\x10\x03\x18\x02", content, re.DOTALL)


def test_the_profile_as_tables_of_tflite(half: Half) -> None:
    report, _, _ = half
    assert report.profile is not None
    text = tables.profile_text(report.profile)
    assert text.startswith("Profiling Info for Benchmark Initialization:\n")
    runs = text[text.index("Operator-wise Profiling Info for Regular Benchmark Runs:") :]
    lines = runs.splitlines()
    assert lines[1] == f"{'=' * 30} Run Order {'=' * 30}"
    assert lines[2].split("\t")[1:] == [
        f"{name:>{width}}"
        for name, width in [
            *[("[node type]", 40), ("[first]", 9), ("[avg ms]", 9), ("[%]", 8), ("[cdf%]", 8)],
            *[("[mem KB]", 10), ("[times called]", 9), ("[Name]", 0)],
        ]
    ]
    rows = [line.split("\t")[1:] for line in lines[3:15]]
    assert [row[0].strip() for row in rows][:2] == ["JaxDelegate", "CONV_2D"]
    assert [float(row[2]) for row in rows] == pytest.approx(
        [r.times.avg / 1e3 for r in report.profile.nodes], abs=6e-4
    )
    assert sum(float(row[3].rstrip("%")) for row in rows) == pytest.approx(100, abs=0.1)
    assert rows[-1][4].strip() == "100.000%"
    assert "Delegate internal: \n" in runs
    assert runs.count("Summary by node type") == 2
    assert "12 nodes observed" in runs


def test_the_profile_as_csv_and_proto(half: Half) -> None:
    report, _, _ = half
    assert report.profile is not None
    lines = tables.profile_text(report.profile, as_csv=True).splitlines()
    at = lines.index("Operator-wise Profiling Info for Regular Benchmark Runs:")
    assert lines[at + 2] == "node type, first, avg_ms, %, cdf%, mem KB, times called, name"
    fields = lines[at + 3].split(", ")
    assert (fields[0], len(fields)) == ("JaxDelegate", 8)
    from ai_edge_litert import profiling_info_pb2

    data = profiling_info_pb2.BenchmarkProfilingData()
    data.ParseFromString(tables.profile_proto(report.profile, "m"))
    ops = data.runtime_profile.subgraph_profiles[0].per_op_profiles
    assert [op.node_type for op in ops] == [row.type for row in report.profile.nodes]
    assert ops[0].inference_microseconds.sum == report.profile.nodes[0].times.sum
    inside = data.runtime_profile.delegate_profiles[0].per_op_profiles
    assert len(inside) == len(report.profile.inside)


def test_results_whose_size_depends_on_data_count_no_bytes() -> None:
    builder = ModelBuilder()
    x = builder.input((4,), np.bool_)
    y = builder.tensor((1, 1), np.int64)
    builder.operator("WHERE", [x], [y])
    builder.outputs(y)
    report = benchmark(builder.build(), PROFILED, values=flag_values(use_jax=False))
    assert report.profile is not None
    (row,) = report.profile.nodes
    assert (row.type, row.bytes) == ("WHERE", 0)


def test_the_stock_interpreter_as_host() -> None:
    kept: dict[str, Any] = {}

    def after(session: Session) -> None:
        kept["out"] = session.output(int(session.outputs[0]["index"]))
        kept["info"] = state.runtime_info(session, "m")
        kept["text"] = state.state_text(session)

    values = flag_values(interpreter="litert", last_delegate_node_index=19)
    report = benchmark(MODEL, PROFILED, values=values, after=after)
    assert report.interpreter == "litert"
    assert report.delegates[0].taken == 20
    assert kept["out"].sum() == pytest.approx(1, abs=1e-4)
    assert "DELEGATE" in kept["text"]
    assert report.profile is not None
    partition, rest = report.profile.nodes
    assert partition.type == "JaxDelegate"
    assert partition.times == totals(r for r in report.profile.inside if r.nodes)
    assert rest.times.sum > 0
    assert {i for row in report.profile.inside for i in row.nodes} == set(range(20))


def test_without_a_delegate_the_hosts_kernels_run() -> None:
    lines: list[str] = []
    report = benchmark(two_adds(), PROFILED, values=flag_values(use_jax=False), log=lines.append)
    assert report.delegates == ()
    assert report.device is None
    assert report.profile is not None
    assert [row.type for row in report.profile.nodes] == ["ADD", "ADD"]
    assert report.profile.inside == ()
    report = benchmark(two_adds(), SHORT, values=flag_values(use_xnnpack=True))
    assert report.interpreter == "litert"


def test_inputs_as_the_flags_say(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    (tmp_path / "x.bin").write_bytes(values.tobytes())
    kept = {}

    def after(session: Session) -> None:
        kept["bytes"] = state.outputs_bytes(session)
        kept["example"] = state.outputs_example(session)

    options = dataclasses.replace(
        SHORT,
        input_layer="x",
        input_layer_shape="3,4",
        input_layer_value_files=f"x:{tmp_path / 'x.bin'}",
    )
    report = benchmark(two_adds(), options, after=after)
    assert report.batch == 3
    np.testing.assert_array_equal(
        np.frombuffer(kept["bytes"], np.float32).reshape(3, 4), values * 3
    )
    example = message("tensorflow.Example")
    example.ParseFromString(kept["example"])
    (entry,) = example.features.feature
    assert entry.key == "z"
    assert list(entry.value.float_list.value) == list(values.ravel() * 3)


def test_signatures() -> None:
    model = two_adds(signatures=True)
    with pytest.raises(jd.OptionError, match="several signatures; pass one of: first"):
        benchmark(model, SHORT)
    for values in (flag_values(), flag_values(interpreter="litert")):
        options = dataclasses.replace(SHORT, signature_to_run_for="second")
        assert benchmark(model, options, values=values).signature == "second"
    options = dataclasses.replace(SHORT, signature_to_run_for="third")
    with pytest.raises(jd.OptionError, match="no 'third'; it has: first, second"):
        benchmark(model, options)


def test_full_delegation_is_required() -> None:
    values = flag_values(require_full_delegation=True)
    assert benchmark(two_adds(), SHORT, values=values).delegates[0].is_complete
    for host, name in itertools.product(
        ("jaxdelegate", "litert"), ("require_full_delegation", "jax_require_full_delegation")
    ):
        asked: dict[str, Any] = {name: True}
        partly = flag_values(last_delegate_node_index=0, interpreter=host, **asked)
        with pytest.raises(jd.DelegationError) as error:
            benchmark(two_adds(), SHORT, values=partly)
        assert str(error.value).startswith("Disallowed CPU fallback detected.")
        assert "ADD: outside of first_delegate_node_index" in str(error.value)
    nothing = flag_values(require_full_delegation=True, use_jax=False)
    with pytest.raises(jd.DelegationError, match="Disallowed CPU fallback detected"):
        benchmark(two_adds(), SHORT, values=nothing)


def test_a_dry_run_measures_the_preparation_only() -> None:
    dry = benchmark(two_adds(), dataclasses.replace(SHORT, dry_run=True))
    assert (dry.warmup.count, dry.inference.count, dry.inferences_per_second) == (0, 0, 0)
    assert dry.init_us > 0


def test_memory_figures() -> None:
    options = dataclasses.replace(
        SHORT, report_peak_memory_footprint=True, memory_footprint_check_interval_ms=1
    )
    lines: list[str] = []
    report = benchmark(two_adds(), options, log=lines.append)
    assert report.footprint.overall_kb >= report.footprint.init_kb
    assert report.footprint.peak_mb is not None
    assert any(line.startswith("Overall peak memory footprint (MB) via periodic") for line in lines)
    assert report.device_memory is not None
    assert report.device_memory.programs_bytes >= 2 * 4 * 4


def test_inputs_on_the_device() -> None:
    options = dataclasses.replace(SHORT, device_inputs=True)
    seen: list[Any] = []

    def note(session: Session) -> None:
        seen.append(session.interpreter._runner(0).value(int(session.inputs[0]["index"])))

    report = benchmark(two_adds(), options, after=note)
    assert report.inference.count == 3
    assert isinstance(seen[0], jax.Array)


@pytest.mark.parametrize("option", [{"device_inputs": True}, {"inflight": 2}])
@pytest.mark.parametrize(
    ("values", "who"),
    [({"interpreter": "litert"}, "LiteRT's interpreter"), ({"use_jax": False}, "no JaxDelegate")],
)
def test_a_missing_device(values: dict[str, Any], who: str, option: dict[str, Any]) -> None:
    options = dataclasses.replace(SHORT, **option)
    match = f"{next(iter(option))}: needs JaxDelegate .*, got {who}"
    with pytest.raises(jd.OptionError, match=match):
        benchmark(two_adds(), options, values=flag_values(**values))


def test_throughput_with_runs_in_flight() -> None:
    lines: list[str] = []
    options = dataclasses.replace(SHORT, batch_size=2, inflight=2)
    found = benchmark(two_adds(), options, log=lines.append)
    assert found.throughput is not None
    assert (found.throughput.in_flight, found.throughput.runs) == (2, SHORT.num_runs)
    rate = found.throughput.inferences_per_second
    assert rate == pytest.approx(2 * SHORT.num_runs / found.throughput.seconds)
    assert any(f"2 in flight, from host to host: {rate:g} inferences/s" in line for line in lines)
    assert found.as_dict()["throughput"]["inferences_per_second"] == rate
    assert benchmark(two_adds(), SHORT).as_dict()["throughput"] is None


def test_inferences_of_a_batch_are_counted() -> None:
    report = benchmark(two_adds(), dataclasses.replace(SHORT, batch_size=8))
    assert report.inputs[0].shape == (8, 4)
    assert report.inferences_per_second == pytest.approx(8 * 3e6 / report.inference.sum)


def fixed_to_one() -> bytes:
    """ADD takes one row, or three."""
    builder = ModelBuilder()
    x = builder.input((1, 4), np.float32, "x")
    w = builder.constant(np.ones((3, 4), np.float32), "w")
    y = builder.tensor((3, 4), name="y")
    builder.operator("ADD", [x, w], [y], AddOptions())
    builder.outputs(y)
    return builder.build()


def test_a_batch_on_a_model_that_fixes_one() -> None:
    lines: list[str] = []
    options = dataclasses.replace(SHORT, batch_size=2)
    report = benchmark(fixed_to_one(), options, log=lines.append)
    assert (report.batch, report.inputs[0].shape) == (2, (2, 4))
    (line,) = [line for line in lines if "Rebatched" in line]
    assert line.startswith("Rebatched: 2 single runs in one program, because Node number 0 (ADD)")


def test_a_batch_size_that_the_model_rejects(caplog: pytest.LogCaptureFixture) -> None:
    """Since it is not delegated completely, it cannot be rebatched."""
    values = flag_values(first_delegate_node_index=1)
    with pytest.raises(jd.InterpreterError, match="ADD"):
        benchmark(fixed_to_one(), dataclasses.replace(SHORT, batch_size=2), values=values)
    assert "operators that stay outside, 1 of 1 operator" in caplog.text


def test_inputs_without_a_batch_keep_their_shape() -> None:
    builder = ModelBuilder()
    x, w = builder.input((4,), np.float32, "w"), builder.input((1, 4), np.float32, "x")
    y = builder.tensor((1, 4), name="y")
    builder.operator("ADD", [w, x], [y], AddOptions())
    builder.outputs(y)
    options = dataclasses.replace(SHORT, batch_size=2)
    report = benchmark(builder.build(), options)
    assert report.batch == 2
    assert [row.shape for row in report.inputs] == [(4,), (2, 4)]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"num_runs": -1}, "num_runs: must be at least 0, got -1"),
        ({"profile_runs": 0}, "profile_runs: must be at least 1, got 0"),
        ({"seed": -2}, "seed: must be at least -1, got -2"),
        ({"batch_size": -1}, "batch_size: must be at least 0, got -1"),
        ({"input_layer": "x"}, "input_layer_shape: expected one shape for each of 1 names"),
    ],
)
def test_impossible_options(more: dict[str, Any], message: str) -> None:
    with pytest.raises(jd.OptionError) as error:
        dataclasses.replace(SHORT, **more)
    assert message in str(error.value)


def test_graphs(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(b"ab" + two_adds() + b"c")
    with path.open("rb") as file:
        size = len(two_adds())
        assert graph_source(f"fd:{file.fileno()}:2:{size}") == two_adds()
        assert graph_source(str(path)) == str(path)
    with pytest.raises(jd.OptionError, match="expected fd:"):
        graph_source("fd:1:2")
    with pytest.raises(jd.OptionError, match=r"name the \.tflite file to run"):
        graph_source("")
    with pytest.raises(FileNotFoundError, match="no such file"):
        graph_source(str(tmp_path / "x"))


def test_runtime_info_says_who_runs_what() -> None:
    from ai_edge_litert import model_runtime_info_pb2

    kept = {}

    def before(session: Session) -> None:
        kept["info"], kept["text"] = state.runtime_info(session, "m"), state.state_text(session)

    benchmark(two_adds(), SHORT, values=flag_values(last_delegate_node_index=0), before=before)
    info = model_runtime_info_pb2.ModelRuntimeDetails()
    info.ParseFromString(kept["info"])
    (graph,) = info.subgraphs
    assert list(graph.execution_plan) == [2, 1]
    assert graph.nodes[0].delegated_to_node_id == 2
    assert not graph.nodes[1].HasField("delegated_to_node_id")
    assert list(graph.nodes[2].delegate_node_details.tflite_node_ids_replaced) == [0]
    edge = graph.edges[0]
    assert (edge.name, list(edge.shape), edge.data_type) == ("x", [1, 4], 1)
    assert "Node   0 Delegate JaxDelegate [1 node: 0]" in kept["text"]
    assert "Node   1 Operator ADD (node 1)" in kept["text"]
    assert "1 Inputs: [0] -> 16B (0.00MB)" in kept["text"]
