"""Expands a tensor into a sum of products of others: one normal form for equivalent arithmetic."""

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping

from jaxdelegate.lowering.rewrites.pattern_rewriter import PatternRewriter
from jaxdelegate.model.records import Operator
from jaxdelegate.op_lowering.dtypes import FLOATS
from jaxdelegate.op_lowering.options import ActivationFunctionType

# A product of tensors, by index, in ascending order; ~index is the tensor's reciprocal.
Monomial = tuple[int, ...]

RESHAPES = ("RESHAPE", "EXPAND_DIMS", "SQUEEZE")
_DEPTH = 8  # operators between a tensor and its terms
_MAX_TERMS = 16
_CLOSE = 1e-6  # relative; for constants and their products in float32


@dataclasses.dataclass(frozen=True)
class Expansion:
    """A tensor as the sum of `terms`, products with coefficients, that `parts` compute."""

    terms: Mapping[Monomial, float]
    parts: frozenset[int] = frozenset()  # operators, by index

    def is_close(self, wanted: Mapping[Monomial, float]) -> bool:
        """Coefficients may differ by float32 rounding."""
        return self.terms.keys() == wanted.keys() and all(
            is_close(self.terms[monomial], value) for monomial, value in wanted.items()
        )


def is_close(a: float, b: float) -> bool:
    """Whether two numbers are equal up to the rounding of a float32 product."""
    return math.isclose(a, b, rel_tol=_CLOSE)


def expanded(
    rewriter: PatternRewriter, tensor: int, atoms: Collection[int], depth: int = _DEPTH
) -> Expansion:
    """A sum of products of `atoms` and of tensors that do not depend on them."""
    itself = Expansion({(tensor,): 1.0})
    operator = rewriter.producer(tensor)
    if tensor in atoms or operator is None or depth == 0 or not is_plain(rewriter, operator):
        return itself
    result = expanded_result(rewriter, operator, atoms, depth)
    if result is None or not _depends(result.terms, atoms):
        return itself
    return result


def expanded_result(
    rewriter: PatternRewriter, operator: Operator, atoms: Collection[int], depth: int = _DEPTH
) -> Expansion | None:
    """The expansion of an operator's result before its activation; None if it is not arithmetic."""
    expand = _ARITHMETIC.get(operator.name)
    if expand is None:
        return None
    operands = [_operand(rewriter, i, atoms, depth - 1) for i in operator.inputs]
    terms = expand(*(o.terms for o in operands))
    if terms is None or len(terms) > _MAX_TERMS:
        return None
    return Expansion(terms, frozenset({operator.index}).union(*(o.parts for o in operands)))


def following(rewriter: PatternRewriter, tensor: int) -> list[Operator]:
    """Arithmetic operators that depend on a tensor only through arithmetic, the last one first."""
    arithmetic: dict[int, Operator] = {}
    tensors = [tensor]
    for _ in range(_DEPTH):
        new = [op for i in tensors for op in rewriter.readers(i) if op.name in _ARITHMETIC]
        arithmetic.update((op.index, op) for op in new)
        tensors = [i for op in new if is_plain(rewriter, op) for i in op.outputs]
    return sorted(arithmetic.values(), key=lambda op: -op.index)


def operands(rewriter: PatternRewriter, tensor: int, depth: int = _DEPTH) -> Iterable[int]:
    """The variable tensors from which arithmetic operators compute a tensor."""
    operator = rewriter.producer(tensor)
    if operator is None or depth == 0 or operator.name not in _ARITHMETIC:
        return
    for i in operator.inputs:
        if rewriter.const(i) is None:
            yield i
            yield from operands(rewriter, i, depth - 1)


def before_reshapes(rewriter: PatternRewriter, tensor: int) -> tuple[int, frozenset[int]]:
    """The tensor that reshapes compute a tensor from, and these operators."""
    parts: set[int] = set()
    while (operator := rewriter.producer(tensor)) is not None and operator.name in RESHAPES:
        parts.add(operator.index)
        tensor = operator.inputs[0]
    return tensor, frozenset(parts)


def is_plain(rewriter: PatternRewriter, operator: Operator) -> bool:
    """Whether an operator yields floats that are not quantized, and has no fused activation."""
    none = ActivationFunctionType.NONE
    activation = getattr(operator.options, "fused_activation_function", none)
    specs = [rewriter.spec(i) for i in operator.outputs]
    return activation is none and all(s.dtype in FLOATS and not s.is_quantized for s in specs)


def scalar(rewriter: PatternRewriter, tensor: int) -> float | None:
    """The value of a constant with one element."""
    value = rewriter.const(tensor)
    return float(value.reshape(())) if value is not None and value.size == 1 else None


def _operand(
    rewriter: PatternRewriter, tensor: int, atoms: Collection[int], depth: int
) -> Expansion:
    value = scalar(rewriter, tensor)
    return expanded(rewriter, tensor, atoms, depth) if value is None else Expansion({(): value})


def _depends(terms: Iterable[Monomial], atoms: Collection[int]) -> bool:
    return any(i in atoms or ~i in atoms for monomial in terms for i in monomial)


_Terms = Mapping[Monomial, float]


def _sum(a: _Terms, b: _Terms) -> _Terms:
    total = {monomial: a.get(monomial, 0.0) + b.get(monomial, 0.0) for monomial in {**a, **b}}
    return {monomial: value for monomial, value in total.items() if value != 0}


def _negative(a: _Terms) -> _Terms:
    return {monomial: -value for monomial, value in a.items()}


def _product(a: _Terms, b: _Terms) -> _Terms:
    total: _Terms = {}
    for left, x in a.items():
        for right, y in b.items():
            total = _sum(total, {tuple(sorted(left + right)): x * y})
    return total


def _quotient(a: _Terms, b: _Terms) -> _Terms | None:
    """The quotient if `b` is one product; a sum has no inverse in this form."""
    if len(b) != 1:
        return None
    ((monomial, value),) = b.items()
    if value == 0:
        return None
    return _product(a, {tuple(sorted(~i for i in monomial)): 1 / value})


def _power(a: _Terms, b: _Terms) -> _Terms | None:
    """The power if `b` is a small positive integer."""
    exponent = b.get((), 0.0)
    if set(b) != {()} or exponent not in (1, 2, 3, 4):
        return None
    result = a
    for _ in range(int(exponent) - 1):
        result = _product(result, a)
    return result


_ARITHMETIC: dict[str, Callable[..., _Terms | None]] = {
    "ADD": _sum,
    "SUB": lambda a, b: _sum(a, _negative(b)),
    "MUL": _product,
    "DIV": _quotient,
    "NEG": _negative,
    "SQUARE": lambda a: _product(a, a),
    "POW": _power,
}
