"""Files of a model: only those in its folder are read and written, and changes are detected."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

import jaxdelegate as jd
from jaxdelegate.cache import choices, maintenance
from jaxdelegate.errors import ModelError
from jaxdelegate.model import files
from jaxdelegate.model.editing import Edited, edited
from jaxdelegate.model.files import FileContent, below, first_clash, opened_folder
from jaxdelegate.model.records import Model, read_model
from jaxdelegate.model.writing import write_file, write_files
from jaxdelegate.testing import ModelBuilder

W = np.float32([1, 2, 3, 4])
OUTSIDE = b"only for the owner"


def content(*groups: str, unused: tuple[str, ...] = ()) -> bytes:
    """x + the first four values of each group's file; `unused` groups are only declared."""
    builder = ModelBuilder()
    x = builder.input((4,), name="x")
    for group in groups:
        y = builder.tensor((4,))
        part = builder.external_slice(group, 0, 16)
        builder.operator("ADD", [x, builder.external((4,), np.float32, part, "w")], [y])
        x = y
    if not groups:
        builder.operator("ABS", [x], [y := builder.tensor((4,))])
    builder.outputs(y)

    def declare(model: schema.ModelT) -> None:
        for name in unused:
            model.externalBufferGroups.append(schema.ExternalBufferGroupT())
            model.externalBufferGroups[-1].name = name

    return builder.build(edit=declare)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a model, inside a folder with a secret file."""
    (tmp_path / "secret.bin").write_bytes(OUTSIDE)
    (tmp_path / "model" / "parts").mkdir(parents=True)
    return tmp_path / "model"


def with_files(folder: Path, *groups: str, unused: tuple[str, ...] = ()) -> Path:
    for group in groups:
        (folder / group).write_bytes(W.tobytes())
    path = folder / "m.tflite"
    path.write_bytes(content(*groups, unused=unused))
    return path


# ---- names


BAD_NAMES = [
    "",
    "/etc/passwd",
    "../secret.bin",
    "parts/../../secret.bin",
    "..",
    ".profile",
    ".ssh/authorized_keys",
    "parts/.hidden",
    "./w.bin",
    "parts//w.bin",
    "parts/",
    "..\\secret.bin",
    "parts\\w.bin",
    "C:w.bin",
    "c:/w.bin",
    "w.bin\0.txt",
    "w" * 1025,
    "0123abcd.program",
    "0123abcd.PROGRAM",
    *(f"0123abcd{suffix}" for suffix in (choices.SUFFIX, *maintenance._RECORDS)),
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_used_and_unused_names_are_checked_in_reading(name: str, folder: Path) -> None:
    for model in (content(name), content(unused=(name,))):
        for source in (model, folder / "m.tflite"):
            (folder / "m.tflite").write_bytes(model)
            with pytest.raises(ModelError, match=r"ExternalBufferGroup\.name .* must"):
                read_model(source)


@pytest.mark.parametrize(
    "names",
    [
        ("w.bin", "w.bin"),
        ("w.bin", "W.BIN"),
        ("\u00e4.bin", "a\u0308.bin"),
        ("parts", "parts/w.bin"),
        ("a-b", "a/c", "a"),
        ("m.tflite",),
        ("M.tflite",),
        ("m.tflite/w.bin",),
    ],
)
def test_two_names_must_not_be_the_same_file(names: tuple[str, ...], folder: Path) -> None:
    with pytest.raises(ModelError, match="must not be, or lead through, the same file as"):
        read_model(with_files(folder, unused=names))


def test_similar_names_are_two_files() -> None:
    assert first_clash(["w.bin", "w.bin2", "parts/w.bin", "parts2/w.bin", "w", "w-", "w/"]) == (
        4,
        6,
    )
    assert first_clash(["w.bin", "w.bin2", "parts/w.bin", "parts2/w.bin", "w", "w-", ""]) is None


# ---- links


def _link(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target, target_is_directory=target.is_dir())


def _file(folder: Path) -> None:
    _link(folder / "w.bin", folder.parent / "secret.bin")


def _inside(folder: Path) -> None:
    (folder / "other.bin").write_bytes(W.tobytes())
    _link(folder / "w.bin", folder / "other.bin")


def _pipe(folder: Path) -> None:
    (folder / "w.bin").unlink()
    os.mkfifo(folder / "w.bin")


def _folder(folder: Path) -> None:
    (folder / "w.bin").unlink()
    (folder / "w.bin").mkdir()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_file, "is a symbolic link, .* not followed; copy the folder with `cp -rL`"),
        (_inside, "is a symbolic link"),
        (_pipe, "not a regular file"),
        (_folder, "not a regular file"),
    ],
)
def test_only_a_file_of_the_folder_is_read(
    change: Callable[[Path], None], why: str, folder: Path
) -> None:
    path = with_files(folder, "w.bin")
    change(folder)
    with pytest.raises(ModelError, match=rf"Could not open '.*w\.bin': .*{why}"):
        read_model(path)


def test_no_folder_of_the_path_is_a_link(folder: Path) -> None:
    path = with_files(folder, "parts/w.bin")
    assert read_model(path).external_buffer_groups == ("parts/w.bin",)
    (folder / "parts").rename(folder.parent / "elsewhere")
    _link(folder / "parts", folder.parent / "elsewhere")
    with pytest.raises(ModelError, match="'parts' is a symbolic link"):
        read_model(path)


def test_a_folder_that_is_swapped_for_a_link_is_not_read(folder: Path) -> None:
    with_files(folder, "parts/w.bin")
    with opened_folder(os.fspath(folder)) as top, below(top, "parts/w.bin") as (parts, last):
        (folder / "parts").rename(folder.parent / "elsewhere")
        (folder / "parts").symlink_to(folder.parent)
        (folder.parent / "w.bin").write_bytes(OUTSIDE)
        assert bytes(FileContent(files.open_file(parts, last), "w").content) == W.tobytes()
        with pytest.raises(OSError, match="symbolic link"), below(top, "parts/w.bin"):
            pass


def test_the_model_s_own_name_may_be_a_link(folder: Path) -> None:
    """A link as in a Hugging Face cache, whose blobs others use, is replaced by a new file."""
    blob = folder.parent / "blob"
    blob.write_bytes(content("w.bin"))
    (folder / "w.bin").write_bytes(W.tobytes())
    _link(folder / "m.tflite", folder.parent / "blob")
    model = read_model(folder / "m.tflite")
    write_files(folder / "m.tflite", model, _changed(model))
    assert not (folder / "m.tflite").is_symlink()
    assert blob.read_bytes() == content("w.bin")
    assert (folder / "m.tflite").stat().st_mode & 0o111 == 0
    assert (folder / "w.bin").read_bytes() == (2 * W).tobytes()
    assert not (folder.parent / "w.bin").exists()


# ---- writing


def _changed(model: Model) -> Edited:
    place = next(t.index for t in model.subgraphs[0].tensors if t.name == "w")
    return edited(model, {(0, place): (2 * W).view(np.uint8)}, {})


def test_only_used_files_are_copied(folder: Path) -> None:
    model = read_model(with_files(folder, "parts/w.bin", unused=("notes.txt",)))
    (folder / "notes.txt").write_bytes(OUTSIDE)
    target = folder.parent / "target"
    target.mkdir()
    for content_of in (edited(model, {}, {}), _changed(model)):
        write_files(target / "new.tflite", model, content_of)
        found = {os.fspath(p.relative_to(target)) for p in target.rglob("*") if p.is_file()}
        assert found == {"new.tflite", "parts/w.bin"}
    assert read_model(target / "new.tflite").external_buffer_groups == ("parts/w.bin",)


@pytest.mark.parametrize("place", ["w.bin", "parts/w.bin"])
@pytest.mark.parametrize("is_there", [False, True])
def test_nothing_is_written_through_a_link(place: str, is_there: bool, folder: Path) -> None:
    model = read_model(with_files(folder, place))
    target, outside = folder.parent / "target", folder.parent / "outside"
    target.mkdir()
    outside.mkdir()
    if is_there:  # a model that is to be replaced
        (target / "new.tflite").write_bytes(content(place))
    if place == "w.bin":
        _link(target / "w.bin", outside / "w.bin")
    else:
        _link(target / "parts", outside)
    with pytest.raises(ModelError, match="is a symbolic link"):
        write_files(target / "new.tflite", model, _changed(model))
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("target", ["../secret", "other", "../missing", "."])
def test_a_link_with_the_new_name_is_replaced(target: str, folder: Path) -> None:
    """Its target belongs to someone else: an archive may contain a link, or a shared folder."""
    secret = folder.parent / "secret"
    for other in (secret, folder / "other"):
        other.write_bytes(OUTSIDE)
    model = read_model(with_files(folder, "w.bin"))
    for name, save in (
        ("new.tflite", lambda path: write_files(path, model, edited(model, {}, {}))),
        ("new.litertlm", lambda path: write_file(path, lambda file: file.write(b"new"))),
    ):
        (folder / name).symlink_to(target)
        save(os.fspath(folder / name))
        assert (folder / name).is_file()
        assert not (folder / name).is_symlink()
    assert secret.read_bytes() == (folder / "other").read_bytes() == OUTSIDE
    assert not (folder.parent / "missing").exists()


@pytest.mark.parametrize("before", [None, b"no model", content(), content("v.bin")])
def test_a_file_that_is_not_the_model_s_is_not_overwritten(
    before: bytes | None, folder: Path
) -> None:
    model = read_model(with_files(folder, "w.bin"))
    target = folder.parent / "target"
    target.mkdir()
    (target / "w.bin").write_bytes(OUTSIDE)
    if before is not None:
        (target / "new.tflite").write_bytes(before)
    with pytest.raises(ModelError, match=r"w\.bin': .* belongs to another model or to none"):
        write_files(target / "new.tflite", model, _changed(model))
    assert (target / "w.bin").read_bytes() == OUTSIDE
    (target / "new.tflite").write_bytes(content("w.bin"))  # now it is
    write_files(target / "new.tflite", model, _changed(model))
    assert (target / "w.bin").read_bytes() == (2 * W).tobytes()


def test_a_model_cannot_have_the_name_of_its_weights(folder: Path) -> None:
    model = read_model(with_files(folder, "w.bin"))
    for name in ("w.bin", "W.bin"):
        with pytest.raises(ModelError, match="save it under another name"):
            write_files(folder / name, model, _changed(model))
    assert (folder / "w.bin").read_bytes() == W.tobytes()


# ---- changes in place


def test_content_that_was_read_does_not_change(folder: Path) -> None:
    path = with_files(folder, "w.bin")
    model = read_model(path)
    expected = bytes(model.content)
    os.truncate(path, 0)
    os.truncate(folder / "w.bin", 0)
    model.origin.check_unchanged()
    assert bytes(model.content) == expected
    assert model.subgraphs[0].tensors[2].data.tolist() == W.tolist()


def test_many_files_are_partly_mapped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sparse files take no space on the disk."""
    names = [f"{i}.bin" for i in range(5)]
    path = with_files(folder, *names)
    for name in names:
        os.truncate(folder / name, 1000)
    monkeypatch.setattr(files, "READ_BYTES", 3500)
    files_of = read_model(path).origin.folder
    assert files_of is not None
    assert [files_of._files[name].is_mapped for name in names] == [False] * 3 + [True] * 2


