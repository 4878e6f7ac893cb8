"""imagenet_eval and coco_eval on the actors of a Ray cluster."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.errors import InterpreterError, OptionError
from jaxdelegate.ray import evaluation
from jaxdelegate.ray.evaluation import ImageActor, RayBatches, RayRunner
from jaxdelegate.tools.main import main
from tests.support.detectors import color_detector

SIZE, CLASSES, COUNT, BATCH = 32, 12, 27, 4
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures, one of them damaged, a classifier and labels."""
    folder = tmp_path_factory.mktemp("evaluation")
    (folder / "val").mkdir()
    rng = np.random.default_rng(0)
    for i in range(COUNT):
        low = Image.fromarray(rng.integers(0, 256, (4, 4, 3), np.uint8))
        low.resize((48, 40), Image.Resampling.BICUBIC).save(folder / "val" / f"{i:04}.jpg")
    (folder / "val" / "0009.jpg").write_bytes(b"no picture")
    (folder / "model.tflite").write_bytes(mobilenet_v1(size=SIZE, width=0.25, classes=CLASSES))
    labels = [f"class {i}" for i in range(CLASSES)]
    (folder / "labels.txt").write_text("\n".join(labels) + "\n")
    truth = [labels[i % CLASSES] for i in range(COUNT)]
    (folder / "truth.txt").write_text("\n".join(truth) + "\n")
    return folder


def evaluated(folder: Path, results: Path, *, code: int = 3, **flags: Any) -> list[str]:
    """Run the tool, which skips an image; returns its rows as text."""
    given = {
        "model_file": folder / "model.tflite",
        "ground_truth_images_path": folder / "val",
        "ground_truth_labels": folder / "truth.txt",
        "model_output_labels": folder / "labels.txt",
        "results_file_path": results,
        "batch_size": BATCH,
        **flags,
    }
    assert main(["imagenet_eval", *(f"--{k}={v}" for k, v in given.items())]) == code
    return results.read_text().splitlines() if code == 3 else []


