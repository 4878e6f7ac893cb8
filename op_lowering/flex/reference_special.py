"""Special functions (core/kernels/{igamma,betainc,zeta,special_math,...}_op*.cc), by scipy."""

import importlib
from typing import Any

import numpy as np

from jaxdelegate.op_lowering.flex.options import FlexScanOptions
from jaxdelegate.op_lowering.flex.reference_named import named
from jaxdelegate.op_lowering.records.flex import FLEX
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.reference.kernel import Array, Kernel, broadcast_shape, same_shape
from jaxdelegate.reference.movement import ints, resolved_axis
from jaxdelegate.reference.pointwise import elementwise, widen

# By the operator's name: scipy's.
_SCIPY = {
    "BesselI0": "i0",
    "BesselI0e": "i0e",
    "BesselI1": "i1",
    "BesselI1e": "i1e",
    "BesselJ0": "j0",
    "BesselJ1": "j1",
    "BesselK0": "k0",
    "BesselK0e": "k0e",
    "BesselK1": "k1",
    "BesselK1e": "k1e",
    "BesselY0": "y0",
    "BesselY1": "y1",
    "Betainc": "betainc",
    "Dawsn": "dawsn",
    "Expint": "expi",
    "Igamma": "gammainc",
    "Igammac": "gammaincc",
    "Ndtri": "ndtri",
    "Spence": "spence",
    "Zeta": "zeta",
}


def _function(name: str) -> Kernel:
    def run(*arrays: Array) -> Any:
        # An import of scipy takes as long as that of numpy.
        return getattr(importlib.import_module("scipy.special"), name)(*arrays)

    return Kernel(elementwise(run), broadcast_shape)


def polygamma(n: Array, x: Array) -> Any:
    """NaN for an order that is negative or no integer."""
    special = importlib.import_module("scipy.special")
    known = (n >= 0) & (n == np.floor(n))
    return np.where(known, special.polygamma(np.where(known, n, 0).astype(int), x), np.nan)


# ---- CumulativeLogsumexp: values, axis


def cumulative_logsumexp(
    o: FlexScanOptions, _inputs: Specs, outputs: Specs, x: Array, axis: Array
) -> tuple[Array]:
    """Before the first value the result is minus infinity."""
    at = resolved_axis(ints(axis)[0], x.ndim, "CumulativeLogsumexp")
    lines = np.moveaxis(widen(x), at, 0)
    lines = lines[::-1] if o.reverse else lines
    with np.errstate(all="ignore"):
        y = np.logaddexp.accumulate(lines, axis=0)
    if o.exclusive and len(y):
        y = np.concatenate([np.full_like(y[:1], -np.inf), y[:-1]])
    y = y[::-1] if o.reverse else y
    return (np.moveaxis(y, 0, at).astype(outputs[0].dtype),)


KERNELS = named(
    {
        **{f"{FLEX}{name}": _function(scipy) for name, scipy in _SCIPY.items()},
        f"{FLEX}CumulativeLogsumexp": Kernel(cumulative_logsumexp, same_shape),
        f"{FLEX}Polygamma": Kernel(elementwise(polygamma), broadcast_shape),
    }
)