def _shorten(path: Path) -> None:
    os.truncate(path, 4)


def _overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(8)
        file.write(b"other")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))  # clocks of file systems are coarse


def _copy_over(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


@pytest.mark.parametrize("change", [_shorten, _overwrite, _copy_over])
@pytest.mark.parametrize("name", ["m.tflite", "w.bin"])
def test_changes_of_a_mapped_file_are_detected(
    change: Callable[[Path], None], name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "READ_BYTES", 0)
    path = with_files(folder, "w.bin")
    interpreter = jd.Interpreter(path)
    interpreter.allocate_tensors()
    interpreter.invoke()
    change(folder / name)
    for use in (interpreter.invoke, interpreter.allocate_tensors):
        with pytest.raises(ModelError, match=rf"{name}: the file was changed in place .* rename"):
            use()


@pytest.mark.parametrize("name", ["m.tflite", "w.bin"])
def test_a_mapped_file_may_be_replaced_or_removed(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "READ_BYTES", 0)
    interpreter = jd.Interpreter(with_files(folder, "w.bin"))
    interpreter.allocate_tensors()
    (folder / "new").write_bytes(bytes(16))
    os.replace(folder / "new", folder / name)
    interpreter.invoke()
    (folder / name).unlink()
    interpreter.invoke()


def test_functions_and_saving_detect_it_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "READ_BYTES", 0)
    path = with_files(folder, "w.bin")
    model = jd.load(path)
    _shorten(path)
    for use in (model.function, lambda: model.save(folder / "new.tflite")):
        with pytest.raises(ModelError, match="changed in place"):
            use()


