"""Rules that recognize what TFLite has one operator for, and fuse what kernels do at once."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdelegate.conversion.graph import Node, Value, constant, distinct, scalar_of
from jaxdelegate.conversion.interpreting import write
from jaxdelegate.conversion.layouts import is_fused, numbers, producer
from jaxdelegate.conversion.mathematics import erf
from jaxdelegate.conversion.rewriter import Rewriter, Rule
from jaxdelegate.op_lowering.options import (
    ActivationFunctionType,
    Options,
    SoftmaxOptions,
    default_options,
)

_PRODUCTS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV")
_FUSES = (*_PRODUCTS[:3], "ADD", "SUB", "MUL", "DIV", "MAX_POOL_2D", "AVERAGE_POOL_2D", "CONV_3D")
_ACTIVATIONS = {
    "RELU": ActivationFunctionType.RELU,
    "RELU6": ActivationFunctionType.RELU6,
    "RELU_N1_TO_1": ActivationFunctionType.RELU_N1_TO_1,
}


def split(node: Node) -> tuple[Value, Value] | None:
    """The input of a binary operator that is computed, and the one that is constant."""
    a, b = node.inputs[:2]
    if a.is_constant == b.is_constant:
        return None
    return (b, a) if a.is_constant else (a, b)


def _is_second(node: Node, value: Value) -> bool:
    return node.inputs[1] is value


# ---- identities


def _neutral(_r: Rewriter, node: Node) -> Value | None:
    """Leave out x + 0, x * 1, x - 0, x / 1, max(x, -inf), min(x, inf)."""
    parts = split(node)
    if parts is None:
        return None
    x, c = parts
    number = scalar_of(c)
    neutral = {"ADD": 0, "SUB": 0, "MUL": 1, "DIV": 1, "MAXIMUM": -np.inf, "MINIMUM": np.inf}
    if number is None or number != neutral[node.op] or x.shape != node.output.shape:
        return None
    return x if node.op not in ("SUB", "DIV") or _is_second(node, c) else None


def _joined_scales(r: Rewriter, node: Node) -> Value | None:
    """(x * a) / b and so on: one multiplication."""
    outer = _scale(node)
    before = producer(None if outer is None else outer[0], "MUL", "DIV")
    inner = None if before is None or is_fused(before) else _scale(before)
    if outer is None or inner is None or not r.is_read_once(outer[0]):
        return None
    factor = np.asarray(outer[1] * inner[1], np.float32)
    x = inner[0]
    if r.emitter.broadcast_shape(x.shape, factor.shape) != node.output.shape:
        return None
    return r.emitter.compute("MUL", x, constant(factor))


def _scale(node: Node) -> tuple[Value, np.ndarray] | None:
    """The input and the constant factor of MUL or DIV."""
    parts = split(node)
    if (
        parts is None
        or parts[1].dtype != np.float32
        or (node.op == "DIV" and not _is_second(node, parts[1]))
    ):
        return None
    data = distinct(parts[1].data).astype(np.float64)
    with np.errstate(all="ignore"):
        factor = 1 / data if node.op == "DIV" else data
    return (parts[0], factor) if np.isfinite(factor).all() else None


def _mean(r: Rewriter, node: Node) -> Value | None:
    """The sum over axes, divided by their size."""
    outer = _scale(node)
    before = producer(None if outer is None else outer[0], "SUM")
    if outer is None or before is None or outer[1].size != 1:
        return None
    x, axes = before.inputs[0], numbers(before.inputs[1])
    sizes = [x.shape[i] for i in axes]
    known = all(isinstance(n, int) for n in sizes)
    if not known or not math.isclose(float(outer[1].flat[0]) * math.prod(sizes), 1, rel_tol=1.2e-7):
        return None
    if before.output.shape != node.output.shape:
        return None
    keep = bool(getattr(before.options, "keep_dims", False))
    return r.emitter.reduce("MEAN", x, axes, keep=keep)


def _squared_difference(r: Rewriter, node: Node) -> Value | None:
    before = producer(node.inputs[0], "SUB")
    if before is None or is_fused(before) or not r.is_read_once(before.output):
        return None
    a, b = before.inputs
    return r.emitter.compute("SQUARED_DIFFERENCE", a, b)


# ---- softmax


def _plain(value: Value | None) -> Value | None:
    """A value without what only repeats it or gives it another shape."""
    while value is not None and (node := producer(value, "RESHAPE", "BROADCAST_TO")) is not None:
        value = node.inputs[0]
    return value


def _axis(value: Value | None, op: str, of: Value | None) -> int | None:
    """The dimension along which a value is the reduction of another one; None if it is not."""
    node = producer(_plain(value), op)
    if node is None or of is None or node.inputs[0] is not of:
        return None
    axes = numbers(node.inputs[1])
    return axes[0] if len(axes) == 1 else None


def _shifted(value: Value | None, axis: int | None) -> Value | None:
    """The x of x - max(x)."""
    node = producer(value, "SUB")
    x = None if node is None else node.inputs[0]
    fits = node is not None and axis is not None and _axis(node.inputs[1], "REDUCE_MAX", x) == axis
    return x if fits else None


def _normalized(r: Rewriter, op: str, x: Value, axis: int, options: Options | None) -> Value:
    """SOFTMAX or LOG_SOFTMAX, which are along the last dimension."""
    order = [i for i in range(x.rank) if i != axis] + [axis]
    x = r.emitter.transpose(x, order)
    return r.emitter.transpose(r.emitter.op(op, [x], x.shape, x.dtype, options), np.argsort(order))


def _softmax(r: Rewriter, node: Node) -> Value | None:
    power = producer(node.inputs[0], "EXP")
    if power is None:
        return None
    axis = _axis(node.inputs[1], "SUM", power.output)
    x = _shifted(power.inputs[0], axis)
    if x is None or axis is None or x.shape != node.output.shape:
        return None
    return _normalized(r, "SOFTMAX", x, axis, SoftmaxOptions(1.0))


def _log_softmax(r: Rewriter, node: Node) -> Value | None:
    log = producer(_plain(node.inputs[1]), "LOG")
    total = None if log is None else producer(_plain(log.inputs[0]), "SUM")
    power = None if total is None else producer(total.inputs[0], "EXP")
    if power is None or total is None or power.inputs[0] is not node.inputs[0]:
        return None
    axis = _axis(total.output, "SUM", power.output)
    x = _shifted(node.inputs[0], axis)
    if x is None or axis is None or x.shape != node.output.shape:
        return None
    return _normalized(r, "LOG_SOFTMAX", x, axis, None)


# ---- what products do at once


def _bias(r: Rewriter, node: Node) -> Value | None:
    """A constant for each channel, added to a product: its bias."""
    parts = split(node)
    before = producer(None if parts is None else parts[0], *_PRODUCTS)
    if parts is None or before is None or is_fused(before) or not r.is_read_once(parts[0]):
        return None
    vector = _channels(parts[1], before.output)
    if vector is None or (node.op == "SUB" and not _is_second(node, parts[1])):
        return None
    bias = _bias_of(before, len(vector)) + (-vector if node.op == "SUB" else vector)
    return _product(r, before, before.inputs[1], bias, parts[1].name)


def _channels(c: Value, product: Value) -> np.ndarray | None:
    """A constant as one number for each channel of a product; None if it is not that."""
    n = product.shape[-1]
    if c.dtype != np.float32 or c.rank > product.rank or not isinstance(n, int):
        return None
    data = np.asarray(distinct(c.data), np.float32)
    if data.size == 1:
        return np.broadcast_to(data.reshape(1), (n,))
    return data.reshape(n) if data.size == n and data.shape[-1] == n else None


def _bias_of(node: Node, n: int) -> np.ndarray:
    at = 3 if node.op == "TRANSPOSE_CONV" else 2
    bias = node.inputs[at] if len(node.inputs) > at else None
    return np.zeros(n, np.float32) if bias is None else np.asarray(bias.data, np.float32)


def _product(r: Rewriter, node: Node, weights: Value | None, bias: np.ndarray, name: str) -> Value:
    at = 3 if node.op == "TRANSPOSE_CONV" else 2
    inputs = [*node.inputs[:at], constant(np.ascontiguousarray(bias, np.float32), name)]
    inputs[1] = weights
    return r.emitter.op(node.op, inputs, node.output.shape, node.output.dtype, node.options)


def _scaled_product(r: Rewriter, node: Node) -> Value | None:
    """A factor for each channel, as of a batch normalization: it goes into the weights."""
    scale = _scale(node)
    before = producer(None if scale is None else scale[0], *_PRODUCTS)
    if scale is None or before is None or is_fused(before) or not r.is_read_once(scale[0]):
        return None
    weights = before.inputs[1]
    factors = _channels(constant(scale[1].astype(np.float32)), before.output)
    if weights is None or not weights.is_constant or factors is None or weights.dtype != np.float32:
        return None
    if before.op == "DEPTHWISE_CONV_2D":
        shape: tuple[int, ...] = (-1,)
    else:
        shape = (-1, *[1] * (weights.rank - 1))
    scaled = constant((weights.data * factors.reshape(shape)).astype(np.float32), weights.name)
    return _product(r, before, scaled, _bias_of(before, len(factors)) * factors, "bias")


def _fused_activation(r: Rewriter, node: Node) -> Value | None:
    before = producer(node.inputs[0], *_FUSES)
    if before is None or is_fused(before) or not r.is_read_once(before.output):
        return None
    if before.output.dtype != np.float32:
        return None
    options: Any = before.options or default_options(before.op)
    options = dataclasses.replace(options, fused_activation_function=_ACTIVATIONS[node.op])
    return r.emitter.op(before.op, before.inputs, node.output.shape, node.output.dtype, options)


def _rows_first(r: Rewriter, node: Node) -> Value | None:
    """FULLY_CONNECTED of a tensor that only lost or got dimensions of its rows: not needed."""
    before = producer(node.inputs[0], "RESHAPE")
    x = None if before is None else before.inputs[0]
    if before is None or x is None or x.rank < 2 or x.shape[-1:] != before.output.shape[-1:]:
        return None
    if node.output.shape[:-1] != before.output.shape[:-1]:
        return None
    shape = (*x.shape[:-1], node.output.shape[-1])
    y = r.emitter.op("FULLY_CONNECTED", [x, *node.inputs[1:]], shape, x.dtype, node.options)
    return r.emitter.reshape(y, node.output.shape)


def _expanded(function: Any) -> Rule:
    def rule(r: Rewriter, node: Node) -> Value | None:
        value: Value = write(r.emitter, function, node.inputs[0])
        return value

    return rule


LAST: dict[str, Sequence[Rule]] = {
    "ERF": (_expanded(erf),),
    "ERFC": (_expanded(lambda x: 1 - erf(x)),),
}
_SCALES: tuple[Rule, ...] = (_neutral, _mean, _scaled_product, _joined_scales)
RULES: dict[str, tuple[Rule, ...]] = {
    "ADD": (_neutral, _bias),
    "SUB": (_neutral, _bias, _log_softmax),
    "MUL": _SCALES,
    "DIV": (*_SCALES, _softmax),
    "MAXIMUM": (_neutral,),
    "MINIMUM": (_neutral,),
    "SQUARE": (_squared_difference,),
    "FULLY_CONNECTED": (_rows_first,),
}
FUSING: dict[str, tuple[Rule, ...]] = dict.fromkeys(_ACTIVATIONS, (_fused_activation,))
