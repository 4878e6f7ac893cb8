from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from jaxdelegate.op_lowering.options import CustomOptions
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.builder import pack_strings


def read(content: bytes) -> schema.ModelT:
    return schema.ModelT.InitFromObj(schema.Model.GetRootAs(content))


def stored(array: Any) -> list[int]:
    builder = ModelBuilder()
    builder.constant(array)
    return read(builder.build()).buffers[1].data.tolist()


@pytest.mark.parametrize(
    ("values", "dtype", "want"),
    [
        ([1, 2, -1], ml_dtypes.int4, [0x21, 0x0F]),
        ([1, 2, 15], ml_dtypes.uint4, [0x21, 0x0F]),
        ([1, 0, -1, -2, 1], ml_dtypes.int2, [0b10110001, 0b01]),
        ([1, -1], np.int8, [1, 255]),
        ([True, False], np.bool_, [1, 0]),
        ([], ml_dtypes.int4, []),
    ],
)
def test_bytes_of_constants(values: list[int], dtype: Any, want: list[int]) -> None:
    if not want:  # an empty buffer is written as an absent one
        builder = ModelBuilder()
        builder.constant(np.array(values, dtype))
        assert read(builder.build()).buffers[1].data is None
        return
    assert stored(np.array(values, dtype)) == want


def test_strings_are_counted_and_offset() -> None:
    packed = pack_strings(np.array([b"ab", "ü"], object))
    assert packed == np.int32([2, 16, 18, 20]).tobytes() + b"ab" + "ü".encode()


def add_model() -> ModelBuilder:
    builder = ModelBuilder()
    x, y = builder.input((3,)), builder.tensor((3,))
    builder.operator("ADD", [x, builder.constant(np.float32([1, 2, 3]))], [y])
    builder.outputs(y)
    return builder


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.litert
def test_stock_litert_runs_what_the_builder_writes(outside: bool) -> None:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=add_model().build(outside=outside))
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, np.float32([10, 20, 30]))
    interpreter.invoke()
    assert interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).tolist() == [
        11,
        22,
        33,
    ]


def test_buffers_outside_are_aligned_and_follow_the_flatbuffer() -> None:
    builder = add_model()
    builder.operator("my.op", [2], [y := builder.tensor((3,))], CustomOptions(b"\x07\x08"))
    builder.outputs(y)
    content = builder.build(outside=True)
    model = read(content)
    buffer, operator = model.buffers[1], model.subgraphs[0].operators[1]
    assert (buffer.data, operator.customOptions) == (None, None)
    assert buffer.offset % 16 == operator.largeCustomOptionsOffset % 16 == 0
    assert content[buffer.offset :][: buffer.size] == np.float32([1, 2, 3]).tobytes()
    assert content[operator.largeCustomOptionsOffset :] == b"\x07\x08"


def test_edit_changes_the_schema_s_objects() -> None:
    content = add_model().build(edit=lambda t: setattr(t, "description", "edited"))
    assert read(content).description == b"edited"


def test_slices_of_one_file_share_a_group() -> None:
    builder = ModelBuilder()
    ids = [builder.external_slice(group, 0, 4) for group in ("a", "b", "a")]
    assert len(set(ids)) == 3
    model = read(builder.build())
    assert [t.name for t in model.externalBufferGroups] == [b"a", b"b"]
    assert [t.group for t in model.externalBuffers] == [0, 1, 0]
