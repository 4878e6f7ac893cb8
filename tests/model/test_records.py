"""Reading a model from bytes and files: its graph and its buffers."""

import dataclasses
import mmap
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.errors import ModelError
from jaxdelegate.model import files
from jaxdelegate.model.records import Model, VariantType, read_model
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    AddOptions,
    Conv2DOptions,
    CustomOptions,
    Padding,
    Pool2DOptions,
    SoftmaxOptions,
)
from jaxdelegate.op_lowering.records.enums import TensorType
from jaxdelegate.testing import ModelBuilder

SHARED = pathlib.Path(__file__).parents[2].parent / "shared"


def sum_model(**details: Any) -> ModelBuilder:
    """x + [1, 2, 3, 4] + [1, 2, 3, 4]: tensors x, c, y, z; `details` are the constant's."""
    builder = ModelBuilder()
    x = builder.input((4,), name="x")
    c = builder.constant(np.arange(1, 5, dtype=np.float32), "c", **details)
    y, z = builder.tensor((4,), name="y"), builder.tensor((4,), name="z")
    builder.operator("ADD", [x, c], [y])
    builder.operator("ADD", [y, c], [z])
    builder.outputs(z)
    return builder


def test_a_model_is_read_as_it_was_written() -> None:
    builder = sum_model()
    builder.signature("serve", {"in": 0}, {"out": 3})
    builder.metadata("min_runtime_version", b"2.3.0")
    model = read_model(builder.build())
    (graph,) = model.subgraphs
    assert (model.source, model.version, model.description) == ("<bytes>", 3, "jaxdelegate.testing")
    assert (graph.index, graph.name, graph.inputs, graph.outputs) == (0, "main", (0,), (3,))
    assert [t.name for t in graph.tensors] == ["x", "c", "y", "z"]
    assert [(op.index, op.name, op.version, op.inputs, op.outputs) for op in graph.operators] == [
        (0, "ADD", 1, (0, 1), (2,)),
        (1, "ADD", 1, (2, 1), (3,)),
    ]
    (signature,) = model.signatures
    assert (signature.key, signature.subgraph) == ("serve", 0)
    assert (dict(signature.inputs), dict(signature.outputs)) == ({"in": 0}, {"out": 3})
    assert {k: bytes(v) for k, v in model.metadata.items()} == {"min_runtime_version": b"2.3.0"}
    assert bytes(model.content) == builder.build()
    assert model.nbytes == len(builder.build())


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview], ids=lambda f: f.__name__)
def test_bytes_of_any_kind_are_read(form: Callable[[bytes], Any]) -> None:
    model = read_model(form(sum_model().build()))
    data = model.subgraphs[0].tensors[1].data
    assert data.tolist() == [1, 2, 3, 4]
    assert not data.flags.writeable
    assert model.content.readonly


@pytest.mark.parametrize("form", [str, pathlib.Path, os.fsencode], ids=["str", "Path", "bytes"])
def test_a_path_is_read(form: Callable[[Any], Any], tmp_path: pathlib.Path) -> None:
    path = tmp_path / "größe.tflite"
    path.write_bytes(sum_model().build())
    if form is os.fsencode:  # bytes are content: a bytes path comes as a PathLike
        model = read_model(type("P", (), {"__fspath__": lambda _: os.fsencode(path)})())
    else:
        model = read_model(form(path))
    assert model.source == str(path)


def bases(array: np.ndarray) -> list[Any]:
    found: list[Any] = [array]
    while getattr(found[-1], "base", None) is not None:
        found.append(found[-1].base)
    return [getattr(owner, "obj", owner) for owner in found]


