"""Bodies of StableHLO operators: subgraphs that take scalars, applied to whole arrays."""

from collections.abc import Callable, Sequence

import numpy as np

from jaxdelegate.reference.kernel import Array

Call = Callable[..., tuple[Array, ...]]  # (subgraph, *arrays) -> its outputs
Apply = Callable[..., tuple[Array, ...]]  # (*arrays of one shape) -> arrays of that shape

_REFUSALS = (ValueError, TypeError, LookupError, ArithmeticError, RuntimeError)


def elementwise(
    call: Call, index: int, arguments: Sequence[np.dtype], results: Sequence[np.dtype]
) -> Apply:
    """The body as a function of arrays, element by element.

    A body that accepts vectors is called once for all elements, any other once for each.
    """
    whole = _runs_on_vectors(call, index, arguments, len(results))

    def apply(*arrays: Array) -> tuple[Array, ...]:
        shape, n = arrays[0].shape, arrays[0].size
        flat = [np.ascontiguousarray(a).reshape(-1) for a in arrays]
        if n == 0:
            columns = [np.zeros(0, dtype) for dtype in results]
        elif whole:
            columns = list(call(index, *flat))
        else:
            rows = [call(index, *(a[i : i + 1].reshape(()) for a in flat)) for i in range(n)]
            columns = [
                np.stack([np.asarray(v).reshape(()) for v in c]) for c in zip(*rows, strict=True)
            ]
        pairs = zip(columns, results, strict=True)
        return tuple(np.asarray(c).astype(dtype).reshape(shape) for c, dtype in pairs)

    return apply


def _runs_on_vectors(call: Call, index: int, arguments: Sequence[np.dtype], n_results: int) -> bool:
    """Whether the body maps vectors to vectors, independently of the values.

    Tried on empty vectors, which have no value for a branch to depend on. A body defined on
    scalars has no axis to reduce or reorder.
    """
    try:
        results = call(index, *(np.zeros(0, dtype) for dtype in arguments))
    except _REFUSALS:
        return False
    return len(results) == n_results and all(np.shape(y) == (0,) for y in results)
