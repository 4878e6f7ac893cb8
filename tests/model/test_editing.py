"""Editing a file changes the requested values and nothing else."""

import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import interpreter as litert
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.errors import ModelError
from jaxdelegate.model import writing
from jaxdelegate.model.editing import Edited, edited
from jaxdelegate.model.flatbuffer import Flatbuffer
from jaxdelegate.model.half import castable, with_halves
from jaxdelegate.model.layout import LAYOUT
from jaxdelegate.model.records import Model, read_model
from jaxdelegate.model.rewriting import Rewriting
from jaxdelegate.model.writing import write_files
from jaxdelegate.op_lowering.options import CustomOptions
from jaxdelegate.quant.params import Quantization
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import run_once

A, B = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
ONES = np.full(4, 7, np.float32)


def raw(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint8)


def sums(*, shared: bool = False, outside: bool = False, custom: bool = False) -> bytes:
    """x + a + b; with `shared`, a and b are in one buffer, which is also metadata."""
    builder = ModelBuilder()
    x, y, z = (builder.input((4,), name="x"), builder.tensor((4,)), builder.tensor((4,), name="z"))
    a, b = builder.constant(A, "a"), builder.constant(A if shared else B, "b")
    builder.operator("ADD", [x, a], [y])
    builder.operator("ADD", [y, b], [z])
    builder.outputs(z)
    builder.metadata("notes", b"as they are")
    if custom:
        unused = builder.tensor((4,))
        builder.operator("Mine", [x], [unused], CustomOptions(b"0123456789abcdef"))
    if shared:
        builder._t.tensors[b].buffer = builder._t.tensors[a].buffer
        builder.metadata("again", b"")
        builder._metadata[-1].buffer = builder._t.tensors[a].buffer
    return builder.build(outside=outside)


def stock(content: bytes, x: np.ndarray) -> np.ndarray:
    return run_once(litert.Interpreter(model_content=content), [x])[0]


@pytest.mark.parametrize("outside", [False, True])
def test_nothing_to_change_is_the_same_file(outside: bool) -> None:
    content = sums(outside=outside)
    model = read_model(content)
    assert bytes(edited(model, {}, {}).content) == content
    assert bytes(edited(model, {(0, 3): raw(A)}, {}).content) == content


@pytest.mark.parametrize("outside", [False, True])
def test_values_are_replaced(outside: bool) -> None:
    content = sums(outside=outside)
    new = bytes(edited(read_model(content), {(0, 3): raw(ONES)}, {}).content)
    differing = [i for i, (a, b) in enumerate(zip(content, new, strict=True)) if a != b]
    assert len(new) == len(content)
    assert max(differing) - min(differing) < ONES.nbytes
    np.testing.assert_array_equal(stock(new, B), B + ONES + B)


@pytest.mark.parametrize("outside", [False, True])
def test_a_tensor_is_separated_from_a_shared_buffer(outside: bool) -> None:
    content = sums(shared=True, outside=outside)
    new = bytes(edited(read_model(content), {(0, 3): raw(ONES)}, {}).content)
    np.testing.assert_array_equal(stock(new, B), B + ONES + A)
    again = read_model(new)
    assert bytes(again.metadata["notes"]) == b"as they are"
    assert bytes(again.metadata["again"]) == A.tobytes()
    assert new.index(ONES.tobytes()) % 16 == 0
    both = bytes(edited(again, {(0, 3): raw(B), (0, 4): raw(B)}, {}).content)
    np.testing.assert_array_equal(stock(both, B), 3 * B)


def _tensors(model: Model) -> list:
    return list(model.subgraphs[0].tensors)


def test_absolute_positions_are_updated() -> None:
    content = sums(shared=True, outside=True, custom=True)
    again = read_model(edited(read_model(content), {(0, 3): raw(ONES)}, {}).content)
    assert again.subgraphs[0].operators[2].options.data == b"0123456789abcdef"


def test_a_model_table_of_a_newer_schema_is_not_copied() -> None:
    content = bytearray(sums(shared=True))
    root = Flatbuffer(memoryview(bytes(content)), "m", LAYOUT).root("Model").at
    vtable = root - struct.unpack_from("<i", content, root)[0]
    known = content[vtable : vtable + struct.unpack_from("<H", content, vtable)[0]]
    size = 4 + 2 * (len(LAYOUT["Model"]) + 1)
    wider = bytearray(size)
    wider[: len(known)] = known
    struct.pack_into("<H", wider, 0, size)
    struct.pack_into("<H", wider, size - 2, 4)  # an unknown field
    content += bytes(-len(content) % 4)
    struct.pack_into("<i", content, root, root - len(content))
    model = read_model(bytes(content + wider))
    with pytest.raises(ModelError, match=r"Model\.buffers: to separate tensors .* newer schema"):
        edited(model, {(0, 3): raw(ONES)}, {})