def test_a_file_is_mapped_and_not_copied(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(sum_model().build())
    model = read_model(path)
    data = model.subgraphs[0].tensors[1].data
    assert np.shares_memory(data, np.frombuffer(model.content, np.uint8))
    assert isinstance(bases(data)[-1], mmap.mmap)
    assert not data.flags.writeable
    del model
    assert data.tolist() == [1, 2, 3, 4]  # the array keeps the map alive


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux's accounting")
def test_a_large_file_takes_no_private_memory(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "READ_BYTES", 1 << 20)

    def anonymous() -> int:
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])

    path = tmp_path / "m.tflite"
    builder = ModelBuilder()
    builder.outputs(builder.constant(np.zeros(1 << 23, np.float32), "c"))
    path.write_bytes(builder.build())
    del builder
    before = anonymous()
    model = read_model(path)
    assert model.subgraphs[0].tensors[0].spec().const.shape == (1 << 23,)
    assert anonymous() - before < 1 << 22


def test_an_operator_s_details() -> None:
    builder = ModelBuilder()
    x, state = builder.input((1, 2)), builder.tensor((1, 2), is_variable=True)
    inner, y = builder.tensor((0,), np.int8), builder.tensor((1, 2))
    builder.operator(
        "SVDF",
        [x, None, state],
        [y],
        version=3,
        intermediates=[inner],
        mutating=[False, False, True],
    )
    name = 'my/"op"+1'
    builder.operator(name, [y], [z := builder.tensor((1, 2))], CustomOptions(b"\x05"), version=2)
    builder.outputs(z)
    graph = read_model(builder.build()).subgraphs[0]
    svdf, custom = graph.operators
    assert (svdf.inputs, svdf.intermediates, svdf.version) == ((0, -1, 1), (2,), 3)
    assert svdf.mutating_variable_inputs == (False, False, True)
    assert graph.tensors[1].is_variable
    assert graph.tensors[1].spec().is_variable
    assert (custom.name, custom.custom, custom.custom_options) == (name, True, b"\x05")
    assert (svdf.scope, custom.scope) == ("SVDF.0", "my__op__1.1")
    assert custom.version == 2
    assert svdf.custom_options == b""