SHORTENED = """
import os, sys
import numpy as np
import jaxdelegate as jd
for path in sys.argv[1:]:
    interpreter = jd.Interpreter(path)
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, np.array([5000], np.int32))
    os.truncate(path, 0)
    try:
        interpreter.invoke()
        print(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).sum())
    except jd.ModelError as error:
        print(error)
"""


def test_a_process_survives_files_that_are_shortened(folder: Path) -> None:
    builder = ModelBuilder()
    i, y = builder.input((1,), np.int32), builder.tensor((1, 64))
    builder.operator("GATHER", [builder.constant(np.ones((6000, 64), np.float32)), i], [y])
    builder.outputs(y)
    small, large = folder / "small.tflite", folder / "large.tflite"
    for path in (small, large):
        path.write_bytes(builder.build(outside=True))
    os.truncate(large, files.READ_BYTES + 1)
    command = [sys.executable, "-c", SHORTENED, small, large]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    output, error = done.stdout.splitlines()
    assert output == "64.0"
    assert "large.tflite: the file was changed in place" in error


def test_a_file_shortened_while_it_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.os, "preadv", lambda *_: 0)
    with pytest.raises(ModelError, match=r"m\.tflite: the file was changed while it was read"):
        read_model(with_files(folder))


def test_a_file_overwritten_while_it_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = with_files(folder), os.preadv

    def slow(*arguments: object) -> int:
        os.utime(path, ns=(0, 1))
        return read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(files.os, "preadv", slow)
    with pytest.raises(ModelError, match=r"m\.tflite: the file was changed while it was read"):
        read_model(path)
