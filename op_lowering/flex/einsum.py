"""Einsum (core/kernels/linalg/einsum_op_impl.h)."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxdelegate.op_lowering.common.products import PRODUCT_FLOATS, Arithmetic
from jaxdelegate.op_lowering.flex.options import FlexEinsumOptions
from jaxdelegate.op_lowering.records.flex import FLEX
from jaxdelegate.op_lowering.rule import (
    Function,
    Op,
    OpRule,
    first_reason,
    table,
    why_not_dtype,
    why_not_result,
)

_NUMBERS = PRODUCT_FLOATS | frozenset(
    np.dtype(t) for t in (np.float64, np.int32, np.int64, np.complex64, np.complex128)
)
_MANY = 1 << 30  # rows and columns: the product is not a short one


def _why_not_einsum(op: Op[FlexEinsumOptions]) -> str | None:
    x, *others = op.inputs
    if any(spec is None for spec in op.inputs):
        return "an input is left out"
    return first_reason(
        why_not_dtype(x, _NUMBERS),
        *(None if s.dtype == x.dtype else f"{s.name!r} is not {x.dtype}" for s in others),
        why_not_result(op.outputs[0], x.dtype),
        _why_not_equation(op),
    )


def _why_not_equation(op: Op[FlexEinsumOptions]) -> str | None:
    try:
        op.options.labels([len(spec.shape) for spec in op.inputs])
    except ValueError as error:
        return str(error)
    return None


def _lower_einsum(op: Op[FlexEinsumOptions]) -> Function:
    terms, result = op.options.labels([len(spec.shape) for spec in op.inputs])
    terms, ones = _squeezed(op, terms)
    equation, dtype = f"{','.join(terms)}->{result}", op.outputs[0].dtype
    if dtype not in PRODUCT_FLOATS:
        return lambda *arrays: (
            jnp.einsum(equation, *map(jnp.squeeze, arrays, ones), precision="highest"),
        )
    a = Arithmetic.of_dot(op.context, _MANY, _MANY, *op.inputs)

    def einsum(*arrays: jax.Array) -> tuple[jax.Array]:
        given = [a.reduced(jnp.squeeze(x, axes)) for x, axes in zip(arrays, ones, strict=True)]
        y = jnp.einsum(equation, *given, precision=a.precision, preferred_element_type=a.total)
        return (y.astype(dtype),)

    return einsum


def _squeezed(
    op: Op[FlexEinsumOptions], terms: list[str]
) -> tuple[list[str], list[tuple[int, ...]]]:
    """Without dimensions of one that broadcast to those of another input: jnp.einsum repeats them.

    The second list has the axes of each input that go.
    """
    sizes: dict[str, int] = {}
    for term, spec in zip(terms, op.inputs, strict=True):
        for label, n in zip(term, spec.shape, strict=True):
            sizes[label] = n if sizes.get(label, 1) == 1 else sizes[label]
    axes = [
        tuple(i for i, n in enumerate(spec.shape) if n == 1 != sizes[term[i]])
        for term, spec in zip(terms, op.inputs, strict=True)
    ]
    kept = [
        "".join(label for i, label in enumerate(term) if i not in gone)
        for term, gone in zip(terms, axes, strict=True)
    ]
    return kept, axes


RULES = table(OpRule(f"{FLEX}Einsum", FlexEinsumOptions, 1, _why_not_einsum, _lower_einsum))
