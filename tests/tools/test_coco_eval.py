import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.protos import message
from jaxdelegate.tools.main import main
from tests.support.detectors import color_detector, mobilenet_v1_ssd

pytestmark = pytest.mark.usefixtures("compiled_once")

# For the output of TFLite's own run_eval, with or without its log's prefix.
TFLITE_OUTPUT = re.compile(
    r"^(?:INFO: )?Num evaluation runs: (?P<runs>\d+)\n"
    r"(?:INFO: )?Preprocessing latency: avg=(?P<preprocessing>[\d.e+]+)\(us\), std_dev=\d+\(us\)\n"
    r"(?:INFO: )?Inference latency: avg=(?P<inference>[\d.e+]+)\(us\), std_dev=\d+\(us\)\n"
    r"(?P<precisions>(?:(?:INFO: )?Average Precision \[IOU Threshold=[\d.]+\]: [\d.e-]+\n){10})"
    r"(?:INFO: )?Overall mAP: (?P<overall>[\d.e-]+)$",
    re.MULTILINE,
)
THRESHOLDS = ["0.5", "0.55", "0.6", "0.65", "0.7", "0.75", "0.8", "0.85", "0.9", "0.95"]
SHARED = Path(__file__).parents[2].parent / "shared" / "models" / "zoo"
SSD = SHARED / "ssd_mnv2_300_postprocess.tflite"


