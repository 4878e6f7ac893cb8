"""Einsum (core/kernels/linalg/einsum_op_impl.h)."""

import numpy as np

from jaxdelegate.op_lowering.flex.options import FlexEinsumOptions
from jaxdelegate.op_lowering.flex.reference_named import named
from jaxdelegate.op_lowering.records.flex import FLEX
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel


def einsum_shape(o: FlexEinsumOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    terms, result = o.labels([len(spec.shape) for spec in inputs])
    sizes: dict[str, int] = {}
    for term, spec in zip(terms, inputs, strict=True):
        for label, n in zip(term, spec.shape, strict=True):
            known = sizes.setdefault(label, n)
            spreads = label not in o.equation and 1 in (known, n)  # it stands for `...`
            if known != n and not spreads:
                shapes = [list(s.shape) for s in inputs]
                raise ValueError(f"the equation {o.equation!r} does not fit the shapes {shapes}")
            sizes[label] = n if known == 1 else known
    return (tuple(sizes[label] for label in result),)


def einsum(o: FlexEinsumOptions, _inputs: Specs, outputs: Specs, *arrays: Array) -> tuple[Array]:
    terms, result = o.labels([a.ndim for a in arrays])
    wide = {"f": np.float64, "V": np.float64, "c": np.complex128}
    dtype: np.dtype = np.dtype(wide.get(arrays[0].dtype.kind, np.int64))
    given = [a.astype(dtype) for a in arrays]
    y = np.einsum(f"{','.join(terms)}->{result}", *given)
    return (np.asarray(y).astype(outputs[0].dtype),)


KERNELS = named({f"{FLEX}Einsum": Kernel(einsum, einsum_shape)})
