"""Operators that run in floats although the delegate computes in integers.

With `quant_mode="auto"` a CPU computes quantized operators in integers, as LiteRT's kernels do. An
operator runs in floats, on dequantized operands, if it has no integer lowering, or if floats are
the faster ones.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxdelegate.lowering import fake_quantization
from jaxdelegate.model.operator_tables import called_subgraphs
from jaxdelegate.op_lowering.options import Options
from jaxdelegate.op_lowering.rule import Function, Prepare
from jaxdelegate.op_lowering.spec import Shape, Specs, TensorSpec
from jaxdelegate.quant import affine, jax_affine

# Measured on Zen 4, in parts of the time in integers: DEPTHWISE_CONV_2D 0.5 to 0.9,
# TRANSPOSE_CONV 0.1 to 0.3, LSTMs and RNNs 0.4. Quantizing a row at run time costs them more than
# they gain. FULLY_CONNECTED and most CONV_2D have integer kernels that are faster than floats.
_DYNAMIC_RANGE_IN_FLOATS = frozenset(
    (
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        "BIDIRECTIONAL_SEQUENCE_RNN",
        "DEPTHWISE_CONV_2D",
        "LSTM",
        "RNN",
        "TRANSPOSE_CONV",
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        "UNIDIRECTIONAL_SEQUENCE_RNN",
    )
)

# Of CONV_2D with more elements for each product, floats are faster: measured on Emerald Rapids, at
# 0.03 to 0.1 by 1.0 to 1.5 times; on Zen 3 the same.
_MOST_PASSES = 0.03


def is_possible(name: str, options: Options, inputs: Specs, outputs: Specs) -> bool:
    """Whether an operator with a float view can run in it alone: its state is not quantized."""
    present = [spec for spec in (*inputs, *outputs) if spec is not None]
    quantized = [spec for spec in present if spec.is_quantized]
    return (
        bool(quantized)
        and not any(spec.is_variable for spec in quantized)
        and not called_subgraphs(options)
        and not fake_quantization.is_on_integers(name, inputs, outputs)
    )


def is_faster(name: str, inputs: Specs, outputs: Specs, *, adds_products: bool) -> bool:
    """Whether an operator is faster in floats than in integers: some of dynamic range.

    `adds_products`: the context's `kernels.cpu_int8_sums`.
    """
    present = (spec for spec in (*inputs, *outputs) if spec is not None and spec.const is None)
    if any(spec.dtype.kind != "f" for spec in present):
        return False
    if name == "CONV_2D" and inputs[1] is not None:
        # On Zen 3, which lacks the instruction, windows of 3x3 and more take 1.05 to 1.9 times as
        # long in integers, and products of 1x1 0.8 to 1.0.
        is_window = math.prod(inputs[1].shape[1:3]) > 1
        return (is_window and not adds_products) or _passes(inputs[1].shape) > _MOST_PASSES
    return name in _DYNAMIC_RANGE_IN_FLOATS


def _passes(filters: Shape) -> float:
    # An input element is quantized once for O * H * W products, a result rescaled after H * W * C.
    o, height, width, c = filters
    return (1 / max(o, 1) + 1 / max(c, 1)) / max(height * width, 1)


def as_stored(name: str, inputs: Specs, outputs: Specs) -> Specs:
    """The specs of inputs as kernels read them: some read uint8 weights as int8."""
    if not fake_quantization.reads_as_int8(name, outputs):
        return inputs
    return tuple(
        fake_quantization.as_int8(spec) if spec is not None and spec.dtype == np.uint8 else spec
        for spec in inputs
    )


def dequantizing(inputs: Specs, prepare: Mapping[int, Prepare]) -> dict[int, Prepare]:
    """Functions that prepare constants: dequantize, then what the lowering itself prepares.

    `inputs` are as `as_stored` returns them; `prepare` is by position.
    """
    return {
        position: functools.partial(_prepared, spec, prepare.get(position))
        for position, spec in enumerate(inputs)
        if spec is not None and spec.const is not None
        if spec.is_quantized or position in prepare
    }


def _prepared(spec: TensorSpec, prepare: Prepare | None, stored: np.ndarray) -> np.ndarray:
    value = stored
    if spec.is_quantized and spec.quantization is not None:
        value = affine.dequantize(stored.view(spec.dtype), spec.quantization)
    return value if prepare is None else prepare(value)


def run_in_floats(run: Function, inputs: Specs, outputs: Specs) -> Function:
    """A lowering on floats as a function on integers; constants are floats already.

    `inputs` and `outputs` are the stored specs.
    """

    def entering(value: Any, spec: TensorSpec | None) -> Any:
        if spec is None or spec.const is not None:
            return value
        return fake_quantization.enter(value, spec)

    def leaving(value: Any, spec: TensorSpec | None) -> Any:
        if spec is None or spec.quantization is None or not spec.is_quantized:
            return value
        return jax_affine.quantize(value, spec.quantization, spec.dtype)

    def call(*arrays: Any) -> tuple[Any, ...]:
        floats = (*map(entering, arrays, inputs), *arrays[len(inputs) :])
        results = run(*floats)
        return (*map(leaving, results, outputs), *results[len(outputs) :])

    return call