def _quantized() -> bytes:
    builder = ModelBuilder()
    q = Quantization(np.array([0.5], np.float32), np.array([0], np.int64))
    x = builder.input((4,), np.int8, "x", quantization=q)
    y = builder.tensor((4,), np.int8, "y", quantization=q)
    builder.operator("RELU", [x], [y])
    builder.outputs(y)
    return builder.build()


def test_scales_change_in_place() -> None:
    content = _quantized()
    numbers = {(0, 1): {"scale": np.float32([0.25]), "zero_point": np.array([3])}}
    new = edited(read_model(content), {}, numbers).content
    q = read_model(new).subgraphs[0].tensors[1].quantization
    assert q is not None
    assert (q.scale.tolist(), q.zero_point.tolist()) == ([0.25], [3])
    assert sum(a != b for a, b in zip(content, new, strict=True)) <= 12
    with pytest.raises(ModelError, match=r"QuantizationParameters\.scale .* 1 values, got 2"):
        edited(read_model(content), {}, {(0, 1): {"scale": np.ones(2, np.float32)}})


def test_scales_that_tensors_share_are_not_changed_for_one() -> None:
    content = bytearray(_quantized())
    root = Flatbuffer(memoryview(bytes(content)), "m", LAYOUT).root("Model")
    x, y = root.tables("subgraphs", "SubGraph")[0].tables("tensors", "Tensor")
    place, target = y.place("quantization"), x.target("quantization")
    assert target > place  # the builder writes backwards
    struct.pack_into("<I", content, place, target - place)
    model = read_model(bytes(content))
    scale = {"scale": np.float32([0.25])}
    with pytest.raises(ModelError, match="'x' shares its table, its scales or its data"):
        edited(model, {}, {(0, 1): scale})
    assert edited(model, {}, {(0, 0): scale, (0, 1): scale}).content != content


# ---- files


def external(folder: Path, values: np.ndarray, name: str = "m.tflite") -> Path:
    """x + w, with w in a file next to the model."""
    builder = ModelBuilder()
    x, y = builder.input((4,), name="x"), builder.tensor((4,), name="y")
    w = builder.external((4,), np.float32, builder.external_slice("w.bin", 8, 16), "w")
    builder.operator("ADD", [x, w], [y])
    builder.outputs(y)
    (folder / "w.bin").write_bytes(bytes(8) + values.tobytes())
    path = folder / name
    path.write_bytes(builder.build())
    return path


def test_files_next_to_the_model_are_copied(tmp_path: Path) -> None:
    model = read_model(external(tmp_path, A))
    (tmp_path / "other").mkdir()
    target = tmp_path / "other" / "m.tflite"
    changed = edited(model, {(0, 2): raw(ONES)}, {})
    assert bytes(changed.content) == bytes(model.content)
    write_files(target, model, changed)
    again = read_model(target).subgraphs[0].tensors[2].data
    np.testing.assert_array_equal(again, ONES)
    np.testing.assert_array_equal(read_model(model.source).subgraphs[0].tensors[2].data, A)
    write_files(target, model, edited(model, {}, {}))  # over a model saved earlier
    assert (tmp_path / "other" / "w.bin").read_bytes() == (tmp_path / "w.bin").read_bytes()


def test_files_of_another_model_are_not_overwritten(tmp_path: Path) -> None:
    model = read_model(external(tmp_path, A))
    changed = edited(model, {(0, 2): raw(ONES)}, {})
    with pytest.raises(ModelError, match=r"w\.bin': .* belongs to another model"):
        write_files(tmp_path / "copy.tflite", model, changed)
    write_files(tmp_path / "copy.tflite", model, edited(model, {}, {}))  # shares the weights
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "w.bin").write_bytes(b"something else")
    with pytest.raises(ModelError, match="another directory"):
        write_files(tmp_path / "other" / "m.tflite", model, edited(model, {}, {}))
    assert (tmp_path / "other" / "w.bin").read_bytes() == b"something else"
    write_files(model.source, model, changed)  # its own
    np.testing.assert_array_equal(read_model(model.source).subgraphs[0].tensors[2].data, ONES)


