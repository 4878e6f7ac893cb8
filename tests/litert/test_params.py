"""Operator parameters: a stock interpreter's structs have the same options as the file."""

import ctypes
import dataclasses
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from ai_edge_litert.schema_py_generated import BuiltinOperator

import jaxdelegate as jd
from jaxdelegate.litert import params
from jaxdelegate.model.records import Operator, read_model
from jaxdelegate.op_lowering.options import (
    OPERATORS,
    ActivationFunctionType,
    AddOptions,
    BucketizeOptions,
    Conv2DOptions,
    GeluOptions,
    HashtableOptions,
    LSHProjectionOptions,
    LSHProjectionType,
    MirrorPadMode,
    MirrorPadOptions,
    NoOptions,
    Padding,
    ReshapeOptions,
    StablehloCaseOptions,
    StableHLOCompositeOptions,
    StablehloPadOptions,
    StablehloRngBitGeneratorOptions,
    TensorType,
    VarHandleOptions,
    options_class,
)
from jaxdelegate.op_lowering.records.c_struct import HIDDEN
from jaxdelegate.op_lowering.records.enums import RngAlgorithm
from jaxdelegate.testing import ModelBuilder
from tests.support.combinations import one_of

MODELS = Path(__file__).parents[3] / "shared" / "models"
FILES = sorted(p for p in MODELS.rglob("*") if p.suffix in (".tflite", ".bin", ".lite"))
CASES = sorted((MODELS.parent / "op_cases").glob("*"))

# Fields that the structs do not have.
MISSING = {
    "FULLY_CONNECTED": ["quant_spec"],
    "STABLEHLO_COMPOSITE": ["composite_attributes_format"],
}
BUILTINS = sorted(name for name, code in vars(BuiltinOperator).items() if isinstance(code, int))


@pytest.mark.parametrize("operator", BUILTINS)
def test_every_field_of_the_options_is_in_the_struct(operator: str) -> None:
    fields = {field.name for field in dataclasses.fields(options_class(operator))}
    members = OPERATORS[operator].members if operator in OPERATORS else {}
    if members is HIDDEN:  # interpreters have no kernel of the operator
        assert fields
        return
    assert fields == {*members, *MISSING.get(operator, ())}


def decoded(operator: str, layout: str, *values: Any, rank: int = 0) -> Any:
    data = ctypes.create_string_buffer(struct.pack(layout, *values))
    return params.decode(operator, ctypes.addressof(data), rank)


def test_padding_activation_and_types_have_their_own_numbers() -> None:
    got = decoded("CONV_2D", "7i", 2, 3, 4, 3, 5, 6, 4)
    want = Conv2DOptions(
        padding=Padding.VALID,
        stride_w=3,
        stride_h=4,
        fused_activation_function=ActivationFunctionType.RELU6,
        dilation_w_factor=5,
        dilation_h_factor=6,
        quantized_bias_type=TensorType.INT64,
    )
    assert got == want


def test_missing_fields_keep_the_schemas_default() -> None:
    got = decoded("CONV_2D", "7i", 0, 1, 1, 0, 1, 1, 0)
    assert got == Conv2DOptions(Padding.SAME, 1, 1)


def test_members_are_aligned_like_in_c() -> None:
    got = decoded("UNIDIRECTIONAL_SEQUENCE_RNN", "?3xi?3x", True, 4, True)
    assert (got.time_major, got.asymmetric_quantize_inputs) == (True, True)
    assert got.fused_activation_function is ActivationFunctionType.TANH


def test_enumerations_that_begin_with_unknown() -> None:
    assert decoded("MIRROR_PAD", "i", 2) == MirrorPadOptions(MirrorPadMode.SYMMETRIC)
    philox = StablehloRngBitGeneratorOptions(RngAlgorithm.PHILOX)
    assert decoded("STABLEHLO_RNG_BIT_GENERATOR", "i", 2) == philox


def test_vectors_with_a_count_with_the_rank_and_with_a_pointer() -> None:
    assert decoded("RESHAPE", "9i", 2, -1, *[0] * 6, 2) == ReshapeOptions((2, -1))
    got = decoded("STABLEHLO_PAD", "24q", 1, 2, *[0] * 6, 3, 4, *[0] * 6, 5, 6, *[0] * 6, rank=2)
    assert got == StablehloPadOptions((1, 2), (3, 4), (5, 6))
    floats = (ctypes.c_float * 3)(0.5, 1, 2)
    got = decoded("BUCKETIZE", "i4xP", 3, ctypes.addressof(floats))
    assert got == BucketizeOptions((0.5, 1.0, 2.0))


def test_strings_and_bytes() -> None:
    name = ctypes.create_string_buffer(b"odml.norm")
    attributes = ctypes.create_string_buffer(b"a\0b", 3)
    address = ctypes.addressof
    got = decoded("STABLEHLO_COMPOSITE", "PiiPN", address(name), 4, 2, address(attributes), 3)
    assert got == StableHLOCompositeOptions("odml.norm", 4, b"a\0b", version=2)
    assert decoded("VAR_HANDLE", "PP", 0, address(name)) == VarHandleOptions("", "odml.norm")


