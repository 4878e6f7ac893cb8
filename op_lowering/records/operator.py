"""The record of an operator, which every part of the program reads. No jax.

A record is in the table `RECORDS` of the module that has the operator's options. The rule and the
numpy kernel are registered under its name.
"""

import dataclasses
import enum
import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from jaxdelegate.op_lowering.records import costs
from jaxdelegate.op_lowering.records.c_struct import Layout, members
from jaxdelegate.op_lowering.records.record import NoOptions, Options
from jaxdelegate.op_lowering.spec import Specs, TensorSpec

# Dtypes of quantized tensors. Kernels read no scale of wide ones, unless it is a bias's or they
# convert them.
WIDE = frozenset(np.dtype(t) for t in (np.int32, np.int64))
WIDE_OR_UINT16 = WIDE | {np.dtype(np.uint16)}
WIDE_OR_INT16 = WIDE | {np.dtype(np.int16)}
INTEGERS = WIDE_OR_INT16 | frozenset(
    np.dtype(t)
    for t in (np.int8, np.uint8, np.uint16, ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2)
)


@enum.unique
class Result(enum.Enum):
    """How a float32 result is stored between operators where precision may be lost."""

    FLOAT32 = enum.auto()  # sums, exponentials, quotients...: beyond float16, or too coarse in it
    REDUCED = enum.auto()  # in reduced precision
    MOVED = enum.auto()  # values of inputs, or bounded by them: as reduced as the inputs


@enum.unique
class Batch(enum.Enum):
    """When images of a batch can be computed one after the other (lowering/microbatching.py)."""

    TOGETHER = enum.auto()  # never
    FIRST_INPUT = enum.auto()  # if only the first input holds images
    LAST_AXIS = enum.auto()  # works along the last axis, which must not be the batch
    ROWS = enum.auto()  # every image is a whole number of rows of the matrix
    AXES = enum.auto()  # the second input is constant and holds axes other than the batch
    PERMUTATION = enum.auto()  # it leaves the batch where it is
    EDGES = enum.auto()  # it pads other axes than the batch
    CONCATENATED = enum.auto()  # along another axis than the batch
    MATRICES = enum.auto()  # each matrix by another one


@enum.unique
class Float16(enum.Enum):
    """How a result leaves the range of float16, 65504."""

    FITS = enum.auto()
    SUM = enum.auto()  # adds up many values
    GROWTH = enum.auto()  # grows faster than its argument


@enum.unique
class Scales(enum.Enum):
    """Which scales a file may choose for an operator's quantized tensors.

    Source: the Prepare functions of TFLite's kernels, and tensorflow.org/lite/performance/
    quantization_spec.
    """

    OF_KERNEL = enum.auto()  # none: the kernel requires them, or its requirements are unknown
    OF_INPUTS = enum.auto()  # the inputs'; the kernel requires the output's
    EQUAL = enum.auto()  # one for all: it copies or compares integers as they are
    FREE = enum.auto()  # all: the kernel multiplies, or computes with the reals


@dataclasses.dataclass(frozen=True)
class Precision:
    """How float32 results bear reduced precision."""

    result: Result = Result.FLOAT32  # how the result is stored
    # Magnifies a rounding error of its input, or branches on the input.
    reads_unrounded: bool = False
    float16: Float16 = Float16.FITS  # how its result leaves float16


MOVED, REDUCED = Precision(Result.MOVED), Precision(Result.REDUCED)
UNROUNDED = Precision(reads_unrounded=True)
SUM, GROWTH = Precision(float16=Float16.SUM), Precision(float16=Float16.GROWTH)
EXPONENTIAL = Precision(reads_unrounded=True, float16=Float16.GROWTH)


@dataclasses.dataclass(frozen=True)
class Scaling:
    """How the kernel reads scales of quantized tensors."""

    chosen: Scales = Scales.OF_KERNEL  # which scales a file may choose
    # The kernel computes on the stored integers of these dtypes, if no quantized tensor has another
    # dtype.
    ignored: frozenset[np.dtype] = WIDE
    # Dtypes whose integers it converts where it moves them, though scales are EQUAL.
    rescaled: frozenset[np.dtype] = frozenset()


FREE, EQUAL, OF_INPUTS = Scaling(Scales.FREE), Scaling(Scales.EQUAL), Scaling(Scales.OF_INPUTS)
INTEGERS_ONLY = Scaling(ignored=INTEGERS)
COMPARED = Scaling(Scales.EQUAL, ignored=INTEGERS)

