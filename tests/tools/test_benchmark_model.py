"""`jaxdelegate benchmark_model` on the command line."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxdelegate.measuring.tolerance import NETWORK, assert_close
from jaxdelegate.op_lowering.options import AddOptions
from jaxdelegate.testing.builder import ModelBuilder
from jaxdelegate.tools.main import main

DEEPLAB = (
    Path(__file__).parents[3]
    / "shared"
    / "models"
    / "networks"
    / "image_segmenter__deeplabv3.tflite"
)
pytestmark = pytest.mark.usefixtures("compiled_once")
SHORT = ("--num_runs=4", "--min_secs=0.01", "--warmup_runs=2", "--warmup_min_secs=0", "--seed=1")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One ADD of its input [1, 4] and a constant [1, 4]."""
    builder = ModelBuilder()
    x = builder.input((1, 4), np.float32, "input")
    w = builder.constant(np.ones((1, 4), np.float32), "w")
    y = builder.tensor((1, 4), name="y")
    builder.operator("ADD", [x, w], [y], AddOptions())
    builder.outputs(y)
    builder.signature("serving_default", {"input": x}, {"y": y})
    path = tmp_path_factory.mktemp("models") / "small.tflite"
    path.write_bytes(builder.build())
    return str(path)


@pytest.fixture
def graph(network_path: str) -> str:
    return network_path


