"""What an operator costs by its shapes alone: arithmetic operations, and bytes that it touches.

Knows specs only, no graph, no device and no data. Conventions:

* A multiplication and an addition are one operation each, so that a product of [m, k] and [k, n]
  takes 2*m*k*n. Biases, fused activations and requantization are not counted; windows are counted
  whole, where they hang over the border too; sparse weights are counted as dense.
* An element-wise operator takes one operation per element of its output, however much there is in
  it; `transcendentals` says how many of them are exponentials, logarithms, roots and their like.
* Moving data takes none.
* Bytes are those of the inputs, constants included, and of the outputs, at the width of their
  dtypes, packed where the file packs them. Operators that pick from a table (GATHER, slices) read
  what they pick. XLA fuses operators, so a partition touches less than the sum of its operators.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.options import Options, record_of
from jaxdelegate.op_lowering.records.costs import Work
from jaxdelegate.op_lowering.spec import Specs, TensorSpec

_DYNAMIC = "a shape depends on data"


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one run of an operator takes.

    Attributes:
        flops: arithmetic operations, on integers too; None: not known before the run.
        bytes_read: of inputs and constants; None: not known before the run.
        bytes_written: of outputs; None likewise.
        transcendentals: how many of `flops` are exponentials, logarithms, roots and their like.
        note: what the numbers leave out or assume; empty: nothing beyond the conventions.
    """

    flops: int | None
    bytes_read: int | None
    bytes_written: int | None
    transcendentals: int = 0
    note: str = ""

    @property
    def bytes(self) -> int | None:
        """Read and written."""
        if self.bytes_read is None or self.bytes_written is None:
            return None
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float | None:
        """Operations per byte: the horizontal axis of a roofline."""
        return None if self.flops is None or not self.bytes else self.flops / self.bytes


Called = Callable[[int], "Work | None"]  # subgraph -> what one run of it takes, if it is known


def operator_cost(
    name: str,
    options: Options,
    inputs: Specs,
    outputs: Specs,
    called: Called | None = None,
) -> Cost:
    """The cost of one operator.

    Args:
        name: the builtin operator's, or the custom operator's.
        options: its parameters.
        inputs: specs with the current shapes; None stands for an absent optional input.
        outputs: likewise.
        called: what one run of a subgraph takes, for operators that call one.
    """
    read, written = _bytes_read(name, inputs, outputs), specs_bytes(outputs)
    if any(spec is not None and spec.is_dynamic for spec in (*inputs, *outputs)):
        return Cost(None, read, written, note=_DYNAMIC)
    work = _work(name, options, inputs, outputs, called)
    return Cost(work.flops, read, written, work.transcendentals, work.note)


def _work(
    name: str, options: Options, inputs: Specs, outputs: Specs, called: Called | None
) -> Work:
    try:
        return record_of(name).cost(options, inputs, outputs, called or (lambda _: None))
    except (AttributeError, IndexError, TypeError, ZeroDivisionError):
        return Work(None, note="its tensors are not those that the operator wants")


def spec_bytes(spec: TensorSpec) -> int | None:
    """How many bytes a tensor takes, 4 and 2 bit integers packed; None: data decides."""
    if spec.is_dynamic:
        return None
    n = math.prod(spec.shape)
    if spec.dtype.hasobject:
        return None if spec.const is None else sum(len(s) for s in spec.const.ravel())
    return (n * bits(spec.dtype) + 7) // 8


def bits(dtype: np.dtype) -> int:
    """The width of one element as files hold it."""
    if dtype.itemsize == 1 and "int" in dtype.name:
        return int(ml_dtypes.iinfo(dtype).bits)  # type: ignore[no-untyped-call]
    return dtype.itemsize * 8


def specs_bytes(specs: Iterable[TensorSpec | None]) -> int | None:
    """Of several tensors, each counted once; None as soon as one of them is not known."""
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
    picked = _picked_bytes(whole, outputs)
    return None if rest is None or picked is None else rest + picked


def _picked_bytes(table: TensorSpec, outputs: Specs) -> int | None:
    """What an output takes of the table that it is picked from, at the table's width."""
    if table is None or table.dtype.hasobject or any(s is None or s.is_dynamic for s in outputs):
        return specs_bytes([table])
    whole = math.prod(table.shape)
    n = min(whole, sum(math.prod(spec.shape) for spec in outputs))
    return (n * bits(table.dtype) + 7) // 8