# (the record's options, input specs, output specs) -> input and output channels.
Channels = Callable[[Any, Specs, Specs], tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Product:
    """An operator that sums products, whose operands may be downcast."""

    # The channels that tensor cores pad; None: it does not run on them.
    channels: Channels | None = None
    # Positions of data, weights and bias, whose scale is the product of theirs.
    bias: tuple[int, int, int] | None = None


@dataclasses.dataclass(frozen=True)
class OperatorRecord:
    """One operator."""

    name: str  # the builtin operator's name in schema.fbs, or the custom operator's
    options: type[Options] = NoOptions  # the class of its parameters
    _: dataclasses.KW_ONLY
    cost: costs.CostRule  # arithmetic operations, by its specs (costs.py)
    # Its parameters in `builtin_data` of stock interpreters; None: the fields of `options` in their
    # order.
    struct: Layout | None = None
    precision: Precision = Precision()  # how it bears reduced precision
    scales: Scaling = Scaling()  # how its kernel reads scales
    product: Product | None = None  # how it sums products; None: it does not
    # Each value of its result depends only on the values at the same position.
    is_elementwise: bool = False
    rereads: bool = False  # XLA:CPU reads an input in several loops, or each value for many results
    # XLA:CPU should write its quantized result to memory. Readers would compute it again, or branch
    # for each value.
    materializes_integers: bool = False
    # When images of a batch can be computed one after the other, if it is not elementwise.
    batch: Batch = Batch.TOGETHER
    # Its dynamic range kernel reads the bytes of uint8 weights as int8.
    reads_uint8_as_int8: bool = False
    # The input of which it reads as much as it writes; None: it reads all inputs.
    picks_from: int | None = None
    reads_values: bool = True  # False: it depends on the shape of its input only
    # The dtype of its result, whatever the file declares; None: what the file declares.
    writes: np.dtype | None = None

    @property
    def members(self) -> Layout:
        """Its parameters in stock interpreters; empty if they do not expose them."""
        return members(self.options) if self.struct is None else self.struct


# Records of the commonest kinds; an argument replaces what the kind sets.
_elementwise = functools.partial(OperatorRecord, is_elementwise=True)
elementwise = functools.partial(_elementwise, cost=costs.elementwise)
transcendental = functools.partial(_elementwise, cost=costs.transcendental)
moves = functools.partial(OperatorRecord, cost=costs.movement, precision=MOVED, scales=EQUAL)
sums_products = functools.partial(OperatorRecord, precision=REDUCED, product=Product())


def table(*records: OperatorRecord) -> dict[str, OperatorRecord]:
    rows = {record.name: record for record in records}
    if len(rows) != len(records):
        raise ValueError(f"duplicate records among {sorted(record.name for record in records)}")
    return rows


def as_read(record: OperatorRecord, inputs: Specs, outputs: Specs) -> tuple[Specs, Specs]:
    """The specs without the scales that the operator's kernel does not read."""
    if not _ignores_scales(record, _quantized(inputs, outputs)):
        return inputs, outputs
    return _without_scales(inputs), _without_scales(outputs)


def why_not_in_reals(record: OperatorRecord, inputs: Specs, outputs: Specs) -> str | None:
    """Why the reals of the tensors do not determine what the kernel does with their integers.

    The float view then has to compute on the integers. None: the reals suffice, or no tensor is
    quantized.
    """
    quantized = _quantized(inputs, outputs)
    if not quantized:
        return None
    first, moves = quantized[0], record.scales.chosen is Scales.EQUAL
    if _ignores_scales(record, quantized) and not (moves and first.dtype not in WIDE):
        return f"the kernel computes on the integers of {first.name!r}, whatever they stand for"
    if not moves or first.dtype in record.scales.rescaled:
        return None
    moved = (spec for spec in (*inputs, *outputs) if spec is not None and spec.dtype == first.dtype)
    reasons = (why_not_alike(first, spec) for spec in moved)
    return next((reason for reason in reasons if reason is not None), None)


def why_not_alike(first: TensorSpec, spec: TensorSpec) -> str | None:
    """A reason if an integer that is copied from one tensor to the other changes its real value.

    `quantized_dimension` does not count: it may move with the data.
    """
    if _scaling(spec) == _scaling(first):
        return None
    return f"{first.name!r} and {spec.name!r} are quantized differently; moving cannot requantize"


def _scaling(spec: TensorSpec) -> tuple[tuple[float, ...], tuple[int, ...]]:
    quantization = spec.quantization
    if quantization is None or not spec.is_quantized:
        return (), ()
    points = tuple(quantization.zero_point.tolist())
    return tuple(quantization.scale.tolist()), points if any(points) else ()


def _quantized(inputs: Specs, outputs: Specs) -> list[TensorSpec]:
    return [spec for spec in (*inputs, *outputs) if spec is not None and spec.is_quantized]


def _ignores_scales(record: OperatorRecord, quantized: list[TensorSpec]) -> bool:
    return bool(quantized) and all(spec.dtype in record.scales.ignored for spec in quantized)


def _without_scales(specs: Specs) -> Specs:
    return tuple(spec and dataclasses.replace(spec, quantization=None) for spec in specs)
