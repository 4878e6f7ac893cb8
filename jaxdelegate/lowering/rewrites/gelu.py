"""Fuses the tanh approximation of the Gaussian error linear unit into GELU.

x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), in any equivalent form. The exact unit cannot
occur in this way, because the schema has no operator for the error function.
"""

import math

from jaxdelegate.lowering.rewrites import algebra
from jaxdelegate.lowering.rewrites.pattern_rewriter import PatternRewriter
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.options import GeluOptions

_SLOPE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _SLOPE


def fuse_gelu(rewriter: PatternRewriter, operator: Operator) -> bool:
    """Fuse a TANH with the arithmetic before and after it."""
    if operator.name != "TANH":
        return False
    inside, t = operator.inputs[0], operator.outputs[0]
    for x in dict.fromkeys(algebra.operands(rewriter, inside)):
        cubic = algebra.expanded(rewriter, inside, (x,))
        if cubic.is_close({(x,): _SLOPE, (x, x, x): _CUBIC}):
            parts = cubic.parts | {operator.index}
            return any(
                _fuse(rewriter, root, x, t, parts) for root in algebra.following(rewriter, t)
            )
    return False


def _fuse(rewriter: PatternRewriter, root: Operator, x: int, t: int, parts: frozenset[int]) -> bool:
    result = algebra.expanded_result(rewriter, root, (x, t))
    wanted = {(x,): 0.5, tuple(sorted((x, t))): 0.5}
    if result is None or not result.is_close(wanted) or not algebra.is_plain(rewriter, root):
        return False
    if rewriter.shape(x) != rewriter.shape(root.outputs[0]):
        return False
    return rewriter.fuse("GELU", GeluOptions(approximate=True), (x,), root, parts | result.parts)


REWRITES = {"fuse_gelu": fuse_gelu}
