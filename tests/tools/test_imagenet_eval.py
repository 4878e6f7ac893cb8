import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.evaluation.images import Preprocessing
from jaxdelegate.protos import message
from jaxdelegate.tools.main import main

CLASSES, SIZE = 20, 32

pytestmark = pytest.mark.usefixtures("compiled_once")

# For the output of TFLite's own run_eval, with or without its log's prefix.
TFLITE_OUTPUT = re.compile(
    r"^(?:INFO: )?Num evaluation runs: (?P<runs>\d+)\n"
    r"(?:INFO: )?Preprocessing latency: avg=(?P<preprocessing>[\d.e+]+)\(us\), std_dev=\d+\(us\)\n"
    r"(?:INFO: )?Inference latency: avg=(?P<inference>[\d.e+]+)\(us\), std_dev=\d+\(us\)\n"
    r"(?P<accuracies>(?:(?:INFO: )?Top-\d+ Accuracy: [\d.e-]+\n)+)",
    re.MULTILINE,
)


class Set:
    """Small pictures, MobileNet v1 and label files."""

    def __init__(self, folder: Path, count: int, seed: int = 0) -> None:
        self.folder, self.images = folder, folder / "val"
        self.images.mkdir(parents=True)
        rng = np.random.default_rng(seed)
        for i in range(count):
            low = rng.integers(0, 256, (4, 4, 3), np.uint8)
            picture = Image.fromarray(low).resize((48, 40), Image.Resampling.BICUBIC)
            picture.save(self.images / f"ILSVRC2012_val_{i + 1:08}.JPEG", quality=80)
        content = mobilenet_v1(size=SIZE, width=0.25, classes=CLASSES)
        (folder / "model.tflite").write_bytes(content)
        labels = [f"class {i}" for i in range(CLASSES)]
        self.write("labels.txt", labels)
        self.write("truth.txt", [labels[i % CLASSES] for i in range(count)])

    def write(self, name: str, lines: list[str]) -> None:
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines))

    def arguments(self, **flags: Any) -> list[str]:
        given = {
            "model_file": self.folder / "model.tflite",
            "ground_truth_images_path": self.images,
            "ground_truth_labels": self.folder / "truth.txt",
            "model_output_labels": self.folder / "labels.txt",
            **flags,
        }
        return ["imagenet_eval", *(f"--{k}={v}" for k, v in given.items() if v is not None)]


@pytest.fixture
def data(tmp_path: Path) -> Set:
    return Set(tmp_path / "data", 11)


def accuracies(printed: str) -> list[float]:
    found = TFLITE_OUTPUT.search(printed)
    assert found is not None
    lines = found["accuracies"].splitlines()
    assert [line.split(" Acc")[0] for line in lines] == [f"Top-{k + 1}" for k in range(len(lines))]
    return [float(line.split(": ")[1]) for line in lines]


def test_the_expression_reads_tflites_documented_output() -> None:
    documented = (
        "Num evaluation runs: 300 \nPreprocessing latency: avg=13772.5(us), std_dev=0(us)\n"
        "Inference latency: avg=76578.4(us), std_dev=600(us)\nTop-1 Accuracy: 0.733333\n"
        "Top-2 Accuracy: 0.826667\n"
    ).replace(" \n", "\n")
    assert accuracies(documented) == [0.733333, 0.826667]


def test_the_console_reads_like_tflites(data: Set, capsys: pytest.CaptureFixture[str]) -> None:
    results, metrics = data.folder / "r.jsonl", data.folder / "metrics.pb"
    arguments = data.arguments(results_file_path=results, output_file_path=metrics, batch_size=4)
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    found = TFLITE_OUTPUT.search(printed)
    assert found is not None
    assert found["runs"] == "11"
    assert float(found["preprocessing"]) > 0
    assert float(found["inference"]) > 0
    ranks = [json.loads(line)["rank"] for line in results.read_text().splitlines()]
    want = [sum(r is not None and r <= k for r in ranks) / 11 for k in range(1, 11)]
    assert accuracies(printed) == pytest.approx(want, abs=1e-6)
    assert 0 < want[-1] < 1
    assert "Batch size: 4\n" in printed
    assert re.search(r"^Waits: decode wait [\d.]+%, device wait [\d.]+%, ", printed, re.MULTILINE)
    read = message("tflite.evaluation.EvaluationStageMetrics")
    read.ParseFromString(metrics.read_bytes())
    stage = read.process_metrics.image_classification_metrics
    assert (read.num_runs, stage.inference_metrics.num_inferences) == (11, 11)
    assert list(stage.topk_accuracy_metrics.topk_accuracies) == pytest.approx(want)
    assert f"{stage.pre_processing_latency.avg_us:g}" == found["preprocessing"]
    assert f"{stage.inference_latency.avg_us:g}" == found["inference"]


