from pathlib import Path

import pytest

from jaxdelegate.evaluation.files import (
    DataError,
    LabeledImage,
    imagenet_images,
    list_images,
    read_lines,
    without_denylisted,
)


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def text(folder: Path, name: str, *lines: str) -> Path:
    (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return folder / name


def pairs(images: list[LabeledImage]) -> list[tuple[str, str]]:
    return [(image.name, image.label) for image in images]


def test_images_are_sorted_by_code_point_and_others_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "b.JPEG", "a2.jpg", "a10.jpg", "B.png", "x.rgb8", "notes.txt", "sub.jpg/y.jpg")
    assert list_images(tmp_path) == ["B.png", "a10.jpg", "a2.jpg", "b.JPEG", "x.rgb8"]


def test_a_flat_folder_with_a_label_per_image(tmp_path: Path) -> None:
    images = touch(tmp_path / "val", "ILSVRC2012_val_00000002.JPEG", "ILSVRC2012_val_00000001.JPEG")
    labels = text(tmp_path, "truth.txt", "sea snake", "ski")
    found = imagenet_images(images, labels, None)
    assert pairs(found) == [
        ("ILSVRC2012_val_00000001.JPEG", "sea snake"),
        ("ILSVRC2012_val_00000002.JPEG", "ski"),
    ]


def test_a_folder_per_synset(tmp_path: Path) -> None:
    images = touch(
        tmp_path / "val", "n02/b.JPEG", "n01/c.JPEG", "n01/a.JPEG", "n03/readme.txt", "top.txt"
    )
    names = [("n01/a.JPEG", "n01"), ("n01/c.JPEG", "n01"), ("n02/b.JPEG", "n02")]
    assert pairs(imagenet_images(images, None, None)) == names
    words = text(tmp_path, "synset_words.txt", "n02 goldfish, Carassius auratus", "n01 tench", "")
    assert pairs(imagenet_images(images, None, words)) == [
        ("n01/a.JPEG", "tench"),
        ("n01/c.JPEG", "tench"),
        ("n02/b.JPEG", "goldfish"),
    ]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (("a",), r"truth.txt': expected one line for each of the 2 images in '.*val', got 1"),
        (("a", "b", "c"), "got 3"),
        (("a", ""), "line 2 is empty"),
        ((), "got 0"),
    ],
)
def test_labels_that_do_not_fit(tmp_path: Path, labels: tuple[str, ...], message: str) -> None:
    images = touch(tmp_path / "val", "1.jpg", "2.jpg")
    with pytest.raises(DataError, match=message):
        imagenet_images(images, text(tmp_path, "truth.txt", *labels), None)


def test_other_mistakes(tmp_path: Path) -> None:
    flat, tree = touch(tmp_path / "flat", "1.jpg"), touch(tmp_path / "tree", "n01/1.jpg")
    words = text(tmp_path, "words.txt", "n02 ski")
    with pytest.raises(DataError, match=r"the 1 images in '.*flat' need ground-truth labels"):
        imagenet_images(flat, None, None)
    with pytest.raises(DataError, match=r"words.txt': no line n01"):
        imagenet_images(tree, None, words)
    with pytest.raises(DataError, match="in folders per synset"):
        imagenet_images(tree, words, None)
    with pytest.raises(DataError, match=r"line 1: expected `n01440764 label`, got 'n02'"):
        imagenet_images(tree, None, text(tmp_path, "words.txt", "n02"))
    with pytest.raises(DataError, match="no images"):
        imagenet_images(touch(tmp_path / "none", "sub/x.txt"), words, None)
    with pytest.raises(DataError, match=r"ground_truth_images_path: .*No such file"):
        imagenet_images(tmp_path / "missing", words, None)


def test_lines_keep_spaces_and_lose_both_kinds_of_line_end(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes("a b\r\n\nc \u2028d".encode())
    assert read_lines(path, "labels") == ["a b", "", "c \u2028d"]
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(DataError, match="expected UTF-8"):
        read_lines(path, "labels")


def test_the_denylist_counts_from_1(tmp_path: Path) -> None:
    images = [LabeledImage(f"{i}", "") for i in range(5)]
    denied = text(tmp_path, "deny.txt", "1", "5", "1")
    assert [i.name for i in without_denylisted(images, denied)] == ["1", "2", "3"]
    for line in ("0", "6", "-1", "x", ""):
        with pytest.raises(DataError, match=r"line 2: expected an image's number, 1 to 5"):
            without_denylisted(images, text(tmp_path, "deny.txt", "1", line))
