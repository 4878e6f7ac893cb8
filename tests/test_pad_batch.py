"""The option `pad_batch`: batches run as larger ones where that is provably the same."""

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as StockInterpreter

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import (
    FullyConnectedOptions,
    ReducerOptions,
    TensorType,
    UniqueOptions,
)
from jaxdelegate.testing import ModelBuilder, assert_close

W = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


def dense(*, last: str = "RELU") -> bytes:
    """FULLY_CONNECTED, then an operator that keeps or mixes the items of the free batch."""
    builder = ModelBuilder()
    x = builder.input((1, 4), name="x", shape_signature=(-1, 4))
    h, y = builder.tensor((1, 3)), builder.tensor((1, 3))
    builder.operator("FULLY_CONNECTED", [x, builder.constant(W), -1], [h], FullyConnectedOptions())
    if last == "SUM":
        axis = builder.constant(np.array([0], np.int32))
        builder.operator("SUM", [h, axis], [y], ReducerOptions(keep_dims=True))
    else:
        builder.operator(last, [h], [y])
    builder.outputs(y)
    return builder.build()


def opened(content: bytes, **options: bool) -> tuple[jd.Interpreter, jd.JaxDelegate]:
    delegate = jd.JaxDelegate(platform="cpu", min_gain=0, pad_batch=True, **options)
    return jd.Interpreter(model_content=content, experimental_delegates=[delegate]), delegate


def run(interpreter: jd.Interpreter, x: np.ndarray) -> np.ndarray:
    interpreter.resize_tensor_input(0, x.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, x)
    interpreter.invoke()
    (out,) = interpreter.get_output_details()
    result: np.ndarray = interpreter.get_tensor(out["index"])
    assert tuple(out["shape"]) == result.shape
    return result


def test_batches_share_the_programs_of_powers_of_two() -> None:
    interpreter, delegate = opened(dense())
    random = np.random.default_rng(1)
    for size in (3, 4, 5, 7, 8, 6, 3, 1):
        x = random.normal(size=(size, 4)).astype(np.float32)
        for _ in range(2):  # an invoke leaves nothing behind for the next
            assert_close([run(interpreter, x)], [np.maximum(x @ W.T, 0)], accumulated=4)
    assert delegate.compiler.compiled == 3  # for 4, 8 and 1
    assert not delegate.report().left


def test_a_graph_that_mixes_items_is_refused_with_the_operator() -> None:
    interpreter, _ = opened(dense(last="SUM"))
    x = np.ones((3, 4), np.float32)
    with pytest.raises(jd.InterpreterError, match=r"batch of 4: node 1 \(SUM\) .*rebatch=True"):
        run(interpreter, x)
    assert run(interpreter, x[:2]).shape == (1, 3)  # needs no padding
    single, _ = opened(dense(last="SUM"), rebatch=True)
    assert_close([run(single, x)], [x @ W.T], accumulated=4)


def test_a_graph_that_is_not_delegated_whole_is_refused() -> None:
    builder = ModelBuilder()
    x = builder.input((1, 4), name="x", shape_signature=(-1, 4))
    y, row, numbers = builder.tensor((1, 4)), builder.input((4,)), builder.tensor((4,), np.int32)
    builder.operator("RELU", [x], [y])
    options = UniqueOptions(TensorType.INT32)
    builder.operator("UNIQUE", [row], [builder.tensor((4,)), numbers], options)
    builder.outputs(y)
    interpreter, _ = opened(builder.build())
    with pytest.raises(jd.JaxDelegateError, match="pad_batch"):
        run(interpreter, np.ones((3, 4), np.float32))


def test_stock_interpreters_reject_it() -> None:
    with pytest.raises(jd.OptionError, match=r"pad_batch: .*jaxdelegate\.Interpreter"):
        StockInterpreter(
            model_content=dense(), experimental_delegates=[jd.JaxDelegate(pad_batch=True)]
        )
