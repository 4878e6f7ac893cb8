"""The custom options of TensorFlow's operators."""

import contextlib
import random

import numpy as np
import pytest
from flatbuffers import flexbuffers

from jaxdelegate.errors import ModelError
from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering.options import CustomOptions, FlexOptions, custom_options
from jaxdelegate.testing import ModelBuilder
from tests.support.node_defs import flex_options, message, node_def, packed, varint

EveryKind = FlexOptions.attributes(
    "EveryKind",
    count=7,
    rate=1.0,
    flag=False,
    padding="VALID",
    ksize=(1,),
    kinds=(),
    dtype=np.dtype(np.float32),
)


VALUES = {
    "count": -3,
    "rate": 0.5,
    "flag": True,
    "padding": "SAME",
    "ksize": (1, 300, -1),
    "kinds": ("A", "é"),
    "dtype": np.dtype(np.int64),
}


def test_every_kind_of_attribute_is_read() -> None:
    data = flex_options("Any", **VALUES)
    assert EveryKind.from_bytes(data) == EveryKind(data, **VALUES)  # type: ignore[arg-type]


def test_an_absent_attribute_keeps_its_default() -> None:
    data = flex_options("Any", count=2)
    assert EveryKind.from_bytes(data) == EveryKind(data, count=2)
    assert EveryKind.from_bytes(b"") == EveryKind()


def test_unpacked_integers_are_read() -> None:
    """Every list of proto2, and of older writers."""
    values = b"".join(b"\x18" + varint(n) for n in (3, 4))
    entry = message(1, b"ksize") + message(2, message(1, values))
    encoded = node_def("Any") + message(5, entry)
    assert EveryKind.from_bytes(packed("Any", encoded)).ksize == (3, 4)


def test_options_of_a_converter_are_read() -> None:
    """FlexTensorListStack of k3_gru_stack.tflite, as TensorFlow 2.19 wrote it."""
    data = (
        b"\x0fTensorListStack\x00@\x12\x0fTensorListStack\x1a\x00\x1a\x00*\x12\n\x0cnum_elements"
        b"\x12\x02\x18\x01*\x13\n\relement_dtype\x12\x020\x012\x00\x00\x02SC\x14\x14\x04(\x01"
    )
    options = custom_options("FlexTensorListStack", data)
    assert (options.num_elements, options.element_dtype) == (1, np.float32)  # type: ignore[attr-defined]


OPTIONS = flex_options("TensorListStack", num_elements=6, element_dtype=np.dtype(np.float32))
DAMAGED = {
    "in a vector of two strings": [
        b"\xff" * 40,
        bytes(flexbuffers.Dumps({"a": 1})),
        bytes(flexbuffers.Dumps([1, 2])),
        bytes([2, 1, 2, 0x28, 0x28, 3, 0x28, 1]),  # a vector that is its own element
    ],
    "at most 65536 bytes": [bytes(1 << 17)],
    "which it does not name": [packed("TensorListStack", b""), packed("A", node_def("B"))],
    "ends within": [packed("A", node_def("A", x=1)[:-1]), packed("A", node_def("A") + b"\x2a")],
    "more than 10 bytes": [packed("A", node_def("A") + b"\xff" * 20)],
    "wire type 3": [packed("A", node_def("A") + b"\x0b")],
    "not of the type integer": [flex_options("A", num_elements="six")],
    "not of the type type": [flex_options("A", element_dtype=1)],
    "DataType 99": [
        packed("A", node_def("A") + message(5, message(1, b"element_dtype") + b"\x12\x02\x30\x63"))
    ],
}


@pytest.mark.parametrize(
    ("said", "data"), [(said, data) for said, rows in DAMAGED.items() for data in rows]
)
def test_damaged_options_are_a_value_error(said: str, data: bytes) -> None:
    with pytest.raises(ValueError, match=f"expected a NodeDef: .*{said}"):
        custom_options("FlexTensorListStack", data)


def test_any_damage_is_read_or_a_value_error() -> None:
    rng = random.Random(0)
    for _ in range(3000):
        data = bytearray(OPTIONS)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with contextlib.suppress(ValueError):
            custom_options("FlexTensorListStack", bytes(data[: rng.randint(1, len(data))]))


def test_a_file_with_damaged_options_is_a_model_error() -> None:
    builder = ModelBuilder()
    items, sizes = builder.input((2, 3)), builder.constant(np.array([3], np.int32))
    y = builder.tensor((2, 3))
    builder.operator("FlexTensorListStack", [items, sizes], [y], CustomOptions(OPTIONS[:-4]))
    builder.outputs(y)
    with pytest.raises(ModelError, match=r"FlexTensorListStack.*expected a NodeDef"):
        read_model(builder.build())
