"""Operations and bytes, compared with counts by hand, published counts and XLA's."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxdelegate.analysis.analyzer import analyze_model
from jaxdelegate.costs import Cost, operator_cost, spec_bytes
from jaxdelegate.demo.mobilenet import mobilenet_v1
from jaxdelegate.op_lowering.options import (
    BatchMatMulOptions,
    Conv2DOptions,
    Conv3DOptions,
    FusedConvolutionOptions,
    LSTMKernelType,
    LSTMOptions,
    Padding,
    Pool2DOptions,
    StablehloDotGeneralOptions,
    StablehloReduceOptions,
    UnidirectionalSequenceLSTMOptions,
    WhileOptions,
    default_options,
)
from jaxdelegate.op_lowering.records.costs import Work
from jaxdelegate.op_lowering.registry import RULES
from jaxdelegate.op_lowering.rule import LoweringContext, Op
from jaxdelegate.op_lowering.spec import TensorSpec


def spec(*shape: int, dtype: object = np.float32, **details: object) -> TensorSpec:
    return TensorSpec("t", shape, np.dtype(dtype), **details)  # type: ignore[arg-type]


def cost(name: str, inputs: list, outputs: list, options: object = None, **more: object) -> Cost:
    options = default_options(name) if options is None else options
    return operator_cost(name, options, tuple(inputs), tuple(outputs), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["CONV_2D", "DEPTHWISE_CONV_2D"])
def test_a_fused_epilogue_adds_nothing(name: str) -> None:
    options: Any = default_options(name)
    inputs = [spec(1, 9, 9, 4), spec(4, 3, 3, 4), None, spec(1, 9, 9, 4)]
    ended = FusedConvolutionOptions(convolution=options)
    flops = cost("fused_convolution", inputs, [spec(1, 9, 9, 4)], ended).flops
    assert flops == cost(name, inputs[:2], [spec(1, 9, 9, 4)], options).flops


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "options", "flops"),
    [
        # 2 * out positions * taps * channels in
        ("CONV_2D", [(1, 8, 8, 3), (16, 3, 3, 3)], [(1, 4, 4, 16)], None, 2 * 256 * 27),
        # groups: the filter has only the channels of a group
        ("CONV_2D", [(1, 8, 8, 6), (16, 3, 3, 3)], [(1, 8, 8, 16)], None, 2 * 1024 * 27),
        ("DEPTHWISE_CONV_2D", [(2, 8, 8, 4), (1, 3, 5, 8)], [(2, 8, 8, 8)], None, 2 * 1024 * 15),
        (
            "CONV_3D",
            [(1, 4, 4, 4, 2), (3, 3, 3, 2, 5)],
            [(1, 2, 2, 2, 5)],
            Conv3DOptions(),
            2 * 40 * 54,
        ),
        ("TRANSPOSE_CONV", [(4,), (5, 2, 2, 3), (1, 4, 4, 3)], [(1, 8, 8, 5)], None, 2 * 48 * 20),
        (
            "Convolution2DTransposeBias",
            [(1, 4, 4, 3), (5, 2, 2, 3), (5,)],
            [(1, 8, 8, 5)],
            None,
            2 * 48 * 20,
        ),
        ("FULLY_CONNECTED", [(3, 2, 32), (10, 32), (10,)], [(6, 10)], None, 2 * 6 * 320),
        ("BATCH_MATMUL", [(5, 2, 7), (5, 7, 3)], [(5, 2, 3)], None, 2 * 30 * 7),
        (
            "BATCH_MATMUL",
            [(5, 7, 2), (5, 7, 3)],
            [(5, 2, 3)],
            BatchMatMulOptions(adj_x=True),
            2 * 30 * 7,
        ),
        (
            "STABLEHLO_DOT_GENERAL",
            [(5, 2, 7), (5, 3, 7)],
            [(5, 2, 3)],
            StablehloDotGeneralOptions((0,), (0,), (2,), (2,)),
            2 * 30 * 7,
        ),
        (
            "AVERAGE_POOL_2D",
            [(1, 8, 8, 3)],
            [(1, 4, 4, 3)],
            Pool2DOptions(filter_width=2, filter_height=3),
            48 * 6,
        ),
        ("ADD", [(2, 3), (3,)], [(2, 3)], None, 6),
        ("ADD_N", [(2, 3), (2, 3), (2, 3)], [(2, 3)], None, 12),
        ("EXP", [(2, 3)], [(2, 3)], None, 6),
        ("SOFTMAX", [(2, 3)], [(2, 3)], None, 30),
        ("MEAN", [(4, 5), (1,)], [(4,)], None, 20),
        ("RESHAPE", [(4, 5), (1,)], [(20,)], None, 0),
        ("TRANSPOSE", [(4, 5), (2,)], [(5, 4)], None, 0),
        ("SVDF", [(2, 8), (12, 8), (12, 5), None, (2, 60)], [(2, 6)], None, 4 * (96 + 60)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_operations_of_an_operator(
    name: str, inputs: list, outputs: list, options: object, flops: int
) -> None:
    given = [None if shape is None else spec(*shape) for shape in inputs]
    assert cost(name, given, [spec(*shape) for shape in outputs], options).flops == flops


def test_mobilenet_v1_takes_the_published_number_of_multiply_adds() -> None:
    main = analyze_model(mobilenet_v1()).subgraphs[0]
    products = [op for op in main.operators if "CONV" in op.name]
    # Howard et al. 2017, table 8: 569 million mult-adds and 4.2 million parameters.
    assert round(sum(op.cost.flops or 0 for op in products) / 2e6) == 569
    weights = sum(t.stored_bytes for t in main.tensors if t.kind == "constant") / 4
    assert round(weights / 1e6, 1) == 4.2


@pytest.mark.parametrize("name", ["CONV_2D", "FULLY_CONNECTED", "BATCH_MATMUL"])
def test_products_cost_what_xla_counts(name: str) -> None:
    shapes, options, out = {
        "CONV_2D": (
            [(2, 9, 9, 4), (6, 3, 3, 4)],
            Conv2DOptions(padding=Padding.VALID, stride_w=2, stride_h=2),
            (2, 4, 4, 6),
        ),
        "FULLY_CONNECTED": ([(5, 12), (7, 12)], default_options("FULLY_CONNECTED"), (5, 7)),
        "BATCH_MATMUL": ([(3, 4, 5), (3, 5, 6)], default_options("BATCH_MATMUL"), (3, 4, 6)),
    }[name]
    inputs, outputs = tuple(spec(*s) for s in shapes), (spec(*out),)
    lowered = RULES[name].lower(Op(LoweringContext(), options, inputs, outputs))
    compiled = jax.jit(lowered.__call__).lower(*(jnp.zeros(s, np.float32) for s in shapes))
    # XLA also counts the clamp to TFLite's range (CalculateActivationRange): two for each result.
    clamp = 0 if name == "BATCH_MATMUL" else 2 * math.prod(out)
    products = cost(name, list(inputs), list(outputs), options).flops
    assert products is not None
    assert products + clamp == compiled.cost_analysis()["flops"]


@pytest.mark.parametrize(
    ("dtype", "n", "expected"),
    [
        (np.float32, 3, 12),
        (np.float16, 3, 6),
        (np.int8, 3, 3),
        (ml_dtypes.int4, 3, 2),
        (ml_dtypes.uint4, 4, 2),
        (ml_dtypes.int2, 5, 2),
        (ml_dtypes.bfloat16, 3, 6),
        (np.bool_, 3, 3),
        (np.complex64, 3, 24),
    ],
)
def test_bytes_by_dtype(dtype: object, n: int, expected: int) -> None:
    assert spec_bytes(spec(n, dtype=dtype)) == expected


def test_bytes_are_those_of_inputs_and_outputs() -> None:
    y = cost("CONV_2D", [spec(1, 8, 8, 3), spec(16, 3, 3, 3), spec(16)], [spec(1, 8, 8, 16)])
    assert (y.bytes_read, y.bytes_written) == (4 * (192 + 432 + 16), 4 * 1024)
    assert y.bytes == 4 * (192 + 432 + 16 + 1024)
    assert y.intensity == (2 * 1024 * 27) / y.bytes


def test_an_operand_that_appears_twice_is_read_once() -> None:
    x = spec(10)
    assert cost("MUL", [x, x], [spec(10)]).bytes_read == 40


def test_lookups_read_the_rows_that_they_select() -> None:
    table, rows = spec(1000, 16), spec(4, dtype=np.int32)
    assert cost("GATHER", [table, rows], [spec(4, 16)]).bytes_read == 4 * 16 * 4 + 16
    assert cost("EMBEDDING_LOOKUP", [rows, table], [spec(4, 16)]).bytes_read == 4 * 16 * 4 + 16
    packed = dataclasses.replace(table, dtype=np.dtype(ml_dtypes.int4))
    assert cost("EMBEDDING_LOOKUP", [rows, packed], [spec(4, 16)]).bytes_read == 32 + 16


def test_shapes_that_depend_on_data_have_an_unknown_cost() -> None:
    y = cost("ADD", [spec(4, is_dynamic=True), spec(4)], [spec(4, is_dynamic=True)])
    assert (y.flops, y.bytes, y.note) == (None, None, "a shape depends on data")


def test_unknown_operators_and_odd_tensors_have_no_cost_and_raise_nothing() -> None:
    assert cost("Mystery", [spec(4)], [spec(4)]).flops is None
    assert cost("CONV_2D", [spec(4)], [spec(4)]).flops is None
    assert cost("ADD", [], []).flops is None
    assert cost("Mystery", [spec(4)], [spec(4)]).bytes == 32


def test_lstm_counts_its_matrices_at_every_step() -> None:
    units, depth, batch, steps = 3, 5, 2, 7
    gates = [spec(units, depth) for _ in range(4)] + [spec(units, units) for _ in range(4)]
    biases = [spec(units) for _ in range(4)]
    state = spec(batch, units, is_variable=True)
    inputs = [spec(batch, steps, depth), *gates, None, None, None, *biases, None, None]
    y = cost(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        [*inputs, state, state],
        [spec(batch, steps, units)],
        UnidirectionalSequenceLSTMOptions(),
    )
    matrices, vectors = 4 * units * (depth + units), 4 * units
    assert y.flops == batch * steps * (2 * matrices + vectors + 9 * units)


def test_basic_lstm_has_one_matrix_and_no_variable() -> None:
    inputs = [spec(2, 5), spec(2, 3), spec(12, 8), spec(12), spec(2, 3)]
    outputs = [spec(2, 3), spec(2, 3), spec(2, 12), spec(2, 8)]
    y = cost("LSTM", inputs, outputs, LSTMOptions(kernel_type=LSTMKernelType.BASIC))
    assert y.flops == 2 * (2 * 96 + 12 + 9 * 3)


def test_control_flow_includes_the_subgraphs_that_it_calls() -> None:
    works = {1: Work(10, 1), 2: Work(30, 2)}
    x = [spec(4)]
    y = cost("WHILE", x, x, WhileOptions(1, 2), called=works.get)
    assert (y.flops, y.transcendentals) == (40, 3)
    assert "per iteration" in y.note
    y = cost("STABLEHLO_REDUCE", [spec(4, 5), spec()], [spec(4)], StablehloReduceOptions((1,), 1),
             called=works.get)  # fmt: skip
    assert y.flops == 20 * 10
    assert cost("WHILE", x, x, WhileOptions(3, 4), called=works.get).flops is None
