"""Each rule of the advice: when it applies, with which numbers, and when it does not."""

from collections.abc import Callable

import numpy as np
import pytest

from jaxdelegate.analysis.analyzer import analyze_model
from jaxdelegate.analysis.records import Finding
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.op_lowering.options import (
    Conv2DOptions,
    GatherOptions,
    Padding,
    ReducerOptions,
)
from jaxdelegate.testing.builder import ModelBuilder
from tests.support.quantized import scaled

Chain = Callable[..., bytes]
TENSOR = 4 * 4 * 8 * 4  # bytes of the chain's tensors


def findings(model: bytes, kind: str, **options: object) -> list[Finding]:
    return [f for f in analyze_model(model, **options).findings if f.kind == kind]


def finding(model: bytes, kind: str, **options: object) -> Finding:
    (only,) = findings(model, kind, **options)
    return only


def test_mobilenet_gets_only_advice_that_applies() -> None:
    kinds = [f.kind for f in analyze_model(mobilenet_v1(size=32, width=0.25)).findings]
    assert kinds == ["free_dimensions", "tensor_core_channels"]


# ---- partitions


def test_a_split_names_its_operators_and_its_bytes(chain: Chain) -> None:
    found = finding(chain("ADD", "Mystery", "RELU"), "partition_splits")
    assert found.operators == (1,)
    assert found.numbers == {
        "operators": 1,
        "partitions": 2,
        "partitions_without": 1,
        "tensors_crossing": 2,
        "bytes_crossing": 2 * TENSOR,
    }
    assert "Mystery (#1) stays on the CPU: custom operator without an XLA lowering" in found.message
    assert "there would be 1 partition, not 2" in found.message


def test_operators_are_grouped_by_reason_and_each_group_is_counted_alone(chain: Chain) -> None:
    model = chain("ADD", "Mystery", "RELU", "Riddle", "RELU", "Mystery", "RELU")
    first, second = findings(model, "partition_splits")
    assert (first.operators, second.operators) == ((1, 5), (3,))
    assert [f.numbers["partitions_without"] for f in (first, second)] == [2, 3]
    assert [f.numbers["bytes_crossing"] for f in (first, second)] == [4 * TENSOR, 2 * TENSOR]
    total = finding(model, "partition_total")
    assert total.operators == (1, 3, 5)
    assert total.numbers == {"operators": 3, "partitions": 4, "bytes_crossing": 6 * TENSOR}


def test_a_tensor_between_two_on_the_cpu_does_not_cross(chain: Chain) -> None:
    found = findings(chain("ADD", "Mystery", "Riddle", "RELU"), "partition_splits")
    assert [f.numbers["bytes_crossing"] for f in found] == [TENSOR, TENSOR]
    assert [f.numbers["partitions_without"] for f in found] == [2, 2]


def test_operators_on_the_cpu_at_the_ends_split_nothing(chain: Chain) -> None:
    found = finding(chain("Mystery", "RELU"), "partition_splits")
    assert "(1) does not depend on it alone" in found.message
    assert found.numbers["bytes_crossing"] == TENSOR
    assert findings(chain("Mystery"), "partition_splits") == []
    assert findings(chain("RELU"), "partition_splits") == []


def test_data_dependent_shapes() -> None:
    builder = ModelBuilder()
    x, y, z = (
        builder.input((4,)),
        builder.tensor((1, 1), np.int64),
        builder.tensor((1, 1), np.int64),
    )
    condition = builder.tensor((4,), np.bool_)
    builder.operator("GREATER", [x, builder.constant(np.float32([0.0]))], [condition])
    builder.operator("WHERE", [condition], [y])
    builder.operator("ADD", [y, y], [z])
    builder.outputs(z)
    found = finding(builder.build(), "dynamic_shapes")
    assert found.operators == (1,)
    assert found.numbers == {"sources": 1, "operators_behind": 1}


