"""Layouts of images and labels: a flat folder with label files, or one folder per synset."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jaxdelegate.errors import JaxDelegateError

StrPath = str | os.PathLike[str]

SUFFIXES = (".jpg", ".jpeg", ".png", ".rgb8")


class DataError(JaxDelegateError, ValueError):
    """Images, labels, annotations or the model do not fit the evaluation."""


class LabeledImage(NamedTuple):
    name: str  # its path inside the folder of images
    label: str  # the true one


def read_lines(path: StrPath, what: str) -> list[str]:
    """The lines of a text file, blank ones included, as TFLite's ReadFileLines reads them."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            return [line.rstrip("\r\n") for line in file]
    except OSError as error:
        raise DataError(f"{what}: {error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{what} {os.fspath(path)!r}: expected UTF-8 text: {error}") from error


def bad_line(what: str, path: StrPath, number: int, expected: str, line: str) -> DataError:
    source = f"{what} {os.fspath(path)!r}"
    return DataError(f"{source}: line {number}: expected {expected}, got {line!r}")


def list_images(folder: StrPath) -> list[str]:
    """Names of the image files in a folder, sorted as TFLite sorts them (by code point)."""
    return sorted(name for name in _names(folder) if Path(name).suffix.lower() in SUFFIXES)


def _names(folder: StrPath, *, folders: bool = False) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir() == folders]
    except OSError as error:
        raise DataError(f"ground_truth_images_path: {error}") from error


def no_images(folder: StrPath) -> DataError:
    return DataError(f"no images ({', '.join(SUFFIXES)}) in {os.fspath(folder)!r}")


def imagenet_images(
    folder: StrPath,
    ground_truth_labels: StrPath | None,
    synset_labels: StrPath | None,
) -> list[LabeledImage]:
    """The labeled images of a validation set: in one folder, or in a folder per synset.

    `ground_truth_labels` has a label per line, in the order of file names. `synset_labels` has
    lines `n01440764 tench, Tinca tinca` (synset_words.txt); the label is the text before the first
    comma. By default the folder's name is the label.
    """
    names = list_images(folder)
    if names:
        return _flat(folder, names, ground_truth_labels)
    images = _by_synset(Path(folder), synset_labels)
    if not images:
        raise no_images(folder)
    if ground_truth_labels is not None:
        raise DataError(
            f"ground-truth labels {os.fspath(ground_truth_labels)!r}: the images are in folders "
            "per synset, which are labels already"
        )
    return images


def _flat(
    folder: StrPath, names: list[str], ground_truth_labels: StrPath | None
) -> list[LabeledImage]:
    images = f"the {len(names)} images in {os.fspath(folder)!r}"
    if ground_truth_labels is None:
        raise DataError(f"{images} need ground-truth labels")
    labels = read_lines(ground_truth_labels, "ground-truth labels")
    source = f"ground-truth labels {os.fspath(ground_truth_labels)!r}"
    if len(labels) != len(names):
        raise DataError(f"{source}: expected one line for each of {images}, got {len(labels)}")
    if "" in labels:
        raise DataError(f"{source}: line {labels.index('') + 1} is empty")
    return list(map(LabeledImage, names, labels))


def _by_synset(folder: Path, synset_labels: StrPath | None) -> list[LabeledImage]:
    labels = None if synset_labels is None else _read_synsets(synset_labels)
    images = []
    for synset in sorted(_names(folder, folders=True)):
        names = list_images(folder / synset)
        if names and labels is not None and synset not in labels:
            raise DataError(f"synset labels {os.fspath(synset_labels or '')!r}: no line {synset}")
        label = synset if labels is None else labels.get(synset, "")
        images += [LabeledImage(f"{synset}/{name}", label) for name in names]
    return images


def _read_synsets(path: StrPath) -> dict[str, str]:
    labels = {}
    for i, line in enumerate(read_lines(path, "synset labels"), 1):
        synset, _, words = line.strip().partition(" ")
        label = words.split(",")[0].strip()
        if synset and not label:
            raise bad_line("synset labels", path, i, "`n01440764 label`", line)
        labels[synset] = label
    return labels


def without_denylisted(
    images: Sequence[LabeledImage], denylist: StrPath | None
) -> list[LabeledImage]:
    if denylist is None:
        return list(images)
    denied = set()
    for i, line in enumerate(read_lines(denylist, "denylist"), 1):
        if not line.strip().isdecimal() or not 1 <= int(line) <= len(images):
            expected = f"an image's number, 1 to {len(images)}"
            raise bad_line("denylist", denylist, i, expected, line)
        denied.add(int(line))
    return [image for i, image in enumerate(images, 1) if i not in denied]
