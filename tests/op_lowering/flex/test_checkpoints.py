"""Save, Restore and EnsureShape."""

import base64
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.errors import InterpreterError
from jaxdelegate.model.open_models import open_model
from jaxdelegate.op_lowering.flex import reference_tables
from jaxdelegate.op_lowering.options import FlexOptions, VarHandleOptions, custom_options
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.reference.registry import KERNELS
from jaxdelegate.runtime.subgraph import ModelStore
from jaxdelegate.testing import Case, ModelBuilder, f32, of
from tests.op_lowering.flex.test_math import case
from tests.support.node_defs import flex_options, message, varint

# TensorFlow 2.17.1: tf.raw_ops.Save(filename=..., tensor_names=["w", "n"],
#                                    data=[np.float32([[1, 2.5]]), np.int64(-3)])
FILE = base64.b64decode(
    "AAAoCiYKCQoBbhIAGAkiAAoVCgF3EggSAggBEgIIAhgBIgQKAAoAEgIIAQAFFQBuAAEAEhMKAW4SABoMUgr9//////"
    "////8BAQkXdwABAQKAf4B/EhUKAXcSBAoACgAaCioIAACAPwAAIEAAAAAAAQAAAAAI+dVFAAAAAAEAAAAAwPKhsAAB"
    "AgEAcwAAAAABAAAAAKQeNrV4CIUBDgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAV/uAiyR1R9s="
)
W, N = np.float32([[1, 2.5]]), np.int64(-3)


def sizes(*shape: int) -> bytes:
    """TensorShapeProto."""
    return b"".join(message(2, b"\x08" + varint(n)) for n in shape)


def ensured(label: str, shape: bytes) -> Case:
    return case("EnsureShape", label, [f32(2, 3)], attributes={"shape": shape})


LOWERED = [
    ensured("equal", sizes(2, 3)),
    ensured("free", sizes(-1, 3)),
    ensured("any", b"\x18\x01"),
    case("EnsureShape", "int64", [of(np.int64)], attributes={"shape": b""}),
]
IMPOSSIBLE = [ensured("size", sizes(2, 4)), ensured("rank", sizes(2))]


def test_what_it_says_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"expected the shape \[-1, 4\], got \[2, 3\]"):
        ensured("", sizes(-1, 4)).specs()


def saving(tensors: Mapping[str, Any]) -> bytes:
    """A model that saves its inputs, and returns the path."""
    builder = ModelBuilder()
    path = builder.input((), object, "path")
    names = builder.constant(np.array(list(tensors), object))
    given = [builder.input(a.shape, a.dtype, name) for name, a in tensors.items()]
    builder.operator("FlexSave", [path, names, *given], [], FlexOptions(flex_options("Save")))
    builder.outputs(path)
    return builder.build()


def restoring(name: str, dtype: Any, path: bytes | None = None) -> bytes:
    """A model that restores a tensor, from a file that it chooses itself if there is a path."""
    builder = ModelBuilder()
    at = builder.input((), object) if path is None else builder.constant(np.array(path, object))
    y = builder.tensor((), dtype)
    inputs = [at, builder.constant(np.array(name, object))]
    builder.operator("FlexRestore", inputs, [y], FlexOptions(flex_options("Restore")))
    builder.outputs(y)
    return builder.build()


def run(content: bytes, *inputs: Any) -> np.ndarray:
    interpreter = jd.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    for detail, x in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], np.asarray(x))
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def save(path: Path, tensors: Mapping[str, Any]) -> None:
    at, names = np.array(bytes(path), object), [name.encode() for name in tensors]
    call = SimpleNamespace(paths={0: bytes(path)})
    kernel = KERNELS["FlexSave"].run
    kernel(call, FlexOptions(), (), (), at, np.array(names, object), *tensors.values())


