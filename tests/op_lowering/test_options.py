import copy
import dataclasses
import enum
import functools
import inspect
import pickle
import re
import typing
from typing import Any

import flatbuffers
import pytest
from ai_edge_litert import schema_py_generated as schema
from flatbuffers import flexbuffers

from jaxdelegate.model.records import read_model
from jaxdelegate.op_lowering import options as all_options
from jaxdelegate.op_lowering.options import (
    OPERATORS,
    AddOptions,
    Conv2DOptions,
    CustomOptions,
    ExplicitConv2DOptions,
    FlexbufferOptions,
    NoOptions,
    Options,
    Padding,
    SubOptions,
    custom_options,
    default_options,
    widest_scalar,
)
from jaxdelegate.testing import ModelBuilder

TABLES = sorted(
    (c for c in vars(all_options).values() if isinstance(c, type) and issubclass(c, Options)),
    key=lambda c: c.__name__,
)
NAMES: dict[type[Options], list[str]] = {}  # the builtin operators that carry each table
for record in OPERATORS.values():
    NAMES.setdefault(record.options, []).append(record.name)
TABLES = [c for c in TABLES if c in NAMES and hasattr(schema, c.__name__)]
UNIONS = (schema.BuiltinOptions, schema.BuiltinOptions2)


def snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)


def other_value(hint: Any, default: Any, name: str) -> Any:
    """A value of the field's type that is not the default, and fits the schema's narrow fields."""
    if typing.get_origin(hint) is tuple:
        element = typing.get_args(hint)[0]
        return tuple(other_value(element, None, name) for _ in range(2))
    if hint is bool:
        return not default
    if issubclass(hint, enum.Enum):
        return next((member for member in reversed(hint) if member != default), default)
    others = {float: 0.625, str: "Straße", bytes: b"\x00\x01\xff"}
    return others.get(hint, 1 if "subgraph" in name else 5)


def changed(cls: type[Options]) -> Options:
    hints = typing.get_type_hints(cls)
    return cls(
        **{f.name: other_value(hints[f.name], f.default, f.name) for f in dataclasses.fields(cls)}
    )


def written_and_read(name: str, options: Options | None) -> Any:
    builder = ModelBuilder()
    y = builder.tensor((1,))
    builder.operator(name, [builder.input((1,))], [y], options)
    builder.outputs(y)
    builder.subgraph("called")
    (operator,) = read_model(builder.build()).subgraphs[0].operators
    return operator


@pytest.mark.parametrize("cls", TABLES, ids=lambda c: c.__name__)
def test_every_field_survives_the_file(cls: type[Options]) -> None:
    for name in NAMES[cls]:
        operator = written_and_read(name, changed(cls))
        assert operator.name == name
        assert operator.options == changed(cls)


@pytest.mark.parametrize("cls", TABLES, ids=lambda c: c.__name__)
def test_a_table_has_the_schema_s_fields_and_defaults(cls: type[Options]) -> None:
    fields = {
        snake(name): value for name, value in vars(getattr(schema, f"{cls.__name__}T")()).items()
    }
    ours = {f.name: f.default for f in dataclasses.fields(cls)}
    assert list(ours) == list(fields)
    assert {name: value or None for name, value in ours.items()} == {
        name: value or None for name, value in fields.items()
    }


def test_every_options_table_of_the_schema_with_fields_has_a_class() -> None:
    names = {name for union in UNIONS for name in vars(union) if name[0] != "_"} - {"NONE"}
    assert {n for n in names if vars(getattr(schema, f"{n}T")())} == {c.__name__ for c in TABLES}


def test_every_operator_of_a_table_exists_and_has_one_table() -> None:
    names = [name for c in TABLES for name in NAMES[c]]
    assert len(set(names)) == len(names)
    assert [name for name in names if not hasattr(schema.BuiltinOperator, name)] == []


def test_a_table_without_fields_equals_no_table() -> None:
    model = ModelBuilder()
    x, y = model.input((1,)), model.tensor((1,))
    model.operator("ABS", [x], [y])
    model.outputs(y)
    file = schema.ModelT.InitFromPackedBuf(model.build())
    (operator,) = file.subgraphs[0].operators
    assert operator.builtinOptionsType == schema.BuiltinOptions.NONE
    operator.builtinOptionsType, operator.builtinOptions = (
        schema.BuiltinOptions.AbsOptions,
        schema.AbsOptionsT(),
    )
    builder = flatbuffers.Builder()
    builder.Finish(file.Pack(builder), b"TFL3")
    assert read_model(bytes(builder.Output())).subgraphs[0].operators[0].options == NoOptions()


@pytest.mark.parametrize("name", ["CONV_2D", "RESHAPE", "RELU", "STABLEHLO_IOTA"])
def test_an_operator_without_its_table_has_the_defaults(name: str) -> None:
    assert written_and_read(name, NoOptions()).options == default_options(name)


