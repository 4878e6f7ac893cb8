"""A declared shape is not believed: tensors that would take too much memory are refused."""

import math
from collections.abc import Iterable

from jaxdelegate.errors import InterpreterError
from jaxdelegate.op_lowering.spec import TensorSpec

MAX_TENSOR_BYTES = 2 << 30


def check_sizes(specs: Iterable[tuple[int, TensorSpec]], max_tensor_bytes: int) -> None:
    """Refuse tensors before anything is allocated for them.

    Args:
        specs: each with its tensor's index, and the shape that is known.
        max_tensor_bytes: how much one of them may take.

    Raises:
        InterpreterError: one takes more; names it, its shape and its bytes.
    """
    for index, spec in specs:
        if spec.is_dynamic or spec.dtype.hasobject:
            continue
        # An empty dimension hides others that are far too large: kernels count along each.
        nbytes = math.prod(filter(None, spec.shape)) * spec.dtype.itemsize
        if nbytes > max_tensor_bytes:
            empty = ", the empty dimensions apart" * (0 in spec.shape)
            raise InterpreterError(
                f"tensor {index} {spec.name!r} is {spec.dtype} {list(spec.shape)}, which takes "
                f"{nbytes} bytes{empty}; max_tensor_bytes is {max_tensor_bytes}: is the file "
                "damaged, or the input's shape right? A larger max_tensor_bytes allows it"
            )
