"""Batches that run as larger ones: each size up to the next power of two shares a program.

Only for graphs that provably compute each item of a batch alone: see `passes/by_image`.
"""

from collections.abc import Sequence

from jaxdelegate.errors import DelegationError, InterpreterError
from jaxdelegate.plan.steps import PlannedPartition, PlannedStep

_REMEDY = "without pad_batch each batch size is compiled; rebatch=True computes single runs"


def padded_size(size: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << (size - 1).bit_length()


def refused(size: int, padded: int, why: str) -> InterpreterError:
    """The error of a batch that cannot be computed in a larger one."""
    return InterpreterError(
        f"pad_batch: a batch of {size} may have other results in a batch of {padded}: {why}; "
        f"{_REMEDY}"
    )


def check_is_one_partition(steps: Sequence[PlannedStep]) -> None:
    """Refuse a plan in which no delegate that pads batches has taken the whole graph."""
    if [isinstance(s, PlannedPartition) and s.delegate.pads_batch for s in steps] != [True]:
        raise DelegationError(
            "pad_batch: a delegate has to take the whole graph as one partition, but operators "
            f"stay outside; see its report. {_REMEDY[0].upper()}{_REMEDY[1:]}"
        )
