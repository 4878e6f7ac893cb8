"""Small files that ask for far too much: each runs or is refused, soon and without much memory."""

import tracemalloc
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.interpreter import Interpreter
from jaxdelegate.model.records import Subgraph, read_model
from jaxdelegate.op_lowering.dtypes import DTYPES
from jaxdelegate.op_lowering.options import (
    BidirectionalSequenceLSTMOptions,
    CallOptions,
    Conv2DOptions,
    Conv3DOptions,
    DepthwiseConv2DOptions,
    FakeQuantOptions,
    IfOptions,
    LeakyReluOptions,
    LSTMOptions,
    Options,
    Padding,
    Pool2DOptions,
    ReshapeOptions,
    SplitOptions,
    TensorType,
    UnidirectionalSequenceLSTMOptions,
)
from jaxdelegate.op_lowering.spec import DimensionSparsity, Sparsity, TensorSpec
from jaxdelegate.passes import propagation
from jaxdelegate.quant.params import Blockwise, Quantization
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import run_once

MANY = 2**31 - 1
HANDLE = DTYPES[TensorType.RESOURCE]
SIDES = {"reference": list, "delegate": lambda: [jd.JaxDelegate()]}


@pytest.fixture(params=SIDES.values(), ids=SIDES)
def run(request: pytest.FixtureRequest) -> Callable[..., list[np.ndarray]]:
    """Runs a model on inputs, on each side."""
    return lambda content, *inputs: run_once(
        Interpreter(model_content=content, experimental_delegates=request.param()), inputs
    )


def test_an_empty_file_is_damaged() -> None:
    with pytest.raises(jd.ModelError, match="got 0 bytes; the file is empty"):
        Interpreter(model_content=b"")
    with pytest.raises(ValueError, match="must be specified"):
        Interpreter()


def pool(name: str, size: int, stride: int) -> bytes:
    builder = ModelBuilder()
    x, y = builder.input((1, 4, 5, 2)), builder.tensor((1, 4, 5, 2))
    builder.operator(name, [x], [y], Pool2DOptions(Padding.SAME, stride, stride, size, size))
    builder.outputs(y)
    return builder.build()


@pytest.mark.parametrize("stride", [1, MANY])
@pytest.mark.parametrize(("name", "fold"), [("MAX_POOL_2D", np.max), ("AVERAGE_POOL_2D", np.mean)])
def test_a_pool_over_billions_reads_what_is_there(
    run: Callable[..., list[np.ndarray]], name: str, fold: Callable[..., np.ndarray], stride: int
) -> None:
    x = np.random.default_rng(0).normal(size=(1, 4, 5, 2)).astype(np.float32)
    (y,) = run(pool(name, MANY, stride), x)
    want = fold(x, axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(y, np.broadcast_to(want, y.shape), rtol=1e-6)


def convolution(name: str, dilation: int) -> bytes:
    builder = ModelBuilder()
    x, y = builder.input((1, 4, 4, 2)), builder.tensor((1, 4, 4, 2))
    is_plain = name == "CONV_2D"
    w = np.arange(18 * (1 + is_plain), dtype=np.float32).reshape(-1, 3, 3, 2)
    options = (
        Conv2DOptions(Padding.SAME, 1, 1, dilation_h_factor=dilation, dilation_w_factor=dilation)
        if is_plain
        else DepthwiseConv2DOptions(
            Padding.SAME, 1, 1, 1, dilation_h_factor=dilation, dilation_w_factor=dilation
        )
    )
    builder.operator(name, [x, builder.constant(w), None], [y], options)
    builder.outputs(y)
    return builder.build()


@pytest.mark.parametrize("name", ["CONV_2D", "DEPTHWISE_CONV_2D"])
def test_taps_far_beside_the_image_read_nothing(
    run: Callable[..., list[np.ndarray]], name: str
) -> None:
    x = np.random.default_rng(0).normal(size=(1, 4, 4, 2)).astype(np.float32)
    # From a dilation of 4 on the filter's centre alone meets an image of 4 by 4.
    want, got = run(convolution(name, 4), x), run(convolution(name, 2**15 - 1), x)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
    if name == "CONV_2D":
        np.testing.assert_allclose(run(convolution(name, 2**30), x)[0], want[0], rtol=1e-5)
        return
    with pytest.raises(jd.InterpreterError, match="32767 is the most"):
        run(convolution(name, 2**15), x)


def test_so_do_taps_of_a_transposed_convolution() -> None:
    builder = ModelBuilder()
    shape = builder.constant(np.int32([1, 2, 2, 2, 1]))
    w = builder.constant(np.ones((3, 3, 3, 1, 1), np.float32))
    x, y = builder.input((1, 2, 2, 2, 1)), builder.tensor((1, 2, 2, 2, 1))
    far = 2**15 - 1
    options = Conv3DOptions(Padding.SAME, 1, 1, 1, dilation_d_factor=far, dilation_h_factor=far)
    builder.operator("CONV_3D_TRANSPOSE", [shape, w, x], [y], options)
    builder.outputs(y)
    values = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2, 1)
    (got,) = run_once(Interpreter(model_content=builder.build()), [values])
    np.testing.assert_array_equal(got, np.broadcast_to(values.sum(3, keepdims=True), got.shape))


