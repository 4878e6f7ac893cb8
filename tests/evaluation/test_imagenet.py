import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.errors import OptionError
from jaxdelegate.evaluation import DataError, ImagenetResult, RunSettings, evaluate_imagenet
from jaxdelegate.evaluation.imagenet import top_k_accuracies, top_k_indices
from jaxdelegate.evaluation.images import Preprocessing
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.measuring.tolerance import NETWORK, assert_close
from jaxdelegate.op_lowering.options import ReducerOptions, ResizeBilinearOptions
from jaxdelegate.op_lowering.resize.reference import resize_bilinear as reference_resize
from jaxdelegate.testing.builder import ModelBuilder
from tests.support.combinations import covering

COLORS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}


def color_classifier(dtype: type = np.float32) -> bytes:
    """The largest value of each channel of an image [1, 8, 8, 3]: the brightest is its class."""
    builder = ModelBuilder()
    x = builder.input((1, 8, 8, 3), dtype, shape_signature=(-1, 8, 8, 3))
    y, axes = builder.tensor((1, 3), dtype), builder.constant(np.array([1, 2], np.int32))
    builder.operator("REDUCE_MAX", [x, axes], [y], ReducerOptions(keep_dims=False))
    builder.outputs(y)
    return builder.build()


class Set:
    """Plain images in a flat folder; the second label is wrong."""

    def __init__(self, folder: Path, colors: Sequence[str], dtype: type = np.float32) -> None:
        self.folder, self.images, self.model = folder, folder / "val", folder / "model.tflite"
        self.labels, self.truth = folder / "labels.txt", folder / "truth.txt"
        self.images.mkdir()
        for i, color in enumerate(colors):
            Image.new("RGB", (12 + i % 5, 9), COLORS[color]).save(
                self.images / f"ILSVRC2012_val_{i + 1:08}.JPEG", format="PNG"
            )
        self.model.write_bytes(color_classifier(dtype))
        self.labels.write_text("red\ngreen\nblue\n")
        self.write_truth(colors)

    def write_truth(self, colors: Sequence[str]) -> None:
        self.truth.write_text("".join(f"{color}\n" for color in colors))

    def evaluate(self, **options: Any) -> ImagenetResult:
        options = {"ground_truth_labels": self.truth, **options}
        return evaluate_imagenet(self.model, self.images, self.labels, **options)


SHOWN = ["red", "green", "blue", "blue", "red", "green", "red"]


@pytest.fixture
def data(tmp_path: Path) -> Set:
    return Set(tmp_path, SHOWN)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int8])
@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_accuracies_by_hand(tmp_path: Path, dtype: type, batch_size: int) -> None:
    data = Set(tmp_path, SHOWN, dtype)
    # red images: red, then green and blue equal, the lower index first
    data.write_truth(["red", "red", "red", "blue", "green", "blue", "blue"])
    result = data.evaluate(settings=RunSettings(batch_size=batch_size))
    assert [row["rank"] for row in result.run.rows] == [1, 2, 2, 1, 2, 3, 3]
    assert result.top_k == pytest.approx((2 / 7, 5 / 7, 1))
    low, high = {np.float32: (-1, 1), np.uint8: (0, 255), np.int8: (-128, 127)}[dtype]
    assert result.run.rows[1] == {
        "image": "ILSVRC2012_val_00000002.JPEG",
        "label": "red",
        "rank": 2,
        "indices": [1, 0, 2],
        "labels": ["green", "red", "blue"],
        "scores": [high, low, low],
        "error": None,
    }
    assert result.run.batch_size == min(batch_size, 7)


def test_equal_scores_and_nan_are_ordered_as_by_a_stable_sort() -> None:
    assert top_k_indices(np.float32([1, 3, np.nan, 3, 2]), 4).tolist() == [1, 3, 4, 0]
    assert top_k_indices(np.uint8([0, 200, 255, 200]), 4).tolist() == [2, 1, 3, 0]
    assert top_k_indices(np.int8([-128, 127, 0]), 3).tolist() == [1, 2, 0]


def test_a_hit_counts_for_every_larger_k() -> None:
    assert top_k_accuracies([1, 3, None, 2], 4) == (0.25, 0.5, 0.75, 0.75)
    assert top_k_accuracies([], 2) == (0, 0)


def test_a_duplicate_label_is_right_at_either_index(data: Set) -> None:
    data.labels.write_text("red\nred\nblue\n")
    data.write_truth(["red"] * 7)
    assert data.evaluate(num_ranks=2).top_k == pytest.approx((5 / 7, 1))


def test_denylist_and_count(data: Set, tmp_path: Path) -> None:
    (tmp_path / "deny.txt").write_text("2\n1\n")
    result = data.evaluate(denylist=tmp_path / "deny.txt", num_images=3)
    assert [row["image"][-6:-5] for row in result.run.rows] == ["3", "4", "5"]
    (tmp_path / "deny.txt").write_text("".join(f"{i}\n" for i in range(1, 8)))
    with pytest.raises(DataError, match="it names every image"):
        data.evaluate(denylist=tmp_path / "deny.txt")


