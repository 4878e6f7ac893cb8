"""Resource variables: the stock interpreter keeps them, and partitions get their values."""

import logging
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import jaxdelegate as jd
from jaxdelegate.analysis.analyzer import analyze_model
from jaxdelegate.op_lowering.options import (
    CallOnceOptions,
    ConcatenationOptions,
    StridedSliceOptions,
    VarHandleOptions,
)
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.tools.main import main

Stock = Callable[..., Interpreter]
pytestmark = pytest.mark.litert

HANDLE = np.dtype("V4")
FIRST = np.array([[1, 2, 3]], np.float32)


def streaming(signature: tuple[int, ...] = (1, 2)) -> bytes:
    """The variable holds the last three of [variable, x]; CALL_ONCE sets it to FIRST.

    y is the double of the three. A second subgraph, the initialization, computes FIRST by an ADD.
    """
    builder = ModelBuilder()
    x = builder.input((1, 2), name="x", shape_signature=signature)
    _initialization(builder)
    handle, old = builder.tensor((1,), HANDLE), builder.tensor((1, 3))
    joined, new, y = builder.tensor((1, 5)), builder.tensor((1, 3)), builder.tensor((1, 3))
    builder.operator("CALL_ONCE", [], [], CallOnceOptions(init_subgraph_index=1))
    builder.operator("VAR_HANDLE", [], [handle], VarHandleOptions(shared_name="v"))
    builder.operator("READ_VARIABLE", [handle], [old])
    builder.operator("CONCATENATION", [old, x], [joined], ConcatenationOptions(1))
    edges = [builder.constant(np.array(v, np.int32)) for v in ((0, -3), (0, 0), (1, 1))]
    options = StridedSliceOptions(begin_mask=1, end_mask=3)
    builder.operator("STRIDED_SLICE", [joined, *edges], [new], options)
    builder.operator("ASSIGN_VARIABLE", [handle, new], [])
    builder.operator("ADD", [new, new], [y])
    builder.outputs(y)
    return builder.build()


def _initialization(builder: ModelBuilder) -> None:
    body = builder.subgraph("initialize")
    handle, half = body.tensor((1,), HANDLE), body.constant(FIRST / 2)
    value = body.tensor((1, 3))
    body.operator("VAR_HANDLE", [], [handle], VarHandleOptions(shared_name="v"))
    body.operator("ADD", [half, half], [value])
    body.operator("ASSIGN_VARIABLE", [handle, value], [])
    body.outputs()


def fed(interpreter: Interpreter, x: np.ndarray) -> np.ndarray:
    (given,), (out,) = interpreter.get_input_details(), interpreter.get_output_details()
    if tuple(given["shape"]) != x.shape:
        interpreter.resize_tensor_input(given["index"], x.shape)
        interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(out["index"])