def test_inputs_and_outputs_that_an_operator_does_not_have_are_refused(
    run: Callable[..., list[np.ndarray]],
) -> None:
    builder = ModelBuilder()
    x, y = builder.input((2,)), builder.tensor((2, 2))
    builder.operator("MATRIX_DIAG", [x, x], [y])
    builder.outputs(y)
    with pytest.raises(jd.InterpreterError, match=r"\(MATRIX_DIAG\).*it has 1 inputs, not 2"):
        run(builder.build(), np.zeros(2, np.float32))
    builder = ModelBuilder()
    x, y, z = builder.input((2,)), builder.tensor((2,)), builder.tensor((2,))
    builder.operator("ABS", [x], [y, z])
    builder.outputs(y)
    with pytest.raises(jd.InterpreterError, match=r"\(ABS\).*it has 1 outputs, not 2"):
        run(builder.build(), np.zeros(2, np.float32))


def test_an_operator_without_outputs_is_given_none(run: Callable[..., list[np.ndarray]]) -> None:
    builder = ModelBuilder()
    x, y, z = builder.input((2,)), builder.tensor((2,)), builder.tensor((2,))
    builder.operator("ASSIGN_VARIABLE", [x, x], [y])
    builder.operator("ABS", [y], [z])
    builder.outputs(z)
    with pytest.raises(jd.InterpreterError, match="it has no outputs, not 1"):
        run(builder.build(), np.zeros(2, np.float32))


@pytest.mark.parametrize("name", ["SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION", "BUCKETIZE"])
def test_the_host_computes_results_of_a_strange_dtype(name: str) -> None:
    builder = ModelBuilder()
    x, y = builder.input((2, 3)), builder.tensor((2, 3), np.complex128)
    builder.operator(name, [x], [y])
    builder.outputs(y)
    delegate = jd.JaxDelegate()
    interpreter = Interpreter(model_content=builder.build(), experimental_delegates=[delegate])
    assert "is complex128, but the operator yields" in str(delegate.report())
    run_once(interpreter, [np.ones((2, 3), np.float32)])


def test_a_subgraph_yields_what_its_caller_declares(run: Callable[..., list[np.ndarray]]) -> None:
    builder = ModelBuilder()
    x, y = builder.input((2,)), builder.tensor((2,), np.float16)
    builder.operator("CALL", [x], [y], CallOptions(1))
    builder.outputs(y)
    graph = builder.subgraph("same")
    graph.outputs(graph.input((2,)))
    with pytest.raises(jd.InterpreterError, match="returns float32 for 't1', which is float16"):
        run(builder.build(), np.zeros(2, np.float32))


def test_halves_and_wide_naturals_with_a_scale_are_not_quantized(
    run: Callable[..., list[np.ndarray]],
) -> None:
    scale = Quantization(np.float32([0.5]), np.array([1]), 0)
    assert not TensorSpec("x", (2,), np.dtype(ml_dtypes.bfloat16), scale).is_quantized
    assert not TensorSpec("x", (2,), np.dtype(np.uint32), scale).is_quantized
    assert not TensorSpec("x", (2,), np.dtype(np.uint64), scale).is_quantized
    assert TensorSpec("x", (2,), np.dtype(ml_dtypes.int4), scale).is_quantized
    builder = ModelBuilder()
    x, y = builder.input((2,)), builder.tensor((2,), ml_dtypes.bfloat16, quantization=scale)
    builder.operator("CAST", [x], [y])
    builder.outputs(y)
    (got,) = run(builder.build(), np.float32([1, -2]))
    np.testing.assert_array_equal(got.astype(np.float32), [1, -2])


@pytest.mark.parametrize("bits", [MANY, 31, 0])
def test_levels_that_cannot_be_counted_are_refused(bits: int) -> None:
    builder = ModelBuilder()
    x, y = builder.input((2,)), builder.tensor((2,))
    builder.operator("FAKE_QUANT", [x], [y], FakeQuantOptions(-1, 1, bits))
    builder.outputs(y)
    with pytest.raises(jd.InterpreterError, match=f"num_bits is {bits}"):
        Interpreter(model_content=builder.build()).allocate_tensors()


