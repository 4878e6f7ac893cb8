"""The scripts in examples/ and the commands of the container recipe run as documented."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxdelegate.model.records import read_model
from tests.support.networks import small_classifier

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
TRAINING = EXAMPLES / "train_networks.py"
SCRIPTS = [p.name for p in sorted(EXAMPLES.glob("*.py")) if p != TRAINING]
COMPILED, LOADED = "compiled or imported jax", "loaded what was compiled before"
# To stderr: LiteRT's notice, and what a slow machine says it waits for.
NOTICES = re.compile(
    r"INFO: Created TensorFlow Lite XNNPACK delegate for CPU\.\n"
    r"|(JAX traces and compiles|compiling) .*\n"
)
DOCKERFILE = (EXAMPLES / "container/Dockerfile").read_text()


def run(command: list[str], folder: Path, **variables: str) -> str:
    """The output of the command, which must succeed without warnings."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, NOTICES.sub("", done.stderr)) == (0, "")
    return done.stdout


def written(printed: str, name: str) -> Path:
    """The last file of this name in what a script printed."""
    return Path(re.findall(rf"/\S*/{name}", printed)[-1])


def percentages(printed: str) -> list[int]:
    return [int(n) for n in re.findall(r"(\d+)%", printed)]


def check_trained_integers(printed: str, file: Path, gain: int) -> None:
    before, after = percentages(printed)
    assert before < after - gain
    differ = re.findall(r"(\d+) of (\d+) results differ", printed)
    assert [(int(n), int(results) > 0) for n, results in differ] == [(0, True)] * 2
    assert read_model(file).subgraphs


def check_quantization_aware(printed: str) -> None:
    check_trained_integers(printed, written(printed, "tuned.tflite"), gain=40)


def check_distil(printed: str) -> None:
    check_trained_integers(printed, written(printed, "distilled.tflite"), gain=30)


def check_fine_tune(printed: str) -> None:
    before, after = percentages(printed)
    assert before < after - 15
    assert float(printed.rsplit(maxsplit=1)[-1]) < 2e-3
    assert read_model(written(printed, "fine_tuned.tflite")).subgraphs


def check_own_delegate(printed: str) -> None:
    hosts = printed.splitlines()
    assert [line.split(":")[0] for line in hosts] == ["jaxdelegate", "ai_edge_litert.interpreter"]
    for line in hosts:
        assert ": 1 operation will run on" in line
        assert float(line.rstrip(".").split()[-1]) < 1e-6


def check_own_operator(printed: str) -> None:
    numbers = [[float(x) for x in re.findall(r"-?\d+\.\d*", line)] for line in printed.split("XLA")]
    np.testing.assert_allclose(*numbers, rtol=1e-6)
    assert len(numbers[0]) == 5


def check_exact_integers(printed: str) -> None:
    integers, floats = (line.split() for line in printed.splitlines()[-2:])
    assert integers == ["integer", "0", "0"]
    assert floats[0] == "float_view"
    assert int(floats[1]) > 0


def check_audio_batches(printed: str) -> None:
    assert "windows per second on " in printed
    head, *rows = written(printed, "detections.csv").read_text().splitlines()
    assert head == "start_s,end_s,class,score"
    found = [row.split(",")[:3] for row in rows]
    assert found == [[f"{3 * i:.2f}", f"{3 * i + 3:.2f}", str(i % 16)] for i in range(50)]


def check_compile_for_container(printed: str) -> None:
    starts = [line for line in printed.splitlines() if line.startswith("first answer")]
    assert [line.partition(": ")[2] for line in starts] == [COMPILED, LOADED]


CHECKS = {
    "audio_batches.py": check_audio_batches,
    "compile_for_container.py": check_compile_for_container,
    "distil.py": check_distil,
    "exact_integers.py": check_exact_integers,
    "fine_tune.py": check_fine_tune,
    "own_delegate.py": check_own_delegate,
    "own_operator.py": check_own_operator,
    "quantization_aware.py": check_quantization_aware,
}


WHEN = [pytest.param(n, marks=[] if n == "own_operator.py" else pytest.mark.slow) for n in SCRIPTS]


@pytest.mark.timeout(900)  # some train networks
@pytest.mark.parametrize("name", WHEN)
def test_an_example_runs_without_arguments(name: str, tmp_path: Path) -> None:
    temporary, here = tmp_path / "temporary", tmp_path / "here"
    temporary.mkdir()
    here.mkdir()
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    printed = run(command, here, TMPDIR=str(temporary))
    assert printed.strip()
    assert not list(here.iterdir())
    if name in CHECKS:
        CHECKS[name](printed)


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_is_short(name: str) -> None:
    lines = (EXAMPLES / name).read_text().splitlines()
    assert len(lines) < 40
    assert lines[0].startswith('"""')


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "operators"),
    [
        ("classification", {"DEPTHWISE_CONV_2D", "FULLY_CONNECTED"}),
        ("detection", {"TFLite_Detection_PostProcess"}),
        ("segmentation", {"CONV_2D"}),
        ("pose", {"CONV_2D"}),
        ("keywords", {"SVDF", "FULLY_CONNECTED"}),
    ],
)
def test_networks_are_trained_and_written(task: str, operators: set[str], tmp_path: Path) -> None:
    # The quantizer's interpreter warns that it keeps all tensors.
    command = [sys.executable, "-W", "error", "-W", "ignore:Warning", str(TRAINING)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    options = [f"--task={task}", "--steps=2", "--count=32"]
    subprocess.run([*command, *options], cwd=tmp_path, env=environment, check=True)
    (subgraph,) = read_model(tmp_path / f"{task}.tflite").subgraphs
    assert {op.name for op in subgraph.operators} >= operators
    assert (task == "keywords") != (tmp_path / f"{task}_int8.tflite").exists()


def test_the_table_has_every_script() -> None:
    rows = re.findall(r"^\| `(\w+\.py)` \| ", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted([*SCRIPTS, TRAINING.name])


@pytest.mark.slow
def test_a_missing_platform_is_an_error(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "audio_batches.py"), "--platform=tpu"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "tpu" in done.stderr
    assert not (tmp_path / "detections.csv").exists()


def in_the_image(start: str) -> str:
    """The rest of the Dockerfile's line with this start."""
    (rest,) = re.findall(f"^{start}(.*)$", DOCKERFILE, re.MULTILINE)
    return str(rest)


@pytest.mark.slow
def test_the_container_serves_what_its_build_compiled(tmp_path: Path) -> None:
    (tmp_path / "model.tflite").write_bytes(small_classifier())
    source, copy = in_the_image("COPY examples/").split()
    shutil.copy(EXAMPLES / source, tmp_path / copy)
    compiling = shlex.split(in_the_image("RUN jaxdelegate "))
    python, *serving = json.loads(in_the_image("CMD "))
    assert python == "python"
    compiled = run([sys.executable, "-m", "jaxdelegate", *compiling], tmp_path)
    assert "1 program compiled and stored in programs" in compiled
    assert LOADED in run([sys.executable, *serving], tmp_path)


def test_the_files_that_the_container_copies_exist() -> None:
    for source in re.findall(r"^COPY (\S+) ", DOCKERFILE, re.MULTILINE):
        if not source.startswith(("--from", "$")):
            assert (ROOT / source).exists()