@pytest.mark.parametrize("flag", ["--use_jax=false", "--use_jax", "--use_xnnpack"])
def test_every_host_gives_the_same_accuracies(
    data: Set, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    results = data.folder / "r.parquet"
    assert main([*data.arguments(output_file_path=results, batch_size=4), flag]) == 0
    rows = pq.read_table(results).to_pylist()
    assert len(accuracies(capsys.readouterr().out)) == 10
    assert (
        main([*data.arguments(output_file_path=data.folder / "numpy.parquet"), "--nouse_jax"]) == 0
    )
    for got, want in zip(
        rows, pq.read_table(data.folder / "numpy.parquet").to_pylist(), strict=True
    ):
        assert got["indices"] == want["indices"]
        assert got["scores"] == pytest.approx(want["scores"], rel=1e-4)


def test_skipped_images_are_listed_and_set_the_exit_code(
    data: Set, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (data.images / "ILSVRC2012_val_00000005.JPEG").read_bytes()
    (data.images / "ILSVRC2012_val_00000005.JPEG").write_bytes(whole[:-40])
    (data.images / "ILSVRC2012_val_00000008.JPEG").write_bytes(b"")
    assert main(data.arguments()) == 3
    printed = capsys.readouterr()
    assert "Num evaluation runs: 9\n" in printed.out
    lines = printed.err.splitlines()
    assert lines[-3].startswith("skipped ILSVRC2012_val_00000005.JPEG: image file is truncated")
    assert lines[-2] == "skipped ILSVRC2012_val_00000008.JPEG: cannot identify image file"
    assert lines[-1] == "jaxdelegate: skipped 2 images"


def test_json_metrics(data: Set) -> None:
    path = data.folder / "metrics.json"
    assert main(data.arguments(output_file_path=path, num_images=4, num_ranks=3)) == 0
    read = json.loads(path.read_text())
    assert read["num_runs"] == 4
    stage = read["process_metrics"]["image_classification_metrics"]
    assert len(stage["topk_accuracy_metrics"]["topk_accuracies"]) == 3


@pytest.mark.parametrize("name", ["denylist_file_path", "blacklist_file_path"])
def test_denylist(data: Set, capsys: pytest.CaptureFixture[str], name: str) -> None:
    data.write("deny.txt", ["1", "3"])
    assert main(data.arguments(**{name: data.folder / "deny.txt"})) == 0
    assert "Num evaluation runs: 9\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"model_file": None}, "--model_file is required"),
        ({"ground_truth_images_path": None}, "--ground_truth_images_path is required"),
        ({"model_output_labels": None}, "--model_output_labels is required"),
        ({"model_file": "no.tflite"}, "no.tflite"),
        ({"model_file": "{folder}/labels.txt"}, "labels.txt"),
        ({"ground_truth_images_path": "no"}, "ground_truth_images_path: [Errno 2] No such file"),
        ({"ground_truth_images_path": "{folder}/empty"}, "no images (.jpg, .jpeg, .png, .rgb8)"),
        ({"ground_truth_labels": None}, "the 11 images in "),
        ({"ground_truth_labels": "no"}, "ground-truth labels: [Errno 2] No such file"),
        ({"ground_truth_labels": "{folder}/labels.txt"}, "each of the 11 images in"),
        ({"model_output_labels": "{folder}/truth.txt"}, "the model's 20 outputs, got 11"),
        ({"num_ranks": 21}, "num_ranks: must be 1 to 20, the number of labels, got 21"),
        ({"num_ranks": 0}, "num_ranks"),
        ({"num_images": -1}, "num_images"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": "x"}, "batch_size"),
        ({"batch_sise": 1}, "Unknown command line flag 'batch_sise'"),
        ({"denylist_file_path": "no"}, "denylist: [Errno 2] No such file"),
        ({"results_file_path": "r.csv"}, "results file 'r.csv': must end in .jsonl or .parquet"),
        ({"results_file_path": "no/r.jsonl"}, "results_file_path: no/r.jsonl: no such folder"),
        ({"output_file_path": "no/m.pb"}, "output_file_path: no/m.pb: no such folder"),
        ({"output_file_path": "a.jsonl", "results_file_path": "b.jsonl"}, "give one"),
        ({"delegate": "hexagon"}, "'hexagon' is not available here"),
        ({"delegate": "gpux"}, "delegate"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_1(
    data: Set, refused: Callable[..., str], flags: dict[str, str], message: str
) -> None:
    (data.folder / "empty").mkdir()
    given = {k: v and str(v).replace("{folder}", str(data.folder)) for k, v in flags.items()}
    assert message in refused(*data.arguments(**given))


def run(arguments: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jaxdelegate", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, **more)


@pytest.mark.slow
def test_1000_images_with_damage_and_a_kill(tmp_path: Path) -> None:
    data = Set(tmp_path / "data", 1000)
    for i in (17, 603):
        (data.images / f"ILSVRC2012_val_{i:08}.JPEG").write_bytes(b"damaged")
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    done = run(data.arguments(results_file_path=whole))
    assert done.returncode == 3, done.stderr
    assert "Num evaluation runs: 998\n" in done.stdout
    assert sum(line.startswith("skipped ") for line in done.stderr.splitlines()) == 2
    unfinished = tmp_path / "part.jsonl.part"
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxdelegate", *data.arguments(results_file_path=part)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None:  # killed as soon as a few batches are on the disk
        if unfinished.exists() and unfinished.read_bytes().count(b"\n") > 100:
            os.kill(process.pid, signal.SIGKILL)
            break
        time.sleep(0.002)
    assert process.wait() == -signal.SIGKILL, "it was done before it could be killed"
    again = run(data.arguments(results_file_path=part))
    assert again.returncode == 3
    resumed = re.search(r"^Resumed: (\d+) images", again.stdout, re.MULTILINE)
    assert resumed is not None
    assert 96 <= int(resumed[1]) < 1000
    assert int(resumed[1]) % 32 == 0
    assert part.read_bytes() == whole.read_bytes()
    assert accuracies(again.stdout) == accuracies(done.stdout)


@pytest.mark.slow
def test_images_whose_decoding_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Decoding waits so long that the device's time is small in comparison."""
    data = Set(tmp_path / "data", 400)
    call = Preprocessing.__call__

    def slow(self: Preprocessing, path: Path) -> np.ndarray:
        time.sleep(0.1)
        return call(self, path)

    monkeypatch.setattr(Preprocessing, "__call__", slow)
    assert main(data.arguments(num_decode_threads=16)) == 0
    printed = capsys.readouterr().out
    found = re.search(
        r"^Waits: decode wait ([\d.]+)%, device wait ([\d.]+)%", printed, re.MULTILINE
    )
    assert found is not None
    assert float(found[1]) > 50
    assert float(found[2]) < 20


@pytest.mark.slow
def test_several_devices_write_the_same_rows(data: Set) -> None:
    """Batches alternate between devices, including damaged images and the last, smaller batch."""
    (data.images / "ILSVRC2012_val_00000005.JPEG").write_bytes(b"")
    one, three = data.folder / "one.jsonl", data.folder / "three.jsonl"
    assert main(data.arguments(results_file_path=one, batch_size=2)) == 3
    arguments = data.arguments(results_file_path=three, batch_size=2, num_devices=0)
    run = subprocess.run(
        [sys.executable, "-m", "jaxdelegate", *arguments],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 3, run.stderr
    assert "Devices: 3\n" in run.stdout
    assert three.read_bytes() == one.read_bytes()


def test_more_devices_than_available(data: Set, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(data.arguments(num_devices=4)) == 1
    assert (
        "num_devices: 4 requested, but cpu has 1: cpu:0. To have a CPU count as 4 devices set "
        "JAX_NUM_CPU_DEVICES=4, or XLA_FLAGS="
    ) in capsys.readouterr().err
    assert main([*data.arguments(num_devices=2), "--jax_device_index=0"]) == 1
    assert "names one; give one of them" in capsys.readouterr().err
    assert main([*data.arguments(num_devices=2), "--use_jax=false"]) == 1
    assert "num_devices is for JaxDelegate" in capsys.readouterr().err