def test_equal_options_are_decoded_once() -> None:
    """Options of every kind of scalar; those that differ are distinct."""
    different = [
        Conv2DOptions(),
        Conv2DOptions(stride_w=2),
        Conv2DOptions(stride_h=2),
        Conv2DOptions(padding=Padding.VALID),
        Conv2DOptions(fused_activation_function=ActivationFunctionType.RELU6),
    ]
    softmaxes = [SoftmaxOptions(beta=beta) for beta in (1.0, 1.5, -1.0)]
    builder = ModelBuilder()
    tensor = builder.input((1, 2))
    for options in (different + softmaxes) * 2:
        name = "SOFTMAX" if isinstance(options, SoftmaxOptions) else "CONV_2D"
        following = builder.tensor((1, 2))
        builder.operator(name, [tensor], [following], options)
        tensor = following
    builder.outputs(tensor)
    found = [op.options for op in read_model(builder.build()).subgraphs[0].operators]
    first, second = found[: len(found) // 2], found[len(found) // 2 :]
    assert first == different + softmaxes
    assert all(a is b for a, b in zip(first, second, strict=True))


def test_both_opcode_fields_count() -> None:
    builder = ModelBuilder()
    x, y, z = builder.input((2,)), builder.tensor((2,)), builder.tensor((2,))
    builder.operator("STABLEHLO_ADD", [x, x], [y])
    builder.operator("ADD", [y, y], [z])
    builder.outputs(z)

    def old(t: schema.ModelT) -> None:
        t.operatorCodes[1].builtinCode = 0  # files from before the second field

    names = [op.name for op in read_model(builder.build(edit=old)).subgraphs[0].operators]
    assert names == ["STABLEHLO_ADD", "ADD"]


def test_unknown_shapes() -> None:
    builder = ModelBuilder()
    x = builder.input((1, 3), shape_signature=(-1, 3))
    v = builder.input((), name="v")
    builder.outputs(x, v)

    def details(t: schema.ModelT) -> None:
        sub = schema.VariantSubTypeT()
        sub.shape, sub.type, sub.hasRank = [2, 3], schema.TensorType.INT8, True
        t.subgraphs[0].tensors[1].type = schema.TensorType.VARIANT
        t.subgraphs[0].tensors[1].variantTensors = [sub]
        t.subgraphs[0].tensors[1].hasRank = False

    x_read, v_read = read_model(builder.build(edit=details)).subgraphs[0].tensors
    assert (x_read.shape, x_read.shape_signature, x_read.has_rank) == ((1, 3), (-1, 3), True)
    assert (v_read.shape_signature, v_read.has_rank) == (None, False)
    assert v_read.variant_types == (VariantType((2, 3), TensorType.INT8, has_rank=True),)


def test_names_that_are_not_utf_8_have_replacement_characters() -> None:
    content = (
        sum_model()
        .build()
        .replace(b"main", b"m\xe4in")
        .replace(b"jaxdelegate.t", b"jaxdele\xffate.t")
    )
    model = read_model(content)
    assert model.subgraphs[0].name == "m�in"
    assert model.description == "jaxdele�ate.testing"


def test_buffers_and_custom_options_after_the_flatbuffer() -> None:
    builder = sum_model()
    builder.metadata("note", b"text")
    y = builder.tensor((4,))
    builder.operator("my.op", [3], [y], CustomOptions(b"\x01\x02\x03"))
    builder.outputs(y)
    inside, outside = read_model(builder.build()), read_model(builder.build(outside=True))
    for model in (inside, outside):
        assert model.subgraphs[0].tensors[1].data.tolist() == [1, 2, 3, 4]
        assert model.subgraphs[0].operators[2].custom_options == b"\x01\x02\x03"
        assert bytes(model.metadata["note"]) == b"text"
    data = outside.subgraphs[0].tensors[1].data
    assert np.shares_memory(data, np.frombuffer(outside.content, np.uint8))


def external_model(group: str = "weights.bin", offset: int = 8, length: int = 16) -> bytes:
    builder = ModelBuilder()
    x, y = builder.input((4,)), builder.tensor((4,))
    c = builder.external((4,), np.float32, builder.external_slice(group, offset, length))
    builder.operator("ADD", [x, c], [y])
    builder.outputs(y)
    return builder.build()


def test_external_buffers_are_mapped_from_the_model_s_directory(tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.tflite").write_bytes(external_model())
    (tmp_path / "weights.bin").write_bytes(bytes(8) + np.arange(4, dtype=np.float32).tobytes())
    model = read_model(tmp_path / "m.tflite")
    assert model.external_buffer_groups == ("weights.bin",)
    data = model.subgraphs[0].tensors[2].data
    assert data.tolist() == [0, 1, 2, 3]
    assert isinstance(bases(data)[-1], mmap.mmap)


def test_empty_tensors_have_a_value_though_nothing_is_stored() -> None:
    builder = ModelBuilder()
    x, e, y = builder.input((0, 2)), builder.tensor((0, 2)), builder.tensor((0, 2))
    builder.operator("ADD", [x, e], [y])
    builder.outputs(y)
    tensors = read_model(builder.build()).subgraphs[0].tensors
    assert [t.data is None for t in tensors] == [True, False, True]
    assert tensors[1].data.shape == (0, 2)


def test_the_first_buffer_means_no_data() -> None:
    def filled(t: schema.ModelT) -> None:
        t.buffers[0].data = np.ones(16, np.uint8)

    tensors = read_model(sum_model().build(edit=filled)).subgraphs[0].tensors
    assert [t.data is None for t in tensors] == [True, False, True, True]


def test_an_empty_buffer_is_not_the_value_of_a_computed_tensor() -> None:
    builder = ModelBuilder()
    x, y = builder.input((0,)), builder.tensor((0,))
    builder.operator("ABS", [x], [y])
    builder.outputs(y)

    def empty(t: schema.ModelT) -> None:
        t.buffers.append(schema.BufferT())
        t.buffers[1].data = np.empty(0, np.uint8)
        t.subgraphs[0].tensors[0].buffer = t.subgraphs[0].tensors[1].buffer = 1

    tensors = read_model(builder.build(edit=empty)).subgraphs[0].tensors
    assert [t.data for t in tensors] == [None, None]


def test_a_buffer_after_the_first_four_gigabytes(tmp_path: pathlib.Path) -> None:
    def far(t: schema.ModelT) -> None:
        t.buffers[1].data, t.buffers[1].offset, t.buffers[1].size = None, 5 << 30, 16

    with (tmp_path / "m.tflite").open("wb") as file:  # a hole, not five gigabytes
        file.write(sum_model().build(edit=far))
        file.seek(5 << 30)
        file.write(np.float32([5, 6, 7, 8]).tobytes())
    tensor = read_model(tmp_path / "m.tflite").subgraphs[0].tensors[1]
    assert tensor.data.tolist() == [5, 6, 7, 8]


def test_an_operator_may_set_a_variable_and_leave_outputs_out() -> None:
    builder = ModelBuilder()
    x, v = builder.input((1,)), builder.tensor((1,), is_variable=True)
    builder.operator("ABS", [x], [v])
    builder.operator("my.op", [v], [-1, y := builder.tensor((1,))], CustomOptions())
    builder.outputs(y, y)
    graph = read_model(builder.build()).subgraphs[0]
    assert graph.operators[1].outputs == (-1, 2)
    assert graph.outputs == (2, 2)


def test_reshape_may_have_a_shape_without_data() -> None:
    builder = ModelBuilder()
    x, shape, y = builder.input((4,)), builder.tensor((2, 1), np.int32), builder.tensor((2, 2))
    builder.operator("RESHAPE", [x, shape], [y])
    builder.outputs(y)
    assert read_model(builder.build()).subgraphs[0].operators[0].inputs == (0, -1)


def test_options_of_another_operator_are_ignored_as_in_litert() -> None:
    builder = ModelBuilder()
    x, y = builder.input((1, 2, 2, 1)), builder.tensor((1, 2, 2, 1))
    builder.operator("ADD", [x, x], [y], Pool2DOptions(stride_w=3))
    builder.outputs(y)
    assert read_model(builder.build()).subgraphs[0].operators[0].options == AddOptions()


# --- real files

STOCK_REFUSES = {
    "models/litert/lstm_quantized2.bin": r"Tensor.shape .* must not be negative, got \[-1\]",
    "models/litert/lstm_calibrated2.bin": r"Tensor.shape .* must not be negative, got \[-1\]",
}


def real_files() -> list[pathlib.Path]:
    files = [f for part in ("models", "op_cases") for f in (SHARED / part).rglob("*")]
    return [f for f in files if f.suffix in (".tflite", ".bin", ".lite")]


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the real models next to the project")
def test_real_models_load_except_those_that_stock_litert_refuses() -> None:
    refused = {}
    for path in real_files():
        try:
            check(read_model(path))
        except ModelError as error:
            refused[path.relative_to(SHARED).as_posix()] = str(error)
    assert refused.keys() == STOCK_REFUSES.keys()
    for name, message in STOCK_REFUSES.items():
        assert re.search(message, refused[name])


def check(model: Model) -> None:
    """Check the guarantees of a model that was read."""
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            spec = tensor.spec()
            assert spec.dtype == tensor.dtype
            assert spec.const is None or spec.const.shape == tensor.stored_shape


def test_messages_about_a_tensor_without_a_name_have_its_number() -> None:
    tensor = read_model(sum_model().build()).subgraphs[0].tensors[2]
    assert dataclasses.replace(tensor, name="").spec().name == "tensor_2"