def restore(path: Path, name: str, dtype: Any) -> np.ndarray:
    at, wanted = (np.array(text, object) for text in (bytes(path), name.encode()))
    call, y = SimpleNamespace(paths={0: bytes(path)}), TensorSpec("y", (), np.dtype(dtype))
    (found,) = KERNELS["FlexRestore"].run(call, FlexOptions(), (), (y,), at, wanted)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(FILE)
    return tmp_path / "file"


def test_a_file_is_that_of_tensorflow(path: Path) -> None:
    found = run(restoring("w", np.float32), str(path))
    np.testing.assert_array_equal(found, W, strict=True)
    np.testing.assert_array_equal(restore(path, "n", np.int64), N)
    path.unlink()
    run(saving({"w": W, "n": np.array(N)}), str(path), W, N)
    assert path.read_bytes() == FILE
    assert [p.name for p in path.parent.iterdir()] == ["file"]


DTYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"]


def test_every_dtype_and_many_blocks(path: Path) -> None:
    """Blocks end after 256 KiB; keys share their beginnings with those before."""
    tensors = {f"layer/{d}\0": of(np.dtype(d), 3, 2).value for d in DTYPES}
    tensors |= {f"large/{i}": f32(70, 1000, seed=i).value for i in range(2)}
    tensors |= {f"part/{i}": f32(i).value for i in range(20)}
    tensors["text"] = np.array([b"", b"two\0"], object)
    save(path, tensors)
    for name, array in tensors.items():
        found = restore(path, name, array.dtype)
        np.testing.assert_array_equal(found, array, err_msg=name)
        assert found.shape == array.shape


def test_checksums() -> None:
    assert reference_tables.checksum(b"123456789") == 0xE3069283  # RFC 3720's polynomial
    data = f32(1000).value.tobytes()
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    assert reference_tables.checksum(data) == crc ^ 0xFFFFFFFF


def compressed(data: bytes) -> bytes:
    """With another compression of the first block, and its checksum."""
    block = data[:0x73] + b"\1"
    crc = reference_tables.checksum(block)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
    return block + struct.pack("<I", masked) + data[len(block) + 4 :]


@pytest.mark.parametrize(
    ("content", "name", "dtype", "said"),
    [
        (FILE, "v", np.float32, "it has not 'v', but 'n', 'w'"),
        (FILE, "w", np.int32, "'w' is float32 in it, and int32 in the model"),
        (FILE[:20] + b"?" + FILE[21:], "w", np.float32, "a block's checksum is wrong"),
        (FILE[40:], "w", np.float32, "a block"),
        (compressed(FILE), "w", np.float32, "its blocks are compressed"),
        (FILE[:-1], "w", np.float32, "it is not a checkpoint that tf.raw_ops.Save wrote"),
        (b"", "w", np.float32, "it is not a checkpoint that tf.raw_ops.Save wrote"),
    ],
)
def test_what_it_says_of_other_files(
    path: Path, content: bytes, name: str, dtype: Any, said: str
) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=said):
        restore(path, name, dtype)


def test_a_missing_file_is_named(path: Path) -> None:
    path.unlink()
    with pytest.raises(InterpreterError, match=f"FlexRestore.*No such file.*{path}"):
        run(restoring("w", np.float32), str(path))
    with pytest.raises(InterpreterError, match=f"FlexSave.*No such file.*{path}/none"):
        run(saving({"w": W}), str(path / "none"), W)


def test_what_is_no_file_is_not_read(path: Path) -> None:
    """A pipe would wait for a writer, a device has no end."""
    pipe = path.with_name("pipe")
    os.mkfifo(pipe)
    for other in (pipe, path.parent, Path("/dev/zero")):
        with pytest.raises(InterpreterError, match=f"{str(other)!r} is not a file"):
            run(restoring("w", np.float32), str(other))


def test_damage_is_a_value_error(path: Path) -> None:
    """Whatever byte is wrong."""
    for at in range(0, len(FILE), 2):
        path.write_bytes(FILE[:at] + bytes([FILE[at] ^ 0x55]) + FILE[at + 1 :])
        try:
            found = restore(path, "w", np.float32)
        except ValueError:
            continue
        np.testing.assert_array_equal(found, W)  # bytes that nothing reads