@pytest.mark.parametrize("auto", [False, True])
def test_streams_go_on_as_without_the_delegate(stock: Stock, auto: bool) -> None:
    """Over resets, resizes and a second stream of the same delegate."""
    delegate, content = jd.JaxDelegate(min_gain=0), streaming((1, -1))
    pairs = [(stock(content, [delegate], auto), stock(content, auto=auto)) for _ in range(2)]
    for interpreter in (one for pair in pairs for one in pair):
        interpreter.allocate_tensors()
    random = np.random.default_rng(0)
    for step in range(24):
        delegated, plain = pairs[step % 3 == 1]
        if step == 12:  # resets tensors, not resources
            delegated.reset_all_variables()
            plain.reset_all_variables()
        x = random.normal(size=(1, 1 + step // 8)).astype(np.float32)
        np.testing.assert_array_equal(fed(delegated, x), fed(plain, x))
    taken = {node.op for node in delegate.report().delegated}
    assert taken == {"CONCATENATION", "STRIDED_SLICE", "ADD"}
    assert delegate.report().n_partitions == 1


def test_the_first_value_is_that_of_the_initialization(stock: Stock) -> None:
    interpreter = stock(streaming(), [jd.JaxDelegate(min_gain=0)])
    interpreter.allocate_tensors()
    y = fed(interpreter, np.array([[5, 6]], np.float32))
    np.testing.assert_array_equal(y, [[6, 10, 12]])


def test_a_variable_whose_shape_changes(stock: Stock) -> None:
    """What was assigned decides the shape of what is read, whatever the file declares."""
    builder = ModelBuilder()
    x = builder.input((1, 3), name="x", shape_signature=(1, -1))
    _initialization(builder)
    handle, old, y = builder.tensor((1,), HANDLE), builder.tensor((1, 3)), builder.tensor((1, 3))
    builder.operator("CALL_ONCE", [], [], CallOnceOptions(init_subgraph_index=1))
    builder.operator("VAR_HANDLE", [], [handle], VarHandleOptions(shared_name="v"))
    builder.operator("READ_VARIABLE", [handle], [old])
    builder.operator("ADD", [old, old], [y])
    builder.operator("ASSIGN_VARIABLE", [handle, x], [])
    builder.outputs(y)
    delegated = stock(builder.build(), [jd.JaxDelegate(min_gain=0)])
    plain = stock(builder.build())
    for interpreter in (delegated, plain):
        interpreter.allocate_tensors()
    for size in (3, 3, 5, 4, 4):
        x_value = np.arange(size, dtype=np.float32)[None]
        np.testing.assert_array_equal(fed(delegated, x_value), fed(plain, x_value))


def test_the_warning_has_one_line_for_variables(
    stock: Stock, caplog: pytest.LogCaptureFixture
) -> None:
    """And none for the initialization, which runs once."""
    content = streaming()
    with caplog.at_level(logging.WARNING, "jaxdelegate"):
        stock(content, [delegate := jd.JaxDelegate(min_gain=0)])
    (warned,) = (record.getMessage() for record in caplog.records)
    assert "3 operations will run on XLA:CPU, and the remaining 3" in warned
    assert "1 more initializes the model once" in warned
    assert len(re.findall("the stock interpreter keeps variables", warned)) == 1
    assert "jaxdelegate.Interpreter can delegate it" in warned
    assert not delegate.report(1).left
    assert [node.op for node in delegate.report().initializing] == ["CALL_ONCE"]


def test_initialization_does_not_count_for_full_delegation(stock: Stock) -> None:
    delegate = jd.JaxDelegate(require_full_delegation=True)
    ours = jd.Interpreter(model_content=streaming(), experimental_delegates=[delegate])
    ours.allocate_tensors()
    assert {node.op for node in delegate.report().nodes if not node.delegated} == {"CALL_ONCE"}
    with pytest.raises(RuntimeError, match="3 of 7 operators cannot be delegated") as caught:
        stock(streaming(), [jd.JaxDelegate(require_full_delegation=True)])
    assert "CALL_ONCE" not in str(caught.value)
    assert "jaxdelegate.Interpreter" in str(caught.value)


def test_a_model_that_cannot_gain_is_left_without_asking_rules(stock: Stock) -> None:
    """Rules import jax, which takes seconds."""
    delegate = jd.JaxDelegate()
    asked: list[object] = []
    delegate.reasons = lambda _context, nodes: asked.extend(nodes) or []  # type: ignore[method-assign, func-returns-value]
    stock(streaming(), [delegate])
    assert not asked
    (reason,) = {node.reason for node in delegate.report().left if node.op == "ADD"}
    assert reason is not None
    assert "min_gain=0 delegates it" in reason


def test_analyze_shows_what_the_stock_interpreter_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints the partitions and reasons of the report, without compiling."""
    delegate, content = jd.JaxDelegate(min_gain=0), streaming()
    Interpreter(model_content=content, experimental_delegates=[delegate])
    stock = analyze_model(content, interpreter="litert", min_gain=0)
    for subgraph in stock.subgraphs:
        rows = delegate.report(subgraph.index).nodes
        found = [(op.index, op.partition, op.reason) for op in subgraph.operators]
        assert found == [(row.index, row.partition, row.reason) for row in rows]
        assert subgraph.summary == delegate.report(subgraph.index).summary()
    (partition,) = stock.subgraphs[0].partitions
    assert partition.operators == (3, 4, 6)
    assert not analyze_model(content, min_gain=0).subgraphs[0].left  # ours takes the variable, too
    (tmp_path / "m.tflite").write_bytes(content)
    flags = [f"--graph={tmp_path}/m.tflite", "--interpreter=litert", "--jax_min_gain=0"]
    assert main(["analyze", *flags]) == 0
    printed = capsys.readouterr().out
    assert "Partitions are those of the stock interpreter" in printed
    assert stock.subgraphs[0].summary in " ".join(printed.split())
    with pytest.raises(jd.OptionError, match="interpreter: expected"):
        analyze_model(content, interpreter="tflite")