class Set:
    """Two images of red and green cells and a black one, in COCO's layout."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.images = folder, folder / "val2017"
        self.images.mkdir(parents=True)
        (folder / "model.tflite").write_bytes(color_detector())
        (folder / "labels.txt").write_text("???\nred\ngreen\n")
        for i, cells in enumerate(([(0, 0, 0), (3, 2, 1)], [(1, 1, 0)], [])):
            pixels = np.zeros((40, 80, 3), np.uint8)
            for row, column, channel in cells:
                pixels[10 * row : 10 * row + 10, 20 * column : 20 * column + 20, channel] = 255
            Image.fromarray(pixels).save(self.images / f"{i:012}.png")
        self.annotations: list[dict[str, Any]] = [
            {"id": 0, "image_id": 1, "category_id": 1, "bbox": [0, 0, 20, 10]},
            {"id": 1, "image_id": 1, "category_id": 2, "bbox": [40, 30, 20, 10]},
            {"id": 2, "image_id": 2, "category_id": 1, "bbox": [24, 10, 20, 10]},  # 16 / 24 found
        ]
        self.write()

    def write(self) -> None:
        data = {
            "info": {},
            "images": [
                {"id": i + 1, "file_name": f"{i:012}.png", "width": 80, "height": 40}
                for i in range(3)
            ],
            "annotations": self.annotations,
            "categories": [{"id": 1, "name": "red"}, {"id": 2, "name": "green"}],
        }
        (self.folder / "instances_val2017.json").write_text(json.dumps(data))

    def arguments(self, **flags: Any) -> list[str]:
        given = {
            "model_file": self.folder / "model.tflite",
            "ground_truth_images_path": self.images,
            "instances_file": self.folder / "instances_val2017.json",
            "model_output_labels": self.folder / "labels.txt",
            **flags,
        }
        return ["coco_eval", *(f"--{k}={v}" for k, v in given.items() if v is not None)]


@pytest.fixture
def data(tmp_path: Path) -> Set:
    return Set(tmp_path / "data")


def precisions(printed: str) -> tuple[list[float], float]:
    found = TFLITE_OUTPUT.search(printed)
    assert found is not None
    lines = found["precisions"].splitlines()
    assert [re.findall(r"=([\d.]+)\]", line)[0] for line in lines] == THRESHOLDS
    return [float(line.split("]: ")[1]) for line in lines], float(found["overall"])


def test_the_console_reads_like_tflites_and_like_pycocotools(
    data: Set, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = data.folder / "metrics.pb"
    assert main(data.arguments(output_file_path=metrics)) == 0
    printed = capsys.readouterr().out
    # red: two found; the second overlaps 16 / 24 = 0.67. 51 of 101 recalls are up to 0.5.
    tight, loose = (51 / 101 + 1) / 2, 1.0
    want = [loose] * 4 + [tight] * 6
    at_threshold, overall = precisions(printed)
    assert at_threshold == pytest.approx(want, abs=1e-6)
    assert overall == pytest.approx(np.mean(want), abs=1e-6)
    coco = re.findall(
        r"^ Average (?:Precision|Recall) +\(A[PR]\) @\[ IoU=(\S+) +\| area= *(\w+) \| "
        r"maxDets= *(\d+) \] = (-?[\d.]+)$",
        printed,
        re.MULTILINE,
    )
    assert len(coco) == 12
    assert coco[0] == ("0.50:0.95", "all", "100", f"{np.mean(want):.3f}")
    assert coco[1] == ("0.50", "all", "100", "1.000")
    assert coco[2] == ("0.75", "all", "100", f"{tight:.3f}")
    assert coco[5] == ("0.50:0.95", "large", "100", "-1.000")
    assert "Loading" not in printed
    read = message("tflite.evaluation.EvaluationStageMetrics")
    read.ParseFromString(metrics.read_bytes())
    stage = read.process_metrics.object_detection_metrics.average_precision_metrics
    assert [p.average_precision for p in stage.individual_average_precisions] == pytest.approx(want)
    assert f"{stage.overall_mean_average_precision:g}" == f"{overall:g}"


def test_debug_mode_prints_every_object(data: Set, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(data.arguments(debug_mode=True, instances_file=None)) == 0
    printed = capsys.readouterr()
    first, _, rest = printed.out.partition("=" * 54 + "\n")
    assert first == (
        "Image: 000000000000.png\n\n"
        "Object [0]\n  Score: 0.997527\n  Class-ID: 1\n  Bounding Box:\n"
        "    Normalized Top: 0\n    Normalized Bottom: 0.25\n"
        "    Normalized Left: 0\n    Normalized Right: 0.25\n"
        "Object [1]\n  Score: 0.997527\n  Class-ID: 2\n  Bounding Box:\n"
        "    Normalized Top: 0.75\n    Normalized Bottom: 1\n"
        "    Normalized Left: 0.5\n    Normalized Right: 0.75\n"
    )
    assert "Image: 000000000002.png\n\n" in rest
    assert "Num evaluation runs: 3\n" in rest
    assert "mAP" not in printed.out
    assert "WARN: mAP metrics are meaningless w/o ground truth." in printed.err


def test_per_image_results(data: Set) -> None:
    path = data.folder / "r.parquet"
    assert main(data.arguments(output_file_path=path)) == 0
    rows = pq.read_table(path).to_pylist()
    assert [(r["image"], r["image_id"], r["class_ids"]) for r in rows] == [
        ("000000000000.png", 1, [1, 2]),
        ("000000000001.png", 2, [1]),
        ("000000000002.png", 3, []),
    ]
    assert rows[1]["boxes"] == [[0.25, 0.25, 0.5, 0.5]]


def test_skipped_images(data: Set, capsys: pytest.CaptureFixture[str]) -> None:
    (data.images / "000000000001.png").write_bytes(b"damaged")
    assert main(data.arguments()) == 3
    printed = capsys.readouterr()
    assert precisions(printed.out) == (pytest.approx([1] * 10), pytest.approx(1))
    assert printed.err.splitlines()[-2:] == [
        "skipped 000000000001.png: cannot identify image file",
        "jaxdelegate: skipped 1 image",
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"model_file": None}, "--model_file is required"),
        ({"ground_truth_images_path": None}, "--ground_truth_images_path is required"),
        (
            {"ground_truth_images_path": "no", "instances_file": None},
            "ground_truth_images_path: [Errno 2] No",
        ),
        ({"ground_truth_images_path": "no"}, "ground_truth_images_path: [Errno 2] No such file"),
        ({"ground_truth_images_path": "{folder}"}, "none of the 3 images of the instances file is"),
        ({"instances_file": "no.json"}, "instances file: [Errno 2] No such file"),
        ({"instances_file": "{folder}/labels.txt"}, "expected JSON"),
        ({"ground_truth_proto": "no.pb"}, "give an instances file or a ground-truth proto"),
        ({"model_output_labels": "no"}, "model output labels: [Errno 2] No such file"),
        ({"model_output_labels": None, "instances_file": None}, "labels are needed"),
        ({"class_offset": 7}, "the model detects class id"),
        ({"model_file": "{folder}/mobilenet.tflite"}, "1 input and 4 outputs, got 1 and 1"),
        ({"allowlist_file": "{folder}/labels.txt"}, "expected an image id, got '???'"),
        ({"num_images": -1}, "num_images"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_1(
    data: Set, refused: Callable[..., str], flags: dict[str, Any], message: str
) -> None:
    (data.folder / "mobilenet.tflite").write_bytes(mobilenet_v1(size=32, width=0.25, classes=5))
    given = {
        k: v.replace("{folder}", str(data.folder)) if isinstance(v, str) else v
        for k, v in flags.items()
    }
    assert message in refused(*data.arguments(**given))


@pytest.mark.slow
@pytest.mark.skipif(not SSD.exists(), reason="the real models are not here")
def test_a_real_ssd_on_two_hosts(
    tmp_path: Path, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for i in range(4):
        low = rng.integers(0, 256, (5, 7, 3), np.uint8)
        Image.fromarray(low).resize((320, 240), Image.Resampling.BICUBIC).save(images / f"{i}.jpg")
    (tmp_path / "labels.txt").write_text("x\n" * 91)
    rows = []
    for flag in ("--use_jax", "--use_xnnpack"):
        path = tmp_path / "r.parquet"
        arguments = [
            "coco_eval",
            f"--model_file={SSD}",
            f"--ground_truth_images_path={images}",
            f"--model_output_labels={tmp_path / 'labels.txt'}",
            f"--results_file_path={path}",
            flag,
        ]
        assert main(arguments) == 0
        rows.append(pq.read_table(path).to_pylist())
    for got, want in zip(*rows, strict=True):
        assert len(got["scores"]) > 0
        assert got["scores"] == pytest.approx(want["scores"], abs=1e-4)
        assert got["class_ids"] == want["class_ids"]
        np.testing.assert_allclose(got["boxes"], want["boxes"], atol=1e-3)
    assert "Num evaluation runs: 4\n" in capsys.readouterr().out


def test_mobilenet_v1_against_the_numpy_reference(
    tmp_path: Path, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    """The numpy kernels' detections are the ground truth of XLA's: AP is 1."""
    images, content = tmp_path / "images", mobilenet_v1_ssd(size=64)
    images.mkdir()
    (tmp_path / "model.tflite").write_bytes(content)
    (tmp_path / "labels.txt").write_text("x\n" * 6)
    reference = Interpreter(model_content=content)
    reference.allocate_tensors()
    want, truth = [], message("tflite.evaluation.ObjectDetectionGroundTruth")
    for i in range(3):
        pixels = rng.integers(0, 256, (64, 64, 3), np.uint8)  # of the model's size: not resized
        Image.fromarray(pixels).save(images / f"{i}.png")
        x = (pixels.astype(np.float32) - np.float32(127.5)) * np.float32(1 / 127.5)
        reference.set_tensor(reference.get_input_details()[0]["index"], x[None])
        reference.invoke()
        outputs = [reference.get_tensor(d["index"])[0] for d in reference.get_output_details()]
        boxes, classes, scores = (y[: int(outputs[3])] for y in outputs[:3])
        want.append((boxes, classes + 1, scores))
        result = truth.detection_results.add(image_name=f"{i}.png")
        for (top, left, bottom, right), number in zip(boxes, classes, strict=True):
            box = result.objects.add(class_id=int(number) + 1).bounding_box
            box.normalized_top, box.normalized_left = top, left
            box.normalized_bottom, box.normalized_right = bottom, right
    (tmp_path / "truth.pb").write_bytes(truth.SerializeToString())
    arguments = {
        "model_file": tmp_path / "model.tflite",
        "ground_truth_images_path": images,
        "model_output_labels": tmp_path / "labels.txt",
        "ground_truth_proto": tmp_path / "truth.pb",
        "results_file_path": tmp_path / "r.jsonl",
    }
    assert main(["coco_eval", *(f"--{k}={v}" for k, v in arguments.items())]) == 0
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    for row, (boxes, ids, scores) in zip(rows, want, strict=True):
        assert len(scores) > 2
        assert row["class_ids"] == ids.tolist()
        np.testing.assert_allclose(row["scores"], scores, rtol=1e-4)
        np.testing.assert_allclose(row["boxes"], boxes, atol=1e-4)
    assert precisions(capsys.readouterr().out) == (pytest.approx([1] * 10), pytest.approx(1))
