"""Shapes that a file only declares are not believed."""

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.runtime.sizes import check_sizes
from jaxdelegate.testing.networks import broadcast


@pytest.mark.parametrize("delegated", [False, True])
def test_a_tensor_that_takes_too_much_is_named_before_it_is_allocated(delegated: bool) -> None:
    delegates = [jd.JaxDelegate()] if delegated else []
    interpreter = jd.Interpreter(model_content=broadcast(1 << 20), experimental_delegates=delegates)
    message = r"tensor 2 'y' is float32 \[1048576, 1048576\], which takes 4398046511104 bytes"
    with pytest.raises(jd.InterpreterError, match=message):
        interpreter.allocate_tensors()
    with pytest.raises(jd.InterpreterError, match=message):
        jd.load(broadcast(1 << 20))(np.ones((1, 1), np.float32))


def test_the_limit_is_the_users() -> None:
    jd.Interpreter(model_content=broadcast(8), max_tensor_bytes=256).allocate_tensors()
    assert jd.load(broadcast(8), max_tensor_bytes=256)(np.ones((1, 1), np.float32))[0].size == 64
    with pytest.raises(jd.InterpreterError, match="max_tensor_bytes is 255"):
        jd.Interpreter(model_content=broadcast(8), max_tensor_bytes=255).allocate_tensors()
    with pytest.raises(jd.InterpreterError, match="max_tensor_bytes is 255"):
        jd.load(broadcast(8), max_tensor_bytes=255)(np.ones((1, 1), np.float32))


def test_so_is_the_shape_of_a_resized_input() -> None:
    interpreter = jd.Interpreter(model_content=broadcast(8), max_tensor_bytes=1 << 20)
    interpreter.resize_tensor_input(0, (1 << 20, 1))
    with pytest.raises(jd.InterpreterError):
        interpreter.allocate_tensors()


def test_a_tensor_is_named_by_its_own_number() -> None:
    spec = TensorSpec("w", (3,), np.dtype(np.float32))
    check_sizes([(7, spec)], 12)
    with pytest.raises(jd.InterpreterError, match=r"tensor 7 'w' is float32 \[3\]"):
        check_sizes([(7, spec)], 11)
