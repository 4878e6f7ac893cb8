"""Finds the operations of a traced program that only XLA's runtime can run."""

import math
from collections.abc import Iterator
from typing import Any

from jaxdelegate.op_lowering.common.basics import SMALL

_PRODUCTS = ("dot_general", "conv_general_dilated")  # XLA's code computes those of small arrays
_OF_RUNTIME = ("cholesky", "eigh", "fft", "lu", "qr", "sort", "svd", "top_k")


def needs_runtime(jaxpr: Any) -> bool:
    """Whether a program for a CPU will have other steps than direct calls know."""
    return any(map(_is_step_of_runtime, _equations(jaxpr)))


def _is_step_of_runtime(eqn: Any) -> bool:
    if eqn.primitive.name in _OF_RUNTIME:
        return True
    shapes = [value.aval.shape for value in (*eqn.invars, *eqn.outvars)]
    is_product = eqn.primitive.name in _PRODUCTS
    return is_product and max(map(math.prod, shapes)) > SMALL


def _equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for parameter in eqn.params.values():
            for inner in _jaxprs(parameter):
                yield from _equations(inner)


def _jaxprs(parameter: Any) -> list[Any]:
    values = parameter if isinstance(parameter, (list, tuple)) else [parameter]
    return [value for value in values if hasattr(value, "eqns")]