def test_a_record_is_what_a_frozen_dataclass_is() -> None:
    options = Conv2DOptions(Padding.VALID, stride_w=2)
    assert (options.padding, options.stride_w, options.stride_h) == (Padding.VALID, 2, 0)
    assert [f.name for f in dataclasses.fields(options)][:3] == ["padding", "stride_w", "stride_h"]
    assert repr(options).startswith("Conv2DOptions(padding=<Padding.VALID: 1>, stride_w=2, ")
    again = dataclasses.replace(options, stride_w=3)
    assert again == Conv2DOptions(**dataclasses.asdict(again)) != options
    assert {options, again, copy.deepcopy(options), pickle.loads(pickle.dumps(options))} == {
        again,
        options,
    }
    with pytest.raises(dataclasses.FrozenInstanceError, match="stride_w"):
        options.stride_w = 1  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="stride_w"):
        del options.stride_w


def test_records_of_two_classes_differ() -> None:
    assert AddOptions() != SubOptions()
    assert Conv2DOptions() != ExplicitConv2DOptions()


@pytest.mark.parametrize(
    ("values", "named"),
    [((), {"strides": 1}), ((Padding.SAME,), {"padding": Padding.SAME}), (range(8), {})],
    ids=["unknown", "twice", "many"],
)
def test_a_record_takes_its_fields_only(values: Any, named: Any) -> None:
    with pytest.raises(TypeError, match=r"Conv2DOptions\(padding, stride_w, "):
        Conv2DOptions(*values, **named)


DETECTION = {"max_detections": 7, "x_scale": 5.0, "use_regular_nms": True, "w_scale": 4}


def test_a_flexbuffer_of_a_known_custom_operator_is_read() -> None:
    data = bytes(flexbuffers.Dumps({**DETECTION, "later_field": [1, {"deep": "x"}]}))
    operator = written_and_read("TFLite_Detection_PostProcess", CustomOptions(data))
    assert operator.custom
    assert operator.custom_options == operator.options.data == data
    assert {name: getattr(operator.options, name) for name in DETECTION} == DETECTION
    assert operator.options.detections_per_class == 100  # absent: the default


def test_an_unknown_custom_operator_keeps_its_bytes() -> None:
    operator = written_and_read("MyOperator", CustomOptions(b"\x01\x02"))
    assert (operator.name, operator.custom, operator.builtin_code) == ("MyOperator", True, 32)
    assert operator.options == CustomOptions(b"\x01\x02")


def test_convolution_2d_transpose_bias_reads_its_c_struct() -> None:
    options = custom_options(
        "Convolution2DTransposeBias", bytes([2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0])
    )
    assert (options.padding.name, options.stride_w, options.stride_h) == ("VALID", 3, 4)  # type: ignore[attr-defined]


def _self_reference() -> bytes:
    """A flexbuffer vector whose elements are the vector itself, so that it expands endlessly."""
    return bytes([2, 1, 2, 0x28, 0x28, 3, 0x28, 1])


@pytest.mark.parametrize(
    "data",
    [b"\x00", b"\xff" * 40, bytes(flexbuffers.Dumps([1, 2])), _self_reference(), bytes(1 << 17)],
    ids=["short", "ones", "vector", "endless", "long"],
)
def test_a_damaged_flexbuffer_is_a_value_error(data: bytes) -> None:
    with pytest.raises(
        ValueError, match=r"expected a readable flexbuffer map|expected at most 65536 bytes"
    ):
        custom_options("TFLite_Detection_PostProcess", data)


@dataclasses.dataclass(frozen=True)
class WindowOptions(FlexbufferOptions):
    ksize: tuple[int, ...] = ()
    padding: str = "VALID"
    rate: float = 1.0


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"ksize": 3}, "cannot convert"),
        ({"ksize": [[1]]}, "not a number"),
        ({"ksize": {"a": [1]}}, "not a number"),
        ({"padding": 3}, "not a string"),
        ({"rate": [1.0]}, "not a number"),
    ],
    ids=str,
)
def test_an_entry_of_another_type_is_a_value_error(entry: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WindowOptions.from_bytes(bytes(flexbuffers.Dumps(entry)))


@pytest.mark.parametrize("ksize", [[1, 2, 3, 4, 5], [1, 300, 70000], [], [1, 2.5]], ids=str)
def test_vectors_and_strings_of_a_flexbuffer_are_read(ksize: list[Any]) -> None:
    data = bytes(flexbuffers.Dumps({"ksize": ksize, "padding": "SAME"}))
    assert WindowOptions.from_bytes(data) == WindowOptions(data, tuple(map(int, ksize)), "SAME")


@functools.cache
def accessors() -> dict[str, str]:
    """The source of each class of the generated module, by name."""
    classes = inspect.getsource(schema).split("\nclass ")[1:]
    return {re.match(r"\w+", text)[0]: text for text in classes}


@pytest.mark.parametrize("cls", TABLES, ids=lambda cls: cls.__name__)
def test_widest_scalar_covers_the_generated_accessors(cls: type[Options]) -> None:
    """Code that compares the bytes of two tables must read all of them."""
    source = accessors()[cls.__name__]
    width = widest_scalar(cls.__name__)
    is_flat = not any(words in source for words in ("Vector", ".String("))
    assert (width is not None) == is_flat
    assert width in (None, 8) or "64Flags" not in source