def test_operators_without_parameters() -> None:
    assert params.decode("RELU", None) == NoOptions()
    assert decoded("GELU", "?", True) == GeluOptions(approximate=True)


@pytest.mark.parametrize(
    ("operator", "layout", "values", "words"),
    [
        ("ADD", "i?", (6, True), "ADD.fused_activation_function: unknown value 6"),
        ("CAST", "2i", (1, 99), "CAST.out_data_type: unknown value 99"),
        ("STABLEHLO_IOTA", "q", (0,), "do not expose the options of STABLEHLO_IOTA"),
    ],
)
def test_refuses_unknown_values(operator: str, layout: str, values: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decoded(operator, layout, *values)


def test_refuses_absent_parameters() -> None:
    assert AddOptions() == options_class("ADD")()
    with pytest.raises(ValueError, match="do not expose the options of ADD"):
        params.decode("ADD", None)


class Recorder(jd.SimpleDelegate):
    """Delegates nothing, and records the operators of every subgraph."""

    name = "Recorder"

    def __init__(self) -> None:
        super().__init__()
        self.subgraphs: list[list[Operator]] = []

    def initialize(self, context: Any) -> None:
        self.subgraphs.append([node.operator for node in context.nodes()])

    def is_node_supported(self, node: Any) -> bool:  # noqa: ARG002
        return False

    def create_kernel(self) -> Any:
        raise AssertionError("nothing was taken")


def recorded(path: Path) -> list[list[Operator]] | None:
    """The operators that the stock interpreter exposes; None if it refuses the model."""
    recorder, kernels = Recorder(), OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    try:
        Interpreter(
            str(path), experimental_delegates=[recorder], experimental_op_resolver_type=kernels
        )
    except (ValueError, RuntimeError):
        return None
    return recorder.subgraphs


def differences(shown: Operator, read: Operator) -> list[str]:
    if read.name.startswith(
        "Flex"
    ):  # kernels of another library, which the interpreter calls "Flex"
        return []
    names = [f.name for f in dataclasses.fields(Operator) if f.name != "mutating_variable_inputs"]
    same: Callable[[str], bool] = lambda name: getattr(shown, name) == getattr(read, name)  # noqa: E731
    return [
        f"{read.name} #{read.index} {name}: {getattr(shown, name)}, read {getattr(read, name)}"
        for name in names
        if not same(name)
    ]


def test_operators_that_are_in_no_recorded_model(tmp_path: Path) -> None:
    builder = ModelBuilder()
    table = builder.tensor((1,), np.dtype("V4"))
    options = HashtableOptions(3, TensorType.INT64, TensorType.STRING)
    builder.operator("HASHTABLE", [], [table], options)
    hashes, x, y = builder.input((2, 3)), builder.input((4,), np.int32), builder.tensor((2,))
    options = LSHProjectionOptions(LSHProjectionType.SPARSE)
    builder.operator("LSH_PROJECTION", [hashes, x, -1], [y], options)
    z = builder.tensor((4,), np.int32)
    builder.operator("STABLEHLO_CASE", [x], [z], StablehloCaseOptions((1, 2)))
    for name in ("first", "second"):
        branch = builder.subgraph(name)
        branch.outputs(branch.input((4,), np.int32))
    builder.outputs(y)
    path = tmp_path / "model.tflite"
    path.write_bytes(builder.build())
    assert_shown_as_read(path)


def assert_shown_as_read(path: Path) -> None:
    shown, model = recorded(path), read_model(str(path))
    assert shown is not None
    for subgraph, operators in zip(model.subgraphs, shown, strict=True):
        assert len(operators) == len(subgraph.operators)
        for mine, theirs in zip(operators, subgraph.operators, strict=True):
            assert differences(mine, theirs) == []


@pytest.mark.slow
@pytest.mark.litert
@pytest.mark.skipif(not FILES, reason="the real models are not here")
@pytest.mark.parametrize("path", one_of(3, FILES), ids=lambda path: path.name)
def test_the_operators_of_real_models_are_exposed(path: Path) -> None:
    try:
        read_model(str(path))
    except jd.ModelError as error:
        pytest.skip(f"not for our reader: {error}")
    if recorded(path) is None:
        pytest.skip("not for the stock interpreter")
    assert_shown_as_read(path)


@pytest.mark.slow
@pytest.mark.litert
@pytest.mark.skipif(not CASES, reason="the recorded operator cases are not here")
@pytest.mark.parametrize("folder", one_of(3, CASES), ids=lambda path: path.name)
def test_the_operators_of_recorded_cases_are_exposed(folder: Path) -> None:
    for path in sorted(folder.rglob("model.tflite")):
        if recorded(path) is not None:  # all its operators have kernels
            assert_shown_as_read(path)