def test_lines_read_by_expressions_written_for_tflite(
    graph: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "r.json"
    assert main(["benchmark_model", f"--graph={graph}", *SHORT, f"--result_json={target}"]) == 0
    printed = capsys.readouterr().out
    expressions = [
        r"^INFO: STARTING!$",
        r"^INFO: Log parameter values verbosely: \[(\d)\]$",
        r"^INFO: Min num runs: \[(\d+)\]$",
        r"^INFO: Graph: \[(.+)\]$",
        r"^INFO: Loaded model (.+)$",
        r"^INFO: Explicitly applied (\w+) delegate, and the model graph will be completely "
        r"executed by the delegate\.$",
        r"^INFO: The input model file size \(MB\): ([\d.]+)$",
        r"^INFO: Initialized session in ([\d.]+)ms\.$",
        r"^INFO: Running benchmark for at least (\d+) iterations and at least ([\d.]+) seconds but "
        r"terminate if exceeding (\d+) seconds\.$",
        r"^INFO: count=(\d+) first=(\d+) curr=(\d+) min=(\d+) max=(\d+) avg=([\d.e+]+) std=(\d+)",
        r"^INFO: Inference timings in us: Init: (\d+), First inference: (\d+), "
        r"Warmup \(avg\): ([\d.e+]+), Inference \(avg\): ([\d.e+]+)$",
        r"^INFO: Memory footprint delta from the start of the tool \(MB\): "
        r"init=([\d.]+) overall=([\d.]+)$",
    ]
    found = [re.search(e, printed, re.MULTILINE) for e in expressions]
    assert all(found), [e for e, f in zip(expressions, found, strict=True) if f is None]
    assert [f.start() for f in found if f] == sorted(f.start() for f in found if f)
    record = json.loads(target.read_text())
    assert record["misc_metrics"]["num_warmup_runs"] == 2
    stats = re.findall(r"count=(\d+) .*avg=([\d.e+]+)", printed)
    assert int(stats[1][0]) == record["misc_metrics"]["num_runs"] >= 4
    assert float(stats[1][1]) == pytest.approx(record["latency_metrics"]["avg_ms"] * 1e3, rel=1e-4)
    assert record["delegates"][0]["taken"] == 5
    assert record["seed"] == 1


def test_every_output_file(graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        name: tmp_path / name
        for name in (
            *("result_csv", "result_file_path", "op_profiling_output_file", "perfetto_trace"),
            *("model_runtime_info_output_file", "output_filepath", "output_proto_filepath"),
        )
    }
    flags = [f"--{name}={path}" for name, path in files.items()]
    more = ("--op_profiling_output_mode=csv", "--export_model_runtime_info", "--profile_runs=2")
    assert main(["benchmark_model", f"--graph={graph}", *SHORT, *flags, *more]) == 0
    assert all(path.stat().st_size >= 16 for path in files.values())
    probabilities = np.fromfile(files["output_filepath"], np.float32)
    assert probabilities.shape == (4,)
    assert probabilities.sum() == pytest.approx(1, abs=1e-4)
    profile = files["op_profiling_output_file"].read_text()
    assert "JaxDelegate, " in profile
    assert re.search(r"^DEPTHWISE_CONV_2D, .*:1$", profile, re.MULTILINE)
    assert "Run Order" not in capsys.readouterr().out


def outputs(graph: str, folder: Path, *flags: str) -> np.ndarray:
    path = folder / "outputs.bin"
    arguments = [f"--graph={graph}", *SHORT, *flags, f"--output_filepath={path}"]
    assert main(["benchmark_model", *arguments]) == 0
    return np.fromfile(path, np.float32)


def test_delegate_hosts_and_xnnpack_agree(graph: str, tmp_path: Path) -> None:
    want = outputs(graph, tmp_path, "--use_xnnpack")
    assert want.max() > 1.5 / 4  # not the same everywhere
    for flags in ((), ("--interpreter=litert",), ("--last_delegate_node_index=2",)):
        assert_close([outputs(graph, tmp_path, *flags)], [want], tolerance=NETWORK)


@pytest.mark.slow
@pytest.mark.skipif(not DEEPLAB.exists(), reason="the real models are not here")
def test_deeplab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph, target = str(DEEPLAB), tmp_path / "r.json"
    got = outputs(
        graph, tmp_path, "--enable_op_profiling", "--profile_runs=2", f"--result_json={target}"
    )
    printed = capsys.readouterr().out
    assert_close([got], [outputs(graph, tmp_path, "--use_xnnpack")], tolerance=NETWORK)
    assert "the model graph will be completely executed by the delegate" in printed
    record = json.loads(target.read_text())
    inside = record["op_profile"]["inside_partitions"]
    covered = {index for row in inside for index in row["nodes"]}
    assert len(covered) > 60  # of 70: some operators are folded or only move data
    assert covered <= set(range(70))
    assert {"CONV_2D", "DEPTHWISE_CONV_2D", "RESIZE_BILINEAR"} <= {
        kind for row in inside for kind in row["type"].split("+")
    }
    (partition,) = record["op_profile"]["nodes"]
    spent = sum(row["us"]["avg"] for row in inside)
    assert 0 < spent < 4 * partition["us"]["avg"]  # overlap on several threads is possible


def test_the_precision_check_is_reported(
    small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "r.json"
    flags = ("--check_precision", "--jax_compute_dtype=bfloat16", f"--result_json={target}")
    assert main(["benchmark_model", f"--graph={small}", *SHORT, *flags]) == 0
    precision = json.loads(target.read_text())["precision"]
    assert precision["compute_dtype"] == "bfloat16"
    assert [row["op"] for row in precision["operators"]] == ["ADD"]
    assert "bfloat16" in capsys.readouterr().out


def test_states_are_printed_around_the_runs(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = (
        "--print_preinvoke_state",
        "--print_postinvoke_state",
        "--tensor_name_display_length=5",
    )
    assert main(["benchmark_model", f"--graph={small}", *SHORT, *flags]) == 0
    printed = capsys.readouterr().out
    for when in ("pre-invoke", "post-invoke"):
        for what in ("begins", "ends"):
            assert f"====Printing out TfLite interpreter {when} state {what}====" in printed
    assert "Tensor 0   input kTfLiteFloat32  kTfLiteDynamic     16 / 0.00" in printed


def test_verbose_logs_flags_that_were_not_given(
    small: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["benchmark_model", f"--graph={small}", "--dry_run", "--verbose"]) == 0
    printed = capsys.readouterr().out
    for line in (
        "Min num runs: [50]",
        "Run w/o invoking kernels: [1]",
        "Use gpu: [0]",
        "jax_platform: []",
    ):
        assert f"INFO: {line}\n" in printed
    assert "Max runs duration (seconds): [150]" in printed
    assert printed.count("count=0 ") == 2


def test_signatures_are_listed(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark_model", f"--graph={small}", "--list_signatures"]) == 0
    printed = capsys.readouterr().out
    assert "The Model contains 1 signature key(s)." in printed
    assert "-> Signature Key: serving_default" in printed


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--graph is required"),
        (["--graph=/nowhere/m.tflite"], "graph: /nowhere/m.tflite: no such file"),
        (["--graph={junk}"], "a TFLite model has a header"),
        (["--graph={junk}", "--use_xnnpack"], "not a valid Flatbuffer"),
        (["--grph={small}"], "Unknown command line flag 'grph'. Did you mean: graph ?"),
        (["--graph={small}", "--num_runs=x"], "flag --num_runs=x: invalid literal"),
        (["--graph={small}", "--num_runs=-5"], "num_runs: must be at least 0, got -5"),
        (["--graph={small}", "--noverbose=1"], "--noverbose=1 does not take an argument"),
        (
            ["--graph={small}", "--op_profiling_output_mode=x"],
            "should be one of <stdout|csv|proto>",
        ),
        (
            ["--graph={small}", "--result_json={folder}/x/r.json"],
            "result_json: {folder}/x/r.json: no",
        ),
        (["--graph={small}", "--output_filepath={folder}"], "output_filepath: {folder}: cannot be"),
        (["--graph={small}", "--input_layer=a"], "expected one shape for each of 1 names"),
        (
            ["--graph={small}", "--input_layer=input", "--input_layer_shape=1,32,32"],
            "input_layer_shape: input 'input' has 2 dimensions, got 1,32,32",
        ),
        (
            ["--graph={small}", "--input_layer=a,b", "--input_layer_shape=1:1"],
            "input_layer: the model has 1 inputs, got 2",
        ),
        (
            ["--graph={small}", "--input_layer=input", "--input_layer_shape=1,3"],
            "ADD",
        ),
        (["--graph={small}", "--jax_platform=tpu"], "platform: 'tpu' is not there; JAX has"),
        (["--graph={small}", "--jax_device_index=99"], "device_index: 99 is not there"),
        (["--graph={small}", "--signature_to_run_for=x"], "the model has no 'x'; it has: serving"),
        (
            ["--graph={small}", "--export_model_runtime_info"],
            "needs model_runtime_info_output_file",
        ),
        (
            ["--graph={small}", "--use_xnnpack", "--interpreter=jaxdelegate"],
            "interpreter: use_xnnpack needs the stock interpreter",
        ),
        (
            ["--graph={small}", "--allow_fp16", "--nojax_is_precision_loss_allowed"],
            "--allow_fp16 and --nojax_is_precision_loss_allowed contradict each other",
        ),
        (
            ["--graph={small}", "--use_jax=false", "--require_full_delegation"],
            "Disallowed CPU fallback detected.",
        ),
    ],
)
def test_mistakes_are_one_line_and_exit_code_1(
    flags: list[str], message: str, small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    junk = tmp_path / "junk.tflite"
    junk.write_bytes(b"junk")
    places = {"small": small, "junk": str(junk), "folder": str(tmp_path)}
    assert main(["benchmark_model", *(flag.format(**places) for flag in flags)]) == 1
    printed = capsys.readouterr().err
    errors = [line for line in printed.splitlines() if line.startswith("jaxdelegate: ")]
    assert len(errors) == 1
    assert message.format(**places) in errors[0]
    assert "Traceback" not in printed


def test_undelegated_operators_are_listed(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--require_full_delegation", "--last_delegate_node_index=2")
    assert main(["benchmark_model", f"--graph={graph}", *flags]) == 1
    printed = capsys.readouterr().err
    assert "jaxdelegate: Disallowed CPU fallback detected." in printed
    assert "AVERAGE_POOL_2D: outside of first_delegate_node_index 0" in printed
    assert "SOFTMAX: " in printed


def test_allow_fp16_reaches_the_delegate(
    small: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from jaxdelegate.providers import builtin

    seen = []
    of = builtin.jax_options
    monkeypatch.setattr(
        builtin, "jax_options", lambda values: seen.append(of(values)) or of(values)
    )
    main(["benchmark_model", f"--graph={small}", "--dry_run", "--allow_fp16"])
    main(["benchmark_model", f"--graph={small}", "--dry_run"])
    capsys.readouterr()
    assert [options.is_precision_loss_allowed for options in seen] == [True, None]


@pytest.mark.slow
def test_num_threads_reach_xla_in_a_new_process(small: str) -> None:
    code = (
        "import os, sys\nfrom jaxdelegate.tools.main import main\n"
        f"rc = main(['benchmark_model', '--graph={small}', '--dry_run', '--num_threads=1'])\n"
        "sys.exit(rc or os.environ['NPROC'] != '1')"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "too late" not in done.stderr
