"""SVDF in integers."""

import numpy as np

from jaxdelegate.op_lowering.records.enums import ActivationFunctionType
from jaxdelegate.op_lowering.recurrent.options import SVDFOptions
from jaxdelegate.op_lowering.spec import Specs
from jaxdelegate.quant.fixed_point import multiply_by_quantized_multiplier, saturate
from jaxdelegate.quant.multiplier import quantize_multiplier
from jaxdelegate.reference.kernel import Array
from jaxdelegate.reference.quantization import scale_of, steps_of, zero_point_of

_DTYPES = (np.int8, np.int8, np.int16, np.int32, np.int16)  # input, feature, time, bias, state


def check_dtypes(inputs: Specs, dtypes: tuple[type, ...]) -> None:
    for spec, dtype in zip(inputs, dtypes, strict=False):
        if spec is not None and spec.dtype != dtype:
            wanted = np.dtype(dtype).name
            raise TypeError(f"{spec.name!r} is {spec.dtype}: the integer kernel takes {wanted}")


def svdf(
    o: SVDFOptions,
    inputs: Specs,
    outputs: Specs,
    x: Array,
    w_feature: Array,
    w_time: Array,
    b: Array | None,
    state: Array,
) -> tuple[Array, Array]:
    """EvalIntegerSVDF of kernels/internal/reference/svdf.h.

    The kernel requires RELU but does not apply it: the output's range clamps.
    """
    if o.fused_activation_function is not ActivationFunctionType.RELU:
        raise TypeError("the integer kernel takes RELU only")
    check_dtypes(inputs, _DTYPES)
    x_scale, feature_scale, time_scale = map(scale_of, inputs[:3])
    state_scale, y_scale = scale_of(inputs[4]), scale_of(outputs[0])
    n_batch, (n_filters, n_memory) = len(x), w_time.shape
    memory = state.reshape(n_batch, n_filters, n_memory).copy()
    memory[:, :, :-1] = memory[:, :, 1:].copy()
    now = steps_of(x, inputs[0]) @ w_feature.astype(np.int32).T
    scaling = quantize_multiplier(float(x_scale * feature_scale / state_scale))
    memory[:, :, -1] = saturate(multiply_by_quantized_multiplier(now, *scaling), memory.dtype)
    filtered = np.einsum("bfm,fm->bf", memory.astype(np.int32), w_time.astype(np.int32))
    y = filtered.reshape(n_batch, n_filters // o.rank, o.rank).sum(axis=2, dtype=np.int32)
    y = y if b is None else y + b
    scaling = quantize_multiplier(float(state_scale * time_scale / y_scale))
    y = multiply_by_quantized_multiplier(y, *scaling).astype(np.int64) + zero_point_of(outputs[0])
    return saturate(y, outputs[0].dtype), memory
