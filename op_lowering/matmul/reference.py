"""Matrix products: kernels/internal/reference/fully_connected.h and batch_matmul.h."""

import numpy as np

from jaxdelegate.op_lowering.matmul import reference_dynamic_range as dynamic_range_matmul
from jaxdelegate.op_lowering.matmul import reference_quantized as quantized_matmul
from jaxdelegate.op_lowering.matmul.options import BatchMatMulOptions, FullyConnectedOptions
from jaxdelegate.op_lowering.records.enums import (
    ActivationFunctionType,
    FullyConnectedOptionsWeightsFormat,
)
from jaxdelegate.op_lowering.spec import Shape, Specs
from jaxdelegate.reference.kernel import Array, Kernel
from jaxdelegate.reference.window import clamp, require_floats, sums_of

_UNFUSED = (ActivationFunctionType.TANH, ActivationFunctionType.SIGN_BIT)


def fully_connected_shape(o: FullyConnectedOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """Weights [N, K] turn rows of K values into [rows, N], or [..., K] into [..., N]."""
    x, w = inputs[0].shape, inputs[1].shape
    if o.weights_format is not FullyConnectedOptionsWeightsFormat.DEFAULT:
        raise ValueError(f"FULLY_CONNECTED: weights stored as {o.weights_format.name}")
    if o.fused_activation_function in _UNFUSED and not _is_dynamic_range(inputs):
        raise ValueError(f"FULLY_CONNECTED: a fused {o.fused_activation_function.name}")
    if len(w) != 2:
        raise ValueError(f"FULLY_CONNECTED: weights {list(w)} must have 2 dimensions")
    if o.keep_num_dims and x[-1:] != w[1:]:
        raise ValueError(f"FULLY_CONNECTED: input {list(x)} does not end in rows of {w[1]}")
    bias = inputs[2] if len(inputs) > 2 else None
    if bias is not None and np.prod(bias.shape) != w[0]:
        raise ValueError(f"FULLY_CONNECTED: a bias {list(bias.shape)} for {w[0]} output channels")
    if o.keep_num_dims:
        return ((*x[:-1], w[0]),)
    rows = int(np.prod(x)) // w[1] if w[1] else int(np.prod(x[:-1]))
    return ((rows, w[0]),)


def fully_connected(
    o: FullyConnectedOptions,
    inputs: Specs,
    outputs: Specs,
    x: Array,
    w: Array,
    b: Array | None = None,
) -> tuple[Array]:
    """Rows of K values times weights [N, K]; an incomplete last row is ignored."""
    depth = w.shape[1]
    if depth == 0:  # fully_connected.cc clears the output then, without the bias
        return (np.zeros(outputs[0].shape, outputs[0].dtype),)
    rows = x.size // depth
    x = x.ravel()[: rows * depth].reshape(rows, depth)
    if inputs[0].is_quantized:
        return quantized_matmul.fully_connected(o, inputs, outputs, x, w, b)
    if _is_dynamic_range(inputs):
        return dynamic_range_matmul.fully_connected(o, inputs, outputs, x, w, b)
    require_floats("FULLY_CONNECTED", *inputs, *outputs)
    y = sums_of(x) @ sums_of(w).T
    if b is not None:
        y = y + sums_of(b).ravel()
    y = clamp(o.fused_activation_function, y)
    return (y.reshape(outputs[0].shape).astype(outputs[0].dtype),)


def _is_dynamic_range(inputs: Specs) -> bool:
    return inputs[1].is_quantized and not inputs[0].is_quantized


def batch_matmul_shape(o: BatchMatMulOptions, inputs: Specs) -> tuple[Shape | None, ...]:
    """[..., M, K] times [..., K, N] -> [..., M, N]; the leading dimensions broadcast."""
    x, w = inputs[0].shape, inputs[1].shape
    if min(len(x), len(w)) < 2:
        raise ValueError(f"BATCH_MATMUL: {list(x)} and {list(w)} must have 2 dimensions or more")
    rows, depth = x[-2:][::-1] if o.adj_x else x[-2:]
    other_depth, columns = w[-2:][::-1] if o.adj_y else w[-2:]
    if depth != other_depth:
        raise ValueError(f"BATCH_MATMUL: rows of {depth} values times columns of {other_depth}")
    return ((*np.broadcast_shapes(x[:-2], w[:-2]), rows, columns),)


def batch_matmul(
    o: BatchMatMulOptions, inputs: Specs, outputs: Specs, x: Array, w: Array
) -> tuple[Array]:
    """int8 times int8 may give int32, whatever the scales."""
    if x.dtype == w.dtype == np.int8 and outputs[0].dtype == np.int32:
        x, w = x.astype(np.int32), w.astype(np.int32)
    elif inputs[0].is_quantized:
        return quantized_matmul.batch_matmul(o, inputs, outputs, x, w)
    elif _is_dynamic_range(inputs):
        return dynamic_range_matmul.batch_matmul(o, inputs, outputs, x, w)
    else:
        require_floats("BATCH_MATMUL", *inputs, *outputs)
        x, w = sums_of(x), sums_of(w)
    x = x.swapaxes(-1, -2) if o.adj_x else x
    w = w.swapaxes(-1, -2) if o.adj_y else w
    return (np.matmul(x, w).astype(outputs[0].dtype),)


KERNELS = {
    "FULLY_CONNECTED": Kernel(fully_connected, fully_connected_shape),
    "BATCH_MATMUL": Kernel(batch_matmul, batch_matmul_shape),
}