def test_a_folder_per_synset(tmp_path: Path) -> None:
    data = Set(tmp_path, SHOWN)
    for i, path in enumerate(sorted(data.images.iterdir())):
        synset = data.images / f"n{sorted(COLORS).index(SHOWN[i])}"
        synset.mkdir(exist_ok=True)
        path.rename(synset / path.name)
    (tmp_path / "words.txt").write_text("n0 blue, azure\nn1 green\nn2 red, crimson\n")
    result = data.evaluate(ground_truth_labels=None, synset_labels=tmp_path / "words.txt")
    assert result.top_k[0] == 1
    assert [row["image"].split("/")[0] for row in result.run.rows] == [
        "n0", "n0", "n1", "n1", "n2", "n2", "n2",
    ]  # fmt: skip


def test_labels_that_the_model_does_not_have_are_reported(data: Set) -> None:
    data.write_truth(["red", "cyan", *["blue"] * 5])
    (note,) = data.evaluate().notes
    assert note.startswith("the labels of 1 of 7 images are not among the model's")
    assert note.endswith("the first: 'cyan'")


def test_damaged_images_are_listed_and_do_not_count(data: Set) -> None:
    whole = data.evaluate()
    (data.images / "ILSVRC2012_val_00000003.JPEG").write_bytes(b"damaged")
    result = data.evaluate(settings=RunSettings(batch_size=4))
    (skipped,) = result.run.skipped
    assert str(skipped) == "ILSVRC2012_val_00000003.JPEG: cannot identify image file"
    assert result.num_images == 6
    others = [row for i, row in enumerate(whole.run.rows) if i != 2]
    assert result.run.good == others
    assert result.run.rows[2]["rank"] is None


def test_nothing_usable_is_an_error(data: Set) -> None:
    for path in data.images.iterdir():
        path.write_bytes(b"damaged")
    with pytest.raises(
        DataError, match=r"none of 7 images could be used; the first: .*01.JPEG: can"
    ):
        data.evaluate()


@pytest.mark.parametrize(("killed_at", "suffix"), covering([1, 2, 4, 7], [".jsonl", ".parquet"]))
def test_a_killed_run_continues_with_the_same_result(
    data: Set, monkeypatch: pytest.MonkeyPatch, suffix: str, killed_at: int
) -> None:
    (data.images / "ILSVRC2012_val_00000003.JPEG").write_bytes(b"damaged")
    whole, part = data.folder / f"whole{suffix}", data.folder / f"part{suffix}"
    want = data.evaluate(settings=RunSettings(batch_size=2, results_path=whole))
    call, decoded = Preprocessing.__call__, []

    def counted(self: Preprocessing, path: Path) -> np.ndarray:
        number = int(path.stem[-8:])
        decoded.append(number)
        if killed and number == killed_at:
            raise KeyboardInterrupt
        return call(self, path)

    monkeypatch.setattr(Preprocessing, "__call__", counted)
    settings = RunSettings(batch_size=2, results_path=part, decode_threads=1)
    killed = True
    with pytest.raises(KeyboardInterrupt):
        data.evaluate(settings=settings)
    assert not part.exists()
    killed, decoded[:] = False, []
    got = data.evaluate(settings=settings)
    done = (killed_at - 1) // 2 * 2
    assert got.run.num_resumed == done
    assert decoded == list(range(done + 1, 8))
    assert (got.top_k, got.run.rows, got.notes) == (want.top_k, want.run.rows, want.notes)
    assert part.read_bytes() == whole.read_bytes()
    assert sorted(p.name for p in data.folder.glob("part*")) == [part.name]


def test_parquet_and_json_lines_hold_the_rows(data: Set) -> None:
    lines, table = data.folder / "x.jsonl", data.folder / "x.parquet"
    want = data.evaluate(settings=RunSettings(results_path=lines)).run.rows
    data.evaluate(settings=RunSettings(results_path=table))
    assert [json.loads(line) for line in lines.read_text().splitlines()] == list(want)
    assert pq.read_table(table).to_pylist() == list(want)