def test_billions_of_elements_or_parts_are_not_listed() -> None:
    builder = ModelBuilder()
    x, y = builder.input((0, MANY)), builder.tensor((0, MANY))
    entries = [builder.constant(np.int32(v)) for v in ([0, 0], [0, MANY], [1, 1])]
    builder.operator("STRIDED_SLICE", [x, *entries], [y])
    builder.outputs(y)
    with pytest.raises(
        jd.InterpreterError, match="8589934588 bytes, not counting empty dimensions"
    ):
        Interpreter(model_content=builder.build()).allocate_tensors()
    builder = ModelBuilder()
    axis, x, y = builder.input((1,), np.int32), builder.input((4,)), builder.tensor((4,))
    builder.operator("SPLIT", [axis, x], [y], SplitOptions(MANY))
    builder.outputs(y)
    with pytest.raises(jd.InterpreterError, match="SPLIT: at most 1048576 parts, got 2147483647"):
        Interpreter(model_content=builder.build()).allocate_tensors()


def calls(depth: int) -> bytes:
    """Each subgraph runs the next one twice."""
    builder = ModelBuilder()
    graphs = [builder, *(builder.subgraph(f"s{i}") for i in range(1, depth))]
    for i, graph in enumerate(graphs):
        x, y, z = graph.input((1,)), graph.tensor((1,)), graph.tensor((1,))
        options = CallOptions(i + 1) if i + 1 < depth else None
        graph.operator("CALL" if options else "ABS", [x], [y], options)
        graph.operator("CALL" if options else "ABS", [y], [z], options)
        graph.outputs(z)
    return builder.build()


def test_calls_may_not_multiply() -> None:
    run_once(Interpreter(model_content=calls(6)), [np.ones(1, np.float32)])
    with pytest.raises(jd.ModelError, match=r"calls may lead to 1000000 tensors, .* for each call"):
        read_model(calls(40))


def branches(count: int, tensors: int) -> bytes:
    """Runs of one subgraph, which has many tensors and one operator, as both branches of IF."""
    builder = ModelBuilder()
    condition, x = builder.input((1,), np.bool_), builder.input((1,))
    for _ in range(count):
        y = builder.tensor((1,))
        builder.operator("IF", [condition, x], [y], IfOptions(1, 1))
        x = y
    builder.outputs(x)
    graph = builder.subgraph("wide")
    graph.operator("ABS", [graph.input((1,))], [graph.tensor((1,))])
    graph.outputs(1)
    for _ in range(tensors):
        graph.tensor((1,))
    return builder.build()


def test_calls_are_counted_by_tensors_too() -> None:
    with pytest.raises(jd.ModelError, match="calls may lead to 1000000 tensors"):
        read_model(branches(300, 2000))


def nested(depth: int, operators: int) -> bytes:
    """Each subgraph runs the next; the last but one runs the last three times."""
    builder = ModelBuilder()
    graphs = [builder, *(builder.subgraph(f"s{i}") for i in range(1, depth))]
    for i, graph in enumerate(graphs):
        x = graph.input((1,))
        name, options = ("CALL", CallOptions(i + 1)) if i + 1 < depth else ("ABS", None)
        for _ in range(operators if name == "ABS" else 3 if i == depth - 2 else 1):
            y = graph.tensor((1,))
            graph.operator(name, [x], [y], options)
            x = y
        graph.outputs(x)
    return builder.build()


