"""Custom operators that LiteRT registers: kernels/{numeric_verify,hadamard_rotation}.cc."""

import numpy as np

from jaxdelegate.op_lowering.custom.options import HadamardRotationOptions, NumericVerifyOptions
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.quant import affine
from jaxdelegate.reference.kernel import Array, Kernel, same_shape, without_specs

_LEAST_TOLERANCE = 0.1  # below, the kernel reports statistics only


def numeric_verify(
    o: NumericVerifyOptions, inputs: Specs, _outputs: Specs, x: Array, expected: Array
) -> tuple[Array]:
    """The difference of the quantized values of x from the float32 reals that they represent."""
    quantization = inputs[0].quantization
    if x.shape != expected.shape:
        raise ValueError(f"NumericVerify: {list(x.shape)} and {list(expected.shape)} differ")
    if x.dtype == np.float16:
        reals = x.astype(np.float32)
    elif quantization is None or not inputs[0].is_quantized:
        raise TypeError(f"NumericVerify: {inputs[0].name!r} is {x.dtype} without a scale")
    else:
        reals = affine.dequantize(x, quantization)
    difference = reals - expected
    if o.log_if_failed and o.tolerance >= _LEAST_TOLERANCE:
        scale = quantization.scale if quantization is not None else np.zeros(1, np.float32)
        step = scale[0] if scale.size == 1 else np.float32(0)  # as TfLiteQuantizationParams
        if (np.abs(difference) > np.float32(o.tolerance) * step).any():
            raise ValueError(
                f"NumericVerify: {np.abs(difference).max()} is more than {o.tolerance} steps"
            )
    return (difference,)


def hadamard_rotation(o: HadamardRotationOptions, x: Array) -> Array:
    """The Walsh-Hadamard transform of each run of `size` values, divided by the root of the size.

    Runs are contiguous, as many as fit into the last dimension of each row. A size that is not a
    power of two changes nothing, as in the kernel.
    """
    size = o.hadamard_size
    if x.dtype != np.float32:
        raise TypeError(f"aeq.hadamard_rotation: x is {x.dtype}, not float32")
    if x.ndim not in (2, 3) or size < 1:
        raise ValueError(f"aeq.hadamard_rotation: x is {list(x.shape)}, the size {size}")
    y = x.reshape(-1).copy()
    n_runs = x.size // max(x.shape[-1], 1) * (x.shape[-1] // size)
    if size & (size - 1) == 0:
        runs = y[: n_runs * size].reshape(n_runs, size)
        runs[:] = _transform(runs) * np.float32(1 / np.sqrt(size))
    return y.reshape(x.shape)


def _transform(runs: Array) -> Array:
    if runs.shape[1] == 1:
        return runs
    low, high = (_transform(half) for half in np.split(runs, 2, axis=1))
    return np.concatenate([low + high, low - high], axis=1)


KERNELS = {
    "NumericVerify": Kernel(numeric_verify, same_shape),
    "aeq.hadamard_rotation": Kernel(without_specs(hadamard_rotation), same_shape),
}
