"""Shape propagation where shapes depend on data, and where they are settled again."""

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.options import MulOptions, ReshapeOptions, SparseToDenseOptions
from jaxdelegate.testing import ModelBuilder


def marked_places(n: int = 6) -> bytes:
    """10 at every true place and 0 elsewhere; how many places there are depends on data."""
    builder = ModelBuilder()
    is_marked = builder.input((n,), np.bool_, "is_marked")
    places = builder.tensor((1, 1), np.int64, "places")
    marks, doubled, y = (builder.tensor((n,), np.float32, name) for name in "abc")
    builder.operator("WHERE", [is_marked], [places])
    shape = builder.constant(np.array([n], np.int64))
    five, zero = (builder.constant(np.float32(v)) for v in (5, 0))
    builder.operator(
        "SPARSE_TO_DENSE", [places, shape, five, zero], [marks], SparseToDenseOptions()
    )
    two = builder.constant(np.float32(2))
    builder.operator("MUL", [marks, two], [doubled], MulOptions())
    builder.operator("ABS", [doubled], [y])
    builder.outputs(y)
    return builder.build()


def test_what_follows_a_settled_shape_is_delegated() -> None:
    delegate = jd.JaxDelegate(min_gain=0)
    interpreter = jd.Interpreter(model_content=marked_places(), experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    assert [n.op for n in delegate.report().delegated] == ["MUL", "ABS"]
    for marks in ([1, 0, 0, 1, 1, 0], [0] * 6, [1] * 6):
        interpreter.set_tensor(0, np.array(marks, bool))
        interpreter.invoke()
        y = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        np.testing.assert_array_equal(y, 10 * np.array(marks, np.float32))


def reshaped(asked: list[int]) -> bytes:
    """The true places as a tensor of the requested shape, added to itself."""
    builder = ModelBuilder()
    is_marked = builder.input((6,), np.bool_)
    places, y = builder.tensor((1, 1), np.int64), builder.tensor((3,), np.int64)
    builder.operator("WHERE", [is_marked], [places])
    matrix = builder.tensor((3,), np.int64)
    wanted = builder.constant(np.array(asked, np.int32))
    builder.operator("RESHAPE", [places, wanted], [matrix], ReshapeOptions())
    builder.operator("NEG", [matrix], [y])
    builder.outputs(y)
    return builder.build()


@pytest.mark.parametrize(("asked", "taken"), [([3], ["NEG"]), ([-1], []), ([3, -1], [])])
def test_reshape_settles_only_without_a_free_size(asked: list[int], taken: list[str]) -> None:
    delegate = jd.JaxDelegate(min_gain=0)
    interpreter = jd.Interpreter(model_content=reshaped(asked), experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    assert [n.op for n in delegate.report().delegated] == taken
    interpreter.set_tensor(0, np.array([0, 1, 0, 1, 0, 1], bool))
    interpreter.invoke()
    y = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_array_equal(y.ravel(), [-1, -3, -5])


def test_data_that_does_not_fit_the_settled_shape_is_an_error() -> None:
    interpreter = jd.Interpreter(
        model_content=reshaped([3]), experimental_delegates=[jd.JaxDelegate()]
    )
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, np.ones(6, bool))
    with pytest.raises(RuntimeError, match=r"Node number 1 \(RESHAPE\) failed to invoke"):
        interpreter.invoke()
