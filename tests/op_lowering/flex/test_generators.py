"""Random numbers of a key and a counter."""

from typing import Any

import numpy as np

from jaxdelegate.testing import Arg, Case, const, value
from tests.op_lowering.flex.test_math import case, numbers

INT = np.dtype(np.int32)
STATE = [
    value([0x123456789ABCDEF], np.uint64),
    value([2**64 - 2, 7], np.uint64),  # the lower half overflows
]
PHILOX, THREEFRY = const(np.int32(1)), const(np.int32(2))


def seeds(*values: int, dtype: Any = np.int64) -> Arg:
    return value(values, dtype)


def drawn(name: str, dtype: Any, *shape: int, algorithm: Arg = PHILOX) -> Case:
    attributes: dict[str, Any] = {"dtype": np.dtype(dtype), "Tshape": INT}
    label = f"{np.dtype(dtype).name}-{shape}"
    inputs = [numbers(*shape), *STATE, algorithm]
    return case(f"StatelessRandom{name}V2", label, inputs, [dtype], attributes=attributes)


def integers(dtype: Any, low: int, high: int) -> Case:
    limits = [value(np.array(n, dtype)) for n in (low, high)]
    attributes: dict[str, Any] = {"dtype": np.dtype(dtype), "Tshape": INT}
    label = f"{np.dtype(dtype).name}-{low}-{high}"
    inputs = [numbers(3, 5), *STATE, PHILOX, *limits]
    return case("StatelessRandomUniformIntV2", label, inputs, [dtype], attributes=attributes)


def mixed(label: str, given: Arg) -> Case:
    attributes: dict[str, Any] = {"Tseed": given.value.dtype}
    name = "StatelessRandomGetKeyCounter"
    return case(name, label, [given], [np.uint64, np.uint64], attributes=attributes)


def seeded(name: str, dtype: Any, given: Arg) -> Case:
    attributes: dict[str, Any] = {"dtype": np.dtype(dtype), "T": INT, "Tseed": given.value.dtype}
    label = f"{np.dtype(dtype).name}-seeded"
    inputs = [numbers(7), given]
    return case(f"StatelessRandom{name}", label, inputs, [dtype], attributes=attributes)


CASES = [
    mixed("int64", seeds(5, -(2**40))),
    mixed("int32", seeds(-1, 2, dtype=np.int32)),
    drawn("Uniform", np.float32, 3, 5),
    drawn("Uniform", np.float64, 7),
    drawn("Uniform", np.float32, 2, 0),
    drawn("Uniform", np.float32, 6, algorithm=const(np.int32(3))),
    drawn("Normal", np.float32, 3, 3),
    integers(np.int32, -5, 7),
    integers(np.int32, -(2**31), 2**31 - 1),
    integers(np.int64, -(2**40), 2**62),
    seeded("Uniform", np.float32, seeds(1, 2)),
    seeded("Uniform", np.float64, seeds(1, 2)),
    seeded("Normal", np.float32, seeds(3, -4, dtype=np.int32)),
]
RUN_TIME = [drawn("Uniform", np.float32, 2).with_inputs({0: value(np.int32([3]))})]
REFUSED = {
    "not Philox": drawn("Uniform", np.float32, 2, algorithm=THREEFRY),
    "'out0' is float64, not one of float32": drawn("Normal", np.float64, 2),
}
STOPPED = {
    "algorithm 2": REFUSED["not Philox"],
    "float64: expected float32": REFUSED["'out0' is float64, not one of float32"],
    "integers from 3 to below 3": integers(np.int32, 3, 3),
}
IMPOSSIBLE = [drawn("Uniform", np.float32, 2, -1), mixed("three", seeds(1, 2, 3))]
