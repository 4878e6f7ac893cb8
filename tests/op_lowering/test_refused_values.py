"""Values at which LiteRT stops: the reference does too, programs go on (docs/reliability.md)."""

from collections.abc import Sequence

import numpy as np
import pytest

import jaxdelegate as jd
from jaxdelegate.testing import ModelBuilder
from jaxdelegate.testing.running import run_once

Arrays = Sequence[np.ndarray]
X = np.float32([[1, 2], [3, 4], [5, 6]])
OUTSIDE = np.int32([0, 3, -1])
# By name: run-time inputs, constants, and the results of programs.
INDICES: dict[str, tuple[Arrays, Arrays, np.ndarray]] = {
    "GATHER": ([X, OUTSIDE], [], X[[0, 2, 0]]),
    "GATHER_ND": ([X, OUTSIDE[:, None]], [], X[[0, 2, 0]]),
    "GATHER_ND-pairs": ([X, np.int32([[0, 5], [9, 0], [-3, -3]])], [], X[[0, 2, 0], [1, 0, 0]]),
    "EMBEDDING_LOOKUP": ([OUTSIDE, X], [], X[[0, 2, 0]]),
    "SLICE": ([X, np.int32([2, 1])], [np.int32([2, 2])], X[1:]),
    "SLICE-negative": ([X, np.int32([-2, 0])], [np.int32([2, 2])], X[:2]),
    "SCATTER_ND": ([OUTSIDE[:, None], X], [np.int32([3, 2])], np.float32([[1, 2], [0, 0], [0, 0]])),
    "UNSORTED_SEGMENT_SUM": (
        [X, np.int32([0, 5, 2])],
        [np.int32(3)],
        np.float32([[1, 2], [0, 0], [5, 6]]),
    ),
}
DIVIDENDS, DIVISORS = [7, -7, 6, 0], [0, 0, 2, 0]
QUOTIENTS = [np.inf, -np.inf, 3, np.nan]


def model_of(name: str, given: Arrays, constants: Arrays, y: np.ndarray) -> bytes:
    b = ModelBuilder()
    inputs = [b.input(a.shape, a.dtype) for a in given]
    result = b.tensor(y.shape, y.dtype)
    b.operator(name.partition("-")[0], [*inputs, *map(b.constant, constants)], [result])
    b.outputs(result)
    return b.build()


def of_programs(content: bytes, given: Arrays) -> Arrays:
    """The results of a delegate, `load` and a function; the reference refuses the values."""
    with pytest.raises(jd.InterpreterError, match=r"Node number 0 .* failed to invoke"):
        run_once(jd.Interpreter(model_content=content), list(given))
    delegate = jd.JaxDelegate(min_gain=0, require_full_delegation=True)
    interpreter = jd.Interpreter(model_content=content, experimental_delegates=[delegate])
    model = jd.load(content)
    apply, params = model.function()
    (y,), (z,) = model(*given), apply(params, *given)
    return [run_once(interpreter, list(given))[0], np.asarray(y), np.asarray(z)]


@pytest.mark.parametrize("name", INDICES)
def test_indices_out_of_range(name: str) -> None:
    given, constants, want = INDICES[name]
    for got in of_programs(model_of(name, given, constants, want), given):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["DIV", "FLOOR_DIV", "FLOOR_MOD"])
def test_integers_divided_by_zero(name: str) -> None:
    """The other quotients are right."""
    x, y = np.int32(DIVIDENDS), np.int32(DIVISORS)
    for got in of_programs(model_of(name, [x, y], [], x), [x, y]):
        assert got[2] == (0 if name == "FLOOR_MOD" else 3)


def test_floats_divided_by_zero() -> None:
    x, y = np.float32(DIVIDENDS), np.float32(DIVISORS)
    for got in of_programs(model_of("FLOOR_DIV", [x, y], [], x), [x, y]):
        np.testing.assert_array_equal(got, QUOTIENTS)
