"""The common part of numpy kernels that act element by element."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.dtypes import HALVES
from jaxdelegate.op_lowering.records.record import Options
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.reference.kernel import Array, Run

_CHUNK = 1 << 20  # elements


def elementwise(function: Callable[..., Any]) -> Run:
    """A kernel that applies `function` to all inputs, which numpy broadcasts; see with_options."""

    def call(_o: Options, *arrays: Array) -> Any:
        if isinstance(function, np.ufunc) and len(arrays) != function.nin:
            # numpy would write the result to another argument.
            raise TypeError(f"expected {function.nin} inputs, got {len(arrays)}")
        return function(*arrays)

    return with_options(call)


def with_options(function: Callable[..., Any]) -> Run:
    """A kernel that applies `function(options, *arrays)`; half precision is computed in float32."""

    def run(o: Options, inputs: Specs, outputs: Specs, *arrays: Array) -> tuple[Array]:
        reject_quantized(inputs)
        with np.errstate(all="ignore"):  # overflow, NaN and division by zero are valid results
            y = function(o, *(widen(a) for a in arrays))
            return (np.asarray(y).astype(outputs[0].dtype),)

    return run


def by_scale(plain: Run, integer: Run, takes: str) -> Run:
    """The kernel `integer` if tensors have scales and it takes the first input's dtype."""

    def run(o: Options, inputs: Specs, outputs: Specs, *arrays: Array) -> tuple[Array, ...]:
        is_quantized = any(s is not None and s.is_quantized for s in (*inputs, *outputs))
        if not is_quantized or inputs[0].dtype.name not in takes.split():
            return plain(o, inputs, outputs, *arrays)
        with np.errstate(all="ignore"):
            return integer(o, inputs, outputs, *arrays)

    return run


def by_table(run: Run) -> Run:
    """A kernel of one quantized input, 8 or 16 bits, that computes each integer only once.

    `run` acts element by element and accepts every integer of its dtypes.
    """

    def looked_up(o: Options, inputs: Specs, outputs: Specs, x: Array) -> tuple[Array, ...]:
        unsigned = np.dtype(f"u{x.dtype.itemsize}")
        count = 1 << 8 * unsigned.itemsize
        if x.size <= count:
            return run(o, inputs, outputs, x)
        (table,) = run(o, inputs, outputs, np.arange(count, dtype=unsigned).view(x.dtype))
        y = np.empty(x.shape, table.dtype)
        indices, results = np.ascontiguousarray(x).view(unsigned).reshape(-1), y.reshape(-1)
        for start in range(0, x.size, _CHUNK):  # numpy widens the indices
            part = slice(start, start + _CHUNK)
            results[part] = table[indices[part]]
        return (y,)

    return looked_up


def widen(x: Array) -> Array:
    return x.astype(np.float32) if x.dtype in HALVES else x


def reject_quantized(inputs: Specs) -> None:
    for spec in inputs:
        if spec is not None and spec.is_quantized:
            raise TypeError(
                f"{spec.name!r} is quantized {spec.dtype}: this kernel computes on plain numbers"
            )