def test_the_file_that_was_read_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(sums())
    path.chmod(0o640)
    model = read_model(path)
    write_files(path, model, edited(model, {(0, 3): raw(ONES)}, {}))
    np.testing.assert_array_equal(model.subgraphs[0].tensors[3].data, A)  # mapped, as it was
    np.testing.assert_array_equal(read_model(path).subgraphs[0].tensors[3].data, ONES)
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_no_partial_file_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(b"before")

    def fails(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(writing.os, step, fails)
    with pytest.raises(OSError, match="disk full"):
        write_files(path, read_model(sums()), Edited(b"after", {}))
    assert os.listdir(tmp_path) == ["m.tflite"]
    assert path.read_bytes() == b"before"


def test_a_missing_folder(tmp_path: Path) -> None:
    model = read_model(sums())
    with pytest.raises(FileNotFoundError, match="missing': no such folder; create it first"):
        write_files(tmp_path / "missing" / "m.tflite", model, edited(model, {}, {}))


# ---- float16


def _half(content: bytes) -> bytes:
    model = read_model(content)
    return with_halves(model, list(castable(model)))


@pytest.mark.parametrize(
    "build",
    [
        sums,
        lambda: sums(shared=True),
        lambda: sums(outside=True),
        lambda: sums(shared=True, outside=True),
    ],
)
def test_float16_constants_are_dequantized(build: Callable[[], bytes]) -> None:
    content = build()
    new = _half(content)
    model = read_model(new)
    names = [op.name for op in model.subgraphs[0].operators]
    assert names == ["DEQUANTIZE", "DEQUANTIZE", "ADD", "ADD"]
    assert [t.name for t in _tensors(model) if t.stored is not None] == ["a", "b"]
    assert all(t.stored is None or t.dtype == np.float16 for t in _tensors(model))
    assert bytes(model.metadata["notes"]) == b"as they are"
    np.testing.assert_array_equal(stock(new, B), stock(content, B))
    assert _half(new) == new


def test_a_file_that_would_lose_data_is_not_cast() -> None:
    builder = ModelBuilder()
    x, y = builder.input((4,), name="x"), builder.tensor((4,))
    builder.operator("ADD", [x, builder.constant(A)], [y])
    builder.outputs(y)
    builder.metadata("model_control_dependencies", b"0")
    with pytest.raises(ModelError, match="refers to operators by index"):
        _half(builder.build())


def test_an_archive_after_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(sums())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("labels.txt", "cat\ndog")
    path.write_bytes(_half(path.read_bytes()))
    with zipfile.ZipFile(path) as archive:
        assert archive.read("labels.txt") == b"cat\ndog"
    np.testing.assert_array_equal(stock(path.read_bytes(), B), B + A + B)


def _with_archive(path: Path, data: bytes) -> bytes:
    path.write_bytes(sums())
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("labels.txt", data)
    return path.read_bytes()


def test_an_archive_that_cannot_be_copied_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    with pytest.raises(ModelError, match=r"ZIP archive .* its files have 67108865 bytes"):
        _half(_with_archive(path, bytes((64 << 20) + 1)))
    content = bytearray(_with_archive(path, b"cat\ndog"))
    at = content.rindex(b"labels.txt", 0, content.rindex(b"labels.txt")) + 12
    content[at] ^= 0xFF
    with pytest.raises(ModelError, match="the ZIP archive after the model must be one"):
        _half(bytes(content))


def test_copies_of_shared_bytes_are_limited() -> None:
    b = flatbuffers.Builder()
    data = b.CreateByteVector(bytes(1 << 20))
    schema.BufferStart(b)
    schema.BufferAddData(b, data)
    buffer = schema.BufferEnd(b)
    schema.SubGraphStart(b)
    graph = schema.SubGraphEnd(b)
    vectors = []
    for tables in ([buffer] * 1000, [graph]):
        b.StartVector(4, len(tables), 4)
        for table in tables:
            b.PrependUOffsetTRelative(table)
        vectors.append(b.EndVector())
    schema.ModelStart(b)
    schema.ModelAddVersion(b, 3)
    schema.ModelAddBuffers(b, vectors[0])
    schema.ModelAddSubgraphs(b, vectors[1])
    b.Finish(schema.ModelEnd(b), b"TFL3")
    model = read_model(bytes(b.Output()))
    with pytest.raises(ModelError, match=r"<bytes>: folding: .* with shared ones copied"):
        Rewriting(model, "folding").content()