def test_a_model_does_not_choose_files(path: Path) -> None:
    with pytest.raises(InterpreterError, match="must not choose the file"):
        run(restoring("w", np.float32, bytes(path)))


def test_requests_do_not_choose_files(path: Path) -> None:
    """What jaxdelegate serve runs has no interpreter, but a runner."""
    model = open_model(restoring("w", np.float32))
    with pytest.raises(InterpreterError, match="must not choose the file"):
        ModelStore(model.subgraphs)(0, np.array(bytes(path), object))


def training() -> bytes:
    """Signatures as in TensorFlow's guide to on-device training: w += 1, and a checkpoint of w."""
    builder = ModelBuilder()
    handle, first = VarHandleOptions(shared_name="w"), builder
    for key in ("train", "infer", "save", "restore"):
        graph = first if key == "train" else builder.subgraph(key)
        variable = graph.tensor((), "V4")
        graph.operator("VAR_HANDLE", [], [variable], handle)
        inputs, outputs = {}, {}
        if key in ("train", "infer", "save"):
            value = graph.tensor((2,), np.float32)
            graph.operator("READ_VARIABLE", [variable], [value])
        if key == "train":
            inputs["x"], total = graph.input((2,), np.float32), graph.tensor((2,), np.float32)
            graph.operator("ADD", [value, inputs["x"]], [total])
            graph.operator("ASSIGN_VARIABLE", [variable, total], [])
            outputs["y"] = total
        elif key == "infer":
            outputs["y"] = value
        else:
            inputs["path"] = outputs["path"] = graph.input((), object)
            name = graph.constant(np.array(["w"] if key == "save" else "w", object))
        if key == "save":
            options = FlexOptions(flex_options("Save"))
            graph.operator("FlexSave", [inputs["path"], name, value], [], options)
        elif key == "restore":
            read, shaped = graph.tensor((), np.float32), graph.tensor((2,), np.float32)
            options = FlexOptions(flex_options("Restore"))
            graph.operator("FlexRestore", [inputs["path"], name], [read], options)
            ensured = custom_options("FlexEnsureShape", flex_options("EnsureShape", shape=sizes(2)))
            graph.operator("FlexEnsureShape", [read], [shaped], ensured)
            graph.operator("ASSIGN_VARIABLE", [variable, shaped], [])
        graph.outputs(*outputs.values())
        builder.signature(key, inputs, outputs, builder.n_subgraphs - 1)
    init = builder.subgraph("init")
    variable = init.tensor((), "V4")
    init.operator("VAR_HANDLE", [], [variable], handle)
    init.operator("ASSIGN_VARIABLE", [variable, init.constant(np.zeros(2, np.float32))], [])
    return builder.build()


@pytest.mark.parametrize("delegated", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_training_goes_on_from_a_checkpoint(path: Path, delegated: bool) -> None:
    content = training()
    ones, at = np.ones(2, np.float32), np.array(str(path))

    def opened() -> dict[str, Any]:
        delegates = [jd.JaxDelegate()] if delegated else []
        interpreter = jd.Interpreter(model_content=content, experimental_delegates=delegates)
        interpreter.allocate_tensors()
        return {
            key: interpreter.get_signature_runner(key) for key in interpreter.get_signature_list()
        }

    save(path, {"w": np.zeros(2, np.float32)})
    first = opened()
    first["restore"](path=at)
    for _ in range(3):
        first["train"](x=ones)
    first["save"](path=at)
    assert first["train"](x=ones)["y"].tolist() == [4, 4]
    later = opened()
    later["restore"](path=at)
    assert later["infer"]()["y"].tolist() == [3, 3]
    assert later["train"](x=ones)["y"].tolist() == [4, 4]