@pytest.mark.parametrize("depth", [2, 60])
def test_what_levels_of_calls_ask_for_is_planned_once(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = []
    plan = propagation._called

    def counted(subgraph: Subgraph, *more: object) -> object:
        planned.append(subgraph.index)
        return plan(subgraph, *more)

    monkeypatch.setattr(propagation, "_called", counted)
    Interpreter(model_content=nested(depth, 5), experimental_delegates=[jd.JaxDelegate()])
    assert planned.count(depth - 1) <= 3  # by the host and by the delegate


def test_sparse_constants_of_called_subgraphs_are_checked_too() -> None:
    builder = ModelBuilder()
    x, y = builder.input((1,)), builder.tensor((1,))
    builder.operator("CALL", [x], [y], CallOptions(1))
    builder.outputs(y)
    graph = builder.subgraph("huge")
    graph.outputs(graph.input((1,)))
    one = DimensionSparsity(0, np.array([0, 1], np.int32), np.array([0], np.int32))
    sparsity = Sparsity((0, 1), (), (one, one))
    graph.constant(np.ones(1, np.float32), "w", shape=(1 << 20, 1 << 20), sparsity=sparsity)
    with pytest.raises(jd.InterpreterError, match=r"'w' is float32 .* takes 4398046511104 bytes"):
        Interpreter(model_content=builder.build())


def test_shapes_that_depend_on_data_are_not_believed(run: Callable[..., list[np.ndarray]]) -> None:
    builder = ModelBuilder()
    dims, value, y = builder.input((2,), np.int32), builder.constant(np.int8(1)), None
    y = builder.tensor((1, 1), np.int8)
    builder.operator("FILL", [dims, value], [y])
    builder.outputs(y)
    assert run(builder.build(), np.int32([2, 3]))[0].shape == (2, 3)
    with pytest.raises(jd.InterpreterError, match="max_tensor_bytes"):
        run(builder.build(), np.int32([1 << 16, 1 << 16]))


def test_tensors_that_share_packed_data_cannot_multiply_it() -> None:
    builder = ModelBuilder()
    builder.constant(np.ones(1 << 18, bool))

    def share(model: object) -> None:
        model.subgraphs[0].tensors *= 1000  # type: ignore[attr-defined]

    content = builder.build(edit=share)
    tracemalloc.start()
    try:
        with pytest.raises(jd.ModelError, match="must not exceed 4 times its size"):
            read_model(content)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_shape_that_is_computed_later_is_left_out(run: Callable[..., list[np.ndarray]]) -> None:
    """RESHAPE takes its options where its second input holds nothing yet, as in LiteRT."""
    builder = ModelBuilder()
    x, later = builder.input((4,)), builder.tensor((2,), np.int32)
    y = builder.tensor((2, 2))
    builder.operator("RESHAPE", [x, later], [y], ReshapeOptions((2, 2)))
    builder.operator("SHAPE", [y], [later])
    builder.outputs(y, later)
    shaped, shape = run(builder.build(), np.float32([1, 2, 3, 4]))
    np.testing.assert_array_equal(shaped, [[1, 2], [3, 4]])
    np.testing.assert_array_equal(shape, [2, 2])


@pytest.mark.parametrize(
    ("name", "message"),
    [("HASHTABLE_LOOKUP", "it has 2 outputs, not 1"), ("MUL", "it has 1 outputs, not 0")],
)
def test_an_operator_without_one_of_its_outputs_is_refused(
    run: Callable[..., list[np.ndarray]], name: str, message: str
) -> None:
    builder = ModelBuilder()
    x, y = builder.input((2,), np.int32), builder.tensor((2,), np.int32)
    keys, rows = (builder.constant(np.int32([3, 4])) for _ in range(2))
    if name == "MUL":
        builder.operator(name, [x, keys], [])
        builder.operator("ABS", [x], [y])
    else:
        builder.operator(name, [x, keys, rows], [y])
    builder.outputs(y)
    with pytest.raises(jd.InterpreterError, match=message):
        run(builder.build(), np.int32([3, 5]))


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize("dtype", [np.int64, np.uint64, ml_dtypes.int4])
def test_a_result_of_another_type_than_declared_is_refused(
    run: Callable[..., list[np.ndarray]], dtype: type, is_constant: bool
) -> None:
    """LiteRT copies the bytes, past the end of a smaller output."""
    builder = ModelBuilder()
    x, values = builder.input((4,), dtype), np.zeros(4, dtype)
    y, z = builder.tensor((2, 2), name="y"), builder.tensor((2, 2))
    source = builder.constant(values) if is_constant else x
    builder.operator("RESHAPE", [source], [y], ReshapeOptions((2, 2)))
    builder.operator("ABS", [y], [z])
    builder.outputs(z)
    with pytest.raises(jd.InterpreterError, match=r"RESHAPE.*'y' is float32, but .* yields"):
        run(builder.build(), values)


def test_an_operator_may_set_a_variable_that_an_earlier_one_reads() -> None:
    builder = ModelBuilder()
    x, y = builder.input((2,)), builder.tensor((2,))
    variable = builder.tensor((2,), is_variable=True)
    builder.operator("ADD", [x, variable], [y])
    builder.operator("NEG", [y], [variable])
    builder.outputs(y)
    for delegates in SIDES.values():
        interpreter = Interpreter(model_content=builder.build(), experimental_delegates=delegates())
        interpreter.allocate_tensors()
        for expected in ([1, 2], [0, 0], [1, 2]):
            interpreter.set_tensor(x, np.float32([1, 2]))
            interpreter.invoke()
            np.testing.assert_array_equal(interpreter.get_tensor(y), np.float32(expected))


@pytest.mark.parametrize("name", ["SUM", "CONCATENATION", "HASHTABLE_SIZE", "STABLEHLO_IOTA"])
def test_what_yields_a_handle_of_no_inputs_need_not_make_one(
    run: Callable[..., list[np.ndarray]], name: str
) -> None:
    builder = ModelBuilder()
    handle, y = builder.tensor((1,), HANDLE), builder.tensor((2,))
    builder.operator(name, [], [handle])
    builder.operator("READ_VARIABLE", [handle], [y])
    builder.outputs(y)
    with pytest.raises(jd.InterpreterError, match=r"Node number [01] .* failed to"):
        run(builder.build())


@pytest.mark.parametrize("name", ["AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"])
@pytest.mark.parametrize("dtype", [HANDLE, np.dtype(np.complex64)], ids=str)
def test_a_pool_yields_what_it_reads(
    run: Callable[..., list[np.ndarray]], name: str, dtype: np.dtype
) -> None:
    builder = ModelBuilder()
    x, y = builder.input((1, 4, 4, 2)), builder.tensor((1, 2, 2, 2), dtype)
    builder.operator(name, [x], [y], Pool2DOptions(Padding.SAME, 2, 2, 2, 2))
    builder.outputs(y)
    with pytest.raises(jd.InterpreterError, match=rf"\({name}\) failed"):
        run(builder.build(), np.ones((1, 4, 4, 2), np.float32))


def test_tensors_with_values_may_be_named_as_intermediates(
    run: Callable[..., list[np.ndarray]],
) -> None:
    scale = Quantization(np.float32([0.5]), np.array([0]), 0)
    builder = ModelBuilder()
    x = builder.input((2,), np.int8, quantization=scale)
    y, z = (builder.tensor((2,), np.int8, quantization=scale) for _ in range(2))
    builder.operator("RELU", [x], [y], intermediates=[z])
    builder.operator("RELU6", [y], [z])
    builder.outputs(z)
    (got,) = run(builder.build(), np.int8([-3, 20]))
    np.testing.assert_array_equal(got, [0, 12])


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("UNIDIRECTIONAL_SEQUENCE_LSTM", UnidirectionalSequenceLSTMOptions, 23),
        ("LSTM", LSTMOptions, 21),
        ("BIDIRECTIONAL_SEQUENCE_LSTM", BidirectionalSequenceLSTMOptions, 45),
    ],
)
def test_lists_of_lstm_inputs_may_not_end_anywhere(
    name: str, options: Callable[[], Options], count: int
) -> None:
    builder = ModelBuilder()
    x, y = builder.input((1, 1 << 24, 2)), builder.tensor((1, 1 << 24, 2))
    w = builder.constant(np.ones((2, 2), np.float32))
    builder.operator(name, [x, *[w] * (count - 1)], [y], options())
    builder.outputs(y)
    with pytest.raises(jd.InterpreterError, match=f"or 24 inputs, got {count}|48 inputs, got 45"):
        Interpreter(model_content=builder.build()).allocate_tensors()


