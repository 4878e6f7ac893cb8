import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from jaxdelegate.delegate.jax_delegate import JaxDelegate
from jaxdelegate.errors import OptionError
from jaxdelegate.evaluation import CocoResult, DataError, RunSettings, evaluate_coco
from jaxdelegate.evaluation.images import Preprocessing
from jaxdelegate.interpreter import Interpreter
from tests.support.combinations import covering
from tests.support.detectors import color_detector

RED, GREEN = (255, 0, 0), (0, 255, 0)
SCORE = 1 / (1 + np.exp(-6))
Cells = Mapping[tuple[int, int], tuple[int, int, int]]  # row and column of 4 x 4 -> color

PAINTED: list[Cells] = [
    {(0, 0): RED, (2, 3): GREEN},
    {(1, 1): RED},
    {},
    {(3, 3): GREEN, (3, 0): GREEN, (0, 3): RED},
]


def paint(folder: Path, painted: Sequence[Cells], size: tuple[int, int] = (96, 64)) -> None:
    folder.mkdir()
    width, height = size
    for i, cells in enumerate(painted):
        pixels = np.zeros((height, width, 3), np.uint8)
        for (row, column), color in cells.items():
            pixels[row * height // 4 :, column * width // 4 :][: height // 4, : width // 4] = color
        Image.fromarray(pixels).save(folder / f"{i:03}.png")


def instances(painted: Sequence[Cells], size: tuple[int, int] = (96, 64)) -> dict[str, Any]:
    width, height = size
    annotations = [
        {
            "id": 10 * i + 4 * row + column,
            "image_id": 100 + i,
            "category_id": 1 if color == RED else 2,
            "bbox": [column * width / 4, row * height / 4, width / 4, height / 4],
        }
        for i, cells in enumerate(painted)
        for (row, column), color in cells.items()
    ]
    return {
        "images": [
            {"id": 100 + i, "file_name": f"{i:03}.png", "width": width, "height": height}
            for i in range(len(painted))
        ],
        "annotations": annotations,
        "categories": [{"id": 1, "name": "red"}, {"id": 2, "name": "green"}],
    }


class Set:
    """A data set on disk, and the detector."""

    def __init__(self, folder: Path, painted: Sequence[Cells] = PAINTED) -> None:
        self.images, self.model = folder / "val2017", folder / "model.tflite"
        self.instances, self.labels = folder / "instances.json", folder / "labels.txt"
        paint(self.images, painted)
        self.model.write_bytes(color_detector())
        self.labels.write_text("???\nred\ngreen\n")
        self.write(instances(painted))

    def write(self, data: Any) -> None:
        self.instances.write_text(json.dumps(data))

    def evaluate(self, **options: Any) -> CocoResult:
        options = {"instances": self.instances, **options}
        return evaluate_coco(self.model, self.images, self.labels, **options)


@pytest.fixture
def data(tmp_path: Path) -> Set:
    return Set(tmp_path)


def test_every_cell_is_found(data: Set) -> None:
    result = data.evaluate()
    assert result.tflite is not None
    assert result.coco is not None
    assert (result.tflite.overall, result.num_images) == (pytest.approx(1), 4)
    assert (result.coco.ap, result.coco.ap_50, result.coco.ar_100) == pytest.approx((1, 1, 1))
    # cells are 24 x 16 pixels: small ones
    assert (result.coco.ap_small, result.coco.ap_medium) == (pytest.approx(1), -1)
    first = result.run.rows[0]
    assert (first["image"], first["image_id"], first["error"]) == ("000.png", 100, None)
    found = sorted(zip(first["class_ids"], first["boxes"], strict=True))
    assert [number for number, _ in found] == [1, 2]
    np.testing.assert_allclose(
        [box for _, box in found], [[0, 0, 0.25, 0.25], [0.5, 0.75, 0.75, 1]]
    )
    np.testing.assert_allclose(first["scores"], [SCORE] * 2, rtol=1e-6)
    assert result.run.rows[2]["boxes"] == []


def test_it_rebatches_and_says_so(data: Set) -> None:
    result = data.evaluate()
    assert result.run.batch_size == 4
    assert len(result.notes) == 1
    assert result.notes[0].startswith("rebatched: 4 single runs in one program, because ")
    alone = data.evaluate(settings=RunSettings(batch_size=1))
    assert (alone.run.batch_size, alone.notes) == (1, ())
    assert [row["boxes"] for row in alone.run.rows] == [row["boxes"] for row in result.run.rows]


def test_several_devices_have_the_same_results(data: Set) -> None:
    one = data.evaluate(settings=RunSettings(batch_size=2))
    several = [Interpreter(str(data.model), experimental_delegates=[JaxDelegate()]) for _ in "ab"]
    two = data.evaluate(settings=RunSettings(batch_size=2), interpreter=several)
    assert (one.run.devices, two.run.devices) == (1, 2)
    assert (two.run.rows, two.notes) == (one.run.rows, one.notes)
    assert (two.coco, two.tflite) == (one.coco, one.tflite)


def test_by_hand(data: Set) -> None:
    """One annotation moved away, one added where nothing is: both definitions by hand."""
    truth = instances(PAINTED)
    truth["annotations"][0]["bbox"] = [48.0, 48.0, 24.0, 16.0]  # a red one of image 0
    truth["annotations"].append(
        {"id": 99, "image_id": 102, "category_id": 2, "bbox": [0.0, 0.0, 24.0, 16.0]}
    )
    data.write(truth)
    result = data.evaluate()
    assert result.tflite is not None
    assert result.coco is not None
    # red: 3 annotated, 3 equal scores found in order of images: miss, hit, hit.
    #   precision 0, 1/2, 2/3 at recall 0, 1/3, 2/3: 2/3 at the 67 recalls 0.00 to 0.66.
    # green: 4 annotated, 3 found, all right: 1 at the 76 recalls 0.00 to 0.75.
    want = (2 / 3 * 67 / 101 + 76 / 101) / 2
    assert result.tflite.at_threshold == pytest.approx([want] * 10)
    assert result.coco.ap == pytest.approx(want)
    assert result.coco.ar_100 == pytest.approx((2 / 3 + 3 / 4) / 2)


def test_where_the_definitions_differ(data: Set) -> None:
    """TFLite counts crowds, COCO counts images without annotations."""
    truth = instances(PAINTED)
    truth["annotations"] = [
        {**a, "iscrowd": 1, "segmentation": {}} if a["image_id"] == 101 else a
        for a in truth["annotations"]
        if a["image_id"] != 103
    ]
    data.write(truth)
    result = data.evaluate()
    assert result.tflite is not None
    assert result.coco is not None
    assert result.tflite.overall == pytest.approx(1)  # image 103 has no annotations: left out
    # COCO: red 1 hit, 1 crowd, 1 miss of equal scores, in that order; green 1 hit, then 2 misses
    assert result.coco.ap == pytest.approx(1)
    truth["annotations"] = truth["annotations"][-1:]  # the crowd of image 101: red only
    data.write(truth)
    assert data.evaluate(num_images=2).tflite.overall == pytest.approx(1)  # type: ignore[union-attr]


def test_without_ground_truth_there_are_predictions_only(data: Set) -> None:
    result = data.evaluate(instances=None)
    assert (result.tflite, result.coco) == (None, None)
    assert result.notes[-1] == "mAP metrics are meaningless w/o ground truth."
    assert "mAP" not in str(result)
    assert result.run.rows[1]["class_ids"] == [1]
    assert result.run.rows[1]["image_id"] is None


def test_tflites_ground_truth(data: Set, tmp_path: Path) -> None:
    boxes = {
        "000.png": [(1, 0.0, 0.0, 0.25, 0.25)],
        "001.png": [(1, 0.25, 0.25, 0.5, 0.5)],
        "elsewhere.png": [],
    }
    text = "\n".join(
        f'detection_results {{ image_name: "{name}" '
        + " ".join(
            f"objects {{ class_id: {c} bounding_box {{ normalized_top: {t} normalized_left: {left} "
            f"normalized_bottom: {b} normalized_right: {r} }} }}"
            for c, t, left, b, r in objects
        )
        + " }"
        for name, objects in boxes.items()
    )
    (tmp_path / "truth.pbtxt").write_text(text)
    result = data.evaluate(instances=None, ground_truth_proto=tmp_path / "truth.pbtxt")
    assert result.coco is None
    assert result.tflite is not None
    # all images are run: red 2 hits, then a miss; green is only detected: 0
    assert result.tflite.overall == pytest.approx(0.5)
    assert "missing: 1 annotated image; the first: 'elsewhere.png'" in result.notes


def test_missing_and_damaged_images_are_in_neither_metric(data: Set) -> None:
    (data.images / "000.png").unlink()
    (data.images / "003.png").write_bytes(b"no image")
    result = data.evaluate()
    assert [(s.image, s.reason.split(":")[0][:26]) for s in result.run.skipped] == [
        ("000.png", "[Errno 2] No such file or "),
        ("003.png", "cannot identify image file"),
    ]
    assert result.num_images == 2
    assert result.coco is not None
    assert result.coco.ap == pytest.approx(1)
    assert result.tflite is not None
    assert result.tflite.overall == pytest.approx(1)


def test_outputs_in_another_order(data: Set) -> None:
    data.model.write_bytes(color_detector(outputs=(2, 0, 3, 1)))
    result = data.evaluate()
    assert result.coco is not None
    assert result.coco.ap == pytest.approx(1)


def test_the_class_offset_and_its_bounds(data: Set) -> None:
    with pytest.raises(DataError, match=r"00\d.png: the model detects class id 3; .* 0 to 2"):
        data.evaluate(class_offset=2)
    truth = instances(PAINTED)
    for annotation in truth["annotations"]:
        annotation["category_id"] -= 1
    truth["categories"] = [{"id": 0, "name": "red"}, {"id": 1, "name": "green"}]
    data.write(truth)
    result = evaluate_coco(data.model, data.images, instances=data.instances, class_offset=0)
    assert result.coco is not None
    assert result.coco.ap == pytest.approx(1)


def by_pycocotools(data: Set, rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Its figures of detections, from the instances file itself."""
    truth = COCO(str(data.instances))
    width, height = 96, 64
    listed = [
        {
            "image_id": row["image_id"],
            "category_id": number,
            "bbox": [left * width, top * height, (right - left) * width, (bottom - top) * height],
            "score": score,
        }
        for row in rows
        for number, score, (top, left, bottom, right) in zip(
            row["class_ids"], row["scores"], row["boxes"], strict=True
        )
    ]
    evaluation = COCOeval(truth, truth.loadRes(listed), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return [float(x) for x in evaluation.stats]


@pytest.mark.parametrize(
    ("category", "has_labels"),
    covering([{"id": 1, "name": "red"}, {"id": 7, "name": "blue"}], [True, False]),
)
def test_categories_that_are_a_part_of_the_models(
    data: Set, has_labels: bool, category: dict[str, Any]
) -> None:
    """Green objects, or all, are detected and are not in the file: pycocotools ignores them."""
    truth = instances(PAINTED)
    truth["categories"] = [category]
    truth["annotations"] = [
        {"area": 384, "iscrowd": 0, **a, "id": a["id"] + 1}
        for a in truth["annotations"]
        if a["category_id"] == category["id"]
    ]
    data.write(truth)
    labels = data.labels if has_labels else None
    result = evaluate_coco(data.model, data.images, labels, instances=data.instances)
    assert result.coco is not None
    figures = list(dataclasses.astuple(result.coco)[1:])
    assert figures == by_pycocotools(data, result.run.rows)
    count, ids = (3, "2") if category["id"] == 1 else (6, "1, 2")
    assert result.notes[-1].startswith(
        f"{count} detections have class ids that are not categories of the instances file: {ids}. "
    )


def test_results_are_resumed_after_a_kill(
    data: Set, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, part = tmp_path / "whole.parquet", tmp_path / "part.parquet"
    want = data.evaluate(settings=RunSettings(batch_size=2, results_path=whole))
    call = Preprocessing.__call__

    def killed(self: Preprocessing, path: Path) -> np.ndarray:
        if path.name == "002.png":
            raise KeyboardInterrupt
        return call(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(Preprocessing, "__call__", killed)
        with pytest.raises(KeyboardInterrupt):
            data.evaluate(settings=RunSettings(batch_size=2, results_path=part))
    got = data.evaluate(settings=RunSettings(batch_size=2, results_path=part))
    assert got.run.num_resumed == 2
    assert (got.tflite, got.coco, got.run.rows) == (want.tflite, want.coco, want.run.rows)
    assert part.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"ground_truth_proto": "x"}, OptionError, "give an instances file or a ground"),
        (
            {"instances": None, "allowlist": "x"},
            OptionError,
            "allowlist .* needs an instances file",
        ),
        ({"num_images": -1}, OptionError, "num_images: must be at least 0"),
        ({"instances": "no.json"}, DataError, "No such file"),
        ({"instances": None, "ground_truth_proto": "no.pb"}, DataError, "No such file"),
    ],
)
def test_mistakes(data: Set, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        data.evaluate(**options)


def test_images_in_another_folder(data: Set, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="none of the 4 images of the instances file is in"):
        evaluate_coco(data.model, tmp_path / "empty", data.labels, instances=data.instances)
    with pytest.raises(DataError, match="no images"):
        evaluate_coco(data.model, tmp_path / "empty", data.labels)
    with pytest.raises(OptionError, match="labels are needed without an instances file"):
        evaluate_coco(data.model, data.images)