@pytest.mark.parametrize(
    "change", ["model", "labels", "truth", "images", "ranks", "batch_size", "runs_on"]
)
def test_another_run_is_not_resumed(
    data: Set, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    path = data.folder / "x.jsonl"

    def killed(_self: Preprocessing, _path: Path) -> np.ndarray:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Preprocessing, "__call__", killed)
        with pytest.raises(KeyboardInterrupt):
            data.evaluate(settings=RunSettings(results_path=path))
    options: dict[str, Any] = {"settings": RunSettings(results_path=path)}
    if change == "model":
        data.model.write_bytes(data.model.read_bytes() + bytes(8))
    elif change == "labels":
        data.labels.write_text("red\nblue\ngreen\n")
    elif change == "truth":
        data.write_truth(SHOWN[::-1])
    elif change == "images":
        Image.new("RGB", (30, 30)).save(data.images / "ILSVRC2012_val_00000001.JPEG")
    elif change == "ranks":
        options["num_ranks"] = 1
    else:
        more: dict[str, Any] = {"batch_size": 3, "runs_on": {"use_jax": True}}
        options["settings"] = RunSettings(results_path=path, **{change: more[change]})
    with pytest.raises(DataError, match=r"x.jsonl.part was written with different"):
        data.evaluate(**options)
    again = {**options, "settings": RunSettings(results_path=path, resume=False)}
    assert data.evaluate(**again).num_images == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_ranks": 4}, "num_ranks: must be 1 to 3, the number of labels, got 4"),
        ({"num_ranks": 0}, "num_ranks: must be 1 to 3"),
        ({"num_images": -1}, "num_images: must be at least 0"),
    ],
)
def test_impossible_numbers(data: Set, options: dict[str, int], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        data.evaluate(**options)
    with pytest.raises(OptionError, match="batch_size: must be at least 1, got 0"):
        RunSettings(batch_size=0)
    with pytest.raises(OptionError, match="decode_threads: must be at least 1, got 0"):
        RunSettings(decode_threads=0)


def test_labels_and_outputs_that_do_not_fit(data: Set) -> None:
    data.labels.write_text("red\ngreen\n")
    with pytest.raises(DataError, match=r"one line for each of the model's 3 outputs, got 2"):
        data.evaluate()
    builder = ModelBuilder()
    x = builder.input((1, 8, 8, 3))
    y = builder.tensor((1, 8, 8, 3))
    builder.operator("NEG", [x], [y])
    builder.outputs(y)
    data.model.write_bytes(builder.build())
    with pytest.raises(
        DataError, match=r"expected an output \[1, labels\] of .* float32 \[1, 8, 8, 3\]"
    ):
        data.evaluate()


def by_hand(path: Path, size: int) -> np.ndarray:
    """TFLite's preprocessing with the reference's RESIZE_BILINEAR: [1, size, size, 3]."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    height, width = pixels.shape[:2]
    side = math.floor(0.875 * min(height, width) + 0.5)
    top, left = math.floor((height - side) / 2 + 0.5), math.floor((width - side) / 2 + 0.5)
    square = pixels[None, top : top + side, left : left + side].astype(np.float32)
    inputs = builder_specs()
    (resized,) = reference_resize(
        ResizeBilinearOptions(), (), inputs, square, np.array([size, size])
    )
    return ((resized - 127.5) / 127.5).astype(np.float32)


def builder_specs() -> Any:
    class Spec:
        dtype = np.dtype(np.float32)

    return (Spec,)


def test_mobilenet_v1_against_the_numpy_reference(tmp_path: Path, rng: np.random.Generator) -> None:
    images = tmp_path / "val"
    images.mkdir()
    for i in range(5):
        low = rng.integers(0, 256, (6, 7 + i, 3), np.uint8)
        picture = Image.fromarray(low).resize((90 + 10 * i, 70), Image.Resampling.BICUBIC)
        picture.save(images / f"{i}.jpg", quality=90)
    content = mobilenet_v1(size=64, width=0.25, classes=40, seed=3)
    (tmp_path / "m.tflite").write_bytes(content)
    (tmp_path / "labels.txt").write_text("".join(f"class {i}\n" for i in range(40)))
    reference = Interpreter(model_content=content)
    reference.allocate_tensors()
    want = []
    for path in sorted(images.iterdir()):
        reference.set_tensor(reference.get_input_details()[0]["index"], by_hand(path, 64))
        reference.invoke()
        want.append(reference.get_tensor(reference.get_output_details()[0]["index"])[0])
    truth = [f"class {np.argsort(-scores)[i]}" for i, scores in enumerate(want)]
    (tmp_path / "truth.txt").write_text("".join(f"{label}\n" for label in truth))
    result = evaluate_imagenet(
        tmp_path / "m.tflite",
        images,
        tmp_path / "labels.txt",
        ground_truth_labels=tmp_path / "truth.txt",
        settings=RunSettings(batch_size=2),
    )
    assert [row["rank"] for row in result.run.rows] == [1, 2, 3, 4, 5]
    assert result.top_k == pytest.approx((0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1, 1, 1))
    for row, scores in zip(result.run.rows, want, strict=True):
        assert row["indices"] == np.argsort(-scores)[:10].tolist()
        got = np.float32(row["scores"])
        assert_close([got], [scores[row["indices"]]], tolerance=NETWORK)
    assert result.run.batch_size == 2
    assert result.notes == ()