def test_declared_shapes_that_are_wrong() -> None:
    builder = ModelBuilder()
    x, y = builder.input((4, 5)), builder.tensor((7,), name="wrong")
    builder.operator("RELU", [x], [y])
    builder.outputs(y)
    found = finding(builder.build(), "declared_shapes")
    assert "'wrong': declared [7], is [4, 5]" in found.message
    assert found.operators == (0,)


def test_quantized_modes_are_compared() -> None:
    builder = ModelBuilder()
    q = scaled(0.5)
    x, y = (
        builder.input((8,), np.int8, quantization=q),
        builder.tensor((8,), np.int8, quantization=q),
    )
    builder.operator("ADD", [x, x], [y], version=2)
    builder.outputs(y)
    found = finding(builder.build(), "quantized", quant_mode="integer")
    assert "quant_mode='integer' delegates 1 of 1 operator in 1 partition, 'float_view' 1 in 1" in (
        found.message
    )
    assert found.operators == ()


# ---- numbers


def with_constant(values: np.ndarray) -> bytes:
    builder = ModelBuilder()
    x, y = builder.input((2, 4)), builder.tensor((2, 4))
    builder.operator("ADD", [x, builder.constant(values, "c")], [y])
    builder.outputs(y)
    return builder.build()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, -1e9, 7e4, np.inf], "2 values beyond 65504 (largest 1e+09)"),
        ([1e-12] * 4, "zero in float16"),
        ([65504.0, 1e-3, 0.0, -65504.0], None),
        ([1e-12, 1.0, 1.0, 1.0], None),  # one lost weight among others is harmless
        ([np.nan] * 4, None),
    ],
)
def test_constants_that_float16_cannot_hold(values: list[float], message: str | None) -> None:
    found = findings(with_constant(np.array(values, np.float32)), "float16_constant")
    assert [message in f.message for f in found] == ([True] if message else [])
    assert all(f.operators == (0,) for f in found)


@pytest.mark.parametrize(("side", "limit"), [(64, 65504 / 4096), (16, None)])
def test_long_sums(side: int, limit: float | None) -> None:
    builder = ModelBuilder()
    x, y = builder.input((1, side, side, 3)), builder.tensor((1, 3))
    axes = builder.constant(np.int32([1, 2]))
    builder.operator("MEAN", [x, axes], [y], ReducerOptions())
    builder.outputs(y)
    found = findings(builder.build(), "float16_sum")
    assert [f.numbers["mean_limit"] for f in found] == ([] if limit is None else [limit])


def test_growing_operators(chain: Chain) -> None:
    found = finding(chain("RELU", "EXP", "SQUARE"), "float16_growth")
    assert found.operators == (1, 2)
    assert np.exp(np.float32(11.09)).astype(np.float16) < np.inf
    with np.errstate(over="ignore"):
        assert np.exp(np.float32(11.10)).astype(np.float16) == np.inf


def test_channels_that_do_not_fill_tensor_cores(
    fully_connected: Callable[[int, int, int], ModelBuilder],
) -> None:
    found = finding(fully_connected(6, 12, 10).build(), "tensor_core_channels")
    flops = 2 * 6 * 12 * 10
    assert found.numbers["flops"] == flops
    assert found.numbers["padding_flops"] == pytest.approx(2 * 6 * 16 * 16 - flops)
    assert findings(fully_connected(6, 16, 8).build(), "tensor_core_channels") == []


# ---- layout


def dilated(block: int) -> bytes:
    builder = ModelBuilder()
    x = builder.input((1, 8, 8, 8))
    blocks, zeros = builder.constant(np.int32([block, block])), np.zeros((2, 2), np.int32)
    split, y = builder.tensor((4, 4, 4, 8)), builder.tensor((4, 4, 4, 8))
    back = builder.tensor((1, 8, 8, 8))
    builder.operator("SPACE_TO_BATCH_ND", [x, blocks, builder.constant(zeros)], [split])
    w, b = (
        builder.constant(np.ones((8, 1, 1, 8), np.float32)),
        builder.constant(np.float32([0] * 8)),
    )
    builder.operator("CONV_2D", [split, w, b], [y], Conv2DOptions(Padding.VALID, 1, 1))
    builder.operator("BATCH_TO_SPACE_ND", [y, blocks, builder.constant(zeros)], [back])
    builder.outputs(back)
    return builder.build()


