"""The cost of an operator from its shapes and dtypes: arithmetic operations, and bytes moved.

Conventions:

* A multiplication and an addition are one operation each, so a product of [m, k] and [k, n] takes
  2*m*k*n. Biases, fused activations and requantization are not counted. Windows are counted in
  full, also at borders, and sparse weights as dense.
* An element-wise operator takes one operation per element of its output, however complex it is;
  `transcendentals` is the number of exponentials, logarithms, roots and similar among them.
* Moving data takes no operations.
* Bytes are those of the inputs, including constants, and of the outputs, at the width of their
  dtypes, packed as in the file. Operators that select from a table (GATHER, slices) read only what
  they select. XLA fuses operators, so a partition moves fewer bytes than the sum of its operators.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.options import Options, record_of
from jaxdelegate.op_lowering.records.costs import Operation, Work
from jaxdelegate.op_lowering.spec import Specs, TensorSpec

_DYNAMIC = "a shape depends on data"


@dataclasses.dataclass(frozen=True)
class Cost:
    flops: int | None  # arithmetic operations, also on integers; None: not known before the run
    bytes_read: int | None  # of inputs and constants; None: not known before the run
    bytes_written: int | None  # of outputs; None: not known before the run
    transcendentals: int = 0  # how many of `flops` are exponentials, logarithms, roots and similar
    note: str = ""  # what the numbers leave out or assume beyond the conventions; may be empty

    @property
    def bytes(self) -> int | None:
        if self.bytes_read is None or self.bytes_written is None:
            return None
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float | None:
        """Operations per byte: the horizontal axis of a roofline."""
        return None if self.flops is None or not self.bytes else self.flops / self.bytes


Called = Callable[[int], "Work | None"]  # subgraph -> the work of one run, if it is known


def operator_cost(
    name: str,
    options: Options,
    inputs: Specs,
    outputs: Specs,
    called: Called | None = None,
) -> Cost:
    """`called` returns the work of one run of a called subgraph."""
    read, written = _bytes_read(name, inputs, outputs), specs_bytes(outputs)
    if any(spec is not None and spec.is_dynamic for spec in (*inputs, *outputs)):
        return Cost(None, read, written, note=_DYNAMIC)
    work = _work(name, options, inputs, outputs, called)
    return Cost(work.flops, read, written, work.transcendentals, work.note)


def _work(
    name: str, options: Options, inputs: Specs, outputs: Specs, called: Called | None
) -> Work:
    try:
        return record_of(name).cost(Operation(options, inputs, outputs, called or (lambda _: None)))
    except (AttributeError, IndexError, TypeError, ZeroDivisionError):
        return Work(None, note="its tensors are not those of a valid operator")


def spec_bytes(spec: TensorSpec) -> int | None:
    """The bytes of a tensor, with 4 and 2 bit integers packed; None: they depend on data."""
    if spec.is_dynamic:
        return None
    n = math.prod(spec.shape)
    if spec.dtype.hasobject:
        return None if spec.const is None else sum(len(s) for s in spec.const.ravel())
    return (n * bits(spec.dtype) + 7) // 8


def bits(dtype: np.dtype) -> int:
    """The bits of one element in a file."""
    if dtype.itemsize == 1 and "int" in dtype.name:
        return int(ml_dtypes.iinfo(dtype).bits)  # type: ignore[no-untyped-call]
    return dtype.itemsize * 8


def specs_bytes(specs: Iterable[TensorSpec | None]) -> int | None:
    """The bytes of several tensors, each counted once; None: one of them is not known."""
    total = 0
    for spec in {id(spec): spec for spec in specs if spec is not None}.values():
        n = spec_bytes(spec)
        if n is None:
            return None
        total += n
    return total


def _bytes_read(name: str, inputs: Specs, outputs: Specs) -> int | None:
    record = record_of(name)
    if not record.reads_values:
        return 0
    table = record.picks_from
    if table is None or len(inputs) <= table:
        return specs_bytes(inputs)
    rest, whole = specs_bytes(s for i, s in enumerate(inputs) if i != table), inputs[table]
    selected = _selected_bytes(whole, outputs)
    return None if rest is None or selected is None else rest + selected


def _selected_bytes(table: TensorSpec, outputs: Specs) -> int | None:
    """The bytes of a table that its operator reads: as many elements as the outputs have."""
    if table is None or table.dtype.hasobject or any(s is None or s.is_dynamic for s in outputs):
        return specs_bytes([table])
    whole = math.prod(table.shape)
    n = min(whole, sum(math.prod(spec.shape) for spec in outputs))
    return (n * bits(table.dtype) + 7) // 8