def test_blocks_that_do_not_fit_are_refused_before_large_operands_are_read() -> None:
    builder = ModelBuilder()
    scales = builder.constant(np.float32([1, 2]))
    blocks = Blockwise(scales, -1, 32)
    q = Quantization(np.float32([]), np.int64([]), 0, blockwise=blocks)
    w = builder.constant(np.int8(1), quantization=q)
    x, y = builder.input((1 << 26,), np.int8), builder.tensor((1 << 26,), np.int8)
    builder.operator("ADD", [x, w], [y])
    builder.outputs(y)
    interpreter = Interpreter(model_content=builder.build())
    interpreter.allocate_tensors()
    tracemalloc.start()
    try:
        with pytest.raises(jd.InterpreterError, match="2 scales do not fit"):
            interpreter.invoke()
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_many_integers_are_as_few(dtype: type) -> None:
    every = np.arange(np.iinfo(dtype).min, np.iinfo(dtype).max + 1).astype(dtype)
    scale = Quantization(np.float32([0.01]), np.array([0]), 0)

    def leaky(x: np.ndarray) -> np.ndarray:
        builder = ModelBuilder()
        a, b = (f(x.shape, dtype, quantization=scale) for f in (builder.input, builder.tensor))
        builder.operator("LEAKY_RELU", [a], [b], LeakyReluOptions(0.3))
        builder.outputs(b)
        return run_once(Interpreter(model_content=builder.build()), [x])[0]

    many = leaky(np.resize(every, (17, (1 << 16) + 3)))
    np.testing.assert_array_equal(many, np.resize(leaky(every), many.shape))
