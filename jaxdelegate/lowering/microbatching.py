"""Splits a large batch into microbatches, which a program on a CPU computes in a loop.

The C library maps temporaries of more than 32 MiB again at every call: MobileNet v2 spends a third
of its time in page faults with a batch of eight images. Tensors of a large batch also do not fit
into the processor's cache.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.spec import TensorSpec
from jaxdelegate.passes.by_image import split_by_image
from jaxdelegate.passes.propagation import gather, is_constant

# Approximate limit for the temporaries of one microbatch: below the C library's 32 MiB.
_MICROBATCH_BYTES = 24 << 20
# Temporaries are about twice as large as the largest result: it and its inputs are live.
_LIVE = 2

Shapes = dict[int, TensorSpec]


@dataclasses.dataclass(frozen=True)
class Microbatches:
    count: int
    specs: Mapping[int, TensorSpec]  # all tensors in one microbatch


def microbatches(
    operators: Sequence[Operator],
    specs: Mapping[int, TensorSpec],
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> Microbatches | None:
    """The microbatches on which to run a partition; None if it runs on the whole batch.

    All operators must compute each image independently, so results do not change. `specs` are for
    the whole batch.
    """
    images = {specs[i].shape[0] if specs[i].shape else 1 for i in inputs}
    if len(images) != 1 or any(specs[i].is_variable for i in inputs):
        return None
    (batch,) = images
    if batch < 2:
        return None
    pending = [op for op in operators if not is_constant(gather(specs, op.outputs))]
    results = [specs[i] for op in pending for i in op.outputs if i in specs]
    largest = max((_bytes(spec) for spec in results), default=0)
    size = _images_in_a_microbatch(batch, _LIVE * largest // batch)
    if size == batch:
        return None
    split, mixing = split_by_image(pending, specs, inputs, batch)
    if mixing is not None or not split.issuperset(outputs):
        return None
    return Microbatches(
        batch // size, {**specs, **{i: _part(specs[i], batch, size) for i in split}}
    )


def _bytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * max(spec.dtype.itemsize, 4)  # a float view is float32


def _images_in_a_microbatch(batch: int, image_bytes: int) -> int:
    """The largest divisor of the batch whose temporaries are within the limit."""
    fitting = (
        n for n in range(batch, 1, -1) if batch % n == 0 and n * image_bytes <= _MICROBATCH_BYTES
    )
    return next(fitting, 1)


def _part(spec: TensorSpec, batch: int, size: int) -> TensorSpec:
    return dataclasses.replace(spec, shape=(spec.shape[0] // batch * size, *spec.shape[1:]))