def test_space_to_batch_around_a_convolution() -> None:
    found = finding(dilated(2), "space_to_batch")
    assert found.operators == (0, 1, 2)
    assert "dilated by [2, 2]" in found.message
    tensor, constants = 512 * 4, 2 * 4 + 4 * 4
    assert found.numbers == {"bytes_moved": 2 * (2 * tensor + constants)}


def movement(*steps: tuple[str, tuple[int, ...]]) -> bytes:
    builder = ModelBuilder()
    shape: tuple[int, ...] = (2, 3, 4)
    x = builder.input(shape)
    for name, argument in steps:
        is_transpose = name == "TRANSPOSE"
        shape = tuple(shape[i] for i in argument) if is_transpose else argument
        y = builder.tensor(shape)
        builder.operator(name, [x, builder.constant(np.int32(argument))], [y])
        x = y
    builder.outputs(x)
    return builder.build()


def test_movement_chains() -> None:
    model = movement(("RESHAPE", (6, 4)), ("TRANSPOSE", (1, 0)))
    found = finding(model, "movement_chain")
    assert found.operators == (0, 1)
    assert found.numbers == {"operators": 2, "bytes_moved": 2 * 24 * 4 + 2 * 4}
    assert findings(movement(("TRANSPOSE", (1, 0, 2))), "movement_chain") == []


@pytest.mark.parametrize(
    ("steps", "is_nothing"),
    [
        ([("TRANSPOSE", (1, 2, 0)), ("TRANSPOSE", (2, 0, 1))], True),
        ([("TRANSPOSE", (1, 2, 0)), ("TRANSPOSE", (1, 2, 0))], False),
        ([("RESHAPE", (24,)), ("RESHAPE", (2, 3, 4))], True),
        ([("RESHAPE", (24,)), ("RESHAPE", (4, 6))], False),
    ],
    ids=["inverse", "twice", "there and back", "reshapes"],
)
def test_chains_that_change_nothing(steps: list, is_nothing: bool) -> None:
    found = finding(movement(*steps), "movement_chain")
    assert ("they change nothing" in found.message) == is_nothing


# ---- storage


def test_large_tables() -> None:
    builder = ModelBuilder()
    rows, y = builder.input((2,), np.int32), builder.tensor((2, 64))
    table = builder.constant(np.ones((8192, 64), np.float32), "table")
    builder.operator("GATHER", [table, rows], [y], GatherOptions(axis=0))
    builder.outputs(y)
    found = finding(builder.build(), "large_table")
    assert found.numbers == {"table_bytes": 8192 * 256, "bytes_read": 2 * 256 + 8}
    assert "reads 520 B of table T#2 'table' [8192, 64], 2.1 MB" in found.message
    assert "int8 quantization would save 1.57 MB" in found.remedy


def test_duplicates_unused_tensors_and_unused_buffers() -> None:
    builder = ModelBuilder()
    x, y = builder.input((512,)), builder.tensor((512,))
    values = np.arange(512, dtype=np.float32)
    z = builder.tensor((512,))
    builder.operator("ADD", [x, builder.constant(values, "a")], [y])
    builder.operator("MUL", [y, builder.constant(values, "b")], [z])
    builder.outputs(z)
    builder.constant(np.float32([1, 2, 3]), "unread")
    builder.buffer(b"x" * 50)
    model = builder.build()
    assert finding(model, "duplicate_constants").numbers == {"tensors": 2, "bytes": 2048}
    assert finding(model, "unused_tensors").numbers == {"tensors": 1, "bytes": 12}
    assert finding(model, "unused_buffers").numbers == {"bytes": 50}