@pytest.fixture(scope="module")
def rows(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The rows of this process."""
    return evaluated(folder, tmp_path_factory.mktemp("plain") / "rows.jsonl")


def lines(printed: str) -> list[str]:
    """The printed accuracies and counts."""
    return [x for x in printed.splitlines() if "latency" not in x and "Waits" not in x]


def test_the_rows_are_those_of_one_process(
    folder: Path, rows: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluated(folder, tmp_path / "rows.jsonl", ray_address="local") == rows
    capsys.readouterr()
    evaluated(folder, tmp_path / "a.jsonl", ray_address="local", ray_actors=1, ray_cpus=0.5)
    on_actors = lines(capsys.readouterr().out)
    evaluated(folder, tmp_path / "b.jsonl")
    assert on_actors == lines(capsys.readouterr().out)
    assert (tmp_path / "a.jsonl").read_text().splitlines() == rows


class DyingActor(ImageActor):
    """Its process exits at some batches, up to a number of times, which files count."""

    batches: tuple[int, ...] = (12,)
    most = 1

    def run(self, first: int, paths: Sequence[Path], *arguments: Any) -> Any:
        deaths = [*paths[0].parent.glob(f"died-{first}-*")]
        if first in self.batches and len(deaths) < self.most:
            (paths[0].parent / f"died-{first}-{len(deaths)}").touch()
            os._exit(1)
        return super().run(first, paths, *arguments)


class AlwaysDyingActor(DyingActor):
    batches = (0,)
    most = 99


class DeadActor(ImageActor):
    """Its process exits before it begins a batch."""

    def __init__(self, *_arguments: Any, **_expected: int) -> None:
        os._exit(1)


def with_actors(monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path, actor: type) -> Path:
    """A copy of the folder, evaluated by other actors."""
    monkeypatch.setattr(evaluation, "ImageActor", actor)
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def test_a_dying_actor_loses_no_image_and_counts_none_twice(
    folder: Path, rows: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = with_actors(monkeypatch, folder, tmp_path, DyingActor)
    flags = {"ray_address": "local", "ray_actors": 2}
    assert evaluated(copy, tmp_path / "rows.jsonl", **flags) == rows
    assert [died.name for died in (copy / "val").glob("died-*")] == ["died-12-0"]


def test_a_batch_that_kills_its_actors_is_an_error(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = with_actors(monkeypatch, folder, tmp_path, AlwaysDyingActor)
    evaluated(copy, tmp_path / "rows.jsonl", code=1, ray_address="local", ray_actors=1)
    message = f"an actor died repeatedly with the batch that begins with {copy}/val/0000.jpg"
    assert message in capsys.readouterr().err
    assert len([*(copy / "val").glob("died-*")]) == 3


def test_actors_that_die_at_their_start_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "ImageActor", DeadActor)
    monkeypatch.setattr(evaluation, "_MAX_RESTARTS", 2)
    runner = RayRunner({}, address="local", actors=1)
    with pytest.raises(
        InterpreterError, match="an actor died repeatedly while it opened the model"
    ):
        runner.open("model.tflite", batch_size=2, num_outputs=1)
    runner.close()


def test_a_run_is_resumed(
    folder: Path, rows: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is interrupted after three batches, and resumed."""
    run = RayBatches.run
    given = {"ray_address": "local", "ray_actors": 1}

    def interrupted(self: Any, *arguments: Any) -> Iterator[Any]:
        for count, batch in enumerate(run(self, *arguments)):
            if count == 3:
                raise KeyboardInterrupt
            yield batch

    with monkeypatch.context() as patch:
        patch.setattr(RayBatches, "run", interrupted)
        evaluated(folder, tmp_path / "rows.jsonl", code=130, **given)
    part = (tmp_path / "rows.jsonl.part").read_text().splitlines()
    assert part[1:] == rows[: 3 * BATCH]
    assert evaluated(folder, tmp_path / "rows.jsonl", **given) == rows


def test_errors_in_an_actor_are_those_of_one_process(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "damaged.tflite").write_bytes(b"no model")
    given = {
        "model_file": tmp_path / "damaged.tflite",
        "ground_truth_images_path": folder / "val",
        "ground_truth_labels": folder / "truth.txt",
        "model_output_labels": folder / "labels.txt",
    }
    arguments = ["imagenet_eval", *(f"--{k}={v}" for k, v in given.items())]
    assert main(arguments) == 1
    want = capsys.readouterr().err
    assert main([*arguments, "--ray_address=local", "--ray_actors=1"]) == 1
    assert capsys.readouterr().err == want
    assert main([*arguments, "--ray_address=local", "--ray_gpus=1"]) == 1
    assert "an actor takes 1 CPUs and 1 GPUs; the cluster has 3 and 0" in capsys.readouterr().err
    with pytest.raises(OptionError, match="room for 3, got 9"):
        RayRunner({}, address="local", actors=9)


def test_detectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four outputs, whose order the interpreter in the actor determines."""
    images = []
    for i, channel in enumerate((0, 1, 0, 2)):
        pixels = np.zeros((40, 80, 3), np.uint8)
        pixels[10 * i : 10 * i + 10, :20, channel] = 255
        Image.fromarray(pixels).save(tmp_path / f"{i:012}.png")
        images.append({"id": i + 1, "file_name": f"{i:012}.png", "width": 80, "height": 40})
    box = {"id": 0, "image_id": 1, "category_id": 1, "bbox": [0, 0, 20, 10]}
    names = [{"id": 1, "name": "red"}, {"id": 2, "name": "green"}]
    data = {"info": {}, "images": images, "annotations": [box], "categories": names}
    (tmp_path / "instances.json").write_text(json.dumps(data))
    (tmp_path / "model.tflite").write_bytes(color_detector())
    rows, printed = [], []
    for name, more in (("plain", []), ("ray", ["--ray_address=local", "--ray_actors=1"])):
        given = {
            "model_file": tmp_path / "model.tflite",
            "ground_truth_images_path": tmp_path,
            "instances_file": tmp_path / "instances.json",
            "results_file_path": tmp_path / f"{name}.jsonl",
            "batch_size": 2,
        }
        assert main(["coco_eval", *(f"--{k}={v}" for k, v in given.items()), *more]) == 0
        rows.append((tmp_path / f"{name}.jsonl").read_text())
        printed.append(lines(capsys.readouterr().out))
    assert rows[0] == rows[1]
    assert printed[0] == printed[1]
    assert '"class_ids": [1]' in rows[0]


def test_the_folder_has_a_damaged_picture(rows: list[str]) -> None:
    assert [i for i, row in enumerate(rows) if json.loads(row)["error"]] == [9]
