"""Quantized tensors as LiteRT's kernels read them: integers that stand for reals, or integers.

The operator's record has which scales its kernel reads: `scales`.
"""

import dataclasses

from jaxdelegate.op_lowering.records.operator import WIDE, OperatorRecord, Scales
from jaxdelegate.op_lowering.spec import Specs, TensorSpec


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
